"""The facts of rows: labels, split, ids, groups and domain, which arrays hold beside the values.

`RowFacts` reads them; below it stand the columns whose mistakes cost most: ``domain``, which tells
whose the rows are, and ids and row numbers, which are easily taken for features.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.arrays import AnyArray, Splits
from covcal_cli.data.labels import RowLabels, unlabelled
from covcal_cli.data.splits import SPLIT_NAMES
from covcal_cli.data.stores.store import Store
from covcal_cli.errors import CovcalError, shown
from covcal_cli.formats.features import DOMAINS

LABEL_NAMES = (
    *("y", "label", "labels", "target", "targets", "class"),
    *("y_true", "true_label", "ground_truth"),
)
_CHOICE = "choice"
ID_NAMES = ("id", "ids")
PATH_NAMES = ("path", "file_name", "filename", "image_path")
GROUP_PREFIX = "group_"
DOMAIN = "domain"
_RESERVED = frozenset((*LABEL_NAMES, *ID_NAMES, "split", DOMAIN))
_SHORT_INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")  # of 64 bits, whatever its digits
_HALF = re.compile("[\ud800-\udfff]")  # of a character
_LONGEST_GROUP = 256  # characters; a longer text names no group of rows
_LONGEST_ID = 4096  # and no row; paths are as long at most
_TO_TABLE = "add a column label with class numbers or names"
_TO_ARRAYS = "save an array y of class numbers or names beside the rows, in an .npz or .h5"
# What pandas calls the index of a table: in CSV, in one that was read and saved again, in Parquet.
_INDEX = re.compile(r"|unnamed: 0(\.\d+)*|__index_level_\d+__")


def is_reserved(name: str) -> bool:
    """Return whether an array of this name says something of the rows, and is no feature."""
    plain = name.lower()
    return plain in _RESERVED or plain.startswith(GROUP_PREFIX) or is_index(plain)


def _can_be_stored(name: str) -> bool:
    """Return whether HDF5 takes the name of a group of rows."""
    kept = name.removeprefix(GROUP_PREFIX)
    return kept not in ("", ".") and "/" not in kept and "\0" not in kept


def is_index(name: str) -> bool:
    """Return whether a column of this name is the index that pandas saved with a table."""
    return _INDEX.fullmatch(name.lower()) is not None


def index_columns(store: Store) -> list[str]:
    """Return the columns that are the index of a table, by their name or as the file says."""
    return [name for name, entry in store.entries.items() if entry.is_index or is_index(name)]


def is_of_rows(store: Store, name: str) -> bool:
    """Return whether an array says something of the rows, by its name or as an index."""
    return is_reserved(name) or store.entries[name].is_index


def path_column(store: Store) -> str | None:
    """Return the array that holds the paths of the rows, or None."""
    return next((name for name in store.entries if name.lower() in PATH_NAMES), None)


class RowFacts:
    """Labels, split, ids and groups of the `n` rows of a `Store`.

    Groups are the other arrays of one value a row, save those that are `used` in another way.
    """

    def __init__(
        self,
        store: Store,
        n: int,
        used: Collection[str | None],
        label_names: tuple[str, ...] = LABEL_NAMES,
    ) -> None:
        self._store, self._n, self._label_names = store, n, label_names
        self.path_name = path_column(store)
        groups = [
            name
            for name, entry in store.entries.items()
            if entry.shape == (n,)
            and entry.dtype.kind in "fiubSUO"
            and _can_be_stored(name)
            and name not in used
            and name != self.path_name
            and name.lower() not in label_names
            and name != self._choice()
            and (name.startswith(GROUP_PREFIX) or name == DOMAIN or not is_of_rows(store, name))
        ]
        # Texts to classify, say: kept with every row as long as the longest, they fill the memory.
        long = [name for name in groups if self._longest(name) > _LONGEST_GROUP]
        groups = [name for name in groups if name not in long]
        self.notes: tuple[str, ...] = (
            (
                f"{', '.join(long)} holds texts of more than {_LONGEST_GROUP} characters, which "
                "are no groups of rows: left out",
            )
            if long
            else ()
        )
        label = self._only(label_names) or self._choice()
        self.labels = unlabelled(n, store.path) if label is None else self._labels(label)
        self.way_to_label = _TO_TABLE if store.is_table else _TO_ARRAYS
        # Ids are what is called so, else paths, else an index that pandas saved, else row numbers.
        named = self._only(ID_NAMES)
        index = next((name for name in index_columns(store) if self._may_be_ids(name)), None)
        found = index if named is None else named
        if named is None and self.path_name is not None:
            self._require_short(self.path_name, _LONGEST_ID)
            self.ids = self.paths
        elif found is not None:
            self.ids = self._ids(found)
        else:
            self.ids = list(map(str, range(n)))
        # Whether the ids are integers in the file; in CSV, only their spelling shows that.
        are_texts = found is not None and store.entries[found].is_text and store.is_typed
        are_numbers = found is None and self.path_name is None
        self.ids_are_integers = are_numbers or (not are_texts and all(map(_is_integer, self.ids)))
        self.has_ids = any(name is not None for name in (named, self.path_name, index))
        split = self._only(("split",))
        self.given_split = None if split is None else self._split(split)
        self.groups: Mapping[str, AnyArray] = {
            name.removeprefix(GROUP_PREFIX): self._column(name) for name in groups
        }

    @cached_property
    def paths(self) -> list[str]:
        """The paths of all rows; none where no column has them."""
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
        """Return the one array of these names, in any case, or None."""
        found = [name for name in self._store.entries if name.lower() in names]
        if len(found) > 1:
            raise self._store.error(f"both {found[0]} and {found[1]} are there: keep one of them")
        return found[0] if found else None

    def _choice(self) -> str | None:
        """Return the labels that Label Studio exports, if the file has no others."""
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
                found = repr(str(value)) if values.dtype.kind == "U" else value
                kind = "" if values.dtype.kind in "iuU" else f" ({values.dtype})"
                raise self._store.error(
                    f"split holds {found}{kind} in {self._store.place(row)}: train, validation and "
                    "test, or 0, 1 and 2, are allowed"
                )
            codes[values == value] = code
        return codes

    def _may_be_ids(self, name: str) -> bool:
        """Return whether an index can be ids: it may be called like something else of the rows."""
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
        """Return the characters of the longest text of a column; 0 where it holds none."""
        if not self._store.entries[name].is_text:
            return 0
        texts = self._store.texts(name)
        if all(map(str.isascii, texts)):
            return max(map(len, texts), default=0)
        for row, text in enumerate(texts):
            if _HALF.search(text):
                raise self._store.error(
                    f"{name} holds {shown(text)} in {self._store.place(row)}, which is no Unicode "
                    "text: save it again"
                )
        return max(map(len, texts), default=0)

    def _require_short(self, name: str, most: int) -> None:
        longest = self._longest(name)
        if longest > most:
            raise self._store.error(
                f"{name} holds a text of {longest} characters, and at most {most} are read of what "
                "says something of the rows: call the column of texts something else"
            )

    def _column(self, name: str) -> AnyArray:
        self._require_one_each(name)
        self._require_short(name, _LONGEST_GROUP)
        return self._store.whole(name).reshape(self._n)

    def _require_one_each(self, name: str) -> None:
        shape = self._store.entries[name].shape
        if shape not in ((self._n,), (self._n, 1)):
            remedy = f"give one {name} per row"
            if len(shape) > 1 and name.lower() in LABEL_NAMES:
                remedy = "save class numbers, with argmax where they are one-hot"
                if shape[0] == self._n and not self._is_one_hot(name):
                    remedy = (
                        "rows of several labels are not supported; each label can go in as a table "
                        "of two classes, with its probability and a label of 0 or 1"
                    )
            raise self._store.error(
                f"{name} has shape {list(shape)} and there are {self._n} rows: {remedy}"
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
        raise CovcalError(f"{store.path} holds nothing: save the rows as x")
    entry = entries[first]
    if entry.dtype.kind == "O":
        raise store.error("it holds Python objects: save plain numeric arrays")
    if first == "x" and entry.is_text and not store.is_table:
        raise store.error(f"x holds {entry.dtype}, not numbers: save plain numeric arrays")
    if len(entry.shape) < (1 if store.is_table or first != "x" else 2) or entry.shape[0] == 0:
        raise store.error(f"{first} has shape {list(entry.shape)}: give one row per example")
    return entry.shape[0]


# Whose the rows are: the column ``domain`` of a table.


def domain_of_rows(store: Store) -> AnyArray | None:
    """Return the column ``domain`` in lower case, shape (n,); None where there is none."""
    # Without an axis it says of no row what it is: `apply` notes there which rows it was given.
    name = next((n for n, e in store.entries.items() if n.lower() == DOMAIN and e.shape), None)
    if name is None:
        return None
    return np.array([text.strip().lower()[:_LONGEST_GROUP] for text in store.texts(name)])


def holds_both_domains(store: Store) -> bool:
    """Return whether a table has rows of the source and of the target in a column ``domain``."""
    rows = domain_of_rows(store)
    found = sorted(set(() if rows is None else rows.tolist()))
    other = [value for value in found if value not in DOMAINS]
    if other:
        raise store.error(
            f"domain holds {other[0]!r}: source and target are allowed; call the "
            f"column {GROUP_PREFIX}domain where it means something else"
        )
    return len(found) == len(DOMAINS)


def require_domain(store: Store, domain: str, other: Path | None, *, outputs: bool) -> None:
    """Refuse a table, given as a domain beside the `other`, of which rows are the other domain's.

    Where tables hold `outputs`, one may serve for both.
    """
    found = domain_of_rows(store)
    opposite = DOMAINS[1 - DOMAINS.index(domain)]
    if found is None or opposite not in found:
        return
    beside = "alone" if other is None else f"beside {other}"
    both = set(DOMAINS) <= set(found.tolist())
    if not both and other is not None:
        remedy = "give it in the other place, or drop the column"
    elif outputs and both:
        remedy = "give this one table alone, or drop the column"
    elif outputs:
        remedy = f"give it as the {opposite} with a {domain} beside it, or drop the column"
    else:
        remedy = f"save the rows of each domain as a table of their own, or call it {GROUP_PREFIX}"
        remedy += "domain"
    raise CovcalError(
        f"{store.path} is given as the {domain} {beside}, and its column domain says {opposite} of "
        f"{(found == opposite).sum()} of {len(found)} rows: {remedy}"
    )


# Columns that name or number the rows, whatever they are called: ids, and no features.


def note_on_index(store: Store) -> tuple[str, ...]:
    """Return a note if a table brings along the index of pandas, which is not read as a number."""
    found = [name or "the column without a name" for name in index_columns(store)]
    if not store.is_table or not found:
        return ()
    return (f"{store.path}: {', '.join(found)} is the index that pandas saved, and no feature",)


def note_on_ids(path: Path, ids: Sequence[str]) -> tuple[str, ...]:
    """Return what a user should know of the ids of a domain: that some repeat or are empty.

    Whoever joins the results by id would get rows too many, without an error.
    """
    found: list[str] = []
    empty = sum(not known.strip() for known in ids)
    if empty:
        found.append(
            f"{path}: {empty} of {len(ids)} ids are empty, first that of row "
            f"{next(row for row, known in enumerate(ids) if not known.strip())}: results cannot "
            "be joined by id there"
        )
    # Hashes take 8 bytes an id; a set of a million ids would take 64 MB more.
    hashes = np.fromiter(map(hash, ids), dtype=np.int64, count=len(ids))
    order = np.sort(hashes)
    suspects = set(order[1:][order[1:] == order[:-1]].tolist())
    counts = Counter(known for known in ids if known.strip() and hash(known) in suspects)
    repeated = {known: count for known, count in counts.items() if count > 1}
    if repeated:
        known, count = next(iter(repeated.items()))
        more = f", as {len(repeated) - 1} more do" if len(repeated) > 1 else ""
        found.append(
            f"{path}: id {known!r} names {count} rows{more}: joining results by id would multiply "
            "rows"
        )
    return tuple(found)


def _is_integer(known: str) -> bool:
    """Return whether an id is spelled as integers of 64 bits are."""
    if _SHORT_INTEGER.fullmatch(known):
        return True
    digits = known.removeprefix("-")
    plain = digits.isascii() and digits.isdigit() and (digits == "0" or digits[0] != "0")
    return plain and known != "-0" and -(2**63) <= int(known[:20]) < 2**63 and len(known) <= 20


_FEW_ROWS = 20  # in fewer, ages are different whole numbers too
_FIRST = 1000  # most columns of features show in these that they are none


def numbering_columns(store: Store, names: Sequence[str], *, rising: bool) -> tuple[str, ...]:
    """Return those of the columns that hold another whole number in every row, `rising` or not."""
    entries = store.entries
    candidates = [
        name
        for name in names
        # CSV has no other number than float64; in half or single precision nobody keeps ids.
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
