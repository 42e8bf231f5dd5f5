"""The temperature at which the mean target confidence equals a given accuracy.

For the labels of the same logits, the mean confidence m(T) falls from 1 to 1/K as T grows, so there
is one root. But the labels may come from the classifier and the logits from the aligned forecaster.
Then m(T) may rise and fall. As T -> 0 it tends to the share of rows with equal labels. As T -> oo
it tends to 1/K, or with class offsets to the prior of these labels. So a grid finds every crossing.
The result is the crossing with the largest T, where m falls through the accuracy. If m never
reaches the accuracy, the nearest value of m on the grid is taken.

The search is over log T in [1e-4, 1e4] x c. The scale c is the root mean square of the centred
logits without masks, so that match(k z) = k match(z), as in MATHEMATICS, section 4.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import Float64s, Floats, Labels
from covcal_cli.estimators.guards import not_clamped
from covcal_cli.maths.odds import confidences
from covcal_cli.maths.softmax import masked, spread, with_offsets
from covcal_cli.records import Guard

_RANGE = 1e4
_GRID_POINTS = 49
_TOLERANCE = 1e-6
_MIN_EXCESS = 0.01
_MAX_STEPS = 60


@dataclass(frozen=True)
class Match:
    """A temperature whose mean confidence is a given accuracy."""

    temperature: float
    confidence: float  # the mean confidence at `temperature`
    crossings: int  # the number of temperatures with the wanted confidence
    guard: Guard  # fails if T could only match another confidence than the accuracy


def match_accuracy(
    logits: Floats,
    accuracy: float,
    labels: Labels | None = None,
    offsets: Float64s | None = None,
) -> Match:
    """Return T with mean_j softmax(z_j / T + b)[label_j] = `accuracy`.

    The accuracy is raised to at least 1/K + 0.01, because uniform probabilities are of no use. It
    is lowered to the highest accuracy that n rows can distinguish from 1. `labels`, shape (n,), are
    by default the top labels of the logits, shape (n, K). They are required with `offsets` b, shape
    (K,), which are 0 by default.
    """
    n, K = len(logits), int(logits.shape[1])
    floor, ceiling = min(1 / K + _MIN_EXCESS, 1.0), 1 - 0.5 / (n + 1)
    wanted = min(max(accuracy, floor), ceiling)
    why = (
        f"{n} rows cannot distinguish a higher accuracy from 100 %"
        if accuracy > wanted
        else "even uniform probabilities have about that confidence"
    )
    out = masked(logits)
    scale = spread(logits, out)
    if out.any():
        logits = np.where(out, -np.inf, logits)
    if scale == 0:  # all logits of every row are equal, so T changes nothing
        return Match(1.0, 1 / K, 0, not_clamped(accuracy, 1 / K, "all logits are equal"))

    def excess(log_t: float) -> float:
        temperature = math.exp(log_t)
        moved = with_offsets(logits, temperature, offsets)
        return float(np.mean(confidences(moved, temperature, labels))) - wanted

    # The classifier's own labels have one root between the ends; other labels need a grid.
    ends = math.log(scale / _RANGE), math.log(scale * _RANGE)
    grid = np.linspace(*ends, 2 if labels is None else _GRID_POINTS)
    values = np.array([excess(log_t) for log_t in grid])
    falls = np.flatnonzero((values[:-1] >= 0) & (values[1:] < 0))
    if len(falls) == 0:
        best = int(np.abs(values).argmin())
        nearest = wanted + float(values[best])
        most = "less" if values[best] > 0 else "more"
        guard = not_clamped(
            accuracy, nearest, f"no temperature gives these labels {most} confidence"
        )
        return Match(math.exp(float(grid[best])), nearest, 0, guard)
    rises = int(np.count_nonzero((values[:-1] < 0) & (values[1:] >= 0)))
    # The last crossing has the largest T.
    last = int(falls[-1])
    log_t = _root(excess, float(grid[last]), float(grid[last + 1]))
    guard = not_clamped(accuracy, wanted, why)
    return Match(math.exp(log_t), wanted + excess(log_t), len(falls) + rises, guard)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where `function` falls through 0 between `low` and `high`, by Ridders' method."""
    at_low, at_high = function(low), function(high)
    for _ in range(_MAX_STEPS):
        if high - low < _TOLERANCE or at_low == 0:
            break
        # Ridders: multiply by an exponential factor that makes the function straight; then take a
        # secant step.
        middle = (low + high) / 2
        at_middle = function(middle)
        step = at_middle / math.sqrt(at_middle**2 - at_low * at_high)
        point = middle + (high - low) / 2 * step
        at_point = function(point)
        # Both points narrow the bracket.
        for where, value in sorted([(middle, at_middle), (point, at_point)]):
            if value >= 0:
                low, at_low = where, value
            elif where < high:
                high, at_high = where, value
    return low
