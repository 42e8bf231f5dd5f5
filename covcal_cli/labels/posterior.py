"""Fit a temperature and an offset to a few labels, and estimate the ECE from them.

The confidence in the predicted label f is c = sigmoid(logit(softmax(z / T)_f) + a). The temperature
T and the offset a of the log odds are fitted by Bayes' rule:

- **Prior of the mean confidence.** Student's t with 2 degrees of freedom, centred at the estimated
  accuracy without labels (`consensus.combined`). The width is 3 points if the estimators agree,
  else 8 points (the errors of the estimate in the benchmark).
- **Prior of the offset.** Normal with mean 0.2 and standard deviation 0.4. A positive offset makes
  the confidence vary less, which is usually better after a shift.
- **Likelihood.** The confidence c if the classifier is right on a labelled row, else 1 - c. The
  row's weight is the exponent. Weights have mean 1.
- **Result.** The posterior mean of a, and the T whose mean confidence equals the posterior mean of
  the accuracy. Wrong extreme logits may put this mean outside both the estimate without labels and
  the interval of the labels; then it is limited to their range.

`label_ece` estimates the ECE from the same labels. Bins would have too few rows: with 50 labels,
the binned ECE of a calibrated confidence is about 15 %. So the accuracy of rows with confidence c
is fitted as sigmoid(a + b logit(c)). The priors are normal, with mean 0 and standard deviation 1
for a, and with mean 1 and standard deviation 0.5 for b. The posterior of (a, b) gives a
distribution of the ECE. The estimate is the mean of this distribution, and the upper end of the
interval is its 95 % quantile. The lower end is the smallest ECE among the most probable (a, b).
"""

import math

import numpy as np

from covcal_cli.arrays import Float64s, Floats, Integers
from covcal_cli.estimators.consensus import DISAGREE
from covcal_cli.estimators.inputs import Estimate
from covcal_cli.labels.draws import Draw
from covcal_cli.maths.odds import logit, sigmoid, top_log_odds
from covcal_cli.maths.softmax import Scaling, masked, spread

AGREEING, CONTRADICTING = 0.03, 0.08
_MAX_AGREEING = 0.1  # largest distance of estimators that agree
OFFSET, OFFSET_SPREAD = 0.2, 0.4
_FREEDOM = 2
MAX_FRAME = 1000  # Maximum number of rows for a mean confidence.
_PARTS = 200  # Number of quantiles of the confidence that represent all rows.
_RANGE = 5e-3, 2e2  # Range of T, divided by the scale of the logits.
_POINTS = 33, 25  # Number of grid points of T, and of the offset.
_REACH = 4.0  # Range of the offset, in standard deviations of the prior.
_PASSES = 3
_FORGOTTEN = 12.0  # Grid points with a much smaller log density are dropped.
_LARGEST = 30.0  # Limit of log odds.
_MIN_EXCESS = 0.01


def posterior(
    frame: Floats,
    logits: Floats,
    draw: Draw,
    prior: Estimate | None,
    limits: tuple[float, float] = (0.0, 1.0),
) -> tuple[Scaling, float]:
    """Return the scaling that fits labels and prior, and the posterior mean of the accuracy.

    - `frame`, (m, K): the classifier's logits of a sample of the rows that could be drawn.
    - `logits`, (n, K): the classifier's logits of the labelled rows.
    - `draw`: the labelled rows.
    - `prior`: the estimate without labels. Without an estimate, the prior of the accuracy is
      uniform.
    - `limits`: the smallest and the largest possible result for the accuracy.
    """
    n_classes, weights = frame.shape[1], draw.weights
    weights = weights * (len(weights) / max(float(weights.sum()), 1.0))
    signs = np.where(draw.right(logits) == 1, -1.0, 1.0)[:, None]
    scale = spread(frame, masked(frame)) or 1.0
    reach = _REACH * OFFSET_SPREAD
    ends = [
        (math.log(scale * _RANGE[0]), math.log(scale * _RANGE[1])),
        (OFFSET - reach, OFFSET + reach),
    ]
    lowest, highest = min(1 / n_classes + _MIN_EXCESS, 1.0), 1 - 0.5 / (len(frame) + 1)
    # Each pass refines the grid around the peak of the density.
    for _ in range(_PASSES):
        log_ts, offsets = (
            np.linspace(*pair, points) for pair, points in zip(ends, _POINTS, strict=True)
        )
        means, densities = np.empty(_POINTS), np.empty(_POINTS)
        for place, log_t in enumerate(log_ts):
            means[place] = sigmoid(_profile(frame, log_t)[:, None] + offsets).mean(axis=0)
            odds = _odds(logits, log_t)[:, None] + offsets
            densities[place] = -weights @ np.logaddexp(0, signs * odds)
        densities -= ((offsets - OFFSET) / OFFSET_SPREAD) ** 2 / 2
        if prior is not None:
            centre = float(np.clip(prior.accuracy, lowest, highest))
            far = (means - centre) / _width(prior)
            densities -= (_FREEDOM + 1) / 2 * np.log1p(far**2 / _FREEDOM)
        # The grid is uniform in log T, but the prior is a density of the accuracy (Jacobian).
        steps = np.abs(np.gradient(means, axis=0))
        densities += np.log(np.maximum(steps, np.finfo(np.float64).tiny))
        seen = np.argwhere(densities > densities.max() - _FORGOTTEN)
        ends = [
            (float(axis[max(low - 1, 0)]), float(axis[min(high + 1, len(axis) - 1)]))
            for axis, low, high in zip(
                (log_ts, offsets), seen.min(axis=0), seen.max(axis=0), strict=True
            )
        ]
    chances = np.exp(densities - densities.max())
    chances /= chances.sum()
    offset = float(chances.sum(axis=0) @ offsets)
    accuracy = float(np.clip((chances * means).sum(), *limits))
    of_offset = np.array([sigmoid(_profile(frame, log_t) + offset).mean() for log_t in log_ts])
    log_t = float(np.interp(accuracy, of_offset[::-1], log_ts[::-1]))
    return Scaling("original", math.exp(log_t), of_label=offset), accuracy


def _width(prior: Estimate) -> float:
    return CONTRADICTING if prior.guard(DISAGREE).value >= _MAX_AGREEING else AGREEING


def _odds(logits: Floats, log_t: float) -> Float64s:
    return np.clip(top_log_odds(logits, math.exp(log_t)), -_LARGEST, _LARGEST)


def _profile(frame: Floats, log_t: float) -> Float64s:
    """Return quantiles of the log odds, faster than ``np.quantile``."""
    ordered = np.sort(_odds(frame, log_t))
    place = (np.arange(_PARTS) + 0.5) / _PARTS * (len(ordered) - 1)
    before = place.astype(np.intp)
    share = place - before
    low, high = ordered[before], ordered[np.minimum(before + 1, len(ordered) - 1)]
    step = high - low
    return np.where(share < 0.5, low + step * share, high - step * (1 - share))


FOLDS = 5
_OFFSET_SPREAD, _SLOPE_SPREAD = 1.0, 0.5
_ECE_POINTS = 61, 41
_ECE_REACH = 3.5  # range of the grid, in standard deviations of the prior
_LEVEL = 0.95
_NEAREST = 1e-6
_ECE_PARTS = 100  # number of quantiles of the confidence that represent all rows


def label_ece(
    frame: Float64s, confidence: Float64s, draw: Draw, right: Float64s
) -> tuple[float, float, float]:
    """Estimate the ECE of a confidence, with its interval, as fractions.

    - `frame`, (N,): the confidence of a sample of the rows that could be drawn.
    - `confidence`, (n,): the cross-fitted confidence of each labelled row.
    - `draw`: the labelled rows.
    - `right`, (n,): 1 if the classifier is right, else 0.
    """
    weights = draw.weights / draw.weights.mean()
    offsets, slopes = (
        np.linspace(centre - _ECE_REACH * width, centre + _ECE_REACH * width, points)
        for centre, width, points in zip(
            (0.0, 1.0), (_OFFSET_SPREAD, _SLOPE_SPREAD), _ECE_POINTS, strict=True
        )
    )
    middles = np.quantile(frame, (np.arange(_ECE_PARTS) + 0.5) / _ECE_PARTS)
    of_frame, odds = logit(middles, _NEAREST), logit(confidence, _NEAREST)
    signs = np.where(right == 1, -1.0, 1.0)
    densities, distances = np.empty(_ECE_POINTS), np.empty(_ECE_POINTS)
    for place, offset in enumerate(offsets):
        rows = offset + slopes[:, None] * odds
        densities[place] = -np.logaddexp(0, signs * rows) @ weights
        true = sigmoid(offset + slopes[:, None] * of_frame)
        distances[place] = np.abs(middles - true).mean(axis=1)
    densities -= (offsets[:, None] / _OFFSET_SPREAD) ** 2 / 2
    densities -= ((slopes - 1) / _SLOPE_SPREAD) ** 2 / 2
    chances = np.exp(densities - densities.max())
    chances /= chances.sum()
    ece = float((chances * distances).sum())
    order = np.argsort(distances, axis=None)
    high = np.interp(_LEVEL, np.cumsum(chances.ravel()[order]), distances.ravel()[order])
    # A lower quantile of the ECE would be above 0 even for a calibrated confidence.
    likeliest = np.argsort(-chances, axis=None)
    inside = likeliest[: int(np.searchsorted(np.cumsum(chances.ravel()[likeliest]), _LEVEL)) + 1]
    low = float(distances.ravel()[inside].min())
    return ece, min(low, ece), max(float(high), ece)


def folds(n: int, seed: int) -> tuple[int, Integers]:
    """Return the number of folds, and the fold number of each row, (n,)."""
    parts = min(FOLDS, n)
    return parts, np.random.default_rng(seed).permutation(np.arange(n) % parts)
