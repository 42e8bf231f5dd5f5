"""Intervals of a share of rows."""

import math
from statistics import NormalDist


def quantile(level: float) -> float:
    """Return how many standard deviations an interval of `level` reaches to either side."""
    return NormalDist().inv_cdf((1 + level) / 2)


def wilson(share: float, n: float, level: float) -> tuple[float, float]:
    """Return Wilson's (1927) interval of a share of `n` rows, or of as many as would be as sure."""
    z = quantile(level)
    pull = z**2 / n
    centre = (share + pull / 2) / (1 + pull)
    half = z * math.sqrt(share * (1 - share) / n + pull / (4 * n)) / (1 + pull)
    return max(0.0, centre - half), min(1.0, centre + half)
