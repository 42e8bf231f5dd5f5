"""Sets of classes that contain the right class in a share of the rows.

A set of classes holds the likeliest class, and every class with at least a certain calibrated
probability, the cut. This is LAC (Sadinle, Lei & Wasserman 2019), and no set is empty.

- Without labels, the cut is the largest one at which the sets hold, on average, the wanted share of
  the probability.
- With n labels of random rows, split conformal prediction (Papadopoulos et al. 2002) leaves out at
  most the floor((n + 1) (1 - C)) - 1 right classes with the least probability. The coverage holds
  on average over draws. With a certainty, the number left out is the one that an exact test allows.
"""

import math

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL, Float64s, Labels


def cut_by_mass(probabilities: Float64s, coverage: float) -> float:
    """Return the largest cut whose sets hold a share of the probability, on average."""
    top = probabilities.max(axis=1)
    rest = probabilities.copy()
    rest[np.arange(len(rest)), rest.argmax(axis=1)] = 0
    values = np.sort(rest, axis=None)[::-1]
    needed = coverage * len(top) - top.sum()
    if needed <= 0:
        return 1.0
    place = int(np.searchsorted(np.cumsum(values), needed))
    return float(values[min(place, len(values) - 1)])


def cut_by_labels(scores: Float64s, coverage: float, allowed: int | None) -> float:
    """Return the cut that leaves out so few right classes of labelled rows as `coverage` needs.

    `scores` are the probabilities of the right classes, shape (n,). `allowed` is the number that
    may be left out, if it is known.
    """
    if allowed is None:
        allowed = math.floor((len(scores) + 1) * (1 - coverage) + 1e-9) - 1
    if allowed < 0:
        return 0.0
    return float(np.sort(scores)[min(allowed, len(scores) - 1)])


def mean_size(probabilities: Float64s, cut: float) -> float:
    """Return the mean number of classes in a set."""
    sizes = (probabilities >= cut).sum(axis=1)
    return float(np.maximum(sizes, 1).mean())


def true_scores(probabilities: Float64s, labels: Labels) -> Float64s:
    """Return the probability of the right class; 1 for the likeliest class, 0 without a label."""
    scores = probabilities[np.arange(len(labels)), np.maximum(labels, 0)]
    scores = np.where(probabilities.argmax(axis=1) == labels, 1.0, scores)
    return np.where(labels == UNKNOWN_LABEL, 0.0, scores)
