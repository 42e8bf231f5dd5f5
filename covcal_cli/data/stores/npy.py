"""``.npy`` arrays, and ``.npz`` files of them, read block by block.

The members of an ``.npz`` are streamed, so that an array of any size takes little memory.
"""

import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np

from covcal_cli.arrays import AnyArray, Rows
from covcal_cli.data.stores.store import WINDOW_BYTES, Entry, Piece, Store, windows
from covcal_cli.errors import CovcalError, one_line

# zipfile says NotImplementedError of a compression that it lacks, RuntimeError of a password that
# it wants; NumPy parses headers as Python.
_UNREADABLE = (
    *(ValueError, OSError, EOFError, NotImplementedError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, tokenize.TokenError, SyntaxError),
)


class NpyStore(Store):
    """The one array of a ``.npy`` file, called x."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._array = np.load(path, mmap_mode="r", allow_pickle=False)
        except _UNREADABLE as error:
            raise self._unreadable(error) from error
        self.entries = {"x": Entry(self._array.shape, self._array.dtype)}

    def whole(self, name: str) -> AnyArray:
        """Refuse: x is wide, and there is nothing else."""
        raise CovcalError(f"{self.path}: {name} is not in a .npy file: save an .npz")

    def pieces(self, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        """Yield the chosen rows, a window of adjacent rows at a time."""
        (name,) = names
        row_bytes = max(1, math.prod(self._array.shape[1:]) * self._array.itemsize)
        window = max(size, WINDOW_BYTES // row_bytes)
        for start, stop, chosen in windows(rows, window):
            yield chosen, {name: self._span(start, min(stop, len(self._array)))[chosen - start]}

    def _span(self, start: int, stop: int) -> AnyArray:
        array = self._array
        if not array.flags.c_contiguous:
            return np.array(array[start:stop])
        # Plain reads: pages of a mapped file would count as this process's memory.
        row_items = math.prod(array.shape[1:])
        offset = array.offset + start * row_items * array.itemsize
        count = (stop - start) * row_items
        read = np.fromfile(self.path, dtype=array.dtype, count=count, offset=offset)
        if len(read) < count:
            raise self._unreadable(ValueError("it was cut short while it was read"))
        return read.reshape(stop - start, *array.shape[1:])

    def _unreadable(self, error: Exception) -> CovcalError:
        if "allow_pickle" in str(error) or "Python objects" in str(error):
            return CovcalError(
                f"{self.path}: it holds Python objects: save plain numeric arrays with numpy.save"
            )
        return CovcalError(
            f"{self.path} is not a readable .npy file ({one_line(error)}): save it again with "
            "numpy.save"
        )


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

    def whole(self, name: str) -> AnyArray:
        """Return a whole array."""
        try:
            with np.load(self.path, allow_pickle=False) as arrays:
                values: AnyArray = arrays[name]
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


class NpyStream:
    """The header of a ``.npy`` stream, and its rows in order.

    The stream is read once, forwards, so that a member of a compressed zip will do. One that is no
    array, holds Python objects or ends early is a ValueError.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        version = np.lib.format.read_magic(stream)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        self.shape, self._fortran, self.dtype = read(stream)
        if self.dtype.hasobject:
            raise ValueError("Object arrays cannot be loaded")

    def blocks(self, size: int) -> Iterator[AnyArray]:
        """Yield `size` rows at a time, the last block shorter."""
        rows = self.shape[0]
        if self._fortran:  # columns come first: there is no way round reading them all
            whole = self._read(self.shape[::-1]).T
            yield from (whole[start : start + size] for start in range(0, rows, size))
            return
        for start in range(0, rows, size):
            yield self._read((min(size, rows - start), *self.shape[1:]))

    def _read(self, shape: tuple[int, ...]) -> AnyArray:
        wanted = math.prod(shape) * self.dtype.itemsize
        data = bytearray()
        while len(data) < wanted:
            more = self._stream.read(wanted - len(data))
            if not more:
                raise ValueError("the array is cut short")
            data += more
        return np.frombuffer(data, dtype=self.dtype).reshape(shape)
