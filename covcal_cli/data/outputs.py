"""Tables of a classifier's outputs without the classifier: logits or probabilities of every row.

Files of arrays hold them as ``logits`` or ``probabilities``, whose columns an array ``classes`` may
name; tables as one column per class, called as in `LAYOUTS`. Beside them may lie features, labels,
split, ids and groups. `find_outputs` tells by the names what lies where, `OutputFile` adds what is
known of the rows, and `OutputTable` is the data of a domain, once both have their classes in one
order (`open_outputs`). Probabilities become logits by their logarithm.
"""

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from covcal_cli.arrays import SMALLEST_FLOAT32, AnyArray, Labels, Rows, Splits
from covcal_cli.data.classes import ClassMap, listed, read_classes
from covcal_cli.data.domain import Batch, ImagePipeline
from covcal_cli.data.feeding import plain_numbers
from covcal_cli.data.rows import (
    DOMAIN,
    GROUP_PREFIX,
    LABEL_NAMES,
    PATH_NAMES,
    RowFacts,
    count_rows,
    domain_of_rows,
    holds_both_domains,
    is_of_rows,
    note_on_ids,
    note_on_index,
    require_domain,
)
from covcal_cli.data.stores.csv import CSVStore
from covcal_cli.data.stores.hdf5 import HDF5Store
from covcal_cli.data.stores.open import format_of, open_store
from covcal_cli.data.stores.store import Store, regrouped
from covcal_cli.errors import CovcalError
from covcal_cli.formats.features import APPLIED_SCHEMA, DOMAINS
from covcal_cli.maths.masks import valid_rows
from covcal_cli.maths.output_form import (
    DISTRIBUTIONS,
    EXACT,
    OutputEvidence,
    log_probabilities,
)
from covcal_cli.maths.softmax import to_float32

OutputKind = Literal["logits", "probabilities"]


@dataclass(frozen=True)
class Layout:
    """The names of columns, as one tool writes them."""

    kind: OutputKind
    pattern: str  # of a whole name, in any case; its group is the class, where it names one
    truth: str = "y_true"  # the column of true classes, beside the usual names


# The first that fits holds; after them, columns that are called exactly like the classes.
LAYOUTS = {
    "covcal, logits": Layout("logits", r"logits?(?:_(.+))?"),
    "covcal, probabilities": Layout("probabilities", r"prob(?:s|a|ability|abilities)?(?:_(.+))?"),
    "covcal apply": Layout("probabilities", r"p(?:_(.+))?"),
    "H2O": Layout("probabilities", r"p(\d+)"),
    "NannyML": Layout("probabilities", r"y_pred_proba(?:_(.+))?"),
    "Evidently": Layout("probabilities", r"model_score(?:_(.+))?", truth="actual"),
}
_COLUMN = {"logits": "logit_NAME", "probabilities": "prob_NAME"}
_ANY_OUTPUTS = r"(?:preds?|predictions?|y_pred|y_score|arr_0)(?:_(.+))?"  # of arrays [n, K]
_FEATURES = r"(?:features?|phi)(?:_(.+))?"
_CLASSES = "classes"  # beside an array of outputs: what its columns stand for
_ANSWER = ("label", "label_index", "confidence")  # of `covcal apply`
_CONFIDENCES = ("confidence", "conf", "max_prob", "max_probability", "msp")
_FEW_SUMMING = 0.1  # of the rows: those of independent sigmoids sum to 1 by chance
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class OutputColumns:
    """Where outputs and features lie in a file, and which classes the outputs are of."""

    outputs: tuple[str, ...]  # one array with two axes, or one column per class
    width: int  # values of a row; 1 where two classes have one column
    order: tuple[int, ...]  # by class, its place among the K values of a row
    names: tuple[str, ...] | None  # of the classes; None where they are numbered 0 to K-1
    positive: str | None = None  # what the one column of two calls its class
    features: tuple[str, ...] = ()  # as outputs
    n_features: int | None = None  # None where there are none
    named_by: str | None = None  # the array that names the classes
    truth: str = Layout.truth  # a further name of the column of labels
    notes: tuple[str, ...] = ()  # what was taken for what

    def class_names(self) -> tuple[str, ...]:
        """Return the names of the classes, or their numbers."""
        return self.names or tuple(map(str, range(len(self.order))))

    def in_order(self, names: tuple[str, ...] | None) -> "OutputColumns":
        """Return the classes in this order, by name; unchanged where these are others."""
        if names is None:
            return self
        if self.positive in names and len(names) == 2:
            note = f"{self.outputs[0]} is taken for the class {self.positive}"
            places = (1, 0) if self.positive == names[0] else (0, 1)
            return replace(self, names=names, order=places, notes=(note,))
        known = self.names
        if known is None or known == names or set(known) != set(names):
            return self
        note = "the classes stand in another order there: they go by name"
        order = tuple(self.order[known.index(name)] for name in names)
        return replace(self, names=names, order=order, notes=(*self.notes, note))


class OutputFile:
    """A file of outputs as it stands: what lies where, and what it says of its rows."""

    def __init__(self, path: Path, kind: OutputKind, known: Sequence[str] = ()) -> None:
        self.path, self.kind = path, kind
        # Where outputs and features lie, and that they have a value for every row.
        self.store = store = _open(path)
        answer = _without_answer(store)
        self.columns = columns = find_outputs(store, kind, known)
        self.n = n = count_rows(store)
        for name in (*columns.outputs, *columns.features):
            shape = store.entries[name].shape
            if shape[:1] != (n,):
                raise CovcalError(
                    f"{path}: {name} has shape {list(shape)} and there are {n} rows: give one row "
                    "per example"
                )
        # What the rest says of the rows.
        paths = [name for name in store.entries if name.lower() in PATH_NAMES]
        used = {*columns.outputs, *columns.features, columns.named_by, *paths, DOMAIN}
        truth = (*LABEL_NAMES, columns.truth)
        self.facts = facts = RowFacts(store, n, used, truth)
        if columns.width == 1 and facts.labels.n_classes > 2:
            raise CovcalError(
                f"{path}: {columns.outputs[0]} is one number a row, the labels show "
                f"{facts.labels.n_classes} classes, and the outputs of all are needed: give one "
                "column per class"
            )
        # Numbers that might be features, where none are; groups say that they are none.
        numbers = [
            name
            for name, entry in store.entries.items()
            if entry.dtype.kind in "fiu"
            and entry.shape[:1] == (n,)
            and name not in used
            and name.lower() != columns.truth
            and not is_of_rows(store, name)
        ]
        unread = () if columns.features else _unread(store, numbers)
        self.notes = (*answer, *unread, *facts.notes)


class OutputTable:
    """The outputs of a classifier for the rows of one domain; see `DomainData`.

    All are read once when it is made: what they are shows in all rows, and no error comes late.
    """

    holds_images = False  # outputs are finished

    def __init__(self, file: OutputFile, columns: OutputColumns, rows: Rows) -> None:
        self.path = file.path
        self._store, self._kind, self._columns, self._rows = file.store, file.kind, columns, rows
        self._labels = file.facts.labels
        given = file.facts.given_split
        self.ids = [file.facts.ids[row] for row in rows]
        self.split_names, self.ids_are_integers = self.ids, file.facts.ids_are_integers
        self.given_split: Splits | None = None if given is None else given[rows]
        self.n_classes = len(columns.order)
        self.n_features = columns.n_features
        self.class_names = columns.names
        self.way_to_label = file.facts.way_to_label
        self.class_folders = file.facts.labels.names
        self.columns: Mapping[str, AnyArray] = {
            name: values[rows] for name, values in file.facts.groups.items()
        }
        self.index_notes = note_on_index(file.store)
        remarks = (*columns.notes, *file.notes, *self._checked())
        of_ids = note_on_ids(self.path, self.ids) if file.facts.has_ids else ()
        self.notes: tuple[str, ...] = (*(f"{self.path}: {note}" for note in remarks), *of_ids)

    def labels(self, classes: ClassMap) -> Labels:
        """Return the class index of every row, shape (n,); -1 where unknown."""
        return self._labels.indices(classes)[self._rows]

    def batches(
        self,
        pipeline: ImagePipeline | None,
        rows: Rows,
        *,
        size: int,
        threads: int,
    ) -> Generator[Batch, None, None]:
        """Yield ``logits`` (m, K), and ``features`` (m, d) where there are any, float32."""
        del pipeline, threads
        outputs, features = self._columns.outputs, self._columns.features
        pieces = self._store.pieces([*outputs, *features], self._rows[rows], size)
        start = 0
        for places, arrays in regrouped(pieces, size):
            inputs = {"logits": to_float32(self._logits(_stacked(arrays, outputs)))}
            if features:
                values = _stacked(arrays, features)
                self._require_finite(values, features, places)
                inputs["features"] = values.astype(np.float32)
            stop = start + len(places)
            yield Batch(inputs, rows[start:stop])
            start = stop

    def _logits(self, values: AnyArray) -> AnyArray:
        order = self._columns.order
        if self._kind == "probabilities":
            return log_probabilities(values, self._lowest)[:, order]
        if self._columns.width == 1:  # of two classes, the other has the logit 0
            values = np.hstack([np.zeros_like(values), values])
        return np.take(values, order, axis=1)

    def _checked(self) -> tuple[str, ...]:
        """Read all outputs, refuse what is not what was asked for, and return notes."""
        outputs, seen = self._columns.outputs, OutputEvidence()
        for rows, arrays in self._store.pieces(outputs, self._rows, _ROWS_AT_ONCE):
            values = _stacked(arrays, outputs)
            self._require_finite(values, outputs, rows)
            seen.add(values if values.shape[1] == 1 else np.take(values, self._columns.order, 1))
        self._lowest = seen.lowest
        if self._kind == "logits":
            notes = self._checked_logits(seen)
        else:
            notes = self._checked_probabilities(seen)
        return (*notes, *seen.doubts())

    def _checked_logits(self, seen: OutputEvidence) -> Iterator[str]:
        """Refuse outputs that all rows show to be probabilities; yield notes on others."""
        if seen.form in DISTRIBUTIONS or seen.form == "mixed":
            is_array = len(self._columns.outputs) == 1
            names = "the array probabilities" if is_array else "the columns prob_NAME"
            scaled = seen.form in ("percentages", "shares")
            divided = " (covcal divides each row by its sum)" if scaled else ""
            raise self._store.error(f"{seen.fact}: pass --probabilities and name {names}{divided}")
        if seen.form == "bounded":
            yield (
                f"{seen.fact}; they are read as logits: pass --probabilities where they are "
                "probabilities"
            )

    def _checked_probabilities(self, seen: OutputEvidence) -> Iterator[str]:
        """Refuse outputs that are no probabilities; yield notes on what is done to the others."""
        outputs, several, off = self._columns.outputs, self._columns.width > 1, seen.first_off
        scaled = seen.form in ("percentages", "shares")
        if scaled or seen.form == "clipped":
            yield f"{seen.fact}: each row is divided by its sum"
        elif seen.first_outside is not None:
            row, value = seen.first_outside
            percent = ", or divide by 100 where they are percentages" if value > 1 else ""
            raise self._store.error(
                f"{self._place(row)} holds {value:g}, which is no probability: pass --logits where "
                f"these are logits{percent}"
            )
        elif several and off is not None:
            row, total = off
            independent = (
                ": sigmoids of independent labels are no multi-class output, and each label can "
                "go in as a table of two classes"
                if seen.summing < _FEW_SUMMING * seen.rows
                else ""
            )
            raise self._store.error(
                f"the probabilities of {self._place(row)} sum to {total:g}, not 1, where "
                f"{1 - seen.tolerance:g} to {1 + seen.tolerance:g} is taken for rounding: give one "
                f"column per class, of a softmax, with more digits ({listed(outputs)} were read)"
                f"{independent}"
            )
        elif several and max(1 - seen.sums[0], seen.sums[1] - 1) > EXACT:
            yield (
                f"rounded probabilities: rows sum to {1 - seen.tolerance:g} to "
                f"{1 + seen.tolerance:g}, and are divided by their sum"
            )
        if seen.low < seen.lowest:
            yield "some probabilities are below 0, by no more than rounding, and count as 0"
        if seen.low - seen.lowest < SMALLEST_FLOAT32 or (not several and seen.high >= 1):
            yield (
                "some probabilities are 0 or below 1e-38 and count as 1e-38, as float32 holds "
                "nothing smaller: where rounding made them 0, give more digits"
            )

    def _require_finite(self, values: AnyArray, names: Sequence[str], rows: Rows) -> None:
        wrong = ~np.isfinite(values)
        if self._kind == "logits" and names == self._columns.outputs:
            # A logit of -inf rules a class out, as long as it leaves another.
            wrong &= ~((values == -np.inf) & valid_rows(values)[:, None])
        if not wrong.any():
            return
        row, column = np.argwhere(wrong)[0]
        name = names[column] if len(names) > 1 else names[0]
        raise self._store.error(
            f"{name} of {self._store.place(int(rows[row]))} is missing, NaN or infinite: every "
            "value must be a finite number"
        )

    def _place(self, row: int) -> str:
        return self._store.place(int(self._rows[row]))


def open_outputs(
    source: Path | None, target: Path, kind: OutputKind, classes: Path | None = None
) -> dict[str, OutputTable]:
    """Open the tables of both domains, with the classes in one order.

    Parameters
    ----------
    source : Path or None
        None for the target alone, or where its column ``domain`` has rows of both.
    target : Path
    kind : {"logits", "probabilities"}
    classes : Path, optional
        What names the classes in order; see `covcal_cli.data.classes.read_classes`.

    Raises
    ------
    CovcalError
        If a table does not hold what is asked for, or the two do not agree.
    """
    # The source's classes help to find columns of the target that are called like them.
    files = {} if source is None else {"source": OutputFile(source, kind)}
    known = files["source"].columns.class_names() if source is not None else ()
    files["target"] = OutputFile(target, kind, known)
    shared = source is None and holds_both_domains(files["target"].store)
    if shared:
        files = dict.fromkeys(DOMAINS, files["target"])
    else:
        others = {"source": target, "target": source}
        for name, file in files.items():
            require_domain(file.store, name, others[name], outputs=True)
    # Classes go by name: in one order, and by the same names.
    order = _class_order(list(files.values()), classes)
    columns = {name: file.columns.in_order(order) for name, file in files.items()}
    _require_one_classifier(list(files.values()), list(columns.values()))
    tables: dict[str, OutputTable] = {}
    for name, file in files.items():
        rows = np.arange(file.n, dtype=np.int64)
        if shared:
            rows = np.flatnonzero(domain_of_rows(file.store) == name).astype(np.int64)
        tables[name] = OutputTable(file, columns[name], rows)
    return tables


def find_outputs(store: Store, kind: OutputKind, known: Sequence[str]) -> OutputColumns:
    """Find outputs and features by the names of the arrays; `known` are another file's classes."""
    found, truth = _of_kind(store, kind)
    if not found and not store.is_table:
        found = _only_matrix(store)
    if not found and store.is_table and kind == "probabilities":
        found = _called_like_classes(store, known)
    if not found:
        raise _nothing_found(store, kind)
    for name in found:
        if store.entries[name].is_text:
            text = store.texts(name)[0].strip()
            remedy = f"give one column of numbers {_COLUMN[kind]} per class"
            if text.endswith("%"):
                remedy = "save numbers without the sign, divided by 100"
            raise store.error(
                f"{name} holds the text {text[:40]!r}: {remedy}, or call it {GROUP_PREFIX}{name} "
                f"where it holds no {kind}"
            )
    array = next((name for name in found if len(store.entries[name].shape) == 2), None)
    outputs = tuple(found) if array is None else (array,)
    if array is not None:
        width = store.entries[array].shape[1]
        columns = OutputColumns(outputs, width, tuple(range(max(2, width))), None)
        columns = _named_by_array(store, columns)
    elif len(outputs) == 1:
        note = f"{outputs[0]} is taken for the {kind} of class 1 of two"
        positive = found[outputs[0]] or None
        columns = OutputColumns(outputs, 1, (0, 1), None, positive, notes=(note,))
    else:
        order, names = _numbered_first([of or name for name, of in found.items()])
        columns = OutputColumns(outputs, len(outputs), order, names)
    features, n_features = _features(store)
    return replace(columns, features=features, n_features=n_features, truth=truth)


def _only_matrix(store: Store) -> dict[str, str]:
    """Return the one array of outputs by a name that fits both kinds, or none, as in .npy."""
    matching = _matching(store, _ANY_OUTPUTS)
    found = [name for name in matching if len(store.entries[name].shape) == 2]
    if tuple(store.entries) == ("x",):
        found = ["x"]
    return {found[0]: ""} if len(found) == 1 else {}


def _of_kind(store: Store, kind: OutputKind) -> tuple[dict[str, str], str]:
    """Return the arrays of outputs, with the classes that they name, and the name of the truth."""
    for layout in LAYOUTS.values():
        found = _matching(store, layout.pattern) if layout.kind == kind else {}
        if found:
            return found, layout.truth
    return {}, Layout.truth


def _matching(store: Store, pattern: str) -> dict[str, str]:
    """Return the columns, and the arrays of all classes, that a pattern fits, with its group."""
    found = {}
    for name, entry in store.entries.items():
        match = re.fullmatch(pattern, name, re.IGNORECASE)
        axes = len(entry.shape)
        plain = axes == 1 or (axes == 2 and entry.shape[1] and match and not match[1])
        if match and plain and entry.dtype.kind in "fiubSUO":
            found[name] = match[1] or ""
    return found


def _called_like_classes(store: Store, known: Sequence[str]) -> dict[str, str]:
    """Return the columns called like all classes of the labels, as in pandas' ``predict_proba``."""
    numbers = set(plain_numbers(store))
    label = next((name for name in store.entries if name.lower() in LABEL_NAMES), None)
    texts = store.texts(label) if label is not None else []
    labels = {text.strip().removesuffix(".0") for text in texts} - {"", "-1", "nan"}
    for names in (set(known), labels):
        if len(names) > 1 and names <= numbers:
            return {name: name for name in store.entries if name in names}
    return {}


def _nothing_found(store: Store, kind: OutputKind) -> CovcalError:
    other: OutputKind = "logits" if kind == "probabilities" else "probabilities"
    others, _ = _of_kind(store, other)
    if others:
        return CovcalError(
            f"{store.path} holds no {kind} but {listed(list(others))}: pass --{other}, or name "
            f"them {_COLUMN[kind]} where they are {kind}"
        )
    single = [name for name in store.entries if name.lower() in _CONFIDENCES]
    only = listed(list(store.entries)) or "nothing"
    of_one = f" ({listed(single)} is of one class a row)" if single else ""
    return CovcalError(
        f"{store.path} holds no {kind}, only {only}{of_one}: name the outputs {_COLUMN[kind]}, one "
        f"column per class (of two classes, one will do), or give an array {kind} [n, K]"
    )


def _named_by_array(store: Store, found: OutputColumns) -> OutputColumns:
    """Return the outputs in an array with the names that an array ``classes`` gives its columns."""
    entry = store.entries.get(_CLASSES)
    rows = store.entries[found.outputs[0]].shape[:1]
    if entry is None or found.width < 2:
        return found
    if entry.shape != (found.width,) and entry.is_text and entry.shape != rows:
        raise store.error(
            f"{_CLASSES} has shape {list(entry.shape)} and {found.outputs[0]} has "
            f"{found.width} columns: give one name per column"
        )
    if entry.shape != (found.width,) or not (entry.is_text or entry.dtype.kind in "iu"):
        return found  # something of the rows
    given = store.texts(_CLASSES)
    if len(set(given)) < len(given):
        return replace(found, named_by=_CLASSES)
    order, names = _numbered_first(given)
    return replace(found, order=order, names=names, named_by=_CLASSES)


def _features(store: Store) -> tuple[tuple[str, ...], int | None]:
    matching = _matching(store, _FEATURES)
    found = {name: of for name, of in matching.items() if not store.entries[name].is_text}
    for name in found:
        if len(store.entries[name].shape) == 2:
            return (name,), store.entries[name].shape[1]
    columns = tuple(found)
    order, _ = _numbered_first([of or name for name, of in found.items()])
    return tuple(columns[place] for place in order), len(columns) or None


def _numbered_first(names: Sequence[str]) -> tuple[tuple[int, ...], tuple[str, ...] | None]:
    """Return the places of names in order, and them: by number where all are, else as they stand.

    In place of the numbers 0 to K-1 comes None.
    """
    places = list(range(len(names)))
    if all(name.isascii() and name.isdigit() for name in names):
        places.sort(key=lambda place: int(names[place]))
        if [int(names[place]) for place in places] == list(range(len(names))):
            return tuple(places), None
    return tuple(places), tuple(names[place] for place in places)


def _unread(store: Store, numbers: Sequence[str]) -> tuple[str, ...]:
    """Return a note on numbers that might be features."""
    wide = [name for name in numbers if len(store.entries[name].shape) == 2]
    if wide:
        call = "it" if len(wide) == 1 else "the one that holds them"
        return (f"{listed(wide)} is not read as features: call {call} features",)
    if len(numbers) < 2:  # a single number, such as an age, is a group
        return ()
    call = "call features feature_0, feature_1, ..."
    return (f"columns of numbers {listed(numbers)} are not read as features: {call}",)


def _require_one_classifier(files: Sequence[OutputFile], columns: Sequence[OutputColumns]) -> None:
    """Refuse tables with other classes, of which the probabilities would not sum to 1."""
    one, two = columns[0], columns[-1]
    for what, ours, theirs in (
        ("class names", one.names, two.names),
        ("classes", len(one.order), len(two.order)),
        ("features", one.n_features, two.n_features),
    ):
        if ours != theirs:
            raise CovcalError(
                f"{files[0].path} and {files[-1].path} differ in their {what} ({_said(ours)} and "
                f"{_said(theirs)}): give outputs of the same classifier"
            )


def _class_order(files: Sequence[OutputFile], classes: Path | None) -> tuple[str, ...] | None:
    """Return the names of the classes in the order that holds for all tables, if any are known."""
    first = files[0].columns
    asked = read_classes(classes, len(first.order)).names if classes is not None else None
    # Where every table has one column of two classes, other names than its own say which two.
    positive = {file.columns.positive for file in files}
    labels = next((names for file in files if (names := file.facts.labels.names)), None)
    for known in (asked, labels, ("0", "1") if labels is None else None):
        if known is not None and len(known) == 2 and positive <= set(known):
            return tuple(known)
    return asked if asked and set(asked) == set(first.names or ()) else first.names


def _open(path: Path) -> Store:
    if not path.exists():
        raise CovcalError(f"{path} does not exist: give a table of logits or probabilities")
    kind = format_of(path) if path.is_file() else None
    if kind == ".h5":
        return _HDF5Outputs(path)
    if kind == ".csv":
        return CSVStore(path, of_images=False)
    return open_store(path)


class _HDF5Outputs(HDF5Store):
    """A file of others, or one that ``covcal apply`` wrote: none else of covcal's holds data."""

    def _require_foreign(self, file: Any) -> None:
        schema = str(file.attrs.get("schema", ""))
        if schema.partition("/")[0] != APPLIED_SCHEMA.partition("/")[0]:
            super()._require_foreign(file)
        elif schema != APPLIED_SCHEMA:
            raise CovcalError(
                f"{self.path} has schema {schema} and this version reads {APPLIED_SCHEMA}: apply "
                "again with this version"
            )
        elif "complete" not in file.attrs:
            raise CovcalError(f"{self.path} is not complete: apply again")


def _without_answer(store: Store) -> tuple[str, ...]:
    """Leave out the answer in rows that ``covcal apply`` wrote, and return a note that says so.

    There the column label is the classifier's answer; read as the truth, it would always be right.
    """
    prefixed = any(name.lower().startswith("p_") for name in store.entries)
    named = not store.is_table and _CLASSES in store.entries
    if not (prefixed or named) or not all(name in store.entries for name in _ANSWER[1:]):
        return ()
    answer = [name for name in _ANSWER if name in store.entries]
    # An .npz keeps as arrays without axes what it was computed from: domain and split among them.
    store.entries = {
        name: entry for name, entry in store.entries.items() if name not in answer and entry.shape
    }
    return (
        f"{listed(answer)} are the answer that covcal apply wrote and no truth, so they are not "
        f"read: give true classes as {'a column' if store.is_table else 'an array'} y",
    )


def _stacked(arrays: Mapping[str, AnyArray], names: Sequence[str]) -> AnyArray:
    """Return one array (m, w) of the one array or the columns."""
    parts = [arrays[name] for name in names]
    return parts[0] if len(parts) == 1 and parts[0].ndim == 2 else np.stack(parts, axis=1)


def _said(value: int | tuple[str, ...] | None) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value or "none")
