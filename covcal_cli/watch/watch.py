"""``covcal watch``: judge whether a calibration is still right on new rows.

Each period is measured without labels, and compared with the reference data of the calibration. The
verdict says whether mean confidence and accuracy differ by more than a tolerance. Separately, an
alarm says whether the rows changed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from covcal_cli.errors import (
    CovcalError,
    OutputExistsError,
    UnusedOptionError,
    in_points,
    percent,
    printable,
)
from covcal_cli.estimators.metrics import Wanted, read_costs
from covcal_cli.files import as_word, leaves_folder_of
from covcal_cli.forecast import split_names
from covcal_cli.formats.calibration import Calibration, read_calibration
from covcal_cli.watch.calendar import missing_between, rows_of
from covcal_cli.watch.history import (
    History,
    acknowledgement,
    append,
    judged,
    periods_in_time,
    read_history,
)
from covcal_cli.watch.labels import read_late_labels
from covcal_cli.watch.measurement import (
    Measurement,
    Source,
    Standard,
    joined,
    measurements,
    standard_of,
    with_written_reference,
)
from covcal_cli.watch.period import Acknowledgement, Measured, Period, Watched, WatchSettings
from covcal_cli.watch.promise import error_proved_by, watched_decision
from covcal_cli.watch.reference import Reference, identity_of

DEFAULTS = WatchSettings()


def watch(
    files: Sequence[Path],
    document: Path,
    settings: WatchSettings = DEFAULTS,
    *,
    history: Path | None = None,
    networks: Path | None = None,
    labels: Path | None = None,
    decide: Path | None = None,
    costs: Path | None = None,
    join: bool = False,
    force: bool = False,
    wrote: Callable[[Path], None] = lambda _: None,
) -> Watched:
    """Judge the periods of files, and append them to a history.

    - `files`: features or adapted files with a target. A file is one period, unless `settings.by`
      or `settings.every` divides it. ``NAME=FILE`` gives a period a name (default: the name of the
      file). If no files are given, `labels` are for the periods of the history.
    - `document`: the calibration.
    - `settings`: the length of periods, the tolerance and other settings.
    - `history`: a file of JSON lines with earlier periods. New periods are appended.
    - `networks`: the adapted file with the networks, if this file was moved.
    - `labels`: a CSV with the columns id and label, for labels that arrived later.
    - `decide`: a decide.json that was made with this calibration, to test its promise.
    - `costs`: a costs.json of `covcal decide`, for the mean cost of a row if all rows are accepted.
    - `join`: add rows to a period of the history. `force`: replace the rows of a period.
    - `wrote`: a function that is called with the path of new reference data.

    Raises `OutputExistsError` if the history has a period of the same name with other rows. Raises
    `UnusedOptionError` if `networks` are given and the calibration does not need them. Raises
    `CovcalError` if a file belongs to another classifier, or two periods have the same name.
    """
    calibration = read_calibration(document)
    if networks is not None and not calibration.scaling.reads_aligned:
        raise UnusedOptionError("--networks", "the calibration needs no networks")
    paths, names = split_names(files)
    standard = standard_of(calibration, document, settings, networks, paths)
    if costs is not None:
        of_pairs, _ = read_costs(costs, calibration.classes, needs_review=False)
        standard = replace(standard, costs=of_pairs)
    if decide is not None:
        standard = replace(standard, decision=watched_decision(decide, document))
    earlier = History(Path("watch.jsonl")) if history is None else read_history(history)
    judged_before = {
        period.measured.period: period.measured for period in earlier.of(standard.sha256)
    }
    late = None if labels is None else read_late_labels(labels)
    warnings: list[str] = []
    sources = [
        Source(path, name or path.stem, settings.by, settings.every, settings.target_labels)
        for path, name in zip(paths, names, strict=True)
    ]
    if late is not None and not sources:
        sources, warnings = _sources_of(judged_before.values(), earlier.path)
    by_source = [list(measurements(source, standard, judged_before, late)) for source in sources]
    entries_now = [entry for entries in by_source for entry in entries]
    if late is not None:
        if warnings and not late.joined:
            raise CovcalError(warnings[0])
        late.require_any()
        warnings += late.notes
    if not files:
        entries_now = [entry for entry in entries_now if entry.state == "same"]

    reported, notes, now = extended(
        entries_now, earlier, standard, on_disk=history is not None, join=join, force=force
    )
    # Write the reference data last, when no input can cause an error any more.
    standard = with_written_reference(standard, wrote)
    empty = [source.path for source, entries in zip(sources, by_source, strict=True) if not entries]
    notes += [f"{path} has no rows, so it has no period" for path in empty]
    of_decision = dict.fromkeys(entry.entry.file for entry in entries_now if entry.is_of_decision)
    notes += [
        f"{decide} was made with rows of {path}, so labels of these rows cannot check the promise "
        "independently: give labels for rows of other files"
        for path in of_decision
    ]
    has_labels = late is not None or settings.target_labels
    if decide is None and has_labels and any(period.promise is not None for period in reported):
        notes.append(
            "these labels are not yet used to check the promise of the decision: run covcal watch "
            "with --decide on the files of these rows"
        )
    sequence = periods_in_time(now, standard.sha256)
    if history is not None and sequence and sequence[-1].alarm.raised:
        after = f", or after {settings.stable} periods without another change"
        after *= bool(settings.stable)
        notes.append(
            f"the alarm ends when enough new rows look like the rows before the change{after}. To "
            f"end it now, run covcal watch --history {as_word(history)} --acknowledge REASON"
        )
    return Watched(
        periods=tuple(reported),
        classes=calibration.classes,
        every=settings.every,
        false_alarms=settings.false_alarms,
        tolerance=settings.tolerance,
        earlier=len(judged_before),
        notes=(
            *standard.notes,
            *notes,
            *_gaps([period.measured.period for period in sequence], reported),
            *_notes(calibration, standard.reference, [entry.entry for entry in entries_now]),
            *_unused_labels(entries_now),
        ),
        warnings=(
            *earlier.damaged,
            *warnings,
            *selected(entries_now),
            *repeated(entries_now, judged_before),
            *_warnings(reported),
            *_rare(reported, calibration.classes, settings.metrics),
        ),
        segments=tuple(part for period in reported for part in period.measured.segments),
    )


def _unused_labels(entries: Iterable[Measurement]) -> list[str]:
    counts = {entry.entry.file: entry.n_unused_labels for entry in entries if entry.state != "same"}
    return [
        f"{path} has {count:,} labelled target rows: to use these labels, add --target-labels"
        for path, count in counts.items()
        if count
    ]


def extended(
    measured: Sequence[Measurement],
    earlier: History,
    standard: Standard,
    *,
    on_disk: bool,
    join: bool,
    force: bool,
) -> tuple[list[Period], list[str], History]:
    """Judge measured periods, and return the reported periods, notes and the new history.

    If `on_disk` is true, the periods are appended to the file of the `earlier` history.
    """
    lines: list[Period] = []
    notes: list[str] = []
    histories: list[History] = []

    def added(so_far: History) -> list[Period]:
        fresh, notes_on_fresh = _fresh(measured, so_far, standard.sha256, join=join, force=force)
        lines.extend(judged(fresh, so_far, standard))
        notes.extend(notes_on_fresh)
        periods = {period.key: period for period in (*so_far.periods, *lines)}
        histories.append(replace(so_far, periods=tuple(periods.values())))
        return lines

    if on_disk:
        append(earlier, added)
    else:
        added(earlier)
    (now,) = histories
    reported, is_new = _shown(measured, lines, periods_in_time(now, standard.sha256))
    if measured and not is_new:
        notes.append("no new period, because the history already has all given periods")
    return reported, notes, now


def _sources_of(periods: Iterable[Measured], history: Path) -> tuple[list[Source], list[str]]:
    """Return the files of earlier periods, and a warning for each file that is not opened.

    For safety, a file outside the history's folder must be named in the command.
    """
    files: dict[Source, None] = {}
    for entry in periods:
        is_one_period = entry.by is None and rows_of(entry.every) is None
        name = entry.period if is_one_period else ""
        files[Source(entry.file, name, entry.by, entry.every)] = None
    sources, warnings = [], []
    for source in files:
        if leaves_folder_of(source.path, history):
            warnings.append(
                f"for safety, covcal does not open {source.path}, because this file is outside the "
                f"folder of {history}: to label its rows, give the file to covcal watch too"
            )
        elif not source.path.is_file():
            warnings.append(
                f"{source.path} does not exist, so its rows get no labels: put the file back"
            )
        else:
            sources.append(source)
    return sources, warnings


def _fresh(
    measured: Sequence[Measurement], history: History, sha256: str, *, join: bool, force: bool
) -> tuple[dict[str, Measured], list[str]]:
    recorded = {period.measured.period: period.measured for period in history.of(sha256)}
    fresh: dict[str, Measured] = {}
    notes = []
    for measurement in measured:
        entry, name = measurement.entry, measurement.entry.period
        before = fresh.get(name) or recorded.get(name)
        if before is None:
            if not force:
                _require_own_rows(entry, {**recorded, **fresh})
            fresh[name] = entry
        elif set(entry.rows_sha256) <= set(before.rows_sha256):
            if entry.labels is not None and entry.labels != before.labels:
                before = fresh[name] = replace(before, labels=entry.labels)
            if entry.accepted is not None and entry.accepted != before.accepted:
                before = fresh[name] = replace(before, accepted=entry.accepted)
            again = replace(before, metrics=entry.metrics, segments=entry.segments)
            if entry.rows_sha256 == before.rows_sha256 and again != before:
                fresh[name] = again
        elif not before.rows:
            fresh[name] = entry
        elif measurement.state == "grown" and name not in fresh:
            notes.append(f"{name} has grown from {before.rows} to {entry.rows} rows")
            fresh[name] = entry
        elif join:
            if max(entry.shared(before)):
                raise CovcalError(
                    f"{entry.file} has rows that the period {name} already has, so --join would "
                    "count these rows twice: to replace all rows of the period, pass --force"
                )
            fresh[name] = joined(before, entry)
        elif name in fresh:
            raise CovcalError(
                f"two periods are called {name}: pass --join if both files belong to this "
                "period, or give one period another name: NAME=FILE"
            )
        elif force:
            fresh[name] = entry
        else:
            remedy = f"If {entry.file} holds more rows of this period, pass --join. "
            if (shared := before.shared(entry)[0]) > 0:
                remedy = f"About {percent(shared, 0)} of the old rows are in {entry.file} again. "
            raise OutputExistsError(
                f"{history.path} has other rows for the period {name} ({before.rows} rows, now "
                f"{entry.rows} rows). {remedy}"
                "To replace the old rows, pass --force. Or give the new period another name: "
                "NAME=FILE"
            )
    return fresh, notes


def _shown(
    measured: Sequence[Measurement], lines: Sequence[Period], sequence: Sequence[Period]
) -> tuple[list[Period], bool]:
    asked = {entry.entry.period for entry in measured}
    reported = [line for line in lines if line.measured.period in asked]
    if reported:
        return reported, True
    return [period for period in sequence if period.measured.period in asked][-1:], False


def _require_own_rows(entry: Measured, others: Mapping[str, Measured]) -> None:
    for name, other in others.items():
        if entry.has_rows_of(other):
            raise CovcalError(
                f"{entry.file} has the same rows as the period {name}, so these rows would count "
                f"twice: pass the file as {name}={entry.file}"
            )


def _gaps(names: Sequence[str], reported: Sequence[Period]) -> list[str]:
    asked = {period.measured.period for period in reported}
    missing = [
        name
        for before, after in pairwise(names)
        if after in asked
        for name in missing_between(before, after)
    ]
    if not missing:
        return []
    named = missing[0] if len(missing) == 1 else f"{missing[0]} to {missing[-1]}"
    count = "1 period has" if len(missing) == 1 else f"{len(missing)} periods have"
    return [f"{count} no rows ({named})"]


def acknowledge(document: Path, history: Path, reason: str) -> str:
    """Accept the changed rows of the last period, which ends the alarm. Describe the change.

    Raises `CovcalError` if there is no alarm, or no reason is given.
    """
    calibration = read_calibration(document)
    if not reason.strip():
        raise CovcalError("an acknowledgement needs a reason, such as 'new camera in store 4'")
    changes: list[str] = []

    def lines(so_far: History) -> list[Acknowledgement]:
        accepted = acknowledgement(so_far, identity_of(calibration), reason)
        if accepted is None:
            raise CovcalError(
                f"{history}: there is no alarm to acknowledge, because the rows of the last "
                f"period of {document.name} have not changed"
            )
        changes.append(accepted[1].change)
        return [accepted[0]]

    if not history.is_file():
        raise CovcalError(
            f"{history} does not exist: give the --history that you pass to covcal watch"
        )
    append(read_history(history), lines)
    return changes[0]


def selected(measurements: Sequence[Measurement]) -> list[str]:
    """Return warnings about periods whose labelled rows are not a random sample."""
    of = [measurement for measurement in measurements if measurement.selection]
    if not of:
        return []
    names = [measurement.entry.period for measurement in of]
    more = f" and {len(names) - 1} more periods" if len(names) > 1 else ""
    return [
        f"{names[0]}{more}: the labelled rows are not a random sample of the period, because "
        f"{of[0].selection}: draw rows with covcal pick, and label these rows"
    ]


def repeated(measurements: Sequence[Measurement], recorded: Mapping[str, Measured]) -> list[str]:
    """Return warnings about new periods that have rows in common with other periods."""
    owners: dict[int, Measured] = {}
    repeats = []
    entries = [measurement.entry for measurement in measurements if measurement.state == "new"]
    for entry in (*recorded.values(), *entries):
        hashes = () if entry.row_sample is None else entry.row_sample.smallest
        if entry.period not in recorded:
            others = {owner.period: owner for number in hashes if (owner := owners.get(number))}
            repeats += [
                (entry, other)
                for name, other in others.items()
                if name != entry.period and max(entry.shared(other))
            ]
        owners |= dict.fromkeys(hashes, entry)
    if not repeats:
        return []
    entry, other = repeats[0]
    more = f", and so on for {len(repeats) - 1} more periods" if len(repeats) > 1 else ""
    remedy = ""
    if entry.rows > other.rows:
        named = as_word(f"{other.period}={entry.file}")
        remedy = f". To replace {other.period}, pass {named} --force"
    return [
        f"about {percent(entry.shared(other)[0], 0)} of the rows of {entry.period} are also in "
        f"{other.period}{more}. These rows and their labels count twice: give each row to one "
        f"period{remedy}"
    ]


def _warnings(periods: Sequence[Period]) -> list[str]:
    unknown = [
        period for period in periods if period.verdict == "not known" and period.measured.rows
    ]
    if not unknown:
        return []
    last = unknown[-1]
    names = [period.measured.period for period in (unknown[0], unknown[-1])]
    in_periods = (
        f"on {names[0]}"
        if len(unknown) == 1
        else f"in {len(unknown)} of {len(periods)} periods ({names[0]} to {names[1]})"
    )
    return [f"covcal does not know whether the confidence is right {in_periods}: {_remedy(last)}"]


def _remedy(period: Period) -> str:
    """Return which labels give a verdict on a period whose verdict is "not known"."""
    entry, tolerance, needed = period.measured, period.tolerance, period.labels_needed
    unlabelled = entry.rows - (entry.labels.rows if entry.labels else 0)
    limit = in_points(f"{100 * tolerance:g}")
    if period.by_labels is None:
        count = min(50, unlabelled)
        remedy = f"label some rows: covcal pick {as_word(entry.file)} -n {count}"
        least = error_proved_by(count, entry.confidence, tolerance)
        if least is not None:
            error = f"{100 * least:.0f} points"
            remedy += f". {count} labels are enough to prove an over-confidence of {error}"
        if needed is not None:
            remedy += (
                f". If the confidence is right, about {needed:,} labels in all periods together "
                "are enough proof"
            )
        return remedy
    if needed is None:
        return (
            f"the error of the confidence on the labelled rows is close to {limit}, so over 10,000 "
            "more labels are needed: choose another --tolerance"
        )
    count = min(needed, unlabelled)
    if not count:
        return (
            f"all rows already have labels, but about {needed:,} more labels are needed: watch "
            "longer periods, or raise --tolerance"
        )
    later = "" if count == needed else " of this period and later periods"
    pick = f"covcal pick {as_word(entry.file)} -n {count} -o more.csv"
    return f"label about {needed:,} more rows{later}: {pick}"


def _rare(
    periods: Sequence[Period], classes: Sequence[str], metrics: Sequence[Wanted]
) -> Iterator[str]:
    last = next((period for period in reversed(periods) if period.measured.rows), None)
    if last is None or len(classes) != 2 or metrics:
        return
    rarest = int(np.argmin(last.measured.predicted))
    share = last.measured.predicted[rarest]
    if last.verdict == "holds" and share < last.tolerance:
        name, tolerance = printable(classes[rarest]), in_points(f"{100 * last.tolerance:g}")
        yield (
            f"class {name} is predicted for {percent(share, 1)} of the rows, which are too few to "
            f"change the verdict (tolerance {tolerance}): watch this class with --metrics "
            f"{as_word(f'precision:{name},recall:{name}')}"
        )


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
            "the reference data come from an earlier calibration, because the rows of the "
            "present calibration raised the alarm. If these rows are normal, delete the "
            "calibration's file that ends in .reference.json"
        )
    if any(entry.auc_source is None and entry.rows for entry in measurements):
        notes.append(
            "the periods have no features, so they are not compared with source and target of "
            f"{calibration.inputs[0].path.name}: extract the periods with features"
        )
    return tuple(notes)
