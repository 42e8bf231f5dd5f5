"""One linear layer of an ONNX graph: whether a node is one, what it reads, and its weights."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from covcal_cli.errors import CovcalError
from covcal_cli.models.onnx_graph import OnnxGraph
from covcal_cli.models.onnx_linear import (
    LOGITS_ONLY,
    Exposed,
    Linear,
    Weights,
    attributes_of,
    describe,
)
from covcal_cli.models.onnx_quantised import QUANTISED, read_quantised

# Where each operator keeps its weights among its inputs.
_WEIGHTS = {
    "Gemm": 1,
    "MatMul": 1,
    "Conv": 1,
    "FusedGemm": 1,
    "FusedMatMul": 1,
    "FusedConv": 1,
    "MatMulInteger": 1,
    "ConvInteger": 1,
    "DynamicQuantizeMatMul": 1,
    "MatMulIntegerToFloat": 1,
    "QGemm": 3,
    "QLinearMatMul": 3,
    "QLinearConv": 3,
}
_CONVOLUTIONS = {"Conv", "FusedConv", "ConvInteger", "QLinearConv"}


def has_fixed_weights(graph: OnnxGraph, node: onnx.NodeProto) -> bool:
    """Return whether `node` is a linear layer whose weights are constant."""
    if node.op_type == "LinearClassifier":
        return True
    index = _WEIGHTS.get(node.op_type)
    return (
        index is not None
        and node.input[index] in graph.constants
        and node.input[0] not in graph.constants
    )


def layer_output(node: onnx.NodeProto) -> str:
    """Return the tensor of scores that a linear layer makes."""
    return str(node.output[1] if node.op_type == "LinearClassifier" else node.output[0])


def read_linear(graph: OnnxGraph, node: onnx.NodeProto) -> Linear:
    """Return a linear layer and its weights."""
    if node.op_type == "LinearClassifier":
        return _read_linear_classifier(node)
    read = read_quantised if node.op_type in QUANTISED else _read_float
    linear = _as_matrix(graph, node, read(graph, node))
    if node.op_type in _CONVOLUTIONS:
        # A 1x1 convolution commutes with a mean over positions before or after it.
        pooled = linear.features.then("GlobalAveragePool").then("Flatten", axis=1)
        linear = replace(linear, features=pooled)
    return linear


def _read_float(graph: OnnxGraph, node: onnx.NodeProto) -> Linear:
    attributes = attributes_of(node)
    weight = graph.evaluate(node.input[1])
    biased = node.op_type not in ("MatMul", "FusedMatMul") and len(node.input) > 2
    biased = biased and bool(node.input[2])
    if biased and node.input[2] not in graph.constants:
        raise CovcalError(
            f"{graph.file.path}: {describe(node)} adds a bias that depends on the input, so the "
            f"logits are not affine in its features: {LOGITS_ONLY}"
        )
    bias = graph.evaluate(node.input[2]) if biased else np.zeros(1)
    squashed = bool(attributes.get("activation")) and node.op_type in ("FusedGemm", "FusedConv")
    if squashed and node.op_type == "FusedConv":
        raise CovcalError(
            f"{graph.file.path}: {describe(node)} is the last layer with constant weights, and "
            f"{attributes['activation'].decode()} is part of it, so the logits are not affine in "
            f"a feature vector: {LOGITS_ONLY}"
        )
    return Linear(
        layer=describe(node),
        features=Exposed(node.input[0]),
        output=None if squashed else node.output[0],
        weight=attributes.get("alpha", 1.0) * weight,
        bias=attributes.get("beta", 1.0) * bias,
    )


def _as_matrix(graph: OnnxGraph, node: onnx.NodeProto, linear: Linear) -> Linear:
    """Return the layer with W, shape (K, d), and b, shape (K,), not as the operator keeps them."""
    weight = linear.weight
    attributes = attributes_of(node)
    where = f"{graph.file.path}: {describe(node)}"
    if node.op_type in _CONVOLUTIONS:
        if not _is_one_by_one(weight, attributes):
            raise CovcalError(
                f"{where} is the last layer with constant weights, and it is not a 1x1 "
                f"convolution, so the logits are not affine in a feature vector: {LOGITS_ONLY}"
            )
        weight = weight.reshape(weight.shape[:2])
    elif weight.ndim != 2 or any(
        attributes.get(name, 0) for name in ("transA", "transBatchA", "transBatchB")
    ):
        raise CovcalError(
            f"{where} multiplies by weights of shape {list(weight.shape)}, not by one matrix: "
            f"{LOGITS_ONLY}"
        )
    elif not attributes.get("transB", 0):
        weight = weight.T
    # One number may stand for the bias of every class.
    bias = np.broadcast_to(linear.bias.reshape(-1), len(weight))
    return replace(linear, weight=weight, bias=bias)


def _is_one_by_one(weight: Weights, attributes: dict[str, Any]) -> bool:
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


def _read_linear_classifier(node: onnx.NodeProto) -> Linear:
    """Read the linear classifier of ONNX's machine learning operators.

    Its sums are squashed inside, so they are computed from phi. With two classes it keeps -z and z
    and prints their sigmoids, which are the softmax of half of them.
    """
    attributes = attributes_of(node)
    labels = attributes.get("classlabels_strings") or attributes.get("classlabels_ints") or [0]
    bias = np.asarray(attributes.get("intercepts") or [0.0] * len(labels), dtype=np.float64)
    weight = np.asarray(attributes["coefficients"], dtype=np.float64).reshape(len(bias), -1)
    sigmoids = attributes.get("post_transform", b"NONE") == b"LOGISTIC"
    if len(weight) == 2 and sigmoids and np.array_equal(weight[0], -weight[1]):
        weight, bias = weight / 2, bias / 2
    features = Exposed(node.input[0])
    return Linear(describe(node), features, None, weight, bias)
