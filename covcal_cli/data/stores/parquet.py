"""Read ``.parquet`` tables: one file, or a folder of files.

pyarrow's datasets can need several GB, because they read whole row groups. A `ParquetFile` with a
small buffer reads one page per column at a time.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from covcal_cli.arrays import AnyArray, Rows
from covcal_cli.data.stores.arrow_columns import ArrowColumns, described_features, pandas_index
from covcal_cli.data.stores.json_layouts import may_name_classes
from covcal_cli.data.stores.store import WINDOW_BYTES, Entry, Piece, Store, between
from covcal_cli.errors import CovcalError, one_line

_HEAD = 8  # Number of values that are read to find the type of a column.
_BUFFER = 1 << 13  # Without a buffer, pyarrow reads whole columns.
_FEWEST, _USUAL = 64, 1 << 13  # Minimum and usual number of rows in a batch.
_PAGES = 2 << 20  # Memory of a column while it is read, in bytes.
_ENOUGH = 128 << 20  # Memory limit for reading all columns at once, in bytes.
_SET = 16 << 20  # Maximum memory of a set of columns, in bytes.
_HELD = 64 << 20  # Memory of the rows to read at a time, in bytes.
# Minimum number of rows to read at a time.
_FEWEST_HELD = 1 << 16


class _Group(NamedTuple):
    file: Any
    number: int
    start: int  # Row number of the first row.


class ParquetStore(Store):
    """The columns of a Parquet table, which are the same in all its files.

    A column of equally long lists of numbers becomes an array with two axes. The keys of folders
    ``KEY=VALUE`` become columns.
    """

    is_table = True

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise CovcalError(
                f"covcal needs pyarrow to read {path}: run pip install pyarrow"
            ) from error
        self.path = path
        self._arrow: Any = pyarrow
        self._columns = ArrowColumns(pyarrow, path)
        parts = find_parts(path)
        self._files = [part.path for part in parts]
        self._bounds = [0]  # First row number of each file, and number of all rows.
        with self._opened(self._files[0]) as file:
            self._schema: Any = file.schema_arrow
        names = self._schema.names
        if len({*names}) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise CovcalError(
                f"{self._files[0]}: two columns are called {twice!r}: rename one of them"
            )
        for own_path in self._files:
            with self._opened(own_path) as file:
                names = file.schema_arrow.names
                self._bounds.append(self._bounds[-1] + file.metadata.num_rows)
            if sorted(names) != sorted(self._schema.names):
                raise CovcalError(
                    f"{own_path} and {self._files[0].name} have different columns: give only "
                    "files of one table"
                )
        self._n = self._bounds[-1]
        features = described_features(self._schema)
        self.entries: dict[str, Entry] = {
            field.name: self._columns.entry(
                field, self._n, self._head, features.get(field.name, {})
            )
            for field in self._schema
        }
        for name, entry in self.entries.items():
            if self._columns.are_pairs(self._schema.field(name).type):
                names = self._classes_of(name)
                self.entries[name] = replace(entry, shape=(self._n, len(names)), class_names=names)
        self._name_classes()
        for name in pandas_index(self._schema):
            if name in self.entries:
                self.entries[name] = replace(self.entries[name], is_index=True)
        self._of_parts = {
            key: values
            for key, values in partition_values(parts).items()
            if key not in self.entries
        }
        for key, values in self._of_parts.items():
            dtype = np.dtype(str) if values.dtype.kind == "U" else values.dtype
            self.entries[key] = Entry((self._n,), dtype)

    def texts(self, name: str) -> list[str]:
        """Return a whole column as texts. For an embedded image, the text is its file name."""
        if not self.entries[name].is_encoded:
            return super().texts(name)
        field = self._columns.name_field(self._schema.field(name))
        if field is None:
            return [""] * self._n
        texts: list[str] = []
        for path in self._files:
            with self._opened(path) as file:
                for batch in file.iter_batches(columns=[f"{name}.{field}"], use_threads=False):
                    names = batch.column(0).field(field).to_pylist()
                    texts += [value or "" for value in names]
        return texts

    def pieces(self, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        """Yield the rows in parts. A missing number becomes NaN."""
        within = [name for name in names if name not in self._of_parts]
        for number, (start, stop) in enumerate(pairwise(self._bounds)):
            own = between(rows, start, stop)
            if not len(own):
                continue
            keys = {name: self._of_parts[name][number] for name in names if name not in within}
            pieces = self._of_file(number, within, own, size) if within else [(own, {})]
            for chosen, arrays in pieces:
                more = {name: np.full(len(chosen), value) for name, value in keys.items()}
                yield chosen, {**arrays, **more}

    def _classes_of(self, name: str) -> tuple[str, ...]:
        classes: set[str] = set()
        for path in self._files:
            with self._opened(path) as file:
                for batch in file.iter_batches(columns=[name], use_threads=False):
                    labels, _ = self._columns.pairs(batch.column(0))
                    classes.update(map(str, labels.unique().to_pylist()))
        return tuple(sorted(classes))

    def _name_classes(self) -> None:
        """Use the texts in a column of lists as class names if all rows have the same list."""
        unnamed = {
            name: entry
            for name, entry in self.entries.items()
            if len(entry.shape) == 2 and entry.class_names is None
        }
        for name in self.entries if unnamed and self._n else ():
            field = self._schema.field(name)
            if not (may_name_classes(name) and self._columns.are_text_lists(field.type)):
                continue
            names = tuple(self._head(name)[0] or ())
            outputs = [key for key, entry in unnamed.items() if entry.shape[1] == len(names)]
            if len({*names}) != len(names) or len(outputs) != 1:
                continue
            for path in self._files:
                with self._opened(path) as file:
                    for batch in file.iter_batches(columns=[name], use_threads=False):
                        self._columns.require_equal_lists(batch.column(0), name, names)
            self.entries[outputs[0]] = replace(unnamed[outputs[0]], class_names=names)

    def _head(self, name: str) -> list[Any]:
        first = next(number for number, stop in enumerate(self._bounds[1:]) if stop > 0)
        with self._opened(self._files[first]) as file:
            batch = next(file.iter_batches(_HEAD, columns=[name], use_threads=False))
            values: list[Any] = batch.column(0).to_pylist()
            return values

    @contextmanager
    def _opened(self, path: Path) -> Iterator[Any]:
        try:
            with self._arrow.parquet.ParquetFile(
                path, buffer_size=_BUFFER, pre_buffer=False
            ) as file:
                yield file
        except (self._arrow.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
            # Damaged texts raise UnicodeDecodeError, and damaged dates raise OverflowError.
            raise CovcalError(
                f"{path} is not a readable Parquet file ({one_line(error, 200)}): copy it again or "
                "save it again"
            ) from error

    def _of_file(self, number: int, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        start = self._bounds[number]
        with self._opened(self._files[number]) as file:
            for group in range(file.num_row_groups):
                stop = start + file.metadata.row_group(group).num_rows
                own = between(rows, start, stop)
                if len(own):
                    yield from self._of_group(_Group(file, group, start), names, own, size)
                    self._arrow.default_memory_pool().release_unused()
                start = stop

    def _of_group(
        self, group: _Group, names: Sequence[str], rows: Rows, size: int
    ) -> Iterator[Piece]:
        about = group.file.metadata.row_group(group.number)
        stored = {name: about.num_rows * self._row_bytes([name]) for name in names}
        others = [name for name in names if self.entries[name].dtype.kind not in "fiub"]
        stored |= _stored_bytes(group, others)
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
        """Read one set of columns after the other, to save memory."""
        width = sum(map(self._row_bytes, sets))
        n_joined = max(_FEWEST_HELD, _HELD // width)
        for first in range(0, len(rows), n_joined):
            chosen = rows[first : first + n_joined]
            arrays: dict[str, AnyArray] = {}
            for names in sets:
                few = max(1, WINDOW_BYTES // self._row_bytes(names))
                parts = [part for _, part in self._batches(group, names, chosen, few)]
                for name in names:
                    arrays[name] = np.concatenate([part.pop(name) for part in parts])
                self._arrow.default_memory_pool().release_unused()
            for at in range(0, len(chosen), size):
                piece = slice(at, at + size)
                # A view would keep more rows in memory.
                yield chosen[piece], {name: values[piece].copy() for name, values in arrays.items()}

    def _batches(
        self, group: _Group, names: Sequence[str], rows: Rows, size: int
    ) -> Iterator[Piece]:
        start = group.start
        for batch in group.file.iter_batches(
            size, row_groups=[group.number], columns=list(names), use_threads=False
        ):
            chosen = between(rows, start, start + batch.num_rows)
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
        entries = [self.entries[name] for name in names]
        return sum((entry.dtype.itemsize or 8) * math.prod(entry.shape[1:]) for entry in entries)


def _stored_bytes(group: _Group, names: Sequence[str]) -> dict[str, int]:
    """Return the size of each column in bytes, as declared in the file."""
    # If the size of a column is damaged, reading a row raises an error, but asking pyarrow for the
    # size ends the process. So read a row first.
    for name in names:
        column = {"row_groups": [group.number], "columns": [name], "use_threads": False}
        next(group.file.iter_batches(1, **column), None)
    about, schema = group.file.metadata.row_group(group.number), group.file.schema
    sizes = dict.fromkeys(names, 0)
    for index in range(about.num_columns):
        # The path of a list or struct begins with the name of the column.
        path = schema.column(index).path
        name = path.partition(".")[0]
        if name not in sizes:
            name = path
        if name in sizes:
            sizes[name] += about.column(index).total_uncompressed_size
    return sizes


def _column_sets(stored: Mapping[str, int]) -> list[list[str]]:
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


# Spark, Dask, Polars and pyarrow write a table as a folder of files, perhaps in nested folders
# ``KEY=VALUE``.

_PATTERN = "[!._]*.parquet"  # The names of Spark's own files begin with a dot or an underscore.
_NOTHING = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True)
class Part:
    """One file of a table."""

    path: Path
    # KEY and VALUE of each folder above; None for a missing VALUE.
    keys: Mapping[str, str | None]


def holds_parts(path: Path) -> bool:
    """Return whether `path` is a folder of Parquet files or of folders ``KEY=VALUE``."""
    return path.is_dir() and (any(path.glob(_PATTERN)) or any(map(holds_parts, _partitions(path))))


def find_parts(path: Path) -> list[Part]:
    """Return the files of a table in order."""
    if not path.is_dir():
        return [Part(path, {})]
    if kind := _keeps_old_rows(path):
        raise CovcalError(
            f"{path} is a {kind} table, whose folder also holds deleted rows: write its current "
            "rows to one Parquet file"
        )
    parts = list(_below(path, {}))
    by = [", ".join(part.keys) or "nothing" for part in parts]
    for other in by:
        if other != by[0]:
            raise CovcalError(
                f"the files in {path} have different partitions ({by[0]} and {other}): give only "
                "files of one table"
            )
    return parts


def _keeps_old_rows(folder: Path) -> str | None:
    """Return the table format, such as Delta, if the folder also holds deleted rows; else None."""
    if (folder / ".hoodie").is_dir() or any(folder.glob("../metadata/*.metadata.json")):
        return "Hudi" if (folder / ".hoodie").is_dir() else "Iceberg"
    log = folder / "_delta_log"
    # A checkpoint replaces older logs, which may be gone.
    if any(log.glob("*.checkpoint*.parquet")):
        return "Delta"
    logs = (file.read_text(encoding="utf-8", errors="replace") for file in log.glob("*.json"))
    deletes = any('"remove"' in text or '"deletionVector"' in text for text in logs)
    return "Delta" if deletes else None


def partition_values(parts: Sequence[Part]) -> dict[str, AnyArray]:
    """Return for each KEY of the folders ``KEY=VALUE`` an array with one value per file.

    Whole numbers are int64, or float64 with NaN for missing numbers. All other values are texts.
    """
    arrays: dict[str, AnyArray] = {}
    for key in parts[0].keys:
        values = [part.keys[key] for part in parts]
        present = [value for value in values if value is not None]
        if not present or not all(_WHOLE.fullmatch(value) for value in present):
            arrays[key] = np.array([value or "" for value in values], dtype=str)
        elif len(present) == len(values):
            arrays[key] = np.array([int(value) for value in present], dtype=np.int64)
        else:
            numbers = [float("nan") if value is None else int(value) for value in values]
            arrays[key] = np.array(numbers, dtype=np.float64)
    return arrays


def refuse_unnamed_parts(folder: Path) -> None:
    """Refuse inner folders of Parquet files whose names are not ``KEY=VALUE``."""
    for entry in sorted(folder.iterdir()):
        named = "=" in entry.name or entry.name.startswith((".", "_"))
        if not named and entry.is_dir() and any(entry.glob(_PATTERN)):
            raise CovcalError(
                f"{folder} holds Parquet files in its folder {entry.name}, which is not named "
                "KEY=VALUE: give only this inner folder, or rename it"
            )


def _below(folder: Path, keys: Mapping[str, str | None]) -> Iterator[Part]:
    files, partitions = sorted(folder.glob(_PATTERN)), _partitions(folder)
    if files and any(map(holds_parts, partitions)):
        raise CovcalError(
            f"{folder} has both the file {files[0].name} and partitions such as "
            f"{partitions[0].name}: give only the file or only the partitions"
        )
    # Do not search folders of other data, which may have many files.
    if keys or partitions:
        refuse_unnamed_parts(folder)
    yield from (Part(file, keys) for file in files)
    for partition in partitions:
        key, _, value = (unquote(text) for text in partition.name.partition("="))
        if key in keys:
            raise CovcalError(
                f"{partition}: the key {key} occurs twice in this path: rename one of the folders"
            )
        yield from _below(partition, {**keys, key: None if value == _NOTHING else value})


def _partitions(folder: Path) -> list[Path]:
    return sorted(
        entry
        for entry in folder.iterdir()
        if "=" in entry.name and not entry.name.startswith((".", "_", "=")) and entry.is_dir()
    )
