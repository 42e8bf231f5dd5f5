"""The class-wise ECE: whether the probability of every class, predicted or not, can be trusted."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.metrics.binning import bin_edges, bin_index
from covcal_cli.softmax import Array


class ClasswiseBins:
    """Counts of every class's probability in equally wide bins, filled block by block.

    Most probabilities are small, so the first bin is found by subtraction from the totals.

    Parameters
    ----------
    bins, n_classes : int
    """

    def __init__(self, bins: int, n_classes: int) -> None:
        self._edges = bin_edges(bins)
        self._n = 0
        self._totals = np.zeros(n_classes)
        self._sums = np.zeros((n_classes, bins))
        self._hits = np.zeros((n_classes, bins), dtype=np.int64)

    def add(
        self, probabilities: Array, labels: NDArray[np.int64], of_labels: Array | None = None
    ) -> None:
        """Count a block of rows.

        Parameters
        ----------
        probabilities : array of float64, shape (K, m)
            Classes first.
        labels : array of int64, shape (m,)
        of_labels : array of float64, shape (m,), optional
            The probabilities of the labels, where the caller has them.
        """
        classes, m = probabilities.shape
        bins = len(self._edges) - 1
        self._n += m
        self._totals += probabilities.sum(axis=1)
        flat = probabilities.reshape(-1)
        large = np.flatnonzero(flat > self._edges[1])
        values = flat[large]
        cells = large // m * bins + bin_index(values, self._edges)
        self._sums += _counted(cells, classes, bins, values)
        if of_labels is None:
            of_labels = probabilities[labels, np.arange(m)]
        self._hits += _counted(labels * bins + bin_index(of_labels, self._edges), classes, bins)

    def ece_by_class(self) -> Array:
        """Return the ECE of each class's probability over all rows, shape (K,)."""
        if self._n == 0:
            raise ValueError("no rows were counted")
        sums = self._sums.copy()
        sums[:, 0] += self._totals - sums.sum(axis=1)
        result: Array = np.abs(sums - self._hits).sum(axis=1) / self._n
        return result

    def ece(self) -> float:
        """Return the mean over classes of sum_b n_kb/n |mean p_k - share of class k|.

        (Kull et al. 2019; the static calibration error of Nixon et al. 2019.)
        """
        return float(self.ece_by_class().mean())


def _counted(
    cells: NDArray[np.int64], classes: int, bins: int, weights: Array | None = None
) -> NDArray[Any]:
    return np.bincount(cells, weights, minlength=classes * bins).reshape(classes, bins)
