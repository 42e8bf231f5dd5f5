"""The debiased ECE of Kumar, Liang & Ma (2019): the ECE less what chance alone adds to it."""

import math

import numpy as np

from covcal_cli.metrics.binning import require_rows
from covcal_cli.metrics.reliability import Bins


def debiased_ece(bins: Bins) -> float:
    """Return 2 ECE - E[ECE*].

    ECE* is the ECE with the accuracy of each bin drawn anew from a normal distribution around
    the one found, of variance acc (1 - acc) / n_b. Its mean has a closed form, which is what
    uncertainty-calibration's ``get_ece(debias=True)`` draws a thousand samples for. The result
    may be below 0: that says that chance explains the whole ECE.
    """
    n = require_rows(bins.n)
    filled = bins.counts > 0
    sizes = bins.counts[filled]
    accuracy = bins.hits[filled] / sizes
    gaps = bins.confidence_sums[filled] / sizes - accuracy
    deviations = np.sqrt(accuracy * (1 - accuracy) / sizes)
    expected = [
        _mean_of_magnitude(gap, deviation)
        for gap, deviation in zip(gaps.tolist(), deviations.tolist(), strict=True)
    ]
    return float((sizes / n * (2 * np.abs(gaps) - expected)).sum())


def _mean_of_magnitude(mean: float, deviation: float) -> float:
    """Return E|X| of a normal X."""
    if deviation == 0:
        return abs(mean)
    ratio = mean / deviation
    return deviation * math.sqrt(2 / math.pi) * math.exp(-(ratio**2) / 2) + mean * math.erf(
        ratio / math.sqrt(2)
    )
