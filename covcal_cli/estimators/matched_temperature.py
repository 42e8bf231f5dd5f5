"""The temperature at which the mean target confidence is a given accuracy.

For the classifier's own labels the mean confidence m(T) falls from 1 to 1/K as T grows: one root.
For the classifier's labels under OTHER logits (the aligned forecaster's) m(T) is not monotone: as
T -> 0 it tends to the share of rows whose labels agree, in between it may rise above it, and as
T -> oo it is 1/K, or with class offsets the prior of those labels. Then every crossing on a grid is
found, the one with the largest T is taken (the softest, where m falls through the accuracy), and an
accuracy above or below all of m is met by the nearest that m reaches.

The search is over log T in [1e-4, 1e4] x c, c the root mean square of the centred logits but for
masks, so that match(k z) = k match(z), as in MATHEMATICS, section 4.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import Float64s, Floats, Labels
from covcal_cli.estimators.guards import not_clamped
from covcal_cli.maths.masks import masked, spread
from covcal_cli.maths.odds import confidences
from covcal_cli.maths.softmax import with_offsets
from covcal_cli.records import Guard

_RANGE = 1e4
_GRID_POINTS = 49
_TOLERANCE = 1e-6
_MIN_EXCESS = 0.01
_MAX_STEPS = 60


@dataclass(frozen=True)
class Match:
    """A matched temperature."""

    temperature: float
    confidence: float  # its mean at `temperature`
    crossings: int  # temperatures at which it has the wanted value; 0 where none has
    guard: Guard  # fails where another confidence than the given one had to be matched


def match_accuracy(
    logits: Floats,
    accuracy: float,
    labels: Labels | None = None,
    offsets: Float64s | None = None,
) -> Match:
    """Return T with mean_j softmax(z_j / T + b)[label_j] = `accuracy`.

    Of an accuracy in [0, 1] at least 1/K + 0.01 is matched, as uniform probabilities say nothing,
    and at most what n rows can tell from 1. The probability of `labels`, shape (n,), counts, by
    default of those of the logits, shape (n, K), themselves; they must be given with `offsets` b,
    shape (K,), by default 0.
    """
    n, K = len(logits), int(logits.shape[1])
    floor, ceiling = min(1 / K + _MIN_EXCESS, 1.0), 1 - 0.5 / (n + 1)
    wanted = min(max(accuracy, floor), ceiling)
    why = (
        f"{n} rows cannot tell more from certainty"
        if accuracy > wanted
        else "probabilities that say nothing have as much"
    )
    out = masked(logits)
    scale = spread(logits, out)
    if out.any():
        logits = np.where(out, -np.inf, logits)
    if scale == 0:  # every row is a tie: no T changes anything
        return Match(1.0, 1 / K, 0, not_clamped(accuracy, 1 / K, "the logits are all alike"))

    def excess(log_t: float) -> float:
        temperature = math.exp(log_t)
        moved = with_offsets(logits, temperature, offsets)
        return float(np.mean(confidences(moved, temperature, labels))) - wanted

    # The classifier's own labels give one root between the ends; others need a grid to find all.
    ends = math.log(scale / _RANGE), math.log(scale * _RANGE)
    grid = np.linspace(*ends, 2 if labels is None else _GRID_POINTS)
    values = np.array([excess(log_t) for log_t in grid])
    falls = np.flatnonzero((values[:-1] >= 0) & (values[1:] < 0))
    if len(falls) == 0:
        best = int(np.abs(values).argmin())
        found = wanted + float(values[best])
        most = "less" if values[best] > 0 else "more"
        guard = not_clamped(accuracy, found, f"no temperature gives these labels {most}")
        return Match(math.exp(float(grid[best])), found, 0, guard)
    rises = int(np.count_nonzero((values[:-1] < 0) & (values[1:] >= 0)))
    # Of all crossings the softest: the last fall.
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
        # A false position on the function straightened by an exponential, through three points.
        middle = (low + high) / 2
        at_middle = function(middle)
        step = at_middle / math.sqrt(at_middle**2 - at_low * at_high)
        point = middle + (high - low) / 2 * step
        at_point = function(point)
        # Both points narrow the bracket: the highest that is not below 0, the lowest that is.
        for where, value in sorted([(middle, at_middle), (point, at_point)]):
            if value >= 0:
                low, at_low = where, value
            elif where < high:
                high, at_high = where, value
    return low
