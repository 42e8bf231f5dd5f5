"""Arrow's columns as NumPy's arrays: what a column is, and its values.

Arrow's own conversion to NumPy loads pandas where it is installed, at 50 MB; DLPack does not.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.inputs.encoded import Encoded, is_image_file
from covcal_cli.inputs.store import Entry, Rows

_TEXT = np.dtype(str)
_OTHER = np.dtype("V1")  # structs, nested lists: there, but neither numbers nor texts
_BYTES, _PATH = "bytes", "path"  # what Hugging Face calls the fields of an image

Head = Callable[[str], list[Any]]
"""Returns the first values of a column, as Python has them."""


def described_features(schema: Any) -> dict[str, dict[str, Any]]:
    """Return what Hugging Face datasets wrote into a table on its columns, by name."""
    try:
        content = json.loads((schema.metadata or {})[b"huggingface"])
        features = content["info"]["features"].items()
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}
    return {name: feature for name, feature in features if isinstance(feature, dict)}


@dataclass(frozen=True)
class ArrowColumns:
    """Turns Arrow's columns into arrays."""

    arrow: Any  # the module pyarrow, which not everybody has
    path: Path  # for messages

    def entry(self, field: Any, n: int, head: Head, feature: dict[str, Any]) -> Entry:
        """Return what is known of a column of `n` rows.

        `head` gives its first values, where the type does not say enough; `feature` is what Hugging
        Face says of it, if anything.
        """
        types, kind = self.arrow.types, field.type
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
        if self._holds_files(kind):
            said = feature.get("_type") == "Image"
            return Entry((n,), _OTHER, is_encoded=said or self._are_images(kind, head(field.name)))
        return Entry((n,), _OTHER if types.is_nested(kind) or types.is_null(kind) else _TEXT)

    def values(self, column: Any, name: str, entry: Entry, rows: Rows) -> NDArray[Any]:
        """Return the values of the given rows of a column, shape (m, ...).

        NaN or an empty text where there is no value; of image files, an array of `Encoded`.
        """
        if entry.is_encoded:
            found = np.empty(len(column), dtype=object)
            found[:] = self._files(column)
            return found
        if entry.is_text:
            texts = ["" if value is None else str(value) for value in column.to_pylist()]
            return np.array(texts, dtype=str)
        if len(entry.shape) == 1:
            return self._flat(column)
        lengths = self._flat(column.value_lengths())
        wrong = np.flatnonzero(lengths != entry.shape[1])  # NaN, of no list, differs as well
        if len(wrong):
            length = lengths[wrong[0]]
            raise CovcalError(
                f"{self.path}: column {name} has {'no list' if length != length else int(length)} "
                f"in row {rows[wrong[0]]}, where row 0 has {entry.shape[1]} values: give every row "
                "as many"
            )
        return self._flat(column.flatten()).reshape(len(column), -1)

    def name_field(self, field: Any) -> str | None:
        """Return the field of a column's structs that names image files, if there is one."""
        return _PATH if _PATH in self._fields(field.type) else None

    def _flat(self, column: Any) -> NDArray[Any]:
        """Return plain numbers; as floats with NaN where values are missing."""
        types = self.arrow.types
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        is_boolean = types.is_boolean(column.type)
        if is_boolean:
            column = column.cast(self.arrow.uint8())
        elif types.is_decimal(column.type):
            column = column.cast(self.arrow.float64())
        if not column.null_count:
            values: NDArray[Any] = np.from_dlpack(column)
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

    def _holds_files(self, kind: Any) -> bool:
        fields = self._fields(kind)
        if not fields:
            return self._is_bytes(kind)
        return _BYTES in fields and self._is_bytes(fields[_BYTES])

    def _are_images(self, kind: Any, values: list[Any]) -> bool:
        if self._fields(kind):
            values = [None if value is None else value[_BYTES] for value in values]
        return any(is_image_file(value) for value in values if value is not None)

    def _is_bytes(self, kind: Any) -> bool:
        return str(kind) in ("binary", "large_binary", "binary_view")

    def _fields(self, kind: Any) -> dict[str, Any]:
        """Return the types of a struct's fields by name; nothing for other types."""
        return {one.name: one.type for one in kind} if self.arrow.types.is_struct(kind) else {}

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


def _class_names(feature: dict[str, Any]) -> tuple[str, ...] | None:
    names = feature.get("names")
    if feature.get("_type") != "ClassLabel" or not isinstance(names, list):
        return None
    return tuple(map(str, names)) or None
