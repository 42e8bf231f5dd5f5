"""Finding the last linear layer of an ONNX classifier by its structure, never by its names.

Walk back from an output until every path has met a layer with constant weights or the input. One
such layer is the head, and its input is phi; several are a head if the logits are a weighted sum of
theirs. Then walk forward again as long as the result is affine in phi; the last tensor on the way
holds the logits. What follows it is the tail, which ``proof.py`` recognises by its values.
"""

from dataclasses import dataclass, replace

import numpy as np
import onnx

from covcal_cli.errors import CovcalError
from covcal_cli.models.onnx_graph import OnnxGraph
from covcal_cli.models.onnx_layers import has_fixed_weights, layer_output, read_linear
from covcal_cli.models.onnx_linear import Exposed, Linear, Weights, describe
from covcal_cli.models.onnx_outputs import ClassOutput, class_outputs
from covcal_cli.models.onnx_sums import sum_of_heads
from covcal_cli.models.onnx_walk import Position, tail_step, walk_forward


@dataclass(frozen=True)
class Head:
    """Where the features and the logits of a classifier are, and how they belong together."""

    layer: str  # operator and name, such as "Gemm fc2"; empty where there is no linear layer
    # The tensors whose rows, one after the other, are phi; empty where it was not asked for.
    features: tuple[Exposed, ...]
    # W, shape (K, d), constant scales folded in, and b, shape (K,); None where the logits are not
    # affine in phi.
    weight: Weights | None
    bias: Weights | None
    logits: Exposed  # the last tensor that is affine in phi
    step: float  # by how much rounding to stored integers may have moved the logits
    tail_step: float  # the same of the outputs
    follower: str | None  # the operator that reads the logits, such as "Softmax"
    n_scores: int  # columns of the logits; one for a binary classifier of a single number
    outputs: tuple[ClassOutput, ...]  # those that are computed from the logits alone


def find_head(graph: OnnxGraph, output: str | None = None) -> Head:
    """Find the head of the classifier's output, `output` where the model has several."""
    # The last layers before each output, of which tensors inside the network are left out.
    choices = {choice.name: choice for choice in class_outputs(graph, output)}
    layers = {name: _last_layers(graph, choice.tensor) for name, choice in choices.items()}
    kept = _same_head(graph, layers)
    nodes = layers[kept[0]]
    linears = [read_linear(graph, node) for node in nodes]
    heads = [_head(graph, linears, choices[name]) for name in kept]
    for other in heads[1:]:
        # The same layer twice, once with a temperature: which probabilities count?
        if not _same_weights(heads[0], other):
            raise _ambiguous(graph, {name: [heads[0].layer] for name in kept})
    return replace(
        heads[0],
        outputs=tuple(choices[name] for name in kept),
        tail_step=max(head.tail_step for head in heads),
    )


def _head(graph: OnnxGraph, linears: list[Linear], choice: ClassOutput) -> Head:
    if len(linears) > 1:
        features, at = sum_of_heads(graph, linears, choice.tensor)
        logits = Exposed(at.tensor)
    else:
        (linear,) = linears
        features = (linear.features,)
        if linear.output is None:
            at = Position("", linear.weight, linear.bias, follower=linear.layer.split()[0])
            logits = linear.features.then_affine(linear.weight, linear.bias)
        else:
            at = walk_forward(graph, linear, linear.output, choice.tensor)
            logits = Exposed(at.tensor)
    if at.quantised is not None:
        zero = [at.quantised.zero_point] if at.quantised.zero_point else []
        logits = logits.then("DequantizeLinear", at.quantised.scale, *zero)
    return Head(
        layer=" + ".join(linear.layer for linear in linears),
        features=features,
        weight=at.weight,
        bias=at.bias,
        logits=logits,
        step=at.step,
        tail_step=tail_step(graph, at.tensor or linears[0].features.name, choice.tensor),
        follower=at.follower,
        n_scores=len(at.weight),
        outputs=(choice,),
    )


def _same_weights(head: Head, other: Head) -> bool:
    return (
        head.weight is not None
        and head.bias is not None
        and other.weight is not None
        and other.bias is not None
        and np.array_equal(head.weight, other.weight)
        and np.array_equal(head.bias, other.bias)
    )


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
    # In the order of the graph, whatever the order of the walk.
    order = {node.output[0]: index for index, node in enumerate(graph.nodes) if node.output}
    return sorted(found.values(), key=lambda node: order[node.output[0]])


def _same_head(graph: OnnxGraph, layers: dict[str, list[onnx.NodeProto]]) -> list[str]:
    """Return the outputs that hold the classes, leaving out tensors from inside the network."""
    inside = {
        name: graph.ancestors(tensor for node in nodes for tensor in graph.value_inputs(node))
        for name, nodes in layers.items()
    }

    def is_internal(name: str) -> bool:
        made = {layer_output(node) for node in layers[name]}
        others = (inside[other] for other in layers if other != name)
        # The raw input, or something that feeds another output's head, is not an answer.
        return not made or any(made <= other for other in others)

    kept = [name for name in layers if not is_internal(name)]
    if not kept:
        raise CovcalError(
            f"{graph.file.path}: no matrix multiply with constant weights before output "
            f"{', '.join(layers)} (trees, kernels or neighbours?), so there is no linear head: "
            "pass --phi input to take the input as features, --phi NAME to take a tensor, or "
            "--phi none to keep the logits alone"
        )
    if len({tuple(node.output[0] for node in layers[name]) for name in kept}) > 1:
        described = {name: [describe(node) for node in layers[name]] for name in kept}
        raise _ambiguous(graph, described)
    return kept


def _ambiguous(graph: OnnxGraph, heads: dict[str, list[str]]) -> CovcalError:
    names = ", ".join(f"{name} (from {', '.join(layers)})" for name, layers in heads.items())
    return CovcalError(
        f"{graph.file.path} has {len(heads)} outputs that could hold the classes: {names}: "
        "choose one with --model-output NAME"
    )
