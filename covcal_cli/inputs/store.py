"""Files that hold named arrays with one row per example, read by chosen rows.

Each kind of file has a module with a class that keeps the promise of `Store`; ``arrays.py`` feeds
models from them, ``outputs.py`` reads classifiers' outputs from them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Piece = tuple[Rows, dict[str, NDArray[Any]]]
"""Some chosen rows, and their part of every array asked for."""

WINDOW_BYTES = 4 << 20


@dataclass(frozen=True)
class Entry:
    """What is known of one array without reading it."""

    shape: tuple[int, ...]  # rows first
    dtype: np.dtype[Any]  # kind "U" for texts whatever their length
    is_encoded: bool = False  # whether its values are image files, as `encoded.Encoded` has them
    class_names: tuple[str, ...] | None = None  # what its numbers stand for, if the file says so

    @property
    def is_text(self) -> bool:
        """Whether it holds texts."""
        return self.dtype.kind in "SUO"


class Store(Protocol):
    """A file of named arrays."""

    path: Path
    is_table: bool = (
        False  # whether they are columns, so that plain columns of numbers are features
    )
    entries: dict[str, Entry]  # by name, in the order of the file

    def whole(self, name: str) -> NDArray[Any]:
        """Return a whole array: labels, ids, groups; nothing that is wide."""
        ...

    def texts(self, name: str) -> list[str]:
        """Return a whole array as texts, which takes less memory where they are long.

        Of image files, these are their names, empty where there is none.
        """
        return [str(value) for value in self.whole(name).ravel().tolist()]

    def pieces(self, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        """Yield the chosen ascending `rows` of the named arrays in runs of any length.

        About `size` rows at a time are in memory, or what `WINDOW_BYTES` hold.
        """
        ...

    def place(self, row: int) -> str:
        """Return where a row is, in the file's own terms, such as ``line 12``."""
        return f"row {row}"


def suffix_of(path: Path) -> str:
    """Return the suffix in lower case; ``.csv.gz`` is one."""
    name = path.name.lower()
    return ".csv.gz" if name.endswith(".csv.gz") else path.suffix.lower()


def windows(rows: Rows, window: int) -> Iterator[tuple[int, int, Rows]]:
    """Cut 0, 1, 2, ... into windows that hold chosen rows: start, stop, and the rows within."""
    position = 0
    while position < len(rows):
        start = int(rows[position]) // window * window
        last = int(np.searchsorted(rows, start + window))
        yield start, start + window, rows[position:last]
        position = last


def regrouped(pieces: Iterable[Piece], size: int) -> Iterator[Piece]:
    """Yield the rows of `pieces` again, `size` at a time, the last fewer."""
    waiting: list[Piece] = []
    have = 0
    for rows, arrays in pieces:
        start = 0
        while start < len(rows):
            taken = min(size - have, len(rows) - start)
            part = slice(start, start + taken)
            waiting.append((rows[part], {name: array[part] for name, array in arrays.items()}))
            start += taken
            have += taken
            if have == size:
                yield _joined(waiting)
                waiting, have = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(pieces: list[Piece]) -> Piece:
    if len(pieces) == 1:
        return pieces[0]
    rows = np.concatenate([piece[0] for piece in pieces])
    names = pieces[0][1]
    return rows, {name: np.concatenate([piece[1][name] for piece in pieces]) for name in names}
