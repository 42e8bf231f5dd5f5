"""Estimate the accuracy by clustering: a row outside its predicted class's cluster is wrong.

A shift changes the logits of all rows in the same way. For example, the logits of dark images
favour the same few classes, whatever the images show. The logits of blurred images are smaller. So
the confidence of a row depends on this common change, and on the row itself. To remove the common
change, the logits of each domain are standardised: each class's logit gets mean 0 and standard
deviation 1. After that, the rows of a class still form a group near the source rows of that class.
If a row does not end in the cluster of its predicted class, the prediction counts as wrong.

A change of the class frequencies also changes the mean of a logit. Standardising removes this
change too, although it should not. So both estimators (with free and with fixed class shares) are
wrong if the class frequencies changed.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from covcal_cli.arrays import Booleans, Float32s, Float64s, Floats, Labels
from covcal_cli.estimators.guards import clusters_know_classes, shift_within_classes
from covcal_cli.estimators.inputs import Estimate, EstimatorInputs, from_variance, variance_of_mean
from covcal_cli.formats.features import thinned
from covcal_cli.maths.softmax import masked
from covcal_cli.records import Guard

CLUSTERING, FIXED_CLUSTERING = "clustering", "clustering with fixed class shares"
_BOTH = CLUSTERING, FIXED_CLUSTERING
MOST_ROWS = 5000  # the largest number of rows of a domain that are clustered
_STEPS = 10  # the largest number of steps of the clustering
# If a centre (a vector of length 1) moves less than this, the move is only 32-bit rounding. Let s
# be the sum of a cluster's points. If the powers of all points for this cluster change by less than
# `_ROUNDING` times the length of s, the change is only rounding too.
_ROUNDING = 1e-7
# Two centres coincide if their squared distance is smaller than this. Such centres share a cluster,
# because only rounding could decide which of them is nearer to a row.
_COINCIDING = 1e-6
_MOST_OFFSET = 80.0  # the exponential of this offset still fits in a float32
# The number of Sinkhorn steps in each clustering step. Sinkhorn steps move the shares of the
# clusters towards the fixed shares.
_NUDGES = 5
# A point belongs mostly to a cluster if its cosine to the centre of this cluster exceeds its
# cosines to the K - 1 other centres by `_WIDTH`. So the cosines are multiplied by log K / `_WIDTH`
# before the softmax.
_WIDTH = 0.115
LEAST_ROWS_OF_CLASS = 5  # with fewer source rows of a class, its mean logits are too uncertain
# the smallest spread of a logit within a class, as a share of the spread of all logits
_LEAST_SPREAD = 1e-3
_LARGEST_MOVE = 1e6  # replaces infinity, because JSON has no infinity
ASSUMPTION = (
    "with each domain's logits standardised, the rows of a class stay together, nearest to the "
    "source rows of that class"
)
_FIXED_ASSUMPTION = f"{ASSUMPTION}, and the class frequencies are nearly those of the source"


@dataclass(frozen=True)
class Centres:
    """The mean direction of the rows of each class."""

    classes: Labels  # (m,), the classes that have rows, ascending
    directions: Float32s  # (m, K), each of length 1

    @cached_property
    def first_equal(self) -> Labels:
        """For each centre, the index of the first centre that coincides with it, shape (m,)."""
        cosines = self.directions @ self.directions.T
        lengths = cosines.diagonal()
        first: Labels = (lengths[:, None] + lengths - 2 * cosines < _COINCIDING).argmax(axis=1)
        return first


def clusterings(inputs: EstimatorInputs) -> dict[str, Estimate]:
    """Estimate the target accuracy by clustering, with free and with fixed class shares.

    A row's mean is subtracted from its logits. Each class's logits are standardised by their mean
    and standard deviation over the domain, and each row is scaled to length 1. These directions are
    clustered separately in each domain by spherical soft k-means (Dhillon and Modha 2001, Banerjee
    et al. 2005). The clustering starts from the mean directions of the source's classes. At the
    end, a row counts as wrong if the nearest centre is not the centre of its predicted class.
    Clustering counts some rows as wrong that are right, on the source too. So the estimate is A_v
    minus the rise, from source to target, of the share of rows that count as wrong. At most 5000
    rows of a domain are read. With two classes, only two directions exist, so there is nothing to
    cluster.
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
    """Return the points to cluster, (n, K): a domain's logits, standardised, of length 1."""
    values = _centred(logits)
    values -= values.mean(axis=0)
    spreads = values.std(axis=0)
    values /= np.where(spreads > 0, spreads, 1.0)
    return _unit(values.astype(np.float32))


def class_centres(points: Float32s, labels: Labels) -> Centres:
    """Return the mean direction of every class that occurs among the points (n, K) of a domain."""
    classes, indices = np.unique(labels, return_inverse=True)
    sums = np.zeros((len(classes), points.shape[1]), dtype=np.float32)
    np.add.at(sums, indices, points)
    return Centres(classes, _unit(sums))


def strays(
    points: Float32s, predictions: Labels, centres: Centres, shares: Float64s
) -> tuple[Float64s, Float64s]:
    """Return 1 for each point that ends outside the cluster of its predicted class, else 0.

    The points of a domain have shape (n, K). Clustering starts from `centres`, the centres of the
    source's classes. There are two results, each of shape (n,). For the first, a cluster may have
    any share of the rows. For the second, the shares of the clusters are moved towards `shares`,
    shape (K,).
    """
    cosines: Float32s = points @ centres.directions.T
    shared = np.arange(len(shares))
    shared[centres.classes] = centres.classes[centres.first_equal]
    free, fixed = (
        np.asarray(shared[nearest] != shared[predictions], dtype=np.float64)
        for nearest in (
            _clustered(points, centres, cosines.copy(), None),
            _clustered(points, centres, cosines, shares),
        )
    )
    return free, fixed


@dataclass(frozen=True)
class Places:
    """For each predicted class, the mean and the spread of all logits of its rows."""

    classes: Labels  # (m,), the classes that are predicted for enough rows, ascending
    counts: Labels  # (m,), number of rows of each class
    means: Float64s  # (m, K)
    spreads: Float64s  # (m, K)
    rows: int  # number of all rows, including the rows of classes that are left out


def places(logits: Floats, at_least: int = 1) -> Places:
    """Return `Places` of the classes with `at_least` predicted rows or more, from logits (n, K)."""
    values, predictions = _centred(logits), logits.argmax(axis=1)
    counts = np.bincount(predictions, minlength=logits.shape[1])
    classes = np.flatnonzero(counts >= at_least)
    groups = [values[predictions == number] for number in classes]
    shape = (len(classes), logits.shape[1])
    means = np.array([group.mean(axis=0) for group in groups]).reshape(shape)
    spreads = np.array([group.std(axis=0) for group in groups]).reshape(shape)
    return Places(classes, counts[classes], means, spreads, len(values))


def move(source: Places, target: Places) -> float:
    """Return how far the rows of predicted classes have moved, in standard deviations.

    The result is the root mean square over the target's rows and logits, without the part that
    sampling explains. Classes with fewer than 5 source rows are left out. If most target rows are
    predicted as classes that are left out, the distance is not known, and `_LARGEST_MOVE` is
    returned.
    """
    has_rows = source.counts >= LEAST_ROWS_OF_CLASS
    at = np.flatnonzero(has_rows & np.isin(source.classes, target.classes))
    of_target = np.isin(target.classes, source.classes[at])
    counts = target.counts[of_target]
    if 2 * counts.sum() < target.rows:
        return _LARGEST_MOVE
    spreads = source.spreads[at]
    # if a logit is equal in all rows of a class, its spread is raised above 0
    spreads = np.maximum(spreads, _LEAST_SPREAD * math.sqrt(float((source.spreads**2).mean())))
    away = target.means[of_target] - source.means[at]
    squares = np.divide(away, spreads, out=np.zeros_like(away), where=spreads > 0) ** 2
    noise = 1 / source.counts[at] + 1 / counts
    square = float(counts @ (squares.mean(axis=1) - noise)) / max(1, int(counts.sum()))
    return min(math.sqrt(max(square, 0.0)), _LARGEST_MOVE)


def change_within_classes(inputs: EstimatorInputs) -> Guard:
    """Check whether rows of the same predicted class have moved between the domains."""
    source = inputs.once("places", lambda: places(inputs.source_logits, LEAST_ROWS_OF_CLASS))
    return shift_within_classes(move(source, places(inputs.target_logits)))


def _centred(logits: Floats) -> Float64s:
    """Return logits minus the mean of their row, (n, K). A logit of -inf becomes 0."""
    out, values = masked(logits), logits.astype(np.float64)
    if not out.any():
        values -= values.mean(axis=1, keepdims=True)
        return values
    values[out] = 0.0
    values -= (values.sum(axis=1) / (~out).sum(axis=1))[:, None]
    values[out] = 0.0
    return values


def _clustered(
    points: Float32s, centres: Centres, cosines: Float32s, shares: Float64s | None
) -> Labels:
    """Return the class of each point's nearest centre after clustering, shape (n,).

    `cosines`, shape (n, m), are the cosines between the points and the first centres. This array is
    overwritten. If there are about as many classes as rows, most clusters keep their rows after a
    few steps. So each step computes only the centres of clusters whose rows changed, and the
    cosines to the centres that moved.
    """
    directions = centres.directions.copy()
    # For each cluster: the length of the sum of its points, and the distance of the direction of
    # this sum from the centre.
    lengths, apart = np.zeros((2, len(directions)))
    # The powers of this step, and the powers from which each centre was computed.
    powers, averaged = np.empty_like(cosines), np.zeros_like(cosines)
    changes = np.empty_like(cosines)
    sharpness = np.float32(math.log(len(directions)) / _WIDTH)
    for _ in range(_STEPS):
        np.multiply(cosines, sharpness, out=powers)
        powers -= powers.max(axis=1, keepdims=True)
        np.exp(powers, out=powers)
        np.maximum(powers, np.finfo(np.float32).tiny, out=powers)
        if shares is not None:
            powers *= _factors(powers, shares[centres.classes])
        powers /= powers.sum(axis=1, keepdims=True)
        np.abs(np.subtract(powers, averaged, out=changes), out=changes)
        changed = changes.sum(axis=0) > (_ROUNDING - apart) * lengths
        columns = _places(changed)
        sums: Float32s = powers[:, columns].T @ points
        averaged[:, columns], lengths[columns] = powers[:, columns], np.linalg.norm(sums, axis=1)
        moved_to = _unit(sums)
        apart[columns] = np.linalg.norm(moved_to - directions[columns], axis=1)
        moved = changed & (apart > _ROUNDING)
        if not moved.any():  # later steps would change nothing
            break
        columns = _places(moved)
        directions[columns], apart[columns] = moved_to[moved[changed]], 0.0
        cosines[:, columns] = points @ directions[columns].T
    labels: Labels = centres.classes[cosines.argmax(axis=1)]
    return labels


def _places(chosen: Booleans) -> Labels | slice:
    """Return the indices of chosen columns, or a slice (which copies nothing) if all are chosen."""
    return slice(None) if chosen.all() else np.flatnonzero(chosen)


def _factors(powers: Float32s, shares: Float64s) -> Float32s:
    """Return a factor for each cluster, (m,), that moves its share of the rows towards `shares`.

    The factors begin at 1, and a few Sinkhorn steps on `powers`, (n, m), change them. After more
    steps, the shares of the clusters would be exactly `shares`. Then no class could be rarer than
    on the source.
    """
    offsets, factors = np.zeros(len(shares)), np.ones(len(shares), dtype=np.float32)
    for _ in range(_NUDGES):
        # n times the share of each cluster with the factors so far
        members = factors * (powers.T @ (1 / (powers @ factors)))
        offsets += np.log(len(powers) * shares / members)
        factors = np.exp(np.minimum(offsets, _MOST_OFFSET)).astype(np.float32)
    return factors


def _unit(vectors: Float32s) -> Float32s:
    """Scale vectors to length 1. Vectors of length 0 are not changed."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0), dtype=np.float32)
