"""The records of a watch: a period with its numbers and verdict, and the result of a run.

The record of a period is one line of the history. Its numbers use no labels except labels that you
give: rows you labelled (`covcal label`), ``--labels`` or ``--target-labels``.
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

# holds: the mean confidence is within the tolerance of the accuracy
Verdict = Literal["holds", "off", "not known"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
PromiseVerdict = Literal["holds so far", "broken", "not known"]
UNCHANGED = "no change was found since the calibration"
_LARGE_DRIFT = 0.1  # a larger PSI, or difference of shares, is usually called a moderate change
_LARGE_SHARE = 0.01  # a smaller share of missing or new values does not matter
_LARGEST = 1e15  # larger than the evidence of any shift of 10 million rows


@dataclass(frozen=True)
class WatchedCalibration:
    """The calibration with which a period was judged."""

    path: Path
    sha256: str
    method: str  # the method that was used; with auto, the method that auto chose


@dataclass(frozen=True)
class PeriodAccuracy:
    """The accuracy of a period, with its interval."""

    accuracy: Share
    low: Share
    high: Share
    of: str  # in words, the rows or labels that the accuracy comes from
    contradicted: bool = False  # whether the estimators disagreed

    def __post_init__(self) -> None:
        require_ascending(low=self.low, high=self.high)


@dataclass(frozen=True)
class PeriodLabels:
    """The accuracy of one period from its labels, with the probabilities of their draw."""

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
    # population stability index, over ten parts of the numbers or over the categories
    psi: NonNegative
    # for numbers, the largest difference of the distribution functions (KS); for categories, of
    # their shares
    statistic: Share
    # p-value of these tests, corrected for all columns of the period
    p: Share
    missing: Share
    missing_before: Share
    new: Share  # among the rows with a value, the share whose category the reference does not have
    new_categories: tuple[str, ...]  # the most frequent of these categories
    measure: str  # in words, the number that changed most, such as "median"
    now: str
    before: str

    @property
    def size(self) -> float:
        """The size of the change, by which columns are ranked."""
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
    """The evidence for a change so far, and the evidence that raises the alarm, as logarithms."""

    log_evidence: Annotated[float, Within(-_LARGEST, _LARGEST)]
    log_threshold: Annotated[float, Within(0, 100)]
    raised: bool
    since: str  # the period with which the change most likely began
    signal: str  # the signal for which the evidence is strongest
    change: str = ""  # the change in words; empty without an alarm

    def __post_init__(self) -> None:
        if self.raised != (self.log_evidence >= self.log_threshold):
            raise ValueError("raised does not fit the evidence")


@dataclass(frozen=True)
class Segment:
    """The periods that the alarm uses as reference, instead of the calibration's rows."""

    since: str  # its first period
    reason: str  # why the segment began


@dataclass(frozen=True)
class Accepted:
    """The rows of a period that a decision accepts."""

    decision: str  # sha256 of decide.json
    error: Share  # the largest share of accepted rows that may be wrong
    rows: Count  # number of accepted rows
    expected: CurvePoint | None  # the expected error of the accepted rows, estimated without labels
    labels: PeriodLabels | None  # the accuracy of the accepted rows, from labels


@dataclass(frozen=True)
class Promise:
    """Whether the accepted rows are wrong no more often than a decision promised."""

    verdict: PromiseVerdict
    labels: Count  # number of labelled accepted rows, in this and earlier periods
    error: Gap | None  # the share of accepted rows that are wrong, from these labels
    # about how many more labels are needed to decide; None if the labels decide already, or if too
    # many would be needed
    needed: Count | None


@dataclass(frozen=True)
class SegmentVerdict:
    """The verdict on the rows of a period that have one value of a column."""

    period: str
    segment: str
    rows: Number
    confidence: Share  # mean calibrated confidence
    # the accuracy, from labels of the period if there are any, else estimated
    accuracy: PeriodAccuracy | None
    gap: Gap | None
    verdict: Verdict
    why: str
    drifts: tuple[ColumnDrift, ...]  # compared with the calibration's rows that have the same value


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The numbers of one period."""

    period: str
    file: Path
    by: str | None  # the column of dates by which the file was cut; None if it was not cut
    every: str  # the length of a period, such as "week"
    # One sha256 of the rows per file of the period. This hash shows whether rows are equal.
    rows_sha256: tuple[str, ...]
    rows: Count  # without rows, the numbers below mean nothing
    read: Count  # number of rows that were read: all, or a random sample
    confidence_before: Share  # mean confidence before calibration
    confidence: Share  # mean confidence after calibration
    predicted: tuple[Share, ...]  # for each class, how often it is predicted
    estimate: PeriodAccuracy | None  # the accuracy, estimated without labels
    labels: PeriodLabels | None  # the accuracy from labels of the period's rows
    auc_target: Share | None  # AUC of a classifier between the period and the calibration's target
    auc_source: Share | None
    # effective sample size of the source rows after weighting them towards the period
    effective_rows: NonNegative | None
    # by signal: mean rank of the rows among the reference rows, minus the reference rows' own mean
    # rank
    signals: Mapping[str, Difference]
    variances: Mapping[str, Share]  # variance of the ranks, by signal
    signal_rows: Count  # number of rows behind the signals and distances
    # how each kept column drifted; empty if the period comes from several files
    columns: tuple[ColumnDrift, ...] = ()
    accepted: Accepted | None = None  # the rows that the watched decision accepts
    # The metrics that the user asked for; empty if the period comes from several files.
    metrics: tuple[MetricEstimate, ...] = ()
    segments: tuple[SegmentVerdict, ...] = ()  # if the user asked; empty for joined periods

    def __post_init__(self) -> None:
        require_ascending(signal_rows=self.signal_rows, read=self.read, rows=self.rows)


@dataclass(frozen=True, kw_only=True)
class Period(Document):
    """A period with its verdict, which is one line of the history."""

    schema: ClassVar[str] = "covcal.period/1"

    version: str  # the version of covcal
    calibration: WatchedCalibration
    measured: Measured
    # the accuracy from the labels of this period and earlier periods; None without labels
    by_labels: PeriodAccuracy | None
    gap: Gap | None
    tolerance: Share
    alarm: RaisedAlarm
    segment: Segment | None  # None if the alarm compares with the calibration's rows
    verdict: Verdict
    why: str
    supersedes: bool = False  # whether the history has an earlier line of this period
    promise: Promise | None = None  # None if no decision is watched

    @property
    def accuracy(self) -> PeriodAccuracy | None:
        """The accuracy that the verdict uses: from labels if there are any, else estimated."""
        return self.by_labels or self.measured.estimate

    @property
    def answer(self) -> str:
        """The verdict with its reason, in words."""
        if self.verdict == "off" and self.gap is not None:
            return f"off by about {100 * abs(self.gap.value):.0f} points: {self.why}"
        return f"{self.verdict}: {self.why}"

    @property
    def change(self) -> str:
        """In words: whether the rows changed, since when, and what changed."""
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
        """In words: how many rows the decision accepts, and their expected error."""
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
        """In words: whether the decision keeps its promise."""
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
        """The kept columns that drifted, the largest change first.

        The probability that chance alone makes a column drift is that of a false alarm.
        """
        level = math.exp(-self.alarm.log_threshold)
        drifted = [column for column in self.measured.columns if column.is_drift(level)]
        return sorted(drifted, key=lambda column: -column.size)

    @property
    def key(self) -> tuple[str, str]:
        """The name of the period and the calibration, which identify a line of the history."""
        return self.measured.period, self.calibration.sha256


@dataclass(frozen=True, kw_only=True)
class Acknowledgement(Document):
    """A line of the history by which somebody accepted changed rows, which ended the alarm."""

    schema: ClassVar[str] = "covcal.acknowledgement/1"

    version: str  # the version of covcal
    calibration: str  # sha256 of the calibration
    since: str  # the period in which the change began, which is the first of the new segment
    after: str  # the period that was last when somebody accepted; later periods use the new segment
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
    earlier: Count  # number of earlier periods of the history that the alarm used
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    segments: tuple[SegmentVerdict, ...] = ()
