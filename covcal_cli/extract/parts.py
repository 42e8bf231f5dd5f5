"""Parts of a domain's rows: kept while they are extracted, and joined into one features file.

A `Part` holds some of the rows: those that a run has done so far, a shard, or a whole domain of
another file. `Join` writes the rows of all parts in their order and in blocks of one size, because
HDF5 lays a file out in the order in which it is written: so the same rows give the same bytes,
whatever parts they come in.

While an extraction runs, its part grows beside the output in a hidden folder ``.NAME.parts``, so
that a killed run can go on. For each domain it holds one file of raw numbers per array and a
journal: one line of JSON per batch, written after the batch's numbers, with their checksum. A
process that is killed loses at most the batch in the making. After a power cut numbers may be
missing that the journal names; then the checksum is wrong, and everything from that batch on is
done again. ``config.json`` says what was being done; other work is never continued.
"""

import hashlib
import json
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeGuard

import numpy as np

from covcal_cli.arrays import AnyArray, Float32s, Rows
from covcal_cli.errors import CovcalError
from covcal_cli.files import hidden_sibling
from covcal_cli.formats.features import SPLITS
from covcal_cli.formats.writer import Attribute, HDF5Writer, utf8
from covcal_cli.records import json_of, parsed_json

Block = Mapping[str, Float32s]
Config = Mapping[str, str | int | None]
_NUMBERS = ("features", "logits")
_BLOCK_BYTES = 4 << 20
_BLOCK_ROWS = 1 << 17  # put in order at a time
_CONFIG = "config.json"
_SYNC_SECONDS = 10.0


@dataclass(frozen=True)
class Part:
    """Some rows of a domain, wherever they lie."""

    path: Path  # where they come from, for messages
    rows: Rows | range  # their numbers in the domain, ascending
    # What a features file holds of them, by dataset; a slice of each is read when it is its turn.
    content: Mapping[str, Any]
    columns: Sequence[str]  # the names of ``columns/NAME`` among them
    skipped: Sequence[tuple[int, str, str]]  # number, id and reason of rows that were not readable

    @property
    def widths(self) -> dict[str, int]:
        """Columns of each array of numbers."""
        return {name: int(self.content[name].shape[1]) for name in _NUMBERS if name in self.content}


class Join:
    """One domain, its rows in their order whatever parts they come in; all have like columns."""

    def __init__(self, name: str, parts: Sequence[Part]) -> None:
        self.name, self._parts = name, parts
        self.n = sum(len(part.rows) for part in parts)
        self.rows = dict.fromkeys(SPLITS, 0)  # written so far, by split
        self._digests: dict[str, Any] = {}  # of what has been written, by dataset
        # Number, id and reason of every row that could not be read.
        self.skipped = sorted(entry for part in parts for entry in part.skipped)
        # A part without rows has run no batch, which may be what shows the number of features.
        full = [part for part in parts if len(part.rows)] or parts[:1]
        self._widths = _common("columns of numbers", [(part, part.widths) for part in full])
        self._columns = _common(
            f"columns of the {name}", [(part, list(part.columns)) for part in parts]
        )

    def write(self, writer: HDF5Writer, seen: Callable[[Block], None] | None = None) -> None:
        """Write the group ``/NAME``, and show every block of numbers to `seen`."""
        for array, width in self._widths.items():
            writer.allocate(f"{self.name}/{array}", (self.n, width))
        for block in self._written(writer, list(self._widths), 4 * sum(self._widths.values())):
            if seen is not None:
                seen(block)
        for fact in ("labels", "split", "ids", *(f"columns/{name}" for name in self._columns)):
            dtype = np.result_type(*(part.content[fact].dtype for part in self._parts))
            writer.allocate(f"{self.name}/{fact}", (self.n,), dtype)
            for block in self._written(writer, [fact], dtype.itemsize):
                if fact == "split":
                    for number, name in enumerate(SPLITS):
                        self.rows[name] += int(np.count_nonzero(block[fact] == number))
        if self.skipped:
            writer.write(f"{self.name}/skipped", utf8([known for _, known, _ in self.skipped]))
            reasons = utf8([reason for _, _, reason in self.skipped])
            writer.write(f"{self.name}/skipped_reasons", reasons)

    def sha256(self) -> str:
        """Return the sha256 of what has been written, whatever parts it came in."""
        digest = hashlib.sha256()
        for name, of_dataset in self._digests.items():
            digest.update(f"{name} {of_dataset.hexdigest()}\n".encode())
        return digest.hexdigest()

    def _written(
        self, writer: HDF5Writer, names: Sequence[str], row_bytes: int
    ) -> Iterator[dict[str, AnyArray]]:
        """Write the rows of some datasets in order, and yield every block that was written."""
        size = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, row_bytes)))
        done = 0
        for pieces, order in self._pieces(size):
            block = {}
            for name in names:
                found = [np.asarray(part.content[name][start:stop]) for part, start, stop in pieces]
                values = found[0] if order is None else np.concatenate(found)[order]
                writer.fill(f"{self.name}/{name}", done, values)
                digest = self._digests.setdefault(name, hashlib.sha256())
                digest.update(np.ascontiguousarray(values).view(np.uint8).data)
                block[name] = values
            done += sum(stop - start for _, start, stop in pieces)
            yield block

    def _pieces(self, size: int) -> Iterator[tuple[list[tuple[Part, int, int]], Rows | None]]:
        """Yield what of every part follows next, and its order where there are several parts.

        Each part is read forwards, once: of several, those rows whose numbers lie in the next
        `size` numbers.
        """
        if len(self._parts) == 1:
            for start in range(0, self.n, size):
                yield [(self._parts[0], start, min(start + size, self.n))], None
            return
        end = max((int(part.rows[-1]) + 1 for part in self._parts if len(part.rows)), default=0)
        for low in range(0, end, size):
            pieces = []
            for part in self._parts:
                start, stop = np.searchsorted(part.rows, (low, low + size))
                if stop > start:
                    pieces.append((part, int(start), int(stop)))
            if pieces:
                rows = np.concatenate([part.rows[start:stop] for part, start, stop in pieces])
                yield pieces, np.argsort(rows, kind="stable")


def content_sha256(
    joins: Sequence[Join], classes: Sequence[str], attributes: Mapping[str, Attribute]
) -> str:
    """Return the attribute `CONTENT` of a file that holds these joins, all of them written."""
    rows = {join.name: join.sha256() for join in joins}
    content = {"rows": rows, "classes": list(classes), "attributes": dict(attributes)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _common(what: str, found: Sequence[tuple[Part, Any]]) -> Any:
    """Return what all parts have alike, refusing the first that differs."""
    first, value = found[0]
    for part, other in found:
        if other != value:
            raise difference(what, first.path, value, part.path, other)
    return value


def difference(what: str, one: Path, a: Any, two: Path, b: Any) -> CovcalError:
    """Return the error that two files differ in `what`, which is `a` in one and `b` in two."""
    texts = [text if len(text) <= 160 else f"{text[:157]}..." for text in (str(a), str(b))]
    return CovcalError(
        f"{one} and {two} differ in their {what} ({texts[0]} and {texts[1]}): extract both with "
        "the same model and options"
    )


def open_spool(output: Path, config: Config, *, resume: bool) -> tuple[Path, str | None]:
    """Return the folder for the parts of `output`, and a note on what became of an earlier run's.

    `config` holds everything that the numbers depend on, by names that a user knows: `resume` goes
    on with an earlier run of the same, and refuses another. Without it the earlier parts go.
    """
    folder = _folder(output)
    earlier = _earlier(folder)
    note = None
    if resume and earlier is not None:
        _require_same(output, earlier, config)
        return folder, None
    if resume:
        note = f"no earlier run of {output} was stopped: starting from the first row"
    elif earlier is not None:
        note = f"an earlier run of {output} was stopped; --resume would have gone on with it"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        (folder / _CONFIG).write_text(json.dumps(dict(config), sort_keys=True), encoding="utf-8")
    except OSError:  # a full disk: the caller says so, in terms of the output
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder, note


def was_stopped(output: Path) -> bool:
    """Return whether a run of `output` has left something to go on with."""
    return _earlier(_folder(output)) is not None


def _folder(output: Path) -> Path:
    return hidden_sibling(output.resolve(), "parts")


def _earlier(folder: Path) -> dict[str, Any] | None:
    try:
        found = json_of(folder / _CONFIG)
    except (OSError, ValueError):  # killed before it was written: nothing was done yet
        return None
    return found if isinstance(found, dict) else None


def _require_same(output: Path, earlier: Mapping[str, Any], config: Config) -> None:
    differing = [
        f"{name} was {_short(earlier.get(name))} and is {_short(value)}"
        for name, value in config.items()
        if earlier.get(name) != value
    ]
    if differing:
        raise CovcalError(
            f"{output}: the run that was stopped did something else ({'; '.join(differing)}): give "
            "the same options and data, or leave out --resume to start anew"
        )


def _short(value: Any) -> str:
    text = str(value)
    if len(text) == 64 and set(text) <= set("0123456789abcdef"):
        return f"sha256 {text[:12]}"
    return text


class DomainSpool:
    """What is done of one domain: its numbers and their journal; a context manager."""

    def __init__(self, folder: Path, name: str, widths: Mapping[str, int]) -> None:
        self.widths = dict(widths)  # columns of each array
        self.done = 0  # rows dealt with, from the front of the chosen ones
        self.kept = 0  # rows of them that were read and run
        self.skipped: list[tuple[int, str]] = []  # number and reason of the others
        self._paths = {array: folder / f"{name}.{array}" for array in widths}
        self._files = {array: path.open("a+b") for array, path in self._paths.items()}
        self._journal = (folder / f"{name}.journal").open("a+b")
        self._recover()
        self._synced = time.monotonic()

    def append(
        self, arrays: Mapping[str, Float32s], done: int, skipped: Sequence[tuple[int, str]]
    ) -> None:
        """Add a batch: the rows run, (m, width) by array, or none at all where none was readable.

        `done` counts the rows dealt with so far, this batch included; `skipped` has the number and
        reason of those of the batch that could not be read.
        """
        # The numbers first: a line in the journal stands for numbers that are there.
        checksum = 0
        for name, file in self._files.items():
            if name in arrays:
                rows = np.ascontiguousarray(arrays[name], dtype="<f4")
                checksum = zlib.crc32(rows.data, checksum)
                file.write(rows.data)
                file.flush()
        kept = self.kept + (done - self.done - len(skipped))
        checksum = _with_counts(checksum, done, kept, skipped)
        entry = {"done": done, "kept": kept, "crc": checksum, "skipped": skipped}
        self._journal.write(json.dumps(entry).encode() + b"\n")
        self._journal.flush()
        self.done, self.kept = done, kept
        self.skipped += skipped
        if time.monotonic() - self._synced > _SYNC_SECONDS:
            for file in (*self._files.values(), self._journal):
                os.fsync(file.fileno())
            self._synced = time.monotonic()

    def numbers(self) -> dict[str, "RawRows"]:
        """Return the rows kept, by array, to be read slice by slice."""
        return {
            name: RawRows(path, (self.kept, self.widths[name]))
            for name, path in self._paths.items()
        }

    def _recover(self) -> None:
        """Keep the batches that are whole, and cut off what follows them."""
        for file in (*self._files.values(), self._journal):
            file.seek(0)
        whole = 0
        for line in self._journal:
            if not self._is_whole(line):
                break
            whole += len(line)
        self._journal.truncate(whole)
        for name, file in self._files.items():
            file.truncate(self.kept * self.widths[name] * 4)

    def _is_whole(self, line: bytes) -> bool:
        """Take over one line of the journal if its numbers are all there."""
        try:
            entry = parsed_json(line.decode("utf-8")) if line.endswith(b"\n") else None
        except ValueError:
            return False
        if not self._is_entry(entry):
            return False
        checksum = 0
        for name, file in self._files.items():
            wanted = (entry["kept"] - self.kept) * self.widths[name] * 4
            if not 0 <= wanted <= os.fstat(file.fileno()).st_size:
                return False
            checksum = zlib.crc32(file.read(wanted), checksum)
        if _with_counts(checksum, entry["done"], entry["kept"], entry["skipped"]) != entry["crc"]:
            return False
        self.done, self.kept = entry["done"], entry["kept"]
        self.skipped += [(row, reason) for row, reason in entry["skipped"]]
        return True

    def _is_entry(self, entry: Any) -> TypeGuard[dict[str, Any]]:
        """Return whether a line of the journal is one that may follow those before it."""
        if not isinstance(entry, dict) or set(entry) != {"done", "kept", "crc", "skipped"}:
            return False
        counts, skipped = [entry[name] for name in ("done", "kept", "crc")], entry["skipped"]
        if not all(type(count) is int and count >= 0 for count in counts):
            return False
        if not isinstance(skipped, list) or not all(_is_skipped(one) for one in skipped):
            return False
        # What is done was kept or skipped: no more rows and no fewer.
        return bool(entry["done"] - self.done == entry["kept"] - self.kept + len(skipped))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for file in (*self._files.values(), self._journal):
            try:
                file.close()
            except OSError:  # a full disk, which the failed write has reported already
                if error[0] is None:
                    raise


def _with_counts(checksum: int, done: int, kept: int, skipped: Sequence[Sequence[Any]]) -> int:
    """Return the checksum of a batch's numbers and of what its line in the journal says."""
    return zlib.crc32(json.dumps([done, kept, skipped]).encode(), checksum)


def _is_skipped(entry: Any) -> bool:
    return (
        isinstance(entry, list) and len(entry) == 2 and [type(one) for one in entry] == [int, str]
    )


@dataclass(frozen=True)
class RawRows:
    """Rows of float32 in a file of nothing else, sliced as a dataset of HDF5 is."""

    path: Path
    shape: tuple[int, int]
    made: Callable[[Float32s], Float32s] | None = None  # what is made of every slice

    def blocks(self) -> Iterator[Float32s]:
        """Yield all rows in order, a few MiB at a time."""
        n, width = self.shape
        size = max(1, _BLOCK_BYTES // (4 * width))
        return (self[start : min(start + size, n)] for start in range(0, n, size))

    def take(self, rows: Rows) -> Float32s:
        """Return chosen rows, given in ascending order."""
        chosen, start = [], 0
        for block in self.blocks():
            first, last = np.searchsorted(rows, (start, start + len(block)))
            chosen.append(block[rows[first:last] - start])
            start += len(block)
        return np.concatenate(chosen)

    def __getitem__(self, rows: slice) -> Float32s:
        width = self.shape[1]
        start, stop = int(rows.start), int(rows.stop)
        found = np.fromfile(self.path, "<f4", (stop - start) * width, offset=4 * start * width)
        values: Float32s = found.reshape(-1, width)
        return values if self.made is None else self.made(values)
