"""Convert Arrow's columns to NumPy arrays.

Arrow's own conversion would load pandas, which takes 50 MB. DLPack converts columns without pandas.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.arrays import AnyArray, Rows
from covcal_cli.data.labels import LABEL_NAMES
from covcal_cli.data.stores.store import Encoded, Entry, is_image_file
from covcal_cli.errors import CovcalError, shown
from covcal_cli.records import parsed_json

_TEXT = np.dtype(str)
_OTHER = np.dtype("V1")  # Values that are neither numbers nor texts.
_BINARY = ("binary", "large_binary", "binary_view")
_BYTES, _PATH = "bytes", "path"  # The fields of an image in a Hugging Face data set.
_VECTOR = ("type", "size", "indices", "values")  # The fields of a vector in Spark.
Head = Callable[[str], list[Any]]  # Returns the first values of a column.


def described_features(schema: Any) -> dict[str, dict[str, Any]]:
    """Return Hugging Face's descriptions of the columns."""
    try:
        content = parsed_json((schema.metadata or {})[b"huggingface"].decode("utf-8"))
        features = content["info"]["features"].items()
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}
    return {name: feature for name, feature in features if isinstance(feature, dict)}


def pandas_index(schema: Any) -> tuple[str, ...]:
    """Return the columns of the table's pandas index."""
    try:
        columns = parsed_json((schema.metadata or {})[b"pandas"].decode())["index_columns"]
        # pandas describes a range index by a dictionary.
        return tuple(name for name in columns if isinstance(name, str))
    except (KeyError, ValueError, TypeError):
        return ()


@dataclass(frozen=True)
class ArrowColumns:
    """Converts Arrow's columns to arrays."""

    arrow: Any  # The optional module pyarrow.
    path: Path

    def entry(self, field: Any, n: int, head: Head, feature: dict[str, Any]) -> Entry:
        """Return the shape and type of a column of `n` rows."""
        types, kind = self.arrow.types, field.type
        if self.are_text_lists(kind) and field.name.lower() in LABEL_NAMES:
            return Entry((n,), _TEXT)
        if self.are_pairs(kind):  # The number of classes is not known yet.
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
        return Entry((n,), _OTHER if types.is_nested(kind) else _TEXT)

    def values(self, column: Any, name: str, entry: Entry, rows: Rows) -> AnyArray:
        """Return a column as an array, shape (m, ...).

        `rows` are row numbers for messages. Missing values become NaN or an empty text. Bytes
        become texts. Image files become `Encoded`.
        """
        if entry.is_encoded:
            files = np.empty(len(column), dtype=object)
            files[:] = self._files(column)
            return files
        if entry.dtype == _TEXT and self.are_text_lists(column.type):
            # Store several labels of a row as JSON; a missing list means unknown.
            lists = (
                None if labels is None else json.dumps(labels) for labels in column.to_pylist()
            )
            return np.array(list(map(_text, lists)), dtype=str)
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
            return self._from_pairs(column, name, entry, rows)
        fields = self._fields(column.type)
        if tuple(fields) == _VECTOR:
            return self._from_vectors(column, name, width, rows)
        if fields:
            return np.stack([self._flat(column.field(field)) for field in fields], axis=1)
        self._require_length(self._flat(column.value_lengths()), name, width, rows)
        return self._flat(column.flatten()).reshape(len(column), -1)

    def _require_length(self, lengths: AnyArray, name: str, width: int, rows: Rows) -> None:
        # A missing list has the length NaN.
        wrong = np.flatnonzero(lengths != width)
        if len(wrong):
            length = lengths[wrong[0]]
            size = "no list" if length != length else f"{int(length)} values"
            raise CovcalError(
                f"{self.path}: column {name} has {size} in row {rows[wrong[0]]}, but {width} "
                "values in row 0: give every row the same number of values"
            )

    def _from_vectors(self, column: Any, name: str, width: int, rows: Rows) -> AnyArray:
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
        # A missing index (NaN) fails this comparison.
        if not fits or not ((listed >= 0) & (listed < width)).all():
            raise CovcalError(
                f"{self.path}: column {name} holds sparse vectors with wrong indices: save "
                "the column again, or convert it to lists with vector_to_array"
            )
        places[of_sparse] = listed
        dense = np.zeros((len(column), width))
        dense[row_of, places] = self._flat(values.flatten())
        return dense

    def _from_pairs(self, column: Any, name: str, entry: Entry, rows: Rows) -> AnyArray:
        """Return lists of (class, probability) as an array, (m, K)."""
        place_of = {label: place for place, label in enumerate(entry.class_names or ())}
        values = np.full((len(column), len(place_of)), np.nan)
        column = self._as_lists(column)
        counts = np.nan_to_num(self._flat(column.value_lengths())).astype(np.int64)
        row_of = np.repeat(np.arange(len(column)), counts)
        labels, numbers = self.pairs(column)
        places = np.array([place_of[str(label)] for label in labels.to_pylist()], dtype=np.int64)
        cells, times = np.unique(row_of * len(place_of) + places, return_counts=True)
        if (times > 1).any():
            row, place = divmod(int(cells[times > 1][0]), len(place_of))
            label = shown(list(place_of)[place])
            raise CovcalError(
                f"{self.path}: column {name} has the class {label} twice in row {rows[row]}: give "
                "each class one value"
            )
        values[row_of, places] = self._flat(numbers)
        return values

    def pairs(self, column: Any) -> tuple[Any, Any]:
        """Return the classes and the numbers of all (class, number) pairs."""
        pairs = self._as_lists(column).flatten()
        return pairs.field(0), pairs.field(1)

    def _as_lists(self, column: Any) -> Any:
        is_map = self.arrow.types.is_map(column.type)
        return column.cast(self.arrow.list_(column.type.field(0).type)) if is_map else column

    def are_text_lists(self, kind: Any) -> bool:
        """Return whether values are lists of texts."""
        types = self.arrow.types
        is_list = types.is_list(kind) or types.is_large_list(kind)
        if not (is_list or types.is_fixed_size_list(kind)):
            return False
        return bool(types.is_string(kind.value_type) or types.is_large_string(kind.value_type))

    def require_equal_lists(self, column: Any, name: str, names: tuple[str, ...]) -> None:
        """Refuse lists of texts that differ from `names`."""
        lengths = self._flat(column.value_lengths())
        texts = column.flatten().dictionary_encode()
        codes = [texts.dictionary.index(text).as_py() for text in names]
        if (
            not (lengths == len(names)).all()
            or not (np.asarray(texts.indices).reshape(-1, len(names)) == codes).all()
        ):
            raise CovcalError(
                f"{self.path}: the lists in column {name} have different classes or orders: "
                "give every row the same list, or save one column prob_NAME per class"
            )

    def are_pairs(self, kind: Any) -> bool:
        """Return whether values are lists of pairs (class, number), or maps."""
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
        """Return the field with the names of image files, or None."""
        return _PATH if _PATH in self._fields(field.type) else None

    def _flat(self, column: Any) -> AnyArray:
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
        """Return the rows of `batch` at `places`."""
        first, last = int(places[0]), int(places[-1])
        if last - first + 1 == len(places):  # A slice is faster than `take`.
            return batch.slice(first, len(places))
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
