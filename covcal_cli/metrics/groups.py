"""The same metrics for every group of rows: by class, by predicted label, or by a column."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covcal_cli.softmax import Array

SMALL_GROUP = 100
"""Below so many rows, the ECE of a group is mostly the noise of its bins."""


@dataclass(frozen=True)
class GroupMetrics:
    """What a confidence is worth on one group of rows; fractions.

    Attributes
    ----------
    name : str
    n : int
        Rows; the other values are None where there are none.
    accuracy, mean_confidence, ece, over_ece : float or None
        As in `metrics.Metrics`, over the group's rows alone.
    small : bool
        Whether there are fewer rows than `SMALL_GROUP`.
    """

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
    """A block of rows as they were counted.

    Attributes
    ----------
    confidence : array of float64, shape (m,)
        Within [0, 1].
    correct : bool array, shape (m,)
    index : array of int64, shape (m,)
        The bin of each row.
    """

    confidence: Array
    correct: NDArray[np.bool_]
    index: NDArray[np.int64]


class GroupBins:
    """Counts of rows, hits and confidence per group and bin, filled block by block.

    Parameters
    ----------
    bins, n_groups : int
    """

    def __init__(self, bins: int, n_groups: int) -> None:
        self.counts = np.zeros((n_groups, bins), dtype=np.int64)
        self.hits = np.zeros((n_groups, bins), dtype=np.int64)
        self.confidence_sums = np.zeros((n_groups, bins))

    def add(self, groups: NDArray[np.int64], rows: JudgedRows) -> None:
        """Count a block of rows, given the number of each row's group, shape (m,)."""
        shape, size = self.counts.shape, self.counts.size
        cells = groups * shape[1] + rows.index
        self.counts += np.bincount(cells, minlength=size).reshape(shape)
        self.hits += np.bincount(cells[rows.correct], minlength=size).reshape(shape)
        self.confidence_sums += np.bincount(cells, rows.confidence, minlength=size).reshape(shape)

    def result(self, names: Sequence[str]) -> tuple[GroupMetrics, ...]:
        """Return the metrics of every group, in the order of its number."""
        return tuple(self._of(group, name) for group, name in enumerate(names))

    def _of(self, group: int, name: str) -> GroupMetrics:
        n = int(self.counts[group].sum())
        if n == 0:
            return GroupMetrics(name, 0, None, None, None, None)
        gaps = (self.confidence_sums[group] - self.hits[group]) / n
        over = float(np.maximum(gaps, 0.0).sum())
        return GroupMetrics(
            name=name,
            n=n,
            accuracy=int(self.hits[group].sum()) / n,
            mean_confidence=float(self.confidence_sums[group].sum()) / n,
            ece=over + float(np.maximum(-gaps, 0.0).sum()),
            over_ece=over,
        )
