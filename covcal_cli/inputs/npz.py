"""``.npz`` files: every array is streamed from its member, so that its size does not matter."""

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.inputs.npy import NpyStream
from covcal_cli.inputs.store import Entry, Piece, Rows, Store

# zipfile says NotImplementedError of a compression that it lacks.
_UNREADABLE = (ValueError, OSError, zipfile.BadZipFile, EOFError, NotImplementedError)


class NpzStore(Store):
    """The arrays of an ``.npz`` file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, Entry] = {}
        try:
            with zipfile.ZipFile(path) as archive:
                for member in archive.namelist():
                    if member.endswith(".npy"):
                        with archive.open(member) as file:
                            stream = NpyStream(file)
                        entry = Entry(stream.shape, stream.dtype)
                        self.entries[member.removesuffix(".npy")] = entry
        except _UNREADABLE as error:
            raise self._unreadable(error) from error

    def whole(self, name: str) -> NDArray[Any]:
        """Return a whole array."""
        try:
            with np.load(self.path, allow_pickle=False) as arrays:
                values: NDArray[Any] = arrays[name]
        except _UNREADABLE as error:
            raise self._unreadable(error) from error
        return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values

    def pieces(self, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        """Yield the chosen rows, reading every array once from its start."""
        try:
            with zipfile.ZipFile(self.path) as archive, ExitStack() as stack:
                members = [stack.enter_context(archive.open(f"{name}.npy")) for name in names]
                streams = [NpyStream(member).blocks(size) for member in members]
                start = 0
                for blocks in zip(*streams, strict=True):
                    stop = start + len(blocks[0])
                    first, last = np.searchsorted(rows, (start, stop))
                    chosen = rows[first:last]
                    if len(chosen) == stop - start:
                        yield chosen, dict(zip(names, blocks, strict=True))
                    elif len(chosen):
                        taken = [block[chosen - start] for block in blocks]
                        yield chosen, dict(zip(names, taken, strict=True))
                    start = stop
        except _UNREADABLE as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> CovcalError:
        if "allow_pickle" in str(error) or "Object arrays" in str(error):
            return CovcalError(
                f"{self.path}: it holds Python objects: save plain numeric arrays and texts of "
                "fixed length"
            )
        return CovcalError(
            f"{self.path} is not a readable .npz file ({error}): save it again with numpy.savez"
        )
