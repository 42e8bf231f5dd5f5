"""``.h5`` files of others: every dataset with one row per example, read window by window."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from covcal_cli.arrays import AnyArray, Rows
from covcal_cli.data.stores.store import WINDOW_BYTES, Entry, Piece, Store, windows
from covcal_cli.errors import CovcalError

_LARGEST_CHUNK = 16 * WINDOW_BYTES
_STEPS = {"covcal.features/": "adapt or calibrate", "covcal.adapted/": "calibrate"}


class HDF5Store(Store):
    """The datasets of an HDF5 file; those within groups go by their path, like ``train/data``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, Entry] = {}
        with self._opened() as file:
            self._require_foreign(file)
            file.visititems(self._add)

    def whole(self, name: str) -> AnyArray:
        """Return a whole dataset."""
        try:
            with self._opened() as file:
                return _texts(file[name][...])
        except (OSError, UnicodeDecodeError) as error:
            raise self._unreadable(error) from error

    def pieces(self, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        """Yield the chosen rows, a window of adjacent rows at a time."""
        try:
            with self._opened() as file:
                datasets = {name: file[name] for name in names}
                window = min(_window(dataset, size) for dataset in datasets.values())
                for start, stop, chosen in windows(rows, window):
                    span = {name: dataset[start:stop] for name, dataset in datasets.items()}
                    yield chosen, {name: _texts(span[name][chosen - start]) for name in names}
        except (OSError, UnicodeDecodeError) as error:
            raise self._unreadable(error) from error

    def _opened(self) -> Any:
        try:
            return h5py.File(self.path, "r")
        except OSError as error:
            raise self._unreadable(error) from error

    def _add(self, name: str, found: Any) -> None:
        if isinstance(found, h5py.Dataset) and found.shape is not None:
            text = h5py.check_string_dtype(found.dtype) is not None
            self.entries[name] = Entry(found.shape, np.dtype(str) if text else found.dtype)

    def _require_foreign(self, file: Any) -> None:
        schema = str(file.attrs.get("schema", ""))
        if not schema.startswith("covcal."):
            return
        kind = schema.removeprefix("covcal.").partition("/")[0]
        step = next((step for key, step in _STEPS.items() if schema.startswith(key)), "inspect")
        raise CovcalError(
            f"{self.path} is no data to extract from but covcal's own {kind} file: pass it to "
            f"covcal {step}"
        )

    def _unreadable(self, error: Exception) -> CovcalError:
        reason = "it is truncated" if "truncated" in str(error) else str(error)
        return CovcalError(
            f"{self.path} is not a readable HDF5 file ({reason}): copy it again or save it again"
        )


def _window(dataset: Any, size: int) -> int:
    """Return rows to read at once: whole chunks, so that none is decompressed twice."""
    row_bytes = max(1, math.prod(dataset.shape[1:]) * dataset.dtype.itemsize)
    window = max(size, WINDOW_BYTES // row_bytes)
    chunk = dataset.chunks[0] if dataset.chunks else 1
    if window <= chunk:
        return int(chunk if chunk * row_bytes <= _LARGEST_CHUNK else window)
    return int(window // chunk * chunk)


def _texts(values: AnyArray) -> AnyArray:
    if values.dtype.kind == "S":
        return np.char.decode(values, "utf-8")
    if values.dtype.kind == "O":
        texts = [v.decode("utf-8") if isinstance(v, bytes) else str(v) for v in values.ravel()]
        return np.array(texts, dtype=str).reshape(values.shape)
    return values
