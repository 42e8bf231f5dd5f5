"""The labels of rows as data gives them: class numbers, or names."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL, AnyArray, Booleans, Labels
from covcal_cli.data.classes import ClassMap, NumberedNames
from covcal_cli.errors import CovcalError

_MINUS_ONE, _SIGNS = "-1", (-1, 0, 1)
_MISSING = ("", "nan", "NaN", "None", "null", "NULL", "<NA>")  # what libraries print for no value
_WHOLE = re.compile(r"-?\d+")


class RowLabels:
    """Labels of n rows, not yet classes of a model.

    Numbers are class indices, unless the classes are themselves called by numbers (angles, -1 and
    1, or 1 to K); texts are names, unless all are whole numbers and `texts_are_numbers`, as in CSV.

    What marks an unknown label, -1 or a text such as ``nan``, is a class where the classes name it.
    Elsewhere -1 means unknown only where the other labels leave no doubt that it is no class.
    """

    def __init__(
        self,
        # shape (n,): integers, floats that are whole, booleans, or texts. Unknown is -1, NaN, an
        # empty text or one of `_MISSING`.
        values: AnyArray,
        path: Path,  # where they lie and what they are called there, for messages
        key: str,
        *,
        texts_are_numbers: bool = False,
        # says where a row is in a table, for messages; without it a row is an array's index
        place: Callable[[int], str] | None = None,
        # what the numbers stand for, where the data says so
        number_names: tuple[str, ...] | None = None,
    ) -> None:
        self._path, self._key, self._place = path, key, place
        # The distinct names, or what the numbers stand for; None for plain numbers.
        self.names: tuple[str, ...] | None = None
        self._marked: dict[str, Booleans] = {}  # the rows of each mark of an unknown label
        self._is_documented = number_names is not None  # whether -1 is known to be one
        if values.dtype.kind in "iub":
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
            if (one := self._outside(count)) is not None:
                raise self._error(
                    f"{one} and the data names {count} classes: -1 (unknown) and 0 to {count - 1} "
                    "are allowed"
                )
            self.names = NumberedNames(number_names)

    @property
    def n_classes(self) -> int:
        """The number of classes that the labels show."""
        return len(np.unique(self._codes[self._codes != UNKNOWN_LABEL]))

    def indices(self, classes: ClassMap) -> Labels:
        """Return the class index of every row, shape (n,); -1 where unknown."""
        named = {mark: rows for mark, rows in self._marked.items() if mark in classes.names}
        if _MINUS_ONE in self._marked and not (_MINUS_ONE in named or self._is_documented):
            self._require_no_class(classes)
        found = self._unmarked_indices(classes)
        for mark, rows in named.items():
            found = np.where(rows, classes.require(self._path, mark, what=self._key), found)
        return found

    def _require_no_class(self, classes: ClassMap) -> None:
        """Refuse labels of which -1 may be a class: -1 and 1, or -1, 0 and 1, or -1 to K-2."""
        names, count = self.names, len(classes.names)
        codes = np.unique(self._codes[self._codes != UNKNOWN_LABEL]).tolist()
        if names is not None and not all(name.isdigit() for name in names):
            return
        known = set(codes) if names is None else {int(names[code]) for code in codes}
        one_short = known == set(range(count - 1))
        signs = count <= len(_SIGNS) and known <= {0, 1} and known != set(range(count))
        if known and (one_short or signs):
            numbers = ", ".join(map(str, sorted(known)))
            raise self._error(
                f"{self._key} holds -1, {numbers} and there are {count} classes, so -1 may be a "
                f"class or mean unknown: write the classes as 0 to {count - 1}, or name them in "
                "the order of the logits, -1 among them, with --classes FILE; unknown labels can "
                "be empty, or NaN"
            )

    def _unmarked_indices(self, classes: ClassMap) -> Labels:
        distinct = np.unique(self._codes[self._codes != UNKNOWN_LABEL])
        # Names are looked up among the classes, and so are numbers where classes are called so.
        if self.names is not None and not self._are_plain_numbers(classes):
            found = np.full(len(self.names) + 1, UNKNOWN_LABEL)
            for code in distinct.tolist():
                found[code] = classes.require(self._path, self.names[code], what=self._key)
            return found[self._codes]
        if not classes.by_number and all(map(_WHOLE.fullmatch, classes.names)):
            known = [classes.require(self._path, str(n), what=self._key) for n in distinct]
            lookup = {
                UNKNOWN_LABEL: UNKNOWN_LABEL,
                **dict(zip(distinct.tolist(), known, strict=True)),
            }
            return np.array([lookup[code] for code in self._codes.tolist()], dtype=np.int64)
        # Other numbers are the indices themselves.
        count = len(classes.names)
        if (one := self._outside(count)) is not None:
            if distinct.min() == 1 and distinct.max() == count:
                remedy = f"the labels are 1 to {count}: subtract 1, or give class names as labels"
            else:
                other = classes.or_name_them("and other labels are named")
                remedy = f"-1 (unknown) and 0 to {count - 1} are allowed{other}"
            raise self._error(f"{one} and the model has {count} classes: {remedy}")
        return self._codes

    def _outside(self, count: int) -> str | None:
        """Return where the first number is that is no index of `count` classes, if there is one."""
        outside = np.flatnonzero((self._codes < UNKNOWN_LABEL) | (self._codes >= count))
        return self._at(int(outside[0]), self._codes[outside[0]]) if len(outside) else None

    def _are_plain_numbers(self, classes: ClassMap) -> bool:
        """Return whether named numbers meet classes without names, where only numbers can match."""
        return (
            isinstance(self.names, NumberedNames)
            and classes.by_number
            and all(name.isdigit() for name in classes.names)
            and all(classes.index(name) is None for name in self.names)
        )

    def _whole(self, values: AnyArray) -> Labels:
        known = np.where(np.isnan(values), UNKNOWN_LABEL, values)
        self._mark(_MINUS_ONE, values == UNKNOWN_LABEL)
        wrong = np.flatnonzero((known != np.floor(known)) | np.isinf(known))
        if len(wrong):
            raise self._error(
                f"{self._at(int(wrong[0]), values[wrong[0]])}: save class numbers as integers, -1 "
                "for unknown"
            )
        return known.astype(np.int64)

    def _read_texts(self, values: AnyArray, texts_are_numbers: bool) -> None:
        distinct, codes = np.unique(values, return_inverse=True)
        texts = [str(text).strip() for text in distinct]
        known = [text for text in texts if text not in _MISSING and not _is_minus_one(text)]
        if texts_are_numbers and all(map(_is_whole, known)):
            numbers = {text: int(float(text)) for text in known}
        else:
            numbers = {name: index for index, name in enumerate(sorted(set(known)))}
            self.names = tuple(numbers) or None
        lookup = [numbers.get(text, UNKNOWN_LABEL) for text in texts]
        self._codes = np.array(lookup, dtype=np.int64)[codes]
        for place, text in enumerate(texts):
            if text and text not in numbers:
                self._mark(_MINUS_ONE if _is_minus_one(text) else text, codes == place)

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
    """Return labels that are all unknown."""
    return RowLabels(np.full(n, UNKNOWN_LABEL, dtype=np.int64), path, "label")


def _is_whole(text: str) -> bool:
    try:
        return float(text).is_integer()
    except ValueError:
        return False


def _is_minus_one(text: str) -> bool:
    return text in (_MINUS_ONE, "-1.0")
