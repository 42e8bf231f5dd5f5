"""Estimate the target accuracy, with an interval, from a few labelled rows of a known design.

The estimate is a difference estimator (Cassel, Särndal & Wretman 1976; prediction-powered
inference, Angelopoulos et al. 2023). It starts from the mean of a forecast over all N rows of the
frame, and adds the mean error of the forecast in the drawn rows. A drawn row has weight w_i, the
number of rows that it stands for:

    A = mean_frame(p) + sum_drawn w_i (right_i - p_i) / N,   p = sigmoid(a + b logit(s)).

s is the score of `labels.score`: the confidence of the classifier at the temperature of its source
rows, averaged with that of the aligned forecaster where there is one. Offset a and slope b are
fitted to the same labels with the same weights, and shrunk towards 0 and 1, so that a useless score
does no harm. The label-free estimate of the accuracy is not used, because it is a single number,
which the offset would replace.

The interval is Wilson's (1927) for the effective sample size n* = p(1-p) / V, at which labels
without a forecast would be as precise. Here p is the mean of the fitted forecast, and V is the
variance of the design if the forecast is right. With one to three errors, or one to three right
rows, normal quantiles are too narrow. That end is then taken from the Poisson distribution (Brown,
Cai & DasGupta 2001, section 4.1.1). Without any error, the interval ends at 1.

The constants were chosen on the half *choose* of ``examples/research/benchmark`` (78 shifts):
standard deviations 0.5 of the slope and 2 of the offset.
"""

import math

import numpy as np

from covcal_cli.arrays import Float64s
from covcal_cli.estimators.inputs import Estimate
from covcal_cli.formats.features import FeatureFile
from covcal_cli.labels.draws import Draw
from covcal_cli.labels.score import score
from covcal_cli.maths.logistic import newton
from covcal_cli.maths.odds import logit, short_percent, sigmoid, wilson
from covcal_cli.progress import silent

LEVEL = 0.95
ASSUMPTION = "the labels are right: the rows were drawn with known probabilities"
_SLOPE_SPREAD, _OFFSET_SPREAD = 0.5, 2.0
NEAREST = 0.0025  # forecasts are clipped to this distance from 0 and 1
_HALVINGS = 60  # bisection steps that shrink an interval of length 3 to rounding error
_FEW = (1, 2, 3)  # numbers of events for which the Poisson distribution gives the end


def accuracy_by_labels(file: FeatureFile, draw: Draw, *, level: float, seed: int) -> Estimate:
    """Estimate the accuracy on the rows that a draw was made from, from its labels.

    Parameters
    ----------
    file : FeatureFile
        The open file that holds the rows.
    draw : Draw
        Labelled rows, at least one, with their frame.
    level : float
        Confidence level of the interval.
    seed : int
        Chooses the source rows that the score's temperature is fitted to, if there are many.
    """
    of_frame, of_drawn = (
        score(file, rows, None, seed=seed, progress=silent).right
        for rows in (draw.frame, draw.rows)
    )
    right = draw.right(file.require_target().logits(draw.rows))
    return difference_estimate(draw, right, of_frame, of_drawn, level=level)


def difference_estimate(
    draw: Draw, right: Float64s, of_frame: Float64s, of_drawn: Float64s, *, level: float = LEVEL
) -> Estimate:
    """Estimate the accuracy on a frame of rows, from the labels of the rows drawn from it.

    Parameters
    ----------
    draw : Draw
        At least one row.
    right : array of shape (n,)
        1 where the classifier is right in a drawn row, else 0.
    of_frame : array of shape (m,)
        The score (the probability that the classifier is right) of rows that represent the frame.
    of_drawn : array of shape (n,)
        Score of the drawn rows.
    level : float
        Confidence level of the interval.
    """
    accuracy, size = accuracy_and_size(
        draw.weights, draw.variances, draw.population, right, of_frame, of_drawn
    )
    low, high = accuracy, accuracy
    if math.isfinite(size):
        low, high = _interval(accuracy, size, right, level)
    interval = f"{short_percent(level)} by labels, for all rows that pick could draw"
    return Estimate("labels", accuracy, low, high, ASSUMPTION, interval=interval)


def accuracy_and_size(
    weights: Float64s,
    variances: Float64s,
    population: int,
    right: Float64s,
    of_frame: Float64s,
    of_drawn: Float64s,
) -> tuple[float, float]:
    """Return A and n*, which is infinite if every row is labelled.

    Parameters
    ----------
    weights, variances : arrays of shape (n,)
        Of the drawn rows, as `Draw` has them.
    population : int
        N, the number of rows of the frame.
    right, of_frame, of_drawn : arrays
        As in `difference_estimate`.
    """
    scores, frame_scores = logit(of_drawn, NEAREST), logit(of_frame, NEAREST)
    n = len(weights)
    offset, slope = _recalibrated(scores, right, weights / weights.mean())
    expected = sigmoid(offset + slope * scores)
    mean = float(sigmoid(offset + slope * frame_scores).mean())
    accuracy = float(np.clip(mean + weights @ (right - expected) / population, 0.0, 1.0))
    variance = float(variances @ (expected * (1 - expected))) / population**2 * n / max(n - 1, 1)
    return accuracy, mean * (1 - mean) / variance if variance > 0 else math.inf


def _interval(accuracy: float, size: float, right: Float64s, level: float) -> tuple[float, float]:
    """Return Wilson's interval of a share, with Poisson ends if there are few events.

    `right` counts the events: rows that are right, and errors.
    """
    low, high = wilson(accuracy, size, level)
    hits = int(right.sum())
    misses = len(right) - hits
    if hits in _FEW:
        low = min(low, _poisson_end(hits, level) / size)
    if misses in _FEW:
        high = max(high, 1 - _poisson_end(misses, level) / size)
    low = 0.0 if hits == 0 else float(np.clip(low, 0.0, accuracy))
    high = 1.0 if misses == 0 else float(np.clip(high, accuracy, 1.0))
    return low, high


def _poisson_end(events: int, level: float) -> float:
    """Return the Poisson mean at which `events` or more happen with probability 1 - level.

    The whole error probability is at this end, because the other end is far away.
    """
    low, high = 0.0, float(events)
    for _ in range(_HALVINGS):
        mean = (low + high) / 2
        fewer = sum(mean**k / math.factorial(k) for k in range(events)) * math.exp(-mean)
        low, high = (mean, high) if fewer > level else (low, mean)
    return high


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
    return centre if fit is None else fit  # if the fit fails, the forecast is the score
