"""Divide files into periods, name the periods, and sort them by time.

A period is a whole file, a block of rows, or a unit of time such as a week. Names of periods are,
for example, 2026-11-28, 2026-W48, 2026-11, 2026-Q4, 2026 and "row 2501" (the block that begins with
row 2501). If all names have the same form, periods are sorted by time. Times with a time zone are
converted to UTC.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Literal, get_args

import numpy as np

from covcal_cli.arrays import AnyArray, Rows
from covcal_cli.errors import CovcalError, shown
from covcal_cli.formats.features import ALL, Domain

Unit = Literal["day", "week", "month", "quarter", "year"]
UNITS: tuple[Unit, ...] = get_args(Unit)
_PER_YEAR: dict[str, float] = {"day": 365.25, "week": 52.18, "month": 12.0, "quarter": 4.0}
_NAMES: dict[str, re.Pattern[str]] = {
    "day": re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII),
    "week": re.compile(r"(\d{4})-W(\d\d)", re.ASCII),
    "month": re.compile(r"(\d{4})-(\d\d)", re.ASCII),
    "quarter": re.compile(r"(\d{4})-Q([1-4])", re.ASCII),
    "year": re.compile(r"(\d{4})", re.ASCII),
    "row": re.compile(r"row (\d{1,15})", re.ASCII),
}
_DATE = 10  # Number of characters of 2026-11-28.
_LONGEST = 35  # Number of characters of a date with time and time zone.
_MOST_MISSING = 1000  # Maximum number of missing periods that are counted.


@dataclass(frozen=True)
class Cut:
    """One period of a file: its name and its rows."""

    name: str
    rows: Rows


def require_every(text: str) -> None:
    """Raise a CovcalError if `text` is neither a unit of time nor a number of rows."""
    if text not in UNITS and rows_of(text) is None:
        raise CovcalError(
            f"--every {shown(text)} is not a period: use {', '.join(UNITS)}, or a number of rows "
            "such as 2500"
        )


def rows_of(every: str) -> int | None:
    """Return the number of rows per period; None if periods are units of time."""
    return int(every) if re.fullmatch(r"[1-9]\d{0,11}", every, re.ASCII) else None


def per_year(every: str) -> float:
    """Return the number of periods in a year; a block of rows counts as a week."""
    return 1.0 if every == "year" else _PER_YEAR.get(every, _PER_YEAR["week"])


def cuts(target: Domain, name: str, by: str | None, every: str) -> Iterator[Cut]:
    """Yield the periods of the target rows of a file.

    Without `by`, the file is one period, or blocks of `every` rows. If `by` names a column of
    dates, periods are units of time, or blocks of rows sorted by date.

    Raises `CovcalError` if the column `by` is missing, or one of its values is not a date.
    """
    rows = target.rows(ALL)
    size = rows_of(every)
    if by is None and size is None:
        yield Cut(name, rows)
        return
    if not len(rows):
        return
    days = None if by is None else _days(target, by, rows)
    if size is not None:
        if days is not None:
            rows = rows[np.argsort(days, kind="stable")]
        for start in range(0, len(rows), size):
            yield Cut(f"row {start + 1}", rows[start : start + size])
    elif days is not None:
        values, places = np.unique(days, return_inverse=True)
        named = [_named(date.fromordinal(day), every) for day in values.tolist()]
        names, numbers = np.unique(named, return_inverse=True)
        of_rows = numbers[places]
        order = np.argsort(of_rows, kind="stable").astype(np.int64)
        starts = np.searchsorted(of_rows[order], np.arange(1, len(names)))
        for period, of_period in zip(names.tolist(), np.split(order, starts), strict=True):
            yield Cut(period, of_period)


def _days(target: Domain, by: str, rows: Rows) -> AnyArray:
    if by not in target.columns:
        columns = ", ".join(target.columns) or "none"
        raise CovcalError(
            f"{target.path} has no column {by} (columns: {columns}): add the column to the "
            "table and extract again, or watch one file per period"
        )
    values = target.column(by, rows)
    texts = values.astype(f"S{_LONGEST}") if values.dtype.kind in "SU" else values
    # Neighbouring rows often have the same date, so remove repeated neighbours before sorting.
    is_first = np.append(True, texts[1:] != texts[:-1])
    values, places = np.unique(texts[is_first], return_inverse=True)
    days = []
    for value in values:
        try:
            days.append(_day(value.decode("ascii")).toordinal())
        except (ValueError, AttributeError, OverflowError) as error:
            content = value.item()
            text = content.decode(errors="replace") if isinstance(content, bytes) else content
            raise CovcalError(
                f"{target.path}: column {by} holds {shown(text)}, which is not a date: write "
                "dates such as 2026-11-28, or watch one file per period"
            ) from error
    return np.array(days, dtype=np.int64).take(places).take(np.cumsum(is_first) - 1)


def _day(text: str) -> date:
    if len(text) > _DATE:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return date.fromisoformat(text[:_DATE])
        return (moment.astimezone(UTC) if moment.tzinfo else moment).date()
    return date.fromisoformat(text)


def _named(day: date, every: str) -> str:
    if every == "week":
        year, week, _ = day.isocalendar()
        return f"{year:04d}-W{week:02d}"
    if every == "quarter":
        return f"{day.year:04d}-Q{(day.month + 2) // 3}"
    return day.isoformat()[: {"day": 10, "month": 7, "year": 4}[every]]


def place_in_time(name: str) -> tuple[str, int] | None:
    """Return the unit of a period's name, such as "week", and its number.

    Numbers of later periods are larger. Return None if the name has no date or row number.
    """
    for kind, pattern in _NAMES.items():
        if (parts := pattern.fullmatch(name)) is not None:
            numbers = [int(part) for part in parts.groups()]
            try:
                return kind, _number(kind, numbers)
            except ValueError:  # a date that does not exist, such as 30 February
                return None
    return None


def _number(kind: str, numbers: Sequence[int]) -> int:
    year, *rest = numbers
    if kind == "day":
        return date(*numbers).toordinal()
    if kind == "week":
        return date.fromisocalendar(year, rest[0], 1).toordinal() // 7
    if kind == "month":
        return 12 * year + date(year, rest[0], 1).month - 1
    return 4 * year + rest[0] - 1 if kind == "quarter" else year


def missing_between(before: str, after: str) -> list[str]:
    """Return the names of the periods between two periods, at most 1000 names."""
    first, last = place_in_time(before), place_in_time(after)
    if first is None or last is None or first[0] != last[0] or first[0] == "row":
        return []
    kind, count = first[0], min(last[1] - first[1] - 1, _MOST_MISSING)
    return [_of_number(kind, first[1] + step) for step in range(1, count + 1)]


def _of_number(kind: str, number: int) -> str:
    if kind == "day":
        return date.fromordinal(number).isoformat()
    if kind == "week":  # day number 1 was a Monday
        return _named(date.fromordinal(7 * number + 1), "week")
    if kind == "month":
        return f"{number // 12:04d}-{number % 12 + 1:02d}"
    return f"{number // 4:04d}-Q{number % 4 + 1}" if kind == "quarter" else f"{number:04d}"
