"""Walk from a linear layer towards the output while the result stays affine in phi.

The walk passes an added constant, a constant scale, a frozen batch normalisation, a reshape, a
choice of one token or of some classes, a mean over positions, and a change of number format. Scales
and shifts are folded into W and b. A wrong guess does no harm, because the numerical proof fails.
"""

from dataclasses import dataclass, replace

import numpy as np
import onnx

from covcal_cli.arrays import Float64s
from covcal_cli.classifiers.onnx.graph import OnnxGraph
from covcal_cli.classifiers.onnx.layers import Linear, Quantisation, attributes_of, step_of
from covcal_cli.errors import CovcalError

_ARITHMETIC = {"Add", "Sub", "Mul", "Div"}
_MEANS = {"GlobalAveragePool", "AveragePool", "ReduceMean"}
_TOKENS = {"Gather", "Slice"}
_KEEP_SHAPE = {"Identity", "Cast", "Dropout"}
_TOKENS_RANK = 3
# These operators pass on the values of their first input, perhaps in another shape.
_PASS = {
    *_KEEP_SHAPE,
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"),
    *_MEANS,
    *_TOKENS,
}
_QUANTISE = {"QuantizeLinear", "DequantizeLinear", "QLinearAdd", "QLinearGlobalAveragePool"}


@dataclass(frozen=True)
class Position:
    """A tensor that is affine in phi: it equals phi W^T + b."""

    tensor: str
    weight: Float64s  # shape (K, d)
    bias: Float64s  # shape (K,)
    step: float = 0.0  # the largest error from rounding to stored integers
    quantised: Quantisation | None = None  # how to read it if it holds integers
    pending: str | None = None  # a scale; a later node must multiply by it
    follower: str | None = None  # the operator that reads it and is not affine
    is_flat: bool = False  # whether its second axis holds the classes, not tokens


def walk_forward(graph: OnnxGraph, linear: Linear, start: str, output: str) -> Position:
    """Follow the result of `linear` from `start` towards `output` while it is affine in phi."""
    path = graph.ancestors([output])
    at = Position(
        start,
        linear.weight,
        linear.bias,
        quantised=linear.quantised,
        pending=linear.pending,
        step=step_of(graph, linear.quantised.scale) if linear.quantised else 0.0,
        is_flat=linear.layer.startswith("Gemm "),
    )
    while at.tensor != output:
        readers = graph.readers(at.tensor, path)
        further = _over(graph, readers[0], at) if len(readers) == 1 else None
        if further is None:
            at = replace(at, follower=readers[0].op_type)
            break
        at = further
    # Here the walk has reached the output, or an operator that is not affine.
    if at.pending:
        raise CovcalError(
            f"{graph.file.path}: the scale of {linear.layer}'s result was not found before "
            f"{at.follower or output}: pass --phi none to keep only the logits"
        )
    return at


def tail_step(graph: OnnxGraph, start: str, output: str) -> float:
    """Return the largest error of the output from rounding to integers after `start`.

    It is two steps of every scale, because a quantised softmax uses a rounded table.
    """
    path = graph.ancestors([output]) - graph.ancestors([start])
    total = 0.0
    for node in graph.nodes:
        if path.isdisjoint(node.output):
            continue
        if node.op_type == "QuantizeLinear":
            total += 2 * step_of(graph, node.input[1])
        elif node.op_type.startswith("QLinear") and len(node.input) > 4:
            total += 2 * step_of(graph, node.input[-2])
    return total


def _over(graph: OnnxGraph, node: onnx.NodeProto, at: Position) -> Position | None:
    """Return the position after `node`, or None if its result is not affine in phi."""
    if node.op_type in _ARITHMETIC:
        return _arithmetic(graph, node, at)
    if node.input[0] != at.tensor and node.op_type != "QLinearAdd":
        return None
    if node.op_type == "Transpose" and len(attributes_of(node).get("perm", ())) < _TOKENS_RANK:
        return None  # then the rows are not the first axis
    if node.op_type in _TOKENS and at.is_flat:
        return _chosen_classes(graph, node, at)
    if node.op_type in _PASS:
        flat = at.is_flat and node.op_type in _KEEP_SHAPE
        return replace(at, tensor=node.output[0], is_flat=flat)
    if node.op_type in _QUANTISE:
        return _requantised(graph, node, at)
    if node.op_type == "BatchNormalization" and graph.constants.issuperset(node.input[1:]):
        return _normalised(graph, node, at)
    return None


def _chosen_classes(graph: OnnxGraph, node: onnx.NodeProto, at: Position) -> Position | None:
    """Keep the rows of W and b of the classes that the node chooses, in its order."""
    options, k = attributes_of(node), len(at.weight)
    if not graph.constants.issuperset(node.input[1:]):
        return None
    # Read the axes and the chosen classes, from Gather or from Slice.
    constants = [graph.constant(name).reshape(-1) for name in node.input[1:]]
    if node.op_type == "Gather":
        axes, (index, *_) = [options.get("axis", 0)], constants
    else:
        named = [np.array(options[name]) for name in ("starts", "ends", "axes") if name in options]
        starts, ends, *more = constants or named
        axes = list(more[0]) if more else list(range(len(starts)))
        step = int(more[1][0]) if len(more) > 1 else 1
        index = np.arange(k)[int(starts[0]) : int(ends[0]) : step]
    # A single class would be one number per row, which is read in another way.
    if axes not in ([1], [-1]) or len(index) < 2:
        return None
    return replace(at, tensor=node.output[0], weight=at.weight[index], bias=at.bias[index])


def _arithmetic(graph: OnnxGraph, node: onnx.NodeProto, at: Position) -> Position | None:
    """Fold an added or multiplied constant into W and b."""
    left, right = node.input
    other = right if left == at.tensor else left
    result = node.output[0]
    # c - z changes the sign of W, and c / z is not affine. No known head ends with either.
    if node.op_type in ("Sub", "Div") and left != at.tensor:
        return None
    # The only factor that may not be constant is the scale of a quantised input.
    if other not in graph.constants:
        return _scaled_by_input(graph, node, other, at)
    # The constant is one number for all classes, or one for each class.
    constant = graph.evaluate(other).reshape(-1)
    if constant.size not in (1, len(at.weight)):
        return None
    # z + c changes only b.
    if node.op_type in ("Add", "Sub"):
        shift = constant if node.op_type == "Add" else -constant
        return replace(at, tensor=result, bias=at.bias + shift)
    # c z scales W and b.
    return _scaled(at, result, constant if node.op_type == "Mul" else 1.0 / constant)


def _scaled_by_input(
    graph: OnnxGraph, node: onnx.NodeProto, scale: str, at: Position
) -> Position | None:
    """Multiply by the scale of a dynamically quantised input, perhaps times the weights' own."""
    if node.op_type != "Mul" or not at.pending:
        return None
    # The factor is this scale, or its product with a constant, the scale of the weights.
    if scale == at.pending:
        return replace(at, tensor=node.output[0], pending=None)
    maker = graph.maker(scale)
    if maker is None or maker.op_type != "Mul" or at.pending not in maker.input:
        return None
    own = next((name for name in maker.input if name in graph.constants), None)
    if own is None:
        return None
    factor = graph.evaluate(own).reshape(-1)
    if factor.size not in (1, len(at.weight)):
        return None
    return _scaled(replace(at, pending=None), node.output[0], factor)


def _scaled(at: Position, result: str, factor: Float64s) -> Position:
    factors = np.broadcast_to(factor, len(at.weight))
    return replace(
        at,
        tensor=result,
        weight=at.weight * factors[:, None],
        bias=at.bias * factors,
        step=at.step * float(np.abs(factors).max()),
    )


def _requantised(graph: OnnxGraph, node: onnx.NodeProto, at: Position) -> Position | None:
    names = [*node.input, "", "", ""]
    result = node.output[0]
    if node.op_type == "DequantizeLinear":
        return replace(at, tensor=result, quantised=None)
    if node.op_type == "QuantizeLinear":
        scale, zero = names[1], names[2]
    elif node.op_type == "QLinearGlobalAveragePool":
        scale, zero = names[3], names[4]
    else:
        scale, zero = names[6], names[7]
        # QLinearAdd adds a stored constant, which may be on either side.
        other = 3 if names[0] == at.tensor else 0
        if names[other] not in graph.constants:
            return None
        value, steps, zeros = (
            graph.evaluate(name).reshape(-1) if name else np.zeros(1)
            for name in names[other : other + 3]
        )
        at = replace(at, bias=at.bias + (value - zeros) * steps)
    step = at.step + step_of(graph, scale)
    return replace(at, tensor=result, quantised=Quantisation(scale, zero), step=step)


def _normalised(graph: OnnxGraph, node: onnx.NodeProto, at: Position) -> Position | None:
    scale, shift, mean, variance = (graph.evaluate(name).reshape(-1) for name in node.input[1:5])
    if len(scale) != len(at.weight) or attributes_of(node).get("training_mode", 0):
        return None
    # (z - mean) / sqrt(variance + epsilon) * scale + shift
    factor = scale / np.sqrt(variance + attributes_of(node).get("epsilon", 1e-5))
    centred = replace(at, bias=at.bias - mean)
    scaled = _scaled(centred, node.output[0], factor)
    return replace(scaled, bias=scaled.bias + shift)
