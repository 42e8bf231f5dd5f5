"""An alarm for a change at an unknown time, with a guaranteed rate of false alarms.

A change may have begun in any period j. For every signal and every j, the rows from period j on are
compared with the rows before it: the reference and the earlier periods. Let u be the rank of a row
among the reference rows, and D the difference of the mean ranks after and before. Let v = var(u) (1
/ n_after + 1 / n_before), which includes the sampling noise of the reference. While nothing
changes, D is about normal with variance v. The likelihood ratio of a change of size N(0, tau^2)
against no change is

    E_j = sqrt(v / (v + tau^2)) exp(D^2 / 2 * tau^2 / (v (v + tau^2))),

It uses only differences, because the true mean of the reference is unknown. Such a test is
group-invariant (Perez-Ortiz et al., "E-statistics, group invariance and anytime-valid testing",
2024), and while nothing changes, the mean of E_j is 1. The same holds for p uncorrelated
differences together, with the power p/2 in place of the root and the sum of squares in place of
D^2. The average of E_j over several taus and signals also has mean 1, however the signals are
correlated.

The sum R over the starts j so far is the Shiryaev-Roberts e-detector (Shin, Ramdas and Rinaldo,
"E-detectors", 2024): R less the number of periods is a martingale, so by Ville's inequality R
reaches c within n periods with probability at most n / c (MATHEMATICS, section 12). With c =
periods per year / allowed false alarms per year, the rate is kept in every year, and you may look
at R at any time.
"""

import math
from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import Float64s
from covcal_cli.maths.softmax import log_mean

# Sizes tau of the changes that are tested, in standard deviations of a row's rank.
_SIZES = (0.05, 0.15, 0.5, 1.5)
_MOST_STARTS = 1000  # test only the latest periods as the start of a change; this can only lower R


@dataclass(frozen=True)
class Alarm:
    """The evidence for a change so far."""

    log_evidence: float  # natural logarithm of R
    log_threshold: float  # natural logarithm of c
    raised: bool  # whether R is c or more
    start: int  # number of periods before the change most likely began
    # The signal with the strongest evidence; for signals tested together, the first of them.
    signal: int


def alarm(
    rows: Float64s,
    means: Float64s,
    reference_rows: Float64s,
    variances: Float64s,
    threshold: float,
    joint: Float64s | None = None,
) -> Alarm:
    """Return the alarm after the last period.

    Parameters
    ----------
    rows, means : ndarrays of shape (t, S) float64
        Number of rows of each period and signal, and their mean rank minus the reference's; a
        signal that a period lacks has 0 rows.
    reference_rows, variances : ndarrays of shape (S,) float64
        Number of reference rows of each signal, and the variance of their ranks, above 0.
    threshold : float
        c, above 1.
    joint : ndarray of shape (p, p) float64, optional
        A matrix that makes the last p signals, each divided by its standard deviation,
        uncorrelated. They are tested together, for a change in any direction, and all have the same
        rows.
    """
    periods = len(rows)
    counts = np.vstack([np.zeros(rows.shape[1]), rows.cumsum(axis=0)])
    sums = np.vstack([np.zeros(rows.shape[1]), (rows * means).cumsum(axis=0)])
    first = max(0, periods - _MOST_STARTS)
    starts = np.arange(first, periods)
    # Compare the periods from a start on with the periods before it and the reference (mean 0).
    before, after = reference_rows + counts[starts], counts[-1] - counts[starts]
    difference = (sums[-1] - sums[starts]) / np.maximum(after, 1) - sums[starts] / before
    noise = variances * (1 / np.maximum(after, 1) + 1 / before)
    standard, noise = difference / np.sqrt(variances), noise / variances
    single = standard.shape[1] - (0 if joint is None else len(joint))
    bets = _bets(standard[:, :single] ** 2, noise[:, :single], 1)
    if joint is not None:
        squares = ((standard[:, single:] @ joint.T) ** 2).sum(axis=1, keepdims=True)
        bets = np.hstack([bets, _bets(squares, noise[:, single : single + 1], len(joint))])
    # A signal without rows after a start gives no evidence: its E is 1.
    bets = np.where(after[:, : bets.shape[1]] > 0, bets, 0.0)
    by_start = log_mean(list(bets.T))
    best = int(by_start.argmax())
    evidence = float(by_start[best] + math.log(np.exp(by_start - by_start[best]).sum()))
    limit = math.log(threshold)
    return Alarm(evidence, limit, evidence >= limit, first + best, int(bets[best].argmax()))


def _bets(squares: Float64s, noise: Float64s, p: int) -> Float64s:
    """Return log E for p differences, given the squared length of the standardised differences.

    E is the mean over all sizes tau of (v / (v + tau^2))^(p/2) exp(|D|^2 / 2 * tau^2 / (v (v +
    tau^2))).
    """
    logs = [
        0.5 * p * np.log(noise / (noise + size**2))
        + squares / 2 * size**2 / (noise * (noise + size**2))
        for size in _SIZES
    ]
    return log_mean(logs)
