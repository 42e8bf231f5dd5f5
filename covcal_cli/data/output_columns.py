"""Find a classifier's outputs and features in a file by the names of arrays or columns.

A file of arrays has an array ``logits`` or ``probabilities``, and an array ``classes`` of class
names. A table has one column per class, with a name from `LAYOUTS`.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal
from unicodedata import normalize

import numpy as np

from covcal_cli.arrays import TRUTH
from covcal_cli.data.classes import are_placeholders, is_plain_number, listed, placeholder_number
from covcal_cli.data.feeding import plain_numbers
from covcal_cli.data.labels import LABEL_NAMES
from covcal_cli.data.rows import GROUP_PREFIX
from covcal_cli.data.stores.store import Store
from covcal_cli.errors import CovcalError

OutputKind = Literal["logits", "probabilities", "confidence"]


@dataclass(frozen=True)
class Layout:
    """The names that a tool gives to columns of outputs."""

    kind: OutputKind
    pattern: str  # A regular expression for column names; its group matches the class.
    truth: str = "y_true"  # The tool's name for the column of labels.


# The first matching layout is used.
LAYOUTS = {
    "covcal, logits": Layout("logits", r"logits?(?:[_.](.+))?"),
    "covcal, probabilities": Layout(
        "probabilities", r"prob(?:s|a|ability|abilities)?(?:[_.](.+))?"
    ),
    "covcal apply": Layout("probabilities", r"p(?:[_.](.+))?"),
    "H2O": Layout("probabilities", r"p(\d+)"),
    "NannyML": Layout("probabilities", r"y_pred_proba(?:_(.+))?"),
    "Evidently": Layout("probabilities", r"model_score(?:_(.+))?", truth="actual"),
    "BigQuery": Layout("probabilities", r"predicted_.+_probs()"),
    "tidymodels": Layout("probabilities", r"\.pred_(?!class$)(.+)"),
    "Azure": Layout("probabilities", r"scored probabilities(?:_| for class )\"?(.+?)\"?"),
    "DataRobot": Layout("probabilities", r"target_(.+)_prediction"),
    "RapidMiner": Layout("probabilities", r"confidence\((.+)\)"),
    "KNIME": Layout("probabilities", r"p ?\(.+=(.+)\)"),
}
_COLUMN = {"logits": "logit_NAME", "probabilities": "prob_NAME"}
# Matches array names that may mean logits or probabilities, such as preds.
_ANY_OUTPUTS = r"(?:preds?|predictions?|y_pred|y_score|arr_0)(?:_(.+))?"
_FEATURES = r"(?:features?|phi)(?:_(.+))?"
MAY_BE_OUTPUT = re.compile(r"prob|score|conf|pred|softmax|logit", re.IGNORECASE)
CLASSES = "classes"  # The name of the array with the class names.
_FLOAT = re.compile(r"-?[0-9]+\.0+")
_FIRST_ROWS = 1000
CONFIDENCES = ("confidence", "conf", "max_prob", "max_probability", "msp", "score")


@dataclass(frozen=True)
class OutputColumns:
    """The arrays of a file with outputs and features, and the classes of the outputs."""

    outputs: tuple[str, ...]  # The name of one array (n, K), or the names of several columns.
    width: int  # Number of outputs per row: K, or 1 for two classes in one column.
    order: tuple[int, ...]  # Position of each class among the outputs of a row.
    names: tuple[str, ...] | None  # Class names; None for 0 to K-1.
    # Whether the file numbers the classes 0 to K-1.
    has_numbers: bool = False
    positive: str | None = None  # The class in the name of the only output column, if any.
    features: tuple[str, ...] = ()  # The name of one array (n, d), or the names of several columns.
    n_features: int | None = None  # None without features.
    named_by: str | None = None  # The array that names the classes.
    truth: str = Layout.truth  # The tool's name for the column of labels.
    notes: tuple[str, ...] = ()

    def class_names(self) -> tuple[str, ...]:
        """Return the names of the classes."""
        return self.names or tuple(map(str, range(len(self.order))))

    def feature_names(self) -> tuple[str, ...]:
        """Return the names of the features; empty if the names are numbers."""
        matches = [re.fullmatch(_FEATURES, name, re.IGNORECASE) for name in self.features]
        names = tuple(((match and match[1]) or "").lower() for match in matches)
        return () if all(not name or is_plain_number(name) for name in names) else names

    def in_order(self, names: tuple[str, ...] | None) -> "OutputColumns":
        """Return the columns in the order of the classes `names`."""
        if names is None:
            return self
        if self.positive is not None and len(names) == 2:
            number_of = {"0": 0, "1": 1}
            for form in (str.casefold, str):
                number_of |= {form(name): place for place, name in enumerate(names)}
            number = number_of.get(self.positive, number_of.get(self.positive.casefold()))
            if number is None:
                return self
            note = f"{self.outputs[0]} is read as the output of class {names[number]}"
            return replace(self, names=names, order=(1 - number, number), notes=(note,))
        own = self.class_names() if self.has_numbers else self.names
        if own is None or own == names or set(own) != set(names):
            return self
        note = (
            "the two tables have the classes in different orders, so covcal matches classes by name"
        )
        order = tuple(self.order[own.index(name)] for name in names)
        return replace(self, names=names, order=order, notes=(*self.notes, note))


def kind_of(store: Store) -> OutputKind:
    """Return whether a file contains logits, probabilities or confidences."""
    kinds: list[OutputKind] = ["logits", "probabilities"]
    by_kind = {kind: list(names) for kind in kinds if (names := _of_kind(store, kind)[0])}
    if len(by_kind) > 1:
        both = " and ".join(f"{kind} ({listed(names)})" for kind, names in by_kind.items())
        raise store.error(f"the table holds {both}: pass --logits or --probabilities")
    if by_kind:
        return next(iter(by_kind))
    like = _named_like_classes(store, ()) if store.is_table else {}
    are_classes = all(name == of_class for name, of_class in like.items())
    if any(name.lower() in CONFIDENCES for name in store.entries) and not (like and are_classes):
        return "confidence"
    if like or _only_object(store):
        return "logits" if any("logit" in name.lower() for name in like) else "probabilities"
    raise store.error(
        f"no column looks like an output of a classifier; the file has {_contents(store)}. "
        "Name the outputs prob_NAME or logit_NAME, one column per class. To run a model on "
        "these rows, give the MODEL first"
    )


def find_outputs(store: Store, kind: OutputKind, classes: Sequence[str]) -> OutputColumns:
    """Find the outputs and features of a file."""
    class_of, truth = _of_kind(store, kind)
    class_of = class_of or _only_matrix(store) or _only_object(store)
    # All names may share a prefix that is not part of the class, as in proba_class_NAME.
    if store.is_table and len({name[:1] for name in class_of.values()}) <= 1:
        like = _named_like_classes(store, classes)
        if set(like) == set(class_of) or not (class_of or set(like) & set(_of_other(store, kind))):
            class_of = like
    if not class_of:
        raise _no_outputs(store, kind)
    for name in class_of:
        if store.entries[name].is_text:
            _refuse_texts(store, name, kind)
    array = next((name for name in class_of if len(store.entries[name].shape) == 2), None)
    outputs = tuple(class_of) if array is None else (array,)
    if array is not None:
        width, names = store.entries[array].shape[1], store.entries[array].class_names
        order = tuple(range(max(2, width)))
        if names is not None:
            order, names = _numbered_first(names)
        has_numbers = store.entries[array].class_names is not None and names is None
        columns = OutputColumns(outputs, width, order, names, has_numbers)
        columns = _named_by_array(store, columns)
    elif len(outputs) == 1:
        positive = class_of[outputs[0]] or None
        number = int(TRUTH.get((positive or "1").casefold(), True))
        note = (
            f"{outputs[0]} is read as the {kind} of class {number}. The other class is class "
            f"{1 - number}. To name the classes, pass --classes FILE"
        )
        order = (1 - number, number)
        columns = OutputColumns(outputs, 1, order, None, positive=positive, notes=(note,))
    else:
        order, names = _numbered_first([label or name for name, label in class_of.items()])
        columns = OutputColumns(outputs, len(outputs), order, names, names is None)
    features, n_features = _features(store)
    return replace(columns, features=features, n_features=n_features, truth=truth)


def _refuse_texts(store: Store, name: str, kind: OutputKind) -> None:
    text = store.texts(name)[0].strip()
    remedy = f"give one column of numbers {_COLUMN[kind]} per class"
    if text.endswith("%"):
        remedy = "divide the percentages by 100, without the percent sign"
    elif name in store.with_commas:
        remedy = (
            "save numbers with a decimal point, for example with "
            f"pandas.read_csv({store.path.name!r}, sep=None, decimal=',').to_csv('new.csv', "
            "index=False)"
        )
    raise store.error(
        f"{name} holds the text {text[:40]!r}: {remedy}. If the column holds no {kind}, "
        f"rename it to {GROUP_PREFIX}{name}"
    )


def _of_other(store: Store, kind: OutputKind) -> dict[str, str]:
    return _of_kind(store, "logits" if kind == "probabilities" else "probabilities")[0]


def _only_matrix(store: Store) -> dict[str, str]:
    """Return the only array with a general name, such as ``preds``."""
    names = [name for name in _matching(store, _ANY_OUTPUTS) if len(store.entries[name].shape) == 2]
    if tuple(store.entries) == ("x",):  # A .npy file has a single array, which is called x.
        names = ["x"]
    return {names[0]: ""} if len(names) == 1 else {}


def _only_object(store: Store) -> dict[str, str]:
    names = [
        name
        for name, entry in store.entries.items()
        if entry.class_names is not None and len(entry.shape) == 2
    ]
    return {names[0]: ""} if len(names) == 1 and store.entries[names[0]].shape[1] > 1 else {}


def _of_kind(store: Store, kind: OutputKind) -> tuple[dict[str, str], str]:
    for layout in LAYOUTS.values():
        class_of = _matching(store, layout.pattern) if layout.kind == kind else {}
        if class_of:
            return class_of, layout.truth
    return {}, Layout.truth


def _contents(store: Store) -> str:
    names = [
        f"{name} {list(entry.shape)}" if len(entry.shape) > 2 else name
        for name, entry in store.entries.items()
    ]
    return listed([*names, *store.ignored]) or "nothing"


def _matching(store: Store, pattern: str) -> dict[str, str]:
    class_of = {}
    for name, entry in store.entries.items():
        match = re.fullmatch(pattern, name, re.IGNORECASE)
        axes = len(entry.shape)
        fits = axes == 1 or (axes == 2 and entry.shape[1] and match and not match[1])
        if match and fits and entry.dtype.kind in "fiubSUO":
            class_of[name] = match[1] or ""
    return class_of


def _named_like_classes(store: Store, classes: Sequence[str]) -> dict[str, str]:
    """Return the class of each column whose name contains one of the `classes` or labels.

    The names must have a common beginning and end around the class, such as ``P(NAME)``. Class
    names that are numbers need a word such as ``prob`` in the column name, or all columns of
    numbers are called 0 to K-1 and have the sum 1. In H2O's files, the column ``predict`` precedes
    one column per class.
    """
    numbers = set(plain_numbers(store))
    labels_and_sets = (name for name in store.entries if name.lower() in LABEL_NAMES)
    label = next((name for name in labels_and_sets if len(store.entries[name].shape) == 1), None)
    texts = store.texts(label) if label is not None else []
    labels = {text.strip().removesuffix(".0") for text in texts} - {"", "-1", "nan"}
    numbered = set(map(str, range(len(numbers))))
    if numbers != numbered or not _sum_to_1(store, [*numbers]):
        numbered = set()
    for names in (set(classes), _after_predict(store, numbers), labels, numbered):
        if len(names) > 1 and names <= numbers:
            return {name: name for name in store.entries if name in names}
        affixes = [
            (start, end)
            for start, end in _surroundings(max(names, key=len, default=""), numbers)
            if all(f"{start}{name}{end}" in numbers for name in names)
            and (not all(map(is_plain_number, names)) or re.search(MAY_BE_OUTPUT, start + end))
        ]
        if len(names) > 1 and len(affixes) == 1:
            ((start, end),) = affixes
            return {
                name: name[len(start) : len(name) - len(end)]
                for name in store.entries
                if name in numbers and name.startswith(start) and name.endswith(end)
            }
    return {}


def _after_predict(store: Store, numbers: Collection[str]) -> set[str]:
    """Return H2O's columns of probabilities, which follow the column ``predict``."""
    rest = iter(store.entries)
    if "predict" not in rest:  # `rest` now begins after the column ``predict``.
        return set()
    names = [*takewhile(numbers.__contains__, rest)]
    if not set(store.texts("predict")) <= set(names):
        return set()
    return set(names) if _sum_to_1(store, names) else set()


def _sum_to_1(store: Store, names: Sequence[str]) -> bool:
    """Return whether columns have the sum 1 in each of the first rows."""
    if not names:
        return False
    rows = np.arange(min(_FIRST_ROWS, *store.entries[names[0]].shape), dtype=np.int64)
    sums = [sum(part.values()) for _, part in store.pieces(names, rows, _FIRST_ROWS)]
    return bool(np.allclose(np.concatenate(sums), 1, atol=0.01))


def _surroundings(label: str, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        for match in re.finditer(re.escape(label), name) if label else ():
            start, end = name[: match.start()], name[match.end() :]
            if not start[-1:].isalnum() and not end[:1].isalnum():
                yield start, end


def _no_outputs(store: Store, kind: OutputKind) -> CovcalError:
    other: OutputKind = "logits" if kind == "probabilities" else "probabilities"
    others = _of_other(store, kind)
    if others:
        return CovcalError(
            f"{store.path} holds {listed(list(others))}, which covcal reads as {other}: pass "
            f"--{other}. If the values are {kind}, use the names {_COLUMN[kind]}"
        )
    single = [name for name in store.entries if name.lower() in CONFIDENCES]
    of_one = (
        f". If {listed(single)} is the confidence of one class per row, pass --confidence"
        if single
        else ""
    )
    return CovcalError(
        f"{store.path} holds no {kind}, only {_contents(store)}. Name the outputs "
        f"{_COLUMN[kind]}, one column per class, or give an array {kind} [n, K]{of_one}"
    )


def _named_by_array(store: Store, columns: OutputColumns) -> OutputColumns:
    width, rows = columns.width, store.entries[columns.outputs[0]].shape[:1]
    others = [
        name
        for name, entry in store.entries.items()
        if entry.is_text and entry.shape == (width,) != rows
    ]
    named_by = next((name for name in (CLASSES, "classes_") if name in store.entries), CLASSES)
    if named_by not in store.entries and len(others) == 1:
        named_by = others[0]
    entry = store.entries.get(named_by)
    if entry is None or width < 2:
        return columns
    if entry.shape != (width,) and entry.is_text and entry.shape != rows:
        raise store.error(
            f"{CLASSES} has shape {list(entry.shape)} but {columns.outputs[0]} has {width} "
            "columns: give one name per column"
        )
    if entry.shape != (width,) or not (entry.is_text or entry.dtype.kind in "iubf"):
        return columns  # The array is not a list of class names.
    labels = store.texts(named_by)
    if len(set(labels)) < len(labels):
        return replace(columns, named_by=named_by)
    order, names = _numbered_first(labels)
    numbered = names is None
    return replace(columns, order=order, names=names, has_numbers=numbered, named_by=named_by)


def _features(store: Store) -> tuple[tuple[str, ...], int | None]:
    number_of = {
        name: number
        for name, number in _matching(store, _FEATURES).items()
        if not store.entries[name].is_text
    }
    for name in number_of:
        if len(store.entries[name].shape) == 2:
            return (name,), store.entries[name].shape[1]
    columns = tuple(number_of)
    names = [number or name for name, number in number_of.items()]
    order, _ = _numbered_first(names)
    if not all(map(is_plain_number, names)):
        # The tables of the two domains may have different column orders.
        order = tuple(sorted(order, key=lambda place: names[place].lower()))
    return tuple(columns[place] for place in order), len(columns) or None


def _numbered_first(names: Sequence[str]) -> tuple[tuple[int, ...], tuple[str, ...] | None]:
    """Return the order of class names, and the names in this order.

    Numbers and names such as LABEL_0 are sorted; other names keep their order. The result is None
    instead of names if the names are 0 to K-1.
    """
    places, names = list(range(len(names))), [normalize("NFC", name) for name in names]
    if all(map(_FLOAT.fullmatch, names)):  # pandas may write 1 as 1.0.
        names = [name.partition(".")[0] for name in names]
    if are_placeholders(names):
        places.sort(key=lambda place: placeholder_number(names[place]))
    if all(map(is_plain_number, names)):
        places.sort(key=lambda place: int(names[place]))
        if [int(names[place]) for place in places] == list(range(len(names))):
            return tuple(places), None
    return tuple(places), tuple(names[place] for place in places)
