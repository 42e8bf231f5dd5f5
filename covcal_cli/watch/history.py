"""Read and write the history of ``covcal watch``, and judge periods in the order of time.

The history is a file of JSON lines. Lines are only appended, never changed. Each command locks the
file, and appends all new lines at once. A damaged line is ignored with a warning. A file without
any period is an error.

If a period arrives late, later periods are judged again.

At first, the alarm compares new rows with the calibration's rows. An alarm ends if enough later
rows look like the rows before the change. An alarm also ends if the user accepts the changed rows
(``--acknowledge``), or after some periods without another change. A new "segment" of the history
then begins, and the alarm compares new rows with the first periods of the segment. The verdict
always compares a period with the calibration.
"""

import codecs
import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from covcal_cli import __version__
from covcal_cli.errors import CovcalError
from covcal_cli.files import read_plain
from covcal_cli.records import document_of, line_text, parsed_json
from covcal_cli.watch.calendar import place_in_time
from covcal_cli.watch.labels import labels_for_verdict, pooled
from covcal_cli.watch.measurement import Standard
from covcal_cli.watch.period import Acknowledgement, Measured, Period, RaisedAlarm, Segment
from covcal_cli.watch.promise import promise_after
from covcal_cli.watch.verdict import alarm_after, verdict_on

if sys.platform != "win32":
    import fcntl

_KINDS: tuple[type[Period] | type[Acknowledgement], ...] = (Period, Acknowledgement)
# Every line of a history begins with one of these schemas.
_STARTS = tuple(f'{{"schema": "{kind.schema}"'.encode() for kind in _KINDS)
Line = Period | Acknowledgement
_ANSWERS = attrgetter("alarm", "gap", "segment", "promise")
_PADDING = b" \t\r\0"  # after a power cut, a file may end in NUL characters


@dataclass(frozen=True)
class History:
    """The content of a history. If a period has several lines, the last line counts."""

    path: Path
    periods: tuple[Period, ...] = ()
    acknowledgements: tuple[Acknowledgement, ...] = ()
    damaged: tuple[str, ...] = ()  # A sentence for each damaged line.
    size: int = 0  # Number of bytes of the complete lines.
    lines: int = 0  # Number of complete lines.

    def of(self, calibration_sha256: str) -> list[Period]:
        """Return the periods that were compared with this calibration."""
        return [
            period for period in self.periods if period.calibration.sha256 == calibration_sha256
        ]

    def change_of(self, period: Period) -> str:
        """Describe what changed in a period, and why the user accepted the change."""
        key = period.calibration.sha256, period.measured.period
        reasons = [
            acceptance.reason
            for acceptance in self.acknowledgements
            if (acceptance.calibration, acceptance.after) == key
        ]
        return f"{period.change} (accepted: {reasons[-1]})" if reasons else period.change


def read_history(path: Path) -> History:
    """Read a history. If the file does not exist, the history is empty.

    Raises `CovcalError` if the file cannot be read, or is not a history.
    """
    try:
        return _extended(History(path), read_plain(path))
    except FileNotFoundError:
        return History(path)
    except ValueError as error:  # reading a pipe or device may never end
        raise _not_plain(path) from error
    except OSError as error:
        raise _unwritable(path, error) from error


def append(earlier: History, lines: Callable[[History], Sequence[Line]]) -> None:
    """Lock and read a history, and append new lines to its file.

    `earlier` is the history that was read before. The function `lines` returns the new lines.

    Raises `CovcalError` if the file cannot be read or written, or is not a history.
    """
    path = earlier.path
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
    flags |= getattr(os, "O_NONBLOCK", 0)  # do not wait for the other end of a pipe
    try:
        descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o666)
    except OSError as error:
        raise _unwritable(path, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_plain(path)
    with os.fdopen(descriptor, "r+b", buffering=0) as handle:
        if sys.platform != "win32":
            with suppress(OSError):  # some file systems have no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        if size < earlier.size:  # another process has replaced the file
            earlier = History(path)
        handle.seek(earlier.size)
        content = handle.readall()
        added = lines(_extended(earlier, content))
        text = "".join(f"{line_text(line, path)}\n" for line in added).encode("ascii")
        if content and not content.endswith(b"\n"):
            text = b"\n" + text
        try:
            written = handle.write(text)
            os.fsync(descriptor)
        except OSError as error:
            os.ftruncate(descriptor, size)
            raise _unwritable(path, error) from error
        if written != len(text):  # the disk is full
            os.ftruncate(descriptor, size)
            raise CovcalError(f"no space left to write {path}: free some space")


def _extended(earlier: History, content: bytes) -> History:
    path = earlier.path
    periods, damaged = {period.key: period for period in earlier.periods}, [*earlier.damaged]
    acknowledgements = list(earlier.acknowledgements)
    is_history = bool(periods or damaged or acknowledgements)
    if earlier.lines == 0 and content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise CovcalError(f"{path} is UTF-16 text: save it as UTF-8")
    *whole, rest = content.split(b"\n")
    for number, line in enumerate((*whole, rest), start=earlier.lines + 1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)  # editors may add a byte order mark
        text = line.strip(_PADDING)
        if not text and b"\0" not in line:
            continue
        is_cut_off = number == earlier.lines + len(whole) + 1
        starts = [text.startswith(start) for start in _STARTS]
        cut_off = is_cut_off and any(start.startswith(text) for start in _STARTS)
        is_history |= any(starts) or cut_off
        try:
            content_of_line = parsed_json(line.decode("utf-8"), names_paths=True)
            if starts[1]:
                acknowledgements.append(document_of(Acknowledgement, content_of_line, path))
                continue
            period = document_of(Period, content_of_line, path)
        except (ValueError, OverflowError) as error:
            reason = "it was cut off" if is_cut_off else error
            damaged.append(f"{path}: line {number} is damaged and ignored ({reason})")
            continue
        periods[period.key] = period
    if damaged and not is_history:
        raise CovcalError(
            f"{path} is not a history of covcal watch, because no line describes a period: "
            "pass another --history"
        )
    size = earlier.size + len(content) - len(rest)
    lines = earlier.lines + len(whole)
    return History(
        path,
        tuple(periods.values()),
        tuple(acknowledgements),
        tuple(dict.fromkeys(damaged)),
        size,
        lines,
    )


def _not_plain(path: Path) -> CovcalError:
    return CovcalError(f"{path} is not a plain file (a pipe or device?): pass another --history")


def _unwritable(path: Path, error: OSError) -> CovcalError:
    reason = (error.strerror or str(error)).lower()
    return CovcalError(f"{path} cannot be read and written ({reason}): pass another --history")


def in_time(names: Sequence[str]) -> list[int]:
    """Return the order of names by time; the given order if the names have different forms."""
    keys = [place_in_time(name) for name in names]
    if any(key is None for key in keys) or len({key[0] for key in keys if key}) > 1:
        return list(range(len(names)))
    return sorted(range(len(names)), key=lambda place: (keys[place] or ("", 0))[1])


def periods_in_time(history: History, calibration_sha256: str) -> list[Period]:
    """Return the periods that a calibration was compared with, in the order of time."""
    periods = history.of(calibration_sha256)
    return [periods[place] for place in in_time([period.measured.period for period in periods])]


def judged(fresh: Mapping[str, Measured], history: History, standard: Standard) -> list[Period]:
    """Return lines for the periods in `fresh`, and for periods with a changed verdict.

    `fresh` maps names to periods that are new, replaced or have new rows.
    """
    recorded = {period.measured.period: period for period in history.of(standard.sha256)}
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
        if acceptance.calibration == standard.sha256
    ]
    for place in range(first, len(sequence)):
        entry = sequence[place]
        for acceptance in acknowledged:
            if places.get(acceptance.after) == place - 1 and acceptance.since in places:
                segment = Segment(acceptance.since, f"accepted: {acceptance.reason}")
        line = _judged(sequence[: place + 1], segment, places, standard)
        if line.alarm.raised:
            is_new = before is None or not before.alarm.raised or before.segment != line.segment
            first_since = line.alarm.since if is_new or before is None else before.alarm.began
            line = replace(line, alarm=replace(line.alarm, first_since=first_since))
        before, segment = line, line.segment
        old = recorded.get(entry.period)
        line = replace(line, supersedes=old is not None)
        if entry.period in fresh or old is None or _ANSWERS(line) != _ANSWERS(old):
            lines.append(line)
    return lines


def _judged(
    so_far: Sequence[Measured],
    segment: Segment | None,
    places: Mapping[str, int],
    standard: Standard,
) -> Period:
    entry, settings = so_far[-1], standard.settings

    def alarm_since(segment: Segment | None) -> RaisedAlarm:
        return alarm_after(
            so_far if segment is None else so_far[places[segment.since] :],
            standard.reference,
            standard.calibration.classes,
            settings.threshold,
            is_own_baseline=segment is not None,
        )

    alarm = alarm_since(segment)
    if alarm.raised and settings.stable and len(so_far) - places[alarm.since] >= settings.stable:
        count = len(so_far) - places[alarm.since]
        following = Segment(alarm.since, f"stable for {count} periods")
        again = alarm_since(following)
        if not again.raised:
            segment, alarm = following, again
    # Do not use labels of rows before the change.
    start = 0 if segment is None else places[segment.since]
    if alarm.raised:
        start = max(start, places[alarm.since])
    pool = pooled(so_far, settings.tolerance, start) if entry.rows else None
    verdict, gap, why = verdict_on(entry, pool, settings.tolerance)
    needed = None
    if verdict == "not known" and pool is not None:
        needed = pool.needed
    elif verdict == "not known":
        needed = labels_for_verdict(entry.confidence, settings.tolerance)
    return Period(
        version=__version__,
        calibration=standard.used,
        measured=entry,
        by_labels=None if pool is None else pool.accuracy(entry),
        gap=gap,
        tolerance=settings.tolerance,
        alarm=alarm,
        segment=segment,
        verdict=verdict,
        why=why,
        promise=promise_after(so_far, start),
        labels_needed=needed,
    )


def acknowledgement(
    history: History, calibration_sha256: str, reason: str
) -> tuple[Acknowledgement, Period] | None:
    """Return two values, an `Acknowledgement` and the last period; None without an alarm."""
    periods = periods_in_time(history, calibration_sha256)
    if not periods or not periods[-1].alarm.raised:
        return None
    last = periods[-1]
    return (
        Acknowledgement(
            version=__version__,
            calibration=calibration_sha256,
            since=last.alarm.since,
            after=last.measured.period,
            reason=reason,
        ),
        last,
    )
