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

from covcal_cli.errors import CovcalError
from covcal_cli.files import require_file
from covcal_cli.inputs.parts import holds_part

Rows = NDArray[np.int64]
Piece = tuple[Rows, dict[str, NDArray[Any]]]
"""Some chosen rows, and their part of every array asked for."""

WINDOW_BYTES = 4 << 20
SUFFIXES = (".npz", ".npy", ".h5", ".hdf5", ".csv", ".tsv", ".csv.gz", ".parquet")
KINDS = ".npz, .npy, .h5, .csv or .parquet file"
_OTHERS = {
    ".mat": "save its arrays with numpy.savez",
    ".pkl": "a pickle can run code: save the arrays with numpy.savez",
    ".pickle": "a pickle can run code: save the arrays with numpy.savez",
    ".pt": "save the tensors with numpy.savez, as x and y",
    ".pth": "save the tensors with numpy.savez, as x and y",
    ".xlsx": "save the sheet as .csv",
    ".feather": "save the table as .parquet",
    ".arrow": "save the table as .parquet",
    ".json": "save the rows as .csv or .parquet",
    ".jsonl": "save the rows as .csv or .parquet",
    ".zip": "unpack it into a folder",
    ".gz": "unpack it",
    ".tgz": "unpack it to .tar",
}


@dataclass(frozen=True)
class Entry:
    """What is known of one array without reading it.

    Attributes
    ----------
    shape : tuple of int
        Rows first.
    dtype : numpy.dtype
        Kind "U" for texts whatever their length.
    is_encoded : bool
        Whether its values are image files: bytes, the path of one, or None where there is none.
    class_names : tuple of str or None
        What its numbers stand for, where the file says so.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_encoded: bool = False
    class_names: tuple[str, ...] | None = None

    @property
    def is_text(self) -> bool:
        """Whether it holds texts."""
        return self.dtype.kind in "SUO"


class Store(Protocol):
    """A file of named arrays.

    Attributes
    ----------
    path : Path
        The file.
    is_table : bool
        Whether its arrays are columns of a table, so that plain columns of numbers are features.
    entries : dict of str to Entry
        Its arrays by name, in the order of the file.
    """

    path: Path
    is_table: bool
    entries: dict[str, Entry]

    def whole(self, name: str) -> NDArray[Any]:
        """Return a whole array: labels, ids, groups; nothing that is wide."""
        ...

    def texts(self, name: str) -> list[str]:
        """Return a whole array as texts, which takes less memory where they are long.

        Of image files, these are their names, empty where there is none.
        """
        ...

    def pieces(self, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        """Yield the chosen ascending `rows` of the named arrays in runs of any length.

        About `size` rows at a time are in memory, or what `WINDOW_BYTES` hold.
        """
        ...

    def place(self, row: int) -> str:
        """Return where a row is, in the file's own terms, such as ``line 12``."""
        ...


def open_store(path: Path) -> Store:
    """Open a file of arrays by its suffix.

    Raises
    ------
    CovcalError
        If it is no such file, or not readable.
    """
    suffix = suffix_of(path)
    if holds_parts(path):
        suffix = ".parquet"
    elif suffix not in SUFFIXES:
        raise CovcalError(
            f"{path} is no data that covcal reads: {_OTHERS.get(suffix, f'give a {KINDS}')}"
        )
    else:
        require_file(path, remedy=f"give a {KINDS} with one row per example")
    if suffix == ".npz":
        from covcal_cli.inputs.npz import NpzStore

        return NpzStore(path)
    if suffix == ".npy":
        from covcal_cli.inputs.npy import NpyStore

        return NpyStore(path)
    if suffix in (".h5", ".hdf5"):
        from covcal_cli.inputs.hdf5 import HDF5Store

        return HDF5Store(path)
    if suffix == ".parquet":
        from covcal_cli.inputs.parquet import ParquetStore

        return ParquetStore(path)
    from covcal_cli.inputs.csv_table import CSVStore

    return CSVStore(path)


def holds_parts(path: Path) -> bool:
    """Return whether a path is a folder of Parquet parts, as Spark and Dask write tables."""
    return path.is_dir() and holds_part(path)


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
