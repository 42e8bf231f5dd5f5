"""Find the last linear layer (the head) of an ONNX classifier in the graph.

- Go back from an output to the nearest layers with constant weights. A single layer is the head,
  and phi is the input of this layer. Several layers are the head if the logits are a weighted sum
  of the layers' results.
- Go forward from the head while results are linear in phi. The last linear result is the logits.
- The tail is the rest of the graph. To identify the tail, compare the output with known functions
  of the logits, such as a softmax (``classifiers/proof.py``).
"""

import difflib
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import onnx

from covcal_cli.arrays import Float64s
from covcal_cli.classifiers import proof
from covcal_cli.classifiers.onnx.graph import OnnxGraph
from covcal_cli.classifiers.onnx.layers import (
    LOGITS_ONLY,
    Linear,
    Position,
    TensorRead,
    describe,
    has_fixed_weights,
    read_linear,
    tail_step,
    walk_forward,
)
from covcal_cli.classifiers.onnx.outputs import ClassOutput, class_outputs
from covcal_cli.classifiers.onnx.runner import Part, affine_map
from covcal_cli.errors import CovcalError

INPUT, NONE = "input", "none"
_SQUASHES = {"Softmax", "LogSoftmax", "Sigmoid"}
_HANDS_ON = {"Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Dropout"}
_SHOWN = 8  # Maximum number of tensors in a message.
# Operators that may follow the logits, such as a softmax.
_TAIL_STARTS = {
    *_SQUASHES,
    *("ReduceMax", "ReduceLogSumExp", "Exp", "Neg", "Sub", "ArgMax", "Hardmax", "TopK"),
    *("QLinearSoftmax", "QLinearSigmoid", "LinearClassifier", "FusedGemm"),
}
_RANDOM_ROWS = 32
_EXACT = 1e-6  # Maximum difference between a coefficient and a simple fraction.
_LARGEST_DENOMINATOR = 64


@dataclass(frozen=True)
class Head:
    """The features and logits of a classifier, and the linear layer between them."""

    layer: str  # Operator and name, such as "Gemm fc2"; "" if there is no linear layer.
    features: tuple[TensorRead, ...]  # The tensors with the features; () if none are read.
    weight: Float64s | None  # W, (K, d); None if the logits are not linear in phi.
    bias: Float64s | None  # b, (K,).
    logits: TensorRead  # The tensor with the logits.
    step: float  # The largest rounding error of logits that are stored as integers.
    tail_step: float  # The largest rounding error of outputs that are stored as integers.
    follower: str | None  # The operator that reads the logits, such as "Softmax".
    n_scores: int  # Number of scores per row; 1 if a two-class model gives one number per row.
    outputs: tuple[ClassOutput, ...]  # The outputs that depend only on the logits.


def choose_head(
    graph: OnnxGraph, output: str | None, phi: str | None, *, layer: bool = True
) -> Head:
    """Return the last linear layer before an output, with the features that ``--phi`` names.

    With `layer=False`, the logits are the input of the last softmax, or the output itself.
    """
    if phi is None:
        return find_head(graph, output)
    tensor = None if phi == NONE else _tensor(graph, phi)
    head = _usable_head(graph, output) if layer else None
    if head is None:
        head = _scores_alone(graph, output)
    if tensor is None:
        return replace(head, features=(), weight=None, bias=None)
    features = TensorRead(tensor)
    if head.features == (features,):
        return head
    if tensor in graph.input_names:
        features = features.then("Flatten", axis=1)
    return replace(head, layer="", features=(features,), weight=None, bias=None)


def _usable_head(graph: OnnxGraph, output: str | None) -> Head | None:
    try:
        head = find_head(graph, output)
    except CovcalError:
        return None
    declared = head.outputs[0].columns
    # If an unknown operator follows the layer, the layer is not the last one.
    if head.follower is not None and head.follower not in _TAIL_STARTS:
        return None
    if head.n_scores > 1 and not head.outputs[0].is_label and declared not in (0, head.n_scores):
        return None
    return head if _has_known_tail(graph, head) else None


def _has_known_tail(graph: OnnxGraph, head: Head) -> bool:
    """Return whether a known function, such as a softmax, turns random logits into the output."""
    choice = head.outputs[0]
    if head.logits.nodes or head.n_scores < 2 or choice.is_label or head.tail_step:
        return True
    logits = np.random.default_rng(0).normal(size=(_RANDOM_ROWS, head.n_scores)) * 3
    try:
        part = Part(graph, [head.logits.tensor], [choice.tensor])
        (printed,) = part.run([logits])
    except CovcalError:
        return True
    if printed.size == logits.size:
        output = printed.reshape(logits.shape)
        return any(proof.tail_error(tail, logits, output) <= part.close for tail in proof.TAILS)
    # If the output has another size, the head may run on several tokens of each row.
    return printed.shape[:1] != (_RANDOM_ROWS,) or printed.ndim != logits.ndim


def with_affine_map(graph: OnnxGraph, head: Head, row: tuple[int, ...]) -> Head:
    """Add W and b to a head if the logits are linear in the features of ``--phi``.

    `row` is the shape of the features of one row.
    """
    if head.logits.nodes or len(head.features) != 1:
        return head
    layer = affine_map(graph, head.features[0].name, head.logits.tensor, row)
    if layer is None or head.n_scores not in (0, len(layer[1])):
        return head
    return replace(head, weight=layer[0], bias=layer[1])


def _tensor(graph: OnnxGraph, phi: str) -> str:
    names = [value.name for value in graph.inputs]
    if phi == INPUT and phi not in names:
        if len(names) > 1:
            raise CovcalError(
                f"{graph.file.path} has {len(names)} inputs: choose the features with --phi "
                f"{' or --phi '.join(names)}"
            )
        return str(names[0])
    if graph.has(phi):
        return phi
    tensors = [name for node in graph.nodes for name in node.output if name and graph.has(name)]
    near = difflib.get_close_matches(phi, tensors, n=3)
    listed = list(dict.fromkeys([*near, *tensors[::-1]]))[:_SHOWN]
    more = f" ({len(tensors) - len(listed)} more)" if len(tensors) > len(listed) else ""
    raise CovcalError(
        f"{graph.file.path} has no tensor {phi!r} that depends on the input: pass --phi "
        f"input, --phi none or one of {', '.join(listed)}{more}"
    )


def _scores_alone(graph: OnnxGraph, output: str | None) -> Head:
    choice, *others = class_outputs(graph, output)
    if others:
        raise _ambiguous(graph, [value.name for value in (choice, *others)])
    if choice.is_label:
        raise CovcalError(
            f"{graph.file.path} gives only labels ({choice.name}): export the model with its "
            "probabilities"
        )
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
        logits=TensorRead(tensor),
        step=0.0,
        tail_step=tail_step(graph, tensor, choice.tensor),
        follower=follower,
        n_scores=len(choice.zipped) or choice.columns,
        outputs=(choice,),
    )


def find_head(graph: OnnxGraph, output: str | None = None) -> Head:
    """Find the head of `output` (default: the only output that looks like class scores)."""
    choices = {choice.name: choice for choice in class_outputs(graph, output)}
    layers = {name: _last_layers(graph, choice.tensor) for name, choice in choices.items()}
    names = _same_head(graph, layers)
    nodes = layers[names[0]]
    linears = [read_linear(graph, node) for node in nodes]
    heads = [_head(graph, linears, choices[name]) for name in names]
    for other in heads[1:]:
        # Two outputs of one layer can differ by a temperature. The user must choose one output.
        pairs = ((heads[0].weight, other.weight), (heads[0].bias, other.bias))
        if any(a is None or b is None or not np.array_equal(a, b) for a, b in pairs):
            raise _ambiguous(graph, [f"{name} (from {heads[0].layer})" for name in names])
    return replace(
        heads[0],
        outputs=tuple(choices[name] for name in names),
        tail_step=max(head.tail_step for head in heads),
    )


def _head(graph: OnnxGraph, linears: list[Linear], choice: ClassOutput) -> Head:
    if len(linears) > 1:
        features, at = sum_of_heads(graph, linears, choice.tensor)
        logits = TensorRead(at.tensor)
    else:
        (linear,) = linears
        features = (linear.features,)
        if not linear.result.tensor:
            at = replace(linear.result, follower=linear.layer.split()[0])
            logits = linear.features.then_affine(at.weight, at.bias)
        else:
            at = walk_forward(graph, linear, choice.tensor)
            logits = TensorRead(at.tensor)
    if at.quantised is not None:
        logits = logits.dequantised(at.quantised)
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


def _last_layers(graph: OnnxGraph, output: str) -> list[onnx.NodeProto]:
    layers: dict[str, onnx.NodeProto] = {}
    seen: set[str] = set()
    pending = [output]
    while pending:
        tensor = pending.pop()
        node = graph.maker(tensor)
        if tensor in seen or node is None:
            continue
        seen.add(tensor)
        if has_fixed_weights(graph, node):
            layers[node.output[0]] = node
        else:
            pending += graph.value_inputs(node)
    order = {node.output[0]: index for index, node in enumerate(graph.nodes) if node.output}
    return sorted(layers.values(), key=lambda node: order[node.output[0]])


def _same_head(graph: OnnxGraph, layers: dict[str, list[onnx.NodeProto]]) -> list[str]:
    """Return the outputs that may be the class scores."""
    inside = {
        name: graph.ancestors(tensor for node in nodes for tensor in graph.value_inputs(node))
        for name, nodes in layers.items()
    }

    def is_internal(name: str) -> bool:
        # The first result of a LinearClassifier is labels.
        results = {node.output[node.op_type == "LinearClassifier"] for node in layers[name]}
        others = (inside[other] for other in layers if other != name)
        # If an output leads to the layers of another output, the first output is internal.
        return not results or any(results <= other for other in others)

    answers = [name for name in layers if not is_internal(name)]
    if not answers:
        raise CovcalError(
            f"{graph.file.path} has no linear layer before output {', '.join(layers)}: choose "
            "the features with --phi input or --phi NAME, or pass --phi none to keep only "
            "the logits"
        )
    if len({tuple(node.output[0] for node in layers[name]) for name in answers}) > 1:
        made_by = {name: ", ".join(describe(node) for node in layers[name]) for name in answers}
        raise _ambiguous(graph, [f"{name} (from {made_by[name]})" for name in answers])
    return answers


def _ambiguous(graph: OnnxGraph, outputs: list[str]) -> CovcalError:
    return CovcalError(
        f"{graph.file.path} has {len(outputs)} outputs that could hold the classes "
        f"({', '.join(outputs)}): choose one with --model-output NAME"
    )


# The logits of some classifiers are a weighted sum of several heads. To find the coefficients, run
# the graph after the heads on random scores, and fit the result by least squares. A small residual
# proves that the logits are a weighted sum. phi is the features of all heads side by side. W is the
# weights of all heads, multiplied by the coefficients.


def sum_of_heads(
    graph: OnnxGraph, linears: list[Linear], output: str
) -> tuple[tuple[TensorRead, ...], Position]:
    """Return phi, and the last tensor before `output` that is a weighted sum of several heads."""
    starts = [_scores(graph, linear, output) for linear in linears]
    refusal = CovcalError(
        f"{graph.file.path}: output {output} combines {len(linears)} layers "
        f"({', '.join(linear.layer for linear in linears)}) in an unknown way: {LOGITS_ONLY}"
    )
    if len({len(start.weight) for start in starts}) > 1:
        raise refusal
    cut = [start.tensor for start in starts]
    between = _between(graph, cut, output)
    try:
        part = Part(graph, cut, between)
        rng = np.random.default_rng(0)
        scores = [rng.normal(size=(_RANDOM_ROWS, len(start.weight))) for start in starts]
        values = part.run(scores)
    except CovcalError as error:
        raise refusal from error
    # The logits are the last tensor that is a weighted sum.
    fits = [_coefficients(scores, value, part.close) for value in values]
    last = max((index for index, fit in enumerate(fits) if fit is not None), default=-1)
    fit = fits[last] if last >= 0 else None
    if fit is None:
        raise refusal
    coefficients, shift = fit
    bias = shift + sum(c * start.bias for c, start in zip(coefficients, starts, strict=True))
    step = sum(abs(c) * start.step for c, start in zip(coefficients, starts, strict=True))
    weights = [c * start.weight for c, start in zip(coefficients, starts, strict=True)]
    features = [linear.features for linear in linears]
    if len({value.tensor for value in features}) == 1:
        features, weight = features[:1], np.sum(weights, axis=0)
    else:
        weight = np.concatenate(weights, axis=1)
    readers = graph.readers(between[last], graph.ancestors([output]))
    follower = readers[0].op_type if readers and between[last] != output else None
    return tuple(features), Position(between[last], weight, bias, step, follower=follower)


def _scores(graph: OnnxGraph, linear: Linear, output: str) -> Position:
    at = linear.result
    if at.tensor and (at.pending or at.quantised is not None):
        at = walk_forward(graph, linear, output)
    if at.tensor and at.quantised is None:
        return at
    raise CovcalError(
        f"{graph.file.path}: output {output} comes from several linear layers, but the result of "
        f"{linear.layer} is not floating-point numbers: {LOGITS_ONLY}"
    )


def _between(graph: OnnxGraph, cut: list[str], output: str) -> list[str]:
    path = graph.ancestors([output])
    return [
        name
        for node in graph.nodes
        for name in node.output
        if name in path and name not in cut and set(cut) <= graph.ancestors([name])
    ]


def _coefficients(
    scores: list[Float64s], value: Float64s, close: float
) -> tuple[list[float], Float64s] | None:
    """Fit `value` by a weighted sum of scores and a constant per class; None if impossible."""
    if value.size != scores[0].size:
        return None
    wanted = value.reshape(scores[0].shape)
    columns = np.stack([(score - score.mean(axis=0)).ravel() for score in scores], axis=1)
    solution = np.linalg.lstsq(columns, (wanted - wanted.mean(axis=0)).ravel(), rcond=None)[0]
    coefficients = [_exact(float(value)) for value in solution]
    rest = wanted - sum(c * score for c, score in zip(coefficients, scores, strict=True))
    shift = rest.mean(axis=0)
    if not np.abs(rest - shift).max() <= close * np.abs(wanted).max():
        return None
    shift[np.abs(shift) <= close] = 0.0
    return coefficients, shift


def _exact(value: float) -> float:
    """Round a number to a simple fraction if a fraction is near."""
    simple = float(Fraction(value).limit_denominator(_LARGEST_DENOMINATOR))
    return simple if abs(simple - value) <= _EXACT else value
