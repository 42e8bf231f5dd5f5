"""Group target rows by the values of a column."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from covcal_cli.arrays import AnyArray, Integers, Rows
from covcal_cli.errors import CovcalError
from covcal_cli.formats.features import Domain

MAX_GROUPS = 1000


@dataclass(frozen=True)
class ColumnGroups:
    """Groups of rows by the values of a column. A group's number is the index of its value."""

    target: Domain
    column: str
    values: AnyArray  # The distinct values, ascending.

    @property
    def names(self) -> list[str]:
        """The values as text."""
        return [_text(value) for value in self.values.tolist()]

    def numbers(self, rows: Rows) -> Integers:
        """Return the group of each row, shape (m,)."""
        values = self.target.column(self.column, rows)
        return np.searchsorted(self.values, values).astype(np.int64)


def column_groups(
    target: Domain, column: str, rows: Rows, others: Collection[str] = ()
) -> ColumnGroups:
    """Return the groups of `rows` by a column. Refuse a column with over a thousand values."""
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


def joined_groups(
    targets: Sequence[Domain], column: str, rows: Sequence[Rows], others: Collection[str] = ()
) -> list[ColumnGroups]:
    """Return the groups of rows of several files by a column. Every file has the same groups.

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
                f"column {column!r} has different types in {targets[0].path} and "
                f"{entry.target.path} (texts and numbers): group by another column"
            )
        values = np.union1d(values, entry.values)
    if len(values) > MAX_GROUPS:
        raise CovcalError(
            f"column {column!r} has more than {MAX_GROUPS} different values in all files together: "
            "group by another column"
        )
    return [replace(entry, values=values) for entry in groups]


def _text(value: Any) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else f"{value}"
    return text or "(empty)"
