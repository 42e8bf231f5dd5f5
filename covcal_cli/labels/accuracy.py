"""The target accuracy by a few labels of rows drawn by a known design, with its interval.

The estimate is a difference estimator (Cassel, Särndal & Wretman 1976; prediction-powered
inference, Angelopoulos et al. 2023). It starts from the mean of a forecast over all N rows of the
frame, and adds the mean error of the forecast in the drawn rows. A drawn row has weight w_i, the
number of rows that it stands for:

    A = mean_frame(p) + sum_drawn w_i (right_i - p_i) / N,   p = sigmoid(a + b logit(s)).

s is the score of `labels.score`: the confidence of the classifier at the temperature of its source
rows, averaged with that of the aligned forecaster where there is one. Offset and slope are fitted
to the same labels with the same weights, and shrunk to 0 and 1, so that a score that tells nothing
does no harm. The label-free estimate of the accuracy is not used: it is one number, which the
offset takes up.

The interval is Wilson's (1927) at the sample size at which labels alone would be as precise,
n* = p(1-p) / V. Here p is the mean of the fitted forecast, and V is the variance that the design
has if the forecast is right. With one to three errors, or one to three rows that are right, normal
quantiles reach too little far. That end is then taken from the Poisson distribution (Brown, Cai &
DasGupta 2001, section 4.1.1). Without any error all rows may be right, and the interval goes to 1.

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
NEAREST = 0.0025  # a forecast that is nearer to 0 or 1 counts as this near
_HALVINGS = 60  # of an interval below 3, down to rounding
_FEW = (1, 2, 3)  # numbers of events for which the Poisson distribution gives the end


def accuracy_by_labels(file: FeatureFile, draw: Draw, *, level: float, seed: int) -> Estimate:
    """Return the accuracy on the rows that a draw was made from, by its labels.

    Parameters
    ----------
    file : FeatureFile
        The open file that holds the rows.
    draw : Draw
        Labelled rows, at least one, with their frame.
    level : float
        Confidence level of the interval.
    seed : int
        Chooses the source rows that the score's temperature is fitted to, where there are many.
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
    """Return the accuracy on a frame of rows, by the labels of the rows drawn from it.

    Parameters
    ----------
    draw : Draw
        At least one row.
    right : array of shape (n,)
        1 where the classifier is right in a drawn row, else 0.
    of_frame : array of shape (m,)
        The score, a probability that the classifier is right, of rows that stand for the frame.
    of_drawn : array of shape (n,)
        The score of the drawn rows.
    level : float
        Confidence level of the interval.
    """
    scores, frame_scores = logit(of_drawn, NEAREST), logit(of_frame, NEAREST)
    N, n, weights = draw.population, len(draw), draw.weights
    offset, slope = _recalibrated(scores, right, weights / weights.mean())
    expected = sigmoid(offset + slope * scores)
    mean = float(sigmoid(offset + slope * frame_scores).mean())
    accuracy = float(np.clip(mean + weights @ (right - expected) / N, 0.0, 1.0))
    variance = float(draw.variances @ (expected * (1 - expected))) / N**2 * n / max(n - 1, 1)
    low, high = accuracy, accuracy
    if variance > 0:  # else every row is labelled
        low, high = _interval(accuracy, mean * (1 - mean) / variance, right, level)
    interval = f"{short_percent(level)}, for the rows that were drawn from"
    return Estimate("labels", accuracy, low, high, ASSUMPTION, interval=interval)


def _interval(accuracy: float, size: float, right: Float64s, level: float) -> tuple[float, float]:
    """Return Wilson's interval of a share at a sample size, its ends replaced at few events.

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
    """Return the mean at which `events` or more happen with probability 1 - level.

    The whole error probability is on this side: with so few events the other end is far away.
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
    return centre if fit is None else fit  # without a fit the score is the forecast
