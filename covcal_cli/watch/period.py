"""A period with its numbers and its verdict: one line of the history.

The numbers use no labels except those that `covcal label` put in.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

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
from covcal_cli.watch.cuts import Every

Verdict = Literal["as before", "shifted but the calibration holds", "recalibrate", "cannot tell"]
_LARGEST = 1e15  # evidence that a shift of 10 million rows can give


@dataclass(frozen=True)
class WatchedCalibration:
    """The calibration whose reference data a period is compared with."""

    path: Path
    sha256: str
    method: str  # in force


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
class RaisedAlarm:
    """The evidence for a change so far: logarithms of R and of the threshold of the alarm."""

    log_evidence: Annotated[float, Within(-_LARGEST, _LARGEST)]
    log_threshold: Annotated[float, Within(0, 100)]
    raised: bool
    since: str  # the period in which a change most likely began
    signal: str  # the signal with the strongest evidence

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
    read: Number  # rows that the numbers use; the seed draws them where there are more
    confidence_before: Share  # mean, of the classifier itself
    confidence: Share  # mean, calibrated
    predicted: tuple[Share, ...]  # how often each class is predicted
    estimate: PeriodAccuracy | None  # without labels
    measured: PeriodAccuracy | None  # by labels that `covcal label` put in
    auc_target: Share | None  # of the domains, against the calibration's own target
    auc_source: Share | None
    effective_rows: NonNegative | None  # effective sample size of the source for the period
    # Position of the rows among the reference rows, by signal: mean rank less the reference's own.
    signals: Mapping[str, Difference]
    signal_rows: Number  # rows that signals and domains use

    def __post_init__(self) -> None:
        require_ascending(signal_rows=self.signal_rows, read=self.read, rows=self.rows)

    @property
    def distance(self) -> float | None:
        """Mean confidence less the accuracy, by labels if there are any."""
        best = self.measured or self.estimate
        return None if best is None else self.confidence - best.accuracy


@dataclass(frozen=True, kw_only=True)
class Period(Document):
    """A period with its verdict, as a line of the history holds it."""

    schema: ClassVar[str] = "covcal.period/1"

    version: str  # of covcal
    calibration: WatchedCalibration
    measured: Measured
    distance: Difference | None
    alarm: RaisedAlarm
    verdict: Verdict
    why: str
    supersedes: bool = False  # whether an earlier line has the same period and calibration

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
    earlier: Count  # periods of the history that the alarm uses too
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
