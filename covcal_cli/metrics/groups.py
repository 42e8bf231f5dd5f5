"""Rows counted per group and bin: by class, by predicted label, by a column, or all together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.maths.softmax import Array
from covcal_cli.metrics.binning import bin_index, checked_probabilities
from covcal_cli.metrics.reliability import ReliabilityBins

SMALL_GROUP = 100  # rows; with fewer, the ECE of a group is mostly the noise of its bins


@dataclass(frozen=True)
class GroupMetrics:
    """What a confidence is worth on one group of rows; fractions, None where it has no rows."""

    name: str
    n: int
    accuracy: float | None
    mean_confidence: float | None
    ece: float | None
    over_ece: float | None

    @property
    def small(self) -> bool:
        """Whether its ECE is mostly noise."""
        return self.n < SMALL_GROUP

    def to_json(self) -> dict[str, str | int | float | bool | None]:
        """Return everything under its public name."""
        return {
            "group": self.name,
            "n": self.n,
            "accuracy": self.accuracy,
            "mean_confidence": self.mean_confidence,
            "ece": self.ece,
            "over_ece": self.over_ece,
            "small": self.small,
        }


@dataclass(frozen=True)
class JudgedRows:
    """A block of m rows with the bin of each; every array has shape (m,)."""

    confidence: Array  # within [0, 1]
    correct: NDArray[np.bool_]
    index: NDArray[np.int64]  # of the bin


def judged_rows(
    confidence: NDArray[np.floating[Any]], correct: NDArray[np.bool_], edges: Array
) -> JudgedRows:
    """Return rows with their bins between `edges`.

    Raises ValueError if a confidence is NaN or, beyond rounding, outside [0, 1].
    """
    values = checked_probabilities(confidence)
    return JudgedRows(values, correct, bin_index(values, edges))


class GroupBins:
    """Counts of rows, hits and confidence per group and bin, filled block by block."""

    def __init__(self, bins: int, n_groups: int = 1) -> None:
        self.counts = np.zeros((n_groups, bins), dtype=np.int64)
        self.hits = np.zeros((n_groups, bins), dtype=np.int64)
        self.confidence_sums = np.zeros((n_groups, bins))

    def add(self, rows: JudgedRows, groups: NDArray[np.int64] | None = None) -> None:
        """Count a block of rows, given the number of each row's group; None: all in group 0."""
        shape, size = self.counts.shape, self.counts.size
        cells = rows.index if groups is None else groups * shape[1] + rows.index
        self.counts += np.bincount(cells, minlength=size).reshape(shape)
        self.hits += np.bincount(cells[rows.correct], minlength=size).reshape(shape)
        self.confidence_sums += np.bincount(cells, rows.confidence, minlength=size).reshape(shape)

    def together(self) -> ReliabilityBins:
        """Return the counts of all groups in one."""
        arrays = (self.counts, self.hits, self.confidence_sums)
        return ReliabilityBins(*(array.sum(axis=0) for array in arrays))

    def result(self, names: Sequence[str]) -> tuple[GroupMetrics, ...]:
        """Return the metrics of every group, in the order of its number."""
        return tuple(self._of(group, name) for group, name in enumerate(names))

    def _of(self, group: int, name: str) -> GroupMetrics:
        arrays = (self.counts, self.hits, self.confidence_sums)
        bins = ReliabilityBins(*(array[group] for array in arrays))
        if bins.n == 0:
            return GroupMetrics(name, 0, None, None, None, None)
        return GroupMetrics(
            name=name,
            n=bins.n,
            accuracy=bins.mean_accuracy(),
            mean_confidence=bins.mean_confidence(),
            ece=bins.ece(),
            over_ece=bins.over_ece(),
        )
