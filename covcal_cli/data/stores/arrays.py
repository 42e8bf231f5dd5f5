"""Read ``.npy`` files, and the arrays in ``.npz`` and ``.h5`` files, block by block."""

import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO

import numpy as np

from covcal_cli.arrays import AnyArray, Rows
from covcal_cli.data.stores.store import WINDOW_BYTES, Entry, Piece, Store, between, windows
from covcal_cli.errors import CovcalError, one_line
from covcal_cli.files import grows_beyond_belief
from covcal_cli.hdf5 import Dataset, File

# zipfile raises NotImplementedError for an unknown compression, and RuntimeError for a password.
# For a damaged header, NumPy raises the errors of Python's parser.
_UNREADABLE = (
    *(ValueError, OSError, EOFError, NotImplementedError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, tokenize.TokenError, SyntaxError),
)
_LARGEST_CHUNK = 16 * WINDOW_BYTES
_STEPS = {"covcal.features/": "adapt or calibrate", "covcal.adapted/": "calibrate"}
_REMEDY = "copy it again or save it again"


class ArrayStore(Store):
    """A file of arrays of any shape."""

    entries: dict[str, Entry]

    def squeeze(self) -> None:
        """Leave out axes of length 1, such as in [N, 1, K] or [1, N, K]."""
        self.entries = {
            name: replace(entry, shape=_squeezed(entry.shape))
            for name, entry in self.entries.items()
        }


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) < 3:
        return shape
    if shape[0] == 1:  # [1, N, K]
        return _squeezed(shape[1:])
    return (shape[0], *(length for length in shape[1:] if length != 1))


class NpyStore(ArrayStore):
    """A ``.npy`` file, whose only array is called x."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._array = np.load(path, mmap_mode="r", allow_pickle=False)
        except _UNREADABLE as error:
            raise self._unreadable(error) from error
        self.entries = {"x": Entry(self._array.shape, self._array.dtype)}

    def pieces(self, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        """Yield the rows in parts."""
        (name,) = names
        shape = self.entries[name].shape
        row_bytes = max(1, math.prod(shape[1:]) * self._array.itemsize)
        window = max(size, WINDOW_BYTES // row_bytes)
        for start, stop, chosen in windows(rows, window):
            yield chosen, {name: self._span(start, min(stop, shape[0]), shape)[chosen - start]}

    def _span(self, start: int, stop: int, shape: tuple[int, ...]) -> AnyArray:
        array = self._array
        if not array.flags.c_contiguous:
            return np.array(array.reshape(shape, order="F")[start:stop])
        # Do not read through the memory map, because its pages would count as memory of this
        # process.
        row_items = math.prod(shape[1:])
        offset = array.offset + start * row_items * array.itemsize
        count = (stop - start) * row_items
        read = np.fromfile(self.path, dtype=array.dtype, count=count, offset=offset)
        if len(read) < count:
            raise self._unreadable(ValueError("the file became shorter while covcal read it"))
        return read.reshape(stop - start, *shape[1:])

    def _unreadable(self, error: Exception) -> CovcalError:
        return _unreadable(self.path, error, ".npy", "with numpy.save")


class NpzStore(ArrayStore):
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
                        name = member.removesuffix(".npy")
                        if name in self.entries:
                            raise self.error(f"the array {name} occurs twice: save the file again")
                        self.entries[name] = Entry(stream.shape, stream.dtype)
                        self._require_plausible(archive.getinfo(member), stream)
        except _UNREADABLE as error:
            raise self._unreadable(error) from error

    def _require_plausible(self, member: zipfile.ZipInfo, stream: "NpyStream") -> None:
        needed = math.prod(stream.shape) * stream.dtype.itemsize
        if grows_beyond_belief(needed, member.compress_size):
            raise self.error(
                f"{member.filename.removesuffix('.npy')} needs {needed / 1000000000.0:.1f} "
                f"GB, but only {member.compress_size} bytes are stored in the file: save "
                "shorter texts or fewer rows"
            )

    def whole(self, name: str) -> AnyArray:
        """Return a whole array."""
        try:
            with np.load(self.path, allow_pickle=False) as arrays:
                values: AnyArray = arrays[name]
            values = values.reshape(self.entries[name].shape)
            return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values
        except _UNREADABLE as error:
            raise self._unreadable(error) from error

    def pieces(self, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        """Yield some rows. Each array is read once, from its beginning."""
        try:
            with zipfile.ZipFile(self.path) as archive, ExitStack() as stack:
                members = [stack.enter_context(archive.open(f"{name}.npy")) for name in names]
                streams = [
                    NpyStream(member, self.entries[name].shape).blocks(size)
                    for name, member in zip(names, members, strict=True)
                ]
                start = 0
                for blocks in zip(*streams, strict=True):
                    stop = start + len(blocks[0])
                    chosen = between(rows, start, stop)
                    if len(chosen) == stop - start:
                        yield chosen, dict(zip(names, blocks, strict=True))
                    elif len(chosen):
                        taken = [block[chosen - start] for block in blocks]
                        yield chosen, dict(zip(names, taken, strict=True))
                    start = stop
        except _UNREADABLE as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> CovcalError:
        return _unreadable(self.path, error, ".npz", "and texts of fixed length")


def _unreadable(path: Path, error: Exception, kind: str, plain: str) -> CovcalError:
    if any(words in str(error) for words in ("allow_pickle", "Python objects", "Object arrays")):
        return CovcalError(f"{path}: it holds Python objects: save plain numeric arrays {plain}")
    save = "numpy.save" if kind == ".npy" else "numpy.savez"
    return CovcalError(
        f"{path} is not a readable {kind} file ({one_line(error)}): save it again with {save}"
    )


class NpyStream:
    """A stream of rows from a ``.npy`` file, perhaps inside a zip file.

    `shape` replaces the shape in the file. Raises ValueError if the file is not an array, has
    Python objects, or ends too early.
    """

    def __init__(self, stream: IO[bytes], shape: tuple[int, ...] | None = None) -> None:
        self._stream = stream
        version = np.lib.format.read_magic(stream)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        own_shape, self._fortran, self.dtype = read(stream)
        self.shape = shape or own_shape
        if self.dtype.hasobject:
            raise ValueError("Object arrays cannot be loaded")

    def blocks(self, size: int) -> Iterator[AnyArray]:
        """Yield `size` rows at a time."""
        rows = self.shape[0]
        # An array that is stored by columns must be read as a whole.
        if self._fortran:
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


class HDF5Store(ArrayStore):
    """The datasets of an HDF5 file, by paths such as ``train/data``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with File(path, remedy=_REMEDY) as file:
            self._require_foreign(file)
            self.entries = {
                name: Entry(dataset.shape, np.dtype(str) if dataset.is_text else dataset.dtype)
                for name, dataset in file.datasets.items()
                if dataset.is_text or dataset.dtype.kind in "biufcS"
            }

    def whole(self, name: str) -> AnyArray:
        """Return a whole dataset."""
        with File(self.path, remedy=_REMEDY) as file:
            return self._values(file[name][()]).reshape(self.entries[name].shape)

    def texts(self, name: str) -> list[str]:
        """Return a whole dataset as texts of any length."""
        with File(self.path, remedy=_REMEDY) as file:
            values = file[name][()]
        if values.dtype.kind != "O":
            return [str(value) for value in self._values(values).ravel().tolist()]
        return [text for value in values.ravel() for text in self._values(np.array([value]))]

    def pieces(self, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        """Yield the rows in parts."""
        with File(self.path, remedy=_REMEDY) as file:
            datasets = {name: file[name] for name in names}
            window = min(_window(dataset, size) for dataset in datasets.values())
            for start, stop, chosen in windows(rows, window):
                arrays: dict[str, AnyArray] = {}
                for name, dataset in datasets.items():
                    shape = self.entries[name].shape
                    # In [1, N, K], the second axis has the rows.
                    leading = (0,) * dataset.shape.index(shape[0]) if shape[0] > 1 else ()
                    span = dataset[(*leading, slice(start, stop))].reshape(-1, *shape[1:])
                    arrays[name] = self._values(span[chosen - start])
                yield chosen, arrays

    def _values(self, values: AnyArray) -> AnyArray:
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
            f"{self.path} is a {kind} file of covcal, not data for covcal extract: pass it to "
            f"covcal {step}"
        )


def _window(dataset: Dataset, size: int) -> int:
    """Return a number of rows that fills whole HDF5 chunks."""
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
