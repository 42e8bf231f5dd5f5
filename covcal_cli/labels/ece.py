"""The ECE of a calibration by a few labels, with an interval.

Bins of a handful of rows tell nothing: with 50 labels the binned ECE of a well calibrated
confidence is about 15 %. So the confidence c is assumed to be off by an offset and a slope of its
log odds: rows are right with probability sigmoid(a + b logit(c)). The labels, weighted as their
design has it, and a prior that this error is small (a of mean 0 and standard deviation 1, b of mean
1 and standard deviation 0.5) give a distribution of (a, b). From it follows a distribution of the
mean distance over the frame, E|c - sigmoid(a + b logit(c))|. Its mean is the ECE. The interval goes
from the least distance among the likeliest (a, b) to the 95 % quantile. An ECE that comes from
shorter waves of the reliability curve is missed.

For rows that a calibration was fitted to, c must come from a fit without them (cross-fitting).
"""

import numpy as np

from covcal_cli.arrays import Float64s, Integers
from covcal_cli.labels.draws import Draw
from covcal_cli.maths.odds import logit, sigmoid

FOLDS = 5
_OFFSET_SPREAD, _SLOPE_SPREAD = 1.0, 0.5
_POINTS = 61, 41
_REACH = 3.5  # standard deviations of the prior
_LEVEL = 0.95
_NEAREST = 1e-6
_PARTS = 100  # of the frame by confidence, the middle of each standing for it


def label_ece(
    frame: Float64s, confidence: Float64s, draw: Draw, right: Float64s
) -> tuple[float, float, float]:
    """Return the ECE of a confidence, a fraction, and the ends of its interval.

    Parameters
    ----------
    frame : array of shape (N,)
        Confidence of rows that stand for all rows drawn from.
    confidence : array of shape (n,)
        Confidence of the labelled rows, by fits that did not use their labels.
    draw : Draw
        The labelled rows.
    right : array of shape (n,)
        1 where the classifier is right, else 0.
    """
    weights = draw.weights / draw.weights.mean()
    offsets, slopes = (
        np.linspace(centre - _REACH * width, centre + _REACH * width, points)
        for centre, width, points in zip(
            (0.0, 1.0), (_OFFSET_SPREAD, _SLOPE_SPREAD), _POINTS, strict=True
        )
    )
    middles = np.quantile(frame, (np.arange(_PARTS) + 0.5) / _PARTS)
    of_frame, odds = logit(middles, _NEAREST), logit(confidence, _NEAREST)
    signs = np.where(right == 1, -1.0, 1.0)
    densities, distances = np.empty(_POINTS), np.empty(_POINTS)
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
    # A distance is never below 0, so a lower quantile would always rule out an ECE of 0. The lower
    # end is the least distance among the likeliest (a, b).
    likeliest = np.argsort(-chances, axis=None)
    inside = likeliest[: int(np.searchsorted(np.cumsum(chances.ravel()[likeliest]), _LEVEL)) + 1]
    low = float(distances.ravel()[inside].min())
    return ece, min(low, ece), max(float(high), ece)


def folds(n: int, seed: int) -> tuple[int, Integers]:
    """Return the number of folds for n rows, and the fold of each row; sizes are about equal."""
    parts = min(FOLDS, n)
    return parts, np.random.default_rng(seed).permutation(np.arange(n) % parts)
