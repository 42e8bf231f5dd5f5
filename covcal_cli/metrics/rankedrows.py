"""Confidence and correctness of every row, ranked: what binned counts cannot tell.

Four bytes a row: the bits of a float32 in [0, 1], as an integer, order like its value and leave the
highest one unused; shifted by one they make room for whether the row is right. Sorting those
integers sorts the rows, far faster than an index sort.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.maths.softmax import Array

_CHUNK = 1 << 16  # rows whose arrays stay in the processor's cache


@dataclass(frozen=True)
class RankedRows:
    """Rows by ascending confidence."""

    keys: NDArray[np.uint32]  # shape (n,), ascending; see `confidence_of` and `correct_of`

    def __len__(self) -> int:
        return len(self.keys)

    def starts_of(self, values: Array) -> NDArray[np.int64]:
        """Return the number of rows below each of ascending `values` within [0, 1]."""
        lowest = values.astype(np.float32)
        lowest = np.where(lowest < values, np.nextafter(lowest, np.float32(2)), lowest)
        return np.searchsorted(self.keys, lowest.view(np.uint32) << np.uint32(1)).astype(np.int64)

    def sums_from(self, starts: NDArray[np.int64]) -> tuple[Array, NDArray[np.int64]]:
        """Return confidence and right rows, summed from each of `starts` to the next.

        `starts` are row numbers, strictly ascending from 0; both results have their shape.
        """
        sums, hits = np.zeros(len(starts)), np.zeros(len(starts), dtype=np.int64)
        for start in range(0, len(self.keys), _CHUNK):  # so that memory stays bounded
            keys = self.keys[start : start + _CHUNK]
            first = int(np.searchsorted(starts, start, side="right")) - 1
            runs = slice(first, int(np.searchsorted(starts, start + len(keys))))
            local = np.maximum(starts[runs] - start, 0)
            sums[runs] += np.add.reduceat(confidence_of(keys), local)
            hits[runs] += np.add.reduceat(keys & np.uint32(1), local, dtype=np.int64)
        return sums, hits

    def first_of_its_value(self, row: int) -> int:
        """Return the first row that has the confidence of `row`."""
        return int(np.searchsorted(self.keys, self.keys[row] & np.uint32(0xFFFFFFFE), side="left"))


class RowCollector:
    """Collects rows block by block, in any order."""

    def __init__(self) -> None:
        self._blocks: list[NDArray[np.uint32]] = []

    def add(self, confidence: NDArray[np.floating[Any]], correct: NDArray[np.bool_]) -> None:
        """Keep a block of rows; their confidence, between 0 and 1, as float32."""
        bits = (np.asarray(confidence).astype(np.float32) + np.float32(0)).view(np.uint32)
        self._blocks.append((bits << np.uint32(1)) | np.asarray(correct, dtype=np.uint32))

    def ranked(self) -> RankedRows:
        """Return the rows collected so far, ranked."""
        keys = np.concatenate(self._blocks) if self._blocks else np.empty(0, np.uint32)
        self._blocks = [keys]
        keys.sort()
        return RankedRows(keys)


def confidence_of(keys: NDArray[np.uint32]) -> Array:
    """Return the confidence of keys, float64."""
    return (keys >> np.uint32(1)).view(np.float32).astype(np.float64)


def correct_of(keys: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Return whether the rows of keys are right."""
    return (keys & np.uint32(1)).astype(bool)
