"""The design by which rows are drawn: exact inclusion probabilities, a fixed size, well spread.

Given a forecast s_i that the classifier is right in row i, the sum of what it gets right is
estimated by the difference estimator sum_i s_i + sum_{drawn} (right_i - s_i) / pi_i (Cassel,
Särndal & Wretman 1976). If s is right, the variance it has on average is smallest where pi_i is in
proportion to sqrt(s_i (1 - s_i)), the standard deviation of what a label has to tell (Isaki &
Fuller 1982; Särndal, Swensson & Wretman 1992, section 12.2): rows that are as good as certain are
seldom worth a person's time. That is active testing (Kossen et al. 2021) with a fixed number of
rows. Where s is wrong, a share of `FLOOR` that is alike for all rows keeps every pi_i above 0 and
every weight below N / (n FLOOR): the estimate stays unbiased whatever s is.

Rows are drawn by ordered pivotal sampling (Deville & Tillé 1998): laid end to end in an order,
each as long as its pi_i, one of every unit of length, so that a sample holds rows from everywhere
along it. Its variance never exceeds that of drawing with replacement (Chauvet 2012; Chauvet &
Ruiz-Gazen 2017), so that intervals by the usual formula of Hansen & Hurwitz (1943) are safe, which
no formula is for systematic draws: one random number decides all of such a draw.
"""

import numpy as np

from covcal_cli.arrays import Float64s, Integers

FLOOR = 0.2  # share of the draw that is alike for all rows
_ROUNDING = 1e-9  # of sums of lengths


def inclusion_probabilities(forecast: Float64s, n: int) -> Float64s:
    """Return pi, shape (N,) float64: each above 0 and at most 1, n in sum.

    Parameters
    ----------
    forecast : array of shape (N,)
        s, the probability that the classifier is right, in [0, 1].
    n : int
        Rows to draw, from 1 to N.
    """
    spread = np.sqrt(forecast * (1 - forecast))
    total = spread.sum()
    alike = np.full(len(spread), 1 / len(spread))
    size = alike if total == 0 else (1 - FLOOR) * spread / total + FLOOR * alike
    # A row longer than one is certain; the others share what is left, which may make more certain.
    certain = np.zeros(len(size), dtype=np.bool_)
    while True:
        left = n - np.count_nonzero(certain)
        probabilities = np.where(certain, 1.0, left * size / max(size[~certain].sum(), 1e-300))
        longer = ~certain & (probabilities >= 1)
        if not longer.any():
            return probabilities
        certain |= longer


def drawn(probabilities: Float64s, rng: np.random.Generator) -> Integers:
    """Return which of N rows in order are drawn, ascending, shape (n,) int64.

    Parameters
    ----------
    probabilities : array of shape (N,)
        pi along the order, n in sum, as `inclusion_probabilities` returns them.
    rng : numpy.random.Generator
    """
    certain, others = np.flatnonzero(probabilities == 1), np.flatnonzero(probabilities < 1)
    if len(others) == 0:
        return certain
    # Where each row begins on the line, and where the last ends: at a whole number.
    edges = np.concatenate([[0.0], np.cumsum(probabilities[others])])
    n = max(1, round(float(edges[-1])))
    edges *= n / edges[-1]
    found = np.empty(n, dtype=np.int64)
    # A row that was not drawn where it began is carried on, with the length that it has left.
    carried, first = -1, 0
    for stratum in range(n):
        # The row that reaches over the end of the stratum; the others in it lie before `inside`.
        last = int(np.searchsorted(edges[1:], stratum + 1 - _ROUNDING))
        inside = edges[last] - stratum
        # Those fight, each with its length, and the winner stands for all of them.
        place = stratum + rng.random() * inside
        winner = (
            carried if place < edges[first] else int(np.searchsorted(edges, place, "right")) - 1
        )
        # Then one of the winner and the last row is drawn, and the other carried on.
        reaching = edges[last + 1] - edges[last]
        loses = winner < 0 or rng.random() * (2 - inside - reaching) < 1 - inside
        found[stratum], carried = (last, winner) if loses else (winner, last)
        first = last + 1
    return np.sort(np.concatenate([certain, others[found]]))
