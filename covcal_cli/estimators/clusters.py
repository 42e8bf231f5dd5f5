"""Estimate the target accuracy by clustering the logits of each domain.

A shift often changes the logits of all rows in a similar way: dark images favour a few classes, and
blurred images have smaller logits. Standardising the logits of each domain removes a change that
all rows share. With standardised logits, target rows of a class are near source rows of the same
class. A row outside the cluster of its predicted class counts as wrong.

Standardising also hides a change of the class frequencies, so clustering assumes equal frequencies
on source and target.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from covcal_cli.arrays import Float32s, Float64s, Floats, Labels, one_blas_thread
from covcal_cli.estimators.guards import clusters_know_classes, shift_within_classes
from covcal_cli.estimators.inputs import Estimate, EstimatorInputs, from_variance, variance_of_mean
from covcal_cli.formats.features import thinned
from covcal_cli.maths.softmax import masked
from covcal_cli.records import Guard

CLUSTERING, FIXED_CLUSTERING = "clustering", "clustering with fixed class shares"
_BOTH = CLUSTERING, FIXED_CLUSTERING
MOST_ROWS = 5000
_STEPS = 10
_ROUNDING = 1e-7
_COINCIDING = 1e-6
_MOST_OFFSET = 80.0  # exp(80) fits in a float32.
_NUDGES = 5
# The membership of a row in each cluster is softmax(cosine * log K / _WIDTH).
_WIDTH = 0.115
LEAST_ROWS_OF_CLASS = 5  # minimum number of source rows of a class
_LEAST_SPREAD = 1e-3
_LARGEST_MOVE = 1e6  # A finite number, because JSON has no infinity.
_SMALL = 1e-4  # Smaller singular values are rounding errors.
_MANY_CLASSES = 100
ASSUMPTION = "with standardised logits, target rows are nearest to source rows of the same class"
_FIXED_ASSUMPTION = f"{ASSUMPTION}, and the class frequencies hardly differ from the source"


@dataclass(frozen=True)
class Centres:
    """The mean direction of each class, as initial cluster centres."""

    classes: Labels
    directions: Float32s  # Shape (m, K). Each row has length 1.

    @cached_property
    def first_equal(self) -> Labels:
        """For each centre, the index of the first centre with the same direction, shape (m,)."""
        cosines = self.directions @ self.directions.T
        lengths = cosines.diagonal()
        first: Labels = (lengths[:, None] + lengths - 2 * cosines < _COINCIDING).argmax(axis=1)
        return first


def clusterings(inputs: EstimatorInputs) -> dict[str, Estimate]:
    """Estimate the target accuracy by clustering, with free and with fixed class shares.

    Standardised logits are clustered in each domain by spherical soft k-means (Dhillon and Modha
    2001, Banerjee et al. 2005). The initial centres are the mean directions of the source classes.
    If the share of rows outside the cluster of their predicted class rises, the estimated accuracy
    falls by the same amount. At most 5000 rows of a domain are used.
    """
    chosen = thinned(np.arange(inputs.n_source), MOST_ROWS, 0)
    rows = thinned(np.arange(inputs.n_target), MOST_ROWS, 0)
    logits, right = inputs.source_logits[chosen], inputs.source_correct
    labels, shares = inputs.source_labels[chosen], inputs.source_prior

    def clusters_of_source() -> tuple[Centres, tuple[Float64s, Float64s]]:
        points = directions(logits)
        centres = class_centres(points, labels)
        return centres, strays(points, logits.argmax(axis=1), centres, shares)

    centres, on_source = inputs.once("clusters", clusters_of_source)
    points = directions(inputs.target_logits[rows])
    on_target = strays(points, inputs.target_predictions[rows], centres, shares)
    estimates = {}
    for name, source, target in zip(_BOTH, on_source, on_target, strict=True):
        accuracy = float(right.mean() + source.mean() - target.mean())
        variance = variance_of_mean(right[chosen] + source) + variance_of_mean(target)
        is_free = name == CLUSTERING
        guards = (clusters_know_classes(float(source.mean())),) if is_free else ()
        assumption = ASSUMPTION if is_free else _FIXED_ASSUMPTION
        estimates[name] = from_variance(name, accuracy, variance, assumption, guards)
    return estimates


def directions(logits: Floats) -> Float32s:
    """Standardise logits, (n, K), and scale each row to length 1."""
    values = _centred(logits)
    values -= values.mean(axis=0)
    spreads = values.std(axis=0)
    values /= np.where(spreads > 0, spreads, 1.0)
    return _unit(values.astype(np.float32))


def class_centres(points: Float32s, labels: Labels) -> Centres:
    """Return the mean direction of each class of `points`, (n, K)."""
    classes, indices = np.unique(labels, return_inverse=True)
    sums = np.zeros((len(classes), points.shape[1]), dtype=np.float32)
    np.add.at(sums, indices, points)
    return Centres(classes, _unit(sums))


@one_blas_thread()
def strays(
    points: Float32s, predictions: Labels, centres: Centres, shares: Float64s
) -> tuple[Float64s, Float64s]:
    """Return 1 for rows outside the cluster of their predicted class, and 0 for other rows.

    The first array, (n,), is for clusters of any size. The second array, (n,), is for cluster sizes
    near the class frequencies `shares`, (K,). `points`, (n, K), are clustered from the initial
    `centres`.
    """
    points, starts = _in_basis(points, centres.directions)
    shared = np.arange(len(shares))
    shared[centres.classes] = centres.classes[centres.first_equal]
    free, fixed = (
        np.asarray(shared[centres.classes[nearest]] != shared[predictions], dtype=np.float64)
        for nearest in (
            _nearest(points, starts, None),
            _nearest(points, starts, shares[centres.classes]),
        )
    )
    return free, fixed


@dataclass(frozen=True)
class Places:
    """Means and standard deviations of the logits, by predicted class."""

    classes: Labels
    counts: Labels
    means: Float64s  # (m, K).
    spreads: Float64s  # (m, K).
    rows: int


def places(logits: Floats, at_least: int = 1) -> Places:
    """Return means and standard deviations of `logits`, (n, K), by predicted class.

    Classes with fewer than `at_least` predictions are left out.
    """
    values, predictions = _centred(logits), logits.argmax(axis=1)
    counts = np.bincount(predictions, minlength=logits.shape[1])
    classes = np.flatnonzero(counts >= at_least)
    groups = [values[predictions == number] for number in classes]
    shape = (len(classes), logits.shape[1])
    means = np.array([group.mean(axis=0) for group in groups]).reshape(shape)
    spreads = np.array([group.std(axis=0) for group in groups]).reshape(shape)
    return Places(classes, counts[classes], means, spreads, len(values))


def move(source: Places, target: Places) -> float:
    """Return how far the logits of each predicted class have moved, in standard deviations.

    The distance is a root mean square over classes and logits. Sampling noise is subtracted.
    Classes with fewer than 5 source rows are left out.
    """
    has_rows = source.counts >= LEAST_ROWS_OF_CLASS
    at = np.flatnonzero(has_rows & np.isin(source.classes, target.classes))
    of_target = np.isin(target.classes, source.classes[at])
    counts = target.counts[of_target]
    if 2 * counts.sum() < target.rows:
        return _LARGEST_MOVE
    spreads = source.spreads[at]
    spreads = np.maximum(spreads, _LEAST_SPREAD * math.sqrt(float((source.spreads**2).mean())))
    away = target.means[of_target] - source.means[at]
    squares = np.divide(away, spreads, out=np.zeros_like(away), where=spreads > 0) ** 2
    noise = 1 / source.counts[at] + 1 / counts
    square = float(counts @ (squares.mean(axis=1) - noise)) / max(1, int(counts.sum()))
    return min(math.sqrt(max(square, 0.0)), _LARGEST_MOVE)


def change_within_classes(inputs: EstimatorInputs) -> Guard:
    """Check whether the logits of the predicted classes have moved between the domains."""
    source = inputs.once("places", lambda: places(inputs.source_logits, LEAST_ROWS_OF_CLASS))
    return shift_within_classes(move(source, places(inputs.target_logits)))


def _centred(logits: Floats) -> Float64s:
    """Subtract each row's mean from logits, (n, K). A logit of -inf becomes 0."""
    out, values = masked(logits), logits.astype(np.float64)
    if not out.any():
        values -= values.mean(axis=1, keepdims=True)
        return values
    values[out] = 0.0
    values -= (values.sum(axis=1) / (~out).sum(axis=1))[:, None]
    values[out] = 0.0
    return values


def _in_basis(points: Float32s, directions: Float32s) -> tuple[Float32s, Float32s]:
    """Project points and directions to fewer dimensions if all cosines stay the same.

    The logits of a classifier with d features have at most d dimensions. An orthonormal basis is
    found by random projections (Halko et al. 2011).
    """
    n, width = points.shape
    if width > _MANY_CLASSES:
        probes = np.random.default_rng(0).standard_normal((n, min(n, 2 * width // 3)), np.float32)
        basis, triangle = np.linalg.qr(points.T @ probes)
        sizes = np.abs(triangle.diagonal())
        basis = basis[:, sizes > _SMALL * sizes.max()]
        inside = points @ basis
        # The squared residual is a bound for the error of a cosine.
        if np.square(points - inside @ basis.T).sum(axis=1).max() < _ROUNDING:
            return inside, directions @ basis
    return points, directions


def _nearest(points: Float32s, directions: Float32s, shares: Float64s | None) -> Labels:
    """Cluster the points, and return the index of each point's nearest centre, (n,)."""
    cosines = points @ directions.T
    powers = np.empty_like(cosines)
    sharpness = np.float32(math.log(len(directions)) / _WIDTH)
    for _ in range(_STEPS):
        np.multiply(cosines, sharpness, out=powers)
        powers -= powers.max(axis=1, keepdims=True)
        np.exp(powers, out=powers)
        np.maximum(powers, np.finfo(np.float32).tiny, out=powers)
        if shares is not None:
            powers *= _factors(powers, shares)
        powers /= powers.sum(axis=1, keepdims=True)
        before, directions = directions, _unit(powers.T @ points)
        if np.linalg.norm(directions - before, axis=1).max() <= _ROUNDING:
            break
        np.matmul(points, directions.T, out=cosines)
    nearest: Labels = cosines.argmax(axis=1)
    return nearest


# BLAS sometimes warns although all numbers are finite.
@np.errstate(invalid="ignore")
def _factors(powers: Float32s, shares: Float64s) -> Float32s:
    """Return factors for the clusters, (m,), that bring the cluster sizes near `shares`."""
    offsets, factors = np.zeros(len(shares)), np.ones(len(shares), dtype=np.float32)
    for _ in range(_NUDGES):
        members = factors * (powers.T @ (1 / (powers @ factors)))
        offsets += np.log(len(powers) * shares / members)
        factors = np.exp(np.minimum(offsets, _MOST_OFFSET)).astype(np.float32)
    return factors


def _unit(vectors: Float32s) -> Float32s:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0), dtype=np.float32)
