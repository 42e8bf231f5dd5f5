"""The target accuracy by a few labels, drawn by a known design, and an interval that covers.

The estimate is a difference estimator (Cassel, Särndal & Wretman 1976; prediction-powered
inference, Angelopoulos et al. 2023): the mean of a forecast over all N rows of the frame, plus what
the drawn rows say the forecast errs by, each row weighing as many as it stands for,

    A = mean_frame(p) + sum_drawn w_i (right_i - p_i) / N,   p = sigmoid(a + b logit(s)).

s is the confidence of `forecast`: the calibrated classifier's, with that of the aligned forecaster.
Offset and slope are fitted to the same labels, weighing as in the estimate, and shrunk to 0 and 1,
so that a forecast that says nothing costs nothing. The label-free estimate of the accuracy is no
further control variate: it is one number, which the offset takes up.

The interval is Wilson's (1927) at the sample size at which labels alone would be as sure,
n* = p(1-p) / V with p the mean of the fitted forecast and V the variance that the design has if it
is right. With one to three errors, or rows that are right, normal quantiles reach too little far:
there the end is that of the Poisson distribution (Brown, Cai & DasGupta 2001, section 4.1.1). With
none, all rows may be alike, and the interval goes to the end.

The constants, chosen on the half *choose* of ``examples/research/benchmark`` (78 shifts): standard
deviations 0.5 of the slope and 2 of the offset.
"""

from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import Booleans, Float64s, Integers
from covcal_cli.estimators.inputs import Estimate
from covcal_cli.maths.logistic import newton
from covcal_cli.maths.odds import logit, sigmoid, wilson

INTERVAL = "95 %, of the rows that were drawn from"
ASSUMPTION = "the labels are right: the rows were drawn with known probabilities"
_SLOPE_SPREAD, _OFFSET_SPREAD = 0.5, 2.0
NEAREST = 0.0025  # a forecast that is nearer to 0 or 1 counts as this near
_LEVEL = 0.95
# Of k events in n trials: n times the probability at which k or more happen in 1 of 20 cases.
_FEW = {1: 0.05129329438755058, 2: 0.35536151071217885, 3: 0.8176914413164763}


@dataclass(frozen=True)
class LabelledSample:
    """Rows of a frame of N, drawn in batches, and whether the classifier is right in them.

    `draws` in ``labels`` says how batches are drawn and what they allow to say.
    """

    population: int  # N
    right: Float64s  # (n,), 1 or 0
    inclusion: Float64s  # (n,), of being drawn by its batch from what earlier ones left
    batch: Integers  # (n,), 0 .. B - 1

    def __len__(self) -> int:
        return len(self.right)

    @property
    def weights(self) -> Float64s:
        """How many rows of the frame each row stands for, shape (n,): N in sum on average.

        Batches count by their sizes; a row of an earlier one also stands for itself in later ones.
        """
        shares = self._shares
        later = shares.sum() - np.cumsum(shares)
        return np.asarray(shares[self.batch] / self.inclusion + later[self.batch])

    @property
    def variances(self) -> Float64s:
        """What the variance of a row's number adds to that of the estimated sum, shape (n,)."""
        share = self._shares[self.batch]
        return np.asarray(share**2 * (1 - self.inclusion) / self.inclusion**2)

    def without(self, out: Booleans) -> "LabelledSample":
        """Return all rows but some, each as likely to be drawn as its batch is now large."""
        kept = ~out
        before = np.bincount(self.batch)
        share = np.bincount(self.batch[kept], minlength=len(before)) / np.maximum(before, 1)
        batch = self.batch[kept]
        return LabelledSample(
            self.population, self.right[kept], self.inclusion[kept] * share[batch], batch
        )

    @property
    def _shares(self) -> Float64s:
        return np.bincount(self.batch) / max(len(self.batch), 1)


def labelled(sample: LabelledSample, frame: Float64s, forecast: Float64s) -> Estimate:
    """Return the accuracy on a frame of rows, of which some are labelled.

    Parameters
    ----------
    sample : LabelledSample
        At least one row.
    frame : array of shape (m,)
        The probability that the classifier is right, in rows that stand for the frame, or all.
    forecast : array of shape (n,)
        The same in the rows of the sample.
    """
    scores, of_frame = logit(forecast, NEAREST), logit(frame, NEAREST)
    N, n, weights = sample.population, len(sample), sample.weights
    offset, slope = _recalibrated(scores, sample.right, weights / weights.mean())
    of_drawn = sigmoid(offset + slope * scores)
    mean = float(sigmoid(offset + slope * of_frame).mean())
    accuracy = float(np.clip(mean + weights @ (sample.right - of_drawn) / N, 0.0, 1.0))
    variance = float(sample.variances @ (of_drawn * (1 - of_drawn))) / N**2 * n / max(n - 1, 1)
    low, high = accuracy, accuracy
    if variance > 0:  # else every row is labelled
        low, high = _interval(accuracy, mean * (1 - mean) / variance, sample.right)
    return Estimate("labels", accuracy, low, high, ASSUMPTION, interval=INTERVAL)


def _interval(accuracy: float, size: float, right: Float64s) -> tuple[float, float]:
    """Return Wilson's interval of a share at a sample size, with his ends replaced at few events.

    `right` counts the events: rows that are right, and errors.
    """
    low, high = wilson(accuracy, size, _LEVEL)
    hits = int(right.sum())
    misses = len(right) - hits
    if hits in _FEW:
        low = min(low, _FEW[hits] / size)
    if misses in _FEW:
        high = max(high, 1 - _FEW[misses] / size)
    low = 0.0 if hits == 0 else float(np.clip(low, 0.0, accuracy))
    high = 1.0 if misses == 0 else float(np.clip(high, accuracy, 1.0))
    return low, high


def _recalibrated(scores: Float64s, right: Float64s, weights: Float64s) -> Float64s:
    """Return offset and slope of the log odds of being right on scores, by penalised likelihood."""
    inputs = np.stack([np.ones_like(scores), scores])
    centre, precision = np.array([0.0, 1.0]), np.array([_OFFSET_SPREAD**-2, _SLOPE_SPREAD**-2])

    def derivatives(at: Float64s) -> tuple[float, Float64s, Float64s]:
        odds, away = at @ inputs, at - centre
        chances = sigmoid(odds)
        value = weights @ (np.logaddexp(0, odds) - right * odds) + precision @ away**2 / 2
        slope = inputs @ (weights * (chances - right)) + precision * away
        curvature = (inputs * (weights * chances * (1 - chances))) @ inputs.T
        return float(value), slope, curvature + np.diag(precision)

    fit = newton(derivatives, centre)
    return centre if fit is None else fit  # without a fit the forecast stays as it is
