"""Read and check features files and adapted files.

Both kinds of files have a group per domain (``/source``, ``/target``), ``/classes``, and root
attributes about their origin. Opening a file checks its structure, and reading values checks the
values.

`Domain` does not return labels. `SourceDomain.labels` returns source labels. Only the module
`target_labels` returns target labels. Modules that train or fit must not import `target_labels`.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from covcal_cli import multilabel
from covcal_cli.arrays import UNKNOWN_LABEL, AnyArray, Float32s, Floats, Labels, Rows, Splits
from covcal_cli.errors import CovcalError, TooFewRowsError
from covcal_cli.files import sha256_of
from covcal_cli.hdf5 import Dataset, File, Group, root_attributes
from covcal_cli.maths.softmax import ForecasterName, log_mean_softmax, valid_rows
from covcal_cli.maths.source_accuracy import RIGHT, WRONG
from covcal_cli.records import parsed_json

FEATURES_SCHEMA = "covcal.features/1"
APPLIED_SCHEMA = "covcal.applied/1"  # The schema of files of `covcal apply`.
ADAPTED_SCHEMA = "covcal.adapted/1"
# Attribute: the columns of a table in the model's order, as JSON.
FEATURE_COLUMNS = "feature_columns"
# The attribute with the source's share of train, validation and test rows. A file lacks this
# attribute if source and target have the same shares.
SOURCE_FRACTIONS = "source_fractions"
LABELS = "labels"  # Attribute: the label names as a JSON list, if rows can have several labels.
OPTIONS = "options"  # Attribute: the options of extract, as a JSON list.
ONE_TABLE = "one_table"  # Attribute: 1 if one table has both domains.
# Attribute: sha256 of a features file's content, for fast comparisons.
CONTENT = "content_sha256"
# Attributes of an adapted file: the path and the two hashes of its features file.
FEATURES_FILE = "features_file"
FEATURES_SHA256, FEATURES_CONTENT = "features_sha256", "features_content_sha256"
UNMARKED_SHA256 = "unmarked_sha256"
# Attributes about how the model was read; the value of ``preprocessing`` is JSON.
_READING = ("tail", "preprocessing", "features_tensor", "logits_tensor")
# The value of ``tail`` in files with one confidence per row (`covcal_cli.data.confidences`). With
# one confidence per row, all classes except the predicted class have equal logits.
ONE_CONFIDENCE = "confidence"
# Class names for a file that has confidences but no class names. The confidence of the most
# probable of 20 classes can be as low as 0.05.
EVENTS = (RIGHT, WRONG, *(f"{WRONG} {number}" for number in range(2, 20)))
PREDICTION = "prediction"
DOMAINS = ("source", "target")
SPLITS = ("train", "validation", "test")
ALL = "all"  # A name for all splits together.
REMEDY = "make it with covcal extract"  # Advice in messages about other kinds of files.
_LONGEST_ATTRIBUTE = 60_000  # HDF5 allows 64 KiB for an attribute.
_BLOCK_BYTES = 4 << 20  # Number of bytes to read at a time.
_LEAST_ROWS = 256
_SPLIT_ROWS = 1 << 18  # Maximum number of rows in a block of `split_blocks`.
_REQUIRED = ("logits", "labels", "split", "ids")
_ALIGNED = ("domain_logits", "aligned_logits", "aligned_domain_logits")
# The number type and the axes of each dataset: n rows, K classes, d features, M members.
_DATASETS = {
    "logits": ("f", "nK"),
    "labels": ("iu", "n"),
    "split": ("u", "n"),
    "ids": ("S", "n"),
    "features": ("f", "nd"),
    "domain_logits": ("f", "n"),
    "aligned_logits": ("f", "MnK"),
    "aligned_domain_logits": ("f", "Mn"),
}
_KINDS = {"f": "floats", "iu": "integers", "u": "unsigned integers", "S": "fixed-length bytes"}


class Domain:
    """A domain of an open file: splits and arrays, but no labels."""

    def __init__(self, path: Path, name: str, group: Group, n_classes: int) -> None:
        self.path = path
        self.name = name  # "source" or "target".
        self.n_classes = n_classes  # K.
        self._group = group
        self.n = self._checked_rows()
        # d, the number of features; None without features.
        self.n_features = int(group["features"].shape[1]) if "features" in group else None
        # M, the number of adapted networks; 0 in a features file.
        self.n_members = int(group["aligned_logits"].shape[0]) if "aligned_logits" in group else 0
        # The split of each row, as an index of `SPLITS`, shape (n,).
        self.split: Splits = group["split"][:]
        if self.n and int(self.split.max()) >= len(SPLITS):
            raise self._error("split", f"holds {int(self.split.max())}: write 0, 1 or 2")

    @property
    def n_labelled(self) -> int:
        """The number of labelled rows."""
        return int((self._group["labels"][:] != UNKNOWN_LABEL).sum())

    def rows(self, split: str) -> Rows:
        """Return the row numbers of a split, or of ``all`` splits, ascending."""
        if split == ALL:
            return np.arange(self.n, dtype=np.int64)
        return np.flatnonzero(self.split == SPLITS.index(split)).astype(np.int64, copy=False)

    def count(self, *splits: str) -> int:
        """Return the number of rows in `splits`."""
        return sum(int(np.count_nonzero(self.split == SPLITS.index(name))) for name in splits)

    def drawn(self, most: int, seed: int, *splits: str) -> Rows:
        """Return a random sample of at most `most` rows of `splits`, ascending."""
        return thinned_blocks(self.split_blocks(*splits), self.count(*splits), most, seed)

    def split_blocks(self, *splits: str) -> Iterator[Rows]:
        """Yield the row numbers of `splits`, ascending, in blocks."""
        wanted = np.isin(SPLITS, splits)
        for start in range(0, self.n, _SPLIT_ROWS):
            is_wanted = wanted[self.split[start : start + _SPLIT_ROWS]]
            if is_wanted.any():
                yield np.flatnonzero(is_wanted).astype(np.int64) + start

    def counts(self) -> str:
        """Describe the number of rows in each split."""
        sizes = (f"{name} {self.count(name)}" for name in SPLITS)
        return f"{self.name}: {', '.join(sizes)}"

    def require_rows(self, split: str) -> Rows:
        """Return the row numbers of a split. Refuse a split without rows."""
        self.require_any(split)
        return self.rows(split)

    def require_any(self, split: str) -> None:
        """Refuse a split without rows."""
        if self.count(split) == 0:
            raise TooFewRowsError(
                f"{self.path} has no {self.name} {split} rows ({self.counts()}): "
                f"extract again with a {split} folder or other --fractions"
            )

    def features(self, rows: Rows) -> Float32s:
        """Return phi(x) of `rows`, (m, d) float32. Refuse values that are not finite."""
        if self.n_features is None:
            raise self._error("features", "is missing: extract again with features")
        return self._read("features", rows)

    def logits(self, rows: Rows) -> Float32s:
        """Return the classifier's logits of `rows`, shape (m, K) float32."""
        return self._read("logits", rows)

    def aligned_logits(self, rows: Rows) -> Float32s:
        """Return the logits of each adapted network, shape (M, m, K) float32."""
        return self._read("aligned_logits", rows, axis=1)

    def forecaster_logits(self, rows: Rows, forecaster: ForecasterName) -> Floats:
        """Return the original or aligned logits of `rows`, shape (m, K).

        Aligned logits are log mean_m softmax(z_m), with the logits z_m of the adapted network m.
        """
        if forecaster == "original":
            return self.logits(rows)
        return log_mean_softmax(self.aligned_logits(rows)).T

    def domain_logits(self, rows: Rows) -> Float32s:
        """Return logits of "the row came from the source", computed from phi(x), (m,) float32."""
        return self._read("domain_logits", rows)

    def aligned_domain_logits(self, rows: Rows) -> Float32s:
        """Return logits of "the row came from the source" by each network, (M, m) float32."""
        return self._read("aligned_domain_logits", rows, axis=1)

    def ids(self, rows: Rows) -> list[str]:
        """Return the ids of `rows`, which are relative paths or row numbers."""
        try:
            return [bytes(value).decode("utf-8") for value in self.id_bytes(rows)]
        except UnicodeDecodeError as error:
            raise self._error("ids", "is not UTF-8: extract again") from error

    def id_bytes(self, rows: Rows) -> NDArray[np.bytes_]:
        """Return the ids of `rows` as UTF-8 bytes, shape (m,)."""
        return _taken(self._group["ids"], rows, axis=0)

    def hashes(self, rows: Rows) -> NDArray[np.uint64]:
        """Return a hash of the logits of each row, shape (m,).

        Logits are rounded, so the hash does not change if the logits are computed again.
        """
        hashes = [np.zeros(0, dtype=np.uint64)]
        for block in self.blocks(rows, "logits"):
            logits = self.logits(block).astype(np.float16) + np.float16(0)
            hashes.append(hashes_of(logits.view(np.uint16)))
        return np.concatenate(hashes)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that extract kept, such as groups."""
        return tuple(self._group["columns"]) if "columns" in self._group else ()

    def column(self, name: str, rows: Rows) -> AnyArray:
        """Return a kept column of `rows`, shape (m,): numbers, or texts as UTF-8 bytes."""
        dataset: Dataset = self._group["columns"][name]
        if dataset.shape != (self.n,):
            raise self._error(f"columns/{name}", f"has shape {dataset.shape}, not ({self.n},)")
        return _taken(dataset, rows, axis=0)

    def blocks(self, rows: Rows, *names: str) -> Iterator[Rows]:
        """Divide `rows` into blocks of a few MiB, to limit memory.

        `names` are the arrays to read, such as ``logits``. By default, ``features``, ``logits`` and
        ``aligned_logits`` are read.
        """
        widths = {
            "features": self.n_features or 1,
            "logits": self.n_classes,
            "aligned_logits": self.n_classes * self.n_members,
        }
        return _cut(rows, max(widths[name] for name in names or widths))

    def _checked_rows(self) -> int:
        group = self._group
        for name in _REQUIRED:
            if name not in group:
                raise self._error(name, "is missing: extract again")
        present = {
            name: kinds_and_axes for name, kinds_and_axes in _DATASETS.items() if name in group
        }
        for name, (kinds, axes) in present.items():
            self._require_type(name, kinds, axes)
        n = int(group["logits"].shape[0])
        for name, (_, axes) in present.items():
            sizes = dict(zip(axes, group[name].shape, strict=True))
            if sizes["n"] != n:
                raise self._error(name, f"has {sizes['n']} rows but logits has {n}: extract again")
            if sizes.get("K", self.n_classes) != self.n_classes:
                raise self._error(
                    name,
                    f"has {sizes['K']} columns but /classes has {self.n_classes}: extract again",
                )
        members = {group[name].shape[0] for name in _ALIGNED[1:] if name in group}
        if len(members) > 1 or 0 in members:
            raise self._error(
                "aligned_domain_logits",
                "does not have the same number of members as aligned_logits: run covcal adapt "
                "again",
            )
        return n

    def _require_type(self, name: str, kinds: str, axes: str) -> None:
        dataset = self._group[name]
        if not isinstance(dataset, Dataset):
            raise self._error(name, "is a group, not a dataset: extract again")
        if dataset.dtype.kind not in kinds or dataset.ndim != len(axes):
            raise self._error(
                name,
                f"is {dataset.dtype} with {dataset.ndim} axes, but must be {_KINDS[kinds]} with "
                f"{len(axes)} ({', '.join(axes)}): extract again",
            )

    def _read(self, name: str, rows: Rows, axis: int = 0) -> Float32s:
        if name not in self._group:
            raise self._error(name, "is missing: run covcal adapt first")
        dataset = self._group[name]
        shape = [*dataset.shape]
        shape[axis] = len(rows)
        values = np.empty(shape, dtype=np.float32)
        shape[axis] = 1
        start = 0
        for part in _cut(rows, math.prod(shape)):
            taken = _taken(dataset, part, axis)
            self._require_finite(name, taken, part, axis)
            if len(part) == len(rows) and taken.dtype == np.float32:
                return taken  # A single part needs no copy.
            stop = start + len(part)
            values[(slice(None),) * axis + (slice(start, stop),)] = taken
            start = stop
        return values

    def _require_finite(self, name: str, values: Float32s, rows: Rows, axis: int) -> None:
        # If the sum is finite, all values are finite, and no further check is needed.
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(values.sum()):
                return
        wrong = ~np.isfinite(values)
        if name == "logits":  # -inf masks a class, which is allowed if another class remains.
            wrong &= ~((values == -np.inf) & valid_rows(values)[:, None])
        bad = np.argwhere(wrong)
        if len(bad):
            row, value = int(rows[bad[0][axis]]), values[tuple(bad[0])]
            row_id = self.ids(np.array([row], dtype=np.int64))[0]
            raise self._error(
                name, f"row {row} ({row_id}) holds {value}: every value must be a finite number"
            )

    def _error(self, name: str, what: str) -> CovcalError:
        return CovcalError(f"{self.path}: /{self.name}/{name} {what}")


class SourceDomain(Domain):
    """The labelled domain, with data like the classifier's training data."""

    def labels(self, rows: Rows) -> Labels:
        """Return the labels of `rows`, (m,) int64; -1 if unknown."""
        return read_labels(self, rows)


class FeatureFile:
    """An open features or adapted file with a checked structure.

    `handle` is an open ``h5py.File``, which the caller closes. `path` is the name of the file in
    messages.

    Raises
    ------
    CovcalError
        If the file is missing, incomplete or damaged, or if its schema is unknown.
    """

    def __init__(self, path: Path, handle: Any = None) -> None:
        self.path = path
        self._sha256: str | None = None
        self._file = File(path, remedy=REMEDY, handle=handle, within=self._place)
        try:
            self.schema = self._checked_schema()
            self._require_labels()
            self._require_usual_datasets()
            self.classes = self._class_names()
            self.attributes = self._file.attrs
            self.source = SourceDomain(*self._group("source")) if "source" in self._file else None
            self.target = Domain(*self._group("target")) if "target" in self._file else None
            self._require_agreement()
        except BaseException:
            self.__exit__()
            raise

    @property
    def is_adapted(self) -> bool:
        """Whether the file comes from ``covcal adapt``."""
        return self.schema == ADAPTED_SCHEMA

    @property
    def model(self) -> dict[str, str]:
        """Name and sha256 of the classifier's file; empty if unknown."""
        return {name: str(self.attributes.get(f"model_{name}", "")) for name in ("name", "sha256")}

    @property
    def feature_columns(self) -> tuple[str, ...]:
        """The columns of a table in the model's order; empty if unknown."""
        text = self.attributes.get(FEATURE_COLUMNS)
        if not text:
            return ()
        try:
            names = parsed_json(str(text))
        except ValueError as error:
            raise CovcalError(
                f"{self.path}: its {FEATURE_COLUMNS} are not readable ({error}): extract again"
            ) from error
        return tuple(map(str, names)) if isinstance(names, list) else (str(names),)

    @property
    def reading(self) -> dict[str, Any]:
        """Known facts about how the model was read; see `Calibration.reading`."""
        reading = {name: self.attributes[name] for name in _READING if name in self.attributes}
        if reading.get("tail") == "None":  # Files without rows have the text "None".
            del reading["tail"]
        if "preprocessing" in reading:
            try:
                reading["preprocessing"] = parsed_json(str(reading["preprocessing"]))
            except ValueError as error:
                raise CovcalError(
                    f"{self.path}: the attribute preprocessing is not JSON: extract again"
                ) from error
        return reading

    @property
    def has_one_confidence(self) -> bool:
        """Whether the logits come from one confidence per row."""
        return bool(self.attributes.get("tail") == ONE_CONFIDENCE)

    @property
    def is_forecast_of_right(self) -> bool:
        """Whether the classes are right and wrong predictions (`EVENTS`)."""
        return tuple(self.classes) == EVENTS

    def require_all_classes(self, what: str) -> None:
        """Refuse a file with one confidence per row for the calculation `what`."""
        if self.has_one_confidence:
            raise CovcalError(
                f"{self.path} holds one confidence per row, but {what} needs the "
                "probabilities of all classes: extract them as columns prob_NAME"
            )

    @property
    def handle(self) -> File:
        """The open HDF5 file."""
        return self._file

    def sha256(self) -> str:
        """Return the sha256 that the file had before labels were added."""
        if self._sha256 is None:  # Computed once, because reading the whole file takes long.
            self._sha256 = str(self.attributes.get(UNMARKED_SHA256) or sha256_of(self.path))
        return self._sha256

    def require_source(self) -> SourceDomain:
        """Return the source. Raises `TooFewRowsError` if the file has no source rows."""
        if self.source is None:
            raise TooFewRowsError(
                f"{self.path} has no source rows: extract them together with the target, or add "
                "them with covcal merge"
            )
        return self.source

    def require_target(self) -> Domain:
        """Return the target. Raises `TooFewRowsError` if the file has no target rows."""
        if self.target is None:
            raise TooFewRowsError(
                f"{self.path} has no target rows: extract them together with the source, or add "
                "them with covcal merge"
            )
        return self.target

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def _place(self, attributes: Mapping[str, Any]) -> str:
        names = _label_names(self.path, attributes)
        return f"label/{names.index(multilabel.chosen_label(self.path, names))}" if names else "/"

    def _require_labels(self) -> None:
        named = len(_label_names(self.path, self._file.attrs))
        if named and named != (stored := self._file.n_beside):
            raise CovcalError(
                f"{self.path} holds {stored} labels, but {named} label names in its attribute "
                f"{LABELS!r}: extract again"
            )

    def _checked_schema(self) -> str:
        schema = self._file.attrs.get("schema")
        schema = FEATURES_SCHEMA if schema == multilabel.SCHEMA else schema
        if not isinstance(schema, str) or schema not in (FEATURES_SCHEMA, ADAPTED_SCHEMA):
            actual = "no schema" if schema is None else f"schema {schema!r}"
            raise CovcalError(
                f"{self.path} has {actual}, but this version reads {FEATURES_SCHEMA} and "
                f"{ADAPTED_SCHEMA}: make it with covcal extract"
            )
        if self._file.attrs.get("complete") != 1:
            raise CovcalError(f"{self.path} is not complete: run the command that made it again")
        return str(schema)

    def _require_usual_datasets(self) -> None:
        for name, dataset in self._file.datasets.items():
            if dataset.can_grow:
                raise CovcalError(
                    f"{self.path}: the size of /{name} is not final, so some rows may be "
                    "missing: make the file again"
                )
            if dataset.dtype.kind in "fiu" and not dataset.is_usual:
                raise CovcalError(
                    f"{self.path}: /{name} is damaged (its number format {dataset.dtype} is "
                    "unusual): copy the file again or make it again"
                )

    def _class_names(self) -> list[str]:
        if self._file.attrs.get("schema") == multilabel.SCHEMA:
            return list(multilabel.CLASSES)
        if "classes" not in self._file:
            raise CovcalError(f"{self.path}: /classes is missing: extract again")
        names = self._file["classes"]
        if not isinstance(names, Dataset):
            raise CovcalError(f"{self.path}: /classes is not a list of names: extract again")
        return names.texts()

    def _require_agreement(self) -> None:
        domains = [domain for domain in (self.source, self.target) if domain is not None]
        if self.is_adapted:
            for domain in domains:
                for name in _ALIGNED:
                    if name not in domain._group:
                        raise domain._error(name, "is missing: run covcal adapt again")
        for kind, values in (
            ("features", {domain.n_features for domain in domains} - {None}),
            ("members", {domain.n_members for domain in domains}),
        ):
            if len(values) > 1:
                raise CovcalError(
                    f"{self.path}: source and target have different numbers of {kind} "
                    f"({' and '.join(sorted(map(str, values)))}): make the file again"
                )

    def _group(self, name: str) -> tuple[Path, str, Group, int]:
        group = self._file[name]
        if not isinstance(group, Group):
            raise CovcalError(f"{self.path}: /{name} is a dataset, not a group: extract again")
        return self.path, name, group, len(self.classes)


def hashes_of(values: AnyArray) -> NDArray[np.uint64]:
    """Return a hash of each row of unsigned integers (m, k), shape (m,)."""
    bits = np.uint64(8 * values.itemsize)
    places = np.arange(1, values.shape[1] + 1, dtype=np.uint64) << bits
    with np.errstate(over="ignore"):
        mixed = values + places
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        return np.asarray((mixed ^ (mixed >> np.uint64(31))).sum(axis=1, dtype=np.uint64))


def labels_in(path: Path) -> tuple[str, ...]:
    """Return the label names if rows of the file can have several labels, else an empty tuple."""
    return _label_names(path, root_attributes(path, "schema", LABELS, remedy=REMEDY))


def _label_names(path: Path, attributes: Mapping[str, Any]) -> tuple[str, ...]:
    if attributes.get("schema") != multilabel.SCHEMA:
        return ()
    try:
        names = parsed_json(str(attributes.get(LABELS)))
    except ValueError:
        names = None
    is_valid = isinstance(names, list) and all(isinstance(n, str) and n.strip() for n in names)
    if not is_valid or not names or len({*names}) < len(names):
        raise CovcalError(f"{path}: its attribute {LABELS!r} holds no label names: extract again")
    return tuple(names)


def thinned(rows: Rows, most: int, seed: int) -> Rows:
    """Return a random sample of at most `most` rows, ascending."""
    if len(rows) <= most:
        return rows
    return rows[thinned_places(len(rows), most, seed)]


def thinned_places(n: int, most: int, seed: int) -> Rows:
    """Draw `most` of the positions 0 to n - 1 at random, ascending."""
    return np.sort(np.random.default_rng(seed).choice(n, most, replace=False))


def thinned_blocks(blocks: Iterable[Rows], n: int, most: int, seed: int) -> Rows:
    """Return a random sample of at most `most` of the n rows in `blocks`, ascending."""
    places = None if n <= most else thinned_places(n, most, seed)
    chosen, start = [np.empty(0, dtype=np.int64)], 0
    for block in blocks:
        stop = start + len(block)
        if places is not None:
            first, last = np.searchsorted(places, (start, stop))
            block = block[places[first:last] - start]
        chosen.append(block)
        start = stop
    return np.concatenate(chosen)


def read_labels(domain: Domain, rows: Rows) -> Labels:
    """Return labels of a domain. Only `SourceDomain` and `target_labels` may call this function."""
    labels = _taken(domain._group["labels"], rows, axis=0)
    outside = np.flatnonzero((labels < UNKNOWN_LABEL) | (labels >= domain.n_classes))
    if len(outside):
        row = int(rows[outside[0]])
        raise CovcalError(
            f"{domain.path}: /{domain.name}/labels row {row} is {labels[outside[0]]}: write 0 to "
            f"{domain.n_classes - 1}, or -1 (unknown)"
        )
    return labels.astype(np.int64, copy=False)


def columns_text(names: Sequence[str]) -> str:
    """Return the attribute `FEATURE_COLUMNS`: the names of columns, or the sha256 of long names."""
    text = json.dumps(list(names), ensure_ascii=False)
    if len(text.encode()) <= _LONGEST_ATTRIBUTE:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps([f"{len(names)} columns", f"sha256 {digest}"])


def _cut(rows: Rows, width: int) -> Iterator[Rows]:
    """Divide `rows` of `width` float32 values into parts of a few MiB."""
    size = max(_LEAST_ROWS, _BLOCK_BYTES // (4 * max(1, width)))
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _taken(dataset: Dataset, rows: Rows, axis: int) -> AnyArray:
    """Read `rows` in contiguous spans, which is far faster than HDF5's selection of rows."""
    gaps = np.diff(rows)
    if (gaps <= 0).any():
        ascending, places = np.unique(rows, return_inverse=True)
        return np.asarray(np.take(_taken(dataset, ascending, axis), places, axis=axis))
    shape = list(dataset.shape)
    shape[axis] = 1
    most = max(1, _BLOCK_BYTES // (dataset.dtype.itemsize * max(1, math.prod(shape))))
    shape[axis] = len(rows)
    if len(rows) == 0:
        return np.empty(shape, dtype=dataset.dtype)
    chunks = dataset.chunks
    ends = np.flatnonzero(gaps > (most if chunks is None else min(most, chunks[axis]))) + 1
    if len(ends) == 0 and int(rows[-1]) - int(rows[0]) < max(most, 2 * len(rows)):
        return _span(dataset, rows, axis)
    values = np.empty(shape, dtype=dataset.dtype)
    first = 0
    while first < len(rows):
        last = int(np.searchsorted(rows, rows[first] + most))
        last = min([last, *ends[np.searchsorted(ends, first, "right") :][:1].tolist()])
        values[(slice(None),) * axis + (slice(first, last),)] = _span(
            dataset, rows[first:last], axis
        )
        first = last
    return values


def _span(dataset: Dataset, rows: Rows, axis: int) -> AnyArray:
    start, stop = int(rows[0]), int(rows[-1]) + 1
    span = dataset[start:stop] if axis == 0 else dataset[:, start:stop]
    if stop - start == len(rows):
        return np.asarray(span)
    return np.asarray(np.take(span, rows - start, axis=axis))
