"""What tables of outputs hold that is not what people meant: percentages, one confidence a row.

And columns of numbers that were meant as features, under names that do not say so.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.inputs.listing import listed
from covcal_cli.inputs.outputcolumns import Outputs
from covcal_cli.inputs.rowfacts import PATH_NAMES, is_reserved
from covcal_cli.inputs.store import Store

ZEROS = (
    "some probabilities are 0 or below 1e-38 and count as 1e-38, as float32 holds nothing smaller: "
    "where rounding made them 0, give more digits"
)
_FEW_ROWS = 50  # what holds for fewer may be chance
_PERCENT = 100.0
_ROUNDED = 1.0  # of a sum of percentages


def unread_features(store: Store, n: int, found: Outputs) -> tuple[str, ...]:
    """Return a note on numbers that might be features, where none are read.

    Parameters
    ----------
    store : Store
        The file.
    n : int
        Its rows.
    found : Outputs
        What is read of it.
    """
    if found.features:
        return ()
    numbers = {
        name: entry
        for name, entry in store.entries.items()
        if entry.dtype.kind in "fiu"
        and entry.shape[:1] == (n,)
        and name not in (*found.outputs, found.named_by)
        and name.lower() not in PATH_NAMES
        and not is_reserved(name)
    }
    wide = [name for name, entry in numbers.items() if len(entry.shape) == 2]
    plain = [name for name, entry in numbers.items() if len(entry.shape) == 1]
    if wide:
        call = "it" if len(wide) == 1 else "the one that holds them"
        return (f"{listed(wide)} is not read as features: call {call} features",)
    if len(plain) > 1:  # a single number, such as an age, is a group
        return (
            f"columns of numbers {listed(plain)} are not read as features: call features "
            "feature_0, feature_1, ...",
        )
    return ()


def require_all_classes(store: Store, found: Outputs, n_labels: int) -> None:
    """Refuse the single output of two classes where the labels show more.

    Parameters
    ----------
    store : Store
        The file.
    found : Outputs
        What is read of it.
    n_labels : int
        Classes among its labels.

    Raises
    ------
    CovcalError
        Naming the output and the number of classes.
    """
    if found.width == 1 and n_labels > 2:
        raise CovcalError(
            f"{store.path}: {found.outputs[0]} is one number a row, the labels show {n_labels} "
            "classes, and the outputs of all are needed: give one column per class"
        )


def doubt_on_one_column(found: Outputs, logits: NDArray[Any]) -> tuple[str, ...]:
    """Return a doubt if the probability of one of two classes is that of the answer in every row.

    Parameters
    ----------
    found : Outputs
        What is read of the table.
    logits : array, shape (m, K)
        Those of the first rows; the class with the column is the last.
    """
    if found.width > 1 or len(logits) < _FEW_ROWS or (logits[:, 1] < logits[:, 0]).any():
        return ()
    return (
        f"{found.outputs[0]} is nowhere below 0.5 in the first {len(logits)} rows: if it is the "
        "confidence of the answer, give the probability of one class instead",
    )


def no_probability(row: NDArray[Any], found: float) -> str:
    """Return what is wrong with a row of probabilities that holds `found`, and the remedy."""
    if len(row) > 1 and are_percentages(row[None]):
        return f"holds {found:g} and sums to {row.sum():g}, as percentages do: divide by 100"
    percent = ", or divide by 100 where they are percentages" if len(row) == 1 else ""
    return (
        f"holds {found:g}, which is no probability: drop --probabilities where these are logits"
        f"{percent}"
    )


def are_percentages(values: NDArray[Any]) -> bool:
    """Return whether every row holds nothing below 0 and sums to about 100."""
    near = np.abs(values.sum(axis=1) - _PERCENT) < _ROUNDED
    return bool(near.all() and (values >= 0).all())
