"""The history only grows: duplicates, damaged lines, two writers, full disks and kills."""

import json
import os
import random
import signal
import sys
import time
import warnings
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from covcal_cli.errors import CovcalError
from covcal_cli.records import line_text
from covcal_cli.watch.history import History, append, read_history
from covcal_cli.watch.period import Measured, Period, RaisedAlarm, WatchedCalibration

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def period(name: str, *, rows: int = 100, sha256: str = "a" * 64) -> Period:
    return Period(
        version="1",
        calibration=WatchedCalibration(Path("cal.json"), sha256, "temp"),
        measured=Measured(
            period=name,
            file=Path("week.h5"),
            by=None,
            every="week",
            rows_sha256=("b" * 64,),
            rows=rows,
            read=rows,
            confidence_before=0.9,
            confidence=0.8,
            predicted=(0.1,) * 10,
            estimate=None,
            labels=None,
            auc_target=0.5,
            auc_source=None,
            effective_rows=10.0,
            signals={f"class {number}": 0.01 for number in range(12)},
            variances={},
            signal_rows=rows,
        ),
        by_labels=None,
        gap=None,
        tolerance=0.05,
        alarm=RaisedAlarm(1.0, 6.9, False, name, "confidence"),
        segment=None,
        verdict="not known",
        why="nothing",
    )


def names(path: Path) -> list[str]:
    return [one.measured.period for one in read_history(path).periods]


def test_lines_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "watch.jsonl"
    assert read_history(path).periods == ()
    append(History(path), lambda _history: [period("w1"), period("w2")])
    append(History(path), lambda history: [period(f"w{len(history.periods) + 1}")])
    assert names(path) == ["w1", "w2", "w3"]
    assert len(path.read_bytes().splitlines()) == 3
    found = read_history(path).periods[0]
    assert line_text(found, path) == path.read_text().splitlines()[0]


def test_an_editor_may_add_a_byte_order_mark_but_not_save_utf_16(tmp_path: Path) -> None:
    """Lines are appended as UTF-8."""
    path = tmp_path / "watch.jsonl"
    append(History(path), lambda _history: [period("w1")])
    text = path.read_text()
    path.write_text(text, encoding="utf-8-sig")
    append(History(path), lambda _history: [period("w2")])
    assert names(path) == ["w1", "w2"]
    path.write_text(text, encoding="utf-16")
    with pytest.raises(CovcalError, match="is UTF-16 text: save it as UTF-8"):
        append(History(path), lambda _history: [period("w2")])
    assert path.read_text(encoding="utf-16") == text


def test_what_came_since_is_read_too(tmp_path: Path) -> None:
    """Another process appended, or wrote the file anew, while periods were measured."""
    path = tmp_path / "watch.jsonl"
    append(History(path), lambda _history: [period("w1"), period("w2")])
    known = read_history(path)
    append(History(path), lambda _history: [period("w3")])
    seen: list[list[str]] = []

    def none(history: History) -> list[Period]:
        seen.append([one.measured.period for one in history.periods])
        return []

    append(known, none)
    path.write_text(line_text(period("w9"), path) + "\n")
    append(known, none)
    assert seen == [["w1", "w2", "w3"], ["w9"]]


def test_a_later_line_supersedes_and_keeps_the_place(tmp_path: Path) -> None:
    path = tmp_path / "watch.jsonl"
    append(History(path), lambda _history: [period("w1"), period("w2")])
    append(History(path), lambda _history: [period("w1", rows=7)])
    found = read_history(path)
    assert [(one.measured.period, one.measured.rows) for one in found.periods] == [
        ("w1", 7),
        ("w2", 100),
    ]


DAMAGES = ('{"schema": "covcal.peri', "null", '{"schema": "x"}', "\x00", "é")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_line_is_named_and_survived(damage: str, tmp_path: Path) -> None:
    """The last one or one in the middle; what is appended begins on a line of its own."""
    path = tmp_path / "watch.jsonl"
    append(History(path), lambda _history: [period("w1")])
    with path.open("ab") as handle:
        handle.write(damage.encode("latin-1"))
    assert names(path) == ["w1"]
    append(History(path), lambda _history: [period("w2")])
    found = read_history(path)
    assert [one.measured.period for one in found.periods] == ["w1", "w2"]
    assert len(found.damaged) == 1
    assert "line 2 is damaged" in found.damaged[0]


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ('"confidence": 0.8', '"confidence": 7'),
        ('"class 1": 0.01', '"class 1": 1e9'),
        ('"signal_rows": 100', '"signal_rows": -5'),
        ('"signal_rows": 100', '"signal_rows": 101'),
        ('"log_evidence": 1.0', '"log_evidence": 1e308'),
        ('"log_evidence": 1.0', '"log_evidence": 99'),
        ('"raised": false', '"raised": true'),
        ('"log_threshold": 6.9', '"log_threshold": -1'),
        ('"effective_rows": 10.0', '"effective_rows": -1'),
        ('"gap": null', '"gap": {"value": 0.5, "low": 0.6, "high": 0.7}'),
        ('"tolerance": 0.05', '"tolerance": 5'),
        ('"estimate": null', '"estimate": {"accuracy": 0.5, "low": 0.6, "high": 0.5, "of": ""}'),
    ],
)
def test_what_no_period_can_measure_is_damage(written: str, instead: str, tmp_path: Path) -> None:
    path = tmp_path / "watch.jsonl"
    append(History(path), lambda _history: [period("w1"), period("w2")])
    text = path.read_text()
    assert written in text
    path.write_text(text.replace(written, instead, 1))
    (edited,) = read_history(path).damaged
    first, second = text.replace(written, instead, 1).splitlines()
    path.write_text(f"{line_text(json.loads(first), path)}\n{second}\n")  # with its digest
    (damaged,) = read_history(path).damaged
    assert "line 1 is damaged" in edited
    assert "content_sha256 does not match" in edited
    assert "line 1 is damaged" in damaged
    assert "content_sha256" not in damaged
    assert names(path) == ["w2"]


@pytest.mark.parametrize("length", [1, 10, 26, 400, -1])
@pytest.mark.parametrize("padding", ["", "\0", "\0" * 600])
def test_a_line_that_was_cut_off_is_unfinished_even_if_it_is_the_only_one(
    length: int, padding: str, tmp_path: Path
) -> None:
    """As a power cut leaves the first append; the next one goes on below it."""
    path = tmp_path / "watch.jsonl"
    line = line_text(period("w1"), path)
    path.write_text(line[:length] + padding)
    (damaged,) = read_history(path).damaged
    assert damaged == f"{path}: line 1 is damaged and ignored (it was cut off)"
    append(History(path), lambda _history: [period("w2")])
    append(read_history(path), lambda _history: [period("w3")])
    assert names(path) == ["w2", "w3"]
    assert len(read_history(path).damaged) == 1


def test_only_a_cut_line_that_ends_is_unfinished_too(tmp_path: Path) -> None:
    path = tmp_path / "watch.jsonl"
    path.write_text(line_text(period("w1"), path)[:400] + "\n")
    append(History(path), lambda _history: [period("w2")])
    assert names(path) == ["w2"]


@pytest.mark.parametrize("kind", ["pipe", "/dev/full", "/dev/zero", "/dev/null", "link"])
@pytest.mark.parametrize("how", ["read", "append"])
def test_a_pipe_or_device_is_refused_at_once(kind: str, how: str, tmp_path: Path) -> None:
    path = Path(kind) if kind.startswith("/") else tmp_path / "watch.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/dev/zero")
    with pytest.raises(CovcalError, match=r"is not a plain file .*: pass another --history"):
        read_history(path) if how == "read" else append(History(path), lambda _: [period("w")])


def test_what_raises_appends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "watch.jsonl"
    append(History(path), lambda _history: [period("w1")])
    before = path.read_bytes()

    def refused(_history: object) -> list[Period]:
        raise CovcalError("no")

    with pytest.raises(CovcalError):
        append(History(path), refused)
    assert path.read_bytes() == before


def test_a_full_disk_leaves_the_lines_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "watch.jsonl"
    append(History(path), lambda _history: [period("w1")])
    before = path.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CovcalError, match=r"watch\.jsonl cannot be read and written"):
        append(History(path), lambda _history: [period("w2")])
    assert path.read_bytes() == before


@pytest.mark.parametrize("path", [".", "missing/watch.jsonl"])
def test_what_is_no_file_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(CovcalError, match="pass another --history"):
        append(History(tmp_path / path), lambda _history: [period("w1")])


def test_another_file_is_not_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "cal.json"
    path.write_text('{\n "schema": "covcal.calibration/1"\n}\n')
    before = path.read_bytes()
    with pytest.raises(CovcalError, match="no line describes a period"):
        append(History(path), lambda _history: [period("w1")])
    assert path.read_bytes() == before


def append_one(path: Path, name: str) -> None:
    append(History(path), lambda _history: [period(name)])


def write_periods(path: Path, name: str, count: int, said: Connection) -> None:
    for number in range(count):
        append_one(path, f"{name}-{number}")
        said.send(number)


class Writer:
    """A process that appends periods, one after another, and says so after each."""

    def __init__(self, path: Path, name: str, count: int) -> None:
        forking = get_context("fork")
        self._said, saying = forking.Pipe(duplex=False)
        arguments = (path, name, count, saying)
        self.process = forking.Process(target=write_periods, args=arguments)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the child needs only this thread
            self.process.start()
        saying.close()

    def wait_for_one(self) -> None:
        """Wait until it has said that a period was appended."""
        self._said.recv()

    def said_until_its_end(self) -> int:
        """Return how many more periods it said were appended, until it has ended."""
        said = 0
        with self._said, suppress(EOFError):
            while True:
                self._said.recv()
                said += 1
        self.process.join()
        return said


@needs_fork
def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "watch.jsonl"
    running = [Writer(path, name, 9) for name in ("a", "b")]
    assert [writer.said_until_its_end() for writer in running] == [9, 9]
    assert [writer.process.exitcode for writer in running] == [0, 0]
    assert sorted(names(path)) == sorted(f"{name}-{i}" for name in "ab" for i in range(9))
    assert read_history(path).damaged == ()


def killed_appends(path: Path, count: int, seed: int) -> int:
    """Kill a writer `count` times while it appends; return the periods that it reported."""
    rng = random.Random(seed)
    said = 0
    for round_ in range(count):
        writer = Writer(path, f"r{round_}", 10_000)
        writer.wait_for_one()
        time.sleep(rng.random() * 0.02)
        writer.process.kill()
        done = 1 + writer.said_until_its_end()
        assert writer.process.exitcode == -signal.SIGKILL
        found = set(names(path))
        assert {f"r{round_}-{number}" for number in range(done)} <= found
        said += done
    return said


@needs_fork
def test_a_kill_loses_no_period(tmp_path: Path) -> None:
    """The history has every period that the writer reported; the campaign kills more writers."""
    path = tmp_path / "watch.jsonl"
    assert killed_appends(path, 1, 0) <= len(names(path))


def test_a_longer_history_costs_in_proportion(tmp_path: Path) -> None:
    """Four times as many periods take at most five times as many calls."""

    def calls(periods: int) -> int:
        path = tmp_path / f"{periods}.jsonl"
        path.write_text("".join(f"{line_text(period(f'w{i}'), path)}\n" for i in range(periods)))
        count = 0

        def profile(_frame: object, event: str, _argument: object) -> None:
            nonlocal count
            count += event in {"call", "c_call"}

        sys.setprofile(profile)
        try:
            history = read_history(path)
        finally:
            sys.setprofile(None)
        assert len(history.periods) == periods
        return count

    assert calls(80) < 5 * calls(20)
