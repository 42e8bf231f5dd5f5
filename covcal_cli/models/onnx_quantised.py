"""Linear layers over quantised numbers: phi and the weights in the floats that they stand for.

The integers that such a layer reads are turned back into floats exactly, so phi W^T + b is off by
the rounding of its result alone: at most one step of the scale that the result is stored with.
"""

import numpy as np
import onnx

from covcal_cli.errors import CovcalError
from covcal_cli.models.onnx_graph import OnnxGraph
from covcal_cli.models.onnx_linear import (
    Exposed,
    Linear,
    Quantised,
    Weights,
    attributes_of,
    describe,
)

QUANTISED = {
    "QGemm",
    "QLinearMatMul",
    "QLinearConv",
    "MatMulInteger",
    "ConvInteger",
    "DynamicQuantizeMatMul",
    "MatMulIntegerToFloat",
}
# Measured: the same network is off by 0.03 without, and by 8e-8 with it.
OVERFLOW = "quantise with reduce_range=True (sums of 8 bits overflow on CPUs without VNNI), or "
_ROUNDING = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
_RESHAPES = {"Flatten", "Reshape", "Squeeze", "Unsqueeze", "Identity", "Transpose"}


def holds_quantised(graph: OnnxGraph) -> bool:
    """Return whether any operator of a graph rounds to integers or reads them."""
    rounding = QUANTISED | _ROUNDING
    return any(node.op_type in rounding or node.op_type[:7] == "QLinear" for node in graph.nodes)


def read_quantised(graph: OnnxGraph, node: onnx.NodeProto) -> Linear:
    """Return a layer over quantised numbers; weights and bias as the operator keeps them."""
    names = [*node.input, *([""] * (9 - len(node.input)))]  # inputs left out at the end
    kind = node.op_type
    if kind == "DynamicQuantizeMatMul":
        _, weights, scale, zero, bias = names[:5]
        return _float_result(
            graph, node, _quantise_again(names[0]), (weights, scale, zero), _constant(graph, bias)
        )
    if kind == "MatMulIntegerToFloat":
        read, weights, read_scale, scale, read_zero, zero, bias = names[:7]
        features = _dequantised(read, Quantised(read_scale, read_zero))
        return _float_result(graph, node, features, (weights, scale, zero), _constant(graph, bias))
    if kind in ("MatMulInteger", "ConvInteger"):
        return _integer_result(graph, node, names)
    # The other three store their result as integers, with a scale of its own.
    read, read_scale, read_zero, weights, scale, zero = names[:6]
    if kind == "QLinearConv":
        result, bias = Quantised(names[6], names[7]), names[8]
    elif kind == "QGemm":
        result, bias = Quantised(names[7], names[8]), names[6]
    else:
        result, bias = Quantised(names[6], names[7]), ""
    weight, steps = _dequantise(graph, weights, scale, zero, first=_columns_first(node))
    alpha = attributes_of(node).get("alpha", 1.0)
    # A bias counts in units of the products: the input's scale times the weights'.
    unit = graph.evaluate(read_scale).reshape(-1) * steps * alpha
    return Linear(
        layer=describe(node),
        features=_dequantised(read, Quantised(read_scale, read_zero)),
        output=node.output[0],
        weight=alpha * weight,
        bias=_constant(graph, bias) * unit,
        quantised=result if result.scale else None,
    )


def step_of(graph: OnnxGraph, scale: str) -> float:
    """Return the largest distance between two values that are stored with `scale`."""
    return float(graph.evaluate(scale).max()) if scale in graph.constants else 0.0


def _float_result(
    graph: OnnxGraph,
    node: onnx.NodeProto,
    features: Exposed,
    stored: tuple[str, str, str],
    bias: Weights,
) -> Linear:
    weight, _ = _dequantise(graph, *stored, first=False)
    return Linear(describe(node), features, node.output[0], weight, bias)


def _integer_result(graph: OnnxGraph, node: onnx.NodeProto, names: list[str]) -> Linear:
    """Read a layer whose sums are integers, to be multiplied by scales further on."""
    read, weights, read_zero, zero = names[:4]
    maker = graph.maker(read)
    while maker is not None and maker.op_type in _RESHAPES:
        maker = graph.maker(maker.input[0])
    if maker is None or maker.op_type not in ("DynamicQuantizeLinear", "QuantizeLinear"):
        raise CovcalError(
            f"{graph.file.path}: {describe(node)} reads integers that are not quantised inside "
            "the model, so what they stand for is unknown: pass --phi none to keep the logits "
            "alone"
        )
    dynamic = maker.op_type == "DynamicQuantizeLinear"
    scale = maker.output[1] if dynamic else maker.input[1]
    weight, _ = _dequantise(graph, weights, "", zero, first=_columns_first(node))
    features = _dequantised(read, Quantised(scale, read_zero))
    return Linear(describe(node), features, node.output[0], weight, np.zeros(1), pending=scale)


def _dequantised(tensor: str, how: Quantised) -> Exposed:
    zero = [how.zero_point] if how.zero_point else []
    return Exposed(tensor).then("DequantizeLinear", how.scale, *zero)


def _quantise_again(tensor: str) -> Exposed:
    """Return what a layer that quantises its own input sees of `tensor`."""
    names = [f"{tensor}__covcal_{part}" for part in ("integers", "scale", "zero")]
    node = onnx.helper.make_node("DynamicQuantizeLinear", [tensor], names)
    integers = Exposed(names[0], (node,), tensor)
    return integers.then("DequantizeLinear", names[1], names[2])


def _columns_first(node: onnx.NodeProto) -> bool:
    """Return whether the first axis of the weights counts the outputs."""
    return "Conv" in node.op_type or bool(attributes_of(node).get("transB", 0))


def _dequantise(
    graph: OnnxGraph, tensor: str, scale: str, zero: str, *, first: bool
) -> tuple[Weights, Weights]:
    """Return stored weights as floats, and their scale, shape (1,) or (K,)."""
    stored = graph.evaluate(tensor)
    steps = graph.evaluate(scale).reshape(-1) if scale else np.ones(1)
    zeros = graph.evaluate(zero).reshape(-1) if zero else np.zeros(1)

    def along(values: Weights) -> Weights:
        return values.reshape(-1, *(1,) * (stored.ndim - 1)) if first else values

    return (stored - along(zeros)) * along(steps), steps


def _constant(graph: OnnxGraph, tensor: str) -> Weights:
    return graph.evaluate(tensor).reshape(-1) if tensor else np.zeros(1)
