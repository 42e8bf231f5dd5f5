"""Read the labels, splits, ids, groups and domains of rows from their file.

If the data have no splits, a hash of the seed and a row's name decides the split of the row. Adding
files does not change the splits of other files.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from covcal_cli.arrays import AnyArray, Splits
from covcal_cli.data.labels import LABEL_NAMES, RowLabels, unlabelled
from covcal_cli.data.stores.store import MixedColumnError, Store
from covcal_cli.errors import CovcalError, shown
from covcal_cli.formats.features import DOMAINS

DEFAULT_FRACTIONS = (0.6, 0.2, 0.2)
# The source needs no test split, because no command evaluates test rows of the source.
SOURCE_FRACTIONS = (0.6, 0.4, 0.0)
# Without features, nothing is trained, so all source rows are validation rows.
FITTED_FRACTIONS = (0.0, 1.0, 0.0)
SPLIT_NAMES = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}
Fractions = tuple[float, float, float]
_BLOCK = 1 << 14  # Number of hashes in memory at once.


def check_fractions(fractions: Fractions) -> None:
    """Refuse fractions that are negative or do not add up to 1."""
    text = " ".join(f"{part:g}" for part in fractions)
    if len(fractions) != 3 or not all(0 <= part <= 1 for part in fractions):
        raise CovcalError(f"fractions {text}: give three numbers between 0 and 1")
    if abs(sum(fractions) - 1) > 1e-6:
        raise CovcalError(
            f"fractions {text} add up to {sum(fractions):g}, not 1: give the shares of train, "
            "validation and test"
        )


def hashes_of(names: Sequence[str], prefix: str) -> NDArray[np.uint64]:
    """Return the first 8 bytes of the sha256 of `prefix` and each name, shape (n,)."""
    hashes, of_prefix = np.empty(len(names), dtype=np.uint64), hashlib.sha256(prefix.encode())
    for start in range(0, len(names), _BLOCK):
        block = names[start : start + _BLOCK]
        digests = []
        numbers = block.encoded().tolist() if isinstance(block, RowNumbers) else None
        for name in map(str.encode, block) if numbers is None else numbers:
            digest = of_prefix.copy()
            digest.update(name)
            digests.append(digest.digest())
        words = np.frombuffer(b"".join(digests), dtype=">u8")
        hashes[start : start + len(block)] = words[:: of_prefix.digest_size // 8]
    return hashes


class SplitHashes:
    """Hashes of row names, which decide the splits; cached for both domains."""

    def __init__(self, seed: int) -> None:
        self._prefix = f"{seed}:"
        self._names: Sequence[str] = []
        self._hashes = hashes_of([], self._prefix)

    def of(self, names: Sequence[str]) -> NDArray[np.uint64]:
        """Return the hash of each name, shape (n,)."""
        equal = min(len(names), len(self._names))
        if names[:equal] != self._names[:equal]:
            return hashes_of(names, self._prefix)
        if len(names) > equal:
            more = hashes_of(names[equal:], self._prefix)
            self._names, self._hashes = names, np.concatenate([self._hashes, more])
        return self._hashes[: len(names)]


def hashed_split(
    names: Sequence[str], fractions: Fractions, seed: int, hashes: SplitHashes | None = None
) -> Splits:
    """Return the split of each row: train (0), validation (1) or test (2), uint8, shape (n,).

    A name is a row's id, or a file's path below its class folder. Different seeds give independent
    splits. `hashes` must have been made with the same `seed`.
    """
    if 1 in fractions:
        return np.full(len(names), fractions.index(1), dtype=np.uint8)
    positions = (hashes or SplitHashes(seed)).of(names).astype(np.float64) / 2.0**64
    train, validation, _ = fractions
    bounds = np.array([train, train + validation])
    split = np.searchsorted(bounds, positions, side="right")
    # If the fraction of test rows is 0, a rounding error must not put a row into the test split.
    if fractions[2] == 0:
        split = np.minimum(split, 1 if validation > 0 else 0)
    return split.astype(np.uint8)


_CHOICE = "choice"
ID_NAMES = ("id", "ids")
PATH_NAMES = ("path", "file_name", "filename", "image_path")
GROUP_PREFIX = "group_"
DOMAIN = "domain"
_RESERVED = frozenset((*LABEL_NAMES, *ID_NAMES, "split", DOMAIN))
_INTEGER = re.compile("0|-?[1-9][0-9]{0,18}")
HALF = re.compile("[\ud800-\udfff]")  # Half of a UTF-16 pair, which UTF-8 cannot encode.
_STORABLE = re.compile(r"(?!\.\Z)[^/\0]+")  # Matches a name that HDF5 can store.
_LONGEST_GROUP = 256  # Longest text in a group, in characters.
# Texts are stored with a fixed width, which is limited to save memory.
_LONGEST_TEXT = 4096  # In bytes.
_COLUMN_BYTES = 256 << 20
# Tables with more rows keep long texts only with --keep.
_MOST_ROWS = _COLUMN_BYTES // _LONGEST_GROUP
_LONGEST_ID = 4096  # Longest id, in characters.
_TO_TABLE = "add a column named 'label' with class numbers or names"
_TO_ARRAYS = "save an array named 'y' of class numbers or names in the same .npz or .h5 file"
_INDEX = re.compile(r"|unnamed: 0(\.\d+)*|__index_level_\d+__")


def is_reserved(name: str) -> bool:
    """Return whether an array called `name` has labels, ids or groups instead of features."""
    plain = name.lower()
    return plain in _RESERVED or plain.startswith(GROUP_PREFIX) or is_index(plain)


def is_index(name: str) -> bool:
    """Return whether `name` is the name of a pandas index."""
    return _INDEX.fullmatch(name.lower()) is not None


def index_columns(store: Store) -> list[str]:
    """Return the index columns of a table."""
    return [name for name, entry in store.entries.items() if entry.is_index or is_index(name)]


def is_of_rows(store: Store, name: str) -> bool:
    """Return whether an array has labels, ids, groups or an index."""
    return is_reserved(name) or store.entries[name].is_index


def path_column(store: Store) -> str | None:
    """Return the name of the array with the paths of the rows, or None."""
    return next((name for name in store.entries if name.lower() in PATH_NAMES), None)


class RowFacts:
    """The labels, splits, ids and groups of the `n` rows of a `Store`.

    Every array with one value per row is a group, except labels, splits, ids and the arrays in
    `used`. The columns in `keep` are always groups. If `keeps_texts` is true, a column of long
    texts can also be a group.
    """

    def __init__(
        self,
        store: Store,
        n: int,
        used: Collection[str | None],
        label_names: tuple[str, ...] = LABEL_NAMES,
        keep: Collection[str] = (),
        *,
        keeps_texts: bool = False,
    ) -> None:
        self._store, self._n, self._label_names = store, n, label_names
        for name in keep:
            if name.lower() in label_names and name in store.entries:
                raise store.error(
                    f"{name} holds the true labels, which labellers must not see: leave out "
                    f"--keep {name}"
                )
        asked = {
            name for name in store.entries if {name, name.removeprefix(GROUP_PREFIX)} & {*keep}
        }
        self.path_name = path_column(store)
        groups = [
            name
            for name, entry in store.entries.items()
            if entry.shape == (n,)
            and entry.dtype.kind in "fiubSUO"
            and _STORABLE.fullmatch(name.removeprefix(GROUP_PREFIX))
            and (name not in used or name in asked)
            and name != self.path_name
            and name.lower() not in label_names
            and name != self._choice()
            and (name.startswith(GROUP_PREFIX) or name == DOMAIN or not is_of_rows(store, name))
        ]
        long = {name: size for name in groups if (size := self._longest(name)) > _LONGEST_GROUP}
        texts_kept = {*long} if keeps_texts and n <= _MOST_ROWS else asked & {*long}
        left_out = [name for name in long if name not in texts_kept]
        groups = [name for name in groups if name not in left_out]
        self.notes: tuple[str, ...] = ()
        if left_out:
            self.notes = (
                f"covcal leaves out {', '.join(left_out)} because of texts longer than "
                f"{_LONGEST_GROUP} characters. To keep {left_out[0]} for covcal pick, pass "
                f"--keep {left_out[0]}",
            )
        label = self._only(label_names) or self._choice()
        self.labels = unlabelled(n, store.path) if label is None else self._labels(label)
        self.way_to_label = _TO_TABLE if store.is_table else _TO_ARRAYS
        # The ids are the column ``id`` (unless it is empty), else paths, else a pandas index, else
        # row numbers.
        named = self._only(ID_NAMES)
        index = next((name for name in index_columns(store) if self._may_be_ids(name)), None)
        ids = [] if named is None else self._ids(named)
        if n and not any(ids):
            named = None
        id_name = index if named is None else named
        if named is None and self.path_name is not None:
            self._require_short(self.path_name, _LONGEST_ID)
            self.ids: Sequence[str] = self.paths
        elif id_name is not None:
            self.ids = self._ids(id_name) if named is None else ids
        else:
            self.ids = RowNumbers(range(n))
        # A CSV file has no types, so check whether all ids are integers.
        are_texts = id_name is not None and store.entries[id_name].is_text and store.is_typed
        are_numbers = id_name is None and self.path_name is None
        self.ids_are_integers = are_numbers or (not are_texts and all(map(_is_integer, self.ids)))
        self.has_ids = any(name is not None for name in (named, self.path_name, index))
        split = self._only(("split",))
        self.given_split = None if split is None else self._split(split)
        self.groups: Mapping[str, AnyArray] = {
            name.removeprefix(GROUP_PREFIX): self._texts(name)
            if name in texts_kept
            else self._group(name)
            for name in groups
        }

    @cached_property
    def paths(self) -> list[str]:
        """The paths of all rows; empty without a column of paths."""
        return [] if self.path_name is None else self._store.texts(self.path_name)

    def _labels(self, name: str) -> RowLabels:
        store = self._store
        return RowLabels(
            self._column(name),
            store.path,
            name,
            texts_are_numbers=store.is_table,
            place=store.place if store.is_table else None,
            number_names=store.entries[name].class_names,
        )

    def _only(self, names: tuple[str, ...]) -> str | None:
        own = [name for name in self._store.entries if name.lower() in names]
        if len(own) > 1:
            raise self._store.error(
                f"{own[0]} and {own[1]} have the same meaning: keep only one of them"
            )
        return own[0] if own else None

    def _choice(self) -> str | None:
        """Return the label column of Label Studio, if the file has no other labels."""
        entries = self._store.entries
        has_labels = any(name.lower() in self._label_names for name in entries)
        texts = [name for name, entry in entries.items() if entry.is_text]
        return None if has_labels else next((t for t in texts if t.lower() == _CHOICE), None)

    def _split(self, name: str) -> Splits:
        values = self._column(name)
        allowed: dict[Any, int] = {str(number): number for number in range(3)} | SPLIT_NAMES
        codes = np.empty(len(values), dtype=np.uint8)
        for value in np.unique(values):
            code = allowed.get(str(value).strip().lower())
            if code is None or values.dtype.kind not in "iuU":
                row = int(np.flatnonzero(values == value)[0])
                text = repr(str(value)) if values.dtype.kind == "U" else value
                kind = "" if values.dtype.kind in "iuU" else f" ({values.dtype})"
                noun = "column" if self._store.is_table else "array"
                raise self._store.error(
                    f"the {noun} split holds {text}{kind} in {self._store.place(row)}: write "
                    "train, validation or test, or 0, 1 or 2"
                )
            codes[values == value] = code
        return codes

    def _may_be_ids(self, name: str) -> bool:
        entry = self._store.entries[name]
        return is_index(name) or (
            not is_reserved(name) and (entry.is_text or entry.dtype.kind in "iu")
        )

    def _ids(self, name: str) -> list[str]:
        entry = self._store.entries[name]
        self._require_one_each(name)
        if not entry.is_text and entry.dtype.kind not in "iu":
            raise self._store.error(
                f"{name or 'the index'} holds {entry.dtype}: save texts or integers"
            )
        self._require_short(name, _LONGEST_ID)
        return self._store.texts(name)

    def _longest(self, name: str) -> int:
        if not self._store.entries[name].is_text:
            return 0
        texts = self._store.texts(name)
        for row, text in enumerate(texts):
            if not text.isascii() and HALF.search(text):
                raise self._store.error(
                    f"{name} holds {shown(text)} in {self._store.place(row)}, which is not Unicode "
                    "text: save it again"
                )
        return max(map(len, texts), default=0)

    def _texts(self, name: str) -> NDArray[np.bytes_]:
        """Return a column of long texts in UTF-8, and note if texts are cut."""
        self._require_one_each(name)
        most = min(_LONGEST_TEXT, max(_LONGEST_GROUP, _COLUMN_BYTES // self._n))
        texts, cut = self._store.cut_texts(name, most)
        if cut:
            self.notes += (
                f"the texts of {name} are cut to {most} bytes in {cut} of {self._n} rows",
            )
        return texts

    def _require_short(self, name: str, most: int) -> None:
        longest = self._longest(name)
        if longest > most:
            raise self._store.error(
                f"{name} holds a text of {longest} characters, but labels, ids and groups may "
                f"have at most {most}: rename the column if it holds other texts"
            )

    def _column(self, name: str) -> AnyArray:
        self._require_one_each(name)
        self._require_short(name, _LONGEST_GROUP)
        return self._store.whole(name).reshape(self._n)

    def _group(self, name: str) -> AnyArray:
        try:
            return self._column(name)
        except MixedColumnError:
            texts = self._store.texts(name)
            if max(map(len, texts)) > _LONGEST_GROUP:
                raise
            return np.array(texts)

    def _require_one_each(self, name: str) -> None:
        shape = self._store.entries[name].shape
        if shape not in ((self._n,), (self._n, 1)):
            remedy = f"give one {name} per row"
            if len(shape) > 1 and name.lower() in LABEL_NAMES:
                remedy = "give one class number per row (for one-hot rows, the argmax)"
                if shape[0] == self._n and not self._is_one_hot(name):
                    remedy = "if rows have several labels, pass --multilabel to covcal extract"
            raise self._store.error(
                f"{name} has shape {list(shape)} but there are {self._n} rows: {remedy}"
            )

    def _is_one_hot(self, name: str) -> bool:
        if self._store.entries[name].dtype.kind not in "fiub":
            return True
        values = self._store.whole(name).reshape(self._n, -1)
        return bool((np.count_nonzero(values, axis=1) == 1).all())


def count_rows(store: Store) -> int:
    """Return the number of rows of a file of arrays."""
    entries = store.entries
    wide = [
        name for name, entry in entries.items() if len(entry.shape) > 1 and not is_reserved(name)
    ]
    first = next((name for name in ("x", *wide, *entries) if name in entries), None)
    if first is None:
        raise CovcalError(f"{store.path} is empty: save the rows as an array x")
    entry = entries[first]
    if entry.dtype.kind == "O":
        raise store.error("it holds Python objects: save plain numeric arrays")
    if first == "x" and entry.is_text and not store.is_table:
        raise store.error(f"x holds {entry.dtype}, not numbers: save plain numeric arrays")
    if len(entry.shape) < (1 if store.is_table or first != "x" else 2):
        raise store.error(f"{first} has shape {list(entry.shape)}: give one row per example")
    return entry.shape[0]


def domain_of_rows(store: Store) -> AnyArray | None:
    """Return the column ``domain`` in lower case, shape (n,); None if there is no such column."""
    # A file of `apply` has a scalar ``domain``.
    name = next((n for n, e in store.entries.items() if n.lower() == DOMAIN and e.shape), None)
    if name is None:
        return None
    return np.array([text.strip().lower()[:_LONGEST_GROUP] for text in store.texts(name)])


def holds_both_domains(store: Store) -> bool:
    """Return whether the column ``domain`` of a table names both domains."""
    rows = domain_of_rows(store)
    domains = sorted(set(() if rows is None else rows.tolist()))
    other = [value for value in domains if value not in DOMAINS]
    if other:
        raise store.error(
            f"the column domain holds {other[0]!r}: write source or target, or rename the "
            f"column to {GROUP_PREFIX}domain"
        )
    return len(domains) == len(DOMAINS)


def require_domain(store: Store, domain: str, other: Path | None, *, outputs: bool) -> None:
    """Refuse a table whose column ``domain`` names the other domain.

    With `outputs`, one table may have both domains.
    """
    rows = domain_of_rows(store)
    opposite = DOMAINS[1 - DOMAINS.index(domain)]
    if rows is None or opposite not in rows:
        return
    beside = "" if other is None else f" (with {other})"
    both = set(DOMAINS) <= set(rows.tolist())
    if not both and other is not None:
        remedy = "exchange the two tables, or remove the column domain"
    elif outputs and both:
        remedy = f"give only {store.path}, or remove the column domain"
    elif outputs:
        remedy = (
            f"pass {store.path} as the {opposite} and give a {domain} table too, or remove the "
            "column domain"
        )
    else:
        remedy = f"save one table per domain, or rename the column domain to {GROUP_PREFIX}domain"
    raise CovcalError(
        f"{store.path} is given as the {domain}{beside}, but its column domain says "
        f"{opposite} in {(rows == opposite).sum()} of {len(rows)} rows: {remedy}"
    )


class RowNumbers(Sequence[str]):
    """Row numbers as texts, computed on demand."""

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> "RowNumbers": ...
    def __getitem__(self, place: int | slice) -> "str | RowNumbers":
        chosen = self._numbers[place]
        return RowNumbers(chosen) if isinstance(chosen, range) else str(chosen)

    def __iter__(self) -> Iterator[str]:
        return map(str, self._numbers)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RowNumbers):
            return self._numbers == other._numbers
        return list(self) == other

    def encoded(self) -> NDArray[np.bytes_]:
        """Return the texts as bytes of equal length, shape (n,)."""
        numbers = np.arange(self._numbers.start, self._numbers.stop, self._numbers.step)
        width = len(self[-1]) if self else 1
        numbers = numbers.astype(np.min_scalar_type(10**width))  # faster division
        digits = np.zeros((len(numbers), width), dtype=np.uint8)
        # NumPy's own conversion takes ten times as long.
        for length in range(1, width + 1):
            first, last = np.searchsorted(numbers, (10 ** (length - 1), 10**length))
            rows = slice(0 if length == 1 else first, last)
            left = numbers[rows]
            for place in reversed(range(length)):
                tenths = left // 10
                digits[rows, place] = left - 10 * tenths + ord("0")
                left = tenths
        return digits.view(f"S{width}")[:, 0]


def note_on_index(store: Store) -> tuple[str, ...]:
    """Return a note if a table has a pandas index."""
    names = [name or "the column without a name" for name in index_columns(store)]
    if not store.is_table or not names:
        return ()
    return (f"{store.path}: {', '.join(names)} is a pandas index, so it is not used as a feature",)


def note_on_numbered_rows(path: Path, columns: Mapping[str, AnyArray]) -> tuple[str, ...]:
    """Return a note if a table without ids has a column ``NAME_id`` of distinct values."""
    for name, values in columns.items():
        ends = name.lower().endswith(("_id", " id", "-id")) or name.endswith("Id")
        if ends and len(np.unique(values)) == len(values) > 1:
            return (
                f"the ids of {path} are row numbers. To use {name} as ids, rename the column to id",
            )
    return ()


def note_on_ids(path: Path, ids: Sequence[str]) -> tuple[str, ...]:
    """Return notes on ids that are empty or repeated."""
    notes: list[str] = []
    empty = [row for row, row_id in enumerate(ids) if not row_id.strip()]
    if empty:
        notes.append(
            f"{path}: {len(empty)} of {len(ids)} ids are empty (first in row {empty[0]}), so "
            "results of these rows cannot be joined by id"
        )
    # Hashes need less memory than a set of ids.
    hashes = np.fromiter(map(hash, ids), dtype=np.int64, count=len(ids))
    order = np.sort(hashes)
    suspects = set(order[1:][order[1:] == order[:-1]].tolist())
    counts = Counter(row_id for row_id in ids if row_id.strip() and hash(row_id) in suspects)
    repeated = {row_id: count for row_id, count in counts.items() if count > 1}
    if repeated:
        row_id, count = next(iter(repeated.items()))
        more = f" ({len(repeated) - 1} more ids occur several times)" if len(repeated) > 1 else ""
        notes.append(
            f"{path}: {count} rows have the id {row_id!r}{more}. Joining results by id would "
            "repeat these rows"
        )
    return tuple(notes)


def _is_integer(row_id: str) -> bool:
    return bool(_INTEGER.fullmatch(row_id)) and -(2**63) <= int(row_id) < 2**63


_FEW_ROWS = 20  # In fewer rows, the values of a feature may all be distinct by chance.
_FIRST = 1000  # Number of rows for a first, fast check.


def numbering_columns(store: Store, names: Sequence[str], *, rising: bool) -> tuple[str, ...]:
    """Return the columns of distinct whole numbers. With `rising`, the numbers must ascend."""
    entries = store.entries
    candidates = [
        name
        for name in names
        # Numbers in a CSV are float64.
        if entries[name].dtype.kind in "iu" or entries[name].dtype == np.float64
    ]
    n = entries[names[0]].shape[0] if names else 0
    if n < _FEW_ROWS or not candidates:
        return ()
    rows = np.arange(min(n, _FIRST), dtype=np.int64)
    parts = [arrays for _, arrays in store.pieces(candidates, rows, _FIRST)]
    first = {name: np.concatenate([part[name] for part in parts]) for name in candidates}
    likely = [name for name in candidates if _numbers_rows(first[name], rising)]
    if n <= _FIRST:
        return tuple(likely)
    return tuple(name for name in likely if _numbers_rows(store.whole(name), rising))


def _numbers_rows(values: AnyArray, rising: bool) -> bool:
    whole = np.isfinite(values).all() and (values == np.floor(values)).all()
    ordered = values if rising else np.sort(values)
    return bool(whole and (ordered[1:] > ordered[:-1]).all())
