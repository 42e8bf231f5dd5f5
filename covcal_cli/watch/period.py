"""A period: how files are cut into periods, and the numbers and verdict of one.

A period is a whole file, or a day, week or month of a column of dates. Its record is one line of
the history. The numbers use no labels except those of rows you labelled (`covcal label`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

import numpy as np

from covcal_cli.arrays import AnyArray, Rows
from covcal_cli.data.rows import GROUP_PREFIX
from covcal_cli.errors import CovcalError, shown
from covcal_cli.formats.features import ALL, Domain
from covcal_cli.records import (
    Count,
    Difference,
    Document,
    NonNegative,
    Number,
    Positive,
    Share,
    Within,
    require_ascending,
)

Every = Literal["day", "week", "month"]
PER_YEAR: dict[Every, float] = {"day": 365.25, "week": 52.18, "month": 12.0}
_DATE = 10  # length of 2026-11-28


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
            f"{GROUP_PREFIX}{word}, extract again and pass --by {word}, or "
            "watch one file per period"
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


# Whether the mean confidence is within the tolerance of the accuracy.
Verdict = Literal["holds", "off", "not known"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
_LARGEST = 1e15  # more evidence than a shift of 10 million rows can give


@dataclass(frozen=True)
class WatchedCalibration:
    """The calibration whose reference data a period is compared with."""

    path: Path
    sha256: str
    method: str  # the method that was used


@dataclass(frozen=True)
class PeriodAccuracy:
    """The accuracy of a period, with its interval."""

    accuracy: Share
    low: Share
    high: Share
    of: str  # the rows or labels behind it, in words
    contradicted: bool = False  # whether the estimators disagree

    def __post_init__(self) -> None:
        require_ascending(low=self.low, high=self.high)


@dataclass(frozen=True)
class PeriodLabels:
    """What the labels of one period tell, by the design of their draw."""

    rows: Number  # labelled
    accuracy: Share
    size: Positive  # the number of random labels that tell as much


@dataclass(frozen=True)
class Gap:
    """Mean confidence minus accuracy, with its interval."""

    value: Difference
    low: Difference
    high: Difference

    def __post_init__(self) -> None:
        require_ascending(low=self.low, value=self.value, high=self.high)

    def verdict(self, tolerance: float) -> Verdict:
        """Return the verdict: the interval is within the tolerance, beyond it, or neither."""
        if -tolerance <= self.low and self.high <= tolerance:
            return "holds"
        return "off" if self.low > tolerance or self.high < -tolerance else "not known"


@dataclass(frozen=True)
class RaisedAlarm:
    """The evidence for a change so far: logarithms of R and of the threshold of the alarm."""

    log_evidence: Annotated[float, Within(-_LARGEST, _LARGEST)]
    log_threshold: Annotated[float, Within(0, 100)]
    raised: bool
    since: str  # the period in which a change most likely began
    signal: str  # the signal with the strongest evidence
    change: str = ""  # what changed, in words, while the alarm is raised

    def __post_init__(self) -> None:
        if self.raised != (self.log_evidence >= self.log_threshold):
            raise ValueError("raised does not fit the evidence")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The numbers of one period."""

    period: str
    file: Path
    file_sha256: str
    rows: Number
    read: Number  # rows that the numbers use; a seeded sample if there are more
    confidence_before: Share  # mean confidence of the classifier itself
    confidence: Share  # mean calibrated confidence
    predicted: tuple[Share, ...]  # how often each class is predicted
    estimate: PeriodAccuracy | None  # without labels
    labels: PeriodLabels | None  # what the labels of its rows tell
    auc_target: Share | None  # AUC between the period and the calibration's own target
    auc_source: Share | None
    effective_rows: NonNegative | None  # effective sample size of the source for the period
    # Mean rank of the rows among the reference rows, minus the reference's own mean rank, by
    # signal.
    signals: Mapping[str, Difference]
    signal_rows: Number  # rows that signals and domains use

    def __post_init__(self) -> None:
        require_ascending(signal_rows=self.signal_rows, read=self.read, rows=self.rows)


@dataclass(frozen=True, kw_only=True)
class Period(Document):
    """A period with its verdict, as a line of the history holds it."""

    schema: ClassVar[str] = "covcal.period/1"

    version: str  # of covcal
    calibration: WatchedCalibration
    measured: Measured
    # The accuracy by the labels of this period and of earlier ones; None without labels.
    by_labels: PeriodAccuracy | None
    gap: Gap | None
    tolerance: Share
    alarm: RaisedAlarm
    verdict: Verdict
    why: str
    supersedes: bool = False  # whether an earlier line has the same period and calibration

    @property
    def accuracy(self) -> PeriodAccuracy | None:
        """The accuracy that the verdict rests on: by labels if there are any, or estimated."""
        return self.by_labels or self.measured.estimate

    @property
    def answer(self) -> str:
        """The verdict in words, with its reason."""
        if self.verdict == "off" and self.gap is not None:
            return f"off by about {100 * abs(self.gap.value):.0f} points: {self.why}"
        return f"{self.verdict}: {self.why}"

    @property
    def change(self) -> str:
        """Whether the rows changed, since when and by what, in words."""
        if not self.alarm.raised:
            return "no change was found since the calibration"
        return f"changed since {self.alarm.since}: {self.alarm.change}"

    @property
    def key(self) -> tuple[str, str]:
        """The name and the calibration, which identify a period in a history."""
        return self.measured.period, self.calibration.sha256


@dataclass(frozen=True)
class Watched(Document):
    """The result of one watch: periods with their verdicts."""

    schema: ClassVar[str] = "covcal.watch/1"

    periods: tuple[Period, ...]
    classes: tuple[str, ...]
    every: Every
    false_alarms: Positive
    tolerance: Share
    earlier: Count  # periods of the history that the alarm uses too
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
