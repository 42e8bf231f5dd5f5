"""The history of a watch: a file of JSON lines that only grows.

A run appends its lines in one write, under a lock, and waits until they are on the disk: a process
that is killed leaves the lines before it as they were. A line that cannot be read, such as the
beginning of one, is passed over and named; what is appended after it begins on a line of its own.
A file that holds lines, but no period, is another file, and stays as it is.
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from covcal_cli.errors import CovcalError, OutputExistsError
from covcal_cli.records import document_of, line_text, parsed_json
from covcal_cli.watch.period import Period

if sys.platform != "win32":
    import fcntl


@dataclass(frozen=True)
class History:
    """What a history holds: every period once, by its latest line, in the order of the first."""

    path: Path
    periods: tuple[Period, ...] = ()
    damaged: tuple[str, ...] = ()  # sentences, a line each
    size: int = 0  # bytes of the whole lines that were read
    lines: int = 0  # how many those are

    def of(self, calibration_sha256: str) -> list[Period]:
        """Return the periods that were held against one calibration."""
        return [one for one in self.periods if one.calibration.sha256 == calibration_sha256]

    def require_new(self, keys: Sequence[tuple[str, str]], *, force: bool) -> None:
        """Refuse periods that are there already, unless they are to be superseded."""
        there = {one.key for one in self.periods}
        twice = next((period for period, sha256 in keys if (period, sha256) in there), None)
        if twice is not None and not force:
            raise OutputExistsError(
                f"{self.path} has the period {twice} already: pass --force to append a line that "
                "supersedes it, or name the period otherwise, as NAME=FILE"
            )


def read_history(path: Path) -> History:
    """Read a history; one that does not exist is empty.

    Raises
    ------
    CovcalError
        If the file cannot be read, or is none of a watch.
    """
    try:
        with path.open("rb") as handle:
            return _grown(History(path), handle.read())
    except FileNotFoundError:
        return History(path)
    except OSError as error:
        raise _unwritable(path, error) from error


def append(known: History, lines: Callable[[History], Sequence[Period]]) -> list[Period]:
    """Append what `lines` makes of the history as it is, all of it or, if it raises, nothing.

    Of the file only what came after what is `known` is read.

    Raises
    ------
    CovcalError
        If the file cannot be read or written, or is none of a watch.
    """
    path = known.path
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o666)
    except OSError as error:
        raise _unwritable(path, error) from error
    with os.fdopen(descriptor, "r+b", buffering=0) as handle:
        _lock(descriptor)
        size = os.fstat(descriptor).st_size
        if size < known.size:  # it was written anew
            known = History(path)
        handle.seek(known.size)
        content = handle.readall()
        found = list(lines(_grown(known, content)))
        text = "".join(f"{line_text(one, path)}\n" for one in found).encode("ascii")
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
    return found


def _lock(descriptor: int) -> None:
    """Wait for another process that appends; some network file systems have no locks."""
    if sys.platform != "win32":
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)


def _grown(known: History, content: bytes) -> History:
    """Return a history with what follows it in the file."""
    path, found, damaged = known.path, {one.key: one for one in known.periods}, [*known.damaged]
    *whole, rest = content.split(b"\n")
    for number, line in enumerate((*whole, rest), start=known.lines + 1):
        if not line.strip():
            continue
        try:
            one = document_of(Period, parsed_json(line.decode("utf-8"), names_paths=True), path)
        except (ValueError, OverflowError) as error:
            damaged.append(f"{path}: line {number} is damaged and passed over ({error})")
            continue
        found[one.key] = one  # which keeps the place of an earlier one
    if damaged and not found:  # as where --history names the calibration
        raise CovcalError(
            f"{path} is no history of a watch, as no line of it holds a period: pass another "
            "--history"
        )
    size = known.size + len(content) - len(rest)
    lines = known.lines + len(whole)
    return History(path, tuple(found.values()), tuple(dict.fromkeys(damaged)), size, lines)


def _unwritable(path: Path, error: OSError) -> CovcalError:
    reason = (error.strerror or str(error)).lower()
    return CovcalError(f"{path} cannot be read and written ({reason}): pass another --history")
