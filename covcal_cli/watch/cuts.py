"""Where a period begins and ends: a file of its own, or the dates of a column."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Literal, get_args

import numpy as np

from covcal_cli.arrays import AnyArray, Rows
from covcal_cli.data.rows import GROUP_PREFIX
from covcal_cli.errors import CovcalError, shown
from covcal_cli.formats.features import ALL, Domain

Every = Literal["day", "week", "month"]
PER_YEAR: dict[Every, float] = {"day": 365.25, "week": 52.18, "month": 12.0}
_DATE = 10  # characters of 2026-11-28


@dataclass(frozen=True)
class Cut:
    """The rows of one period."""

    name: str
    rows: Rows


def cuts(target: Domain, name: str, by: str | None, every: Every) -> Iterator[Cut]:
    """Yield the periods of a file's target in order: all rows, or those of each period of a column.

    Raises
    ------
    CovcalError
        If there is no such column, or a value of it is no date.
    """
    if target.n == 0:
        raise CovcalError(f"{target.path} has no target rows: extract it again")
    rows = target.rows(ALL)
    if by is None:
        yield Cut(name, rows)
        return
    if by not in target.columns:
        known = ", ".join(target.columns) or "none"
        raise CovcalError(
            f"{target.path} has no column {by} (it has {known}; {GROUP_PREFIX}NAME of a table is "
            "NAME here): extract it with --keep-columns of a table, or watch a file per period"
        )
    names = _names(target, by, target.column(by, rows), every)
    for period in sorted(set(names.tolist())):
        yield Cut(period, np.flatnonzero(names == period).astype(np.int64))


def _names(target: Domain, by: str, values: AnyArray, every: Every) -> AnyArray:
    """Return the name of every row's period, shape (n,)."""
    texts = values.astype(f"S{_DATE}") if values.dtype.kind in "SU" else values
    found, places = np.unique(texts, return_inverse=True)
    names = []
    for value in found:
        try:
            day = date.fromisoformat(value.decode("ascii"))
        except (ValueError, AttributeError) as error:
            plain = value.item()  # which texts are bytes of
            held = plain.decode(errors="replace") if isinstance(plain, bytes) else plain
            raise CovcalError(
                f"{target.path}: column {by} holds {shown(held)}, which is no date such as "
                "2026-11-28: write dates as ISO 8601 texts, or watch a file per period"
            ) from error
        names.append(_named(day, every))
    return np.array(names)[places]


def _named(day: date, every: Every) -> str:
    """Return the name of the period that a day belongs to; names sort in the order of time."""
    if every == "week":
        year, week, _ = day.isocalendar()
        return f"{year:04d}-W{week:02d}"
    return day.isoformat() if every == "day" else day.isoformat()[:7]


EVERY: tuple[Every, ...] = get_args(Every)
