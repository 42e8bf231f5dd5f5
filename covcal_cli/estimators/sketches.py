"""Numbers of rows whose distribution is watched, and the sketches that a reference keeps of them.

Every signal is one number per row; its mean rank among the reference's rows, less one half, is what
the Mann-Whitney statistic measures, whose distribution is near normal from a few dozen rows on.
"""

from collections.abc import Sequence

import numpy as np

from covcal_cli.arrays import Float64s, Floats, Labels, Rows
from covcal_cli.forecast.forecaster import ScaledLogits
from covcal_cli.formats.features import Domain, thinned
from covcal_cli.formats.reference import Axes, Moments, Packed, Signal, Space, ranks
from covcal_cli.maths.masks import masked

CONFIDENCE, DENSITY_RATIO = "confidence", "density ratio"
_MOST_CLASSES = 10  # with a signal of their own
_QUANTILES = 257
_MOST_AXES, _MOST_NUMBERS = 16, 20_000  # numbers of all axes, with means and scales
_ROWS_PER_AXIS = 10
_RANK_RIDGE = 0.01  # of correlations of 1
_STEPS = 8  # of the subspace iteration
_LEAST_POINTS, _MOST_VALUES = 1000, 10_000_000  # rows and numbers of what domains are compared by
_MOST_ROWS = 5000  # that components are found on
_RIDGE = 1e-3  # of a covariance's mean variance, so that it can be inverted


def watched_classes(predicted: Float64s) -> list[int]:
    """Return the classes with a signal: the most frequent of `predicted`, (K,), ascending.

    Of two classes one is enough, as the other's margin is its opposite.
    """
    most = 1 if len(predicted) == 2 else _MOST_CLASSES
    return sorted(np.argsort(-predicted, kind="stable")[:most].tolist())


def margins(logits: Floats, classes: Sequence[int]) -> Float64s:
    """Return how far each class's logit is above the highest other one, shape (len(classes), n).

    A masked class lies as far below as numbers go.
    """
    predictions = logits.argmax(axis=1)
    rows = np.arange(len(logits))
    top = logits[rows, predictions].astype(np.float64)
    rest = logits.copy()
    rest[rows, predictions] = -np.inf
    second = rest.max(axis=1).astype(np.float64)
    lowest = -float(np.finfo(np.float32).max)
    found = np.empty((len(classes), len(logits)))
    for place, number in enumerate(classes):
        others = np.where(predictions == number, second, top)
        found[place] = logits[:, number] - np.maximum(others, lowest)
    return found


def calibrated_confidence(domain: Domain, rows: Rows, scaled: ScaledLogits) -> Float64s:
    """Return the calibrated probability of the classifier's own label, shape (n,)."""
    found = np.empty(len(rows))
    start = 0
    for block in domain.blocks(rows, "logits", *scaled.reads):
        labels, columns = domain.logits(block).argmax(axis=1), np.arange(len(block))
        stop = start + len(block)
        found[start:stop] = scaled.forecast(domain, block).probabilities[labels, columns]
        start = stop
    return found


def quantiles(values: Floats) -> Packed:
    """Return the quantiles of values (n,) that `ranks` reads: at (i + 1/2) / m; none of none."""
    m = min(len(values), _QUANTILES)
    limit = np.finfo(np.float32).max
    ordered = np.sort(np.clip(values, -limit, limit).astype(np.float32))
    # Those of Hazen: a row each where there are no more rows than quantiles.
    places = (np.arange(m) + 0.5) / m * len(ordered) - 0.5
    lower = np.floor(np.maximum(places, 0)).astype(np.int64)
    upper = np.minimum(lower + 1, len(ordered) - 1)
    share = (places - lower).clip(0, 1).astype(np.float32)
    return Packed.of(np.asarray(ordered[lower] * (1 - share) + ordered[upper] * share))


def signal(
    name: str, values: Floats, *, class_number: int | None = None, axis: int | None = None
) -> Signal:
    """Sketch the values (n,) of a signal."""
    kept = quantiles(values)
    found = ranks(kept.values, values)
    mean, variance = float(found.mean()), float(found.var())
    return Signal(name, len(values), kept, mean, variance, class_number, axis)


def axis_signals(places: Float64s) -> tuple[list[Signal], Packed | None]:
    """Sketch coordinates (n, p) axis by axis, and what makes their ranks uncorrelated.

    Few rows allow few axes, as their correlations must be known; those of equal values are none.
    """
    found = [
        one
        for number in range(min(places.shape[1], len(places) // _ROWS_PER_AXIS))
        if (one := signal(f"axis {number}", places[:, number], axis=number)).variance > 0
    ]
    if not found:
        return [], None
    ranked = np.stack([one.ranks(places[:, int(one.axis or 0)]) for one in found])
    correlations = np.atleast_2d(np.corrcoef(ranked)) + _RANK_RIDGE * np.eye(len(found))
    return found, Packed.of(np.linalg.inv(np.linalg.cholesky(correlations)))


# Coordinates: principal components, in which domains are compared by their moments.


def most_points(domain: Domain, of: Space) -> int:
    """Return how many rows domains are compared by, at most: of wide ones fewer."""
    width = domain.n_features if of == "features" else domain.n_classes
    return max(_LEAST_POINTS, _MOST_VALUES // (width or 1))


def points(domain: Domain, rows: Rows, of: Space) -> Floats:
    """Return what domains are compared by, shape (n, d): features, or logits less their row's mean.

    A masked class is at the lowest other logit of its row.
    """
    if of == "features":
        return domain.features(rows)
    logits = domain.logits(rows).astype(np.float64)
    out = masked(logits)
    lowest = np.where(out, np.inf, logits).min(axis=1, keepdims=True)
    logits = np.where(out, lowest, logits)
    return np.asarray(logits - logits.mean(axis=1, keepdims=True))


def fit_axes(found: Floats, seed: int) -> Axes:
    """Return the principal axes of points (n, d), standardised.

    The leading ones, by a subspace iteration from a seeded start.
    """
    mean, scale = found.mean(axis=0, dtype=np.float64), found.std(axis=0, dtype=np.float64)
    scale = np.where(scale > 1e-7 * np.abs(mean), scale, 1.0)
    width = found.shape[1]
    count = max(1, min(_MOST_AXES, width, _MOST_NUMBERS // width - 2))
    some = found[thinned(np.arange(len(found)), _MOST_ROWS, seed)]
    standard = ((some - mean) / scale).astype(np.float32)
    basis = np.random.default_rng(seed).normal(size=(width, count)).astype(np.float32)
    for _ in range(_STEPS):
        basis = np.linalg.qr(standard.T @ (standard @ basis))[0]
    return Axes(Packed.of(mean), Packed.of(scale), Packed.of(basis.T))


def moments(places: Float64s) -> Moments:
    """Return the moments of coordinates (n, p)."""
    centred = places - places.mean(axis=0)
    covariance = centred.T @ centred / max(1, len(places) - 1)
    return Moments(len(places), Packed.of(places.mean(axis=0)), Packed.of(covariance))


def direction(one: Moments, other: Moments) -> Float64s:
    """Return the coefficients of log (density of `one` / of `other`), shape (p,).

    Both are taken for normal with the covariance that they share (Fisher's discriminant).
    """
    difference = one.mean.values.astype(np.float64) - other.mean.values
    return np.asarray(np.linalg.solve(_shared(one, other), difference))


def squared_distance(one: Moments, other: Moments) -> float:
    """Return the squared Mahalanobis distance of two domains, less what sampling adds to it."""
    difference = one.mean.values.astype(np.float64) - other.mean.values
    found = float(difference @ direction(one, other))
    return max(0.0, found - len(difference) * (1 / one.rows + 1 / other.rows))


def _shared(one: Moments, other: Moments) -> Float64s:
    total = max(1, one.rows + other.rows - 2)
    parts = [(part.rows - 1) / total * part.covariance.values for part in (one, other)]
    both: Float64s = np.stack(parts).sum(axis=0, dtype=np.float64)
    ridge = _RIDGE * max(float(np.trace(both)) / len(both), float(np.finfo(np.float32).tiny))
    return np.asarray(both + ridge * np.eye(len(both)))


def shares(predictions: Labels, n_classes: int) -> Float64s:
    """Return how often each class is predicted, shape (K,)."""
    return np.asarray(np.bincount(predictions, minlength=n_classes) / max(1, len(predictions)))
