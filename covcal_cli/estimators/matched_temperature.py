"""Find the temperature whose mean target confidence equals a given accuracy.

Usually the mean confidence falls from 1 to 1/K as T grows, so exactly one T gives the accuracy. The
mean confidence may also rise with T if labels come from the classifier, but logits from the aligned
forecaster. Then a grid search finds all solutions. covcal uses the largest T at which the mean
confidence falls. Without a solution, covcal uses the T with the nearest mean confidence.

T is searched in [1e-4, 1e4] x c, where c is the root mean square of the centred logits
(MATHEMATICS, section 4).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import Float64s, Floats, Labels
from covcal_cli.estimators.guards import not_clamped
from covcal_cli.maths.odds import confidences_of
from covcal_cli.maths.softmax import blocks_of, class_major, masked, spread, with_offsets
from covcal_cli.records import Guard

_RANGE = 1e4
_GRID_POINTS = 49
_TOLERANCE = 1e-6
_MIN_EXCESS = 0.01
_MAX_STEPS = 60


@dataclass(frozen=True)
class Match:
    """The result of a match: a temperature and the mean confidence at this temperature."""

    temperature: float
    confidence: float
    crossings: int
    guard: Guard


def possible_confidence(accuracy: float, rows: int, n_classes: int) -> float:
    """Clip `accuracy` to a mean confidence that some T can reach.

    The limits are 1/K + 0.01 and 1 - 0.5 / (`rows` + 1).
    """
    floor, ceiling = min(1 / n_classes + _MIN_EXCESS, 1.0), 1 - 0.5 / (rows + 1)
    return min(max(accuracy, floor), ceiling)


def match_accuracy(
    logits: Floats, accuracy: float, labels: Labels | None = None, offsets: Float64s | None = None
) -> Match:
    """Return the T at which the mean of softmax(z_j / T + b)[label_j] is `accuracy`.

    First, `possible_confidence` clips the accuracy. `labels`, (n,), are by default the classes with
    the largest logits. `offsets` are b, (K,), by default 0. Offsets need labels.
    """
    n, K = len(logits), int(logits.shape[1])
    wanted = possible_confidence(accuracy, n, K)
    why = (
        f"with only {n} rows, so high an accuracy cannot be distinguished from 100 %"
        if accuracy > wanted
        else "even uniform probabilities have about this confidence"
    )
    out = masked(logits)
    scale = spread(logits, out)
    if out.any():
        logits = np.where(out, -np.inf, logits)
    if scale == 0:
        return Match(1.0, 1 / K, 0, not_clamped(accuracy, 1 / K, "all logits are equal"))

    blocks = [class_major(block) for block in blocks_of(logits)()]

    def excess(log_t: float) -> float:
        temperature = math.exp(log_t)
        moved = blocks
        if offsets is not None:
            moved = [class_major(with_offsets(z.T, temperature, offsets)) for z in blocks]
        return float(np.mean(confidences_of(moved, temperature, labels))) - wanted

    # The confidence in the most probable class falls as T grows, so there is one solution. Other
    # classes may have several solutions, so a grid search finds them.
    ends = math.log(scale / _RANGE), math.log(scale * _RANGE)
    grid = np.linspace(*ends, 2 if labels is None else _GRID_POINTS)
    values = np.array([excess(log_t) for log_t in grid])
    falls = np.flatnonzero((values[:-1] >= 0) & (values[1:] < 0))
    if len(falls) == 0:
        best = int(np.abs(values).argmin())
        nearest = wanted + float(values[best])
        less_or_more = "lower" if values[best] > 0 else "higher"
        guard = not_clamped(
            accuracy, nearest, f"no temperature gives a {less_or_more} mean confidence"
        )
        return Match(math.exp(float(grid[best])), nearest, 0, guard)
    rises = int(np.count_nonzero((values[:-1] < 0) & (values[1:] >= 0)))
    last = int(falls[-1])
    log_t = _root(excess, float(grid[last]), float(grid[last + 1]))
    guard = not_clamped(accuracy, wanted, why)
    return Match(math.exp(log_t), wanted + excess(log_t), len(falls) + rises, guard)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the root of a falling `function` between `low` and `high` (Ridders' method)."""
    at_low, at_high = function(low), function(high)
    for _ in range(_MAX_STEPS):
        if high - low < _TOLERANCE or at_low == 0:
            break
        middle = (low + high) / 2
        at_middle = function(middle)
        step = at_middle / math.sqrt(at_middle**2 - at_low * at_high)
        point = middle + (high - low) / 2 * step
        at_point = function(point)
        for where, value in sorted([(middle, at_middle), (point, at_point)]):
            if value >= 0:
                low, at_low = where, value
            elif where < high:
                high, at_high = where, value
    return low
