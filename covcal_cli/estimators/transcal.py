"""TransCal: the target's error by tempered importance weights and two control variates.

Wang et al., "Transferable calibration with lower bias and variance in domain adaptation", NeurIPS
2020. With e the error of a source row, r = 1 - e, W = w^lambda and L = W e: eta_1 = -cov(L, W) /
var(W), L* = L + eta_1 (W - 1), eta_2 = -cov(L*, r) / var(r), and the target's error is
mean L + eta_1 (mean W - 1) + eta_2 (mean r - mean source confidence).

As in the published code, T is at least 1. Otherwise this departs from it:

- it minimises |confidence - accuracy| over T and lambda together by SLSQP. For every lambda some T
  makes that 0, so its answer is where its search happens to start from. Here lambda is the largest
  in [0, 1] at which W is worth at least 30 % of the rows, and T follows;
- W is divided by its mean where lambda < 1: the density ratio has mean 1, a power of it has not;
- the confidence of the control variate is that at T_s, and the weights are of the discriminator
  that all methods here share.
"""

from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import Float64s
from covcal_cli.estimators.inputs import EstimatorInputs, slope
from covcal_cli.maths.weights import effective_sample_size

MIN_SHARE = 0.3
_STEPS = 50


@dataclass(frozen=True)
class TransCal:
    """TransCal's estimate of the target accuracy."""

    accuracy: float  # in [0, 1]
    power: float  # lambda


def transcal(inputs: EstimatorInputs) -> TransCal:
    """Estimate the target accuracy by TransCal."""
    weights = inputs.source_weights
    if weights is None:
        raise ValueError("TransCal needs importance weights")
    power = tempering_power(weights)
    W = _tempered(weights, power)
    right = inputs.source_correct
    loss = W * (1 - right)
    first = -slope(loss, W, constant=0.0)
    second = -slope(loss + first * (W - 1), right, constant=0.0)
    error = float(loss.mean()) + first * (float(W.mean()) - 1)
    error += second * float(right.mean() - inputs.source_confidence.mean())
    return TransCal(float(np.clip(1 - error, 0.0, 1.0)), power)


def tempering_power(weights: Float64s) -> float:
    """Return the largest lambda in [0, 1] at which w^lambda is worth 30 % of the rows.

    The effective sample size falls as lambda grows, because log sum w^lambda is convex in it.
    """

    def enough(power: float) -> bool:
        return effective_sample_size(_powers(weights, power)) >= MIN_SHARE * len(weights)

    if enough(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low


def _tempered(weights: Float64s, power: float) -> Float64s:
    """Return W: w^lambda, divided by its mean where lambda < 1."""
    if power == 1.0 and weights.max() > 0:
        return weights
    powers = _powers(weights, power)
    return np.asarray(powers / powers.mean())


def _powers(weights: Float64s, power: float) -> Float64s:
    # Weights that are all 0 say nothing about any row: every row then counts the same.
    largest = float(weights.max())
    return np.asarray((weights / largest) ** power) if largest > 0 else np.ones(len(weights))
