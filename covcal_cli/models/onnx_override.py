"""The head as ``--phi`` asks for it: with other features than the last layer's, or none."""

import difflib
from dataclasses import replace

import numpy as np

from covcal_cli.errors import CovcalError
from covcal_cli.models import proof
from covcal_cli.models.onnx_graph import OnnxGraph
from covcal_cli.models.onnx_head import Head, find_head
from covcal_cli.models.onnx_linear import Exposed, describe
from covcal_cli.models.onnx_outputs import class_outputs
from covcal_cli.models.onnx_probe import Part, affine_map
from covcal_cli.models.onnx_walk import tail_step

INPUT, NONE = "input", "none"
_SQUASHES = {"Softmax", "LogSoftmax", "Sigmoid"}
_HANDS_ON = {"Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Dropout"}
_SHOWN = 8
_ROWS = 16
# What a softmax, log-softmax, sigmoid or choice of the largest starts with, whole or taken apart.
# Anything else after the last linear layer is part of the network, and its result is the logits.
_TAIL_STARTS = {
    *_SQUASHES,
    *("ReduceMax", "ReduceLogSumExp", "Exp", "Neg", "Sub", "ArgMax", "Hardmax", "TopK"),
    *("QLinearSoftmax", "QLinearSigmoid", "LinearClassifier", "FusedGemm"),
}


def choose_head(
    graph: OnnxGraph, output: str | None, phi: str | None, *, layer: bool = True
) -> Head:
    """Return the head that is found for an output, with the features that ``--phi`` asks for.

    Without `layer` the logits are, with a `phi`, not those of the last linear layer, but what the
    final softmax reads, or the output itself.
    """
    if phi is None:
        return find_head(graph, output)
    tensor = None if phi == NONE else _tensor(graph, phi)
    head = _found(graph, output) if layer else None
    if head is None:
        head = _scores_alone(graph, output)
    if tensor is None:
        return replace(head, features=(), weight=None, bias=None)
    features = Exposed(tensor)
    if head.features == (features,):
        return head
    if tensor in graph.input_names:
        features = features.then("Flatten", axis=1)
    return replace(head, layer="", features=(features,), weight=None, bias=None)


def _found(graph: OnnxGraph, output: str | None) -> Head | None:
    """Return the head of the last linear layer, None where its scores are not the logits."""
    try:
        head = find_head(graph, output)
    except CovcalError:
        return None
    declared = _declared_classes(graph, head.outputs[0].name)
    # Another operator, or another number of classes: the layer is inside the network.
    if head.follower is not None and head.follower not in _TAIL_STARTS:
        return None
    if head.n_scores > 1 and not head.outputs[0].is_label and declared not in (0, head.n_scores):
        return None
    return head if _has_known_tail(graph, head) else None


def _has_known_tail(graph: OnnxGraph, head: Head) -> bool:
    """Return whether made logits come out as a known tail of them; True where it cannot be tried.

    The first batch of data proves it again.
    """
    choice = head.outputs[0]
    if head.logits.nodes or head.n_scores < 2 or choice.is_label or head.tail_step:
        return True
    made = np.random.default_rng(0).normal(size=(_ROWS, head.n_scores)) * 3
    try:
        part = Part(graph, [head.logits.tensor], [choice.tensor])
        (found,) = part.run([made])
    except CovcalError:
        return True
    if found.size == made.size:
        return proof.recognise_tail(made, found.reshape(made.shape), part.close) is not None
    return found.shape[:1] != (_ROWS,) or found.ndim != made.ndim  # tokens; else other classes


def with_affine_map(graph: OnnxGraph, head: Head, row: tuple[int, ...]) -> Head:
    """Add W and b to a head whose features were chosen, if the logits are affine in them.

    `row` is the shape of a row of the one tensor that holds the features.
    """
    if head.logits.nodes or len(head.features) != 1:
        return head
    found = affine_map(graph, head.features[0].name, head.logits.tensor, row)
    if found is None or head.n_scores not in (0, len(found[1])):
        return head
    return replace(head, weight=found[0], bias=found[1])


def _tensor(graph: OnnxGraph, phi: str) -> str:
    names = [value.name for value in graph.inputs]
    if phi == INPUT and phi not in names:
        if len(names) > 1:
            raise CovcalError(
                f"{graph.file.path} has {len(names)} inputs: name the one that is phi with --phi "
                f"{' or --phi '.join(names)}"
            )
        return str(names[0])
    if graph.has(phi):
        return phi
    known = [name for node in graph.nodes for name in node.output if name and graph.has(name)]
    near = difflib.get_close_matches(phi, known, n=3)
    shown = list(dict.fromkeys([*near, *known[::-1]]))[:_SHOWN]
    raise CovcalError(
        f"{graph.file.path} has no tensor {phi!r} that depends on its input: pass --phi input, "
        f"--phi none or one of {', '.join(shown)}"
        f"{f' ({len(known) - len(shown)} more)' if len(known) > len(shown) else ''}"
    )


def _scores_alone(graph: OnnxGraph, output: str | None) -> Head:
    """Return the logits without a linear layer: what the final softmax reads, or the output."""
    outputs = class_outputs(graph, output)
    if len(outputs) > 1:
        names = ", ".join(value.name for value in outputs)
        raise CovcalError(
            f"{graph.file.path} has {len(outputs)} outputs that could hold the classes: {names}: "
            "choose one with --model-output NAME"
        )
    if outputs[0].is_label:
        raise CovcalError(
            f"{graph.file.path} gives labels alone ({outputs[0].name}), and no linear layer before "
            "them gives their logits: export its probabilities"
        )
    choice = outputs[0]
    tensor, follower = choice.tensor, None
    node = graph.maker(tensor)
    while node is not None and node.op_type in _HANDS_ON:
        node = graph.maker(node.input[0])
    if node is not None and node.op_type in _SQUASHES:
        tensor, follower = node.input[0], describe(node)
    return Head(
        layer="",
        features=(),
        weight=None,
        bias=None,
        logits=Exposed(tensor),
        step=0.0,
        tail_step=tail_step(graph, tensor, choice.tensor),
        follower=follower,
        n_scores=len(choice.zipped) or _declared_classes(graph, choice.name),
        outputs=(choice,),
    )


def _declared_classes(graph: OnnxGraph, name: str) -> int:
    """Return the columns that an output declares, 0 where it declares none."""
    value = next(value for value in graph.outputs if value.name == name)
    sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    return int(np.prod(sizes[1:])) if len(sizes) > 1 else 0
