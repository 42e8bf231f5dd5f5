"""One linear layer of an ONNX graph: whether a node is one, and its weights.

Also the arithmetic that may follow it: a constant added to the logits, or one that scales them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from covcal_cli.errors import CovcalError
from covcal_cli.models.onnx_graph import OnnxGraph

ARITHMETIC = {"Add", "Sub", "Mul", "Div"}
_LINEAR = {"Gemm", "MatMul", "Conv"}
_OTHER_LINEAR = {
    "QLinearMatMul",
    "QLinearConv",
    "QGemm",
    "MatMulInteger",
    "ConvInteger",
    "FusedGemm",
    "FusedMatMul",
    "LinearClassifier",
}


@dataclass(frozen=True)
class Linear:
    """One layer: logits = phi W^T + b.

    Attributes
    ----------
    features : str
        The tensor that holds phi.
    weight : array of float64, shape (K, d)
        W.
    bias : array of float64, shape (K,)
        b; zeros where the layer has none.
    """

    features: str
    weight: NDArray[np.float64]
    bias: NDArray[np.float64]


def has_fixed_weights(graph: OnnxGraph, node: onnx.NodeProto) -> bool:
    """Return whether `node` is a linear layer whose weights are constant."""
    if node.op_type in _OTHER_LINEAR:
        return True
    return (
        node.op_type in _LINEAR
        and node.input[1] in graph.constants
        and node.input[0] not in graph.constants
    )


def describe(node: onnx.NodeProto) -> str:
    """Return the operator and the name of a node, or of its output where it has none."""
    return f"{node.op_type} {node.name or node.output[0]}"


def read_linear(graph: OnnxGraph, node: onnx.NodeProto) -> Linear:
    """Return the weights of a linear layer.

    Raises
    ------
    CovcalError
        If its logits are not affine in a feature vector, or its kind is not supported.
    """
    attributes = {value.name: helper.get_attribute_value(value) for value in node.attribute}
    where = f"{graph.file.path}: {describe(node)}"
    if node.op_type in _OTHER_LINEAR:
        raise CovcalError(
            f"{where} is the last layer, and {node.op_type} layers are not supported yet: "
            "export the float model, not a quantised or fused one"
        )
    weight = graph.evaluate(node.input[1])
    biased = len(node.input) > 2 and bool(node.input[2])
    if biased and node.input[2] not in graph.constants:
        raise CovcalError(
            f"{where} adds a bias that depends on the input, so the logits are not affine in its "
            "features: export a model whose last layer is plain"
        )
    bias = graph.evaluate(node.input[2]) if biased else np.zeros(1)
    if node.op_type == "Conv":
        if not _is_one_by_one(weight, attributes):
            raise CovcalError(
                f"{where} is the last layer with constant weights, and it is not a 1x1 "
                "convolution, so the logits are not affine in a feature vector: export a model "
                "whose last layer is linear"
            )
        weight = weight.reshape(weight.shape[:2])
    elif weight.ndim != 2 or attributes.get("transA", 0):
        raise CovcalError(
            f"{where} multiplies by weights of shape {list(weight.shape)}, not by one matrix: "
            "export a model whose last layer is linear"
        )
    elif node.op_type == "MatMul" or not attributes.get("transB", 0):
        weight = weight.T
    if node.op_type == "Gemm":
        weight, bias = attributes.get("alpha", 1.0) * weight, attributes.get("beta", 1.0) * bias
    return Linear(node.input[0], weight, np.broadcast_to(bias.reshape(-1), len(weight)))


def _is_one_by_one(weight: NDArray[np.float64], attributes: dict[str, object]) -> bool:
    def every(name: str, value: int) -> bool:
        given = attributes.get(name, ())
        return isinstance(given, Sequence) and all(item == value for item in given)

    return (
        weight.ndim > 2
        and weight.shape[2:] == (1,) * (weight.ndim - 2)
        and attributes.get("group", 1) == 1
        and every("strides", 1)
        and every("pads", 0)
    )


def fold(
    graph: OnnxGraph,
    node: onnx.NodeProto,
    tensor: str,
    weight: NDArray[np.float64],
    bias: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Fold an added or multiplied constant into W and b, or return None where it does not fit."""
    left, right = node.input
    other = right if left == tensor else left
    if other not in graph.constants or (node.op_type in ("Sub", "Div") and left != tensor):
        return None
    constant = graph.evaluate(other).reshape(-1)
    if constant.size not in (1, len(weight)):
        return None
    if node.op_type == "Add":
        return weight, bias + constant
    if node.op_type == "Sub":
        return weight, bias - constant
    factor = constant if node.op_type == "Mul" else 1.0 / constant
    return weight * np.broadcast_to(factor, len(weight))[:, None], bias * factor
