"""Read ``.h5`` files of other programs: each dataset with one row per example, in windows."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from covcal_cli.arrays import AnyArray, Rows
from covcal_cli.data.stores.store import WINDOW_BYTES, Entry, Piece, Store, windows
from covcal_cli.errors import CovcalError
from covcal_cli.hdf5 import Dataset, File

_LARGEST_CHUNK = 16 * WINDOW_BYTES
_STEPS = {"covcal.features/": "adapt or calibrate", "covcal.adapted/": "calibrate"}
_REMEDY = "copy it again or save it again"


class HDF5Store(Store):
    """The datasets of an HDF5 file, named by their path: ``train/data`` is in a group."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with File(path, remedy=_REMEDY) as file:
            self._require_foreign(file)
            # Only numbers and texts: records and references are left out.
            self.entries = {
                name: Entry(dataset.shape, np.dtype(str) if dataset.is_text else dataset.dtype)
                for name, dataset in file.datasets.items()
                if dataset.is_text or dataset.dtype.kind in "biufcS"
            }

    def whole(self, name: str) -> AnyArray:
        """Return a whole dataset."""
        with File(self.path, remedy=_REMEDY) as file:
            return self._values(file[name][...])

    def texts(self, name: str) -> list[str]:
        """Return a whole dataset as texts of any length."""
        with File(self.path, remedy=_REMEDY) as file:
            values = file[name][...]
        if values.dtype.kind != "O":
            return [str(value) for value in self._values(values).ravel().tolist()]
        return [text for value in values.ravel() for text in self._values(np.array([value]))]

    def pieces(self, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        """Yield the chosen rows, one window of adjacent rows at a time."""
        with File(self.path, remedy=_REMEDY) as file:
            datasets = {name: file[name] for name in names}
            window = min(_window(dataset, size) for dataset in datasets.values())
            for start, stop, chosen in windows(rows, window):
                span = {name: dataset[start:stop] for name, dataset in datasets.items()}
                yield chosen, {name: self._values(span[name][chosen - start]) for name in names}

    def _values(self, values: AnyArray) -> AnyArray:
        """Return the values, with bytes decoded to texts."""
        try:
            return _texts(values)
        except UnicodeDecodeError as error:
            raise CovcalError(
                f"{self.path} is not a readable HDF5 file ({error}): {_REMEDY}"
            ) from error

    def _require_foreign(self, file: File) -> None:
        schema = str(file.attrs.get("schema", ""))
        if not schema.startswith("covcal."):
            return
        kind = schema.removeprefix("covcal.").partition("/")[0]
        step = next((step for key, step in _STEPS.items() if schema.startswith(key)), "inspect")
        raise CovcalError(
            f"{self.path} is no data to extract from but covcal's own {kind} file: pass it to "
            f"covcal {step}"
        )


def _window(dataset: Dataset, size: int) -> int:
    """Return the number of rows to read at once: whole chunks, which are decompressed once."""
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
