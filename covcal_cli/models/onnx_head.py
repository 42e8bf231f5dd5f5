"""Finding the last linear layer of an ONNX classifier by its structure, never by its names.

Walk back from an output until every path has met a layer with constant weights (Gemm, MatMul or
1x1 Conv) or the input. Exactly one such layer is the head; its input is phi. Then walk forward
again over whatever keeps the result affine in phi (an added bias, a constant scale, a reshape, a
mean over positions); the last tensor on the way holds the logits. What follows it is the tail,
which ``proof.py`` recognises by its values.
"""

from dataclasses import dataclass, replace

import numpy as np
import onnx
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.models.onnx_graph import OnnxGraph
from covcal_cli.models.onnx_layers import (
    ARITHMETIC,
    Linear,
    describe,
    fold,
    has_fixed_weights,
    read_linear,
)

_MEANS = {"GlobalAveragePool", "AveragePool", "ReduceMean"}
# These hand the values on, perhaps in another shape; a wrong guess fails the proof.
_PASS = {"Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Dropout"} | _MEANS
_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE}


@dataclass(frozen=True)
class Head:
    """The last linear layer of a classifier.

    Attributes
    ----------
    layer : str
        Operator and name, such as ``"Gemm fc2"``.
    features : str
        The tensor that holds phi.
    is_convolution : bool
        Whether phi is the mean of `features` over its positions (a 1x1 Conv with global average
        pooling before or after it: the mean commutes with it).
    logits : str
        The last tensor that is affine in phi.
    follower : str or None
        The operator that reads the logits, such as ``"Softmax"``.
    weight : array of float64, shape (K, d)
        W, constant scales folded in.
    bias : array of float64, shape (K,)
        b, likewise.
    outputs : tuple of str
        The model's outputs that are computed from the logits alone.
    """

    layer: str
    features: str
    is_convolution: bool
    logits: str
    follower: str | None
    weight: NDArray[np.float64]
    bias: NDArray[np.float64]
    outputs: tuple[str, ...]


def find_head(graph: OnnxGraph, output: str | None = None) -> Head:
    """Find the head of the classifier's output.

    Parameters
    ----------
    graph : OnnxGraph
        The model.
    output : str, optional
        The output that holds the classes, where the model has several.

    Raises
    ------
    CovcalError
        If there is no linear layer, or more than one candidate, or the layer cannot be used.
    """
    layers = {value.name: _last_layers(graph, value.name) for value in _choices(graph, output)}
    outputs = _same_head(graph, layers)
    node = layers[outputs[0]][0]
    linear = read_linear(graph, node)
    heads = [_walk_forward(graph, node, linear, name) for name in outputs]
    head = replace(heads[0], outputs=tuple(outputs))
    for other in heads[1:]:
        # The same layer twice, once with a temperature: which probabilities count?
        if not (
            np.array_equal(head.weight, other.weight) and np.array_equal(head.bias, other.bias)
        ):
            raise _ambiguous(graph, {name: [head.layer] for name in outputs})
    if len(head.weight) == 1:
        raise CovcalError(
            f"{graph.file.path}: {head.layer} gives a single logit; binary models with one logit "
            "are not supported yet: export the model with two classes"
        )
    return head


def _choices(graph: OnnxGraph, output: str | None) -> list[onnx.ValueInfoProto]:
    names = [value.name for value in graph.outputs]
    if output is not None and output not in names:
        raise CovcalError(
            f"{graph.file.path} has no output {output!r}: choose one of {', '.join(names)}"
        )
    chosen = [value for value in graph.outputs if output in (None, value.name)]
    usable = [value for value in chosen if _may_hold_classes(value)]
    if usable:
        return usable
    described = ", ".join(f"{value.name} ({_kind(value)})" for value in chosen)
    raise CovcalError(
        f"{graph.file.path} is not a classifier that covcal can use: its output must be floats of "
        f"shape [N, classes], but it gives {described}: export the logits or probabilities"
    )


def _may_hold_classes(value: onnx.ValueInfoProto) -> bool:
    if not value.type.HasField("tensor_type") or value.type.tensor_type.elem_type not in _FLOATS:
        return False
    if not value.type.tensor_type.HasField("shape"):
        return True
    dims = value.type.tensor_type.shape.dim
    return len(dims) >= 2 and all(dim.dim_value == 1 for dim in dims[2:])


def _kind(value: onnx.ValueInfoProto) -> str:
    if not value.type.HasField("tensor_type"):
        return "not a tensor"
    tensor = value.type.tensor_type
    sizes = [str(dim.dim_value or dim.dim_param or "?") for dim in tensor.shape.dim]
    name = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    return f"{name} [{', '.join(sizes)}], rank {len(sizes)}"


def _last_layers(graph: OnnxGraph, output: str) -> list[onnx.NodeProto]:
    """Return the layers with constant weights that the paths back from `output` meet first."""
    found: dict[str, onnx.NodeProto] = {}
    seen: set[str] = set()
    pending = [output]
    while pending:
        tensor = pending.pop()
        node = graph.maker(tensor)
        if tensor in seen or node is None:
            continue
        seen.add(tensor)
        if has_fixed_weights(graph, node):
            found[node.output[0]] = node
        else:
            pending += graph.value_inputs(node)
    return list(found.values())


def _same_head(graph: OnnxGraph, layers: dict[str, list[onnx.NodeProto]]) -> list[str]:
    """Return the outputs that hold the classes, leaving out tensors from inside the network."""
    inside = {
        name: graph.ancestors(tensor for node in nodes for tensor in graph.value_inputs(node))
        for name, nodes in layers.items()
    }

    def is_internal(name: str) -> bool:
        made = {node.output[0] for node in layers[name]}
        others = (inside[other] for other in layers if other != name)
        # The raw input, or something that feeds another output's head, is not an answer.
        return not made or any(made <= other for other in others)

    kept = [name for name in layers if not is_internal(name)]
    if not kept:
        raise CovcalError(
            f"{graph.file.path}: no matrix multiply with constant weights before output "
            f"{', '.join(layers)} (a tree model?): covcal needs a network whose last layer is "
            "linear"
        )
    for name in kept:
        if len(layers[name]) > 1:
            nodes = ", ".join(describe(node) for node in layers[name])
            raise CovcalError(
                f"{graph.file.path}: {len(layers[name])} layers feed output {name} ({nodes}); "
                "averaged or summed heads are not supported yet: export one head"
            )
    if len({layers[name][0].output[0] for name in kept}) > 1:
        described = {name: [describe(node) for node in layers[name]] for name in kept}
        raise _ambiguous(graph, described)
    return kept


def _ambiguous(graph: OnnxGraph, heads: dict[str, list[str]]) -> CovcalError:
    names = ", ".join(f"{name} (from {', '.join(layers)})" for name, layers in heads.items())
    return CovcalError(
        f"{graph.file.path} has {len(heads)} outputs that could hold the classes: {names}: "
        "choose one with --model-output NAME"
    )


def _walk_forward(graph: OnnxGraph, node: onnx.NodeProto, linear: Linear, output: str) -> Head:
    """Follow the layer's result towards `output` as long as it stays affine in phi."""
    path = graph.ancestors([output])
    tensor, weight, bias = node.output[0], linear.weight, linear.bias
    follower = None
    while tensor != output:
        readers = graph.readers(tensor, path)
        reader = readers[0]
        follower = reader.op_type
        if len(readers) > 1:
            break
        if reader.op_type in ARITHMETIC:
            folded = fold(graph, reader, tensor, weight, bias)
            if folded is None:
                break
            weight, bias = folded
        elif reader.op_type not in _PASS or reader.input[0] != tensor:
            break
        tensor, follower = reader.output[0], None
    return Head(
        layer=describe(node),
        features=linear.features,
        is_convolution=node.op_type == "Conv",
        logits=tensor,
        follower=follower,
        weight=weight,
        bias=bias,
        outputs=(output,),
    )
