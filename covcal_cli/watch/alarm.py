"""An alarm for a change at an unknown time, with a known rate of false ones.

For every signal and every period j in which a change may have begun, the rows from j on are held
against the reference and the periods before j. With u the rank of a row among the reference's rows,
D the difference of its means after and before, and v = var(u) (1 / n_after + 1 / n_before), which
counts the reference's own sampling, D is about normal with variance v while nothing changes. A bet
on a change of size N(0, tau^2) then multiplies its stake by

    E_j = sqrt(v / (v + tau^2)) exp(D^2 / 2 * tau^2 / (v (v + tau^2))),

which is the likelihood ratio of all differences, the only thing that is known where the reference's
true mean is not (a group-invariant test: Perez-Ortiz et al., "E-statistics, group invariance and
anytime-valid testing", 2024): its mean stays 1. So is that of p uncorrelated differences together,
with the power p/2 of the root and the sum of squares. The average over taus and signals is another
such bet, whatever the signals have in common.

The sum R over the starts j so far is the Shiryaev-Roberts e-detector (Shin, Ramdas and Rinaldo,
"E-detectors", 2024): R less the number of periods is a martingale, so by Ville's inequality R
reaches c within n periods with probability at most n / c (MATHEMATICS, section 12). With c =
periods per year / false alarms that are allowed per year, the promise holds whenever it is looked
at, year after year.
"""

import math
from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import Float64s
from covcal_cli.maths.softmax import log_mean

# Sizes of the changes that are bet on, in standard deviations of a row's rank.
_SIZES = (0.05, 0.15, 0.5, 1.5)
_MOST_STARTS = 1000  # latest periods in which a change may have begun; fewer only lower R


@dataclass(frozen=True)
class Alarm:
    """The evidence for a change so far."""

    log_evidence: float  # natural logarithm of R
    log_threshold: float  # of c
    raised: bool  # whether R is c or more
    start: int  # periods before the one in which the change most likely began
    signal: int  # that says most; the first of those bet on together stands for them


def alarm(
    rows: Float64s,
    means: Float64s,
    kept: Float64s,
    variances: Float64s,
    threshold: float,
    joint: Float64s | None = None,
) -> Alarm:
    """Return the alarm after the last of some periods.

    Parameters
    ----------
    rows, means : ndarrays of shape (t, S) float64
        Rows of each period and signal, and their mean rank less that of the reference; a signal
        that a period lacks has 0 rows.
    kept, variances : ndarrays of shape (S,) float64
        Rows of the reference, and the variance of their ranks, above 0.
    threshold : float
        c, above 1.
    joint : ndarray of shape (p, p) float64, optional
        What makes the last p signals, each over its standard deviation, uncorrelated: they are bet
        on together, in any direction, and all have the same rows.
    """
    periods = len(rows)
    counts = np.vstack([np.zeros(rows.shape[1]), rows.cumsum(axis=0)])
    sums = np.vstack([np.zeros(rows.shape[1]), (rows * means).cumsum(axis=0)])
    first = max(0, periods - _MOST_STARTS)
    starts = np.arange(first, periods)
    # The reference, whose mean is 0, and the periods before a start, against those from it on.
    before, after = kept + counts[starts], counts[-1] - counts[starts]
    difference = (sums[-1] - sums[starts]) / np.maximum(after, 1) - sums[starts] / before
    noise = variances * (1 / np.maximum(after, 1) + 1 / before)
    standard, noise = difference / np.sqrt(variances), noise / variances
    single = standard.shape[1] - (0 if joint is None else len(joint))
    bets = _bets(standard[:, :single] ** 2, noise[:, :single], 1)
    if joint is not None:
        squares = ((standard[:, single:] @ joint.T) ** 2).sum(axis=1, keepdims=True)
        bets = np.hstack([bets, _bets(squares, noise[:, single : single + 1], len(joint))])
    # A signal without a row after a start has nothing to bet on, and keeps its stake.
    bets = np.where(after[:, : bets.shape[1]] > 0, bets, 0.0)
    by_start = log_mean(list(bets.T))
    best = int(by_start.argmax())
    evidence = float(by_start[best] + math.log(np.exp(by_start - by_start[best]).sum()))
    limit = math.log(threshold)
    return Alarm(evidence, limit, evidence >= limit, first + best, int(bets[best].argmax()))


def _bets(squares: Float64s, noise: Float64s, p: int) -> Float64s:
    """Return log E of the squared length of p differences, each over its standard deviation.

    The mean over all sizes of (v / (v + tau^2))^(p/2) exp(|D|^2 / 2 * tau^2 / (v (v + tau^2))).
    """
    logs = [
        0.5 * p * np.log(noise / (noise + size**2))
        + squares / 2 * size**2 / (noise * (noise + size**2))
        for size in _SIZES
    ]
    return log_mean(logs)
