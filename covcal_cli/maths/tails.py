"""How many wrong rows a draw may hold and still show that few rows are wrong.

Let a set have N rows, K of them wrong. Rows are drawn by ordered pivotal sampling, each row of the
set with a probability of at least f. Such a draw has the strong Rayleigh property (Borcea, Brändén
& Liggett 2009; Brändén & Jonasson 2012): the number W of wrong rows drawn is distributed as a sum
of independent indicators, at most min(m, K) of them, where m is the largest number of rows that can
be drawn from the set. Its mean is at least f K. By Theorem 4 of Hoeffding (1956),

    P(W <= k) <= P(Binomial(t, f K / t) <= k),  t = min(m, K),  for k <= f K - 1.

For larger k the bound is 1. A later batch draws from the rows that earlier batches left, which hold
at least K less the number of rows that those could draw from the set. The bounds of batches join by
a convolution, because each bound holds given the batches before.

If the promise is about future rows, the rows of the set are a sample themselves: K is binomial with
N trials, and the bound is averaged over K.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from covcal_cli.arrays import Float64s

_DEVIATIONS = 9  # of K: the chance beyond is below 1e-18
_POINTS = 128  # values of K, each standing for itself and the larger ones up to the next
_ROUNDING = 1e-9
_CERTAIN = 1 - 1e-12


@dataclass(frozen=True)
class Sampling:
    """How one batch drew from a set of rows."""

    inclusion: float  # f: every row of the set was drawn with at least this probability
    most: int  # m, the largest number of rows that it can draw from the set


def most_wrong(
    rows: int,
    batches: Sequence[Sampling],
    error: float,
    level: float,
    *,
    these_rows: bool,
    lost: int = 0,
) -> int:
    """Return the most wrong drawn rows that refute "more than `error` are wrong"; -1 for none.

    If more than a share `error` is wrong, the chance of so few wrong rows is at most `level`.

    Parameters
    ----------
    rows : int
        N, the number of rows of the set.
    batches : sequence of Sampling
    error, level : float
    these_rows : bool
        Whether the claim is about these N rows, or about future rows like them.
    lost : int
        Rows of the set that were taken out before the first batch, and may all be wrong.
    """
    if not rows or not batches:
        return -1
    wrong, chances = _wrong_rows(rows, error, these_rows=these_rows)
    most = min(sum(batch.most for batch in batches), math.ceil(error * rows) + 1)
    bounds = []
    for batch in batches:
        bounds.append(_bounds(np.maximum(wrong - lost, 0), batch, most))
        lost += batch.most
    fits = reduce(_joined, bounds) @ chances <= level
    return int(fits.sum()) - 1 if fits.all() else int(fits.argmin()) - 1


def _wrong_rows(rows: int, error: float, *, these_rows: bool) -> tuple[Float64s, Float64s]:
    """Return values of K at the edge of the claim, ascending, and their chances."""
    if these_rows:
        return np.array([math.floor(error * rows + _ROUNDING) + 1.0]), np.ones(1)
    mean, deviation = rows * error, math.sqrt(rows * error * (1 - error))
    low = max(0, math.floor(mean - _DEVIATIONS * deviation))
    high = min(rows, math.ceil(mean + _DEVIATIONS * deviation))
    values = np.arange(low, high + 1, dtype=np.float64)
    # log P(K + 1) - log P(K), summed from the lowest value.
    steps = np.log((rows - values[:-1]) / (values[:-1] + 1)) + math.log(error / (1 - error))
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    chances = np.exp(logs - logs.max())
    chances /= chances.sum()
    starts = np.arange(0, len(values), max(1, -(-len(values) // _POINTS)))
    return values[starts], np.add.reduceat(chances, starts)


def _bounds(wrong: Float64s, batch: Sampling, most: int) -> Float64s:
    """Return the bounds of P(W <= k) for k = 0 .. `most` (rows) and every K (columns)."""
    terms = np.minimum(max(batch.most, 1), np.maximum(wrong, 1))
    mean = batch.inclusion * wrong
    p = np.clip(mean / terms, 1e-300, _CERTAIN)
    log_odds = np.log(p) - np.log1p(-p)
    logs = terms * np.log1p(-p)
    total, rows = np.zeros_like(p), []
    with np.errstate(divide="ignore", invalid="ignore"):
        for k in range(most + 1):
            total = total + np.exp(logs)
            rows.append(np.where(k <= mean - 1 + _ROUNDING, np.minimum(total, 1.0), 1.0))
            logs = logs + np.log(np.maximum(terms - k, 0) / (k + 1)) + log_odds
    return np.array(rows)


def _joined(first: Float64s, second: Float64s) -> Float64s:
    """Return the bounds for the sum of two batches; `second` holds given the first batch.

    The second bound grows with what the first batch leaves of k, so that the sum over the first
    batch's counts can be written with their tails (summation by parts).
    """
    steps = np.diff(second, axis=0, prepend=0)
    return np.array(
        [np.minimum((steps[k::-1] * first[: k + 1]).sum(axis=0), 1.0) for k in range(len(first))]
    )
