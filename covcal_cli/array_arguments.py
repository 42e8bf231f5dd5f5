"""Check the array arguments of the Python API."""

import re
from typing import Any

import numpy as np

from covcal_cli.arrays import TRUTH, AnyArray, Float64s, Labels, Rows
from covcal_cli.errors import ArgumentError, CovcalError
from covcal_cli.maths.output_form import DISTRIBUTIONS, OutputEvidence
from covcal_cli.maths.softmax import valid_rows

# Minimum number of rows to recognise probabilities; the key says if there are several columns.
_FEW_BOUNDED = {True: 8, False: 50}
_SHARED = re.compile(r".*[\W_]", re.DOTALL)
WHOLE = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)
_LARGEST = 2**53  # the limit up to which float64 represents all whole numbers
_LABEL_TYPES = ((int, float, np.number, np.bool_), (str,), (bytes,))


def array_of(values: Any, name: str) -> AnyArray:
    """Convert a list, data frame, torch tensor or array to a NumPy array."""
    if any(map(np.ma.is_masked, values if isinstance(values, list | tuple) else (values,))):
        raise ArgumentError(f"{name} has masked values: leave their rows out")
    try:
        if hasattr(values, "detach"):
            values = values.detach().cpu()
            if "bfloat16" in str(values.dtype):
                values = values.float()
        array: AnyArray = np.asarray(values)
    # For example, lists of different lengths raise ValueError.
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"{name} must be an array ({error})") from error
    if array.dtype.kind == "T":  # NumPy's string types
        array = array.astype(object)
    if array.dtype == object and array.ndim == 0:
        remedy = {"toarray": ": give .toarray()", "collect": ": give .collect()"}
        advice = next((text for key, text in remedy.items() if hasattr(values, key)), "")
        raise ArgumentError(f"{name} must be an array, not {type(values).__name__}{advice}")
    return array


def numbers_of(values: Any, name: str) -> Float64s:
    """Convert real numbers of any shape to a float64 array."""
    array = array_of(values, name)
    try:
        if array.dtype.kind in "cmMV":
            raise TypeError(f"the type is {array.dtype}")
        if array.dtype == object:
            array = np.asarray(array.tolist())
        with np.errstate(over="ignore"):
            numbers: Float64s = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(f"{name} must be real numbers ({error})") from error
    return numbers


def whole_numbers_of(values: Any, name: str) -> Labels:
    """Convert whole numbers, shape (n,), to an int64 array."""
    numbers = numbers_of(values, name)
    if numbers.ndim != 1 or not (np.abs(numbers) < _LARGEST).all() or (numbers % 1).any():
        raise ArgumentError(f"{name} must be a list of whole numbers")
    return numbers.astype(np.int64)


def form_of(rows: Float64s) -> OutputEvidence:
    """Return statistics that show whether rows are logits or probabilities."""
    evidence = OutputEvidence()
    if len(rows):
        evidence.add(rows)
    return evidence


def logits_of(values: Any, name: str) -> Float64s:
    """Return logits as a float64 array, shape (n, K).

    A single column z means two classes with the logits 0 and z. Probabilities are refused.
    """
    rows = numbers_of(values, name)
    single = rows.ndim == 1
    if single:
        rows = rows[:, None]
    if rows.ndim != 2 or len(rows) == 0 or (rows.shape[1] < 2 and not single):
        raise ArgumentError(
            f"{name} must have shape (n, K) with at least 1 row and 2 classes, or (n,) for "
            f"two classes, not {rows.shape}"
        )
    both = np.concatenate([np.zeros_like(rows), rows], axis=1) if single else rows
    bad = np.flatnonzero(~valid_rows(both))
    if len(bad):
        raise ArgumentError(
            f"{name}: row {bad[0]} has NaN or infinity: give finite numbers. For a "
            "probability of 0, give np.log(1e-38)"
        )
    _require_logits(rows, name)
    return both


def _require_logits(rows: Float64s, name: str) -> None:
    evidence = form_of(rows)
    form, fact = evidence.form, evidence.fact
    # If all numbers are equal, they may be logits or probabilities.
    if form != "probabilities" and rows.min() == rows.max():
        return
    if form in DISTRIBUTIONS:
        lowest = evidence.lowest
        steps = [f"subtract {lowest:g} from each value"] if lowest > 0 else []
        if lowest < 0:
            steps = [f"add {-lowest:g} to each value"]
        if form not in ("probabilities", "clipped"):
            steps.append("divide each row by its sum")
        remedy = ", ".join([*steps, "give np.log of the values"])
        raise ArgumentError(f"{name}: these are not logits, because {fact}: {remedy}")
    if form == "reversed":
        is_scaled = evidence.reversal in ("negated", "complements")
        remedy = evidence.remedy
        if is_scaled:
            remedy += ", divide each row by its sum, give np.log of the values"
        raise ArgumentError(f"{name}: these are not logits, because {fact}: {remedy}")
    if form == "mixed":
        row, total = evidence.first_off or (evidence.first_outside or (0, 0.0))
        raise ArgumentError(
            f"{name}: {fact}, but row {row} is different ({total:.6g}): correct row {row}. If the "
            "values are probabilities, give np.log of the values"
        )
    if form == "bounded" and len(rows) >= _FEW_BOUNDED[rows.shape[1] > 1]:
        raise ArgumentError(
            f"{name}: {fact}, so the values are probably not logits: give np.log of "
            "probabilities. If the values are cosines, multiply them by the scale used in training"
        )


def columns_of(values: Any) -> list[Any] | None:
    """Return the column names of a data frame or an Arrow table; None for other values."""
    if hasattr(values, "collect"):  # a lazy frame, which `array_of` refuses
        return None
    names = getattr(values, "column_names", None)
    columns = names if isinstance(names, list) else getattr(values, "columns", None)
    return None if columns is None else list(columns)


def require_columns(expected: list[Any] | None, values: Any, where: str) -> None:
    """Refuse a data frame whose columns differ from `expected`, as scikit-learn does."""
    columns = columns_of(values)
    if values is None or expected is None or columns is None or columns == expected:
        return
    lines = [f"The feature names should match those of {where}."]
    unseen = [name for name in columns if name not in expected]
    missing = [name for name in expected if name not in columns]
    for names, text in ((unseen, "Feature names unseen at fit time"), (missing, "missing")):
        if names:
            lines.append(f"{text}: {', '.join(map(str, names[:5]))}")
    if len(lines) == 1:
        lines.append("Feature names must be in the same order as they were in fit.")
    raise ArgumentError(" ".join(lines))


def require_like_fit(
    rows: Float64s, values: Any, classes: int, columns: list[Any] | None, owner: str
) -> None:
    """Refuse logits whose classes or columns differ from the logits that were passed to fit.

    `values` are the user's logits, and `rows`, (n, K), are the same logits as an array. `owner` is
    the name of the fitted Python class.
    """
    if rows.shape[1] != classes:
        raise ArgumentError(
            f"logits have {rows.shape[1]} classes, but the {owner} was fitted to {classes}"
        )
    require_columns(columns, values, "the logits that were passed to fit")


def classes_among(columns: list[Any] | None, labels: AnyArray) -> AnyArray | None:
    """Return the column names as the classes if every label is a column name, else None."""
    if not columns or not set(np.unique(labels).tolist()) <= set(columns):
        return None
    return np.array(columns)


def columns_like(labels: AnyArray, columns: list[Any] | None) -> list[Any] | None:
    """Return the column names as classes, converted to the type of `labels`.

    A common prefix of the names, such as ``logit_``, is removed if necessary.
    """
    if columns is None:
        return None
    present, own = set(np.unique(labels).tolist()), _numbers_like(labels, columns)
    if present <= set(own) or len(columns) < 2 or not all(isinstance(c, str) for c in columns):
        return own
    start, end = _shared(columns), _shared([name[::-1] for name in columns])
    inner = _numbers_like(labels, [name[start : len(name) - end] for name in columns])
    return inner if present <= set(inner) else own


def _shared(names: list[str]) -> int:
    """Return the length of the common prefix of names, up to a separator."""
    length = next((i for i, signs in enumerate(zip(*names, strict=False)) if len({*signs}) > 1), 0)
    match = _SHARED.match(names[0][:length])
    return match.end() if match else 0


def _numbers_like(labels: AnyArray, names: list[Any]) -> list[Any]:
    if labels.dtype.kind == "b":
        meanings = [TRUTH.get(str(name).casefold()) for name in names]
        return meanings if {*meanings} == {False, True} else names
    are_whole = labels.dtype.kind in "iu" and all(
        isinstance(name, str) and WHOLE.fullmatch(name) for name in names
    )
    return [int(name) for name in names] if are_whole else names


def require_class_order(names: AnyArray, values: Any, where: str) -> None:
    """Refuse a data frame whose columns are not in the order of the classes `names`."""
    columns = columns_like(names, columns_of(values))
    if columns and columns != names.tolist() and set(columns) == set(names.tolist()):
        raise ArgumentError(
            f"the columns of {where} must be in the order of the classes: give the order "
            f"{', '.join(map(str, names[:5]))}{', ...' if len(names) > 5 else ''}"
        )


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, NA or NaT."""
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas.NA
        return True


def require_row_order(values: Any, rows: Any, name: str) -> None:
    """Refuse two pandas objects with the same index values in different orders."""
    index, of_rows = (
        getattr(part, "index", None) if hasattr(part, "iloc") else None for part in (values, rows)
    )
    if index is None or of_rows is None or index.equals(of_rows):
        return
    if {*index} == {*of_rows}:
        raise ArgumentError(
            f"{name} and its rows have the same index in different orders: give "
            f"{name}.loc[rows.index]. If the order is right, give {name}.to_numpy()"
        )


def labels_of(values: Any, name: str, n: int, rows: Any = None) -> AnyArray:
    """Convert n labels (class names or class numbers) to an array.

    The index of pandas labels must be in the order of the index of `rows`.
    """
    labels = array_of(values, name)
    if labels.shape != (n,):
        may_be_one_hot = labels.ndim == 2 and labels.shape[0] == n and labels.shape[1] > 1
        remedy = f": for one-hot rows, give {name}.argmax(axis=1)" if may_be_one_hot else ""
        raise ArgumentError(f"{name} must have shape ({n},), not {labels.shape}{remedy}")
    require_row_order(values, rows, name)
    is_list = isinstance(values, list)  # NumPy turns None into the text "None"
    if is_list or labels.dtype.kind in "fO":
        for row, label in enumerate(values if is_list else labels.tolist()):
            if is_missing(label) or label in (np.inf, -np.inf):
                raise ArgumentError(
                    f"{name}: row {row} is {label}: give its class, or leave the row out"
                )
    types = {type(label) for label in labels.tolist()}
    kinds = {next((kind for kind in _LABEL_TYPES if issubclass(own, kind)), None) for own in types}
    if len(kinds) > 1 or None in kinds:
        listed = " and ".join(sorted({own.__name__ for own in types}))
        raise ArgumentError(f"{name} must be only class numbers or only class names, not {listed}")
    if kinds <= {_LABEL_TYPES[0]}:
        labels = np.array(labels.tolist())  # pandas may store numbers as objects
    if labels.dtype.kind == "f" and (labels == np.rint(labels)).all():
        if len(labels) and np.abs(labels).max() >= _LARGEST:
            raise ArgumentError(f"{name} has numbers that floats cannot represent: give integers")
        labels = labels.astype(np.int64)
    return labels


def class_numbers(
    labels: AnyArray, classes: AnyArray, name: str, *, has_classes: bool = True
) -> Labels:
    """Return the index of each label among K different classes, shape (n,)."""
    instead = "" if has_classes else ", or give classes in the order of the columns"
    order, k = np.argsort(classes), len(classes)
    listed = ", ".join(map(str, classes[:5])) + (", ..." if k > 5 else "")
    if len(labels) and _are_numbers(labels) != _are_numbers(classes):
        wrong, right = ("numbers", "texts") if _are_numbers(labels) else ("texts", "numbers")
        raise ArgumentError(
            f"{name} must be {right} instead of {wrong}, because the classes are {right} "
            f"({listed}): give {right}{instead}"
        )
    places = np.searchsorted(classes[order], labels).clip(0, k - 1)
    numbers: Labels = order[places].astype(np.int64)
    strange = np.flatnonzero(classes[numbers] != labels)
    if len(strange):
        raise ArgumentError(
            f"{name}: row {strange[0]} is {labels[strange[0]]!s}, which is not one of the "
            f"classes {listed}: correct this label{instead}"
        )
    return numbers


def _are_numbers(values: AnyArray) -> bool:
    return values.dtype.kind in "iufb"


def labelled_rows_of(
    logits: Any, rows: Any, labels: Any, shape: tuple[int, ...]
) -> tuple[Rows, Labels]:
    """Return row numbers and class numbers of the labelled rows, both of shape (m,).

    `rows` and `labels` can be None. `shape` is the shape of the logits, (n, K). A data frame must
    have the index 0, 1, 2, ..., so that row numbers and index values are equal.
    """
    index: Any = getattr(logits, "index", ())
    is_count = np.array_equal(np.asarray(index), np.arange(len(index)))
    if rows is not None and hasattr(logits, "iloc") and not is_count:
        raise CovcalError(
            "the index of logits must be 0, 1, 2, ... to number the rows: give logits.to_numpy()"
        )
    require_row_order(labels, rows, "labels")
    names = [] if labels is None else array_of(labels, "labels").ravel().tolist()
    if any(isinstance(name, str) for name in names):
        classes = columns_like(np.array(names, dtype=object), columns_of(logits)) or []
        if not set(names) <= set(classes):
            raise CovcalError(
                "labels must be class numbers, not class names: give [classes.index(name) for "
                "name in labels], where classes is the list of the classes, or give the logits as "
                "a data frame with one column per class"
            )
        labels = [classes.index(name) for name in names]
    drawn, drawn_labels = (
        whole_numbers_of([] if values is None else values, name)
        for values, name in ((rows, "rows"), (labels, "labels"))
    )
    if drawn.shape != drawn_labels.shape:
        raise CovcalError(
            f"there are {len(drawn)} rows but {len(drawn_labels)} labels: give the number and "
            "the label of each labelled row"
        )
    if len(np.unique(drawn)) < len(drawn):
        raise CovcalError("the argument rows has a row number twice: give each number once")
    for values, most, kind in ((drawn, shape[0], "row"), (drawn_labels, shape[1], "class")):
        if len(values) and not (values.min() >= 0 and values.max() < most):
            raise CovcalError(f"{kind} numbers must be from 0 to {most - 1}")
    return drawn, drawn_labels
