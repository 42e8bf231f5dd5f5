"""Class-balanced, ridge-penalised logistic regression of two kinds of rows, by Newton's method.

The objective of MATHEMATICS, section 1: cross-entropy with half of the weight on each kind, plus a
ridge on the coefficients but not on the intercept. It is convex, so there is one minimum and no
seed.
"""

from collections.abc import Callable, Iterator

import numpy as np

from covcal_cli.arrays import Float64s, Floats
from covcal_cli.maths.odds import sigmoid

# Blocks of standardised inputs (m, d), their kinds (1 or 0) and weights; called once per step.
Blocks = Callable[[], Iterator[tuple[Floats, float, float]]]
RIDGE = 1e-3  # weight of ||coefficients||^2 / 2 beside the balanced mean cross-entropy
_TOLERANCE = 1e-10  # stop after a step whose predicted gain is smaller
_MAX_STEPS = 60


def fit_logistic(blocks: Blocks, width: int) -> Float64s | None:
    """Return d coefficients and the intercept, shape (d + 1,), or None if it does not converge.

    The logit of "is of kind 1" is inputs @ coefficients + intercept.
    """
    return newton(lambda weights: _derivatives(blocks, weights), np.zeros(width + 1))


def newton(
    derivatives: Callable[[Float64s], tuple[float, Float64s, Float64s]], start: Float64s
) -> Float64s | None:
    """Return the minimum of a convex function, or None if it does not converge.

    `derivatives` returns the function's value, gradient and Hessian at a point.
    """
    point = start.copy()
    step = np.zeros_like(point)
    value = np.inf
    for _ in range(_MAX_STEPS):
        trial, slope, hessian = derivatives(point)
        if trial > value:  # overshot: go back half of the last step
            step /= 2
            point -= step
            continue
        value = trial
        step = np.linalg.solve(hessian, -slope).astype(np.float64)
        point += step
        if -np.dot(slope, step) < _TOLERANCE:
            return point
    return None


def _derivatives(blocks: Blocks, weights: Float64s) -> tuple[float, Float64s, Float64s]:
    """Return the objective, its gradient and its Hessian at `weights`."""
    penalty = np.full(len(weights), RIDGE)
    penalty[-1] = 0.0
    value = 0.5 * float(np.dot(penalty, weights**2))
    slope = penalty * weights
    hessian = np.diag(penalty)
    for block, kind, weight in blocks():
        inputs = np.ones((len(block), len(weights)))
        inputs[:, :-1] = block
        logits = inputs @ weights
        value += weight * float(np.logaddexp(0.0, -logits if kind else logits).sum())
        probability = sigmoid(logits)
        slope += weight * (inputs.T @ (probability - kind))
        # float32 products change the steps of the iteration, but not its result.
        curvature = np.sqrt(weight * probability * (1 - probability))
        scaled = (inputs * curvature[:, None]).astype(np.float32)
        hessian += scaled.T @ scaled
    return value, slope, hessian
