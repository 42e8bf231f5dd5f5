"""The records of `covcal watch`: a period with its numbers and verdict, and the result of a run.

The record of a period is one line of the history. The numbers of a period use only labels that you
give by `covcal label`, by ``--labels`` or by ``--target-labels``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

from covcal_cli.errors import in_points, shown
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

# holds: the mean confidence is within the tolerance of the accuracy
Verdict = Literal["holds", "off", "not known"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
PromiseVerdict = Literal["holds so far", "broken", "not known"]
UNCHANGED = "no change was found since the calibration"
_LARGE_DRIFT = 0.1  # a PSI above this limit is usually called a moderate change
_LARGE_SHARE = 0.01  # a smaller share of missing or new values does not matter
_LARGEST = 1e15  # larger than the log evidence that any shift of 10 million rows can give


@dataclass(frozen=True)
class WatchedCalibration:
    """The calibration with which a period was judged."""

    path: Path
    sha256: str
    method: str  # the method that was used; for auto, the method that auto chose


@dataclass(frozen=True)
class PeriodAccuracy:
    """The accuracy of a period, with its interval."""

    accuracy: Share
    low: Share
    high: Share
    of: str  # the rows or labels that the accuracy comes from, in words
    contradicted: bool = False  # whether the estimators of the accuracy disagreed

    def __post_init__(self) -> None:
        require_ascending(low=self.low, high=self.high)


@dataclass(frozen=True)
class PeriodLabels:
    """The accuracy of one period, computed from its labelled rows."""

    rows: Number  # number of labelled rows
    accuracy: Share
    size: Positive  # effective size: the labels are as precise as this many labels of random rows


@dataclass(frozen=True)
class Gap:
    """Mean confidence minus accuracy, with its interval."""

    value: Difference
    low: Difference
    high: Difference

    def __post_init__(self) -> None:
        require_ascending(low=self.low, value=self.value, high=self.high)

    def verdict(self, tolerance: float) -> Verdict:
        """Return "holds" (interval within the tolerance), "off" (beyond it) or "not known"."""
        if -tolerance <= self.low and self.high <= tolerance:
            return "holds"
        return "off" if self.low > tolerance or self.high < -tolerance else "not known"


@dataclass(frozen=True)
class ColumnDrift:
    """How the values of a kept column differ from the values in the calibration's rows."""

    name: str
    rows: Number
    psi: NonNegative  # population stability index of ten parts of the numbers, or of categories
    # Numbers: largest difference of the distribution functions (KS).
    # Categories: largest difference of their shares.
    statistic: Share
    p: Share  # p-value of the drift, corrected for the number of columns in the period
    missing: Share
    missing_before: Share
    new: Share  # share of the values whose category does not occur in the reference
    new_categories: tuple[str, ...]  # the most frequent categories that the reference does not have
    measure: str  # name of the number that changed most, such as "median"
    now: str
    before: str

    @property
    def size(self) -> float:
        """The size of the change, by which columns are ranked."""
        return max(self.psi, self.statistic, abs(self.missing - self.missing_before))

    def is_drift(self, level: float) -> bool:
        """Return whether the p-value is at most `level`, and the change is large enough."""
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
    """The evidence that the rows changed, and the threshold of the alarm, both as logarithms."""

    log_evidence: Annotated[float, Within(-_LARGEST, _LARGEST)]
    log_threshold: Annotated[float, Within(0, 100)]
    raised: bool
    since: str  # the period in which the change most likely began
    signal: str  # the signal with the strongest evidence for a change
    change: str = ""  # the change in words; empty without an alarm

    def __post_init__(self) -> None:
        if self.raised != (self.log_evidence >= self.log_threshold):
            raise ValueError("the key 'raised' contradicts the evidence")


@dataclass(frozen=True)
class Segment:
    """The periods that the alarm uses as reference, instead of the calibration's rows."""

    since: str  # its first period
    reason: str  # why the segment began


@dataclass(frozen=True)
class Accepted:
    """The rows of a period that a decision accepts."""

    decision: str  # sha256 of decide.json
    error: Share  # the decision promises that at most this share of accepted rows is wrong
    rows: Count  # number of accepted rows
    expected: CurvePoint | None  # the expected error of the accepted rows, estimated without labels
    labels: PeriodLabels | None  # the accuracy of the accepted rows, from labels


@dataclass(frozen=True)
class Promise:
    """The verdict on the promise that at most a share of the accepted rows is wrong."""

    verdict: PromiseVerdict
    labels: Count  # number of labelled accepted rows, in this and earlier periods
    error: Gap | None  # the share of labelled accepted rows that are wrong
    # About this many more labels are needed for a verdict.
    # None if there is a verdict already, or if more than 10 000 labels are needed.
    needed: Count | None


@dataclass(frozen=True)
class SegmentVerdict:
    """The verdict on the rows of a period that have the same value in a column."""

    period: str
    segment: str
    rows: Number
    confidence: Share  # mean calibrated confidence
    accuracy: PeriodAccuracy | None  # from labels of the period if there are any, else estimated
    gap: Gap | None
    verdict: Verdict
    why: str
    drifts: tuple[ColumnDrift, ...]  # drift from the calibration's rows in the same segment


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The numbers of one period."""

    period: str
    file: Path
    by: str | None  # the column of dates by which the file was cut; None if it was not cut
    every: str  # the length of a period, such as "week"
    rows_sha256: tuple[str, ...]  # for each file of the period, a sha256 of the period's rows in it
    rows: Count  # number of rows; if it is 0, the fields below have no meaning
    read: Count  # number of rows that were read: all rows, or a random sample
    confidence_before: Share  # mean confidence before calibration
    confidence: Share  # mean confidence after calibration
    predicted: tuple[Share, ...]  # for each class, how often it is predicted
    estimate: PeriodAccuracy | None  # the accuracy, estimated without labels
    labels: PeriodLabels | None  # the accuracy from labels of the period's rows
    auc_target: Share | None  # AUC of a classifier between the period and the calibration's target
    auc_source: Share | None  # AUC of a classifier between the period and the calibration's source
    # Effective sample size of the source rows, after weighting them to look like the period's rows.
    effective_rows: NonNegative | None
    # For each signal: mean rank of the period's rows, minus mean rank of the reference rows.
    signals: Mapping[str, Difference]
    variances: Mapping[str, Share]  # for each signal, the variance of the ranks
    signal_rows: Count  # number of rows from which signals and distances were computed
    # Columns, metrics and segments are empty if the period comes from several files.
    columns: tuple[ColumnDrift, ...] = ()  # the drift of each kept column
    accepted: Accepted | None = None  # the rows that the watched decision accepts
    metrics: tuple[MetricEstimate, ...] = ()  # the metrics that the user asked for
    segments: tuple[SegmentVerdict, ...] = ()  # the segments, if the user asked for them

    def __post_init__(self) -> None:
        require_ascending(signal_rows=self.signal_rows, read=self.read, rows=self.rows)


@dataclass(frozen=True, kw_only=True)
class Period(Document):
    """A period with its verdict, which is one line of the history."""

    schema: ClassVar[str] = "covcal.period/1"

    version: str  # the version of covcal
    calibration: WatchedCalibration
    measured: Measured
    by_labels: PeriodAccuracy | None  # accuracy from labels of this period and earlier periods
    gap: Gap | None
    tolerance: Share
    alarm: RaisedAlarm
    segment: Segment | None  # None if the calibration's rows are the alarm's reference
    verdict: Verdict
    why: str
    supersedes: bool = False  # whether this line replaces an earlier line about the same period
    promise: Promise | None = None  # None if no decision is watched

    @property
    def accuracy(self) -> PeriodAccuracy | None:
        """The accuracy from labels if there are any, else the estimated accuracy."""
        return self.by_labels or self.measured.estimate

    @property
    def answer(self) -> str:
        """The verdict with its reason, in words."""
        if self.verdict == "off" and self.gap is not None:
            return f"off by about {in_points(f'{100 * abs(self.gap.value):.0f}')}: {self.why}"
        return f"{self.verdict}: {self.why}"

    @property
    def change(self) -> str:
        """A sentence on whether the rows changed, since when, and what changed."""
        if self.alarm.raised:
            return f"changed since {self.alarm.since}: {self.alarm.change}"
        if self.segment is None:
            return UNCHANGED
        return (
            f"no change was found since {self.segment.since}, whose rows are the reference now "
            f"({self.segment.reason})"
        )

    @property
    def accepted(self) -> str:
        """The share of rows that the decision accepts and their expected error, in words."""
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
        """A sentence on whether the decision keeps its promise."""
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
        """The kept columns that drifted, sorted by the size of the change, largest first."""
        # The probability of a false drift in a period is the inverse of the alarm's threshold.
        level = math.exp(-self.alarm.log_threshold)
        drifted = [column for column in self.measured.columns if column.is_drift(level)]
        return sorted(drifted, key=lambda column: -column.size)

    @property
    def key(self) -> tuple[str, str]:
        """The name of the period and the calibration, which identify a line of the history."""
        return self.measured.period, self.calibration.sha256


@dataclass(frozen=True, kw_only=True)
class Acknowledgement(Document):
    """A line of the history which says that somebody accepted changed rows and ended the alarm."""

    schema: ClassVar[str] = "covcal.acknowledgement/1"

    version: str  # the version of covcal
    calibration: str  # sha256 of the calibration
    since: str  # the period in which the change began; it is the first period of the new segment
    after: str  # the last period at the time of the acceptance; later periods use the new segment
    reason: str


@dataclass(frozen=True)
class Watched(Document):
    """The result of one run of watch: the periods with their verdicts."""

    schema: ClassVar[str] = "covcal.watch/1"

    periods: tuple[Period, ...]
    classes: tuple[str, ...]
    every: str
    false_alarms: Positive
    tolerance: Share
    earlier: Count  # number of periods that were in the history before this run
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    segments: tuple[SegmentVerdict, ...] = ()
