"""Stream ``.parquet`` tables, one file or a folder of parts, through ``pyarrow.parquet``.

pyarrow's datasets would hold whole row groups in memory: 1.2 GB for a group of 400,000 x 256
numbers. A `ParquetFile` with a small buffer holds only the current pages: one page of values per
column and perhaps one of its dictionary. Most writers make pages of about 1 MB, but a page may also
hold 1,024 image files.

`ParquetStore` reads tables this way. Below it come the parts of a table, and the values of columns.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from covcal_cli.arrays import AnyArray, Rows
from covcal_cli.data.stores.store import WINDOW_BYTES, Encoded, Entry, Piece, Store, is_image_file
from covcal_cli.errors import CovcalError
from covcal_cli.records import parsed_json

_HEAD = 8  # first values, which tell the kind of a column
_BUFFER = 1 << 13  # pyarrow without a buffer reads a whole column of a row group
_FEWEST, _USUAL = 64, 1 << 13  # rows of a batch
_PAGES = 2 << 20  # bytes of an open column
_ENOUGH = 64 << 20  # bytes of open columns; with more, columns are read in sets
_SET = 16 << 20  # bytes of the open columns of a set
_HELD = 64 << 20  # bytes of the rows whose sets are joined in memory
_FEWEST_HELD = 1 << 16  # rows to join at least, because each time all earlier rows are read again


class _Group(NamedTuple):
    """A row group of an open file."""

    file: Any
    number: int
    start: int  # its first row, as the table counts


class ParquetStore(Store):
    """The columns of a Parquet table; all its parts must have the same columns.

    Columns of equally long lists of numbers are arrays with two axes. The keys of a partitioned
    table are columns too, unless its parts have columns of these names.
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

    def whole(self, name: str) -> AnyArray:
        """Return a whole column; a missing value is an empty text or NaN."""
        parts = list(self._all(name))
        return np.concatenate(parts) if parts else np.zeros(0, self.entries[name].dtype)

    def texts(self, name: str) -> list[str]:
        """Return a whole column as texts; for image files, their names."""
        if not self.entries[name].is_encoded:
            return [str(value) for part in self._all(name) for value in part.tolist()]
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
        """Yield the chosen rows, row group by row group; a missing number is NaN."""
        within = [name for name in names if name not in self._of_parts]
        for number, (start, stop) in enumerate(pairwise(self._bounds)):
            own = _between(rows, start, stop)
            if not len(own):
                continue
            keys = {name: self._of_parts[name][number] for name in names if name not in within}
            pieces = self._of_file(number, within, own, size) if within else [(own, {})]
            for chosen, arrays in pieces:
                more = {name: np.full(len(chosen), value) for name, value in keys.items()}
                yield chosen, {**arrays, **more}

    def _all(self, name: str) -> Iterator[AnyArray]:
        rows = np.arange(self._n, dtype=np.int64)
        return (part[name] for _, part in self.pieces([name], rows, 1 << 14))

    def _classes_of(self, name: str) -> tuple[str, ...]:
        """Return the classes of all rows of a column of pairs (class, number)."""
        classes: set[str] = set()
        for path in self._files:
            with self._opened(path) as file:
                for batch in file.iter_batches(columns=[name], use_threads=False):
                    labels, _ = self._columns.pairs(batch.column(0))
                    classes.update(map(str, labels.unique().to_pylist()))
        return tuple(sorted(classes))

    def _head(self, name: str) -> list[Any]:
        """Return the first values of a column as Python objects."""
        first = next(number for number, stop in enumerate(self._bounds[1:]) if stop > 0)
        with self._opened(self._files[first]) as file:
            batch = next(file.iter_batches(_HEAD, columns=[name], use_threads=False))
            values: list[Any] = batch.column(0).to_pylist()
            return values

    @contextmanager
    def _opened(self, path: Path) -> Iterator[Any]:
        """Open one file as a `ParquetFile`; errors while it is open become a `CovcalError`."""
        try:
            with self._arrow.parquet.ParquetFile(
                path, buffer_size=_BUFFER, pre_buffer=False
            ) as file:
                yield file
        except (self._arrow.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
            # Texts and dates of a damaged page raise the last two.
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
        """Read one set of columns after the other, because each open column holds a page.

        To reach later rows of a row group, a reader must begin at its start. Many rows are
        therefore joined in memory at a time.
        """
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
                # Copy: a view would keep all these rows in memory while the next are read.
                yield chosen[piece], {name: values[piece].copy() for name, values in arrays.items()}

    def _batches(
        self, group: _Group, names: Sequence[str], rows: Rows, size: int
    ) -> Iterator[Piece]:
        """Yield the chosen rows of some columns, `size` rows of the file at a time."""
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
        """Return the bytes of a row of these columns in memory; a text counts as a number."""
        entries = [self.entries[name] for name in names]
        return sum((entry.dtype.itemsize or 8) * math.prod(entry.shape[1:]) for entry in entries)


def _require_distinct(path: Path, names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:  # reading by name would return the last of them
            raise CovcalError(f"{path}: two columns are called {name!r}: rename one of them")


def _between(rows: Rows, start: int, stop: int) -> Rows:
    first, last = np.searchsorted(rows, (start, stop))
    return rows[first:last]


def _stored_bytes(group: Any, names: Sequence[str]) -> dict[str, int]:
    """Return the bytes of each column in a row group before compression."""
    sizes = dict.fromkeys(names, 0)
    for index in range(group.num_columns):
        column = group.column(index)
        name = column.path_in_schema.partition(".")[0]  # the name of a list or struct
        if name not in sizes:
            name = column.path_in_schema
        if name in sizes:
            sizes[name] += column.total_uncompressed_size
    return sizes


def _column_sets(stored: Mapping[str, int]) -> list[list[str]]:
    """Divide columns, given with their bytes in the file, into sets that can be open together."""
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


# The parts of a table in a folder.
#
# Spark, Dask, Polars and pyarrow write a table as a folder of parts, and a partitioned table as
# nested folders ``KEY=VALUE`` of parts.

_PATTERN = "[!._]*.parquet"  # Spark hides its own files with a dot or an underscore
_NOTHING = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True)
class Part:
    """One file of a table."""

    path: Path
    # The key and value of each folder above it; None for a missing value.
    keys: Mapping[str, str | None]


def holds_parts(path: Path) -> bool:
    """Return whether a path is a folder of parts, or of folders ``KEY=VALUE`` with parts."""
    return path.is_dir() and (any(path.glob(_PATTERN)) or any(map(holds_parts, _partitions(path))))


def find_parts(path: Path) -> list[Part]:
    """Return the parts of a table in order: the file itself, or the parts in the folder."""
    if not path.is_dir():
        return [Part(path, {})]
    parts = list(_below(path, {}))
    by = [", ".join(part.keys) or "nothing" for part in parts]
    for other in by:
        if other != by[0]:
            raise CovcalError(f"{path} is partitioned by {by[0]} and by {other}: give one table")
    return parts


def partition_values(parts: Sequence[Part]) -> dict[str, AnyArray]:
    """Return the values of each key for all parts, shape (parts,).

    They are int64 if all are whole numbers, float64 with NaN if some of these are missing, and else
    texts, where a missing value is an empty text.
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
    """Refuse a folder whose Parquet files are in folders of other names than ``KEY=VALUE``."""
    for entry in sorted(folder.iterdir()):
        named = "=" in entry.name or entry.name.startswith((".", "_"))
        if not named and entry.is_dir() and any(entry.glob(_PATTERN)):
            raise CovcalError(
                f"{folder} holds Parquet files in its folder {entry.name}, whose name is no "
                "KEY=VALUE: give that folder, or rename it"
            )


def _below(folder: Path, keys: Mapping[str, str | None]) -> Iterator[Part]:
    files, partitions = sorted(folder.glob(_PATTERN)), _partitions(folder)
    if files and any(map(holds_parts, partitions)):
        raise CovcalError(
            f"{folder} has {files[0].name} beside partitions like {partitions[0].name}: give "
            "either the file or a folder of partitions"
        )
    if keys or partitions:  # other folders may hold a million images
        refuse_unnamed_parts(folder)
    yield from (Part(file, keys) for file in files)
    for partition in partitions:
        key, _, value = (unquote(text) for text in partition.name.partition("="))
        if key in keys:
            raise CovcalError(f"{partition}: two folders have the key {key}: rename one of them")
        yield from _below(partition, {**keys, key: None if value == _NOTHING else value})


def _partitions(folder: Path) -> list[Path]:
    return sorted(
        entry
        for entry in folder.iterdir()
        if "=" in entry.name and not entry.name.startswith((".", "_", "=")) and entry.is_dir()
    )


# Arrow's columns as NumPy's arrays: what a column holds, and its values.
#
# Arrow's own conversion to NumPy loads pandas if it is installed, at 50 MB; DLPack does not.

_TEXT = np.dtype(str)
_OTHER = np.dtype("V1")  # neither numbers nor texts: other structs, nested lists
_BINARY = ("binary", "large_binary", "binary_view")
_BYTES, _PATH = "bytes", "path"  # the fields of an image by Hugging Face
_VECTOR = ("type", "size", "indices", "values")  # the fields of a vector by Spark
Head = Callable[[str], list[Any]]  # returns the first values of a column as Python objects


def described_features(schema: Any) -> dict[str, dict[str, Any]]:
    """Return the description of each column that Hugging Face datasets write into a table."""
    try:
        content = parsed_json((schema.metadata or {})[b"huggingface"].decode("utf-8"))
        features = content["info"]["features"].items()
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}
    return {name: feature for name, feature in features if isinstance(feature, dict)}


def pandas_index(schema: Any) -> tuple[str, ...]:
    """Return the columns that pandas saved as the index of a table, if any."""
    try:
        columns = parsed_json((schema.metadata or {})[b"pandas"].decode())["index_columns"]
        return tuple(name for name in columns if isinstance(name, str))  # ranges are dictionaries
    except (KeyError, ValueError, TypeError):
        return ()


@dataclass(frozen=True)
class ArrowColumns:
    """Turns Arrow's columns into arrays."""

    arrow: Any  # the module pyarrow, which is optional
    path: Path  # the path in messages

    def entry(self, field: Any, n: int, head: Head, feature: dict[str, Any]) -> Entry:
        """Return the description of a column of `n` rows.

        `head` returns its first values, if the type does not say enough. `feature` is what Hugging
        Face wrote about it.
        """
        types, kind = self.arrow.types, field.type
        if self.are_pairs(kind):  # the store counts the classes of all rows
            return Entry((n, 0), np.dtype(np.float64))
        fields = self._fields(kind)
        if tuple(fields) == _VECTOR:
            first = head(field.name)[0] or {}
            width = first["size"] or len(first["values"] or ()) if first else 0
            return Entry((n, max(0, width)), np.dtype(np.float64))
        if fields and all(types.is_floating(inner) for inner in fields.values()):
            return Entry((n, len(fields)), np.dtype(np.float64), class_names=tuple(fields))
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            inner = self._number_type(kind.value_type)
            if inner is None or not (first := head(field.name)[0]):
                return Entry((n,), _OTHER)
            return Entry((n, len(first)), inner)
        if types.is_dictionary(kind):
            kind = kind.value_type
        number = self._number_type(kind)
        if number is not None:
            return Entry((n,), number, class_names=_class_names(feature))
        if str(fields.get(_BYTES) if fields else kind) in _BINARY:
            values = head(field.name)
            contents = [value and value[_BYTES] for value in values] if fields else values
            holds_images = any(
                is_image_file(content) for content in contents if content is not None
            )
            is_encoded = holds_images or feature.get("_type") == "Image"
            return Entry((n,), _OTHER, is_encoded)
        return Entry((n,), _OTHER if types.is_nested(kind) or types.is_null(kind) else _TEXT)

    def values(self, column: Any, name: str, entry: Entry, rows: Rows) -> AnyArray:
        """Return a column with the numbers `rows` as an array, shape (m, ...); bytes become texts.

        A missing value is NaN or an empty text. Image files are an array of `Encoded`.
        """
        if entry.is_encoded:
            files = np.empty(len(column), dtype=object)
            files[:] = self._files(column)
            return files
        if entry.dtype in (_TEXT, _OTHER):
            if self.arrow.types.is_nested(column.type):
                raise CovcalError(
                    f"{self.path}: column {name} holds {column.type}: save numbers or texts"
                )
            return np.array(list(map(_text, column.to_pylist())), dtype=str)
        if len(entry.shape) == 1:
            return self._flat(column)
        width = entry.shape[1]
        if self.are_pairs(column.type):
            return self._from_pairs(column, entry)
        fields = self._fields(column.type)
        if tuple(fields) == _VECTOR:
            return self._from_vectors(column, name, width, rows)
        if fields:
            return np.stack([self._flat(column.field(field)) for field in fields], axis=1)
        self._require_length(self._flat(column.value_lengths()), name, width, rows)
        return self._flat(column.flatten()).reshape(len(column), -1)

    def _require_length(self, lengths: AnyArray, name: str, width: int, rows: Rows) -> None:
        wrong = np.flatnonzero(lengths != width)  # NaN, where there is no list, differs as well
        if len(wrong):
            length = lengths[wrong[0]]
            raise CovcalError(
                f"{self.path}: column {name} has {'no list' if length != length else int(length)} "
                f"in row {rows[wrong[0]]}, but row 0 has {width} values: give every row as many"
            )

    def _from_vectors(self, column: Any, name: str, width: int, rows: Rows) -> AnyArray:
        """Return Spark's vectors, dense or sparse, as an array (m, width)."""
        is_sparse = self._flat(column.field("type")) == 0
        values, indices = column.field("values"), column.field("indices")
        lengths = self._flat(values.value_lengths())
        sizes = np.where(is_sparse, self._flat(column.field("size")), lengths)
        self._require_length(sizes, name, width, rows)
        counts = lengths.astype(np.int64)
        row_of = np.repeat(np.arange(len(column)), counts)
        places = np.arange(len(row_of)) - np.repeat(np.cumsum(counts) - counts, counts)
        of_sparse = is_sparse[row_of]
        listed = self._flat(indices.flatten())
        own_lengths = self._flat(indices.value_lengths())[is_sparse]
        fits = np.array_equal(own_lengths, lengths[is_sparse]) and len(listed) == of_sparse.sum()
        if not fits or not ((listed >= 0) & (listed < width)).all():  # a missing index is NaN
            raise CovcalError(
                f"{self.path}: column {name} holds sparse vectors whose indices do not fit their "
                "values: save it again, or as lists with vector_to_array"
            )
        places[of_sparse] = listed
        dense = np.zeros((len(column), width))
        dense[row_of, places] = self._flat(values.flatten())
        return dense

    def _from_pairs(self, column: Any, entry: Entry) -> AnyArray:
        """Return lists of (class, probability) as an array (m, K); NaN for a class not listed."""
        place_of = {label: place for place, label in enumerate(entry.class_names or ())}
        values = np.full((len(column), len(place_of)), np.nan)
        column = self._as_lists(column)
        counts = np.nan_to_num(self._flat(column.value_lengths())).astype(np.int64)
        row_of = np.repeat(np.arange(len(column)), counts)
        labels, numbers = self.pairs(column)
        places = np.array([place_of[str(label)] for label in labels.to_pylist()], dtype=np.int64)
        values[row_of, places] = self._flat(numbers)
        return values

    def pairs(self, column: Any) -> tuple[Any, Any]:
        """Return the classes and the numbers of all pairs of a column, row after row."""
        pairs = self._as_lists(column).flatten()
        return pairs.field(0), pairs.field(1)

    def _as_lists(self, column: Any) -> Any:
        is_map = self.arrow.types.is_map(column.type)
        return column.cast(self.arrow.list_(column.type.field(0).type)) if is_map else column

    def are_pairs(self, kind: Any) -> bool:
        """Return whether a type is lists of (class, number), as in BigQuery, or a map of these."""
        types = self.arrow.types
        if types.is_map(kind):
            fields = {"key": kind.key_type, "value": kind.item_type}
        elif types.is_list(kind) or types.is_large_list(kind):
            fields = self._fields(kind.value_type)
        else:
            return False
        if len(fields) != 2:
            return False
        label, number = fields.values()
        is_text = types.is_string(label) or types.is_large_string(label)
        return bool((is_text or types.is_integer(label)) and types.is_floating(number))

    def name_field(self, field: Any) -> str | None:
        """Return the field that names image files in a column of structs, or None."""
        return _PATH if _PATH in self._fields(field.type) else None

    def _flat(self, column: Any) -> AnyArray:
        """Return plain numbers; if values are missing, floats with NaN."""
        types = self.arrow.types
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        is_boolean = types.is_boolean(column.type)
        if is_boolean:
            column = column.cast(self.arrow.uint8())
        elif types.is_decimal(column.type):
            column = column.cast(self.arrow.float64())
        if not column.null_count:
            values: AnyArray = np.from_dlpack(column)
            return values.view(np.bool_) if is_boolean else values
        buffers = [None, column.buffers()[1]]
        values = np.from_dlpack(
            self.arrow.Array.from_buffers(column.type, len(column), buffers, offset=column.offset)
        )
        floats = values.astype(values.dtype if values.dtype.kind == "f" else np.float64)
        floats[np.from_dlpack(column.is_null().cast(self.arrow.uint8())).view(np.bool_)] = np.nan
        return floats

    def chosen(self, batch: Any, places: Rows) -> Any:
        """Return the rows of a batch at these places."""
        if len(places) == batch.num_rows:
            return batch
        index = self.arrow.py_buffer(np.ascontiguousarray(places))
        return batch.take(
            self.arrow.Array.from_buffers(self.arrow.int64(), len(places), [None, index])
        )

    def _files(self, column: Any) -> list[Encoded]:
        fields = self._fields(column.type)
        contents: list[Encoded] = (column.field(_BYTES) if fields else column).to_pylist()
        if _PATH not in fields:
            return contents
        paths = column.field(_PATH).to_pylist()
        return [
            (path or None) if content is None else content
            for content, path in zip(contents, paths, strict=True)
        ]

    def _fields(self, kind: Any) -> dict[str, Any]:
        """Return the types of a struct's fields by name; an empty dictionary for other types."""
        if not self.arrow.types.is_struct(kind):
            return {}
        return {field.name: field.type for field in kind}

    def _number_type(self, kind: Any) -> np.dtype[Any] | None:
        types = self.arrow.types
        if types.is_boolean(kind):
            return np.dtype(np.bool_)
        if types.is_decimal(kind):
            return np.dtype(np.float64)
        if types.is_floating(kind):
            return np.dtype(f"f{kind.bit_width // 8}")
        if types.is_integer(kind):
            return np.dtype(f"{'i' if types.is_signed_integer(kind) else 'u'}{kind.bit_width // 8}")
        return None


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return "" if value is None else str(value)


def _class_names(feature: dict[str, Any]) -> tuple[str, ...] | None:
    names = feature.get("names")
    if feature.get("_type") != "ClassLabel" or not isinstance(names, list):
        return None
    return tuple(map(str, names)) or None
