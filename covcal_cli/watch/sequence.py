"""Judge the periods of one calibration in the order of time.

Periods are put in the order of time, and judged from the first new period on, because a period that
arrives late changes the verdicts of later periods.

The alarm compares the rows with the calibration's own rows. An alarm ends when a new segment
begins. This happens if somebody accepts the changed rows (``--acknowledge``), or if they have not
changed again for a number of periods. From then on the alarm compares with the first periods of the
segment. The verdict is always about the calibration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from covcal_cli import __version__
from covcal_cli.watch.calendar import place_in_time
from covcal_cli.watch.history import History
from covcal_cli.watch.labels import pooled
from covcal_cli.watch.measurement import Standard
from covcal_cli.watch.period import (
    Acknowledgement,
    Measured,
    Period,
    RaisedAlarm,
    Segment,
    WatchedCalibration,
)
from covcal_cli.watch.promise import promise_after
from covcal_cli.watch.verdict import alarm_after, verdict_on


@dataclass(frozen=True)
class Rule:
    """The settings of the verdict and the alarm."""

    tolerance: float
    threshold: float  # threshold of the evidence
    stable: int  # periods without another change that end an alarm; 0 for never


def in_time(names: Sequence[str]) -> list[int]:
    """Return the time order of period names; the given order unless all are dates of one kind."""
    keys = [place_in_time(name) for name in names]
    if any(key is None for key in keys) or len({key[0] for key in keys if key}) > 1:
        return list(range(len(names)))
    return sorted(range(len(names)), key=lambda place: (keys[place] or ("", 0))[1])


def periods_in_time(history: History, calibration_sha256: str) -> list[Period]:
    """Return the periods of one calibration in the order of time."""
    periods = history.of(calibration_sha256)
    return [periods[place] for place in in_time([period.measured.period for period in periods])]


def judged(
    fresh: Mapping[str, Measured],
    history: History,
    used: WatchedCalibration,
    standard: Standard,
    rule: Rule,
) -> list[Period]:
    """Return the lines that new periods add to a history, with those of changed verdicts.

    Parameters
    ----------
    fresh : mapping
        The new, grown, joined or replaced periods by name, in the order of their files.
    history, used, standard, rule
        The history so far, the calibration with its reference data, and the settings.
    """
    recorded = {period.measured.period: period for period in history.of(used.sha256)}
    entries = {name: period.measured for name, period in recorded.items()} | dict(fresh)
    names = list(entries)
    sequence = [entries[names[place]] for place in in_time(names)]
    places = {entry.period: place for place, entry in enumerate(sequence)}
    first = min((places[name] for name in fresh), default=len(sequence))
    lines: list[Period] = []
    before = None if first == 0 else recorded.get(sequence[first - 1].period)
    segment = None if before is None else before.segment
    acknowledged = [
        acceptance
        for acceptance in history.acknowledgements
        if acceptance.calibration == used.sha256
    ]
    for place in range(first, len(sequence)):
        entry = sequence[place]
        for acceptance in acknowledged:
            if places.get(acceptance.after) == place - 1 and acceptance.since in places:
                segment = Segment(acceptance.since, f"accepted: {acceptance.reason}")
        line = _judged(sequence[: place + 1], segment, places, used, standard, rule)
        segment = line.segment
        old = recorded.get(entry.period)
        line = replace(line, supersedes=old is not None)
        if entry.period in fresh or old is None or _differ(line, old):
            lines.append(line)
    return lines


def _differ(line: Period, old: Period) -> bool:
    answers = (line.alarm, line.gap, line.segment, line.promise)
    return answers != (old.alarm, old.gap, old.segment, old.promise)


def _judged(
    so_far: Sequence[Measured],
    segment: Segment | None,
    places: Mapping[str, int],
    used: WatchedCalibration,
    standard: Standard,
    rule: Rule,
) -> Period:
    """Return the last of some periods with its alarm and verdict."""
    entry = so_far[-1]

    def alarm_since(segment: Segment | None) -> RaisedAlarm:
        return alarm_after(
            so_far if segment is None else so_far[places[segment.since] :],
            standard.reference,
            standard.calibration.classes,
            rule.threshold,
            is_own_baseline=segment is not None,
        )

    alarm = alarm_since(segment)
    if alarm.raised and rule.stable and len(so_far) - places[alarm.since] >= rule.stable:
        count = len(so_far) - places[alarm.since]
        following = Segment(alarm.since, f"stable for {count} periods")
        again = alarm_since(following)
        if not again.raised:
            segment, alarm = following, again
    # Labels from before a change of the rows say nothing about later rows.
    start = 0 if segment is None else places[segment.since]
    if alarm.raised:
        start = max(start, places[alarm.since])
    pool = pooled(so_far, start) if entry.rows else None
    verdict, gap, why = verdict_on(entry, pool, rule.tolerance)
    return Period(
        version=__version__,
        calibration=used,
        measured=entry,
        by_labels=None if pool is None else pool.accuracy(entry.confidence),
        gap=gap,
        tolerance=rule.tolerance,
        alarm=alarm,
        segment=segment,
        verdict=verdict,
        why=why,
        promise=promise_after(so_far, start),
    )


def acknowledgement(
    history: History, used: WatchedCalibration, reason: str
) -> tuple[Acknowledgement, Period] | None:
    """Return the line that accepts the rows of the last period, and this period.

    Return None if its alarm is not raised.
    """
    periods = periods_in_time(history, used.sha256)
    if not periods or not periods[-1].alarm.raised:
        return None
    last = periods[-1]
    return (
        Acknowledgement(
            version=__version__,
            calibration=used.sha256,
            since=last.alarm.since,
            after=last.measured.period,
            reason=reason,
        ),
        last,
    )
