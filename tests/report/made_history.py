"""A made history of a watch."""

import math
from dataclasses import replace
from pathlib import Path

from covcal_cli.watch.history import History
from covcal_cli.watch.period import (
    Measured,
    Period,
    PeriodAccuracy,
    PeriodLabels,
    RaisedAlarm,
    Verdict,
    WatchedCalibration,
)
from covcal_cli.watch.verdict import gap_of


def period(
    name: str,
    *,
    accuracy: float | None = 0.8,
    confidence: float = 0.81,
    evidence: float = 0.5,
    verdict: Verdict = "holds",
    calibration: str = "a",
    measured: float | None = None,
) -> Period:
    """A period whose evidence is a power of ten; the alarm's threshold is a thousand."""
    of = "made rows"
    estimate = None
    if accuracy is not None:
        estimate = PeriodAccuracy(accuracy, accuracy - 0.08, accuracy + 0.06, of)
    known = None
    if measured is not None:
        of = f"95 % interval from 2000 labels of 2026-W23 to {name}"
        known = PeriodAccuracy(measured, measured - 0.05, measured + 0.05, of)
    found = Measured(
        period=name,
        file=Path(f"{name}.h5"),
        by=None,
        every="week",
        rows_sha256=("0" * 64,),
        rows=250,
        read=250,
        confidence_before=min(confidence + 0.07, 1.0),
        confidence=confidence,
        predicted=(0.5, 0.5),
        estimate=estimate,
        labels=None if measured is None else PeriodLabels(50, measured, 50.0),
        auc_target=0.5,
        auc_source=0.7,
        effective_rows=100.0,
        signals={},
        variances={},
        signal_rows=250,
    )
    best = known or estimate
    log_evidence, log_threshold = (power * math.log(10) for power in (evidence, 3))
    raised = log_evidence >= log_threshold
    change = "the logits differ (AUC 0.72 between old and new rows; 0.50 means no difference)"
    return Period(
        version="0.1.0",
        calibration=WatchedCalibration(Path("cal.json"), calibration * 64, "cot"),
        measured=found,
        by_labels=known,
        gap=None if best is None else gap_of(confidence, best),
        tolerance=0.05,
        alarm=RaisedAlarm(log_evidence, log_threshold, raised, name, "confidence", change),
        segment=None,
        verdict=verdict,
        why="confidence 81 %, accuracy 78 % to 84 %",
    )


def half_a_year() -> History:
    """26 weeks: a drift, an alarm, a new calibration in week 14, and a few labels."""
    periods = []
    for week in range(26):
        name = f"2026-W{week + 23}"
        drift = 0.0 if week < 8 else 0.03 * (week - 8)
        renewed = week >= 14
        one = period(
            name,
            accuracy=None if week == 4 else 0.84 - min(drift, 0.18),
            confidence=0.85 - (0.17 if renewed else drift / 3),
            evidence=0.4 if week < 8 or renewed else 0.9 * (week - 7),
            calibration="b" if renewed else "a",
            measured=0.82 - min(drift, 0.18) if week % 6 == 2 else None,
        )
        if one.alarm.raised:
            verdict: Verdict = "off" if week > 11 else "not known"
            one = replace(one, verdict=verdict)
        periods.append(one)
        if week == 13:  # held against both
            periods.append(period(name, accuracy=0.69, confidence=0.69, calibration="b"))
    return History(Path("watch.jsonl"), tuple(periods))
