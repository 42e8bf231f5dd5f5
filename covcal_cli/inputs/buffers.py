"""Batches written in place: a few buffers that are used in turn, so that none is made anew.

A batch is valid until the buffer's next turn; who keeps rows copies them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.inputs.pipeline import RowShape


class BufferRing:
    """As many buffers as there can be batches in the making or in use at once: `depth`."""

    def __init__(self, depth: int, row_shape: RowShape, dtype: str) -> None:
        self._row_shape, self._dtype = row_shape, dtype
        self._buffers = [np.empty((0, *row_shape), dtype) for _ in range(depth)]
        self._turn = 0

    def next(self, rows: int) -> NDArray[Any]:
        """Return the buffer whose turn it is, shape (rows, ...); its old content is overwritten."""
        index = self._turn % len(self._buffers)
        self._turn += 1
        if len(self._buffers[index]) < rows:
            self._buffers[index] = np.empty((rows, *self._row_shape), self._dtype)
        return self._buffers[index][:rows]
