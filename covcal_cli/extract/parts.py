"""Store parts of a domain's rows during a run, and join the parts to a features file.

A `Part` has finished rows of a run, a shard or another file. `Join` writes the rows of all parts in
order. The written bytes do not depend on how the rows are divided into parts.

A running extraction writes into a hidden folder ``.NAME.parts`` beside the output. For each domain,
the folder has a file of numbers per array, and a journal with one line per batch. A line is written
after the numbers of its batch, and has the checksum of these numbers. ``--resume`` keeps all
batches before the first missing line or wrong checksum. A run with other settings (``config.json``)
is never continued.
"""

import hashlib
import json
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeGuard

import numpy as np

from covcal_cli.arrays import AnyArray, Float32s, Rows
from covcal_cli.errors import CovcalError, shown
from covcal_cli.files import hidden_sibling
from covcal_cli.forecast import setting_that_differs
from covcal_cli.formats.features import (
    CONTENT,
    DOMAINS,
    FEATURE_COLUMNS,
    SOURCE_FRACTIONS,
    SPLITS,
    FeatureFile,
)
from covcal_cli.formats.writer import Attribute, HDF5Writer, utf8
from covcal_cli.records import json_of, parsed_json

Block = Mapping[str, Float32s]
Config = Mapping[str, str | int | None]
_NUMBERS = ("features", "logits")
BLOCK_BYTES = 4 << 20
_BLOCK_ROWS = 1 << 17  # Number of rows to sort at a time.
_CONFIG = "config.json"
_ENTRY = {"done", "kept", "crc", "skipped", "affine"}  # The keys of a line in the journal.
_SYNC_SECONDS = 10.0


@dataclass(frozen=True)
class Part:
    """Some rows of a domain, in memory or in a file."""

    path: Path  # The path of the data, for messages.
    rows: Rows | range  # The row numbers in the domain, ascending.
    content: Mapping[str, Any]  # Maps names to datasets, which are read in row order.
    columns: Sequence[str]  # The names of the datasets ``columns/NAME``.
    skipped: Sequence[tuple[int, str, str]]  # Number, id and error of each unreadable row.

    @property
    def widths(self) -> dict[str, int]:
        """The number of columns of each array."""
        return {name: int(self.content[name].shape[1]) for name in _NUMBERS if name in self.content}


class Join:
    """The parts of one domain, joined in the order of the rows."""

    def __init__(self, name: str, parts: Sequence[Part]) -> None:
        self.name, self._parts = name, parts
        self.n = sum(len(part.rows) for part in parts)
        self.rows = dict.fromkeys(SPLITS, 0)  # Number of written rows, by split.
        self.skipped = sorted(entry for part in parts for entry in part.skipped)
        # A part without rows does not always record the number of features.
        with_rows = [part for part in parts if len(part.rows)] or parts[:1]
        self._widths = _common("columns of numbers", [(part, part.widths) for part in with_rows])
        self._columns = _common(
            f"columns of the {name}", [(part, list(part.columns)) for part in parts]
        )

    def write(
        self,
        writer: HDF5Writer,
        count: Callable[[Block], None] | None = None,
        *,
        shared: str | None = None,
    ) -> None:
        """Write the group ``/NAME``, and call `count` with every block of numbers.

        `shared` is the name of a written group with the same rows. If `shared` is given, only
        logits and labels are written, and all other datasets are links to `shared`.
        """
        facts = ["labels", "split", "ids", *(f"columns/{name}" for name in self._columns)]
        widths = dict(self._widths)
        if shared is not None:
            for name in [*widths, *facts]:
                if name not in ("logits", "labels"):
                    writer.share(f"{self.name}/{name}", f"{shared}/{name}")
            facts, widths = ["labels"], {"logits": widths["logits"]}
        for array, width in widths.items():
            writer.allocate(f"{self.name}/{array}", (self.n, width))
        for block in self._written(writer, list(widths), 4 * sum(widths.values())):
            if count is not None:
                count(block)
        for fact in facts:
            dtype = np.result_type(*(part.content[fact].dtype for part in self._parts))
            writer.allocate(f"{self.name}/{fact}", (self.n,), dtype)
            for block in self._written(writer, [fact], dtype.itemsize):
                if fact == "split":
                    for number, name in enumerate(SPLITS):
                        self.rows[name] += int(np.count_nonzero(block[fact] == number))
        if self.skipped:
            writer.write(f"{self.name}/skipped", utf8([row_id for _, row_id, _ in self.skipped]))
            reasons = utf8([reason for _, _, reason in self.skipped])
            writer.write(f"{self.name}/skipped_reasons", reasons)

    def _written(
        self, writer: HDF5Writer, names: Sequence[str], row_bytes: int
    ) -> Iterator[dict[str, AnyArray]]:
        size = max(1, min(_BLOCK_ROWS, BLOCK_BYTES // max(1, row_bytes)))
        for pieces, order in self._pieces(size):
            block = {}
            for name in names:
                slices = [
                    np.asarray(part.content[name][start:stop]) for part, start, stop in pieces
                ]
                values = slices[0] if order is None else np.concatenate(slices)[order]
                writer.fill(f"{self.name}/{name}", values)
                block[name] = values
            yield block

    def _pieces(self, size: int) -> Iterator[tuple[list[tuple[Part, int, int]], Rows | None]]:
        """Yield the pieces (part, start, stop) of each block, and the order of their rows."""
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


def complete(
    writer: HDF5Writer,
    joins: Iterable[Join],
    classes: Sequence[str],
    attributes: Mapping[str, Attribute],
    *,
    tail: str,
    worst: float,
    largest: float,
    shard: str | None = None,
) -> None:
    """Write the attributes that are known at the end of a run, such as the last layer's error.

    `worst` is the largest |phi W^T + b - logits|, and `largest` is the largest |logit|.
    """
    rounded = _significant(worst)
    proof: dict[str, Attribute] = {
        "tail": tail,
        "affine_difference": rounded,
        "largest_logit": largest,
        "affine_error": _significant(rounded / largest) if largest else rounded,
    }
    content = {
        "rows": {join.name: writer.crc32s(join.name) for join in joins},
        "classes": list(classes),
        "attributes": {**attributes, **proof},
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    of_shard = {} if shard is None else {"shard": shard}
    writer.complete(**proof, **{CONTENT: digest}, **of_shard)


def _significant(value: float) -> float:
    """Round to three significant digits. Further digits would depend on the order of summation."""
    return float(f"{value:.2e}")


def _common(what: str, values: Sequence[tuple[Part, Any]]) -> Any:
    """Return the common value of all parts, and refuse different values."""
    first, value = values[0]
    for part, other in values:
        if other != value:
            raise difference(what, first.path, value, part.path, other)
    return value


def difference(what: str, first: Path, a: Any, second: Path, b: Any) -> CovcalError:
    """Return the error for two files with different values `a` and `b`."""
    texts = [text if len(text) <= 160 else f"{text[:157]}..." for text in (str(a), str(b))]
    return CovcalError(
        f"{first} and {second} differ in their {what} ({texts[0]} and {texts[1]}): extract "
        "both with the same model and options"
    )


def open_spool(output: Path, config: Config, *, resume: bool) -> tuple[Path, str | None]:
    """Return the folder for the parts of `output`, and a note on an earlier run.

    `config` has every setting that changes the extracted numbers. With `resume`, an earlier run
    with an equal `config` is continued, and other runs are refused. Without `resume`, the parts of
    an earlier run are removed.
    """
    folder = _folder(output)
    earlier = _earlier(folder)
    note = None
    if resume and earlier is not None:
        _require_same(output, earlier, config)
        return folder, None
    if resume:
        note = f"there is no stopped run of {output}, so this run starts from the first row"
    elif earlier is not None:
        note = (
            f"a run of {output} was stopped earlier, but this run extracts all rows again. To "
            "keep the rows of a stopped run, pass --resume"
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        (folder / _CONFIG).write_text(json.dumps(dict(config), sort_keys=True), encoding="utf-8")
    except OSError:  # The disk may be full; the caller raises an error that names the output.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder, note


def was_stopped(output: Path) -> bool:
    """Return whether `output` has a stopped run that can be continued."""
    return _earlier(_folder(output)) is not None


def _folder(output: Path) -> Path:
    return hidden_sibling(output.resolve(), "parts")


def _earlier(folder: Path) -> dict[str, Any] | None:
    try:
        config = json_of(folder / _CONFIG)
    except (OSError, ValueError):  # The run was interrupted before it had finished a row.
        return None
    return config if isinstance(config, dict) else None


def _require_same(output: Path, earlier: Mapping[str, Any], config: Config) -> None:
    differing = [
        f"{name} was {_short(earlier.get(name))} and is now {_short(value)}"
        for name, value in config.items()
        if earlier.get(name) != value
    ]
    if differing:
        raise CovcalError(
            f"{output}: the stopped run had other settings ({'; '.join(differing)}): give the "
            "same options and data, or leave out --resume to start again"
        )


def _short(value: Any) -> str:
    text = str(value)
    if len(text) == 64 and set(text) <= set("0123456789abcdef"):
        return f"sha256 {text[:12]}"
    return text


class DomainSpool:
    """The stored outputs of the finished rows of a domain, with a journal."""

    def __init__(self, folder: Path, name: str, widths: Mapping[str, int]) -> None:
        self.widths = dict(widths)  # Number of columns of each array.
        self.done = 0  # Number of rows that were run or skipped.
        self.kept = 0  # Number of rows that were run.
        self.affine_difference = 0.0  # The largest |phi W^T + b - logits| of the finished rows.
        self.skipped: list[tuple[int, str]] = []  # Number and error of each unreadable row.
        self._paths = {array: folder / f"{name}.{array}" for array in widths}
        self._files = {array: path.open("a+b") for array, path in self._paths.items()}
        self._journal = (folder / f"{name}.journal").open("a+b")
        self._recover()
        self._synced = time.monotonic()

    def append(
        self,
        arrays: Mapping[str, Float32s],
        done: int,
        skipped: Sequence[tuple[int, str]],
        difference: float = 0.0,
    ) -> None:
        """Add the arrays of a batch, each (m, width). `arrays` is empty if no row is readable.

        `done` is the number of finished rows after this batch. `skipped` has the unreadable rows of
        the batch. `difference` is the largest |phi W^T + b - logits| of the batch.
        """
        # Write the numbers first, because a journal line means that the numbers are complete.
        checksum = 0
        for name, file in self._files.items():
            if name in arrays:
                rows = np.ascontiguousarray(arrays[name], dtype="<f4")
                checksum = zlib.crc32(rows.data, checksum)
                file.write(rows.data)
                file.flush()
        n_run = self.kept + (done - self.done - len(skipped))
        entry: dict[str, Any] = {"done": done, "kept": n_run, "skipped": skipped}
        entry["affine"] = float(difference)
        entry["crc"] = _with_entry(checksum, entry)
        self._journal.write(json.dumps(entry).encode() + b"\n")
        self._journal.flush()
        self.done, self.kept = done, n_run
        self.affine_difference = max(self.affine_difference, entry["affine"])
        self.skipped += skipped
        if time.monotonic() - self._synced > _SYNC_SECONDS:
            for file in (*self._files.values(), self._journal):
                os.fsync(file.fileno())
            self._synced = time.monotonic()

    def numbers(self) -> dict[str, "RawRows"]:
        """Return the stored arrays of the finished rows, by name."""
        return {
            name: RawRows(path, (self.kept, self.widths[name]))
            for name, path in self._paths.items()
        }

    def _recover(self) -> None:
        """Read the complete batches, and remove an incomplete last batch."""
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
        if _with_entry(checksum, entry) != entry["crc"]:
            return False
        self.done, self.kept = entry["done"], entry["kept"]
        self.affine_difference = max(self.affine_difference, entry["affine"])
        self.skipped += [(row, reason) for row, reason in entry["skipped"]]
        return True

    def _is_entry(self, entry: Any) -> TypeGuard[dict[str, Any]]:
        if not isinstance(entry, dict) or set(entry) != _ENTRY:
            return False
        if not isinstance(entry["affine"], float):
            return False
        counts, skipped = [entry[name] for name in ("done", "kept", "crc")], entry["skipped"]
        if not all(type(count) is int and count >= 0 for count in counts):
            return False
        if not isinstance(skipped, list) or not all(
            isinstance(row, list) and [*map(type, row)] == [int, str] for row in skipped
        ):
            return False
        # Every finished row was either run or skipped.
        return bool(entry["done"] - self.done == entry["kept"] - self.kept + len(skipped))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for file in (*self._files.values(), self._journal):
            try:
                file.close()
            # The failed write has been reported already.
            except OSError:
                if error[0] is None:
                    raise


def _with_entry(checksum: int, entry: Mapping[str, Any]) -> int:
    values = [entry[name] for name in ("done", "kept", "skipped", "affine")]
    return zlib.crc32(json.dumps(values).encode(), checksum)


@dataclass(frozen=True)
class RawRows:
    """A file of float32 rows without a header."""

    path: Path
    shape: tuple[int, int]
    convert: Callable[[Float32s], Float32s] | None = None  # Converts every block that is read.

    def blocks(self) -> Iterator[Float32s]:
        """Yield all rows in order, in blocks of a few MiB."""
        n, width = self.shape
        size = max(1, BLOCK_BYTES // (4 * width))
        return (self[start : min(start + size, n)] for start in range(0, n, size))

    def take(self, rows: Rows) -> Float32s:
        """Return the rows with the given numbers, which must ascend."""
        chosen, start = [], 0
        for block in self.blocks():
            first, last = np.searchsorted(rows, (start, start + len(block)))
            chosen.append(block[rows[first:last] - start])
            start += len(block)
        return np.concatenate(chosen)

    def __getitem__(self, rows: slice) -> Float32s:
        width = self.shape[1]
        start, stop = int(rows.start), int(rows.stop)
        numbers = np.fromfile(self.path, "<f4", (stop - start) * width, offset=4 * start * width)
        values: Float32s = numbers.reshape(-1, width)
        return values if self.convert is None else self.convert(values)


@dataclass(frozen=True)
class LabelRows:
    """The logits of one label: 0 and z, where z is a column of `rows`."""

    rows: RawRows
    column: int

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the logits."""
        return self.rows.shape[0], 2

    def __getitem__(self, rows: slice) -> Float32s:
        values = self.rows[rows][:, self.column]
        return np.stack([np.zeros_like(values), values], axis=1)


HEAD = ("weight", "bias")  # The arrays of the last layer.
_ROOT_NUMBERS = ("seed", "affine_difference", "largest_logit")
# Root attributes that all parts have in common, in the order of ``extract``.
COMMON = (
    "model_name",
    "model_sha256",
    "features_tensor",
    "logits_tensor",
    "preprocessing",
    "fractions",
    "seed",
)
_WORDS = {
    "model_name": "model",
    "model_sha256": "model",
    FEATURE_COLUMNS: "feature columns",
    "source_rows": "choice of source rows",
    "target_rows": "choice of target rows",
}


def require_origin(file: FeatureFile) -> None:
    """Refuse to merge a file without a record of its origin."""
    if file.is_adapted:
        raise CovcalError(
            f"{file.path} is an adapted file: merge the features files, and adapt the merged file"
        )
    missing = [name for name in (*COMMON, *_ROOT_NUMBERS, "tail") if name not in file.attributes]
    if missing:
        raise CovcalError(
            f"{file.path} does not record its {missing[0]}: extract it again with this version"
        )
    for name in _ROOT_NUMBERS:
        if isinstance(file.attributes[name], str):
            raise CovcalError(f"{file.path}: attribute {name} is not a number: extract again")


def _setting(value: Any, expected: Any) -> str:
    try:
        return setting_that_differs(parsed_json(value), parsed_json(expected))
    except (TypeError, ValueError):  # A damaged attribute may not be JSON.
        return f"{shown(value)}, not {shown(expected)}"


def require_same_run(first: FeatureFile, file: FeatureFile) -> None:
    """Refuse a file that was extracted with another model or other options."""
    require_same_settings(first, file.path, file.classes, file.attributes)
    for name in HEAD:
        heads = [opened.handle.get(f"head/{name}") for opened in (first, file)]
        values = [head[:].tobytes() if head is not None else b"" for head in heads]
        if values[0] != values[1]:
            raise CovcalError(
                f"{first.path} and {file.path} differ in the {name} of the last layer: "
                "extract both with the same model"
            )


def require_same_settings(
    first: FeatureFile, path: Path, classes: Sequence[str], attributes: Mapping[str, Any]
) -> None:
    """Refuse a file whose classes or root attributes differ from the file `first`."""
    if list(classes) != list(first.classes):
        texts = [", ".join(names) for names in (first.classes, classes)]
        raise difference("classes", first.path, texts[0], path, texts[1])
    for name in (
        *COMMON,
        SOURCE_FRACTIONS,
        FEATURE_COLUMNS,
        "tail",
        *(f"{domain}_rows" for domain in DOMAINS),
    ):
        expected, value = first.attributes.get(name), attributes.get(name)
        if expected is None or value is None or expected == value:
            continue
        if name == "tail" and "None" in (expected, value):
            continue  # A file without rows does not record how the output follows from the logits.
        if name == "preprocessing":
            raise CovcalError(
                f"{first.path} and {path} differ in their preprocessing (the second has "
                f"{_setting(value, expected)}): extract both with the same model and options"
            )
        raise difference(_WORDS.get(name, name), first.path, expected, path, value)
