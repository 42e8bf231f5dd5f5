"""What people see: 80 columns, colours on a terminal alone, and any encoding of stdout."""

import json
import os
import pty
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from covcal_cli.cli import console
from covcal_cli.cli.tables import text
from covcal_cli.errors import in_percent, interval
from covcal_cli.progress import Progress
from covcal_cli.records import write_document
from covcal_cli.report.tables import Table
from tests.cli_runner import COMMANDS, covcal, covcal_process
from tests.forked import Forked

WIDTH = 80
GROUP: Any = COMMANDS
NAMES: list[str] = list(GROUP.commands)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SCREENS = (
    ("calibrate", "adapted.h5", "-o", "new.json"),
    ("calibrate", "adapted.h5", "--labels", "30", "-o", "labelled.json"),
    ("estimate", "adapted.h5", "-c", "temp.json", "-c", "fl+iw+temp.json"),
    (
        *(
            "evaluate",
            "adapted.h5",
            "-c",
            "temp.json",
            "-c",
            "fl+iw+temp.json",
            "--by",
            "predicted",
        ),
        *("--metrics", "all", "--bootstrap", "20", "--fail-above", "ece=0.01"),
    ),
    ("apply", "adapted.h5", "-c", "temp.json"),
    ("report", "adapted.h5", "-c", "temp.json"),
    ("inspect", "features.h5"),
    ("inspect", "adapted.h5"),
    ("inspect", "fl+iw+temp.json"),
    ("merge", "features.h5", "-o", "merged.h5"),
)
TABLES = SCREENS[2:4]  # those that show one
OF_THE_DEMO = (
    ("extract", "digits.onnx", "source.npz", "target.npz", "--dry-run"),
    ("extract", "digits.onnx", "source.npz", "target.npz"),
    ("calibrate", "features.h5", "-o", "cal.json"),
    ("export", "digits.onnx", "-c", "cal.json"),
    ("run", "digits.onnx", "source.npz", "target.npz", "--method", "temp"),
    ("inspect", "covcal-run/run.json"),
)


def on_a_terminal(*arguments: str, cwd: Path, before: str = "", **env: str) -> str:
    """Return what a command shows on a terminal of 80 columns, after the statements `before`."""
    main, other = pty.openpty()
    environment = {"TERM": "xterm", "COLUMNS": str(WIDTH), **env}
    with Forked(arguments, stdout=other, stderr=other, cwd=cwd, env=environment, before=before):
        os.close(other)
        shown = b""
        try:
            while part := os.read(main, 4096):
                shown += part
        except OSError:  # the other side is closed
            pass
    os.close(main)
    return shown.decode().replace("\r\n", "\n")


def too_long(shown: str) -> list[str]:
    """Return the lines that a terminal would break; paths and commands cannot be broken."""
    lines = [CONTROLS.sub("", line.rpartition("\r")[2]) for line in shown.split("\n")]
    return [
        line
        for line in lines
        if len(line) > WIDTH
        and not line.startswith(("wrote ", "next: "))
        and max(map(len, line.split())) < WIDTH - 24
    ]


@pytest.mark.parametrize("arguments", SCREENS, ids=" ".join)
def test_every_screen_fits_the_terminal(
    arguments: tuple[str, ...], small_files: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(small_files, tmp_path / "files")
    shown = on_a_terminal(*arguments, cwd=folder)
    assert len(shown) > 50
    assert "bug in covcal" not in shown
    assert too_long(shown) == []


@pytest.mark.campaign
def test_the_screens_of_a_model_fit_too(digits: Path, tmp_path: Path) -> None:
    for name in ("digits.onnx", "source.npz", "target.npz"):
        shutil.copy(digits / name, tmp_path)
    for arguments in OF_THE_DEMO:
        shown = on_a_terminal(*arguments, cwd=tmp_path)
        assert "bug in covcal" not in shown
        assert "error: " not in shown
        assert too_long(shown) == []


@pytest.mark.parametrize("arguments", TABLES, ids=" ".join)
def test_tables_fit_wherever_they_go(
    arguments: tuple[str, ...], small_files: Path, tmp_path: Path
) -> None:
    """Into a pipe sentences are one line each, and rules and rows are as short as on a terminal."""
    done = covcal(*arguments, cwd=shutil.copytree(small_files, tmp_path / "files"))
    parts = [part for part in done.out.split("\n\n") if "───" in part]
    assert parts
    assert [line for part in parts for line in part.splitlines() if len(line) > WIDTH] == []


@pytest.mark.parametrize("name", ["", *NAMES])
def test_help_fits(name: str) -> None:
    out = covcal(*name.split(), "--help").require_success().out
    assert [line for line in out.splitlines() if len(line) > WIDTH] == []


class TestTables:
    def test_headings_break_first_and_then_the_longest_text(self) -> None:
        columns = ("name", "a long heading of numbers", "another one of them", "why")
        row = ("x" * 10, "1.00%", "2.00%", "some words " * 6)
        shown = text(Table(columns, [row], texts=(0, 3))).splitlines()
        assert max(map(len, shown)) <= WIDTH
        assert " ".join(shown).count("some words") >= 4
        assert "───" in shown[-3] or "───" in shown[-4] or "───" in shown[-2]

    def test_columns_that_do_not_fit_go_below_with_the_names(self) -> None:
        columns = ["calibration", *(f"metric {number}" for number in range(12))]
        rows = [[name, *["12.34%-56.78%"] * 12] for name in ("none", "temp")]
        shown = text(Table(columns, rows))
        assert max(map(len, shown.splitlines())) <= WIDTH
        assert shown.count("none") == shown.count("calibration") == shown.count("\n\n") + 1
        assert all(heading in shown for heading in columns)

    @pytest.mark.parametrize("name", ["x" * 200, "word " * 40, "字" * 60, "[red]b[/red]"])
    def test_names_of_any_length(self, name: str) -> None:
        shown = text(Table(["class", "n"], [[name.strip(), "1"]]))
        assert max(map(console_columns, shown.splitlines())) <= WIDTH
        found = re.sub("[^x字a-z\\[\\]/]", "", shown.split("─\n")[-1])
        assert found == name.replace(" ", "")


def console_columns(line: str) -> int:
    return sum(2 if character == "字" else 1 for character in line)


class TestColours:
    def test_warnings_and_failed_gates_on_a_terminal(self, small_files: Path) -> None:
        arguments = ("evaluate", "adapted.h5", "--fail-above", "ece=0.001", "--bootstrap", "20")
        shown = on_a_terminal(*arguments, cwd=small_files)
        assert "\x1b[1;31mFAILED\x1b[0m" in shown
        assert "\x1b[1;31merror:" in on_a_terminal("inspect", "missing", cwd=small_files)
        for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            plain = on_a_terminal(*arguments, cwd=small_files, **env)
            assert COLOURS.sub("", shown) == plain


class TestEncodings:
    @pytest.mark.parametrize(
        ("encoding", "arguments"),
        [
            ("cp1252", ("evaluate", "adapted.h5", "-c", "temp.json")),
            ("latin-1", ("calibrate", "adapted.h5", "-o", "new.json", "-v")),
            ("ascii", ("inspect", "adapted.h5")),
            ("ascii:strict", ("estimate", "adapted.h5", "-v")),
        ],
        ids=lambda value: value if isinstance(value, str) else value[0],
    )
    def test_rules_of_tables(
        self, encoding: str, arguments: tuple[str, ...], small_files: Path, tmp_path: Path
    ) -> None:
        folder = shutil.copytree(small_files, tmp_path / "files")
        env = {"PYTHONIOENCODING": encoding}
        done = covcal_process(*arguments, cwd=folder, env=env).require_success()
        assert "─" not in done.out
        assert ("-----" in done.out) == (arguments[0] != "inspect")

    def test_names_come_back_from_json(self, small_files: Path, tmp_path: Path) -> None:
        """What an encoding lacks is spelled as JSON spells it, beyond 16 bits too."""
        names = ["zażółć", "数字", "😀"]
        content = json.loads((small_files / "temp.json").read_text())
        path = tmp_path / "temp.json"
        write_document(content | {"classes": names}, path, force=True)
        done = covcal_process("inspect", path, env={"PYTHONIOENCODING": "ascii"})
        (line,) = [line for line in done.out.splitlines() if line.startswith("classes")]
        assert json.loads(f'"{line}"').endswith(", ".join(names))


class TestProgress:
    def lines(
        self, seconds: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> list[str]:
        """Report a hundred steps that take some seconds each, without a terminal."""
        now = [0.0]
        monkeypatch.setattr(time, "monotonic", lambda: now[0])
        with console.Console().progress() as show:
            for step in range(100):
                now[0] += seconds
                show(Progress("align", step + 1, 100, {"forecaster": 0.5}))
        return capsys.readouterr().err.splitlines()

    def test_long_work_gives_a_line_at_times(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        lines = self.lines(3.0, monkeypatch, capsys)
        assert len(lines) == 10
        assert lines[0] == "align: 10 of 100 (10%), forecaster 0.500"

    def test_short_work_gives_none(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.lines(0.1, monkeypatch, capsys) == []

    def test_a_terminal_keeps_bar_share_and_time(self, tmp_path: Path) -> None:
        """At 80 columns, however many numbers there are to watch."""
        script = (
            "from covcal_cli.cli.console import Console\n"
            "from covcal_cli.progress import Progress\n"
            "names = ('forecaster', 'discriminator', 'probe_accuracy', 'ess_share', 'more')\n"
            "with Console().progress() as show:\n"
            "    show(Progress('align', 50, 100, dict.fromkeys(names, 0.123)))\n"
            "raise SystemExit\n"
        )
        shown = on_a_terminal(cwd=tmp_path, before=script)
        last = CONTROLS.sub("", shown).splitlines()
        (line, *_) = [line for line in last if "50%" in line]
        assert re.search(r"align ━{9,}.*50% (-:--:--|\d:\d\d:\d\d) forecaster 0\.123", line)
        assert len(line.rstrip()) <= WIDTH


class TestChoices:
    @pytest.mark.parametrize(
        ("arguments", "meant"),
        [
            (("calibrate", "--method", "tmep"), "temp"),
            (("calibrate", "--loss", "bier"), "brier"),
            (("adapt", "--preset", "papper"), "paper"),
            (("run", "m", "s", "t", "--color", "bgr"), "BGR"),
            (("evaluate", "--split", "tets"), "test"),
            (("apply", "--domain", "sorce"), "source"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
    )
    def test_the_nearest_is_named(self, arguments: tuple[str, ...], meant: str) -> None:
        line = covcal(*arguments).usage_error()
        assert line.endswith(f"did you mean {meant}?")
        assert "Value error" not in line

    def test_what_is_like_none_is_only_refused(self) -> None:
        assert "did you mean" not in covcal("calibrate", "--method", "zzz").usage_error()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
class TestCompletion:
    def test_the_script_is_shown(self, shell: str) -> None:
        out = covcal("--show-completion", shell).require_success().out
        assert "_COVCAL_COMPLETE" in out
        assert "covcal" in out

    def test_it_is_installed_in_the_home_folder(self, shell: str, tmp_path: Path) -> None:
        env = {"HOME": str(tmp_path)}
        done = covcal_process("--install-completion", shell, env=env).require_success()
        assert str(tmp_path) in done.out
        assert [path for path in tmp_path.rglob("*") if path.is_file()]

    def test_commands_are_completed(self, shell: str) -> None:
        env = {
            "_COVCAL_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": "covcal cal",
            "COMP_CWORD": "1",
            "_TYPER_COMPLETE_ARGS": "covcal cal",
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        }
        done = covcal_process(env=env).require_success()
        assert "calibrate" in done.out
        assert "export" not in done.out


def test_a_value_does_not_look_outside_its_interval() -> None:
    """A narrow interval is rounded as finely as the value."""
    assert (in_percent(0.946), interval(0.946, 0.946)) == ("94.6", "94.6 to 94.6 %")
    assert interval(0.966, 1.0) == "97 to 100 %"
    assert (in_percent(0.969), interval(0.966, 1.0, 0.969)) == ("96.9", "96.6 to 100.0 %")
    assert (in_percent(0.977), interval(0.972, 0.979)) == ("97.7", "97.2 to 97.9 %")
    assert interval(0.5, 0.62) == "50 to 62 %"
