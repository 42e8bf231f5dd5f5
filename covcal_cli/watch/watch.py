"""``covcal watch``: tell whether an old calibration still fits new rows.

Each period is measured without labels, compared with the reference data of the calibration, and
given a verdict. The alarm tells whether the rows have changed. With many rows it also finds changes
that do not matter, so the estimated accuracy tells whether the confidence is still right.
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
from covcal_cli.watch.history import History, append, read_history
from covcal_cli.watch.measurement import measured, standard_of
from covcal_cli.watch.period import (
    EVERY,
    PER_YEAR,
    Every,
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
    """The settings of ``covcal watch``."""

    by: str | None = None  # a column of dates
    every: Every = "week"
    false_alarms: float = 0.05  # the most false alarms per year
    allow_other_preprocessing: bool = False

    def __post_init__(self) -> None:
        if self.every not in EVERY:
            raise CovcalError(f"there is no period {self.every!r}: use {', '.join(EVERY)}")
        if not 0 < self.false_alarms <= 1:
            raise CovcalError(
                f"false_alarms must be above 0 and at most 1 per year, not {self.false_alarms}"
            )

    @property
    def threshold(self) -> float:
        """The evidence at which the alarm is raised, c in `alarm`."""
        return PER_YEAR[self.every] / self.false_alarms


_USELESS = 0.5  # width of an interval that is too wide for a verdict
DEFAULTS = WatchSettings()


def watch(
    files: Sequence[Path],
    document: Path,
    settings: WatchSettings = DEFAULTS,
    *,
    history: Path | None = None,
    networks: Path | None = None,
    force: bool = False,
    wrote: Callable[[Path], None] = lambda _: None,
) -> Watched:
    """Compare periods with the reference data of a calibration, and append them to a history.

    Parameters
    ----------
    files : sequence of Path
        Features or adapted files with a target. Each is one period, or several with
        `settings.by`. ``NAME=FILE`` names a period; otherwise its name is the file's.
    document : Path
        The calibration.
    settings : WatchSettings
        The length of periods and the rate of false alarms.
    history : Path, optional
        A file of JSON lines. The alarm also uses its periods, and new periods are appended.
    networks : Path, optional
        The adapted file with the networks of an fl method, if it was moved.
    force : bool
        Whether new lines may supersede periods that the history has already.
    wrote : callable
        Called with the path of the reference data if this watch writes them.

    Raises
    ------
    OutputExistsError
        If the history already has a period.
    CovcalError
        If a file does not fit the calibration, or two periods have one name.
    UnusedOptionError
        If `networks` are given and the calibration does not need them.
    """
    calibration = read_calibration(document)
    if networks is not None and not calibration.scaling.reads_aligned:
        raise UnusedOptionError("--networks", "the calibration does not need it")
    paths, names = split_names(files)
    standard = standard_of(
        calibration,
        document,
        networks,
        named=paths,
        allow_other_preprocessing=settings.allow_other_preprocessing,
        wrote=wrote,
    )
    used = WatchedCalibration(document, standard.sha256, calibration.method_used)
    before = None if history is None else read_history(history)
    if before is not None and settings.by is None:  # check before any work
        stems = [name or path.stem for path, name in zip(paths, names, strict=True)]
        before.require_new([(stem, used.sha256) for stem in stems], force=force)

    measurements: list[Measured] = []
    for path, name in zip(paths, names, strict=True):
        measurements += measured(
            path,
            name or path.stem,
            standard,
            by=settings.by,
            every=settings.every,
            false_alarms=1 / settings.threshold,
        )
    _require_different(measurements)

    def judged(so_far: History) -> list[Period]:
        so_far.require_new([(entry.period, used.sha256) for entry in measurements], force=force)
        return _judged(measurements, so_far, used, standard.reference, settings)

    earlier = before or History(Path("watch.jsonl"))
    periods = judged(earlier) if history is None else append(earlier, judged)
    return Watched(
        periods=tuple(periods),
        classes=calibration.classes,
        every=settings.every,
        false_alarms=settings.false_alarms,
        earlier=len(earlier.of(used.sha256)),
        notes=(*standard.notes, *_notes(calibration, standard.reference, measurements)),
        warnings=(*earlier.damaged, *_warnings(periods)),
    )


def _require_different(measurements: Sequence[Measured]) -> None:
    names = [entry.period for entry in measurements]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise CovcalError(
            f"two periods are called {twice}: give one of them another name, as NAME=FILE"
        )


def _warnings(periods: Sequence[Period]) -> list[str]:
    """Return one warning on the periods that cannot be judged."""
    unknown = [period for period in periods if period.verdict == "cannot tell"]
    if not unknown:
        return []
    names = [period.measured.period for period in (unknown[0], unknown[-1])]
    if len(unknown) == 1:
        return [f"{names[0]} cannot be judged: {unknown[0].why}"]
    return [
        f"{len(unknown)} of {len(periods)} periods cannot be judged ({names[0]} to {names[1]}; -o "
        f"has every reason). The last: {unknown[-1].why}"
    ]


def _notes(
    calibration: Calibration, reference: Reference, measurements: Sequence[Measured]
) -> tuple[str, ...]:
    notes = []
    drawn = [entry for entry in measurements if entry.read < entry.rows]
    if drawn:
        first = drawn[0]
        notes.append(f"{first.period}: a sample of {first.read} of {first.rows} rows is used")
    if reference.baseline == "source":
        notes.append(
            "the calibration has no target rows, so periods are compared with its source rows"
        )
    if reference.is_carried_over:
        notes.append(
            "the reference data come from an earlier calibration, because the rows of this one "
            "raised the alarm; if these rows are normal, delete the file .reference.json"
        )
    if any(entry.auc_source is None for entry in measurements):
        notes.append(
            "the domains are not compared, because the periods lack the features of "
            f"{calibration.inputs[0].path.name}: extract the periods with features"
        )
    return tuple(notes)


# Verdicts.


def _judged(
    measurements: Sequence[Measured],
    history: History,
    used: WatchedCalibration,
    reference: Reference,
    settings: WatchSettings,
) -> list[Period]:
    """Return the periods with their alarms, each after all periods before it."""
    earlier = history.of(used.sha256)
    sequence = [period.measured for period in earlier]
    places = {entry.period: place for place, entry in enumerate(sequence)}
    periods = []
    for entry in measurements:
        place = places.get(entry.period, len(sequence))
        sequence[place : place + 1] = [entry]
        so_far = sequence[: place + 1]
        found_alarm, signal = alarm_of(
            [(known.signal_rows, known.signals) for known in so_far], reference, settings.threshold
        )
        raised = RaisedAlarm(
            found_alarm.log_evidence,
            found_alarm.log_threshold,
            found_alarm.raised,
            so_far[found_alarm.start].period,
            signal,
        )
        verdict, why = verdict_on(entry, raised)
        periods.append(
            Period(
                version=__version__,
                calibration=used,
                measured=entry,
                distance=entry.distance,
                alarm=raised,
                verdict=verdict,
                why=why,
                supersedes=entry.period in places,
            )
        )
    return periods


def alarm_of(
    signals: Sequence[tuple[int, Mapping[str, float]]], reference: Reference, threshold: float
) -> tuple[Alarm, str]:
    """Return the alarm after the last period, and the signal with the strongest evidence.

    Parameters
    ----------
    signals : sequence of pairs
        The rows and the signals of every period in order, as `signals_of` gives them.
    reference : Reference
        The reference data of the calibration.
    threshold : float
        `WatchSettings.threshold`.
    """
    # A signal with equal values is left out, because its ranks cannot move.
    moving = [signal for signal in reference.signals if signal.variance > 0]
    if not moving:
        return Alarm(0.0, float(np.log(threshold)), False, len(signals) - 1, 0), "no signal"
    rows = np.zeros((len(signals), len(moving)))
    means = np.zeros_like(rows)
    for place, (count, period) in enumerate(signals):
        for number, signal in enumerate(moving):
            if (mean := period.get(signal.name)) is not None:
                rows[place, number], means[place, number] = count, mean
    found_alarm = alarm(
        rows,
        means,
        np.array([float(signal.rows) for signal in moving]),
        np.array([signal.variance for signal in moving]),
        threshold,
        None if reference.joint is None else reference.joint.values.astype(np.float64),
    )
    strongest = moving[found_alarm.signal]
    together = f"the {reference.coordinates.of} together"
    return found_alarm, strongest.name if strongest.axis is None else together


def verdict_on(entry: Measured, raised: RaisedAlarm) -> tuple[Verdict, str]:
    """Return the verdict on a period, and its reason."""
    best = entry.measured or entry.estimate
    shift = f"the rows have changed since {raised.since} (largest change: {raised.signal})"
    if best is None:
        few = f"{entry.rows} rows are too few: watch longer periods, or label some rows"
        return "cannot tell", f"{shift}; {few}" if raised.raised else few
    is_labelled, is_within = entry.measured is not None, best.low <= entry.confidence <= best.high
    interval = f"{best.low:.0%} to {best.high:.0%}"
    source = f"by {best.of}" if is_labelled else "estimated"
    numbers = f"confidence {entry.confidence:.0%}, accuracy {interval} {source}"
    if is_labelled and not is_within:
        return "recalibrate", numbers
    if not raised.raised:
        alike = "the rows look like those of the calibration"
        return "as before", f"{alike}; {numbers}" if is_labelled else alike
    if not is_within:
        return "recalibrate", f"{shift}; {numbers}"
    if best.contradicted:
        return "cannot tell", f"{shift}; the estimators disagree: label some rows with covcal pick"
    if best.high - best.low >= _USELESS:
        return "cannot tell", f"{shift}; accuracy {interval} is too wide: give more rows or labels"
    return "shifted but the calibration holds", f"{shift}; {numbers}"


def gate_results(watched: Watched, fail_on: Sequence[FailOn]) -> list[GateResult]:
    """Return the result of each gate on each period."""
    return [_gate(period, gate) for period in watched.periods for gate in fail_on]


_NAMES: Mapping[FailOn, str] = {"shift": "no shift", "recalibrate": "no recalibration is due"}


def _gate(period: Period, gate: FailOn) -> GateResult:
    failed = period.alarm.raised if gate == "shift" else period.verdict == "recalibrate"
    outcome: Outcome = (
        "failed" if failed else "skipped" if period.verdict == "cannot tell" else "passed"
    )
    name = period.measured.period
    state = {"failed": "FAILED by", "passed": "passed by", "skipped": "skipped on"}[outcome]
    sentence = f'gate "{_NAMES[gate]}" {state} {name}: {period.verdict}: {period.why}'
    return GateResult(name, _NAMES[gate], sentence, outcome)
