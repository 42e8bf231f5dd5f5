"""Read the labels of rows, which are class numbers or class names.

`LabelSets` is for rows that can have several labels. Several labels per row can be given in three
forms:

- a column of 1 and 0 per label (``label_cat``)
- an array y [n, L] of 1 and 0
- a column with a list per row (``cat;dog``, ``cat|dog``, ``["cat", "dog"]``)

An empty list means that the row has no label. In a column or array of 1 and 0, an empty cell, NaN
or -1 means unknown.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from unicodedata import normalize

import numpy as np

from covcal_cli.arrays import TRUTH, UNKNOWN_LABEL, AnyArray, Booleans, Labels
from covcal_cli.data.classes import ClassMap, NumberedNames, is_plain_number, listed
from covcal_cli.data.stores.store import Store
from covcal_cli.errors import CovcalError, shown
from covcal_cli.records import parsed_json

LABEL_NAMES = (
    *("y", "label", "labels", "target", "targets", "class"),
    *("y_true", "true_label", "ground_truth"),
)


_MINUS_ONE, _SIGNS = "-1", (-1, 0, 1)
_MINUS_ONES = (_MINUS_ONE, "-1.0")
_MISSING = ("", "nan", "NaN", "None", "null", "NULL", "<NA>", "NA", "N/A", "n/a", "#N/A", ".", "[]")
_LARGEST = 1 << 53  # the limit up to which float64 represents all whole numbers
_WHOLE = re.compile(r"-?[0-9]+")
IN_CASE = "differ only in case, spaces, the encoding of letters or a final .0"
_WHOLE_FLOAT = re.compile(r"^(-?[0-9]+)\.0+$")
_LIST = re.compile(r"[\[(]\s*[-+.0-9eE]+([,\s]+[-+.0-9eE]+)+\s*[\])]")


def differing_in_case(names: Collection[str]) -> list[str]:
    """Return the names that differ only in case, spaces, Unicode form or a final ``.0``, sorted.

    One-letter names that differ only in case, such as a and A, are not returned.
    """
    key_of = {name: normalize("NFC", " ".join(name.split())) for name in names}
    key_of = {name: _WHOLE_FLOAT.sub(r"\1", key) for name, key in key_of.items()}
    key_of = {name: key.casefold() if len(key) > 1 else key for name, key in key_of.items()}
    count = Counter(key_of.values())
    return sorted(name for name, key in key_of.items() if count[key] > 1)


class RowLabels:
    """The labels of n rows.

    A text is a class name. A number is the index of a class, unless the classes themselves have
    numbers as names. With `texts_are_numbers`, texts become numbers if all texts are whole numbers.

    -1 and texts such as ``nan`` mean unknown, unless a class has this name. A text such as ``01``
    is a number, unless every label in the file is the name of a class.
    """

    def __init__(
        self,
        # Integers, whole floats, booleans or texts, (n,).
        values: AnyArray,
        path: Path,  # `path` and `key` name the file and the array in messages.
        key: str,
        *,
        texts_are_numbers: bool = False,
        # Describes the place of a row in messages; default: the row number.
        place: Callable[[int], str] | None = None,
        # The class names that the data give to the class numbers 0, 1, ...
        number_names: tuple[str, ...] | None = None,
    ) -> None:
        self._path, self._key, self._place = path, key, place
        # The distinct labels; None if the labels are numbers.
        self.names: tuple[str, ...] | None = None
        # Maps each text that means unknown, such as "nan", to the rows with this text.
        self._marked: dict[str, Booleans] = {}
        # Whether the file documents that -1 means unknown.
        self._is_documented = number_names is not None
        # The labels, read as class names instead of numbers; None if impossible.
        self._as_names: RowLabels | None = None
        if values.dtype.kind in "iub":
            self._require_whole(values, values > np.iinfo(np.int64).max)
            if values.dtype.kind == "b":
                self._as_names = RowLabels(values.astype(str), path, key, place=place)
            self._codes = values.astype(np.int64)
            self._mark(_MINUS_ONE, self._codes == UNKNOWN_LABEL)
        elif values.dtype.kind == "f":
            self._codes = self._whole(values)
        elif values.dtype.kind == "U":
            self._read_texts(values, texts_are_numbers)
        else:
            raise self._error(f"{key} holds {values.dtype}: save class numbers or names")
        if number_names is not None and self.names is None:
            count = len(number_names)
            if (label := self._outside(count)) is not None:
                raise self._error(
                    f"{label}, but there are {count} classes: write 0 to {count - 1}, or -1 for "
                    "unknown"
                )
            self.names = NumberedNames(number_names)

    @property
    def n_classes(self) -> int:
        """The number of distinct labels."""
        return len(self._distinct)

    @property
    def _distinct(self) -> Labels:
        return np.unique(self._codes[self._codes != UNKNOWN_LABEL])

    def indices(self, classes: ClassMap) -> Labels:
        """Return the class number of every row, shape (n,); -1 where unknown."""
        other = self._as_names
        if other and all(classes.index(name) is not None for name in other.names or ("",)):
            return other.indices(classes)
        named = {mark: rows for mark, rows in self._marked.items() if mark in classes.names}
        if _MINUS_ONE in self._marked and not (_MINUS_ONE in named or self._is_documented):
            self._require_no_class(classes)
        indices = self._unmarked_indices(classes)
        for mark, rows in named.items():
            indices = np.where(rows, classes.require(self._path, mark, what=self._key), indices)
        return indices

    def _require_no_class(self, classes: ClassMap) -> None:
        """Refuse labels in which -1 may be a class, such as -1 and 1."""
        names, count = self.names, len(classes.names)
        codes = self._distinct.tolist()
        if names is not None and not all(map(is_plain_number, names)):
            return
        numbers = set(codes) if names is None else {int(names[code]) for code in codes}
        lacks_one = numbers == set(range(count - 1))
        are_signs = count <= len(_SIGNS) and numbers <= {0, 1} and numbers != set(range(count))
        if numbers and (lacks_one or are_signs):
            raise self._error(
                f"{self._key} holds -1, {', '.join(map(str, sorted(numbers)))}, and there are "
                f"{count} classes. If -1 is a class, use the numbers 0 to {count - 1}. If -1 means "
                "unknown, leave the label empty"
            )

    def _unmarked_indices(self, classes: ClassMap) -> Labels:
        # Labels such as 3 can also be class names.
        if self.names is not None and not self._are_plain_numbers(classes):
            index_of = np.full(len(self.names) + 1, UNKNOWN_LABEL)
            for code in self._distinct.tolist():
                index_of[code] = classes.require(self._path, self.names[code], what=self._key)
            return index_of[self._codes]
        if not classes.by_number and all(map(_WHOLE.fullmatch, classes.names)):
            indices = np.full(len(self._codes), UNKNOWN_LABEL)
            for code in self._distinct.tolist():
                index = classes.require(self._path, str(code), what=self._key)
                indices[self._codes == code] = index
            return indices
        count = len(classes.names)
        if (label := self._outside(count)) is not None:
            if self._distinct[0] == 1 and self._distinct[-1] == count:
                remedy = (
                    f"the labels are 1 to {count}, so subtract 1, or give class names as labels"
                )
            else:
                other = classes.or_name_them("or name other labels")
                remedy = f"write 0 to {count - 1} or -1 (unknown){other}"
            raise self._error(f"{label}, but the model has {count} classes: {remedy}")
        return self._codes

    def _outside(self, count: int) -> str | None:
        outside = np.flatnonzero((self._codes < UNKNOWN_LABEL) | (self._codes >= count))
        return self._at(int(outside[0]), self._codes[outside[0]]) if len(outside) else None

    def _are_plain_numbers(self, classes: ClassMap) -> bool:
        """Return whether the labels are class numbers instead of class names."""
        return (
            isinstance(self.names, NumberedNames)
            and classes.by_number
            and all(map(is_plain_number, classes.names))
            and all(classes.index(name) is None for name in self.names)
        )

    def _whole(self, values: AnyArray) -> Labels:
        # Compare as float64, because float16 cannot represent `_LARGEST`.
        numbers = np.where(np.isnan(values), UNKNOWN_LABEL, values).astype(np.float64)
        self._mark(_MINUS_ONE, values == UNKNOWN_LABEL)
        self._require_whole(values, (numbers != np.floor(numbers)) | (abs(numbers) > _LARGEST))
        return numbers.astype(np.int64)

    def _require_whole(self, values: AnyArray, wrong: Booleans) -> None:
        rows = np.flatnonzero(wrong)
        if len(rows):
            raise self._error(
                f"{self._at(int(rows[0]), values[rows[0]])}: save class numbers as integers, -1 "
                "for unknown"
            )

    def _read_texts(self, values: AnyArray, texts_are_numbers: bool) -> None:
        distinct, codes = np.unique(values, return_inverse=True)
        texts = [str(text).strip() for text in distinct]
        labels = [text for text in texts if text not in (*_MISSING, *_MINUS_ONES)]
        if numbers_in_one := next((text for text in labels if _LIST.fullmatch(text)), None):
            raise self._error(
                f"{self._key} holds the text {numbers_in_one[:40]!r}: give one class number "
                "or name per row (for one-hot rows, the argmax)"
            )
        if several := next((text for text in labels if text.startswith('["')), None):
            raise self._error(
                f"{self._key} holds the list {several[:40]!r}: if rows have several labels, pass "
                "--multilabel"
            )
        are_whole = texts_are_numbers and all(map(_is_whole, labels))
        numbers = {text: int(float(text)) for text in labels} if are_whole else {}
        is_large = {text: abs(number) > _LARGEST for text, number in numbers.items()}
        # Long identifiers, such as the codes of diagnoses, are names.
        if are_whole and not (any(is_large.values()) and all(map(_WHOLE.fullmatch, labels))):
            large = [is_large.get(text, False) for text in texts]
            self._require_whole(values, np.array(large, dtype=bool)[codes])
            if any(str(number) != text for text, number in numbers.items()):
                self._as_names = RowLabels(values, self._path, self._key, place=self._place)
        else:
            numbers = {name: index for index, name in enumerate(sorted(set(labels)))}
            self.names = tuple(numbers) or None
        lookup = [numbers.get(text, UNKNOWN_LABEL) for text in texts]
        self._codes = np.array(lookup, dtype=np.int64)[codes]
        for place, text in enumerate(texts):
            if text and text not in numbers:
                self._mark(_MINUS_ONE if text in _MINUS_ONES else text, codes == place)

    def _mark(self, mark: str, rows: Booleans) -> None:
        if rows.any():
            self._marked[mark] = rows | self._marked.get(mark, False)

    def _at(self, row: int, value: object) -> str:
        if self._place is None:
            return f"{self._key}[{row}] is {value}"
        return f"{self._key} in {self._place(row)} is {value}"

    def _error(self, what: str) -> CovcalError:
        return CovcalError(f"{self._path}: {what}")


def unlabelled(n: int, path: Path) -> RowLabels:
    """Return n unknown labels."""
    # Not -1, because a class can have the name -1.
    return RowLabels(np.full(n, np.nan), path, "label")


def _is_whole(text: str) -> bool:
    try:  # Python would also accept digits of other scripts, and 1_0.
        return text.isascii() and "_" not in text and float(text).is_integer()
    except ValueError:
        return False


_COLUMN = re.compile(r"(?:true|y_true|label)_(.+)", re.IGNORECASE)
_SEPARATORS = re.compile(r"[;|,]")
_QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")  # Matches a quoted text in a Python list.
# The meaning of a cell in lower case: 1 present, 0 absent, -1 unknown.
PRESENCE = dict.fromkeys(("", "nan", *_MINUS_ONES), UNKNOWN_LABEL)
PRESENCE |= {text: int(is_true) for text, is_true in TRUTH.items()}


class LabelSets:
    """The labels of n rows that can have several labels.

    The label columns are removed from `store`.
    """

    def __init__(self, store: Store, n: int, names: Sequence[str] | None = None) -> None:
        self._store, self._n = store, n
        columns = {
            match[1]: name
            for name, entry in store.entries.items()
            if (match := _COLUMN.fullmatch(name)) and name.lower() not in LABEL_NAMES
            if entry.shape in ((n,), (n, 1))
        }
        whole = [name for name in store.entries if name.lower() in LABEL_NAMES]
        if len(whole) + bool(columns) > 1:
            both = [*columns.values(), *whole]
            raise store.error(f"both {both[0]} and {both[-1]} hold labels: keep one of them")
        unknown = [name for label, name in columns.items() if names and label not in names]
        if unknown:
            raise store.error(
                f"the model has no output for the label {unknown[0]}, only for "
                f"{listed(list(names or ()))}: rename the label, or leave it out"
            )
        taken = {*columns.values(), *whole}
        self._columns = {label: self._column(name) for label, name in columns.items()}
        self._array: AnyArray | None = None
        self._lists: list[list[str] | None] | None = None
        self.notes: tuple[str, ...] = ()
        self.names: tuple[str, ...] | None = NumberedNames(columns) if columns else None
        for name in whole:
            self._read_whole(name)
        store.entries = {name: e for name, e in store.entries.items() if name not in taken}

    def indices(self, classes: ClassMap) -> Labels:
        """Return 1, 0 or -1 (unknown) for each row and label, shape (n, L)."""
        names = classes.names
        if self._array is not None:
            if self._array.shape[1] != len(names):
                raise self._store.error(
                    f"the labels have {self._array.shape[1]} columns, but the model has "
                    f"{len(names)} labels ({listed(names)}): give one column of labels per output"
                )
            order = [*range(len(names))]
            if self.names is not None and set(self.names) == set(names):
                order = [self.names.index(name) for name in names]
            elif self.names is not None and not all(map(is_plain_number, self.names)):
                raise self._store.error(
                    f"the true labels are {listed(self.names)}, but the outputs are "
                    f"{listed(names)}: rename the labels, or name the outputs with --classes FILE"
                )
            return self._array[:, order]
        sets = np.full((self._n, len(names)), UNKNOWN_LABEL, dtype=np.int64)
        for label, values in self._columns.items():
            if label not in names:
                raise self._store.error(
                    f"the data have the true label {label}, but the outputs are {listed(names)}: "
                    "name the model's outputs in order with --classes FILE"
                )
            sets[:, names.index(label)] = values
        if self._lists is not None:
            composed = [normalize("NFC", name) for name in names]
            for row, entry in enumerate(self._lists):
                if entry is not None:
                    sets[row] = [name in entry for name in composed]
            listed_names = {name for entry in self._lists for name in entry or ()}
            others = sorted(listed_names - {*composed})
            folded = {name.casefold() for name in composed}
            for other in others:
                if {other.casefold()} <= folded or {*other.casefold().split()} <= folded:
                    raise self._store.error(
                        f"the true labels hold {shown(other)}, but the outputs are "
                        f"{listed(names)}: use the names of the outputs, and separate several "
                        "labels by a semicolon"
                    )
            if others and not (sets == 1).any():
                raise self._store.error(
                    f"the true labels are {listed(others)}, but the outputs are {listed(names)}: "
                    "rename the labels, or name the outputs with --classes FILE"
                )
            if others:
                note = (
                    f"the labels {listed(others)} are left out, because the model has no "
                    "output for them"
                )
                self.notes = (f"{self._store.path}: {note}",)
        return sets

    def _read_whole(self, name: str) -> None:
        entry = self._store.entries[name]
        if len(entry.shape) == 2 and not entry.is_text:
            self._array, self.names = self._known(self._store.whole(name), name), entry.class_names
            return
        texts = self._store.texts(name)
        # If all cells are empty, the column has no labels. If some cells are lists such as [], an
        # empty cell means unknown labels.
        if any(text.strip() for text in texts):
            are_lists = any(text.lstrip().startswith("[") for text in texts)
            self._lists = [
                None if are_lists and not text.strip() else _entries(text) for text in texts
            ]

    def _column(self, name: str) -> Labels:
        if not self._store.entries[name].is_text:
            return self._known(self._store.whole(name).reshape(-1, 1), name)[:, 0]
        texts = [text.strip().lower() for text in self._store.texts(name)]
        for row, text in enumerate(texts):
            if text not in PRESENCE:
                raise self._refused(name, row, shown(text))
        return np.array([PRESENCE[text] for text in texts], dtype=np.int64)

    def _known(self, values: AnyArray, name: str) -> Labels:
        numbers = np.nan_to_num(values.astype(np.float64), nan=UNKNOWN_LABEL)
        wrong = np.argwhere(~np.isin(numbers, (UNKNOWN_LABEL, 0, 1)))
        if len(wrong):
            raise self._refused(name, int(wrong[0][0]), f"{numbers[tuple(wrong[0])]:g}")
        return numbers.astype(np.int64)

    def _refused(self, name: str, row: int, value: str) -> CovcalError:
        return self._store.error(
            f"{name} in {self._store.place(row)} is {value}: write 1 for yes, 0 for no, and "
            "nothing for unknown"
        )


def _entries(text: str) -> list[str]:
    text = normalize("NFC", text.strip())
    if text.startswith(("[", "(", "{")):
        try:
            return [str(name) for name in parsed_json(text)]
        except (ValueError, TypeError):
            return [single or double for single, double in _QUOTED.findall(text)]
    return [name.strip() for name in _SEPARATORS.split(text) if name.strip()]
