"""``.parquet`` tables, one file or a folder of parts, read batch by batch through pyarrow."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.inputs.store import WINDOW_BYTES, Entry, Piece, Rows, parts_of

_OTHER = np.dtype("V1")  # structs, nested lists: there, but neither numbers nor texts


class ParquetStore:
    """The columns of a Parquet table; see `covcal_cli.inputs.store.Store`.

    Columns of equally long lists of numbers are arrays with two axes.

    Raises
    ------
    CovcalError
        If pyarrow is missing, or a file is not readable or has other columns than the first.
    """

    is_table = True

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise CovcalError(f"{path}: this needs pyarrow: pip install pyarrow") from error
        self.path = path
        self._arrow = pyarrow
        files = parts_of(path) if path.is_dir() else [path]
        self._parts: list[tuple[Path, int]] = []
        schema = None
        for part in files:
            with self._opened(part) as file:
                own = file.schema_arrow
                self._parts.append((part, file.metadata.num_rows))
            schema = own if schema is None else schema
            if own.names != schema.names:
                raise CovcalError(
                    f"{part} has other columns than {files[0].name}: give files of one table"
                )
        self._n = sum(n for _, n in self._parts)
        if self._n == 0:
            raise CovcalError(f"{path} has no rows: give one row per example")
        self.entries: dict[str, Entry] = {field.name: self._entry(field) for field in schema or ()}

    def whole(self, name: str) -> NDArray[Any]:
        """Return a whole column; an empty text or NaN where there is no value."""
        return np.concatenate(list(self._all(name)))

    def texts(self, name: str) -> list[str]:
        """Return a whole column as texts."""
        return [str(value) for part in self._all(name) for value in part.tolist()]

    def pieces(self, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        """Yield the chosen rows of the row groups that hold any; NaN where there is no value."""
        row_bytes = sum(8 * (self.entries[name].shape[1:] or (1,))[0] for name in names)
        size = max(64, min(max(size, 1 << 13), WINDOW_BYTES // max(1, row_bytes)))
        start = 0
        for part, n in self._parts:
            first, last = np.searchsorted(rows, (start, start + n))
            if last > first:
                yield from self._of_part(part, names, rows[first:last], start, size)
            start += n

    def place(self, row: int) -> str:
        """Return the row's number."""
        return f"row {row}"

    def _all(self, name: str) -> Iterator[NDArray[Any]]:
        rows = np.arange(self._n, dtype=np.int64)
        return (part[name] for _, part in self.pieces([name], rows, 1 << 14))

    def _of_part(
        self, part: Path, names: Sequence[str], rows: Rows, start: int, size: int
    ) -> Iterator[Piece]:
        with self._opened(part) as file:
            for group in range(file.num_row_groups):
                stop = start + file.metadata.row_group(group).num_rows
                first, last = np.searchsorted(rows, (start, stop))
                if first == last:
                    start = stop
                    continue
                batches = file.iter_batches(
                    size, row_groups=[group], columns=list(names), use_threads=False
                )
                for batch in self._guarded(part, batches):
                    first, last = np.searchsorted(rows, (start, start + batch.num_rows))
                    chosen = rows[first:last]
                    if len(chosen):
                        whole = len(chosen) == batch.num_rows
                        taken = batch if whole else batch.take(self._arrow.array(chosen - start))
                        columns = dict(zip(taken.schema.names, taken.columns, strict=True))
                        yield (
                            chosen,
                            {name: self._values(columns[name], name, chosen) for name in names},
                        )
                    start += batch.num_rows
                self._arrow.default_memory_pool().release_unused()

    def _values(self, column: Any, name: str, rows: Rows) -> NDArray[Any]:
        entry = self.entries[name]
        if entry.is_text:
            texts = ["" if value is None else str(value) for value in column.to_pylist()]
            return np.array(texts, dtype=str)
        if len(entry.shape) == 1:
            return self._flat(column)
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(lengths != entry.shape[1])  # NaN, of no list, differs as well
        if len(wrong):
            found = "no list" if lengths[wrong[0]] != lengths[wrong[0]] else int(lengths[wrong[0]])
            raise CovcalError(
                f"{self.path}: column {name} has {found} in row {rows[wrong[0]]}, where row 0 has "
                f"{entry.shape[1]} values: give every row as many"
            )
        return self._flat(column.flatten()).reshape(len(column), -1)

    def _flat(self, column: Any) -> NDArray[Any]:
        types = self._arrow.types
        decimal = types.is_decimal(column.type)
        if decimal or (column.null_count and types.is_boolean(column.type)):
            column = column.cast(self._arrow.float64())
        values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return values

    def _entry(self, field: Any) -> Entry:
        types, kind = self._arrow.types, field.type
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            inner = self._number_type(kind.value_type)
            width = None if inner is None else self._width(field.name)
            return Entry((self._n,), _OTHER) if not width else Entry((self._n, width), inner)
        if types.is_dictionary(kind):
            kind = kind.value_type
        number = self._number_type(kind)
        if number is not None:
            return Entry((self._n,), number)
        nested = types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind)
        return Entry((self._n,), _OTHER if nested or types.is_null(kind) else np.dtype(str))

    def _number_type(self, kind: Any) -> Any:
        types = self._arrow.types
        if types.is_decimal(kind):
            return np.dtype(np.float64)
        plain = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
        return np.dtype(kind.to_pandas_dtype()) if plain else None

    def _width(self, name: str) -> int | None:
        """Return the length of the first list of a column."""
        with self._opened(next(part for part, n in self._parts if n)) as file:
            batch = next(iter(file.iter_batches(1, columns=[name])))
        first = batch.column(0)[0].as_py()
        return None if first is None else len(first)

    def _opened(self, part: Path) -> Any:
        # Unbuffered, a whole column of a row group is read at once.
        try:
            return self._arrow.parquet.ParquetFile(part, buffer_size=1 << 13, pre_buffer=False)
        except (self._arrow.ArrowException, OSError) as error:
            raise self._unreadable(part, error) from error

    def _guarded(self, part: Path, batches: Any) -> Iterator[Any]:
        try:
            yield from batches
        except (self._arrow.ArrowException, OSError) as error:
            raise self._unreadable(part, error) from error

    def _unreadable(self, part: Path, error: Exception) -> CovcalError:
        reason = " ".join(str(error).split())[:200]
        return CovcalError(
            f"{part} is not a readable Parquet file ({reason}): copy it again or save it again"
        )
