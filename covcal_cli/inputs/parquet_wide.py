"""Row groups with many columns, read a few columns at a time and joined in a scratch file.

An open column takes up to two pages of about 1 MB, one of them its dictionary, and only a reader
that begins at the start of a row group can reach a later row: 512 columns side by side take 1 GB.
"""

import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.inputs.store import Entry, Piece, Rows

_Layout = tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]
"""Arrays that lie one after the other: their names, types and shapes."""

_PAGES = 2 << 20  # bytes of an open column: two pages as most writers make them
_ENOUGH = 64 << 20  # bytes of all open columns up to which nothing is cut
_SET = 16 << 20  # bytes of the open columns of a set
_BUFFER = 256 << 10
_SPARE = 1.1


def stored_bytes(group: Any, names: Sequence[str]) -> dict[str, int]:
    """Return how many bytes each of some columns takes in a row group before compression.

    Parameters
    ----------
    group : pyarrow.parquet.RowGroupMetaData
        What the file says of the row group.
    names : sequence of str
        The columns.
    """
    found = dict.fromkeys(names, 0)
    for index in range(group.num_columns):
        column = group.column(index)
        name = column.path_in_schema.partition(".")[0]  # of a list or struct
        if name not in found:
            name = column.path_in_schema
        if name in found:
            found[name] += column.total_uncompressed_size
    return found


def column_sets(stored: Mapping[str, int]) -> list[list[str]]:
    """Cut columns, given with their stored bytes, into sets that can be open together."""
    opened = {name: min(size, _PAGES) for name, size in stored.items()}
    if sum(opened.values()) <= _ENOUGH:
        return [list(opened)]
    sets: list[list[str]] = [[]]
    total = 0
    for name, size in opened.items():
        if sets[-1] and total + size > _SET:
            sets.append([])
            total = 0
        sets[-1].append(name)
        total += size
    return sets


def row_bytes(entries: Mapping[str, Entry], names: Sequence[str]) -> int:
    """Return what a row of these columns takes in memory, texts taken for numbers."""
    return sum(
        (entries[name].dtype.itemsize or 8) * math.prod(entries[name].shape[1:]) for name in names
    )


def has_room(needed: int) -> bool:
    """Return whether a scratch file of so many bytes fits on its disk."""
    return needed * _SPARE < shutil.disk_usage(_folder()).free


def joined(streams: Iterable[Iterator[Piece]]) -> Iterator[Piece]:
    """Read one stream after the other, and yield the arrays of all of them side by side.

    The scratch file has no name, so that nothing is left of it however the process ends.

    Parameters
    ----------
    streams : iterable of iterators of Piece
        Other arrays of the same rows, cut into pieces at the same rows.

    Raises
    ------
    CovcalError
        If the scratch file cannot be written.
    """
    try:
        with tempfile.TemporaryFile(buffering=_BUFFER, dir=_folder()) as file:
            layouts: dict[_Layout, _Layout] = {}  # shared: a table can have 100 000 places
            runs: list[tuple[Rows, list[tuple[int, _Layout]]]] = []
            for stream in streams:
                for number, (rows, arrays) in enumerate(stream):
                    if number == len(runs):
                        runs.append((rows, []))
                    layout = tuple((name, a.dtype, a.shape) for name, a in arrays.items())
                    place = file.tell(), layouts.setdefault(layout, layout)
                    runs[number][1].append(place)
                    for array in arrays.values():
                        file.write(np.ascontiguousarray(array).view(np.uint8).data)
            for rows, places in runs:
                yield rows, dict(chain.from_iterable(_read(file, *place) for place in places))
    except OSError as error:
        raise CovcalError(
            f"{_folder()} takes no scratch file for a wide table ({error.strerror or error}): free "
            "some space, or set TMPDIR to another folder"
        ) from error


def _read(file: Any, offset: int, layout: _Layout) -> Iterator[tuple[str, NDArray[Any]]]:
    file.seek(offset)
    for name, dtype, shape in layout:
        array = np.empty(shape, dtype)
        file.readinto(array)
        yield name, array


def _folder() -> str:
    """Return where large files may lie for a while; the usual folder is often in memory."""
    large = Path("/var/tmp")
    usable = "TMPDIR" not in os.environ and large.is_dir() and os.access(large, os.W_OK)
    return str(large) if usable else tempfile.gettempdir()
