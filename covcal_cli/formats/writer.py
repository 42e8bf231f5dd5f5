"""Write covcal's HDF5 files in blocks. The module `features` reads the files.

Without time stamps and compression, equal blocks give equal bytes. At the end, the checksums of all
datasets and the hash of the root attributes are stored. The root attribute ``complete`` is written
last, and covcal refuses a file without ``complete``.
"""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from covcal_cli.hdf5 import ATTRIBUTES_SHA256, CRC32, Checksums, Dataset, attributes_sha256

Attribute = str | int | float
_COPIED_BYTES = 4 << 20  # Number of bytes to copy at a time.


class _Sink(io.FileIO):
    """A file that stores the first write error instead of raising it.

    After a raised error, HDF5 cannot close the file: the error is lost, or the process crashes.
    `HDF5Writer` calls `require_written` afterwards.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        done = 0
        try:
            while self.error is None and done < len(view):
                done += super().write(view[done:])
        except OSError as error:
            self.error = error
        return len(view)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        view[:] = bytes(len(view))  # Parts that were not written are zeros.
        super().readinto(view)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        try:
            return self.tell() if self.error else super().truncate(size)
        except OSError as error:
            self.error = error
            return self.tell()

    def require_written(self) -> None:
        if self.error is not None:
            raise self.error


class HDF5Writer:
    """Writes an HDF5 file; use it inside `atomic_output`."""

    def __init__(
        self,
        path: Path,  # The temporary file to create.
        *,
        schema: str,  # Such as "covcal.features/1".
        classes: Sequence[str],  # The class names in the order of the logits.
        attributes: Mapping[str, Attribute],
    ) -> None:
        self._sink = _Sink(path)
        self._file = h5py.File(self._sink, "w")
        self._datasets: dict[str, tuple[Any, Checksums]] = {}
        try:
            self._file.attrs["schema"] = schema
            for name, value in attributes.items():
                self._file.attrs[name] = _storable(value)
            self.write("classes", utf8(classes))
        except BaseException:  # After a full disk, an open file would crash HDF5 when Python ends.
            self.__exit__()
            raise

    def allocate(
        self, name: str, shape: tuple[int, ...], dtype: DTypeLike = np.float32, *, axis: int = 0
    ) -> None:
        """Create a dataset, which `fill` writes in parts. `axis` is the axis of the rows."""
        dataset = self._file.create_dataset(name, shape=shape, dtype=dtype)
        self._datasets[name] = dataset, Checksums(dataset.name, shape, dataset.dtype, axis)

    def fill(self, name: str, block: ArrayLike) -> None:
        """Write the next rows of a dataset."""
        dataset, checksums = self._datasets[name]
        values = np.asarray(block, dtype=dataset.dtype)
        dataset[(slice(None),) * checksums.axis + (checksums.add(values),)] = values
        self._sink.require_written()

    def write(self, name: str, values: ArrayLike) -> None:
        """Write a whole dataset. A single number becomes an array of length one."""
        values = np.atleast_1d(values)
        self.allocate(name, values.shape, values.dtype)
        self.fill(name, values)

    def share(self, name: str, written: str) -> None:
        """Add `name` as a hard link to a dataset."""
        self._file[name] = self._file[written]

    def copy(self, name: str, dataset: Dataset) -> None:
        """Copy a dataset of another file, and check its checksums."""
        if not dataset.shape:
            self.write(name, dataset[()])
            return
        shape, chunks = dataset.shape, dataset.chunks or dataset.shape
        # The axis of the rows is the axis that is divided into chunks.
        axis = next((axis for axis in range(len(shape)) if chunks[axis] < shape[axis]), 0)
        self.allocate(name, shape, dataset.dtype, axis=axis)
        row_bytes = math.prod(shape) // max(1, shape[axis]) * dataset.dtype.itemsize
        rows = max(1, _COPIED_BYTES // max(1, row_bytes))
        for start in range(0, shape[axis], rows):
            self.fill(name, dataset[(slice(None),) * axis + (slice(start, start + rows),)])

    def crc32s(self, group: str) -> dict[str, list[int]]:
        """Return the checksums of each dataset in a group."""
        return {
            name: checksums.of_blocks
            for name, (_, checksums) in self._datasets.items()
            if name.startswith(f"{group}/")
        }

    def complete(self, **attributes: Attribute) -> None:
        """Write the last attributes, mark the file as complete, and flush the file to the disk."""
        for dataset, checksums in self._datasets.values():
            dataset.attrs[CRC32] = checksums.attribute()
        for name, value in attributes.items():
            self._file.attrs[name] = _storable(value)
        self._file.attrs[ATTRIBUTES_SHA256] = attributes_sha256(self._file.id)
        self._file.attrs["complete"] = 1
        self._file.close()
        self._sink.require_written()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._sink.close()


def _storable(value: Attribute) -> Attribute:
    """Return an attribute with invalid UTF-8 escaped."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def utf8(texts: Sequence[str]) -> np.ndarray[Any, np.dtype[np.bytes_]]:
    """Return texts as UTF-8 bytes of equal length, for ``/classes`` and ``ids``."""
    if all(map(str.isascii, texts)):  # NumPy encodes ASCII several times faster than Python.
        return np.array(texts, dtype=f"S{max(map(len, texts), default=1) or 1}")
    width = max((len(text.encode("utf-8")) for text in texts), default=1)
    # A generator saves memory: a list of a million texts would take 50 MB.
    encoded = (text.encode("utf-8") for text in texts)
    return np.fromiter(encoded, dtype=f"S{max(1, width)}", count=len(texts))
