"""``.parquet`` tables, one file or a folder of parts, read batch by batch through pyarrow."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.inputs.parquet_columns import ArrowColumns, described_features
from covcal_cli.inputs.parquet_reading import PartReader
from covcal_cli.inputs.parts import find_parts, partition_values
from covcal_cli.inputs.store import Entry, Piece, Rows

_HEAD = 8  # values that show what a column holds


class ParquetStore:
    """The columns of a Parquet table; see `covcal_cli.inputs.store.Store`.

    Columns of equally long lists of numbers are arrays with two axes. What the folders of a
    partitioned table say of their rows are columns too, unless its parts have them already.

    Raises
    ------
    CovcalError
        If pyarrow is missing, or a file is not readable has other columns than the first, or
        two columns of one name.
    """

    is_table = True

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise CovcalError(f"{path}: this needs pyarrow: pip install pyarrow") from error
        self.path = path
        self._columns = ArrowColumns(pyarrow, path)
        self._readers: list[PartReader] = []
        self._n = 0
        parts = find_parts(path)
        schema: Any = None
        for part in parts:
            reader = PartReader(pyarrow, part.path, self._n)
            with reader.opened() as file:
                own = file.schema_arrow
                self._n += file.metadata.num_rows
            if schema is None:
                schema = own
                _require_distinct(part.path, own.names)
            if own.names != schema.names:
                raise CovcalError(
                    f"{part.path} has other columns than {parts[0].path.name}: give files of one "
                    "table"
                )
            self._readers.append(reader)
        if self._n == 0:
            raise CovcalError(f"{path} has no rows: give one row per example")
        self._schema = schema
        features = described_features(schema)
        self.entries: dict[str, Entry] = {
            field.name: self._columns.entry(
                field, self._n, self._head, features.get(field.name, {})
            )
            for field in schema
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
        return [text for reader in self._readers for text in reader.texts_within(name, field)]

    def pieces(self, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        """Yield the chosen rows of the row groups that hold any; NaN where there is no value."""
        within = {name: self.entries[name] for name in names if name not in self._of_parts}
        bounds = [*(reader.start for reader in self._readers), self._n]
        for number, reader in enumerate(self._readers):
            first, last = np.searchsorted(rows, bounds[number : number + 2])
            if first == last:
                continue
            known = {name: self._of_parts[name][number] for name in names if name not in within}
            own = rows[first:last]
            pieces = reader.pieces(self._columns, within, own, size) if within else [(own, {})]
            for chosen, arrays in pieces:
                more = {name: np.full(len(chosen), value) for name, value in known.items()}
                yield chosen, {**arrays, **more}

    def place(self, row: int) -> str:
        """Return the row's number."""
        return f"row {row}"

    def _all(self, name: str) -> Iterator[NDArray[Any]]:
        rows = np.arange(self._n, dtype=np.int64)
        return (part[name] for _, part in self.pieces([name], rows, 1 << 14))

    def _head(self, name: str) -> list[Any]:
        """Return the first values of a column."""
        bounds = [*(reader.start for reader in self._readers), self._n]
        first = next(number for number, stop in enumerate(bounds[1:]) if stop > 0)
        return self._readers[first].head(name, _HEAD)


def _require_distinct(path: Path, names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:  # a reader by name would take the last one
            raise CovcalError(f"{path}: two columns are called {name!r}: rename one of them")
