"""How chosen rows of an HDF5 dataset are read: in runs of a few MiB, each as one span."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK_BYTES = 4 << 20
_LEAST_ROWS = 256


def cut(rows: NDArray[np.int64], width: int) -> Iterator[NDArray[np.int64]]:
    """Cut `rows` of `width` float32 values each into runs of a few MiB."""
    size = max(_LEAST_ROWS, _BLOCK_BYTES // (4 * max(1, width)))
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def take(dataset: Any, rows: NDArray[np.int64], axis: int) -> NDArray[Any]:
    """Read ascending `rows` as one contiguous span: far faster than HDF5's own row selection."""
    if len(rows) == 0:
        shape = list(dataset.shape)
        shape[axis] = 0
        return np.empty(shape, dtype=dataset.dtype)
    start, stop = int(rows[0]), int(rows[-1]) + 1
    span = dataset[start:stop] if axis == 0 else dataset[:, start:stop]
    if stop - start == len(rows):
        return np.asarray(span)
    return np.asarray(np.take(span, rows - start, axis=axis))
