"""Classifiers whose logits are a weighted sum of several heads, such as a mean of two.

The part of the graph after the heads is run on made scores; least squares gives the coefficients,
and the residual says whether it is a weighted sum at all. phi is then the features of all heads one
after the other, and W their weights times the coefficients side by side.
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.models.onnx_graph import OnnxGraph
from covcal_cli.models.onnx_linear import LOGITS_ONLY, Exposed, Linear
from covcal_cli.models.onnx_probe import Part
from covcal_cli.models.onnx_walk import Position, walk_forward

_MADE_ROWS = 32
_EXACT = 1e-6
_LARGEST_DENOMINATOR = 64


def sum_of_heads(
    graph: OnnxGraph, linears: list[Linear], output: str
) -> tuple[tuple[Exposed, ...], Position]:
    """Return phi and the last tensor before `output` that is a weighted sum of the heads."""
    starts = [_scores(graph, linear, output) for linear in linears]
    refusal = CovcalError(
        f"{graph.file.path}: {len(linears)} layers feed output {output} "
        f"({', '.join(linear.layer for linear in linears)}), and no tensor after them is a "
        f"weighted sum of their scores: {LOGITS_ONLY}"
    )
    if len({len(start.weight) for start in starts}) > 1:
        raise refusal
    # Made scores of every head, and what each tensor after them makes of those.
    cut = [start.tensor for start in starts]
    between = _between(graph, cut, output)
    try:
        part = Part(graph, cut, between)
        rng = np.random.default_rng(0)
        scores = [rng.normal(size=(_MADE_ROWS, len(start.weight))) for start in starts]
        values = part.run(scores)
    except CovcalError as error:
        raise refusal from error
    # The last tensor that is a weighted sum holds the logits.
    found = [_coefficients(scores, value, part.close) for value in values]
    last = max((index for index, fit in enumerate(found) if fit is not None), default=-1)
    fit = found[last] if last >= 0 else None
    if fit is None:
        raise refusal
    coefficients, shift = fit
    # b, the step and W of the sum follow from those of the heads.
    bias = shift + sum(c * start.bias for c, start in zip(coefficients, starts, strict=True))
    step = sum(abs(c) * start.step for c, start in zip(coefficients, starts, strict=True))
    weights = [c * start.weight for c, start in zip(coefficients, starts, strict=True)]
    features = [linear.features for linear in linears]
    # Heads that read the same phi add up their W; others have them side by side.
    if len({value.tensor for value in features}) == 1:
        features, weight = features[:1], np.sum(weights, axis=0)
    else:
        weight = np.concatenate(weights, axis=1)
    readers = graph.readers(between[last], graph.ancestors([output]))
    follower = readers[0].op_type if readers and between[last] != output else None
    return tuple(features), Position(between[last], weight, bias, step, follower=follower)


def _scores(graph: OnnxGraph, linear: Linear, output: str) -> Position:
    """Return the scores of one head as floats."""
    if linear.output is not None and not linear.pending and linear.quantised is None:
        return Position(linear.output, linear.weight, linear.bias)
    if linear.output is not None:
        at = walk_forward(graph, linear, linear.output, output)
        if at.quantised is None:
            return at
    raise CovcalError(
        f"{graph.file.path}: the scores of {linear.layer}, one of several heads of {output}, are "
        f"no floats inside the graph: {LOGITS_ONLY}"
    )


def _between(graph: OnnxGraph, cut: list[str], output: str) -> list[str]:
    """Return the tensors that depend on all of `cut`, in order, up to `output`."""
    path = graph.ancestors([output])
    return [
        name
        for node in graph.nodes
        for name in node.output
        if name in path and name not in cut and set(cut) <= graph.ancestors([name])
    ]


def _coefficients(
    scores: list[NDArray[np.float64]], value: NDArray[np.float64], close: float
) -> tuple[list[float], NDArray[np.float64]] | None:
    """Fit one coefficient per head and one shift per class, or return None if they do not fit."""
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
    """Return the simple fraction that `value` is but for rounding, such as a half."""
    simple = float(Fraction(value).limit_denominator(_LARGEST_DENOMINATOR))
    return simple if abs(simple - value) <= _EXACT else value
