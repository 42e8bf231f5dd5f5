"""The labels of rows as data gives them: class numbers, or names."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL, AnyArray, Labels
from covcal_cli.data.classes import ClassMap, NumberedNames
from covcal_cli.errors import CovcalError


class RowLabels:
    """Labels of n rows, not yet classes of a model.

    Numbers are class indices, unless the classes are themselves called by numbers (angles, or
    1 to K); texts are names, unless all are whole numbers and `texts_are_numbers`, as in CSV.
    """

    def __init__(
        self,
        # shape (n,): integers, floats that are whole, booleans, or texts. Unknown is -1, NaN or an
        # empty text.
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
        if values.dtype.kind in "iub":
            self._codes = values.astype(np.int64)
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
        distinct = np.unique(self._codes[self._codes != UNKNOWN_LABEL])
        # Names are looked up among the classes, and so are numbers where classes are called so.
        if self.names is not None and not self._are_plain_numbers(classes):
            found = np.full(len(self.names) + 1, UNKNOWN_LABEL)
            for code in distinct.tolist():
                found[code] = classes.require(self._path, self.names[code], what=self._key)
            return found[self._codes]
        if not classes.by_number and all(name.isdigit() for name in classes.names):
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
        known = [text for text in texts if text not in ("", "-1")]
        if texts_are_numbers and all(map(_is_whole, known)):
            numbers = {text: int(float(text)) for text in known}
        else:
            numbers = {name: index for index, name in enumerate(sorted(set(known)))}
            self.names = tuple(numbers) or None
        lookup = [numbers.get(text, UNKNOWN_LABEL) for text in texts]
        self._codes = np.array(lookup, dtype=np.int64)[codes]

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
