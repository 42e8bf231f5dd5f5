"""One Parquet file, opened for as long as it is read: its schema, and the rows of columns.

The least that is in memory of a column is a page, which the writer made: about 1 MB of numbers, but
up to 1024 image files where the row groups are as long.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.errors import CovcalError, one_line
from covcal_cli.inputs.parquet_columns import ArrowColumns
from covcal_cli.inputs.parquet_wide import column_sets, has_room, joined, row_bytes, stored_bytes
from covcal_cli.inputs.store import WINDOW_BYTES, Entry, Piece, Rows, regrouped

_FEWEST = 64
_USUAL = 1 << 13
_BUFFER = 1 << 13  # without one, a whole column of a row group is read at once


@dataclass(frozen=True)
class PartReader:
    """Reads one file of a table.

    Parameters
    ----------
    arrow : module
        pyarrow, with ``pyarrow.parquet``.
    path : Path
        The file.
    start : int
        Row of the table that is its first.
    """

    arrow: Any
    path: Path
    start: int

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Open the file as a `pyarrow.parquet.ParquetFile`.

        Raises
        ------
        CovcalError
            If it cannot be read, then or while it is open.
        """
        try:
            with self.arrow.parquet.ParquetFile(
                self.path, buffer_size=_BUFFER, pre_buffer=False
            ) as file:
                yield file
        except (self.arrow.ArrowException, OSError) as error:
            raise CovcalError(
                f"{self.path} is not a readable Parquet file ({one_line(error, 200)}): copy it "
                "again or save it again"
            ) from error

    def head(self, name: str, count: int) -> list[Any]:
        """Return the first `count` values of a column as Python has them."""
        with self.opened() as file:
            batch = next(file.iter_batches(count, columns=[name], use_threads=False))
            values: list[Any] = batch.column(0).to_pylist()
            return values

    def texts_within(self, name: str, field: str) -> Iterator[str]:
        """Yield the texts of one field of a column of structs, empty where there is none."""
        with self.opened() as file:
            for batch in file.iter_batches(columns=[f"{name}.{field}"], use_threads=False):
                yield from (value or "" for value in batch.column(0).field(field).to_pylist())

    def pieces(
        self,
        columns: ArrowColumns,
        entries: dict[str, Entry],
        rows: Rows,
        size: int,
    ) -> Iterator[Piece]:
        """Yield the chosen `rows`, numbered as in the table, of the columns in `entries`."""
        start = self.start
        with self.opened() as file:
            for group in range(file.num_row_groups):
                stop = start + file.metadata.row_group(group).num_rows
                first, last = np.searchsorted(rows, (start, stop))
                if last > first:
                    reader = _GroupReader(self.arrow, file, group, start, columns, entries)
                    yield from reader.pieces(rows[first:last], size)
                    self.arrow.default_memory_pool().release_unused()
                start = stop


@dataclass(frozen=True)
class _GroupReader:
    """Reads one row group of an open file, whose first row in the table is `start`."""

    arrow: Any
    file: Any
    group: int
    start: int
    columns: ArrowColumns
    entries: dict[str, Entry]

    def pieces(self, rows: Rows, size: int) -> Iterator[Piece]:
        """Yield the chosen rows, all columns at once or, of a wide table, set by set."""
        about = self.file.metadata.row_group(self.group)
        stored = stored_bytes(about, list(self.entries))
        width = row_bytes(self.entries, list(self.entries))
        size = min(max(size, _USUAL), WINDOW_BYTES // width)
        sets = column_sets(stored)
        if len(sets) > 1 and self._has_plain_values() and has_room(width * len(rows)):
            block = max(_FEWEST, size)
            yield from joined(self._blocks(names, rows, block) for names in sets)
            return
        fewest = _FEWEST
        if any(entry.is_encoded for entry in self.entries.values()):
            size = min(size, WINDOW_BYTES * about.num_rows // (sum(stored.values()) + 1))
            fewest = 1
        yield from self._read(list(self.entries), rows, max(fewest, size))

    def _blocks(self, names: Sequence[str], rows: Rows, block: int) -> Iterator[Piece]:
        fitting = WINDOW_BYTES // row_bytes(self.entries, names)
        yield from regrouped(self._read(names, rows, max(1, fitting // block) * block), block)
        self.arrow.default_memory_pool().release_unused()

    def _read(self, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        start = self.start
        batches = self.file.iter_batches(
            size, row_groups=[self.group], columns=list(names), use_threads=False
        )
        for batch in batches:
            first, last = np.searchsorted(rows, (start, start + batch.num_rows))
            chosen = rows[first:last]
            if len(chosen):
                taken = self.columns.chosen(batch, chosen - start)
                arrays = dict(zip(taken.schema.names, taken.columns, strict=True))
                yield (
                    chosen,
                    {
                        name: self.columns.values(arrays[name], name, self.entries[name], chosen)
                        for name in names
                    },
                )
            start += batch.num_rows
            if start > rows[-1]:
                return

    def _has_plain_values(self) -> bool:
        return all(entry.dtype.kind in "fiub" for entry in self.entries.values())
