"""Fit a temperature and an offset to a few labels, and estimate the ECE from them.

The confidence in the predicted label f is c = sigmoid(logit(softmax(z / T)_f) + a). T is the
temperature, and a is an offset of the log odds. The fit is Bayesian, and has these parts:

1. **Prior of the accuracy.** The accuracy is assumed to equal the mean confidence m(T, a) over the
   rows that could be drawn. The prior is Student's t with 2 degrees of freedom, centred at the
   estimate without labels (`consensus.combined`). The width of the prior is 3 points if the
   estimators are at most 10 points apart, else 8 points. These widths are the errors of the
   estimate on the half named `choose` of the benchmark.
2. **Prior of the offset.** This prior is normal with mean 0.2 and standard deviation 0.4, for this
   reason. If two calibrations have the same mean confidence, the calibration whose confidence
   varies less is usually better after a shift.
3. **Likelihood.** Each labelled row multiplies the density by a factor, raised to the power of the
   row's weight. The factor is c if the classifier is right, else 1 - c. Weights have mean 1. A row
   that was drawn with a small probability stands for many rows, and has a large weight.
4. **Result.** The offset a is set to its posterior mean. T is the temperature at which the mean
   confidence is the posterior mean of the accuracy.

`label_ece` estimates the ECE of a calibration from the same labels. Bins of a few rows are useless:
with 50 labels and a well calibrated confidence, the binned ECE is about 15 %. So a curve is fitted
instead: rows with confidence c are right with probability sigmoid(a + b logit(c)). The prior says
that the calibration error is small (a has mean 0 and standard deviation 1, b has mean 1 and
standard deviation 0.5). The prior and the weighted labels give a distribution of (a, b). Each (a,
b) gives a mean distance over the rows, E|c - sigmoid(a + b logit(c))|. The mean of this distance is
the estimated ECE. The interval ends at the 95 % quantile of the distance, and begins at the
smallest distance among the most probable (a, b). If a calibration was fitted to a row, the
confidence of this row must come from a fit without it (cross-fitting).
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
_MAX_AGREEING = 0.1  # estimators agree if they are at most this far apart
OFFSET, OFFSET_SPREAD = 0.2, 0.4
_FREEDOM = 2
MAX_FRAME = 1000  # A mean confidence is computed from at most this many rows.
_PARTS = 200  # Rows are divided by confidence into this many parts; a row stands for each part.
_RANGE = 5e-3, 2e2  # Range of T, divided by the scale of the logits.
_POINTS = 33, 25  # Number of grid points of T, and of the offset.
_REACH = 4.0  # Range of the offset, in standard deviations of the prior.
_PASSES = 3
_FORGOTTEN = 12.0  # Grid points are left out if their log density is this far below the peak.
_LARGEST = 30.0  # Log odds are limited to this size.
_MIN_EXCESS = 0.01


def posterior(
    frame: Floats, logits: Floats, draw: Draw, prior: Estimate | None
) -> tuple[Scaling, float]:
    """Return the scaling that is fitted to labels and a prior, and the posterior accuracy.

    - `frame`, (m, K): the classifier's logits of a sample of the rows that could be drawn; a few
      thousand rows are enough.
    - `logits`, (n, K): the classifier's logits of the labelled rows.
    - `draw`: the labelled rows.
    - `prior`: the estimate without labels, with its check `estimators disagree`. Without a prior,
      every accuracy has the same probability.
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
    # With many labels the peak is narrow, so each pass makes a finer grid around the peak.
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
        # Without this factor, all log T would be equally probable, not all accuracies.
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
    accuracy, offset = float((chances * means).sum()), float(chances.sum(axis=0) @ offsets)
    of_offset = np.array([sigmoid(_profile(frame, log_t) + offset).mean() for log_t in log_ts])
    log_t = float(np.interp(accuracy, of_offset[::-1], log_ts[::-1]))
    return Scaling("original", math.exp(log_t), of_label=offset), accuracy


def _width(prior: Estimate) -> float:
    return CONTRADICTING if prior.guard(DISAGREE).value >= _MAX_AGREEING else AGREEING


def _odds(logits: Floats, log_t: float) -> Float64s:
    return np.clip(top_log_odds(logits, math.exp(log_t)), -_LARGEST, _LARGEST)


def _profile(frame: Floats, log_t: float) -> Float64s:
    """Divide the rows into equal parts by log odds, and return the middle of each part.

    The result equals that of ``np.quantile``, bit for bit, in a seventh of the time.
    """
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
_ECE_PARTS = 100  # rows are divided by confidence into this many parts


def label_ece(
    frame: Float64s, confidence: Float64s, draw: Draw, right: Float64s
) -> tuple[float, float, float]:
    """Estimate the ECE of a confidence. Return the ECE, as a fraction, and its interval's ends.

    - `frame`, (N,): the confidence of a sample of the rows that could be drawn.
    - `confidence`, (n,): the confidence of each labelled row, from a fit without its label.
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
    # A lower quantile of the distance would be above 0 even if the ECE is 0.
    # So the lower end is the smallest distance among the most probable (a, b).
    likeliest = np.argsort(-chances, axis=None)
    inside = likeliest[: int(np.searchsorted(np.cumsum(chances.ravel()[likeliest]), _LEVEL)) + 1]
    low = float(distances.ravel()[inside].min())
    return ece, min(low, ece), max(float(high), ece)


def folds(n: int, seed: int) -> tuple[int, Integers]:
    """Return the number of folds, and the fold of each of n rows. Folds have about equal sizes."""
    parts = min(FOLDS, n)
    return parts, np.random.default_rng(seed).permutation(np.arange(n) % parts)
