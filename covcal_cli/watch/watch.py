"""``covcal watch``: tell whether an old calibration still fits new rows.

Each period is measured without labels, compared with the reference data of the calibration, and
given a verdict: whether the confidence is off by more than a tolerance. Apart from this, an alarm
tells whether the rows changed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from covcal_cli import __version__
from covcal_cli.errors import CovcalError, UnusedOptionError
from covcal_cli.forecast.forecaster import split_names
from covcal_cli.formats.calibration import Calibration, read_calibration
from covcal_cli.watch.history import History, append, read_history
from covcal_cli.watch.labels import pooled
from covcal_cli.watch.measurement import Standard, measured, standard_of
from covcal_cli.watch.period import (
    EVERY,
    PER_YEAR,
    Every,
    Measured,
    Period,
    Watched,
    WatchedCalibration,
)
from covcal_cli.watch.reference import Reference
from covcal_cli.watch.verdict import alarm_after, verdict_on


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """The settings of ``covcal watch``."""

    by: str | None = None  # a column of dates
    every: Every = "week"
    false_alarms: float = 0.05  # the most false alarms per year
    tolerance: float = 0.05  # confidence that is off by more is "off"
    allow_other_preprocessing: bool = False

    def __post_init__(self) -> None:
        if self.every not in EVERY:
            raise CovcalError(f"there is no period {self.every!r}: use {', '.join(EVERY)}")
        if not 0 < self.false_alarms <= 1:
            raise CovcalError(
                f"false_alarms must be above 0 and at most 1 per year, not {self.false_alarms}"
            )
        if not 0 < self.tolerance < 1:
            raise CovcalError(f"tolerance must be above 0 and below 1, not {self.tolerance}")

    @property
    def threshold(self) -> float:
        """The evidence at which the alarm is raised, c in `alarm`."""
        return PER_YEAR[self.every] / self.false_alarms


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
        )
    _require_different(measurements)

    def judged(so_far: History) -> list[Period]:
        so_far.require_new([(entry.period, used.sha256) for entry in measurements], force=force)
        return _judged(measurements, so_far, used, standard, settings)

    earlier = before or History(Path("watch.jsonl"))
    periods = judged(earlier) if history is None else append(earlier, judged)
    return Watched(
        periods=tuple(periods),
        classes=calibration.classes,
        every=settings.every,
        false_alarms=settings.false_alarms,
        tolerance=settings.tolerance,
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
    unknown = [period for period in periods if period.verdict == "not known"]
    if not unknown:
        return []
    remedy = "label some rows: covcal pick FILE -n 50"
    names = [period.measured.period for period in (unknown[0], unknown[-1])]
    which = (
        f"on {names[0]}"
        if len(unknown) == 1
        else f"on {len(unknown)} of {len(periods)} periods ({names[0]} to {names[1]})"
    )
    return [f"whether the confidence is right is not known {which}: {remedy}"]


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
    standard: Standard,
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
        alarm = alarm_after(
            so_far, standard.reference, standard.calibration.classes, settings.threshold
        )
        # Labels from before a change of the rows tell nothing of the rows after it.
        names = [known.period for known in so_far]
        pool = pooled(so_far, names.index(alarm.since) if alarm.raised else 0)
        verdict, gap, why = verdict_on(entry, pool, settings.tolerance)
        periods.append(
            Period(
                version=__version__,
                calibration=used,
                measured=entry,
                by_labels=None if pool is None else pool.accuracy(entry.confidence),
                gap=gap,
                tolerance=settings.tolerance,
                alarm=alarm,
                verdict=verdict,
                why=why,
                supersedes=entry.period in places,
            )
        )
    return periods
