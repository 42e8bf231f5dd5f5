"""Minimisation of a smooth convex function: limited-memory BFGS with an Armijo line search.

Nocedal and Wright, Numerical Optimization, algorithm 7.5. Deterministic: the same function gives
the same steps.
"""

from collections import deque
from collections.abc import Callable

import numpy as np

from covcal_cli.softmax import Array

_MEMORY = 10
_ARMIJO = 1e-4
_SHORTEST = 1e-10


def minimise(
    function: Callable[[Array], tuple[float, Array]],
    start: Array,
    *,
    tolerance: float,
    max_steps: int,
) -> Array:
    """Return where the gradient's largest entry is at most `tolerance`, or after `max_steps`.

    Parameters
    ----------
    function : callable
        Gives the value and the gradient, of the shape of `start`.
    start : array of float64
    tolerance : float
    max_steps : int
    """
    point = start
    value, slope = function(point)
    pairs: deque[tuple[Array, Array]] = deque(maxlen=_MEMORY)
    for _ in range(max_steps):
        if float(np.abs(slope).max()) <= tolerance:
            break
        direction = -_inverse_hessian_times(slope, pairs)
        descent = float(np.vdot(direction, slope))
        length = 1.0 if pairs else 1.0 / max(1.0, float(np.abs(slope).sum()))
        while True:
            trial = point + length * direction
            new_value, new_slope = function(trial)
            if new_value <= value + _ARMIJO * length * descent or length < _SHORTEST:
                break
            length /= 2
        if length < _SHORTEST:
            break
        change, bend = trial - point, new_slope - slope
        if float(np.vdot(change, bend)) > 0:
            pairs.append((change, bend))
        point, value, slope = trial, new_value, new_slope
    return point


def _inverse_hessian_times(slope: Array, pairs: deque[tuple[Array, Array]]) -> Array:
    """Return the two-loop recursion's product."""
    vector, coefficients = slope.copy(), []
    for change, bend in reversed(pairs):
        share = float(np.vdot(change, vector)) / float(np.vdot(change, bend))
        coefficients.append(share)
        vector -= share * bend
    if pairs:
        change, bend = pairs[-1]
        vector *= float(np.vdot(change, bend)) / float(np.vdot(bend, bend))
    for (change, bend), share in zip(pairs, reversed(coefficients), strict=True):
        vector += (share - float(np.vdot(bend, vector)) / float(np.vdot(change, bend))) * change
    return vector
