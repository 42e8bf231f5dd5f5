"""The distribution of non-negative values in narrow cells: enough to resample their mean.

The cell of a value is its float32 exponent and the first five bits of the fraction, so a cell is at
most 3 % wide. Sums are kept too, so every cell's mean is exact.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_SHIFT = np.uint32(18)
_CELLS = 1 << 13  # of non-negative values: the sign bit is 0


class ValueCells:
    """Counts and sums of values per cell, filled block by block."""

    def __init__(self) -> None:
        self._counts = np.zeros(_CELLS, dtype=np.int64)
        self._sums = np.zeros(_CELLS)

    def add(self, values: NDArray[np.floating[Any]]) -> None:
        """Count a block of values, shape (m,); what rounding left below 0 counts as 0."""
        cells = np.maximum(values, 0).astype(np.float32).view(np.uint32) >> _SHIFT
        self._counts += np.bincount(cells, minlength=_CELLS)
        self._sums += np.bincount(cells, values, minlength=_CELLS)

    def filled(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return count and mean of every cell that holds values."""
        filled = self._counts > 0
        counts = self._counts[filled]
        return counts, self._sums[filled] / counts
