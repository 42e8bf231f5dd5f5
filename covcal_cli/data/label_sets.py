"""Read the labels of rows that can have several independent labels.

The labels have one of three forms: a column of 1 and 0 per label (``label_cat``), an array y [n, L]
of 1 and 0, or one column with a list per row (``cat;dog``, ``cat|dog``, ``["cat", "dog"]``). A list
names all labels of its row, so an empty list means that the row has no label. In the other forms,
an empty cell, NaN or -1 means unknown.
"""

import re
from collections.abc import Sequence

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL, AnyArray, Labels
from covcal_cli.data.classes import ClassMap, NumberedNames, listed
from covcal_cli.data.rows import LABEL_NAMES
from covcal_cli.data.stores.store import Store
from covcal_cli.errors import CovcalError, shown
from covcal_cli.records import parsed_json

_COLUMN = re.compile(r"(?:true|y_true|label)_(.+)", re.IGNORECASE)
_SEPARATORS = re.compile(r"[;|,]")
_QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")  # how Python writes the texts of a list
_VALUES = {"": UNKNOWN_LABEL, "nan": UNKNOWN_LABEL, "-1": UNKNOWN_LABEL, "-1.0": UNKNOWN_LABEL}
_VALUES |= dict.fromkeys(("1", "1.0", "true"), 1) | dict.fromkeys(("0", "0.0", "false"), 0)


class LabelSets:
    """The labels of n rows; they are taken out of a store, which would read one class per row."""

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
            raise store.error(f"both {both[0]} and {both[-1]} hold labels: keep one form of labels")
        unknown = [name for label, name in columns.items() if names and label not in names]
        if unknown:
            raise store.error(
                f"{unknown[0]} is a label without outputs (there are {listed(list(names or ()))}): "
                "rename it, or leave it out"
            )
        taken = {*columns.values(), *whole}
        self._columns = {label: self._column(name) for label, name in columns.items()}
        self._array: AnyArray | None = None
        self._lists: list[list[str]] | None = None
        self.notes: tuple[str, ...] = ()
        # The names of the labels in their order, if the data have them.
        self.names: tuple[str, ...] | None = NumberedNames(columns) if columns else None
        for name in whole:
            self._read_whole(name)
        store.entries = {name: e for name, e in store.entries.items() if name not in taken}

    def indices(self, classes: ClassMap) -> Labels:
        """Return 1, 0 or -1 (unknown) for every row and label, shape (n, L)."""
        names = classes.names
        if self._array is not None:
            if self._array.shape[1] != len(names):
                raise self._store.error(
                    f"its labels have {self._array.shape[1]} columns and there are {len(names)} "
                    f"labels ({listed(names)}): give one column of labels per output"
                )
            order = [*range(len(names))]
            if self.names is not None and set(self.names) == set(names):
                order = [self.names.index(name) for name in names]
            return self._array[:, order]
        sets = np.full((self._n, len(names)), UNKNOWN_LABEL, dtype=np.int64)
        for label, values in self._columns.items():
            if label not in names:
                raise self._store.error(
                    f"it has labels for {label}, which is none of {listed(names)}: name the "
                    "outputs of the model in order with --classes FILE"
                )
            sets[:, names.index(label)] = values
        if self._lists is not None:
            sets[:] = [[name in entry for name in names] for entry in self._lists]
            others = sorted({name for entry in self._lists for name in entry} - {*names})
            if others and not (sets == 1).any():
                raise self._store.error(
                    f"no row has one of the labels {listed(names)}, only {listed(others)}: name "
                    "the outputs as the labels are, or give --classes FILE"
                )
            if others:
                what = f"labels without outputs are left out: {listed(others)}"
                self.notes = (f"{self._store.path}: {what}",)
        return sets

    def _read_whole(self, name: str) -> None:
        entry = self._store.entries[name]
        if len(entry.shape) == 2 and not entry.is_text:
            self._array, self.names = self._known(self._store.whole(name), name), entry.class_names
            return
        texts = self._store.texts(name)
        # if all lists are empty, nothing is known about any row
        if any(text.strip() for text in texts):
            self._lists = [_entries(text) for text in texts]

    def _column(self, name: str) -> Labels:
        if not self._store.entries[name].is_text:
            return self._known(self._store.whole(name).reshape(-1, 1), name)[:, 0]
        texts = [text.strip().lower() for text in self._store.texts(name)]
        for row, text in enumerate(texts):
            if text not in _VALUES:
                raise self._refused(name, row, shown(text))
        return np.array([_VALUES[text] for text in texts], dtype=np.int64)

    def _known(self, values: AnyArray, name: str) -> Labels:
        """Return numbers as 1, 0 and -1; refuse others."""
        numbers = np.nan_to_num(values.astype(np.float64), nan=UNKNOWN_LABEL)
        wrong = np.argwhere(~np.isin(numbers, (UNKNOWN_LABEL, 0, 1)))
        if len(wrong):
            raise self._refused(name, int(wrong[0][0]), f"{numbers[tuple(wrong[0])]:g}")
        return numbers.astype(np.int64)

    def _refused(self, name: str, row: int, value: str) -> CovcalError:
        return self._store.error(
            f"{name} in {self._store.place(row)} is {value}: write 1 where the row has the label, "
            "0 where it does not, and nothing where that is unknown"
        )


def _entries(text: str) -> list[str]:
    """Return the names in one list of labels."""
    text = text.strip()
    if text.startswith(("[", "(", "{")):
        try:
            return [str(name) for name in parsed_json(text)]
        except (ValueError, TypeError):
            return [single or double for single, double in _QUOTED.findall(text)]
    return [name.strip() for name in _SEPARATORS.split(text) if name.strip()]
