"""Group target rows by the values of a column."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from covcal_cli.arrays import AnyArray, Float64s, Integers, Rows
from covcal_cli.errors import CovcalError
from covcal_cli.formats.features import Domain

MAX_GROUPS = 1000
PREDICTED = "predicted"  # The name for groups by predicted class.


@dataclass(frozen=True)
class ColumnGroups:
    """Groups of rows by the values of a column. The rows of group k have the value `values[k]`."""

    target: Domain
    column: str
    values: AnyArray  # The distinct values, ascending.

    @property
    def names(self) -> list[str]:
        """The values of the column as texts."""
        return [text_of(value) for value in self.values.tolist()]

    def numbers(self, rows: Rows) -> Integers:
        """Return the group number of each row, shape (m,)."""
        values = self.target.column(self.column, rows)
        return np.searchsorted(self.values, values).astype(np.int64)


def column_groups(
    target: Domain, column: str, rows: Rows, others: Collection[str] = ()
) -> ColumnGroups:
    """Group `rows` by the values of a column. Refuse a column with over a thousand values."""
    if column not in target.columns:
        columns = ", ".join([*target.columns, *others]) or "none"
        raise CovcalError(
            f"{target.path} has no target column {column!r} to group by: use {columns}"
        )
    values = np.empty(0, dtype=target.column(column, rows[:1]).dtype)
    for block in target.blocks(rows):
        values = np.union1d(values, target.column(column, block))
        if len(values) > MAX_GROUPS:
            raise CovcalError(
                f"{target.path}: column {column!r} has more than {MAX_GROUPS} different values: "
                "group by another column"
            )
    return ColumnGroups(target, column, values)


def numbered_groups(
    target: Domain, by: str | None, rows: Rows, classes: Sequence[str]
) -> tuple[list[str], Integers]:
    """Return the group names, and the group number of each row, (m,).

    The groups are the values of the column `by`, or the predicted classes if `by` is "predicted".
    Without `by`, there is one group.
    """
    if by is None:
        return [""], np.zeros(len(rows), dtype=np.int64)
    if by == PREDICTED:
        blocks = [target.logits(block).argmax(axis=1) for block in target.blocks(rows, "logits")]
        return list(classes), np.concatenate(blocks)
    groups = column_groups(target, by, rows, [PREDICTED])
    return groups.names, groups.numbers(rows)


def values_by_group(
    domain: Domain, by: str, rows: Rows, names: Sequence[str], values: Sequence[float], other: float
) -> Float64s:
    """Return the value of each row's group, shape (m,).

    The groups are the values of the column `by`, or the predicted classes if `by` is "predicted".
    Rows of groups that are not in `names` get the value `other`. If two groups have the same name,
    the larger value counts. Raises `CovcalError` if the file has no column `by`.
    """
    if by == PREDICTED:
        return np.asarray(np.array(values)[domain.logits(rows).argmax(axis=1)])
    if by not in domain.columns:
        raise CovcalError(
            f"{domain.path} has no {domain.name} column {by!r}, which holds the groups of the "
            "decision: extract the file again with this column"
        )
    of_names = dict(sorted(zip(names, values, strict=True), key=lambda pair: pair[1]))
    distinct, numbers = np.unique(domain.column(by, rows), return_inverse=True)
    of_distinct = [of_names.get(text_of(value), other) for value in distinct.tolist()]
    return np.asarray(np.array(of_distinct)[numbers])


def joined_groups(
    targets: Sequence[Domain], column: str, rows: Sequence[Rows], others: Collection[str] = ()
) -> list[ColumnGroups]:
    """Group the rows of several files by one column, with the same groups in every file.

    Raises `CovcalError` as in `column_groups`, or if the column has numbers in one file and texts
    in another file.
    """
    groups = [
        column_groups(target, column, part, others)
        for target, part in zip(targets, rows, strict=True)
    ]
    values = groups[0].values
    for entry in groups[1:]:
        if (entry.values.dtype.kind == "S") != (values.dtype.kind == "S"):
            raise CovcalError(
                f"column {column!r} holds texts in one file and numbers in another "
                f"({targets[0].path} and {entry.target.path}): group by another column"
            )
        values = np.union1d(values, entry.values)
    if len(values) > MAX_GROUPS:
        raise CovcalError(
            f"column {column!r} has more than {MAX_GROUPS} different values in all files together: "
            "group by another column"
        )
    return [replace(entry, values=values) for entry in groups]


def text_of(value: Any) -> str:
    """Return a value of a column as text."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else f"{value}"
    return text or "(empty)"
