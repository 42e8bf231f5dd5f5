"""Read untrusted HDF5 files, and refuse files whose numbers may be wrong.

An HDF5 file can refer to other files. If a referenced file is missing, HDF5 returns zeros without
an error. The class `File` refuses a file that refers to other files. `File` also refuses a file
with an incomplete or implausibly large array.

covcal's own files have a CRC-32 for each block of rows (`Checksums`). `Dataset` checks the CRC-32
when a block is read for the first time. Exceptions of h5py become a `CovcalError`.
"""

import errno
import hashlib
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np

from covcal_cli.arrays import AnyArray
from covcal_cli.errors import CovcalError, one_line
from covcal_cli.files import as_word, grows_beyond_belief, require_file

Plain = str | int | float
_TABLE = re.compile(r"(.+?)\.(csv|tsv|parquet|jsonl|ndjson|npz|npy)(\.gz)?", re.IGNORECASE)
# Attribute of a dataset; see `Checksums`.
CRC32 = "covcal_crc32"
# Attribute of the file: the hash of its other attributes.
ATTRIBUTES_SHA256 = "attributes_sha256"
# The start of a global heap, where HDF5 stores texts of variable length.
_HEAP = re.compile(rb"GCOL\x01\0\0\0")
_HEAP_BYTES = 32 << 10  # HDF5 heaps are searched for in so many bytes at each end of a file.
_BLOCK_BYTES = 512 << 10
_MOST_BLOCKS = 8192  # HDF5 allows 64 KiB for an attribute.
_DAMAGE = (KeyError, RuntimeError, OSError, ValueError, TypeError, AttributeError, MemoryError)


class Checksums:
    """The CRC-32 of each block of rows of a dataset. A block has about half a MiB.

    The attribute `CRC32` of a dataset has these numbers, as uint32, in this order:

    - the CRC-32 of the dataset's name, shape and type, and of the next two numbers
    - the axis of the rows
    - the number of rows of a block
    - for each block, the CRC-32 of its bytes, row by row
    """

    def __init__(
        self,
        name: str,  # The path of the dataset in the file.
        shape: tuple[int, ...],  # The shape, with at least one axis.
        dtype: np.dtype[Any],
        axis: int,
        rows: int | None = None,  # Number of rows in a block.
    ) -> None:
        self.n, self.axis = shape[axis], axis
        row_bytes = math.prod(shape) // max(1, self.n) * dtype.itemsize
        self.rows = rows or max(1, _BLOCK_BYTES // max(1, row_bytes), -(-self.n // _MOST_BLOCKS))
        # A dataset that several labels share has several paths with the same last two names.
        about = [name.split("/")[-2:], shape, dtype.str, axis, self.rows]
        self.head = [zlib.crc32(json.dumps(about).encode()), axis, self.rows]
        self.of_blocks: list[int] = []
        self._added = 0  # Number of rows added so far.

    def __len__(self) -> int:
        """Return the number of blocks."""
        return -(-self.n // self.rows)

    def add(self, values: AnyArray) -> slice:
        """Add the checksums of the next rows, and return the slice of these rows."""
        start, end = self._added, self._added + values.shape[self.axis]
        rows = np.moveaxis(values, self.axis, 0)
        while self._added < end:
            into = self._added % self.rows  # Number of rows in the current block.
            stop = min(end, self._added - into + self.rows)
            before = self.of_blocks.pop() if into else 0
            part = np.ascontiguousarray(rows[self._added - start : stop - start])
            self.of_blocks.append(zlib.crc32(part.data, before))
            self._added = stop
        return slice(start, end)

    def attribute(self) -> AnyArray:
        """Return the value of the attribute `CRC32`, after all rows were added."""
        if self._added != self.n:
            raise ValueError(f"{self._added} of {self.n} rows were written")
        return np.array([*self.head, *self.of_blocks], dtype=np.uint32)


class Dataset:
    """An array in an open file; slices are read on demand.

    With `needs_checksums`, a dataset without the attribute `CRC32` is refused.
    """

    def __init__(
        self, path: Path, name: str, identifier: Any, *, needs_checksums: bool = False
    ) -> None:
        self.path, self.name, self._identifier = path, name, identifier
        with _readable(path, name):
            space, self._type = identifier.get_space(), identifier.get_type()
            shape = None if space.get_simple_extent_type() == h5py.h5s.NULL else space.shape
            self.shape: tuple[int, ...] = tuple(shape or ())
            self.ndim = -1 if shape is None else len(self.shape)  # -1 without values.
            # Whether rows or columns can be added.
            self.can_grow = self.ndim > 0 and space.get_simple_extent_dims(True) != self.shape
            self.dtype: np.dtype[Any] = self._type.dtype
            stored = self._stored_checksums(is_needed=needs_checksums)
        self.is_text = h5py.check_string_dtype(self.dtype) is not None
        self._checksums: Checksums | None = None
        if stored is not None:
            self._checksums = self._required_checksums(*stored)
            self._is_checked = np.zeros(len(self._checksums), dtype=bool)

    @cached_property
    def _raw(self) -> Any:
        return h5py.Dataset(self._identifier)

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """The shape of one stored block; None if the array is stored as a whole."""
        if self._checksums is not None:
            sides = [*self.shape]
            sides[self._checksums.axis] = min(self._checksums.rows, self._checksums.n)
            return tuple(sides)
        with _readable(self.path, self.name):
            chunks: tuple[int, ...] | None = self._raw.chunks
            return chunks

    @property
    def is_usual(self) -> bool:
        """Whether numbers are little-endian."""
        with _readable(self.path, self.name):
            usual = _usual_type if self.dtype.metadata is None else h5py.h5t.py_create
            return bool(
                self.dtype == self.dtype.newbyteorder("<") and self._type.equal(usual(self.dtype))
            )

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0] if self.shape else 0

    def __getitem__(self, key: Any) -> AnyArray:
        """Return the values of a slice, or all values for ``()``."""
        if isinstance(key, str):
            raise CovcalError(
                f"{self.path}: {self.name} is a dataset, not a group: make the file again"
            )
        with _readable(self.path, self.name):
            if self._checksums is None:
                return np.asarray(self._raw[key])
            return self._checked(self._checksums, *(key if isinstance(key, tuple) else (key,)))

    def _checked(self, checksums: Checksums, *key: slice) -> AnyArray:
        """Verify the checksums of the blocks, and return the values of slices."""
        axis, rows = checksums.axis, checksums.rows
        key = (*key, *[slice(None)] * (axis + 1 - len(key)))
        start, stop, step = key[axis].indices(checksums.n)
        first = start // rows
        unchecked = first + np.flatnonzero(~self._is_checked[first : -(-stop // rows)])
        if len(unchecked) == 0:
            return np.asarray(self._raw[key])
        low = min(start, int(unchecked[0]) * rows)
        high = max(stop, min(checksums.n, (int(unchecked[-1]) + 1) * rows))
        values = np.asarray(self._raw[(slice(None),) * axis + (slice(low, high),)])
        by_row = np.moveaxis(values, axis, 0)
        for number in unchecked.tolist():
            block = by_row[number * rows - low : (number + 1) * rows - low]
            if zlib.crc32(np.ascontiguousarray(block).data) != checksums.of_blocks[number]:
                raise self._changed()
            self._is_checked[number] = True
        return values[(*key[:axis], slice(start - low, stop - low, step), *key[axis + 1 :])]

    def _stored_checksums(self, *, is_needed: bool) -> list[int] | None:
        if not h5py.h5a.exists(self._identifier, CRC32.encode()):
            if is_needed and self.ndim >= 0:
                raise CovcalError(
                    f"{self.path}: {self.name} has no attribute {CRC32}, so another program "
                    "or version wrote it: make the file again"
                )
            return None
        attribute = h5py.h5a.open(self._identifier, CRC32.encode())
        shape = attribute.shape  # h5py reads the file at each access to the shape.
        if len(shape) != 1 or shape[0] > _MOST_BLOCKS + 3:
            raise self._changed()
        values = np.empty(shape, dtype=np.uint32)
        attribute.read(values, _usual_type(values.dtype))
        numbers: list[int] = values.tolist()
        return numbers

    def _required_checksums(self, *stored: int) -> Checksums:
        head, of_blocks = stored[:3], stored[3:]
        if len(head) == 3 and head[1] < self.ndim and head[2] > 0:
            checksums = Checksums(self.name, self.shape, self.dtype, *head[1:])
            if [*head] == checksums.head and len(of_blocks) == len(checksums):
                checksums.of_blocks = [*of_blocks]
                return checksums
        raise self._changed()

    def _changed(self) -> CovcalError:
        return CovcalError(
            f"{self.path}: {self.name} was changed after covcal wrote the file: copy the file "
            "again or make it again"
        )

    def texts(self) -> list[str]:
        """Return the values of a list of UTF-8 texts."""
        if self.ndim != 1 or self.dtype.kind != "S":
            raise CovcalError(
                f"{self.path}: {self.name} is not a list of texts: make the file again"
            )
        try:
            return [bytes(value).decode("utf-8") for value in self[:]]
        except UnicodeDecodeError as error:
            raise CovcalError(
                f"{self.path}: {self.name} is not UTF-8: make the file again"
            ) from error


@cache
def _usual_type(dtype: np.dtype[Any]) -> Any:
    """Return the HDF5 type for a NumPy type. h5py is slow, so the type is cached."""
    return h5py.h5t.py_create(dtype)


class Group(Mapping[str, Any]):
    """A group of an open HDF5 file: a mapping from names to groups and datasets.

    `datasets` has all datasets of the file by their paths, such as ``a/b``.
    """

    def __init__(
        self, path: Path, name: str, identifier: Any, datasets: Mapping[str, Dataset]
    ) -> None:
        self.path, self.name, self.datasets = path, name, datasets
        self._identifier = identifier  # A low-level h5py identifier, for speed.

    def __getitem__(self, name: Any) -> Any:
        """Return the group or dataset called `name`. Raises `CovcalError` for an unknown name."""
        if not isinstance(name, str):
            raise CovcalError(
                f"{self.path}: {self.name} is a group, not a dataset: make the file again"
            )
        place = self._place(name)
        if place[1:] in self.datasets:
            return self.datasets[place[1:]]
        if name not in self:
            raise CovcalError(f"{self.path}: {place} is missing: make the file again")
        with _readable(self.path, place):
            member = h5py.h5o.open(self._identifier, _stored(name))
        if isinstance(member, h5py.h5g.GroupID):
            return Group(self.path, place, member, self.datasets)
        return Dataset(self.path, place, member)

    def _place(self, name: str) -> str:
        return f"{self.name.rstrip('/')}/{name}"

    def get(self, name: str, default: Any = None) -> Any:
        """Return the group or dataset called `name`, or `default` if there is none."""
        return self[name] if name in self else default  # noqa: SIM401

    def __contains__(self, name: object) -> bool:
        """Return whether there is a group or dataset called `name`."""
        if self._place(str(name))[1:] in self.datasets:
            return True
        with _readable(self.path, self.name):
            return _stored(str(name)) in self._identifier

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the groups and datasets in the group."""
        with _readable(self.path, self.name):
            names = [_text(name) for name in self._identifier]
        return iter(names)

    def __len__(self) -> int:
        """Return the number of subgroups and datasets."""
        with _readable(self.path, self.name):
            return len(self._identifier)


class File(Group):
    """An open and checked HDF5 file, for a ``with`` statement.

    `handle` is the ``h5py.File``, if the caller has opened the file. `within` maps the root
    attributes to the name of the group to read.

    Raises
    ------
    CovcalError
        If the file is not readable HDF5, refers to other files, or has missing or implausibly large
        arrays.
    """

    def __init__(
        self,
        path: Path,
        *,
        remedy: str,
        handle: Any = None,
        within: Callable[[Mapping[str, Any]], str] = lambda _attributes: "/",
    ) -> None:
        self._closes = handle is None
        self._file = raw = _opened(path, remedy) if handle is None else handle
        try:
            with _readable(path, "/"):
                # covcal's root attributes are texts and single numbers.
                self.attrs: dict[str, Any] = dict(_plain_attributes(raw.id))
                digest = self.attrs.pop(ATTRIBUTES_SHA256, None)
                if digest not in (None, _attributes_sha256(self.attrs)):
                    raise CovcalError(
                        f"{path}: its attributes were changed after covcal wrote the file: "
                        "copy the file again or make it again"
                    )
            place = within(self.attrs)
            with _readable(path, place):
                group = raw[place].id
                datasets = _examined(path, group, needs_checksums=digest is not None)
        except BaseException:
            self.close()
            raise
        super().__init__(path, "/", group, datasets)

    @property
    def n_beside(self) -> int:
        """The number of groups in the parent group."""
        with _readable(self.path, "/"):
            return len(h5py.Group(self._identifier).parent)

    def close(self) -> None:
        """Close the file if this object opened it."""
        if self._closes:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def root_attributes(path: Path, *names: str, remedy: str) -> dict[str, Any]:
    """Return the root attributes called `names`. The rest of the file is not checked."""
    with _opened(path, remedy) as raw, _readable(path, "/"):
        return dict(_plain_attributes(raw.id, names))


def _opened(path: Path, remedy: str) -> Any:
    require_file(path, remedy=remedy)
    table = _TABLE.fullmatch(path.name)
    if table is not None and not h5py.is_hdf5(path):
        features = as_word(f"{table[1]}.h5")
        raise CovcalError(
            f"{path} is a table, not a features file: run covcal extract {as_word(path)} -o "
            f"{features} and give {features}"
        )
    try:
        _require_finite_heaps(path)
        return h5py.File(path, "r")
    except OSError as error:
        text = str(error)
        if "truncated" in text:
            size = path.stat().st_size
            raise CovcalError(
                f"{path} is cut short ({size} bytes are left): copy it again or make it again"
            ) from error
        if "lock" in text:
            raise CovcalError(
                f"{path} is locked by another program, or its file system has no locks: wait, or "
                "set HDF5_USE_FILE_LOCKING=FALSE"
            ) from error
        if error.errno in (errno.EMFILE, errno.ENFILE) or "errno = 24" in text:
            raise CovcalError(
                f"{path}: too many files are open: raise the limit with ulimit -n"
            ) from error
        raise CovcalError(f"{path} is not a readable HDF5 file: {remedy}") from error
    except _DAMAGE as error:
        raise CovcalError(f"{path} is not a readable HDF5 file: {remedy}") from error


def _require_finite_heaps(path: Path) -> None:
    """Raise `OSError` for a damaged heap that HDF5 would read forever."""
    with path.open("rb") as file:
        parts = [file.read(_HEAP_BYTES)]
        file.seek(max(len(parts[0]), path.stat().st_size - _HEAP_BYTES))
        parts.append(file.read())
    for content in parts:
        for heap in _HEAP.finditer(content):
            end = heap.start() + int.from_bytes(content[heap.end() : heap.end() + 8], "little")
            place = heap.start() + 16
            while place + 16 <= min(end, len(content)):
                step = int.from_bytes(content[place + 8 : place + 16], "little")
                if any(content[place : place + 2]):  # not free space
                    step = 16 + -(-step // 8) * 8
                if not 0 < step <= end - place:
                    raise OSError("a global heap is damaged")
                place += step


class _readable:  # noqa: N801
    """Turn an exception of h5py into a `CovcalError`."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, _DAMAGE):
            reason = one_line(error).strip("'\"") or type(error).__name__
            raise CovcalError(
                f"{self._path}: {self._name} is not readable ({reason}): copy the file again or "
                "make it again"
            ) from error


def _examined(path: Path, group: Any, *, needs_checksums: bool) -> dict[str, Dataset]:
    """Return all datasets below a low-level h5py group, in the order of names. Refuse links."""
    datasets = dict[str, Dataset]()
    seen = set()  # A group may contain itself.
    waiting = [("", group)]
    while waiting:
        place, member = waiting.pop()
        if not isinstance(member, (h5py.h5d.DatasetID, h5py.h5g.GroupID)):
            continue
        about = h5py.h5o.get_info(member)
        if (about.fileno, about.addr) in seen:
            continue
        seen.add((about.fileno, about.addr))
        if isinstance(member, h5py.h5g.GroupID):
            # Reverse order, because `pop` takes the last entry.
            waiting += [
                (_inside(place, name), _linked(path, place, member, name))
                for name in sorted(member, reverse=True)
            ]
            continue
        dataset = Dataset(path, f"/{place}", member, needs_checksums=needs_checksums)
        _require_own(dataset, member)
        if dataset.ndim >= 0:
            datasets[place] = dataset
    return datasets


def _inside(place: str, name: bytes) -> str:
    return f"{place}/{_text(name)}".lstrip("/")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _stored(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _linked(path: Path, place: str, group: Any, name: bytes) -> Any:
    if group.links.get_info(name).type == h5py.h5l.TYPE_HARD:
        return h5py.h5o.open(group, name)
    link = h5py.Group(group).get(name, getlink=True)
    target = f"{getattr(link, 'filename', '')}:{getattr(link, 'path', '')}".lstrip(":")
    raise CovcalError(
        f"{path}: /{_inside(place, name)} is a link to {target}, but covcal does not follow links: "
        "write the values themselves into the file"
    )


def _require_own(dataset: Dataset, identifier: Any) -> None:
    """Refuse a dataset that is in another file, incomplete, or implausibly large."""
    where = f"{dataset.path}: {dataset.name}"
    settings = identifier.get_create_plist()
    layout = settings.get_layout()
    away = "stored in another file" if settings.get_external_count() else ""
    if layout == h5py.h5d.VIRTUAL:
        away = "virtual"
    if away:
        raise CovcalError(
            f"{where} is {away}, but covcal reads only values in the file itself: write the "
            "values into the file"
        )
    bytes_needed = math.prod(dataset.shape) * dataset.dtype.itemsize
    if bytes_needed == 0 or dataset.ndim <= 0:  # no values, or a single value
        return
    stored = identifier.get_storage_size()
    sides = settings.get_chunk() if layout == h5py.h5d.CHUNKED else None
    if sides is not None:
        lengths = zip(dataset.shape, sides, strict=True)
        chunks = math.prod(-(-side // length) for side, length in lengths)
        missing = identifier.get_num_chunks() < chunks
    else:
        missing = stored < bytes_needed
    if missing:
        raise CovcalError(f"{where} was not written completely: make the file again")
    if grows_beyond_belief(bytes_needed, stored):
        raise CovcalError(
            f"{where} needs {bytes_needed / 1000000000.0:.1f} GB, but only {stored} bytes are "
            "stored in the file: copy the file again or make it again"
        )


def attributes_sha256(file: Any) -> str:
    """Return the root attribute `ATTRIBUTES_SHA256`; `file` is a low-level identifier of h5py."""
    return _attributes_sha256(dict(_plain_attributes(file)))


def _attributes_sha256(attributes: Mapping[str, Any]) -> str:
    values = {name: value for name, value in attributes.items() if name != "complete"}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _plain_attributes(
    group: Any, names: Sequence[str] | None = None
) -> Iterator[tuple[str, Plain]]:
    """Yield the names and values of text and number attributes."""
    if names is None:
        count = h5py.h5a.get_num_attrs(group)
        attributes = (h5py.h5a.open(group, index=number) for number in range(count))
    else:
        encoded = [name.encode() for name in names]
        attributes = (h5py.h5a.open(group, n) for n in encoded if h5py.h5a.exists(group, n))
    for attribute in attributes:
        dtype = attribute.dtype
        if attribute.shape != () or dtype.subdtype is not None:
            continue
        array = np.empty((), dtype)
        attribute.read(array)
        value = array[()]
        if isinstance(value, bytes | np.bytes_):
            errors = "surrogateescape" if dtype.kind == "O" else "replace"
            value = bytes(value).decode("utf-8", errors=errors)
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, Plain):
            yield _text(attribute.name), value
