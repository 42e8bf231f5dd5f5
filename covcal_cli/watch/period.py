"""What is measured of a period, and said of it: a line of the history.

Labels are none of it, but for those that were marked to be used.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from covcal_cli.records import Document
from covcal_cli.watch.cuts import Every

Verdict = Literal["as before", "shifted but the calibration holds", "recalibrate", "cannot tell"]


_ROUNDING = 1e-4  # of means of 32-bit numbers


def _require_within(low: float, high: float, values: Mapping[str, float | None]) -> None:
    for name, value in values.items():
        if value is not None and not low - _ROUNDING <= value <= high + _ROUNDING:
            raise ValueError(f"{name} is {value:g}, beyond {low:g} to {high:g}")


@dataclass(frozen=True)
class WatchedCalibration:
    """The calibration that a period is held against."""

    path: Path
    sha256: str
    method: str  # in force


@dataclass(frozen=True)
class PeriodAccuracy:
    """An accuracy of a period; ValueError where it is none."""

    accuracy: float
    low: float
    high: float
    of: str  # what it rests on, in words
    contradicted: bool = False  # whether what it rests on contradicts itself

    def __post_init__(self) -> None:
        _require_within(0, 1, {"accuracy": self.accuracy, "low": self.low, "high": self.high})


@dataclass(frozen=True)
class RaisedAlarm:
    """The evidence for a change so far: natural logarithms of R and of what raises the alarm."""

    log_evidence: float
    log_threshold: float
    raised: bool
    since: str  # the period in which a change most likely began
    signal: str  # that says most


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The numbers of one period; ValueError where one is beyond what it can be."""

    period: str
    file: Path
    file_sha256: str
    rows: int
    read: int  # rows that the numbers are of, drawn by the seed where there are more
    confidence_before: float  # mean, of the classifier as it came
    confidence: float  # mean, calibrated
    predicted: tuple[float, ...]  # how often each class is predicted
    estimate: PeriodAccuracy | None  # without labels
    measured: PeriodAccuracy | None  # of labels that were marked to be used
    auc_target: float | None  # of the domains, against the calibration's own target
    auc_source: float | None
    effective_rows: float | None  # source rows that are worth as much on the period
    # Where rows stand among the reference's, by signal: mean rank less that of the reference's own.
    signals: Mapping[str, float]
    signal_rows: int  # that signals and domains are compared by

    def __post_init__(self) -> None:
        shares = ("confidence", "confidence_before", "auc_target", "auc_source")
        _require_within(0, 1, {name: getattr(self, name) for name in shares})
        _require_within(-1, 1, self.signals)
        counts = ("rows", "read", "signal_rows")
        _require_within(1, math.inf, {name: getattr(self, name) for name in counts})

    @property
    def distance(self) -> float | None:
        """Mean confidence less the accuracy that is known best."""
        known = self.measured or self.estimate
        return None if known is None else self.confidence - known.accuracy


@dataclass(frozen=True, kw_only=True)
class Period(Document):
    """A period with its verdict, as a line of the history holds it."""

    schema: ClassVar[str] = "covcal.period/1"

    version: str  # of covcal
    calibration: WatchedCalibration
    measured: Measured
    distance: float | None
    alarm: RaisedAlarm
    verdict: Verdict
    why: str
    supersedes: bool = False  # an earlier line of the same period and calibration

    @property
    def key(self) -> tuple[str, str]:
        """What may be in a history once."""
        return self.measured.period, self.calibration.sha256


@dataclass(frozen=True)
class Watched(Document):
    """What one run found: periods with their verdicts."""

    schema: ClassVar[str] = "covcal.watch/1"

    periods: tuple[Period, ...]
    classes: tuple[str, ...]
    every: Every
    false_alarms: float
    earlier: int  # periods of the history that the alarm rests on too
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
