"""The class-wise ECE: whether the probability of every class, predicted or not, can be trusted."""

import numpy as np
from numpy.typing import NDArray

from covcal_cli.maths.softmax import Array
from covcal_cli.metrics.binning import approximate_bin_index, require_rows

# Copies of every cell that neighbouring rows count in by turns: most probabilities are small, and
# adding to the same number over and over makes each addition wait for the one before.
_LANES = 4


class ClasswiseBins:
    """Counts of every class's probability in equally wide bins, filled block by block.

    Probabilities carry the rounding of their exponentials, so those less than 1e-15 above an edge
    count as on it.
    """

    def __init__(self, bins: int, n_classes: int) -> None:
        self._bins, self._classes = bins, n_classes
        self._n = 0
        self._sums = np.zeros(_LANES * bins * n_classes)
        self._hits = np.zeros(_LANES * bins * n_classes, dtype=np.int64)
        self._first = self._first_cells(0)

    def add(self, probabilities: Array, labels: NDArray[np.int64]) -> None:
        """Count a block of rows, given probabilities of shape (K, m), within [0, 1]."""
        m, size = len(labels), len(self._sums)
        if self._first.shape[1] != m:
            self._first = self._first_cells(m)
        cells = approximate_bin_index(probabilities, self._bins)
        cells += self._first
        cells = cells.reshape(-1)
        self._n += m
        self._sums += np.bincount(cells, probabilities.reshape(-1), minlength=size)
        self._hits += np.bincount(cells.take(labels * m + np.arange(m)), minlength=size)

    def ece_by_class(self) -> Array:
        """Return the ECE of each class's probability over all rows, shape (K,)."""
        n = require_rows(self._n)
        gaps = (self._sums - self._hits).reshape(self._classes, _LANES, self._bins).sum(axis=1)
        result: Array = np.abs(gaps).sum(axis=1) / n
        return result

    def ece(self) -> float:
        """Return the mean over classes of sum_b n_kb/n |mean p_k - share of class k|.

        (Kull et al. 2019; the static calibration error of Nixon et al. 2019.)
        """
        return float(self.ece_by_class().mean())

    def _first_cells(self, m: int) -> NDArray[np.int32]:
        """Return the number of the first bin of every class and row, shape (K, m)."""
        lanes = np.arange(self._classes)[:, None] * _LANES + np.arange(m) % _LANES
        return (lanes * self._bins).astype(np.int32)
