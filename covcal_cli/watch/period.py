"""The settings of `covcal watch`, the record of a period, and the result of the command.

The record of a period is one line of the history. Labels are used only if you give labels by
`covcal label`, ``--labels`` or ``--target-labels``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

from covcal_cli.errors import CovcalError, in_points, percent, shown
from covcal_cli.estimators.metrics import MetricEstimate, Wanted
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
from covcal_cli.watch.calendar import per_year, require_every

# "holds": mean confidence and accuracy differ by at most the tolerance.
Verdict = Literal["holds", "off", "not known"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
PromiseVerdict = Literal["holds so far", "broken", "not known"]
UNCHANGED = "no lasting change was found since the calibration"
_LARGE_DRIFT = 0.1  # By convention, a PSI above this value is a moderate change.
_LARGE_SHARE = 0.01  # A smaller change in the share of missing or new values is no drift.
_LARGEST = 1e15  # Maximum plausible logarithm of the evidence.
HASH_BITS = 52  # Hashes of rows are below 2^52, so that every JSON reader reads them exactly.
SAMPLED = 64  # Number of hashes in a sample of rows.
LEAST_SHARED = 0.1
_LEAST_THRESHOLD = 1.01  # The logarithm of the threshold must be above 0.


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """The settings of ``covcal watch``."""

    by: str | None = None  # A column of dates that divides files into periods.
    every: str = "week"  # Length of a period: a unit of time, or a number of rows as text.
    false_alarms: float = 0.05  # Maximum number of false alarms per year.
    # Tolerance for the difference between mean confidence and accuracy.
    tolerance: float = 0.05
    # An alarm ends after this many stable periods. With 0, stable periods never end an alarm.
    stable: int = 8
    # Name of a column, or "predicted". Each value of the column gets its own verdict.
    segment: str | None = None
    target_labels: bool = False  # Whether target labels in the files are used.
    metrics: tuple[Wanted, ...] = ()  # Metrics to estimate for every period.
    allow_other_preprocessing: bool = False

    def __post_init__(self) -> None:
        require_every(self.every)
        if self.stable < 0:
            raise CovcalError(f"stable must be at least 0, not {self.stable}")
        if not 0 < self.false_alarms <= 1:
            raise CovcalError(
                f"false_alarms must be above 0 and at most 1 per year, not {self.false_alarms}"
            )
        if not 0 < self.tolerance < 1:
            raise CovcalError(f"tolerance must be above 0 and below 1, not {self.tolerance}")

    @property
    def threshold(self) -> float:
        """The threshold c of the evidence, at which the alarm is raised (`watch.verdict`)."""
        return max(per_year(self.every) / self.false_alarms, _LEAST_THRESHOLD)

    @property
    def level(self) -> float:
        """The significance level of the tests for drift."""
        return 1 / self.threshold


@dataclass(frozen=True)
class WatchedCalibration:
    """The calibration with which a period was judged."""

    path: Path
    sha256: str
    method: str  # the calibration method (for auto, the chosen method)


@dataclass(frozen=True)
class PeriodAccuracy:
    """The accuracy of a period, with its interval."""

    accuracy: Share
    low: Share
    high: Share
    of: str  # Description of the rows or labels with which the accuracy was estimated.
    contradicted: bool = False  # Whether the estimators of the accuracy disagreed.

    def __post_init__(self) -> None:
        require_ascending(low=self.low, high=self.high)

    def __str__(self) -> str:
        """Return the accuracy with its interval, such as 62 % (56 to 67 %)."""
        low = percent(self.low, 0).removesuffix(" %")
        return f"{percent(self.accuracy, 0)} ({low} to {percent(self.high, 0)})"


@dataclass(frozen=True)
class PeriodLabels:
    """The accuracy of one period, computed from its labelled rows."""

    rows: Number
    accuracy: Share
    size: Positive  # effective size: number of random labels with the same precision


@dataclass(frozen=True)
class Gap:
    """Mean confidence minus accuracy, with its interval."""

    value: Difference
    low: Difference
    high: Difference

    def __post_init__(self) -> None:
        require_ascending(low=self.low, value=self.value, high=self.high)

    def verdict(self, tolerance: float) -> Verdict:
        """Return "holds" (within the tolerance), "off" (beyond the tolerance) or "not known"."""
        if -tolerance <= self.low and self.high <= tolerance:
            return "holds"
        return "off" if self.low > tolerance or self.high < -tolerance else "not known"


@dataclass(frozen=True)
class ColumnDrift:
    """The drift of a kept column, compared with the calibration's rows."""

    name: str
    rows: Number
    psi: NonNegative  # Population stability index of categories, or of ten bins of numbers.
    # Kolmogorov-Smirnov statistic of numbers, or largest difference of categories' shares.
    statistic: Share
    p: Share  # p-value of the drift, corrected for the number of columns in the period
    missing: Share
    missing_before: Share
    new: Share  # Share of the values that belong to new categories.
    new_categories: tuple[str, ...]  # The most frequent new categories.
    measure: str  # Name of the statistic whose values are `now` and `before`, such as "median".
    now: str
    before: str

    @property
    def size(self) -> float:
        """The size of the change, for sorting columns."""
        return max(self.psi, self.statistic, abs(self.missing - self.missing_before))

    def is_drift(self, level: float) -> bool:
        """Return whether the change is large and significant at `level`."""
        return self.p <= level and (
            max(self.psi, self.statistic) >= _LARGE_DRIFT or self._is_missing or self._has_new
        )

    @property
    def words(self) -> str:
        """A description of the change."""
        parts = []
        if self.now != self.before:
            parts.append(f"{self.measure} {self.now} instead of {self.before}")
        if self._is_missing:
            digits = 0 if percent(self.missing, 0) != percent(self.missing_before, 0) else 1
            shares = [f"{100 * part:.{digits}f} %" for part in (self.missing, self.missing_before)]
            parts.append(f"{shares[0]} of the values are missing now (before: {shares[1]})")
        if self._has_new:
            listed = ", ".join(map(shown, self.new_categories))
            parts.append(f"{100 * self.new:.0f} % of the rows have a new value ({listed})")
        changes = "; ".join(parts) or f"PSI {self.psi:.2f}"
        return f"column {self.name}: {changes}"

    @property
    def _is_missing(self) -> bool:
        return abs(self.missing - self.missing_before) >= _LARGE_SHARE

    @property
    def _has_new(self) -> bool:
        return self.new >= _LARGE_SHARE


@dataclass(frozen=True)
class RaisedAlarm:
    """The evidence that rows changed, and the threshold of the alarm, both as logarithms."""

    log_evidence: Annotated[float, Within(-_LARGEST, _LARGEST)]
    log_threshold: Annotated[float, Within(0, 100)]
    raised: bool
    since: str  # The period in which the change most likely began.
    signal: str  # Name of the signal with the strongest evidence for a change.
    change: str = ""  # A description of the change, or "".
    # The value of `since` when the alarm was first raised; None without an alarm.
    first_since: str | None = None

    def __post_init__(self) -> None:
        if self.raised != (self.log_evidence >= self.log_threshold):
            raise ValueError("the key 'raised' contradicts the evidence")

    @property
    def began(self) -> str:
        """The period in which the change began, as estimated when the alarm was first raised."""
        return self.first_since or self.since


@dataclass(frozen=True)
class Segment:
    """A series of periods that replaces the calibration's rows as the reference of the alarm."""

    since: str  # The first period of the segment.
    reason: str  # Why new rows are compared with these periods.


@dataclass(frozen=True)
class Accepted:
    """The rows of a period that a decision accepts."""

    decision: str  # Hash (sha256) of decide.json.
    error: Share  # Maximum error rate of accepted rows.
    rows: Count  # Number of accepted rows.
    expected: CurvePoint | None  # Error rate of the accepted rows, estimated without labels.
    labels: PeriodLabels | None  # Accuracy of the accepted rows, from labels.


@dataclass(frozen=True)
class Promise:
    """The verdict on whether a decision keeps its maximum error rate."""

    verdict: PromiseVerdict
    labels: Count  # Number of labelled accepted rows in the pooled periods.
    error: Gap | None  # Error rate of the accepted rows, from labels.
    # Number of further labels for a verdict, or None.
    needed: Count | None


@dataclass(frozen=True)
class SegmentVerdict:
    """The verdict on a segment of a period."""

    period: str
    segment: str
    rows: Number
    confidence: Share  # Mean calibrated confidence.
    accuracy: PeriodAccuracy | None  # The accuracy from labels, or else the estimated accuracy.
    gap: Gap | None
    verdict: Verdict
    why: str
    drifts: tuple[ColumnDrift, ...]  # drift from the calibration's rows in the same segment


@dataclass(frozen=True)
class RowSample:
    """A sample of hashes of rows, which shows whether two periods have rows in common.

    A row has the same hash in every period. Therefore, the rows with the smallest hashes are a
    random sample. Two periods are compared by their smallest hashes (Broder 1997).
    """

    total: Count  # Sum of the hashes of all rows, modulo 2^52.
    smallest: tuple[int, ...]  # The smallest hashes, ascending.

    def __post_init__(self) -> None:
        if list(self.smallest) != sorted(set(self.smallest))[:SAMPLED]:
            raise ValueError("the hashes of rows are not in ascending order")

    def joined(self, other: "RowSample") -> "RowSample":
        """Return one sample of the rows of both periods."""
        smallest = sorted({*self.smallest, *other.smallest})[:SAMPLED]
        return RowSample((self.total + other.total) % (1 << HASH_BITS), tuple(smallest))

    def shared(self, other: "RowSample") -> tuple[float, float]:
        """Estimate which share of this period is also in the other period, and the reverse.

        Both shares are 0 if the periods have few rows in common, because a few hashes may be equal
        by chance.
        """
        samples = [sample.smallest for sample in (self, other)]
        most = min(sample[-1] if len(sample) == SAMPLED else 1 << HASH_BITS for sample in samples)
        mine, others = ({entry for entry in sample if entry <= most} for sample in samples)
        common = len(mine & others)
        if common < LEAST_SHARED * len(mine | others):
            return 0.0, 0.0
        return common / len(mine), common / len(others)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measured values of one period."""

    period: str
    file: Path
    by: str | None  # The column of dates that divides the file into periods.
    every: str  # The length of a period, such as "week".
    rows_sha256: tuple[str, ...]  # Hash of the period's rows in each file.
    rows: Count  # Number of rows, perhaps 0.
    read: Count  # Number of rows that were read: all rows or a random sample.
    confidence_before: Share  # Mean confidence before calibration.
    confidence: Share  # Mean confidence after calibration.
    predicted: tuple[Share, ...]  # How often each class is predicted.
    estimate: PeriodAccuracy | None  # The accuracy, estimated without labels.
    labels: PeriodLabels | None  # The accuracy, from labels.
    auc_target: Share | None  # AUC between the period and the calibration's target.
    auc_source: Share | None  # AUC between the period and the calibration's source.
    # Effective number of source rows after importance weighting.
    effective_rows: NonNegative | None
    # Mean rank of the period's rows minus mean rank of the reference rows, by signal.
    signals: Mapping[str, Difference]
    variances: Mapping[str, Share]  # The variance of the ranks of each signal.
    signal_rows: Count  # Number of rows used for signals and AUCs.
    # Columns, metrics and segments are empty if a period comes from several files.
    columns: tuple[ColumnDrift, ...] = ()  # The drift of each kept column.
    # Hashes of rows. None if there are no rows, or if several sampled rows are equal.
    row_sample: RowSample | None = None
    accepted: Accepted | None = None  # The rows that the decision accepts.
    metrics: tuple[MetricEstimate, ...] = ()  # The metrics that the user asked for.
    segments: tuple[SegmentVerdict, ...] = ()  # The segments, if the user asked for them.

    def __post_init__(self) -> None:
        require_ascending(signal_rows=self.signal_rows, read=self.read, rows=self.rows)

    def shared(self, other: "Measured") -> tuple[float, float]:
        """Estimate which share of this period is also in the other period, and the reverse."""
        if self.row_sample is None or other.row_sample is None:
            return 0.0, 0.0
        return self.row_sample.shared(other.row_sample)

    def has_rows_of(self, other: "Measured") -> bool:
        """Return whether both periods have the same rows, in any order."""
        if self.row_sample is not None and self.row_sample == other.row_sample:
            return self.rows == other.rows
        return bool(self.rows and set(self.rows_sha256) & set(other.rows_sha256))


@dataclass(frozen=True, kw_only=True)
class Period(Document):
    """A period with its verdict, which is one line of the history."""

    schema: ClassVar[str] = "covcal.period/1"

    version: str
    calibration: WatchedCalibration
    measured: Measured
    by_labels: PeriodAccuracy | None  # accuracy from labels of this period and earlier periods
    gap: Gap | None
    tolerance: Share
    alarm: RaisedAlarm
    segment: Segment | None  # None if new rows are compared with the calibration's rows
    verdict: Verdict
    why: str
    supersedes: bool = False  # Whether this line replaces an earlier line for the same period.
    promise: Promise | None = None  # None without a decision.
    # Number of further labels for a verdict; None if there is a verdict, or if over 10,000.
    labels_needed: Count | None = None

    def __repr__(self) -> str:
        """Return the name, the verdict and the change of the period as text."""
        return f"Period({self.measured.period!r}: {self.answer}; rows: {self.change})"

    @property
    def accuracy(self) -> PeriodAccuracy | None:
        """The accuracy from labels, or else the estimated accuracy."""
        return self.by_labels or self.measured.estimate

    @property
    def answer(self) -> str:
        """The verdict with its reason, in words."""
        if self.verdict == "off" and self.gap is not None:
            return f"off by about {in_points(f'{100 * abs(self.gap.value):.0f}')}: {self.why}"
        return f"{self.verdict}: {self.why}"

    @property
    def change(self) -> str:
        """A sentence on the change of the rows."""
        if self.alarm.raised:
            return f"changed since {self.alarm.began}: {self.alarm.change}"
        if self.segment is None:
            return UNCHANGED
        return f"no lasting change was found since {self.segment.since} ({self.segment.reason})"

    @property
    def accepted(self) -> str:
        """The share of accepted rows and their expected error, in words."""
        accepted = self.measured.accepted
        if accepted is None:
            return ""
        share = f"{percent(accepted.rows / max(self.measured.rows, 1), 0)} of the rows"
        if accepted.expected is None:
            return share
        error, low, high = (
            100 * part
            for part in (accepted.expected.error, accepted.expected.low, accepted.expected.high)
        )
        return (
            f"{share}; {error:.0f} % of these rows are expected to be wrong ({low:.0f} to "
            f"{high:.0f} %, estimated)"
        )

    @property
    def promise_answer(self) -> str:
        """A sentence on whether the error rate of accepted rows is within the promised limit."""
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
            where = " from several periods" if (promise.needed or 10_000) > accepted.rows else ""
            text += f". For a verdict, label {number} more accepted rows{where}"
        return text

    @property
    def drifts(self) -> list[ColumnDrift]:
        """The kept columns that drifted, with the largest change first."""
        level = math.exp(-self.alarm.log_threshold)
        drifted = [column for column in self.measured.columns if column.is_drift(level)]
        return sorted(drifted, key=lambda column: -column.size)

    @property
    def key(self) -> tuple[str, str]:
        """The key of a line in the history: the name of the period, and the calibration."""
        return self.measured.period, self.calibration.sha256


@dataclass(frozen=True, kw_only=True)
class Acknowledgement(Document):
    """The decision of a user to accept changed rows, which ends an alarm."""

    schema: ClassVar[str] = "covcal.acknowledgement/1"

    version: str
    calibration: str  # Hash (sha256) of the calibration.
    since: str  # The period in which the change and the new segment begin.
    after: str  # Last period of the old segment.
    reason: str


@dataclass(frozen=True)
class Watched(Document):
    """The periods of one ``covcal watch`` command, with their verdicts."""

    schema: ClassVar[str] = "covcal.watch/1"

    periods: tuple[Period, ...]
    classes: tuple[str, ...]
    every: str
    false_alarms: Positive
    tolerance: Share
    earlier: Count  # number of periods that were in the history before this command
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    segments: tuple[SegmentVerdict, ...] = ()
