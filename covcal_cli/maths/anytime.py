"""An interval of a share that is valid at every look, however often and whenever you look.

Draws are right with probability a. Let S of them be right and F wrong so far. The likelihood ratio
of a mixture of other probabilities against a,

    E(a) = B(p + S, q + F) / (B(p, q) a^S (1 - a)^F),

is a martingale with mean 1 if a is true, for any prior Beta(p, q) that was fixed before the draws.
So by Ville's inequality it ever reaches 1/e with probability at most e, and the values a with E(a)
below 1/e contain the truth at all times with probability 1 - e (Robbins 1970; Howard et al. 2021,
"Time-uniform, nonparametric, nonasymptotic confidence sequences"). log E is convex in a, so that
these values are an interval. S and F may be fractions: those of a draw that tells as much.
"""

import math
from collections.abc import Callable

_CONCENTRATION = 20.0  # p + q; the interval is narrowest where the truth is 5 to 10 points away
_NEAREST = 0.02  # the least distance of the prior's mean from 0 and 1
_HALVINGS = 50
_ROUNDING = 1e-12


def anytime_interval(
    right: float, wrong: float, expected: float, error: float
) -> tuple[float, float]:
    """Return the interval of the probability of being right.

    Parameters
    ----------
    right, wrong : float
        S and F, at least 0.
    expected : float
        The mean of the prior, known before the draws.
    error : float
        The probability that the interval ever misses the truth.
    """
    mean = min(max(expected, _NEAREST), 1 - _NEAREST)
    p, q = _CONCENTRATION * mean, _CONCENTRATION * (1 - mean)
    limit = math.log(1 / error) - _log_beta(p + right, q + wrong) + _log_beta(p, q)

    def is_inside(a: float) -> bool:
        a = min(max(a, _ROUNDING), 1 - _ROUNDING)
        return -right * math.log(a) - wrong * math.log1p(-a) < limit

    total = right + wrong
    middle = right / total if total else 0.5
    low = _edge(middle, 0.0, is_inside) if right > _ROUNDING else 0.0
    high = _edge(middle, 1.0, is_inside) if wrong > _ROUNDING else 1.0
    return low, high


def _edge(inside: float, outside: float, is_inside: Callable[[float], bool]) -> float:
    """Return the edge of the interval between a value inside it and one outside."""
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2
        if is_inside(middle):
            inside = middle
        else:
            outside = middle
    return outside


def _log_beta(p: float, q: float) -> float:
    return math.lgamma(p) + math.lgamma(q) - math.lgamma(p + q)
