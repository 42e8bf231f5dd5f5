"""The writer of covcal's HDF5 files, block by block; `features` reads them and names the schemas.

The same blocks give the same bytes: no timestamps, no compression, HDF5's default library version.
The root attribute ``complete`` is set last, and readers refuse a file without it.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

Attribute = str | int | float


class _Sink(io.FileIO):
    """A file that keeps the first write error for later instead of raising it.

    HDF5 cannot close a file that it failed to write to: it loses the error, or ends the process
    with a segmentation fault. So it is told that all went well, and the writer asks here.
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
        view[:] = bytes(len(view))  # what was never written reads as zeros
        super().readinto(view)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        try:
            return self.tell() if self.error else super().truncate(size)
        except OSError as error:
            self.error = error
            return self.tell()

    def require_written(self) -> None:
        """Raise the first write error, if there was one."""
        if self.error is not None:
            raise self.error


class HDF5Writer:
    """A covcal HDF5 file being written; use it inside `atomic_output`."""

    def __init__(
        self,
        path: Path,  # the temporary file to create
        *,
        schema: str,  # such as "covcal.features/1"
        classes: Sequence[str],  # in the order of the logits
        # What the content comes from. No times: same input, same bytes.
        attributes: Mapping[str, Attribute],
    ) -> None:
        self._sink = _Sink(path)
        self._file = h5py.File(self._sink, "w")
        self._allocated: dict[str, Any] = {}
        self._file.attrs["schema"] = schema
        for name, value in attributes.items():
            self._file.attrs[name] = _storable(value)
        self._file.create_dataset("classes", data=utf8(classes))

    @property
    def handle(self) -> Any:
        """The open ``h5py.File``, for copying datasets from another file without reading them."""
        return self._file

    def allocate(self, name: str, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> None:
        """Create the dataset `name`, to be filled block by block, contiguously."""
        self._allocated[name] = self._file.create_dataset(name, shape=shape, dtype=dtype)

    def fill(self, name: str, start: int, block: ArrayLike) -> None:
        """Write `block`, shape (m, ...), into the rows of an allocated dataset from `start` on."""
        rows = np.asarray(block)
        self._allocated[name][start : start + len(rows)] = rows
        self._sink.require_written()

    def write(self, name: str, values: ArrayLike) -> None:
        """Write a whole dataset at once, contiguously."""
        self._file.create_dataset(name, data=np.asarray(values))

    def complete(self, **attributes: Attribute) -> None:
        """Set what is known only at the end, mark the file whole, and push it to the disk."""
        for name, value in attributes.items():
            self._file.attrs[name] = _storable(value)
        self._file.attrs["complete"] = 1
        self._file.close()
        self._sink.require_written()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._sink.close()


def _storable(value: Attribute) -> Attribute:
    """Return an attribute that HDF5 takes: what is no UTF-8 of a path is spelled."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def utf8(texts: Sequence[str]) -> np.ndarray[Any, np.dtype[np.bytes_]]:
    """Encode texts as fixed-length UTF-8 bytes, as ``/classes`` and ``ids`` are stored."""
    width = max((len(text.encode("utf-8")) for text in texts), default=1)
    encoded = (text.encode("utf-8") for text in texts)  # a list of a million would take 50 MB
    return np.fromiter(encoded, dtype=f"S{max(1, width)}", count=len(texts))
