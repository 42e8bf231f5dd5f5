"""Clustering: estimate the target accuracy by the rows that end in another class's cluster.

A shift moves the logits of all rows alike. A dark image favours the same few classes whatever it
shows, and a blurred image has lower logits. Confidence cannot separate this common change from the
content of the row. So each domain's logits are standardised: the mean and the spread of every
class's logit are removed. Rows of one class then still lie together, near the source rows of that
class. A row that ends in a cluster other than its predicted class counts as an error.

Other class frequencies also change the mean logits. Standardising removes this change too, so both
estimators (free and fixed class shares) are wrong if the class frequencies changed.
"""

import math
from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import Float32s, Float64s, Floats, Labels
from covcal_cli.estimators.guards import clusters_know_classes, shift_within_classes
from covcal_cli.estimators.inputs import Estimate, EstimatorInputs, from_variance, variance_of_mean
from covcal_cli.formats.features import thinned
from covcal_cli.maths.softmax import masked
from covcal_cli.records import Guard

CLUSTERING, FIXED_CLUSTERING = "clustering", "clustering with fixed class shares"
_BOTH = CLUSTERING, FIXED_CLUSTERING
MOST_ROWS = 5000  # the maximum number of rows of a domain that are clustered
_STEPS = 10  # number of steps of the clustering
_ROUNDING = 1e-8  # change of a centre, of length 1, that is only rounding of 32-bit numbers
_MOST_OFFSET = 80.0  # the exponential of this offset still fits a float32
_NUDGES = 5  # Sinkhorn steps towards the fixed shares in every step
# If the cosine to one centre is larger than the K - 1 others by this much, a point belongs mostly
# to that cluster. The sharpness of the softmax over cosines is log K divided by this number.
_WIDTH = 0.115
LEAST_ROWS_OF_CLASS = 5  # source rows that a class needs, to know where its rows lie
_LEAST_SPREAD = 1e-3  # share of the spread of all logits within classes
_LARGEST_MOVE = 1e6  # JSON has no infinity
ASSUMPTION = (
    "rows of a class stay together, nearest to where that class lies on the source, once each "
    "domain's logits are standardised"
)
_FIXED_ASSUMPTION = f"{ASSUMPTION}, and the class frequencies are about the source's"


@dataclass(frozen=True)
class Centres:
    """The mean direction of every class that has a row."""

    classes: Labels  # (m,), ascending
    directions: Float32s  # (m, K), each of length 1


def clusterings(inputs: EstimatorInputs) -> dict[str, Estimate]:
    """Estimate the target accuracy by clustering, with free and with fixed class shares.

    First the mean of a row is subtracted from its logits. Then each class's logits are standardised
    by their mean and standard deviation over the domain. The directions are clustered domain by
    domain by spherical soft k-means (Dhillon and Modha 2001, Banerjee et al. 2005), starting from
    the mean directions of the source's classes. A row counts as wrong if its nearest centre at the
    end is not the centre of its label. Some source rows count as wrong too, so the estimate is A_v
    minus the increase of their share from source to target. At most 5000 rows of a domain are read.
    With two classes there are only two directions.
    """
    chosen = thinned(np.arange(inputs.n_source), MOST_ROWS, 0)
    rows = thinned(np.arange(inputs.n_target), MOST_ROWS, 0)
    logits, right = inputs.source_logits[chosen], inputs.source_correct
    labels = inputs.source_labels[chosen]
    centres = inputs.once("class centres", lambda: class_centres(logits, labels))
    on_source = inputs.once("strays", lambda: strays(logits, centres, inputs.source_prior))
    on_target = strays(inputs.target_logits[rows], centres, inputs.source_prior)
    estimates = {}
    for name, source, target in zip(_BOTH, on_source, on_target, strict=True):
        accuracy = float(right.mean() + source.mean() - target.mean())
        variance = variance_of_mean(right[chosen] + source) + variance_of_mean(target)
        is_free = name == CLUSTERING
        guards = (clusters_know_classes(float(source.mean())),) if is_free else ()
        assumption = ASSUMPTION if is_free else _FIXED_ASSUMPTION
        estimates[name] = from_variance(name, accuracy, variance, assumption, guards)
    return estimates


def class_centres(logits: Floats, labels: Labels) -> Centres:
    """Return the mean direction of every class that occurs in a domain's rows, logits (n, K)."""
    classes, places = np.unique(labels, return_inverse=True)
    points = _directions(logits)
    sums = np.zeros((len(classes), points.shape[1]), dtype=np.float32)
    np.add.at(sums, places, points)
    return Centres(classes, _unit(sums))


def strays(logits: Floats, centres: Centres, shares: Float64s) -> tuple[Float64s, Float64s]:
    """Return 1 for each row of a domain, (n, K), that does not end in the cluster of its label.

    Clusters start from `centres`, the centres of the source's classes. In the first result the
    share of rows in each cluster is free. In the second it is fixed to `shares`, shape (K,).
    """
    points, labels = _directions(logits), logits.argmax(axis=1)
    free, fixed = (
        np.asarray(_clustered(points, centres, fixed) != labels, dtype=np.float64)
        for fixed in (None, shares)
    )
    return free, fixed


@dataclass(frozen=True)
class Places:
    """The mean and the spread of every logit among the rows of each predicted class."""

    classes: Labels  # (m,), ascending; the classes that are predicted for at least a few rows
    counts: Labels  # (m,), their rows
    means: Float64s  # (m, K)
    spreads: Float64s  # (m, K)
    rows: int  # number of rows of all classes


def places(logits: Floats, at_least: int = 1) -> Places:
    """Return the places of the classes that are predicted for `at_least` rows, logits (n, K)."""
    values, predictions = _centred(logits), logits.argmax(axis=1)
    counts = np.bincount(predictions, minlength=logits.shape[1])
    classes = np.flatnonzero(counts >= at_least)
    groups = [values[predictions == number] for number in classes]
    shape = (len(classes), logits.shape[1])
    means = np.array([group.mean(axis=0) for group in groups]).reshape(shape)
    spreads = np.array([group.std(axis=0) for group in groups]).reshape(shape)
    return Places(classes, counts[classes], means, spreads, len(values))


def move(source: Places, target: Places) -> float:
    """Return how far the rows of each predicted class have moved, in standard deviations.

    The result is the root mean square over the target's rows and the logits, minus the part that
    sampling explains. Classes with fewer than 5 source rows are left out. If most target rows are
    in such classes, the move is unknown, and the result is the largest possible.
    """
    has_rows = source.counts >= LEAST_ROWS_OF_CLASS
    at = np.flatnonzero(has_rows & np.isin(source.classes, target.classes))
    of_target = np.isin(target.classes, source.classes[at])
    counts = target.counts[of_target]
    if 2 * counts.sum() < target.rows:
        return _LARGEST_MOVE
    spreads = source.spreads[at]
    # A logit that is the same in all rows of a class still has a scale.
    spreads = np.maximum(spreads, _LEAST_SPREAD * math.sqrt(float((source.spreads**2).mean())))
    away = target.means[of_target] - source.means[at]
    squares = np.divide(away, spreads, out=np.zeros_like(away), where=spreads > 0) ** 2
    noise = 1 / source.counts[at] + 1 / counts
    square = float(counts @ (squares.mean(axis=1) - noise)) / max(1, int(counts.sum()))
    return min(math.sqrt(max(square, 0.0)), _LARGEST_MOVE)


def change_within_classes(inputs: EstimatorInputs) -> Guard:
    """Check that rows of the predicted classes have moved between the domains."""
    source = inputs.once("places", lambda: places(inputs.source_logits, LEAST_ROWS_OF_CLASS))
    return shift_within_classes(move(source, places(inputs.target_logits)))


def _centred(logits: Floats) -> Float64s:
    """Return logits minus their row's mean, (n, K); a masked class counts as its row's mean."""
    out = masked(logits)
    values = np.where(out, 0.0, logits).astype(np.float64)
    values -= (values.sum(axis=1) / (~out).sum(axis=1))[:, None]
    values[out] = 0.0
    return values


def _directions(logits: Floats) -> Float32s:
    """Standardise rows to length 1, shape (n, K)."""
    values = _centred(logits)
    values -= values.mean(axis=0)
    spreads = values.std(axis=0)
    values /= np.where(spreads > 0, spreads, 1.0)
    return _unit(values.astype(np.float32))


def _clustered(points: Float32s, centres: Centres, shares: Float64s | None) -> Labels:
    """Return the class of each point's nearest centre after clustering, shape (n,)."""
    directions = centres.directions
    sharpness = np.float32(math.log(len(directions)) / _WIDTH)
    for _ in range(_STEPS):
        powers: Float32s = sharpness * (points @ directions.T)
        powers -= powers.max(axis=1, keepdims=True)
        np.exp(powers, out=powers)
        np.maximum(powers, np.finfo(np.float32).tiny, out=powers)
        if shares is not None:
            powers *= _factors(powers, shares[centres.classes])
        powers /= powers.sum(axis=1, keepdims=True)
        before, directions = directions, _unit(powers.T @ points)
        if np.abs(directions - before).max() <= _ROUNDING:  # further steps would change nothing
            break
    labels: Labels = centres.classes[(points @ directions.T).argmax(axis=1)]
    return labels


def _factors(powers: Float32s, shares: Float64s) -> Float32s:
    """Return a factor for every cluster, (m,), that moves its share of the rows towards `shares`.

    These are a few Sinkhorn steps on `powers`, (n, m), which start from factors of 1 each time.
    With more steps, the shares would be reached exactly, and no class could be rarer than on the
    source.
    """
    offsets, factors = np.zeros(len(shares)), np.ones(len(shares), dtype=np.float32)
    for _ in range(_NUDGES):
        # n times the share of each cluster before this step
        members = factors * (powers.T @ (1 / (powers @ factors)))
        offsets += np.log(len(powers) * shares / members)
        factors = np.exp(np.minimum(offsets, _MOST_OFFSET)).astype(np.float32)
    return factors


def _unit(vectors: Float32s) -> Float32s:
    """Scale vectors to length 1; vectors of length 0 stay 0."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0), dtype=np.float32)
