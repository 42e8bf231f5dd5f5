"""Read a classifier's logits or probabilities from tables.

An `OutputFile` has the outputs, labels, splits, ids and groups of a table. An `OutputTable` has the
rows of one domain. `open_outputs` puts the classes of both domains in the same order. Logarithms of
probabilities are used as logits.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.arrays import SMALLEST_FLOAT32, AnyArray, Labels, Rows, Splits
from covcal_cli.data.classes import (
    ClassMap,
    are_placeholders,
    listed,
    read_class_names,
    read_classes,
)
from covcal_cli.data.confidences import confidence_stores
from covcal_cli.data.domain import Batch, ImagePipeline
from covcal_cli.data.labels import IN_CASE, LABEL_NAMES, LabelSets, differing_in_case
from covcal_cli.data.output_columns import CLASSES, OutputColumns, OutputKind, find_outputs, kind_of
from covcal_cli.data.rows import (
    DOMAIN,
    PATH_NAMES,
    RowFacts,
    count_rows,
    domain_of_rows,
    holds_both_domains,
    is_of_rows,
    note_on_ids,
    note_on_index,
    note_on_numbered_rows,
    require_domain,
)
from covcal_cli.data.stores import format_of, open_store
from covcal_cli.data.stores.arrays import ArrayStore, HDF5Store
from covcal_cli.data.stores.csv import CSVStore
from covcal_cli.data.stores.json_lines import JSONLinesStore
from covcal_cli.data.stores.store import Store, regrouped
from covcal_cli.errors import CovcalError
from covcal_cli.formats.features import APPLIED_SCHEMA, DOMAINS
from covcal_cli.maths.output_form import (
    ABOVE,
    DISTRIBUTIONS,
    EXACT,
    OutputEvidence,
    log_odds,
    log_probabilities,
)
from covcal_cli.maths.softmax import to_float32, valid_rows

# `covcal apply` writes the predicted label and its confidence into these columns.
_ANSWER = ("label", "label_index", "confidence")
# If a smaller share of the rows sums to 1, the outputs may be sigmoids.
_FEW_SUMMING = 0.1
# The user gets a note if more than this share of the probability belongs to no class.
_MUCH_ELSEWHERE = 0.25
_READ_AS_LOGITS = (
    ", but covcal reads them as logits: pass --probabilities if they are probabilities"
)
_ROWS_AT_ONCE = 1024
# Class names that stand for the second class, in files with a single column.
_SECOND_CLASS = {"0", "1", "positive", "pos"}


class OutputFile:
    """A file of outputs, with the labels, ids and groups of its rows."""

    def __init__(
        self,
        path: Path,
        kind: OutputKind,
        classes: Sequence[str] = (),
        keep: Sequence[str] = (),
        choices: Sequence[str] = (),
        store: Store | None = None,
        *,
        multilabel: bool = False,
    ) -> None:
        self.path, self.kind = path, kind
        self.store = store = store or _open(path, choices)
        answer = _without_answer(store)
        named: OutputKind = "logits" if kind == "logits" else "probabilities"
        self.columns = columns = find_outputs(store, named, classes)
        self.n = n = count_rows(store)
        for name in (*columns.outputs, *columns.features):
            shape = store.entries[name].shape
            if shape[:1] != (n,):
                raise CovcalError(
                    f"{path}: {name} has shape {list(shape)} but there are {n} rows: give one "
                    "row per example"
                )
        paths = [name for name in store.entries if name.lower() in PATH_NAMES]
        self.label_sets: LabelSets | None = None
        if multilabel:
            if len(columns.order) != columns.width:
                raise CovcalError(
                    f"{path} has the outputs of only one label ({columns.outputs[0]}): leave out "
                    "--multilabel"
                )
            self.label_sets = LabelSets(store, n, columns.class_names())
        used = {*columns.outputs, *columns.features, columns.named_by, *paths, DOMAIN}
        truth = (*LABEL_NAMES, columns.truth)
        self.facts = facts = RowFacts(store, n, used, truth, keep, keeps_texts=True)
        if columns.width == 1 and facts.labels.n_classes > 2:
            raise CovcalError(
                f"{path}: {columns.outputs[0]} has one number per row, but the labels have "
                f"{facts.labels.n_classes} classes: give one column of outputs per class"
            )
        numbers = [
            name
            for name, entry in store.entries.items()
            if entry.dtype.kind in "fiu"
            and entry.shape[:1] == (n,)
            and name not in used
            and name.lower() != columns.truth
            and not is_of_rows(store, name)
        ]
        unread = () if columns.features or kind == "confidence" else _unread(store, numbers)
        self.notes = (*answer, *unread, *facts.notes, *store.notes)


class OutputTable:
    """The outputs of a classifier for the rows of one domain; see `DomainData`."""

    holds_images = False

    def __init__(self, file: OutputFile, columns: OutputColumns, rows: Rows) -> None:
        self.path = file.path
        self._store, self.kind, self._columns, self._rows = file.store, file.kind, columns, rows
        self._labels, self._sets = file.facts.labels, file.label_sets
        split = file.facts.given_split
        self._lacking: list[int] = []  # Row numbers of rows with missing outputs.
        ids = file.facts.ids
        self.ids = ids if len(rows) == file.n else [ids[row] for row in rows]
        self.split_names, self.ids_are_integers = self.ids, file.facts.ids_are_integers
        self.given_split: Splits | None = None if split is None else split[rows]
        self.n_classes = len(columns.order)
        self.n_features = columns.n_features
        self.class_names = columns.names
        self.way_to_label = file.facts.way_to_label
        self.class_folders = file.facts.labels.names
        self.columns: Mapping[str, AnyArray] = {
            name: values if len(rows) == file.n else values[rows]
            for name, values in file.facts.groups.items()
        }
        self.index_notes = note_on_index(file.store)
        if not file.facts.has_ids:
            self.index_notes += note_on_numbered_rows(self.path, self.columns)
        self._lowest = 0.0
        self.doubt_on_order: str | None = None  # a warning about the order of the classes
        checked = () if file.kind == "confidence" else self._checked()
        remarks = (*columns.notes, *file.notes, *checked)
        of_ids = note_on_ids(self.path, self.ids) if file.facts.has_ids else ()
        self.notes: tuple[str, ...] = (*(f"{self.path}: {note}" for note in remarks), *of_ids)

    def labels(self, classes: ClassMap) -> Labels:
        """Return the labels of all rows; see `DomainData.labels`."""
        if self._sets is None:
            return self._labels.indices(classes)[self._rows]
        indices = self._sets.indices(classes)[self._rows]
        self.notes += self._sets.notes
        return indices

    def batches(
        self, pipeline: ImagePipeline | None, rows: Rows, *, size: int, threads: int
    ) -> Generator[Batch, None, None]:
        """Yield ``logits`` (m, K), and ``features`` (m, d) if there are any, as float32."""
        del pipeline, threads
        outputs, features = self._columns.outputs, self._columns.features
        pieces = self._store.pieces([*outputs, *features], self._rows[rows], size)
        start = 0
        for places, arrays in regrouped(pieces, size):
            values = self._completed(_stacked(arrays, outputs), places)
            inputs = {"logits": to_float32(self._logits(values))}
            if features:
                values = _stacked(arrays, features)
                self._require_finite(values, features, places)
                inputs["features"] = values.astype(np.float32)
            stop = start + len(places)
            yield Batch(inputs, rows[start:stop])
            start = stop

    def _logits(self, values: AnyArray) -> AnyArray:
        order = self._columns.order
        if self._sets is not None:
            values = values if self.kind == "logits" else log_odds(values)
            return np.take(values, order, axis=1)
        if self.kind != "logits":
            return log_probabilities(values, self._lowest)[:, order]
        if self._columns.width == 1:  # The logit of class 0 is 0.
            values = np.hstack([np.zeros_like(values), values])
        return np.take(values, order, axis=1)

    def _checked(self) -> tuple[str, ...]:
        outputs, seen = self._columns.outputs, OutputEvidence()
        for rows, arrays in self._store.pieces(outputs, self._rows, _ROWS_AT_ONCE):
            values = self._completed(_stacked(arrays, outputs), rows)
            seen.add(values if values.shape[1] == 1 else np.take(values, self._columns.order, 1))
        if self.kind == "logits" and self._lacking and seen.high > 0:
            raise self._not_finite(self._lacking[0])
        if self._sets is not None:
            return tuple(self._checked_sigmoids(seen))
        self._lowest = seen.lowest
        if seen.form == "reversed":
            holds = {"ranks": "", **dict.fromkeys(("logarithms", "log odds"), " and pass --logits")}
            then = holds.get(seen.reversal or "", " and pass --probabilities")
            raise self._store.error(f"{seen.fact}: {seen.remedy}{then}")
        if self.kind == "probabilities" and (doubt := seen.doubt_on_columns()):
            raise self._store.error(doubt)
        if self.kind == "logits":
            notes = self._checked_logits(seen)
        else:
            notes = self._checked_probabilities(seen)
        similar = differing_in_case(self._columns.class_names()) if self._lacking else ()
        if similar:
            raise self._store.error(
                f"{len(self._lacking)} of {seen.rows} rows lack some classes, and the classes "
                f"{listed(similar)} {IN_CASE}: use one spelling for each class"
            )
        lacking = (
            f"in {len(self._lacking)} of {seen.rows} rows, some classes have no probability, so "
            "covcal fills in a value below the smallest probability of the row"
        )
        order = seen.doubt_on_order
        self.doubt_on_order = order and f"{self.path}: {order}"
        return (*notes, *((lacking,) if self._lacking else ()), *seen.doubts())

    def _completed(self, values: AnyArray, rows: Rows) -> AnyArray:
        """Return outputs (m, w) with missing values filled in. Refuse infinite values.

        A language model lists only the most probable answers. An unlisted answer is less probable
        than every listed answer. The probability of an unlisted answer is also at most 1 minus the
        sum of the listed probabilities.
        """
        with np.errstate(invalid="ignore"):
            is_missing = np.isnan(values)
        empty = np.flatnonzero(is_missing.all(axis=0))
        names = self._columns.outputs
        if len(empty) == 1 and len(names) == 2 == values.shape[1] and rows[0] == self._rows[0]:
            raise self._store.error(
                f"the column {names[empty[0]]} is empty in the first {len(rows):,} rows: fill "
                "in the column, or delete it in every table"
            )
        of_rows = is_missing.any(axis=1) & ~is_missing.all(axis=1)
        if values.shape[1] > 1 and of_rows.any() and self._sets is None:
            some = values[of_rows].astype(np.float64)
            completed, is_possible = _with_missing(some, logarithms=self.kind == "logits")
            values = values.astype(np.float64)
            values[of_rows] = np.where(is_possible[:, None], completed, some)
            self._lacking += rows[of_rows][is_possible].tolist()
        self._require_finite(values, self._columns.outputs, rows)
        return values

    def _checked_logits(self, seen: OutputEvidence) -> Iterator[str]:
        if seen.form in DISTRIBUTIONS or seen.form == "mixed":
            is_array = len(self._columns.outputs) == 1
            names = "the array probabilities" if is_array else "the columns prob_NAME"
            scaled = seen.form in ("percentages", "shares")
            added = "shifts and " if seen.lowest else ""
            divided = f" (covcal {added}divides each row by its sum)" if scaled else ""
            raise self._store.error(
                f"{seen.fact}: rename the outputs to {names} and pass --probabilities{divided}"
            )
        if seen.form == "bounded":
            yield seen.fact + _READ_AS_LOGITS

    def _checked_probabilities(self, seen: OutputEvidence) -> Iterator[str]:
        outputs, several, off = self._columns.outputs, self._columns.width > 1, seen.first_off
        scaled = seen.form in ("percentages", "shares")
        if scaled or seen.form == "clipped":
            yield f"{seen.fact}, so each row is scaled to the sum 1"
        elif seen.first_outside is not None:
            raise self._not_a_probability(*seen.first_outside)
        elif seen.is_incomplete:
            yield from _notes_on_incomplete(seen)
        elif several and off is not None:
            row, total = off
            filled = " after covcal filled in missing values" if row in self._lacking else ""
            independent = (
                ". If each row can have several labels, pass --multilabel to covcal extract"
                if seen.summing < _FEW_SUMMING * seen.rows
                else ""
            )
            raise self._store.error(
                f"the probabilities of {self._place(row)} sum to {total:g}{filled}. Rounding "
                f"explains only sums from {1 - seen.tolerance:g} to {1 + seen.tolerance:g}: "
                "give all classes, with more digits. Columns used: "
                f"{listed(outputs)}{independent}"
            )
        elif several and max(1 - seen.sums[0], seen.sums[1] - 1) > EXACT:
            yield (
                f"the probabilities are rounded and their sums are {1 - seen.tolerance:g} to "
                f"{1 + seen.tolerance:g}, so each row is scaled to the sum 1"
            )
        if seen.low < seen.lowest:
            yield "some probabilities are slightly below 0 because of rounding, and count as 0"
        if seen.low - seen.lowest < SMALLEST_FLOAT32 or (not several and seen.high >= 1):
            yield (
                "some probabilities are below 1e-38 and count as 1e-38. If the probabilities were "
                "rounded to 0, write more digits"
            )

    def _checked_sigmoids(self, seen: OutputEvidence) -> Iterator[str]:
        if self.kind == "logits" and 0 < seen.bounded == seen.rows:
            yield seen.fact + _READ_AS_LOGITS
        if self.kind == "probabilities" and seen.first_outside is not None:
            raise self._not_a_probability(*seen.first_outside)
        if seen.form == "probabilities":
            yield ("every row sums to 1. If each row has exactly one label, leave out --multilabel")

    def _not_a_probability(self, row: int, value: float) -> CovcalError:
        percent = ", or divide percentages by 100" if value > 1 else ""
        return self._store.error(
            f"{self._place(row)} holds {value:g}, which is not a probability: pass --logits "
            f"if the values are logits{percent}"
        )

    def _require_finite(self, values: AnyArray, names: Sequence[str], rows: Rows) -> None:
        wrong = ~np.isfinite(values)
        if self.kind == "logits" and names == self._columns.outputs and self._sets is None:
            # A logit of -inf excludes a class, but every row needs a finite logit.
            wrong &= ~((values == -np.inf) & valid_rows(values)[:, None])
        if not wrong.any():
            return
        row, column = np.argwhere(wrong)[0]
        raise self._not_finite(int(rows[row]), names[column] if len(names) > 1 else names[0])

    def _not_finite(self, row: int, name: str = "an output") -> CovcalError:
        return self._store.error(
            f"{name} of {self._store.place(row)} is missing, NaN or infinite: give a finite "
            "number, or leave the row out"
        )

    def _place(self, row: int) -> str:
        return self._store.place(int(self._rows[row]))


def open_outputs(
    source: Path | None,
    target: Path,
    kind: OutputKind | None,
    classes: Path | None = None,
    keep: Sequence[str] = (),
    choices: Sequence[str] = (),
    *,
    multilabel: bool = False,
) -> dict[str, OutputTable]:
    """Open the tables of both domains, with the classes in the same order.

    `source` is None if one table has both domains. By default, the column names of the first table
    decide the kind of outputs. `choices` are the possible answers in a log with token
    log-probabilities. By default, the answers are the names in the file `classes`, or the labels of
    the source.

    Raises `CovcalError` for outputs of another kind, or for tables that do not fit together.
    """
    user_choices, files = tuple(choices), {}
    names: tuple[str, ...] = ()
    if not choices and classes is not None:
        choices = read_class_names(classes)
    paths = {"target": target} if source is None else {"source": source, "target": target}
    stores: dict[str, Store] = {}
    if kind is None:
        first = next(iter(paths))
        stores[first] = _open(paths[first], choices)
        kind = kind_of(stores[first])
    if multilabel and kind == "confidence":
        raise CovcalError(
            "--multilabel does not work with --confidence: give the output of every label"
        )
    if kind == "confidence":
        opened = {name: stores.get(name) or _open(path) for name, path in paths.items()}
        stores = confidence_stores(opened, choices or None)
    for name, path in paths.items():
        # The target's columns may have the class names of the source.
        files[name] = OutputFile(
            path, kind, names, keep, choices or names, stores.get(name), multilabel=multilabel
        )
        names = files[name].columns.class_names()
    for file in files.values() if user_choices else ():
        if not getattr(file.store, "has_logprobs", False):
            raise CovcalError(f"{file.path} holds no token log-probabilities: leave out --choices")
    shared = source is None and holds_both_domains(files["target"].store)
    if shared:
        files = dict.fromkeys(DOMAINS, files["target"])
    else:
        others = {"source": target, "target": source}
        for name, file in files.items():
            require_domain(file.store, name, others[name], outputs=True)
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


def _unread(store: Store, numbers: Sequence[str]) -> tuple[str, ...]:
    wide = [name for name in numbers if len(store.entries[name].shape) == 2]
    if wide:
        array = "it" if len(wide) == 1 else "the array of features"
        return (f'{listed(wide)} is not used as features. To use it, rename {array} to "features"',)
    # A single column of numbers is a group, so the user needs no note about features.
    if len(numbers) < 2 or not any(store.entries[name].shape[0] for name in numbers):
        return ()
    remedy = "rename features to feature_0, feature_1, ..."
    return (
        f"these columns of numbers are not used as features: {listed(numbers)}. To use them, "
        f"{remedy}",
    )


def _require_one_classifier(files: Sequence[OutputFile], columns: Sequence[OutputColumns]) -> None:
    first, last = columns[0], columns[-1]
    nouns: list[tuple[str, Any, Any]] = [
        ("class names", first.names or ("no names",), last.names or ("no names",)),
        ("classes", len(first.order), len(last.order)),
        ("features", first.n_features, last.n_features),
        ("names of features", first.feature_names(), last.feature_names()),
    ]
    # If each file has only one column, the two columns may belong to different classes.
    if first.names is last.names is None and first.positive and last.positive:
        nouns.insert(0, ("class names", (first.positive,), (last.positive,)))
    for noun, ours, theirs in nouns:
        if ours != theirs:
            raise CovcalError(
                f"{files[0].path} and {files[-1].path} have different {noun} ({_in_words(ours)} "
                f"and {_in_words(theirs)}): give outputs of the same classifier"
            )


def _class_order(files: Sequence[OutputFile], classes: Path | None) -> tuple[str, ...] | None:
    """Return the class names in a common order, or None for the names 0 to K-1."""
    first = files[0].columns
    if classes is not None:
        asked = tuple(read_class_names(classes))
        for file in files:
            _require_known_classes(file, asked, classes)
        return read_classes(classes, len(first.order)).names
    # If a file has one column for two classes, the name of the second class comes from the labels.
    positive = {name for file in files if (name := file.columns.positive) is not None}
    labels = next((names for file in files if (names := file.facts.labels.names)), None)
    for names in (first.names, labels, ("0", "1") if labels is None else None):
        if (
            positive
            and names is not None
            and len(names) == 2
            and _folded(positive) <= _folded(names)
        ):
            return tuple(names)
    if labels and len(labels) == 2 and (unknown := positive - _SECOND_CLASS):
        name, (one, other) = first.outputs[0], labels
        raise CovcalError(
            f"{files[0].path}: {name} names a class {min(unknown)}, but the labels are "
            f"{listed(labels)}: rename {name} to prob_{one} or prob_{other} (logit_ for "
            "logits)"
        )
    return first.names


def _folded(names: Iterable[str]) -> set[str]:
    return {name.casefold() for name in names}


def _require_known_classes(file: OutputFile, names: tuple[str, ...], classes: Path) -> None:
    columns = file.columns
    own = columns.names or ()
    if columns.positive is not None and columns.positive not in ("0", "1"):
        own = (columns.positive,)
    unknown = [name for name in own if name not in names]
    missing = [name for name in names if name not in own] if columns.width > 1 else []
    if not own or are_placeholders(own) or not (unknown or missing):
        return
    has = [f"only {file.path} has {listed(unknown)}"] if unknown else []
    lacks = [f"only {classes} has {listed(missing)}"] if missing else []
    noun = f"the names in {columns.named_by}" if columns.named_by else "the columns"
    raise CovcalError(
        f"{file.path} and {classes} have different class names ({'; '.join((*has, *lacks))}): "
        f"rename {noun} of {file.path} to {listed(names)}"
    )


def _open(path: Path, choices: Sequence[str] = ()) -> Store:
    if not path.exists():
        raise CovcalError(f"{path} does not exist: give a table of logits or probabilities")
    kind = format_of(path) if path.is_file() else None
    if kind == ".csv":
        return CSVStore(path, of_images=False)
    if kind == ".jsonl":
        return JSONLinesStore(path, choices)
    store = _HDF5Outputs(path) if kind == ".h5" else open_store(path)
    if isinstance(store, ArrayStore):
        store.squeeze()
    return store


class _HDF5Outputs(HDF5Store):
    def _require_foreign(self, file: Any) -> None:
        schema = str(file.attrs.get("schema", ""))
        if schema.partition("/")[0] != APPLIED_SCHEMA.partition("/")[0]:
            super()._require_foreign(file)
        elif schema != APPLIED_SCHEMA:
            raise CovcalError(
                f"{self.path} has schema {schema}, but this version reads {APPLIED_SCHEMA}: run "
                "covcal apply again"
            )
        elif "complete" not in file.attrs:
            raise CovcalError(f"{self.path} is not complete: run covcal apply again")


def _without_answer(store: Store) -> tuple[str, ...]:
    """Remove the predicted label from a file of ``covcal apply``, and return a note.

    The file's column label is the prediction, not the true label.
    """
    prefixed = any(name.lower().startswith(("p_", "prob_")) for name in store.entries)
    named = not store.is_table and CLASSES in store.entries
    if not (prefixed or named) or not all(name in store.entries for name in _ANSWER[1:]):
        # A file of `covcal apply` whose rows can have several labels.
        if named and "calibration_sha256" in store.entries:
            store.entries = {name: entry for name, entry in store.entries.items() if entry.shape}
        return ()
    answer = [name for name in _ANSWER if name in store.entries]
    # An .npz file of apply also contains single values.
    store.entries = {
        name: entry for name, entry in store.entries.items() if name not in answer and entry.shape
    }
    place = "a column y" if store.is_table else "an array y"
    return (
        f"{listed(answer)} were written by covcal apply and are not true labels: give true "
        f"labels as {place}",
    )


def _stacked(arrays: Mapping[str, AnyArray], names: Sequence[str]) -> AnyArray:
    parts = [arrays[name] for name in names]
    return parts[0] if len(parts) == 1 and parts[0].ndim == 2 else np.stack(parts, axis=1)


def _with_missing(rows: AnyArray, *, logarithms: bool) -> tuple[AnyArray, AnyArray]:
    """Fill in the missing values of outputs (m, K), which are probabilities or their logarithms.

    Also return which rows are probabilities, (m,).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        parts = np.exp(rows) if logarithms else rows
    missing = np.isnan(parts)
    sums = np.nansum(parts, axis=1)
    is_possible = (np.nanmin(parts, axis=1) >= 0) & (sums <= 1 + ABOVE) & (sums > 0)
    left = np.where(sums < 1 - 1e-6, 1 - sums, 0)
    most = np.minimum(np.nanmin(parts, axis=1), left / missing.sum(axis=1)) / 2
    completed = np.where(missing, most[:, None], parts)
    if logarithms:
        with np.errstate(divide="ignore"):
            completed = np.where(missing, np.log(completed), rows)
    return completed, is_possible


def _notes_on_incomplete(seen: OutputEvidence) -> Iterator[str]:
    elsewhere = 1 - seen.mean_sum
    yield (
        f"on average, {100 * elsewhere:.0f} % of the probability belongs to no class. The rows "
        f"sum to {max(seen.sums[0], 0):.2g} to {min(seen.sums[1], 1):.2g}, so each row is "
        "scaled to the sum 1"
    )
    if elsewhere >= _MUCH_ELSEWHERE:
        yield (
            f"the classes get only {100 * seen.mean_sum:.0f} % of the probability, so the "
            "confidence says little about many rows. For sigmoids of independent labels, "
            "pass --multilabel to covcal extract"
        )


def _in_words(value: int | tuple[str, ...] | None) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value or "none")
