"""Cut files into periods: a whole file, or the days, weeks or months of a column of dates."""

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
    """Yield the periods of a file's target in order: all rows, or the rows of each period.

    Raises
    ------
    CovcalError
        If there is no such column, or one of its values is not a date.
    """
    if target.n == 0:
        raise CovcalError(f"{target.path} has no target rows: extract it again")
    rows = target.rows(ALL)
    if by is None:
        yield Cut(name, rows)
        return
    if by not in target.columns:
        columns = ", ".join(target.columns) or "none"
        word = by.removeprefix(GROUP_PREFIX)
        raise CovcalError(
            f"{target.path} has no column {by} (columns: {columns}): give the table a column "
            f"{GROUP_PREFIX}{word}, which is called {word} here, or watch one file per period"
        )
    names = _names(target, by, target.column(by, rows), every)
    for period in sorted(set(names.tolist())):
        yield Cut(period, np.flatnonzero(names == period).astype(np.int64))


def _names(target: Domain, by: str, values: AnyArray, every: Every) -> AnyArray:
    """Return the name of every row's period, shape (n,)."""
    texts = values.astype(f"S{_DATE}") if values.dtype.kind in "SU" else values
    values, places = np.unique(texts, return_inverse=True)
    names = []
    for value in values:
        try:
            day = date.fromisoformat(value.decode("ascii"))
        except (ValueError, AttributeError) as error:
            content = value.item()
            text = content.decode(errors="replace") if isinstance(content, bytes) else content
            raise CovcalError(
                f"{target.path}: column {by} holds {shown(text)}, which is not a date such as "
                "2026-11-28: write dates as ISO 8601 texts, or watch one file per period"
            ) from error
        names.append(_named(day, every))
    return np.array(names)[places]


def _named(day: date, every: Every) -> str:
    """Return the name of the period that contains a day; names sort in the order of time."""
    if every == "week":
        year, week, _ = day.isocalendar()
        return f"{year:04d}-W{week:02d}"
    return day.isoformat() if every == "day" else day.isoformat()[:7]


EVERY: tuple[Every, ...] = get_args(Every)
