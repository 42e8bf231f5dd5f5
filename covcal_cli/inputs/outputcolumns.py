"""Where the outputs and features are in a table of logits or probabilities, by their names."""

from dataclasses import dataclass, replace

from covcal_cli.errors import CovcalError
from covcal_cli.inputs.listing import listed
from covcal_cli.inputs.rowfacts import GROUP_PREFIX, PATH_NAMES, is_reserved
from covcal_cli.inputs.rownumbers import numbering_columns
from covcal_cli.inputs.store import Store

_LOGITS = ("logit", "logits")
_PROBABILITIES = ("prob", "probs", "proba", "probability", "probabilities")
_FEATURES = ("features", "feature", "phi")
_APPLIED = "p"  # before a class in what covcal apply writes
_CONFIDENCES = ("confidence", "conf", "max_prob", "max_probability", "msp")
_ANSWER = ("label_index", "confidence")
_CLASSES = "classes"  # beside an array of outputs: what its columns stand for
_COLUMN = {"logits": "logit_NAME", "probabilities": "prob_NAME"}


@dataclass(frozen=True)
class Outputs:
    """The arrays that hold outputs and features.

    Attributes
    ----------
    outputs : tuple of str
        One array with two axes, or one column per class, in the order of the classes.
    width : int
        Values per row; 1 for the positive class of two.
    class_names : tuple of str or None
        What the columns call the classes, or an array ``classes`` does; None where they are
        numbered 0 to K-1.
    features : tuple of str
        As `outputs`; empty where there are none.
    n_features : int or None
        d.
    notes : tuple of str
        What was taken for what.
    positive : str or None
        What a single column calls the class that it is of; None for several columns, or without a
        name after ``prob_`` or ``logit_``.
    order : tuple of int or None
        Which columns of the one array the classes are, in order; None for all as they stand.
    named_by : str or None
        The array that names the classes.
    """

    outputs: tuple[str, ...]
    width: int
    class_names: tuple[str, ...] | None
    features: tuple[str, ...]
    n_features: int | None
    notes: tuple[str, ...]
    positive: str | None = None
    order: tuple[int, ...] | None = None
    named_by: str | None = None

    @property
    def class_columns(self) -> dict[str, str]:
        """The columns by class; empty where a single array or column does not name classes."""
        if self.width == len(self.outputs) > 1:
            names = self.class_names or map(str, range(self.width))
            return dict(zip(names, self.outputs, strict=True))
        return dict.fromkeys(self.class_names or (), self.outputs[0])


def find_outputs(store: Store, *, probabilities: bool) -> Outputs:
    """Find the outputs and features of a file.

    Parameters
    ----------
    store : Store
        The file.
    probabilities : bool
        Whether probabilities are asked for; logits otherwise.

    Raises
    ------
    CovcalError
        If there are none, or the other ones only.
    """
    wanted: tuple[str, ...]
    wanted, other = (_PROBABILITIES, _LOGITS) if probabilities else (_LOGITS, _PROBABILITIES)
    features, n_features = _features(store)
    found = _array(store, wanted) or _columns(store, wanted)
    if not found and probabilities:
        found, wanted = _applied_columns(store, features), (_APPLIED,)
    what = "probabilities" if probabilities else "logits"
    if not found:
        others = _array(store, other) or _columns(store, other)
        if others:
            remedy = "drop --probabilities" if probabilities else "pass --probabilities"
            raise CovcalError(
                f"{store.path} holds no {what} but {listed(others)}: {remedy}, or rename it"
            )
    if not found and not store.is_table and tuple(store.entries) == ("x",):
        found = ("x",)  # .npy: its only array has no name
    if found and len(store.entries[found[0]].shape) == 2:
        whole = Outputs(found, store.entries[found[0]].shape[1], None, features, n_features, ())
        return _named(store, _checked(store, whole, what))
    if found:
        prefixes = tuple(f"{name}_" for name in wanted)
        columns, names = _in_order(found, prefixes)
        notes: tuple[str, ...] = ()
    else:
        columns, names = _in_order(_unnamed_outputs(store, features, what), ())
        notes = (f"{listed(columns)} are taken for the {what} of the classes",)
    positive = None
    if len(columns) == 1:
        plain = _without(columns[0], tuple(f"{name}_" for name in wanted))
        positive = plain if plain != columns[0] else None
        names = None
        notes = (f"{columns[0]} is taken for the {what} of class 1 of two",)
    return _checked(
        store, Outputs(columns, len(columns), names, features, n_features, notes, positive), what
    )


def without_answer(store: Store) -> tuple[str, ...]:
    """Leave out the answer in rows that ``covcal apply`` wrote, and return what a user should know.

    There the column label is the classifier's answer; read as the truth, it would always be right.

    Parameters
    ----------
    store : Store
        The file; its entries lose the answer.
    """
    prefixed = any(name.lower().startswith(f"{_APPLIED}_") for name in store.entries)
    named = not store.is_table and _CLASSES in store.entries
    if not (prefixed or named) or not all(name in store.entries for name in _ANSWER):
        return ()
    answer = [name for name in ("label", *_ANSWER) if name in store.entries]
    # An .npz keeps as arrays without axes what it was computed from: domain and split among them.
    store.entries = {
        name: entry for name, entry in store.entries.items() if name not in answer and entry.shape
    }
    return (
        f"{listed(tuple(answer))} are the answer that covcal apply wrote and no truth, so they are "
        f"not read: give true classes as {'a column' if store.is_table else 'an array'} y",
    )


def group_arrays(store: Store, n: int, found: Outputs) -> dict[str, str]:
    """Return the arrays with one plain value a row that are nothing else, by column's name."""
    used = {*found.outputs, *found.features, found.named_by}
    return {
        name.removeprefix(GROUP_PREFIX): name
        for name, entry in store.entries.items()
        if entry.shape == (n,)
        and entry.dtype.kind in "fiubSUO"
        and "/" not in name
        and name not in used
        and (not is_reserved(name) or name.startswith(GROUP_PREFIX))
    }


def _named(store: Store, found: Outputs) -> Outputs:
    """Return the outputs in an array with the names that an array ``classes`` gives its columns."""
    entry = store.entries.get(_CLASSES)
    if entry is None or not (entry.is_text or entry.dtype.kind in "iu") or found.width < 2:
        return found
    if entry.shape != (found.width,):
        rows = store.entries[found.outputs[0]].shape[:1]
        if not entry.is_text or entry.shape == rows:
            return found  # something of the rows
        raise CovcalError(
            f"{store.path}: {_CLASSES} has shape {list(entry.shape)} and {found.outputs[0]} has "
            f"{found.width} columns: give one name per column"
        )
    given = tuple(store.texts(_CLASSES))
    if len(set(given)) < len(given):
        return replace(found, named_by=_CLASSES)
    ordered, names = _in_order(given, ())
    order = tuple(given.index(name) for name in ordered)
    return replace(found, class_names=names, order=order, named_by=_CLASSES)


def _applied_columns(store: Store, features: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns p_CLASS, where no other column of numbers is left."""
    numbers = _other_numbers(store, features)
    named = [name for name in numbers if name.lower().startswith(f"{_APPLIED}_")]
    return numbers if len(named) == len(numbers) > 1 else ()


def _checked(store: Store, found: Outputs, what: str) -> Outputs:
    if found.width == 0:
        raise CovcalError(
            f"{store.path} holds no {what}, only {listed(tuple(store.entries)) or 'nothing'}: give "
            f"an array {what} [n, K], or one column {_COLUMN[what]} per class"
        )
    return found


def _array(store: Store, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the one array with several numbers a row that has one of these names."""
    for name, entry in store.entries.items():
        plain = len(entry.shape) == 2 and entry.dtype.kind in "fiub"
        if name.lower() in names and plain:
            return (name,)
    return ()


def _columns(store: Store, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns of numbers whose name is one of these, or starts with it and ``_``."""
    prefixes = tuple(f"{name}_" for name in names)
    return tuple(
        name
        for name, entry in store.entries.items()
        if entry.dtype.kind in "fiub"
        and len(entry.shape) == 1
        and (name.lower() in names or name.lower().startswith(prefixes))
        and not is_reserved(name)
    )


def _features(store: Store) -> tuple[tuple[str, ...], int | None]:
    array = _array(store, _FEATURES)
    if array:
        return array, store.entries[array[0]].shape[1]
    columns = _columns(store, _FEATURES)
    ordered, _ = _in_order(columns, tuple(f"{name}_" for name in _FEATURES))
    return ordered, len(ordered) or None


def _other_numbers(store: Store, features: tuple[str, ...]) -> tuple[str, ...]:
    if not store.is_table:
        return ()
    return tuple(
        name
        for name, entry in store.entries.items()
        if entry.dtype.kind in "fiub"
        and len(entry.shape) == 1
        and name not in features
        and not is_reserved(name)
        and name.lower() not in PATH_NAMES
    )


def _unnamed_outputs(store: Store, features: tuple[str, ...], what: str) -> tuple[str, ...]:
    found = _other_numbers(store, features)
    confidences = tuple(name for name in found if name.lower() in _CONFIDENCES)
    if confidences:
        raise CovcalError(
            f"{store.path}: {listed(confidences)} is of one class a row, and the {what} of all "
            f"classes are needed: give one column {_COLUMN[what]} per class (of two, one will do)"
        )
    numbering = numbering_columns(store, found, rising=True)
    if numbering:
        raise CovcalError(
            f"{store.path}: {listed(numbering)} rises by whole numbers from row to row, as row "
            f"numbers do, and would pass for the {what} of a class: rename it to id, or name the "
            f"columns of the classes {_COLUMN[what]}"
        )
    return found


def _in_order(
    columns: tuple[str, ...], prefixes: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Return columns and class names: by number where all names are numbers, else as they stand."""
    names = {column: _without(column, prefixes) for column in columns}
    if columns and all(name.isascii() and name.isdigit() for name in names.values()):
        columns = tuple(sorted(columns, key=lambda column: int(names[column])))
        if [int(names[column]) for column in columns] == list(range(len(columns))):
            return columns, None
    return columns, tuple(names[column] for column in columns)


def _without(column: str, prefixes: tuple[str, ...]) -> str:
    for prefix in prefixes:
        if column.lower().startswith(prefix):
            return column[len(prefix) :]
    return column
