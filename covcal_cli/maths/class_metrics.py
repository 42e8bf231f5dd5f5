"""Compute one-vs-rest metrics of a class, from probabilities or labels.

Entry i of an array stands for m_i rows, of which t_i belong to the class. Without labels, t_i is
the calibrated probability of the class, and sums give the expected confusion matrix (NannyML's
CBPE, Białek et al. 2023).

Each metric comes with its derivatives with respect to t_i, for the delta method (Särndal, Swensson
& Wretman 1992, section 5.5).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from covcal_cli.arrays import Booleans, Float64s, Floats, Integers
from covcal_cli.maths.odds import probabilities, top_log_odds


@dataclass(frozen=True)
class ClassRows:
    """Counts of rows for the metrics of one class."""

    is_predicted: Booleans  # Whether the class is predicted, (n,).
    ranks: Integers  # Rank by the probability of the class, (n,).
    members: Float64s  # Number t_i of rows of the class, (n,).
    mass: Float64s  # Number m_i of rows, (n,).

    @cached_property
    def predicted(self) -> float:
        """Number of rows for which the class is predicted."""
        return positive(self.mass[self.is_predicted].sum())

    @cached_property
    def positives(self) -> float:
        """Number of rows of the class."""
        return positive(self.members.sum())

    @cached_property
    def negatives(self) -> float:
        """Number of rows of other classes."""
        return positive(self.mass.sum() - self.members.sum())

    @cached_property
    def hits(self) -> float:
        """Number of true positives."""
        return float(self.members[self.is_predicted].sum())

    def by_rank(self, values: Float64s) -> Float64s:
        """Return the sum of `values` for each rank."""
        return np.asarray(np.bincount(self.ranks, values))


def positive(count: float) -> float:
    """Replace 0 by the smallest positive number, to avoid division by 0."""
    return max(float(count), float(np.finfo(np.float64).tiny))


Derivative = tuple[float, Float64s]


@dataclass(frozen=True)
class ClassMetric:
    """A one-vs-rest metric."""

    function: Callable[[ClassRows], Derivative]
    needs: tuple[str, ...]  # Properties of `ClassRows` that must not be 0.


def class_odds(logits: Floats) -> Float64s:
    """Return the log odds of each class at T = 1, shape (K, n)."""
    chances = np.maximum(probabilities(logits, 1.0), np.finfo(np.float64).tiny)
    odds = np.log(chances) - np.log1p(-np.minimum(chances, 0.5))
    odds[logits.argmax(axis=1), np.arange(len(logits))] = top_log_odds(logits, 1.0)
    return odds


def ranks_of(values: Float64s) -> Integers:
    """Return the rank of each value, (n,). Equal values have the same rank."""
    ranks: Integers = np.unique(values, return_inverse=True)[1]
    return ranks


def _precision(rows: ClassRows) -> Derivative:
    return rows.hits / rows.predicted, rows.is_predicted / rows.predicted


def _recall(rows: ClassRows) -> Derivative:
    value = rows.hits / rows.positives
    return value, np.asarray((rows.is_predicted - value) / rows.positives)


def _f1(rows: ClassRows) -> Derivative:
    both = rows.predicted + rows.positives
    value = 2 * rows.hits / both
    return value, np.asarray((2 * rows.is_predicted - value) / both)


def _specificity(rows: ClassRows) -> Derivative:
    value = 1 - (rows.predicted - rows.hits) / rows.negatives
    return value, np.asarray((rows.is_predicted - 1 + value) / rows.negatives)


def _auroc(rows: ClassRows) -> Derivative:
    positives = rows.by_rank(rows.members) / rows.positives
    negatives = rows.by_rank(rows.mass - rows.members) / rows.negatives
    below = np.cumsum(negatives) - negatives / 2
    above = 1 - np.cumsum(positives) + positives / 2
    value = float(positives @ below)
    slope = (below - value) / rows.positives - (above - value) / rows.negatives
    return value, slope[rows.ranks]


CLASS_METRICS: Mapping[str, ClassMetric] = {
    "precision": ClassMetric(_precision, ("predicted",)),
    "recall": ClassMetric(_recall, ("positives",)),
    # F1 is 0 if the class is never predicted, as in scikit-learn.
    "f1": ClassMetric(_f1, ("positives",)),
    "specificity": ClassMetric(_specificity, ("negatives",)),
    "auroc": ClassMetric(_auroc, ("positives", "negatives")),
}
