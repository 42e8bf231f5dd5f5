"""Read the linear layers of an ONNX graph, and follow their results to the output.

`walk_forward` follows the result of a layer while the result is linear in phi. Linear operators are
scaling, shifts, batch normalisation, reshapes, means over positions, casts, and choices of tokens
or classes. Each operator changes W and b.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from covcal_cli.arrays import Float64s
from covcal_cli.classifiers.onnx.graph import OnnxGraph
from covcal_cli.errors import CovcalError

LOGITS_ONLY = (
    "pass --phi none to keep only the logits, or --phi NAME to use another tensor as features"
)
QUANTISED = {
    *("QGemm", "QLinearMatMul", "QLinearConv", "MatMulInteger", "ConvInteger"),
    *("DynamicQuantizeMatMul", "MatMulIntegerToFloat"),
}
# 8-bit sums can overflow, and logits outside the calibrated range are clipped.
OVERFLOW = "quantise with reduce_range=True and with more calibration rows, or "
_ROUNDING = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
_RESHAPES = {"Flatten", "Reshape", "Squeeze", "Unsqueeze", "Identity", "Transpose"}
# The index of the weights among the inputs of each operator.
_WEIGHTS = dict.fromkeys(("Gemm", "MatMul", "Conv", "FusedGemm", "FusedMatMul", "FusedConv"), 1)
_WEIGHTS |= {op: 3 if op in ("QGemm", "QLinearMatMul", "QLinearConv") else 1 for op in QUANTISED}
_CONVOLUTIONS = {"Conv", "FusedConv", "ConvInteger", "QLinearConv"}


@dataclass(frozen=True)
class TensorRead:
    """A tensor to read from a run, and the `nodes` that covcal adds to compute the tensor."""

    tensor: str
    nodes: tuple[onnx.NodeProto, ...] = ()  # Nodes that covcal adds to the model.
    source: str = ""  # The tensor of the original model that is the input of `nodes`.

    @property
    def name(self) -> str:
        """The name of the tensor in the model."""
        return self.source or self.tensor

    def then(self, op: str, *inputs: str, **attributes: Any) -> "TensorRead":
        """Add a node that reads this tensor, and return its result."""
        output = f"{self.name}__covcal_{len(self.nodes)}_{op}"
        node = helper.make_node(op, [self.tensor, *inputs], [output], **attributes)
        return TensorRead(output, (*self.nodes, node), self.name)

    def dequantised(self, how: "Quantisation") -> "TensorRead":
        """Add nodes that turn the integers of this tensor into floats."""
        zero = [how.zero_point] if how.zero_point else []
        return self.then("DequantizeLinear", how.scale, *zero)

    def then_affine(self, weight: Float64s, bias: Float64s) -> "TensorRead":
        """Add nodes that compute phi W^T + b in float32 from this tensor."""
        floats = self.then("Cast", to=onnx.TensorProto.FLOAT)
        constants = [
            helper.make_node(
                "Constant",
                [],
                [f"{self.name}__covcal_{name}"],
                value=onnx.numpy_helper.from_array(value.astype(np.float32)),
            )
            for name, value in (("weight", weight.T), ("bias", bias))
        ]
        ready = TensorRead(floats.tensor, (*floats.nodes, *constants), floats.source)
        product = ready.then("MatMul", constants[0].output[0])
        return product.then("Add", constants[1].output[0])


@dataclass(frozen=True)
class Quantisation:
    """The scale and the zero point of a quantised tensor."""

    scale: str
    zero_point: str = ""


@dataclass(frozen=True)
class Position:
    """A tensor that equals phi W^T + b."""

    tensor: str  # Name of the tensor; empty if the operator includes an activation.
    weight: Float64s  # W, shape (K, d).
    bias: Float64s  # b, shape (K,); 0 if the layer has no bias.
    step: float = 0.0  # The largest rounding error, if the tensor holds integers.
    quantised: Quantisation | None = None  # The scale and zero point, if the tensor holds integers.
    pending: str | None = None  # A scale that a later node applies to the tensor.
    follower: str | None = None  # The first later operator that is not linear.
    is_flat: bool = False  # Whether the second axis is the classes, and not tokens.


@dataclass(frozen=True)
class Linear:
    """A linear layer, whose result is phi W^T + b."""

    layer: str  # Operator and name, such as "Gemm fc2".
    features: TensorRead  # The tensor phi.
    result: Position


def describe(node: onnx.NodeProto) -> str:
    """Return the operator and the name of a node."""
    return f"{node.op_type} {node.name or node.output[0]}"


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of a node by name."""
    return {value.name: helper.get_attribute_value(value) for value in node.attribute}


def has_fixed_weights(graph: OnnxGraph, node: onnx.NodeProto) -> bool:
    """Return whether a node is a linear layer with constant weights."""
    if node.op_type == "LinearClassifier":
        return True
    index = _WEIGHTS.get(node.op_type)
    return (
        index is not None
        and index < len(node.input)
        and node.input[index] in graph.constants
        and node.input[0] not in graph.constants
    )


def read_linear(graph: OnnxGraph, node: onnx.NodeProto) -> Linear:
    """Return a linear layer and its weights."""
    if node.op_type == "LinearClassifier":
        return _read_linear_classifier(node)
    reader = read_quantised if node.op_type in QUANTISED else _read_float
    linear = _as_matrix(graph, node, reader(graph, node))
    if node.op_type in _CONVOLUTIONS:
        # The mean over positions and a 1x1 convolution can be exchanged.
        pooled = linear.features.then("GlobalAveragePool").then("Flatten", axis=1)
        linear = replace(linear, features=pooled)
    return linear


def _read_float(graph: OnnxGraph, node: onnx.NodeProto) -> Linear:
    attributes = attributes_of(node)
    weight = graph.evaluate(node.input[1])
    has_bias = node.op_type not in ("MatMul", "FusedMatMul") and len(node.input) > 2
    has_bias = has_bias and bool(node.input[2])
    if has_bias and node.input[2] not in graph.constants:
        raise CovcalError(
            f"{graph.file.path}: the bias of the last layer {describe(node)} depends on the "
            f"input, so the layer is not linear: {LOGITS_ONLY}"
        )
    bias = graph.evaluate(node.input[2]) if has_bias else np.zeros(1)
    is_activated = bool(attributes.get("activation")) and node.op_type in ("FusedGemm", "FusedConv")
    if is_activated and node.op_type == "FusedConv":
        raise CovcalError(
            f"{graph.file.path}: the last layer {describe(node)} includes "
            f"{attributes['activation'].decode()}, so the layer is not linear: {LOGITS_ONLY}"
        )
    result = Position(
        "" if is_activated else node.output[0],
        attributes.get("alpha", 1.0) * weight,
        attributes.get("beta", 1.0) * bias,
        is_flat=node.op_type == "Gemm",
    )
    return Linear(describe(node), TensorRead(node.input[0]), result)


def _as_matrix(graph: OnnxGraph, node: onnx.NodeProto, linear: Linear) -> Linear:
    weight, bias = linear.result.weight, linear.result.bias
    attributes = attributes_of(node)
    where = f"{graph.file.path}: {describe(node)}"
    if node.op_type in _CONVOLUTIONS:
        if not _is_one_by_one(weight, attributes):
            raise CovcalError(f"{where}, the last layer, is not a 1x1 convolution: {LOGITS_ONLY}")
        weight = weight.reshape(weight.shape[:2])
    elif weight.ndim != 2 or any(
        attributes.get(name, 0) for name in ("transA", "transBatchA", "transBatchB")
    ):
        raise CovcalError(
            f"{where}, the last layer, has weights of shape {list(weight.shape)} instead of one "
            f"matrix: {LOGITS_ONLY}"
        )
    elif not attributes.get("transB", 0):
        weight = weight.T
    if bias.size not in (1, len(weight)):
        raise CovcalError(
            f"{where} has weights for {len(weight)} classes but a bias for {bias.size}: "
            "export the model again"
        )
    # A single number is the bias of every class.
    bias = np.broadcast_to(bias.reshape(-1), len(weight))
    return replace(linear, result=replace(linear.result, weight=weight, bias=bias))


def _is_one_by_one(weight: Float64s, attributes: dict[str, Any]) -> bool:
    def every(name: str, value: int) -> bool:
        values = attributes.get(name, ())
        return isinstance(values, Sequence) and all(item == value for item in values)

    return (
        weight.ndim > 2
        and weight.shape[2:] == (1,) * (weight.ndim - 2)
        and attributes.get("group", 1) == 1
        and every("strides", 1)
        and every("pads", 0)
    )


def _read_linear_classifier(node: onnx.NodeProto) -> Linear:
    """Read a LinearClassifier node, which includes a softmax or sigmoid.

    For the scores -z and z, the sigmoids equal the softmax of -z/2 and z/2.
    """
    attributes = attributes_of(node)
    labels = attributes.get("classlabels_strings") or attributes.get("classlabels_ints") or [0]
    bias = np.asarray(attributes.get("intercepts") or [0.0] * len(labels), dtype=np.float64)
    weight = np.asarray(attributes["coefficients"], dtype=np.float64).reshape(len(bias), -1)
    sigmoids = attributes.get("post_transform", b"NONE") == b"LOGISTIC"
    if len(weight) == 2 and sigmoids and np.array_equal(weight[0], -weight[1]):
        weight, bias = weight / 2, bias / 2
    return Linear(describe(node), TensorRead(node.input[0]), Position("", weight, bias))


# Read linear layers of quantised numbers, and convert phi and W to floats. The stored result may
# differ from phi W^T + b by one quantisation step.


def holds_quantised(graph: OnnxGraph) -> bool:
    """Return whether the graph has quantised tensors."""
    rounding = QUANTISED | _ROUNDING
    return any(node.op_type in rounding or node.op_type[:7] == "QLinear" for node in graph.nodes)


def read_quantised(graph: OnnxGraph, node: onnx.NodeProto) -> Linear:
    """Return a quantised layer, with weights as floats in the shapes of the operator."""
    names = [*node.input, *([""] * (9 - len(node.input)))]  # A missing input has an empty name.
    kind = node.op_type
    if kind in ("DynamicQuantizeMatMul", "MatMulIntegerToFloat"):
        if kind == "DynamicQuantizeMatMul":
            read, weights, scale, zero, bias = names[:5]
            features = _quantise_again(read)
        else:
            read, weights, read_scale, scale, read_zero, zero, bias = names[:7]
            features = TensorRead(read).dequantised(Quantisation(read_scale, read_zero))
        weight, _ = _dequantise(graph, weights, scale, zero, first=False)
        result = Position(node.output[0], weight, _constant(graph, bias))
        return Linear(describe(node), features, result)
    if kind in ("MatMulInteger", "ConvInteger"):
        return _integer_result(graph, node, names)
    # QGemm, QLinearMatMul and QLinearConv store their result as integers with a scale.
    read, read_scale, read_zero, weights, scale, zero = names[:6]
    stored, bias = Quantisation(names[6], names[7]), names[8]
    if kind == "QGemm":
        stored, bias = Quantisation(names[7], names[8]), names[6]
    weight, steps = _dequantise(graph, weights, scale, zero, first=_columns_first(node))
    alpha = attributes_of(node).get("alpha", 1.0)
    # The unit of a stored bias is the scale of the input times the scale of the weights.
    unit = graph.evaluate(read_scale).reshape(-1) * steps * alpha
    result = Position(
        node.output[0],
        alpha * weight,
        _constant(graph, bias) * unit,
        step=step_of(graph, stored.scale),
        quantised=stored if stored.scale else None,
    )
    features = TensorRead(read).dequantised(Quantisation(read_scale, read_zero))
    return Linear(describe(node), features, result)


def step_of(graph: OnnxGraph, scale: str) -> float:
    """Return the largest quantisation step."""
    return float(graph.evaluate(scale).max()) if scale in graph.constants else 0.0


def _integer_result(graph: OnnxGraph, node: onnx.NodeProto, names: list[str]) -> Linear:
    read, weights, read_zero, zero = names[:4]
    maker = graph.maker(read)
    while maker is not None and maker.op_type in _RESHAPES:
        maker = graph.maker(maker.input[0])
    if maker is None or maker.op_type not in ("DynamicQuantizeLinear", "QuantizeLinear"):
        raise CovcalError(
            f"{graph.file.path}: {describe(node)} reads integers with an unknown scale: pass "
            "--phi none to keep only the logits"
        )
    dynamic = maker.op_type == "DynamicQuantizeLinear"
    scale = maker.output[1] if dynamic else maker.input[1]
    weight, _ = _dequantise(graph, weights, "", zero, first=_columns_first(node))
    features = TensorRead(read).dequantised(Quantisation(scale, read_zero))
    result = Position(node.output[0], weight, np.zeros(1), pending=scale)
    return Linear(describe(node), features, result)


def _quantise_again(tensor: str) -> TensorRead:
    names = [f"{tensor}__covcal_{part}" for part in ("integers", "scale", "zero")]
    node = onnx.helper.make_node("DynamicQuantizeLinear", [tensor], names)
    integers = TensorRead(names[0], (node,), tensor)
    return integers.then("DequantizeLinear", names[1], names[2])


def _columns_first(node: onnx.NodeProto) -> bool:
    return "Conv" in node.op_type or bool(attributes_of(node).get("transB", 0))


def _dequantise(
    graph: OnnxGraph, tensor: str, scale: str, zero: str, *, first: bool
) -> tuple[Float64s, Float64s]:
    """Return weights as floats, and their scale, (1,) or (K,)."""
    stored = graph.evaluate(tensor)
    steps = graph.evaluate(scale).reshape(-1) if scale else np.ones(1)
    zeros = graph.evaluate(zero).reshape(-1) if zero else np.zeros(1)

    def along(values: Float64s) -> Float64s:
        return values.reshape(-1, *(1,) * (stored.ndim - 1)) if first else values

    return (stored - along(zeros)) * along(steps), steps


def _constant(graph: OnnxGraph, tensor: str) -> Float64s:
    return graph.evaluate(tensor).reshape(-1) if tensor else np.zeros(1)


_ARITHMETIC = {"Add", "Sub", "Mul", "Div"}
_MEANS = {"GlobalAveragePool", "AveragePool", "ReduceMean"}
_TOKENS = {"Gather", "Slice"}
_KEEP_SHAPE = {"Identity", "Cast", "Dropout"}
_TOKENS_RANK = 3
# Operators that copy, choose, average or reshape the values of their first input.
_PASS = {
    *_KEEP_SHAPE,
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"),
    *_MEANS,
    *_TOKENS,
}
_QUANTISE = {"QuantizeLinear", "DequantizeLinear", "QLinearAdd", "QLinearGlobalAveragePool"}


def walk_forward(graph: OnnxGraph, linear: Linear, output: str) -> Position:
    """Follow the result of the layer `linear` to `output`, as long as it is linear in phi."""
    path, at = graph.ancestors([output]), linear.result
    while at.tensor != output:
        readers = graph.readers(at.tensor, path)
        further = _over(graph, readers[0], at) if len(readers) == 1 else None
        if further is None:
            at = replace(at, follower=readers[0].op_type)
            break
        at = further
    if at.pending:
        raise CovcalError(
            f"{graph.file.path}: the scale of the quantised output of {linear.layer} is "
            "unknown: pass --phi none to keep only the logits"
        )
    return at


def tail_step(graph: OnnxGraph, start: str, output: str) -> float:
    """Return the largest rounding error of the quantised tensors after `start`.

    Each tensor may be wrong by two quantisation steps, as a quantised softmax uses a rounded table.
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
    """Return the result of a node as a `Position`; None if the node is not linear."""
    if node.op_type in _ARITHMETIC:
        return _arithmetic(graph, node, at)
    if node.input[0] != at.tensor and node.op_type != "QLinearAdd":
        return None
    if node.op_type == "Transpose" and len(attributes_of(node).get("perm", ())) < _TOKENS_RANK:
        return None  # The operator moves the rows to another axis.
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
    options, k = attributes_of(node), len(at.weight)
    if not graph.constants.issuperset(node.input[1:]):
        return None
    constants = [graph.constant(name).reshape(-1) for name in node.input[1:]]
    if node.op_type == "Gather":
        axes, (index, *_) = [options.get("axis", 0)], constants
    else:
        named = [np.array(options[name]) for name in ("starts", "ends", "axes") if name in options]
        starts, ends, *more = constants or named
        axes = list(more[0]) if more else list(range(len(starts)))
        step = int(more[1][0]) if len(more) > 1 else 1
        index = np.arange(k)[int(starts[0]) : int(ends[0]) : step]
    # If the graph slices a single class, the model has two classes and returns one of the two.
    if axes not in ([1], [-1]) or len(index) < 2:
        return None
    return replace(at, tensor=node.output[0], weight=at.weight[index], bias=at.bias[index])


def _arithmetic(graph: OnnxGraph, node: onnx.NodeProto, at: Position) -> Position | None:
    left, right = node.input
    other = right if left == at.tensor else left
    result = node.output[0]
    # For logits z and a constant c, c - z changes the sign of W, and c / z is not linear in z.
    if node.op_type in ("Sub", "Div") and left != at.tensor:
        return None
    # A factor that is not constant can only be the scale of a quantised input.
    if other not in graph.constants:
        return _scaled_by_input(graph, node, other, at)
    constant = graph.evaluate(other).reshape(-1)
    if constant.size not in (1, len(at.weight)):
        return None
    if node.op_type in ("Add", "Sub"):
        shift = constant if node.op_type == "Add" else -constant
        return replace(at, tensor=result, bias=at.bias + shift)
    return _scaled(at, result, constant if node.op_type == "Mul" else 1.0 / constant)


def _scaled_by_input(
    graph: OnnxGraph, node: onnx.NodeProto, scale: str, at: Position
) -> Position | None:
    if node.op_type != "Mul" or not at.pending:
        return None
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
        # The constant of QLinearAdd may be its first or its second input.
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
    # The operator computes (z - mean) / sqrt(variance + epsilon) * scale + shift.
    factor = scale / np.sqrt(variance + attributes_of(node).get("epsilon", 1e-5))
    centred = replace(at, bias=at.bias - mean)
    scaled = _scaled(centred, node.output[0], factor)
    return replace(scaled, bias=scaled.bias + shift)
