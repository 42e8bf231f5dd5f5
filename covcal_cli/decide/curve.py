"""The expected error of the rows with the highest confidence, for every share of the rows."""

from collections.abc import Sequence

import numpy as np

from covcal_cli.arrays import Booleans, Float64s, Floats, Integers, Labels
from covcal_cli.estimators.matched_temperature import match_accuracy
from covcal_cli.formats.decision import CurvePoint, GroupPoint
from covcal_cli.maths.odds import confidences

_POINTS = 100


def confidence_range(
    logits: Floats,
    temperature: float,
    labels: Labels,
    accuracies: tuple[float, float] | None,
    *,
    can_move: bool = False,
) -> tuple[Float64s, Float64s, Float64s]:
    """Return the confidence of rows at `temperature`, and at the lowest and highest accuracy.

    The last two have the temperatures whose mean confidence is the lowest and the highest possible
    accuracy. Without `accuracies` all three are equal. `can_move` says whether the top class of the
    logits, shape (n, K), may differ from the label.
    """
    moved = labels if can_move else None
    own, lowest, highest = (
        confidences(logits, matched, labels)
        for matched in temperature_range(logits, temperature, accuracies, moved)
    )
    return own, lowest, highest


def temperature_range(
    logits: Floats,
    temperature: float,
    accuracies: tuple[float, float] | None,
    labels: Labels | None,
) -> tuple[float, float, float]:
    """Return T, and the T whose mean confidence is the lowest and the highest accuracy."""
    if accuracies is None:
        return temperature, temperature, temperature
    low, high = (match_accuracy(logits, end, labels).temperature for end in accuracies)
    return temperature, low, high


def expected_errors(own: Float64s, lowest: Float64s, highest: Float64s) -> tuple[CurvePoint, ...]:
    """Return the expected error of the best rows of every share, with its range.

    Rows are ranked by their `own` confidence. All three are those of `confidence_range`.
    """
    order = np.argsort(-own, kind="stable")
    shares = np.arange(1, _POINTS + 1) / _POINTS
    sizes = np.ceil(shares * len(own)).astype(np.int64)
    means = [np.cumsum(1 - values[order])[sizes - 1] / sizes for values in (own, highest, lowest)]
    columns = (np.clip(errors, 0, 1).tolist() for errors in means)
    return tuple(_point(*errors) for errors in zip(shares.tolist(), *columns, strict=True))


def errors_of_groups(
    names: Sequence[str], numbers: Integers, accepted: Booleans, *confidence: Float64s
) -> tuple[GroupPoint, ...]:
    """Return the share accepted and the expected error of every group of rows.

    `numbers` are the groups of rows, `accepted` says which rows are accepted, both of shape (n,),
    and `confidence` are the three arrays of `confidence_range`.
    """
    own, lowest, highest = confidence
    groups = []
    for number, name in enumerate(names):
        inside = numbers == number
        taken, rows = inside & accepted, int(inside.sum())
        point = None
        if taken.any():
            errors = [float(1 - values[taken].mean()) for values in (own, highest, lowest)]
            point = _point(float(taken.sum() / rows), *errors)
        groups.append(GroupPoint(name, rows, point))
    return tuple(groups)


def _point(share: float, error: float, best: float, worst: float) -> CurvePoint:
    return CurvePoint(share, error, min(best, error), max(worst, error))


def largest_share(curve: tuple[CurvePoint, ...], error: float) -> float:
    """Return the largest share whose expected error, at the high end, is within the limit."""
    return max((point.share for point in curve if point.high <= error), default=0.0)
