"""UTDC: the temperature whose confidences meet the source's reliability, rescaled as a whole.

Penso, Frenkel and Goldberger, "Confidence calibration of a medical/unsupervised target domain"
(UTDC): source validation rows are sorted by confidence into M equal bins with accuracies A_m. With
an estimate A of the target accuracy, the ratio R = A / A_v turns them into the target's, clipped to
[0.01, 0.99]. T minimises sum_m |A_m R - mean confidence of the target's bin m at T|, the target's
bins made once, by its confidence at T = 1.

This departs from the publication: A is COT's estimate (published: one trained on meta-sets), the
target's bins are made once (published: anew at every T), bins count alike, and R is computed and
applied once (the published code multiplies A_m by R anew at every T that it tries).
"""

import math
from collections.abc import Callable

import numpy as np

from covcal_cli.arrays import Float64s, Rows
from covcal_cli.estimators.inputs import EstimatorInputs
from covcal_cli.maths.odds import confidences, top_log_odds

_BINS = 15
_GRID = np.linspace(math.log(0.05), math.log(200.0), 61)
_TOLERANCE = 1e-4
_GOLDEN = (math.sqrt(5) - 1) / 2


def utdc_temperature(inputs: EstimatorInputs, accuracy: float) -> float:
    """Return UTDC's temperature for an estimated target accuracy.

    The grid spans 0.05 to 200 times T_s; the best point is refined by a golden section.
    """
    bins = min(_BINS, inputs.n_source, inputs.n_target)
    wanted = scaled_accuracies(inputs, accuracy, bins)
    order = np.argsort(top_log_odds(inputs.target_logits, 1.0), kind="stable")
    rows = inputs.target_logits[order]  # from the least to the most confident at T = 1
    starts = _starts(len(rows), bins)
    sizes = np.diff([*starts, len(rows)])

    def misfit(log_t: float) -> float:
        values = confidences(rows, math.exp(log_t))
        means = np.add.reduceat(values, starts) / sizes
        return float(np.abs(wanted - means).sum())

    grid = _GRID + math.log(inputs.temperature)
    values = [misfit(log_t) for log_t in grid]
    best = int(np.argmin(values))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    return math.exp(_golden_section(misfit, float(low), float(high)))


def scaled_accuracies(inputs: EstimatorInputs, accuracy: float, bins: int) -> Float64s:
    """Return clip(A_m R), shape (bins,), from the least to the most confident bin.

    Rows of the same confidence share their mean accuracy, so that their order does not matter.
    """
    _, group = np.unique(top_log_odds(inputs.source_logits, 1.0), return_inverse=True)
    counts = np.bincount(group)
    shared = np.bincount(group, weights=inputs.source_correct) / counts
    in_order = np.repeat(shared, counts)
    starts = _starts(len(in_order), bins)
    accuracies = np.add.reduceat(in_order, starts) / np.diff([*starts, len(in_order)])
    # No source row right leaves no ratio: every bin is then expected to be right as often.
    right = float(inputs.source_correct.mean())
    scaled = accuracies * (accuracy / right) if right > 0 else np.full(bins, accuracy)
    return np.clip(scaled, 0.01, 0.99)


def _starts(n: int, bins: int) -> Rows:
    return np.arange(bins, dtype=np.int64) * n // bins


def _golden_section(function: Callable[[float], float], low: float, high: float) -> float:
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > _TOLERANCE:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = function(right)
    return (low + high) / 2
