"""``.parquet`` tables, one file or a folder of parts, streamed through ``pyarrow.parquet``.

pyarrow's datasets would hold whole row groups, 1.2 GB of 400 000 x 256 numbers in one group. A
`ParquetFile` with a small buffer holds the pages that it stands in: of each column up to one of
values and one of its dictionary, about 1 MB each as most writers make them, but up to 1024 image
files.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.inputs.parquet_columns import ArrowColumns, described_features
from covcal_cli.inputs.parts import find_parts, partition_values
from covcal_cli.inputs.store import WINDOW_BYTES, Entry, Piece, Rows, Store

_HEAD = 8  # values that show what a column holds
_BUFFER = 1 << 13  # without one, a whole column of a row group is read at once
_FEWEST, _USUAL = 64, 1 << 13  # rows of a batch
_PAGES = 2 << 20  # bytes of an open column
_ENOUGH = 64 << 20  # bytes of all open columns up to which nothing is cut
_SET = 16 << 20  # bytes of the open columns of a set
_HELD = 64 << 20  # bytes of the rows that sets are joined for
_FEWEST_HELD = 1 << 16  # rows, whatever their bytes: each time, the rows before are read again


class _Group(NamedTuple):
    """A row group of an open file."""

    file: Any
    number: int
    start: int  # its first row, as the table counts


class ParquetStore(Store):
    """The columns of a Parquet table, whose parts must have the same.

    Columns of equally long lists of numbers are arrays with two axes. What the folders of a
    partitioned table say of their rows are columns too, unless its parts have them already.
    """

    is_table = True

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise CovcalError(f"{path}: this needs pyarrow: pip install pyarrow") from error
        self.path = path
        self._arrow: Any = pyarrow
        self._columns = ArrowColumns(pyarrow, path)
        parts = find_parts(path)
        self._files = [part.path for part in parts]
        self._bounds = [0]  # the first row of every file, and the number of all rows
        with self._opened(self._files[0]) as file:
            self._schema: Any = file.schema_arrow
        _require_distinct(self._files[0], self._schema.names)
        for own_path in self._files:
            with self._opened(own_path) as file:
                names = file.schema_arrow.names
                self._bounds.append(self._bounds[-1] + file.metadata.num_rows)
            if names != self._schema.names:
                raise CovcalError(
                    f"{own_path} has other columns than {self._files[0].name}: give files of one "
                    "table"
                )
        self._n = self._bounds[-1]
        if self._n == 0:
            raise CovcalError(f"{path} has no rows: give one row per example")
        features = described_features(self._schema)
        self.entries: dict[str, Entry] = {
            field.name: self._columns.entry(
                field, self._n, self._head, features.get(field.name, {})
            )
            for field in self._schema
        }
        self._of_parts = {
            key: values
            for key, values in partition_values(parts).items()
            if key not in self.entries
        }
        for key, values in self._of_parts.items():
            dtype = np.dtype(str) if values.dtype.kind == "U" else values.dtype
            self.entries[key] = Entry((self._n,), dtype)

    def whole(self, name: str) -> NDArray[Any]:
        """Return a whole column; an empty text or NaN where there is no value."""
        return np.concatenate(list(self._all(name)))

    def texts(self, name: str) -> list[str]:
        """Return a whole column as texts; of image files, their names."""
        if not self.entries[name].is_encoded:
            return [str(value) for part in self._all(name) for value in part.tolist()]
        field = self._columns.name_field(self._schema.field(name))
        if field is None:
            return [""] * self._n
        found: list[str] = []
        for path in self._files:
            with self._opened(path) as file:
                for batch in file.iter_batches(columns=[f"{name}.{field}"], use_threads=False):
                    names = batch.column(0).field(field).to_pylist()
                    found += [value or "" for value in names]
        return found

    def pieces(self, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        """Yield the chosen rows of the row groups that hold any; NaN where there is no value."""
        within = [name for name in names if name not in self._of_parts]
        for number, (start, stop) in enumerate(pairwise(self._bounds)):
            own = _between(rows, start, stop)
            if not len(own):
                continue
            said = {name: self._of_parts[name][number] for name in names if name not in within}
            pieces = self._of_file(number, within, own, size) if within else [(own, {})]
            for chosen, arrays in pieces:
                more = {name: np.full(len(chosen), value) for name, value in said.items()}
                yield chosen, {**arrays, **more}

    def _all(self, name: str) -> Iterator[NDArray[Any]]:
        rows = np.arange(self._n, dtype=np.int64)
        return (part[name] for _, part in self.pieces([name], rows, 1 << 14))

    def _head(self, name: str) -> list[Any]:
        """Return the first values of a column as Python has them."""
        first = next(number for number, stop in enumerate(self._bounds[1:]) if stop > 0)
        with self._opened(self._files[first]) as file:
            batch = next(file.iter_batches(_HEAD, columns=[name], use_threads=False))
            values: list[Any] = batch.column(0).to_pylist()
            return values

    @contextmanager
    def _opened(self, path: Path) -> Iterator[Any]:
        """Open one file as a `ParquetFile`, and say so if it cannot be read while it is open."""
        try:
            with self._arrow.parquet.ParquetFile(
                path, buffer_size=_BUFFER, pre_buffer=False
            ) as file:
                yield file
        except (self._arrow.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())[:200]
            raise CovcalError(
                f"{path} is not a readable Parquet file ({reason}): copy it again or save it again"
            ) from error

    def _of_file(self, number: int, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        start = self._bounds[number]
        with self._opened(self._files[number]) as file:
            for group in range(file.num_row_groups):
                stop = start + file.metadata.row_group(group).num_rows
                own = _between(rows, start, stop)
                if len(own):
                    yield from self._of_group(_Group(file, group, start), names, own, size)
                    self._arrow.default_memory_pool().release_unused()
                start = stop

    def _of_group(
        self, group: _Group, names: Sequence[str], rows: Rows, size: int
    ) -> Iterator[Piece]:
        about = group.file.metadata.row_group(group.number)
        stored = _stored_bytes(about, names)
        width = self._row_bytes(names)
        size = min(max(size, _USUAL), WINDOW_BYTES // width)
        sets = _column_sets(stored)
        if len(sets) > 1 and all(self.entries[name].dtype.kind in "fiub" for name in names):
            yield from self._joined(group, sets, rows, max(_FEWEST, size))
            return
        fewest = _FEWEST
        if any(self.entries[name].is_encoded for name in names):
            size = min(size, WINDOW_BYTES * about.num_rows // (sum(stored.values()) + 1))
            fewest = 1
        yield from self._batches(group, names, rows, max(fewest, size))

    def _joined(
        self, group: _Group, sets: Sequence[Sequence[str]], rows: Rows, size: int
    ) -> Iterator[Piece]:
        """Read some columns after the others, since all side by side would hold a page each.

        Only a reader that begins at the start of a row group reaches its later rows: so many rows
        are held at a time as keep the number of times small.
        """
        width = sum(map(self._row_bytes, sets))
        held = max(_FEWEST_HELD, _HELD // width)
        for first in range(0, len(rows), held):
            chosen = rows[first : first + held]
            arrays: dict[str, NDArray[Any]] = {}
            for names in sets:
                few = max(1, WINDOW_BYTES // self._row_bytes(names))
                found = [part for _, part in self._batches(group, names, chosen, few)]
                for name in names:
                    arrays[name] = np.concatenate([part.pop(name) for part in found])
                self._arrow.default_memory_pool().release_unused()
            for at in range(0, len(chosen), size):
                piece = slice(at, at + size)
                # Copies: a view would keep all held rows alive while the next are read.
                yield chosen[piece], {name: values[piece].copy() for name, values in arrays.items()}

    def _batches(
        self, group: _Group, names: Sequence[str], rows: Rows, size: int
    ) -> Iterator[Piece]:
        """Yield the chosen rows of some columns, reading `size` rows at a time."""
        start = group.start
        for batch in group.file.iter_batches(
            size, row_groups=[group.number], columns=list(names), use_threads=False
        ):
            chosen = _between(rows, start, start + batch.num_rows)
            if len(chosen):
                taken = self._columns.chosen(batch, chosen - start)
                arrays = dict(zip(taken.schema.names, taken.columns, strict=True))
                yield (
                    chosen,
                    {
                        name: self._columns.values(arrays[name], name, self.entries[name], chosen)
                        for name in names
                    },
                )
            start += batch.num_rows
            if start > rows[-1]:
                return

    def _row_bytes(self, names: Sequence[str]) -> int:
        """Return what a row of these columns takes in memory, texts taken for numbers."""
        entries = [self.entries[name] for name in names]
        return sum((entry.dtype.itemsize or 8) * math.prod(entry.shape[1:]) for entry in entries)


def _require_distinct(path: Path, names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:  # a reader by name would take the last one
            raise CovcalError(f"{path}: two columns are called {name!r}: rename one of them")


def _between(rows: Rows, start: int, stop: int) -> Rows:
    first, last = np.searchsorted(rows, (start, stop))
    return rows[first:last]


def _stored_bytes(group: Any, names: Sequence[str]) -> dict[str, int]:
    """Return how many bytes each of some columns takes in a row group before compression."""
    found = dict.fromkeys(names, 0)
    for index in range(group.num_columns):
        column = group.column(index)
        name = column.path_in_schema.partition(".")[0]  # of a list or struct
        if name not in found:
            name = column.path_in_schema
        if name in found:
            found[name] += column.total_uncompressed_size
    return found


def _column_sets(stored: Mapping[str, int]) -> list[list[str]]:
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
