"""Combine labels with the label-free accuracy estimate, fit a confidence, and estimate the ECE.

`combined` computes the posterior of the log odds of the accuracy:

- **Prior.** Student's t with 2 degrees of freedom around the estimate without labels
  (`consensus.combined`). The width is 3 points if the estimators agree, else 8 points. Both widths
  are errors of the estimate in the benchmark.
- **Likelihood.** Normal around the accuracy from the labels. The variance follows from the
  effective sample size (`metrics.accuracy_and_size`).

Both densities are symmetric, so the posterior mean is between both estimates. A prior on the
accuracy itself cannot be symmetric near 1. For an accuracy of 98 %, the mean of such a prior would
be 1.2 points too low.

The confidence in the predicted label f is c = sigmoid(logit(softmax(z / T)_f) + a). For each offset
a, T is chosen so that the mean confidence is the combined accuracy. The offset `a` is the mean of
this posterior distribution:

- **Prior of the offset.** Normal with mean 0.2 and standard deviation 0.4. A positive offset makes
  the confidence vary less, which is usually better after a shift.
- **Likelihood.** A labelled row contributes c if the classifier is right, else 1 - c. The weight of
  the row is the exponent of this factor. The weights sum to the effective number of rows.

`label_ece` estimates the ECE from the same labels, without bins. With 50 labels, the binned ECE of
even a calibrated confidence would be about 15 %. Instead, a curve is fitted to the labels. If x is
the log odds of the confidence, the accuracy is sigmoid(x + a + b (x - m) / s). The priors of `a`
and `b` are normal, with mean 0. The likelihood uses the weights of the rows, too.

| confidence | m, s | standard deviation of a, b |
|---|---|---|
| fitted to the labels | mean and standard deviation of x over all rows | 0.6, 0.7 |
| any other | 0, 1 | 1, 0.5 |

A fitted confidence has the right mean, but may vary too little. The slope b then has little effect,
unless x is standardised. The posterior of (a, b) gives a distribution of the ECE. The estimate is
the mean of this distribution, and the upper end of the interval is its 95 % quantile. The lower end
is the smallest ECE in the credible region of (a, b).
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
_MAX_AGREEING = 0.1  # maximum difference between estimators that agree
OFFSET, OFFSET_SPREAD = 0.2, 0.4
_FREEDOM = 2
MAX_FRAME = 1000  # Maximum number of rows for a mean confidence.
_PARTS = 200  # Number of quantiles that represent the confidences of all rows.
_RANGE = math.log(5e-3), math.log(2e2)  # Range of log T, for logits with a standard deviation of 1.
_TEMPERATURES, _FINE, _OFFSETS = 99, 9, 33  # Numbers of grid points.
_REACH = 4.0  # The grid of offsets ends this many standard deviations from the prior mean.
_LARGEST = 30.0  # Limit of log odds.
_ACCURACIES = 4001  # Number of grid points of the accuracy.
_FAR = 6.0  # The grid of accuracies ends this many widths from the prior and the likelihood.
_NEAREST_PRIOR = 0.01  # Minimum distance of an estimate without labels from 0 and 1.
_LEVEL = 0.95


def combined(accuracy: float, size: float, prior: Estimate | None) -> tuple[float, float, float]:
    """Combine the accuracy from labels with the estimate without labels.

    Return the combined accuracy, and both ends of its 95 % credible interval. `size` is the
    effective sample size of the labels, which is infinite if every row has a label.
    """
    if prior is None or not math.isfinite(size):
        return accuracy, accuracy, accuracy
    # An accuracy of 0 or 1 has infinite log odds, so move it away from 0 and 1.
    centre = float(np.clip(prior.accuracy, _NEAREST_PRIOR, 1 - _NEAREST_PRIOR))
    nearest = min(0.5 / (size + 1), centre, 1 - centre)
    share = float(np.clip(accuracy, nearest, 1 - nearest))
    middles = logit(np.array([share, centre]), 0.0)
    widths = np.array([(size * share * (1 - share)) ** -0.5, _width(prior) / centre / (1 - centre)])
    odds = np.linspace(
        (middles - _FAR * widths).min(), (middles + _FAR * widths).max(), _ACCURACIES
    )
    far = (odds - middles[:, None]) / widths[:, None]
    densities = -(far[0] ** 2) / 2 - (_FREEDOM + 1) / 2 * np.log1p(far[1] ** 2 / _FREEDOM)
    chances = np.exp(densities - densities.max())
    chances /= chances.sum()
    ends = np.interp([(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], np.cumsum(chances), odds)
    mean, low, high = sigmoid(np.array([chances @ odds, *ends])).tolist()
    return mean, low, high


def posterior(frame: Floats, logits: Floats, draw: Draw, accuracy: float) -> Scaling:
    """Return the scaling that fits the labels best and has a given mean confidence.

    - `frame`, (m, K): the classifier's logits of a sample of the rows that could be drawn.
    - `logits`, (n, K): the classifier's logits of the labelled rows.
    - `draw`: the labelled rows.
    - `accuracy`: the mean confidence on `frame` after calibration.
    """
    weights = draw.exponents
    signs = np.where(draw.right(logits) == 1, -1.0, 1.0)
    scale = spread(frame, masked(frame)) or 1.0
    log_ts = math.log(scale) + np.linspace(*_RANGE, _TEMPERATURES)
    profiles = np.array([_profile(frame, log_t) for log_t in log_ts])
    reach = _REACH * OFFSET_SPREAD
    offsets = np.linspace(OFFSET - reach, OFFSET + reach, _OFFSETS)
    densities = -(((offsets - OFFSET) / OFFSET_SPREAD) ** 2) / 2
    for place, offset in enumerate(offsets):
        odds = _odds(logits, _matched(log_ts, profiles, offset, accuracy)) + offset
        densities[place] -= weights @ np.logaddexp(0, signs * odds)
    chances = np.exp(densities - densities.max())
    offset = float(chances @ offsets / chances.sum())
    # The grid is coarse, so search again near the best T.
    step, log_t = log_ts[1] - log_ts[0], _matched(log_ts, profiles, offset, accuracy)
    near = np.linspace(log_t - step, log_t + step, _FINE)
    profiles = np.array([_profile(frame, log_t) for log_t in near])
    log_t = _matched(near, profiles, offset, accuracy)
    return Scaling("original", math.exp(log_t), of_label=offset)


def _matched(log_ts: Float64s, profiles: Float64s, offset: float, accuracy: float) -> float:
    means = sigmoid(profiles + offset).mean(axis=1)
    return float(np.interp(accuracy, means[::-1], log_ts[::-1]))


def representative_rows(scores: Floats, most: int) -> Integers:
    """Return the ascending numbers of at most `most` rows whose scores represent all `scores`."""
    n = len(scores)
    if n <= most:
        return np.arange(n)
    middles = (np.arange(most) + 0.5) / most * n
    return np.sort(np.argsort(scores, kind="stable")[middles.astype(np.intp)])


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
# Standard deviations of the priors of offset and slope.
_OF_FITTED, _OF_ANY = (0.6, 0.7), (1.0, 0.5)
_LEAST_SPREAD = 0.1  # Minimum standard deviation of log odds.
_ECE_POINTS = 61, 41
_ECE_REACH = 3.5
_NEAREST = 1e-6
_ECE_PARTS = 100  # Number of quantiles for the ECE.


def label_ece(
    frame: Float64s, confidence: Float64s, draw: Draw, right: Float64s, *, fitted: bool
) -> tuple[float, float, float]:
    """Estimate the ECE of a confidence, with its interval, as fractions.

    - `frame`, (N,): the confidence of a sample of the rows that could be drawn.
    - `confidence`, (n,): the confidence of each labelled row. A fitted confidence must be
      cross-fitted.
    - `draw`: the labelled rows.
    - `right`, (n,): 1 if the classifier predicts the row correctly, else 0.
    - `fitted`: whether the confidence was fitted to the labels of `draw`.
    """
    weights = draw.exponents
    # Grid points in units of the prior's standard deviation.
    offsets, slopes = (np.linspace(-_ECE_REACH, _ECE_REACH, points) for points in _ECE_POINTS)
    middles = np.quantile(frame, (np.arange(_ECE_PARTS) + 0.5) / _ECE_PARTS)
    of_frame, odds = logit(middles, _NEAREST), logit(confidence, _NEAREST)
    centre, scale = 0.0, 1.0
    if fitted:
        centre, scale = float(of_frame.mean()), max(float(of_frame.std()), _LEAST_SPREAD)
    of_offset, of_slope = _OF_FITTED if fitted else _OF_ANY
    tilts = slopes[:, None] * of_slope / scale
    signs = np.where(right == 1, -1.0, 1.0)
    densities, distances = np.empty(_ECE_POINTS), np.empty(_ECE_POINTS)
    for place, offset in enumerate(offsets * of_offset):
        rows = odds + offset + tilts * (odds - centre)
        densities[place] = -np.logaddexp(0, signs * rows) @ weights
        true = sigmoid(of_frame + offset + tilts * (of_frame - centre))
        distances[place] = np.abs(middles - true).mean(axis=1)
    densities -= (offsets[:, None] ** 2 + slopes**2) / 2
    chances = np.exp(densities - densities.max())
    chances /= chances.sum()
    ece = float((chances * distances).sum())
    order = np.argsort(distances, axis=None)
    high = np.interp(_LEVEL, np.cumsum(chances.ravel()[order]), distances.ravel()[order])
    # Do not use a lower quantile, which is above 0 even for a calibrated confidence.
    likeliest = np.argsort(-chances, axis=None)
    inside = likeliest[: int(np.searchsorted(np.cumsum(chances.ravel()[likeliest]), _LEVEL)) + 1]
    low = float(distances.ravel()[inside].min())
    return ece, min(low, ece), max(float(high), ece)


def folds(n: int, seed: int) -> tuple[int, Integers]:
    """Return the number of folds, and the fold number of each row, (n,)."""
    parts = min(FOLDS, n)
    return parts, np.random.default_rng(seed).permutation(np.arange(n) % parts)
