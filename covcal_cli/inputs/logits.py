"""Tables of logits or probabilities from elsewhere: a classifier's outputs without the classifier.

``.npz``, ``.npy`` and ``.h5`` hold them as an array, beside which an array ``classes`` may name its
columns; ``.csv`` and ``.parquet`` as one column per class (or Parquet as one list per row);
``outputcolumns.py`` finds them. Beside them may lie features, labels, split, ids and groups.
Probabilities become logits by their logarithm.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.inputs.appliedfile import open_outputs_store
from covcal_cli.inputs.arrays import count_rows
from covcal_cli.inputs.classes import ClassMap
from covcal_cli.inputs.domaincolumn import domain_of_rows, require_domain
from covcal_cli.inputs.outputcolumns import find_outputs, group_arrays, without_answer
from covcal_cli.inputs.outputdoubts import (
    ZEROS,
    are_percentages,
    doubt_on_one_column,
    no_probability,
    require_all_classes,
    unread_features,
)
from covcal_cli.inputs.rowfacts import (
    RowFacts,
    note_on_ids,
    note_on_index,
)
from covcal_cli.inputs.store import Piece, Rows, Store, regrouped

Floats = NDArray[np.float32]
Block = tuple[Rows, Floats | None, Floats]
"""Row numbers, features (m, d) or None, and logits (m, K)."""

_TOLERANCE = 1e-3  # of a sum of probabilities
_ROUNDED = 1e-2 + 1e-6  # of one of probabilities with two or three decimals
_ROUNDING = "rounded probabilities: rows sum to 0.99 to 1.01, and are divided by their sum"
_SMALLEST = float(np.finfo(np.float32).tiny)
_PROBE = 1000


class OutputTable:
    """The outputs of a classifier for the rows of one domain, in the order of the file.

    Parameters
    ----------
    store : Store
        The file.
    probabilities : bool
        Whether it holds probabilities rather than logits.
    domain : str, optional
        Keep the rows with this value in the column ``domain``, alone.

    Attributes
    ----------
    path : Path
    ids : list of str
        One id per row.
    split_names : list of str
        The name that decides a row's split where none is given.
    given_split : array of uint8, shape (n,), or None
    n_classes : int
        K.
    n_features : int or None
        d; None where there are no features.
    class_names : tuple of str or None
        What the columns call the classes; None where they are numbered 0 to K-1.
    class_folders : tuple of str or None
        The distinct labels where they are texts, as in `DomainData`.
    columns : mapping of str to array, shape (n,)
        Groups for ``covcal evaluate --by``.
    index_notes : tuple of str
        What a user should know of an index that pandas saved.

    Raises
    ------
    CovcalError
        If the table does not hold what is asked for.
    """

    def __init__(self, store: Store, *, probabilities: bool, domain: str | None = None) -> None:
        self.path = store.path
        self._store, self._probabilities = store, probabilities
        answer = without_answer(store)
        self._found = find_outputs(store, probabilities=probabilities)
        n = count_rows(store)
        self._require_rows(n)
        groups = group_arrays(store, n, self._found)
        facts = RowFacts(store, n, groups.values())
        self._rows = self._rows_of(domain, n)
        self._labels = facts.labels
        self.ids = [facts.ids[row] for row in self._rows]
        self.split_names = self.ids
        self.given_split = None if facts.given_split is None else facts.given_split[self._rows]
        self.n_classes = max(2, self._found.width)
        self.n_features = self._found.n_features
        self.class_names = self._found.class_names
        self.class_folders = facts.labels.names
        self.columns: Mapping[str, NDArray[Any]] = {
            name: facts.columns[key][self._rows] for name, key in groups.items()
        }
        self._positive_first = False
        self._remarks = [*answer, *self._found.notes, *unread_features(store, n, self._found)]
        self.index_notes = note_on_index(store)
        self._ids_notes = note_on_ids(self.path, self.ids) if facts.has_ids else ()
        require_all_classes(store, self._found, self._labels.n_classes)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know; complete after the last row was read."""
        return (*(f"{self.path}: {note}" for note in self._remarks), *self._ids_notes)

    @property
    def positive(self) -> str | None:
        """What a single column calls the class that it is of."""
        return self._found.positive

    @property
    def class_columns(self) -> Mapping[str, str]:
        """The columns by class; empty where a single array or column does not name classes."""
        return self._found.class_columns

    def require_domain(self, domain: str, other: Path | None) -> None:
        """Refuse a table that says of some rows that they are of the other domain."""
        require_domain(self._store, domain, other, outputs=True)

    def match_classes(self, names: tuple[str, ...]) -> None:
        """Take the classes in this order: by the names of the columns, never by their place.

        Parameters
        ----------
        names : tuple of str
            The names of the columns in another order; of two classes with a single column, both
            names, one of them the column's own.
        """
        found = self._found
        if found.positive is not None:
            self._positive_first = found.positive == names[0]
            note = f"{found.outputs[0]} is taken for the class {found.positive}"
            self._remarks = [one for one in self._remarks if one not in found.notes] + [note]
        elif found.class_names is not None and found.class_names != names:
            places = [found.class_names.index(name) for name in names]
            if found.order is not None:
                order = tuple(found.order[place] for place in places)
                self._found = replace(found, order=order)
            else:
                outputs = tuple(found.outputs[place] for place in places)
                self._found = replace(found, outputs=outputs)
            self._remarks.append("the classes stand in another order there: they go by name")
        self.class_names = names

    def labels(self, classes: ClassMap) -> NDArray[np.int64]:
        """Return the class index of every row, shape (n,); -1 where unknown."""
        return self._labels.indices(classes)[self._rows]

    def blocks(self, rows: Rows, size: int) -> Iterator[Block]:
        """Yield the chosen ascending `rows`, `size` at a time.

        Yields
        ------
        tuple of array
            Row numbers (m,), features (m, d) float32 or None, and logits (m, K) float32.

        Raises
        ------
        CovcalError
            If a value is missing or not finite, or no probability, naming the row.
        """
        for chosen, arrays in regrouped(self._pieces(rows, size), size):
            yield chosen, arrays.get("features"), arrays["logits"]

    def _pieces(self, rows: Rows, size: int) -> Iterator[Piece]:
        outputs, features = self._found.outputs, self._found.features
        wanted = [*outputs, *features]
        start = 0
        for places, arrays in self._store.pieces(wanted, self._rows[rows], size):
            values = _stacked([arrays[name] for name in outputs])
            self._require_finite(values, outputs, places)
            if self._found.order is not None:
                values = values[:, self._found.order]
            logits = self._logits(values, places)
            taken = {"logits": logits[:, ::-1] if self._positive_first else logits}
            if features:
                taken["features"] = _stacked([arrays[name] for name in features])
                self._require_finite(taken["features"], features, places)
            stop = start + len(places)
            yield rows[start:stop], {n: a.astype(np.float32) for n, a in taken.items()}
            start = stop

    def _logits(self, values: NDArray[Any], rows: Rows) -> NDArray[Any]:
        if not self._probabilities:
            return values if values.shape[1] > 1 else np.hstack([np.zeros_like(values), values])
        values = values.astype(np.float64)
        outside = np.flatnonzero(((values < 0) | (values > 1 + _TOLERANCE)).any(axis=1))
        if len(outside):
            row = values[outside[0]]
            found = row[(row < 0) | (row > 1 + _TOLERANCE)][0]
            raise self._error(f"{self._place(rows[outside[0]])} {no_probability(row, found)}")
        if values.shape[1] == 1:
            values = np.hstack([1 - np.minimum(values, 1), values])
        sums = values.sum(axis=1)
        wrong = np.flatnonzero(np.abs(sums - 1) > _ROUNDED)
        if len(wrong):
            raise self._error(
                f"the probabilities of {self._place(rows[wrong[0]])} sum to {sums[wrong[0]]:g}, "
                "not 1, where 0.99 to 1.01 is taken for rounding: give one column per class, of a "
                "softmax, with more digits"
            )
        if (np.abs(sums - 1) > _TOLERANCE).any() and _ROUNDING not in self._remarks:
            self._remarks.append(_ROUNDING)
        values = values / sums[:, None]
        if (values < _SMALLEST).any() and ZEROS not in self._remarks:
            self._remarks.append(ZEROS)
        logits: NDArray[np.float64] = np.log(np.maximum(values, _SMALLEST))
        return logits

    def probe(self) -> None:
        """Look at the first rows, and refuse probabilities given as logits and the reverse.

        They would calibrate without complaint.
        """
        rows = self._rows[:_PROBE]
        if self._probabilities:
            _, _, logits = next(self.blocks(np.arange(len(rows), dtype=np.int64), _PROBE))
            self._remarks += doubt_on_one_column(self._found, logits)
            return
        parts = [
            _stacked([arrays[name] for name in self._found.outputs])
            for _, arrays in self._store.pieces(self._found.outputs, rows, _PROBE)
        ]
        values = np.concatenate(parts).astype(np.float64)
        inside = bool(((values >= 0) & (values <= 1)).all())
        if values.shape[1] > 1 and inside and (np.abs(values.sum(axis=1) - 1) < _ROUNDED).all():
            raise self._error("every row sums to 1, as probabilities do: pass --probabilities")
        if values.shape[1] > 1 and are_percentages(values):
            raise self._error(
                "every row sums to 100, as percentages do: divide by 100 and pass --probabilities"
            )

    def _rows_of(self, domain: str | None, n: int) -> Rows:
        if domain is None:
            return np.arange(n, dtype=np.int64)
        rows = np.flatnonzero(domain_of_rows(self._store) == domain).astype(np.int64)
        if len(rows) == 0:
            raise self._error(
                f"no row has {domain} in its column domain: give source and target there, or two "
                "tables"
            )
        return rows

    def _require_rows(self, n: int) -> None:
        for name in (*self._found.outputs, *self._found.features):
            shape = self._store.entries[name].shape
            if shape[:1] != (n,):
                raise self._error(
                    f"{name} has shape {list(shape)} and there are {n} rows: give one row per "
                    "example"
                )

    def _require_finite(self, values: NDArray[Any], names: Sequence[str], rows: Rows) -> None:
        if np.isfinite(values).all():
            return
        row, column = np.argwhere(~np.isfinite(values))[0]
        name = names[column] if len(names) > 1 else names[0]
        raise self._error(
            f"{name} of {self._place(rows[row])} is missing, NaN or infinite: every value must be "
            "a finite number"
        )

    def _place(self, row: int) -> str:
        return self._store.place(int(row))

    def _error(self, what: str) -> CovcalError:
        return CovcalError(f"{self.path}: {what}")


def open_outputs(
    path: Path, *, probabilities: bool, domain: str | None = None, probe: bool = True
) -> OutputTable:
    """Open a table of logits or probabilities.

    Parameters
    ----------
    path : Path
        ``.npz``, ``.npy``, ``.h5``, ``.csv`` or ``.parquet``.
    probabilities : bool
        Whether the values are probabilities.
    domain : str, optional
        ``"source"`` or ``"target"``: the rows with this value in the column ``domain``.
    probe : bool
        Whether to look at the first rows now; else `OutputTable.probe` must follow.

    Raises
    ------
    CovcalError
        If there is no such table, or it does not hold what is asked for.
    """
    if not path.exists():
        raise CovcalError(f"{path} does not exist: give a table of logits or probabilities")
    table = OutputTable(open_outputs_store(path), probabilities=probabilities, domain=domain)
    if probe:
        table.probe()
    return table


def _stacked(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    if len(parts) == 1 and parts[0].ndim == 2:
        return parts[0]
    return np.stack(parts, axis=1)
