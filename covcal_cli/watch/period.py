"""The records of a watch: the numbers and the verdict of one period, and the result of a run.

The record of a period is one line of the history. Its numbers use only labels that you give: rows
you labelled (`covcal label`), ``--labels`` or ``--target-labels``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

from covcal_cli.errors import shown
from covcal_cli.estimators.metrics import MetricEstimate
from covcal_cli.formats.decision import CurvePoint
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

# Whether the mean confidence is within the tolerance of the accuracy.
Verdict = Literal["holds", "off", "not known"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
PromiseVerdict = Literal["holds so far", "broken", "not known"]
_LARGE_DRIFT = 0.1  # a PSI or a difference of shares: the usual limit of a moderate change
_LARGE_SHARE = 0.01  # share of missing or new values
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
    of: str  # the rows or labels on which the estimate rests, in words
    contradicted: bool = False  # whether the estimators disagree

    def __post_init__(self) -> None:
        require_ascending(low=self.low, high=self.high)


@dataclass(frozen=True)
class PeriodLabels:
    """The accuracy by the labels of one period, by the design of their draw."""

    rows: Number  # labelled
    accuracy: Share
    size: Positive  # the number of random labels that would be as precise


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
class ColumnDrift:
    """The difference between a kept column's values and those of the calibration's rows."""

    name: str
    rows: Number
    psi: NonNegative  # population stability index, of tenths of the numbers or of categories
    # The largest difference of the distribution functions (KS), or of the shares of a category.
    statistic: Share
    # p-value of the KS or chi-square test and the test of missing values, for all columns together
    p: Share
    missing: Share
    missing_before: Share
    new: Share  # share of the rows with a value whose category the reference does not have
    new_categories: tuple[str, ...]  # the most frequent new categories
    measure: str  # the number that changed most, in words, such as "median"
    now: str
    before: str

    @property
    def size(self) -> float:
        """The size of the change, to compare columns."""
        return max(self.psi, self.statistic, abs(self.missing - self.missing_before))

    def is_drift(self, level: float) -> bool:
        """Return whether the change is certain at this level, and large enough to matter."""
        return self.p <= level and (
            max(self.psi, self.statistic) >= _LARGE_DRIFT or self._is_missing or self._has_new
        )

    @property
    def words(self) -> str:
        """The change in words."""
        parts = []
        if self.now != self.before:
            parts.append(f"{self.measure} {self.now} instead of {self.before}")
        if self._is_missing:
            digits = 0 if f"{self.missing:.0%}" != f"{self.missing_before:.0%}" else 1
            shares = [f"{100 * part:.{digits}f} %" for part in (self.missing, self.missing_before)]
            parts.append(f"{shares[0]} missing instead of {shares[1]}")
        if self._has_new:
            listed = ", ".join(map(shown, self.new_categories))
            parts.append(f"{100 * self.new:.0f} % have a new value ({listed})")
        return f"column {self.name}: {'; '.join(parts) or f'PSI {self.psi:.2f}'}"

    @property
    def _is_missing(self) -> bool:
        return abs(self.missing - self.missing_before) >= _LARGE_SHARE

    @property
    def _has_new(self) -> bool:
        return self.new >= _LARGE_SHARE


@dataclass(frozen=True)
class RaisedAlarm:
    """The evidence for a change so far: logarithms of R and of the threshold of the alarm."""

    log_evidence: Annotated[float, Within(-_LARGEST, _LARGEST)]
    log_threshold: Annotated[float, Within(0, 100)]
    raised: bool
    since: str  # the period in which a change most likely began
    signal: str  # the signal with the strongest evidence
    change: str = ""  # the change in words, while the alarm is raised

    def __post_init__(self) -> None:
        if self.raised != (self.log_evidence >= self.log_threshold):
            raise ValueError("raised does not fit the evidence")


@dataclass(frozen=True)
class Segment:
    """The periods with which the alarm compares, in place of the calibration's rows."""

    since: str  # its first period
    reason: str  # the reason why it began


@dataclass(frozen=True)
class Accepted:
    """The rows of a period that a decision accepts."""

    decision: str  # sha256 of decide.json
    error: Share  # the largest share of accepted rows that may be wrong
    rows: Count  # number of accepted rows
    expected: CurvePoint | None  # their expected error without labels
    labels: PeriodLabels | None  # the accuracy by the labels of accepted rows


@dataclass(frozen=True)
class Promise:
    """Whether a decision still keeps its promise."""

    verdict: PromiseVerdict
    labels: Count  # labelled accepted rows of this period and of earlier ones
    error: Gap | None  # the share of accepted rows that is wrong, by these labels
    needed: Count | None  # about how many more labels would decide; None: decided, or too many


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The numbers of one period."""

    period: str
    file: Path
    by: str | None  # the column of dates that cut the file; None for a whole file
    every: str  # the length of a period
    # The sha256 of the rows, by which they are recognised; one for each file of the period.
    rows_sha256: tuple[str, ...]
    rows: Count  # if it is 0, the numbers below mean nothing
    read: Count  # rows that the numbers use; a seeded sample if there are more
    confidence_before: Share  # mean confidence of the classifier itself
    confidence: Share  # mean calibrated confidence
    predicted: tuple[Share, ...]  # how often each class is predicted
    estimate: PeriodAccuracy | None  # estimated without labels
    labels: PeriodLabels | None  # the accuracy by the labels of its rows
    auc_target: Share | None  # AUC between the period and the calibration's own target
    auc_source: Share | None
    effective_rows: NonNegative | None  # effective sample size of the source for the period
    # Mean rank of the rows among the reference rows, minus the reference's own mean rank, by
    # signal.
    signals: Mapping[str, Difference]
    variances: Mapping[str, Share]  # variances of the ranks, by signal
    signal_rows: Count  # number of rows for signals and domains
    columns: tuple[ColumnDrift, ...] = ()  # drifts of the kept columns; empty for joined periods
    accepted: Accepted | None = None  # the rows that the decision accepts, if a decision is watched
    # The metrics that were asked for: by the labels of the period, or estimated; empty for joined
    # periods.
    metrics: tuple[MetricEstimate, ...] = ()

    def __post_init__(self) -> None:
        require_ascending(signal_rows=self.signal_rows, read=self.read, rows=self.rows)


@dataclass(frozen=True, kw_only=True)
class Period(Document):
    """A period with its verdict, which is one line of the history."""

    schema: ClassVar[str] = "covcal.period/1"

    version: str  # of covcal
    calibration: WatchedCalibration
    measured: Measured
    # The accuracy by the labels of this period and of earlier ones; None without labels.
    by_labels: PeriodAccuracy | None
    gap: Gap | None
    tolerance: Share
    alarm: RaisedAlarm
    segment: Segment | None  # None while the alarm compares with the calibration's own rows
    verdict: Verdict
    why: str
    supersedes: bool = False  # whether an earlier line has the same period and calibration
    promise: Promise | None = None  # None without a decision

    @property
    def accuracy(self) -> PeriodAccuracy | None:
        """The accuracy behind the verdict: by labels if there are any, else estimated."""
        return self.by_labels or self.measured.estimate

    @property
    def answer(self) -> str:
        """The verdict in words, with its reason."""
        if self.verdict == "off" and self.gap is not None:
            return f"off by about {100 * abs(self.gap.value):.0f} points: {self.why}"
        return f"{self.verdict}: {self.why}"

    @property
    def change(self) -> str:
        """Whether the rows changed, since which period, and the change, in words."""
        if self.alarm.raised:
            return f"changed since {self.alarm.since}: {self.alarm.change}"
        if self.segment is None:
            return "no change was found since the calibration"
        return (
            f"no change was found since {self.segment.since}, whose rows are the reference now "
            f"({self.segment.reason})"
        )

    @property
    def accepted(self) -> str:
        """The number of rows that the decision accepts, and their expected error, in words."""
        accepted = self.measured.accepted
        if accepted is None:
            return ""
        share = f"{accepted.rows / max(self.measured.rows, 1):.0%} of the rows"
        if accepted.expected is None:
            return share
        error, low, high = (
            100 * part
            for part in (accepted.expected.error, accepted.expected.low, accepted.expected.high)
        )
        return f"{share}; {error:.0f} % expected to be wrong ({low:.0f} to {high:.0f} %, estimated)"

    @property
    def promise_answer(self) -> str:
        """Whether the decision keeps its promise, in words."""
        promise, accepted = self.promise, self.measured.accepted
        if promise is None or accepted is None:
            return ""
        text = "no accepted row has a label"
        if promise.error is not None:
            value, low, high = (
                100 * part for part in (promise.error.value, promise.error.low, promise.error.high)
            )
            text = (
                f"{value:.1f} % of the accepted rows are wrong ({low:.1f} to {high:.1f} %, "
                f"{promise.labels} labels)"
            )
        text = f"{promise.verdict}: {text}; the limit is {100 * accepted.error:g} %"
        if promise.verdict == "not known":
            number = "over 10,000" if promise.needed is None else f"about {promise.needed:,}"
            where = ", from several periods," if (promise.needed or 10_000) > accepted.rows else ""
            text += f". Label {number} more accepted rows{where} to decide"
        return text

    @property
    def drifts(self) -> list[ColumnDrift]:
        """The kept columns that have drifted, the largest change first.

        A false drift is as rare as a false alarm, because both have the same level per period.
        """
        level = math.exp(-self.alarm.log_threshold)
        drifted = [column for column in self.measured.columns if column.is_drift(level)]
        return sorted(drifted, key=lambda column: -column.size)

    @property
    def key(self) -> tuple[str, str]:
        """The name and the calibration, which identify a period in a history."""
        return self.measured.period, self.calibration.sha256


@dataclass(frozen=True, kw_only=True)
class Acknowledgement(Document):
    """A line of the history: somebody accepts changed rows, which ends the alarm."""

    schema: ClassVar[str] = "covcal.acknowledgement/1"

    version: str  # of covcal
    calibration: str  # sha256 of the calibration
    since: str  # the period in which the change began, the first of the new segment
    after: str  # the last period at that time; the segment is used from the next period on
    reason: str


@dataclass(frozen=True)
class SegmentVerdict:
    """The verdict on the rows of a period with one value of a column."""

    period: str
    segment: str
    rows: Number
    confidence: Share  # mean calibrated confidence
    accuracy: PeriodAccuracy | None  # by the labels of the period if there are any, else estimated
    gap: Gap | None
    verdict: Verdict
    why: str
    drifts: tuple[ColumnDrift, ...]  # compared with the calibration's rows of the same segment


@dataclass(frozen=True)
class Watched(Document):
    """The result of one watch: periods with their verdicts."""

    schema: ClassVar[str] = "covcal.watch/1"

    periods: tuple[Period, ...]
    classes: tuple[str, ...]
    every: str
    false_alarms: Positive
    tolerance: Share
    earlier: Count  # number of periods of the history that the alarm also uses
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    segments: tuple[SegmentVerdict, ...] = ()
