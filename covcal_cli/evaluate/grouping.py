"""Groups of rows: by class, by predicted label, or by what a column says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.formats.features import Domain, Rows

BY_CLASS, BY_PREDICTED = "class", "predicted"
MAX_GROUPS = 1000

Numbers = Callable[[Rows, NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]]


@dataclass(frozen=True)
class Grouping:
    """The groups of rows."""

    names: Sequence[str]  # by number
    numbers: Numbers  # of m rows' groups, from their row numbers, true labels and judged labels


def grouping(target: Domain, by: str, rows: Rows, classes: Sequence[str]) -> Grouping:
    """Return the groups of `rows`, which `by` may not cut into more than a thousand."""
    if by == BY_CLASS:
        return Grouping(classes, lambda _rows, labels, _judged: labels)
    if by == BY_PREDICTED:
        return Grouping(classes, lambda _rows, _labels, judged: judged)
    if by not in target.columns:
        known = ", ".join([*target.columns, BY_CLASS, BY_PREDICTED])
        raise CovcalError(f"{target.path} has no target column {by!r} to group by: take {known}")
    values = np.empty(0, dtype=target.column(by, rows[:1]).dtype)
    for block in target.blocks(rows):
        values = np.union1d(values, target.column(by, block))
        if len(values) > MAX_GROUPS:
            raise CovcalError(
                f"{target.path}: column {by!r} has more than {MAX_GROUPS} values, so its groups "
                "would be single rows: group by another column"
            )

    def numbers(
        block: Rows, _labels: NDArray[np.int64], _judged: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        return np.searchsorted(values, target.column(by, block)).astype(np.int64)

    return Grouping([_text(value) for value in values.tolist()], numbers)


def _text(value: Any) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else f"{value}"
    return text or "(empty)"
