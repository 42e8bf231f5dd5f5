"""Estimators on logits that each domain has standardised by itself.

A shift moves the logits of all rows alike: a darker image favours the same few classes whatever it
shows, and a blurred one has less of them all. That says nothing about a single row, and confidence
cannot tell it from inputs. Once the mean and the spread of every class's logit are taken out,
domain by domain, rows of a class still lie together, near to where rows of that class lay on the
source, and who lies in another company than his label says is wrong.

Where classes are not as frequent as on the source, their means differ for that reason too, which is
taken out as well: neither estimator stands that.
"""

import math

import numpy as np

from covcal_cli.arrays import Float32s, Float64s, Floats, Labels
from covcal_cli.estimators.inputs import Estimate, EstimatorInputs, from_variance, variance_of_mean
from covcal_cli.formats.features import thinned
from covcal_cli.maths.masks import masked

MOST_ROWS = 5000  # of a domain that are clustered
_STEPS = 10  # of the clustering
_NUDGES = 5  # in every step towards the sizes that clusters are held to
# How much nearer a centre must be, in cosines, to have a row to itself against K - 1 others: the
# cosine's sharpness is log K over it.
_WIDTH = 0.115
CLUSTERS_ASSUMPTION = (
    "rows of a class stay together, nearest to where that class lay on the source, once each "
    "domain's logits are standardised by themselves"
)


def clusters(inputs: EstimatorInputs) -> Estimate:
    """Estimate the target accuracy by clusters of any size: see `_by_clusters`."""
    return _by_clusters(inputs, "clusters", CLUSTERS_ASSUMPTION, None)


def held_clusters(inputs: EstimatorInputs) -> Estimate:
    """Estimate the target accuracy by clusters held to the sizes of the source's classes."""
    counts = np.bincount(inputs.source_labels, minlength=inputs.n_classes) + 0.5
    assumption = f"{CLUSTERS_ASSUMPTION}, and classes are about as frequent"
    return _by_clusters(inputs, "held clusters", assumption, counts / counts.sum())


def _by_clusters(
    inputs: EstimatorInputs, name: str, assumption: str, sizes: Float64s | None
) -> Estimate:
    """Estimate the target accuracy by the rows that lie in the cluster of their label.

    Logits are standardised: row by row less their mean, then class by class less the domain's mean
    and by its standard deviation. Their directions are clustered, domain by domain, from centres
    that are the means of the source's classes (spherical soft k-means: Dhillon and Modha 2001,
    Banerjee et al. 2005). A row whose nearest centre in the end is not that of its label counts as
    wrong. Some rows of the source do so too: the estimate is A_v less what their share rises by. At
    most 5000 rows of a domain are read.

    Parameters
    ----------
    inputs : EstimatorInputs
        Of two classes or more; of two, the directions are two.
    name, assumption : str
        Of the estimate.
    sizes : ndarray of shape (K,) float64, optional
        Shares that the clusters are drawn to; else they may have any.
    """
    chosen = thinned(np.arange(inputs.n_source), MOST_ROWS, 0)
    rows = thinned(np.arange(inputs.n_target), MOST_ROWS, 0)
    logits = inputs.source_logits[chosen]
    centres = class_centres(logits, inputs.source_labels[chosen])
    left = [
        strays(logits, centres, sizes),
        strays(inputs.target_logits[rows], centres, sizes),
    ]
    right = inputs.source_correct
    accuracy = float(right.mean() + left[0].mean() - left[1].mean())
    variance = variance_of_mean(right[chosen] + left[0]) + variance_of_mean(left[1])
    return from_variance(name, accuracy, variance, assumption)


def class_centres(logits: Floats, labels: Labels) -> Float32s:
    """Return the mean direction of every class of a domain's rows, shape (K, K), from (n, K).

    NaN for a class without a row.
    """
    return _class_means(_directions(logits), labels, logits.shape[1])


def strays(logits: Floats, centres: Float32s, sizes: Float64s | None) -> Float64s:
    """Return 1 for rows of a domain, (n, K), that end in another cluster than their label's.

    Clusters start from `centres`, those of the source's classes, and are held to `sizes` if given.
    """
    clustered = _clustered(_directions(logits), centres, sizes)
    return np.asarray(clustered != logits.argmax(axis=1), dtype=np.float64)


def _directions(logits: Floats) -> Float32s:
    """Return standardised rows of length 1, shape (n, K); a masked class is at its row's mean."""
    out = masked(logits)
    values = np.where(out, 0.0, logits).astype(np.float64)
    values -= (values.sum(axis=1) / (~out).sum(axis=1))[:, None]
    values[out] = 0.0
    values -= values.mean(axis=0)
    spreads = values.std(axis=0)
    values /= np.where(spreads > 0, spreads, 1.0)
    return _unit(values.astype(np.float32))


def _class_means(points: Float32s, labels: Labels, n_classes: int) -> Float32s:
    """Return the mean direction of every class, (K, K); NaN for a class without a row."""
    sums = np.zeros((n_classes, points.shape[1]), dtype=np.float32)
    np.add.at(sums, labels, points)
    sums[np.bincount(labels, minlength=n_classes) == 0] = np.nan
    return _unit(sums)


def _clustered(points: Float32s, centres: Float32s, sizes: Float64s | None) -> Labels:
    """Return the cluster of every point, shape (n,): the place of its nearest centre.

    Centres that are NaN get no point.
    """
    there = np.flatnonzero(~np.isnan(centres[:, 0]))
    centres = centres[there]
    sharpness = np.float32(math.log(len(there)) / _WIDTH)
    for _ in range(_STEPS):
        near = sharpness * (points @ centres.T)
        shares = _shares(near)
        if sizes is not None:
            # Some steps of Sinkhorn's towards the sizes, from the start each time: at the fixed
            # point no class could be rarer than on the source.
            offsets = np.zeros(len(there), dtype=np.float32)
            for _ in range(_NUDGES):
                offsets += np.log(sizes[there] / shares.mean(axis=0)).astype(np.float32)
                shares = _shares(near + offsets)
        centres = _unit(shares.T @ points)
    labels: Labels = there[(points @ centres.T).argmax(axis=1)]
    return labels


def _shares(near: Float32s) -> Float32s:
    """Return every point's shares in the clusters, softmax by row, (n, K); none is 0."""
    shares = near - near.max(axis=1, keepdims=True)
    np.exp(shares, out=shares)
    shares /= shares.sum(axis=1, keepdims=True)
    return np.asarray(np.maximum(shares, np.finfo(np.float32).tiny), dtype=np.float32)


def _unit(vectors: Float32s) -> Float32s:
    """Return vectors of length 1; those of length 0 stay, and NaN stay NaN."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0), dtype=np.float32)
