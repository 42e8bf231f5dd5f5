"""``covcal watch``: whether last month's calibration is still good for this week's rows.

Each period is measured without labels, held against what the calibration keeps of its own rows,
and given a verdict. A *shift* is what the alarm says; whether the calibration still holds is what
the estimate of the accuracy says of its confidence: of many rows the alarm sees shifts that matter
to nobody.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from covcal_cli import __version__
from covcal_cli.errors import CovcalError, UnusedOptionError
from covcal_cli.evaluate.gates import GateResult, Outcome
from covcal_cli.forecast.forecaster import split_names
from covcal_cli.formats.calibration import Calibration, read_calibration
from covcal_cli.watch.alarm import Alarm, alarm
from covcal_cli.watch.cuts import EVERY, PER_YEAR, Every
from covcal_cli.watch.history import History, append, read_history
from covcal_cli.watch.measurement import measured, standard_of
from covcal_cli.watch.period import (
    Measured,
    Period,
    RaisedAlarm,
    Verdict,
    Watched,
    WatchedCalibration,
)
from covcal_cli.watch.reference import Reference

FailOn = Literal["shift", "recalibrate"]


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """What ``covcal watch`` can be told."""

    by: str | None = None  # a column of dates
    every: Every = "week"
    false_alarms: float = 0.05  # at most, per year
    allow_other_preprocessing: bool = False

    def __post_init__(self) -> None:
        if self.every not in EVERY:
            raise CovcalError(f"there is no period {self.every!r}: take {', '.join(EVERY)}")
        if not 0 < self.false_alarms <= 1:
            raise CovcalError(
                f"false_alarms is a rate per year above 0 and at most 1, not {self.false_alarms}"
            )

    @property
    def threshold(self) -> float:
        """What the evidence must reach: `alarm`'s c."""
        return PER_YEAR[self.every] / self.false_alarms


_USELESS = 0.5  # width of an interval that leaves half of all accuracies
_AS_IT_COMES = WatchSettings()


def watch(
    files: Sequence[Path],
    document: Path,
    settings: WatchSettings = _AS_IT_COMES,
    *,
    history: Path | None = None,
    networks: Path | None = None,
    force: bool = False,
    wrote: Callable[[Path], None] = lambda _: None,
) -> Watched:
    """Hold periods against a calibration, and append them to a history.

    Parameters
    ----------
    files : sequence of Path
        Features or adapted files with a target, each a period or, by a column, several; as
        ``NAME=FILE`` a period has that name, else its file's.
    document : Path
        The calibration.
    settings : WatchSettings
        How periods are cut and how often an alarm may be false.
    history : Path, optional
        A file of JSON lines that the periods are appended to; those in it count for the alarm.
    networks : Path, optional
        The adapted file with the networks of an fl method, if it has moved.
    force : bool
        Whether periods that the history has already are superseded.
    wrote : callable
        Called with the file of the reference data where this watch wrote it.

    Raises
    ------
    OutputExistsError
        If the history has a period already.
    CovcalError
        If a file does not fit the calibration, or two periods have one name.
    UnusedOptionError
        If `networks` are given and the calibration has no use for any.
    """
    calibration = read_calibration(document)
    if networks is not None and not calibration.scaling.reads_aligned:
        raise UnusedOptionError("--networks", "the calibration has no use for it")
    standard = standard_of(
        calibration,
        document,
        networks,
        allow_other_preprocessing=settings.allow_other_preprocessing,
        wrote=wrote,
    )
    used = WatchedCalibration(document, standard.sha256, calibration.method_used)
    paths, names = split_names(files)
    before = None if history is None else read_history(history)
    if before is not None and settings.by is None:  # before any work
        stems = [name or path.stem for path, name in zip(paths, names, strict=True)]
        before.require_new([(stem, used.sha256) for stem in stems], force=force)

    found: list[Measured] = []
    for path, name in zip(paths, names, strict=True):
        found += measured(
            path,
            name or path.stem,
            standard,
            by=settings.by,
            every=settings.every,
            false_alarms=1 / settings.threshold,
        )
    _require_different(found)

    def judged(so_far: History) -> list[Period]:
        so_far.require_new([(one.period, used.sha256) for one in found], force=force)
        return _judged(found, so_far, used, standard.reference, settings)

    earlier = before or History(Path("watch.jsonl"))
    periods = judged(earlier) if history is None else append(earlier, judged)
    untold = (one for one in periods if one.verdict == "cannot tell")
    doubts = (
        f"whether the calibration holds on {one.measured.period} cannot be told: {one.why}"
        for one in untold
    )
    return Watched(
        periods=tuple(periods),
        classes=calibration.classes,
        every=settings.every,
        false_alarms=settings.false_alarms,
        earlier=len(earlier.of(used.sha256)),
        notes=(*standard.notes, *_notes(calibration, standard.reference, found)),
        warnings=(*earlier.damaged, *doubts),
    )


def _require_different(found: Sequence[Measured]) -> None:
    names = [one.period for one in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise CovcalError(f"two periods are called {twice}: name one otherwise, as NAME=FILE")


def _notes(
    calibration: Calibration, reference: Reference, found: Sequence[Measured]
) -> tuple[str, ...]:
    notes = []
    thinned = [one for one in found if one.read < one.rows]
    if thinned:
        notes.append(f"of {thinned[0].period} {thinned[0].read} of {thinned[0].rows} rows are read")
    if reference.baseline == "source":
        notes.append("the calibration has no target rows: periods are held against its source")
    if any(one.auc_source is None for one in found):
        notes.append(
            "the domains are not compared, as the periods lack the features that "
            f"{calibration.inputs[0].path.name} has: extract them with features"
        )
    return tuple(notes)


# Verdicts.


def _judged(
    found: Sequence[Measured],
    history: History,
    used: WatchedCalibration,
    reference: Reference,
    settings: WatchSettings,
) -> list[Period]:
    """Return the periods with their alarms, each after all those before it."""
    earlier = history.of(used.sha256)
    sequence = [one.measured for one in earlier]
    places = {one.period: place for place, one in enumerate(sequence)}
    judged = []
    for one in found:
        place = places.get(one.period, len(sequence))
        sequence[place : place + 1] = [one]
        so_far = sequence[: place + 1]
        found_alarm, signal = alarm_of(
            [(one.signal_rows, one.signals) for one in so_far], reference, settings.threshold
        )
        raised = RaisedAlarm(
            found_alarm.log_evidence,
            found_alarm.log_threshold,
            found_alarm.raised,
            so_far[found_alarm.start].period,
            signal,
        )
        verdict, why = _verdict(one, raised)
        judged.append(
            Period(
                version=__version__,
                calibration=used,
                measured=one,
                distance=one.distance,
                alarm=raised,
                verdict=verdict,
                why=why,
                supersedes=one.period in places,
            )
        )
    return judged


def alarm_of(
    signals: Sequence[tuple[int, Mapping[str, float]]], reference: Reference, threshold: float
) -> tuple[Alarm, str]:
    """Return the alarm after the last of some periods, and the signal that says most.

    Parameters
    ----------
    signals : sequence of pairs
        Of every period in order its rows, and its signals as `signals_of` gives them.
    reference : Reference
        What the calibration keeps.
    threshold : float
        `WatchSettings.threshold`.
    """
    # A signal of equal values has no rank to move.
    kept = [one for one in reference.signals if one.variance > 0]
    if not kept:
        return Alarm(0.0, float(np.log(threshold)), False, len(signals) - 1, 0), "no signal"
    rows = np.zeros((len(signals), len(kept)))
    means = np.zeros_like(rows)
    for place, (count, period) in enumerate(signals):
        for number, one in enumerate(kept):
            if (mean := period.get(one.name)) is not None:
                rows[place, number], means[place, number] = count, mean
    found = alarm(
        rows,
        means,
        np.array([float(one.rows) for one in kept]),
        np.array([one.variance for one in kept]),
        threshold,
        None if reference.joint is None else reference.joint.values.astype(np.float64),
    )
    most = kept[found.signal]
    together = f"the {reference.coordinates.of} together"
    return found, most.name if most.axis is None else together


def _verdict(one: Measured, raised: RaisedAlarm) -> tuple[Verdict, str]:
    """Return what to think of a period, and why."""
    known = one.measured or one.estimate
    shift = f"rows have changed since {raised.since}, most of all by {raised.signal}"
    if known is None and raised.raised:
        return "cannot tell", f"{shift}; too few rows to estimate the accuracy: label some"
    if known is None:
        return "cannot tell", f"{one.rows} rows are too few: watch longer periods, or label some"
    labelled, within = one.measured is not None, known.low <= one.confidence <= known.high
    interval = f"{known.low:.1%} to {known.high:.1%}"
    said = f"the mean confidence {one.confidence:.1%} is {'within' if within else 'outside'} "
    said += f"{interval}, which {known.of} allow" if labelled else f"the accuracy's {interval}"
    if labelled and not within:
        return "recalibrate", said
    if not raised.raised:
        alike = "its rows look like those that the calibration was made on"
        return "as before", f"{alike}; {said}" if labelled else alike
    if not within:
        return "recalibrate", f"{shift}; {said}"
    if known.contradicted:
        return "cannot tell", f"{shift}; estimates contradict each other: label some rows"
    if known.high - known.low >= _USELESS:
        return "cannot tell", f"{shift}; the accuracy may be {interval}: give more rows or labels"
    return "shifted but the calibration holds", f"{shift}; {said}"


def gate_results(watched: Watched, fail_on: Sequence[FailOn]) -> list[GateResult]:
    """Return what each gate found of each period."""
    return [_gate(one, gate) for one in watched.periods for gate in fail_on]


_KEPT: Mapping[FailOn, str] = {"shift": "no shift", "recalibrate": "no recalibration is due"}


def _gate(one: Period, gate: FailOn) -> GateResult:
    failed = one.alarm.raised if gate == "shift" else one.verdict == "recalibrate"
    outcome: Outcome = (
        "failed" if failed else "skipped" if one.verdict == "cannot tell" else "passed"
    )
    name = one.measured.period
    state = {"failed": "FAILED by", "passed": "passed by", "skipped": "skipped on"}[outcome]
    sentence = f'gate "{_KEPT[gate]}" {state} {name}: {one.verdict}: {one.why}'
    return GateResult(name, _KEPT[gate], sentence, outcome)
