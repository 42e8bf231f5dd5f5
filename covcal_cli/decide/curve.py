"""The expected error of the rows with the highest confidence, for every share of the rows."""

import numpy as np

from covcal_cli.arrays import Float64s, Floats, Labels
from covcal_cli.estimators.matched_temperature import match_accuracy
from covcal_cli.formats.decision import CurvePoint
from covcal_cli.maths.odds import confidences

_POINTS = 100


def expected_errors(
    logits: Floats,
    temperature: float,
    labels: Labels,
    accuracies: tuple[float, float] | None,
    *,
    can_move: bool = False,
) -> tuple[CurvePoint, ...]:
    """Return the expected error of the best rows of every share, with its range.

    Rows are ranked by the confidence of their `labels` at `temperature`, which is also the middle
    of the range. Its ends have the temperatures whose mean confidence is the lowest and the highest
    possible accuracy. Without `accuracies` there is no range. `can_move` says whether the top class
    of the logits, shape (n, K), may differ from the label.
    """
    own = confidences(logits, temperature, labels)
    order = np.argsort(-own, kind="stable")
    shares = np.arange(1, _POINTS + 1) / _POINTS
    sizes = np.ceil(shares * len(own)).astype(np.int64)

    def errors(confidence: Float64s) -> list[float]:
        means = np.cumsum(1 - confidence[order])[sizes - 1] / sizes
        values: list[float] = np.clip(means, 0, 1).tolist()
        return values

    def matched(accuracy: float) -> list[float]:
        temperature = match_accuracy(logits, accuracy, labels if can_move else None).temperature
        return errors(confidences(logits, temperature, labels))

    middle = errors(own)
    low, high = middle, middle
    if accuracies is not None:
        high, low = map(matched, accuracies)
    return tuple(
        CurvePoint(share, error, min(best, error), max(worst, error))
        for share, error, best, worst in zip(shares.tolist(), middle, low, high, strict=True)
    )


def largest_share(curve: tuple[CurvePoint, ...], error: float) -> float:
    """Return the largest share whose expected error, at the high end, is within the limit."""
    return max((point.share for point in curve if point.high <= error), default=0.0)
