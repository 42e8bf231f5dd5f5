"""Sets of classes that contain the right class in a share of the rows.

A set of classes holds the likeliest class, and every class with at least a certain calibrated
probability, the cut. This is LAC (Sadinle, Lei & Wasserman 2019), and no set is empty.

- Without labels, the cut is the largest one at which the sets hold, on average, the wanted share of
  the probability. The probabilities for this mean have a higher temperature: their mean confidence
  is two fifths of the way from the estimated accuracy to its low end.
- With n labels of random rows, split conformal prediction (Papadopoulos et al. 2002) leaves out at
  most the floor((n + 1) (1 - C)) - 1 right classes with the least probability. The coverage holds
  on average over draws. With a certainty, the number left out is the one that an exact test allows.
"""

import math

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL, Float64s, Floats, Labels
from covcal_cli.estimators.inputs import Estimate
from covcal_cli.estimators.matched_temperature import match_accuracy
from covcal_cli.maths.odds import probabilities as softmax

# The share of the way from the estimated accuracy to its low end, chosen on half *choose*.
_TOWARDS_LOW = 0.4


def cut_without_labels(
    logits: Floats,
    probabilities: Float64s,
    coverage: float,
    estimate: Estimate | None,
    labels: Labels | None = None,
) -> float:
    """Return the cut of `probabilities`, (n, K), whose sets have the coverage, as far as is known.

    Without an estimate the calibrated probabilities are believed. `labels` are the classifier's,
    where they may differ from the top class of the logits.
    """
    if estimate is None:
        return cut_by_mass(probabilities, coverage, probabilities)
    accuracy = estimate.accuracy - _TOWARDS_LOW * (estimate.accuracy - estimate.low)
    matched = match_accuracy(logits, accuracy, labels).temperature
    return cut_by_mass(probabilities, coverage, softmax(logits, matched).T)


def cut_by_mass(probabilities: Float64s, coverage: float, mass: Float64s) -> float:
    """Return the largest cut whose sets hold a share of the mass, (n, K), on average."""
    rows, top = np.arange(len(probabilities)), probabilities.argmax(axis=1)
    needed = coverage * len(rows) - float(mass[rows, top].sum())
    if needed <= 0:
        return 1.0
    rest = np.ones(probabilities.shape, dtype=bool)
    rest[rows, top] = False
    values, masses = probabilities[rest], mass[rest]
    order = np.argsort(-values)
    place = int(np.searchsorted(np.cumsum(masses[order]), needed))
    return float(values[order[min(place, len(order) - 1)]])


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
