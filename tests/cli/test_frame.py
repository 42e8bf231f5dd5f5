"""The frame of the command line: help, limits of numbers, equal warnings, files that never end."""

import os
import re
import shutil
from pathlib import Path

import pytest

from covcal_cli.cli.app import app
from covcal_cli.cli.console import Console
from tests.cli_runner import covcal, covcal_process


def test_help_groups_every_command() -> None:
    """By what it is for; no command is without a group, and no line is cut."""
    out = covcal("--help").require_success().out
    headings = re.findall(r"^(\S.*):$", out, flags=re.MULTILINE)
    assert headings == ["Options", "Main steps", "Labels", "Over time", "Research"]
    lists = out.partition("Main steps:")[2]
    commands = re.findall(r"^  ([a-z]+)  +([A-Z].*)$", lists, flags=re.MULTILINE)
    assert len(commands) == len(app.registered_commands)
    assert all(text.endswith(".") and not text.endswith("...") for _, text in commands)
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("number", ["99999999999999999999", "2147483648"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "x.h5", "--jobs"),
        ("compare", "x.h5", "--seeds"),
        ("calibrate", "x.h5", "--seed"),
        ("pick", "x.h5", "--count"),
        ("evaluate", "x.h5", "--bootstrap"),
        ("extract", "m.onnx", "--target", "x.npz", "--batch"),
        ("adapt", "x.h5", "--members"),
    ],
    ids=lambda arguments: "".join(arguments[::3]),
)
def test_a_number_too_large_for_anything_is_bad_usage(
    arguments: tuple[str, ...], number: str
) -> None:
    line = covcal(*arguments, number).usage_error()
    assert arguments[-1] in line
    assert any(text in line for text in ("too large", "less than or equal to", "not in the range"))


def test_equal_warnings_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    Console().warn(["few rows", "other", "few rows", "few rows"])
    assert capsys.readouterr().err == "warning: few rows (3 times)\nwarning: other\n"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "/dev/full", "/dev/null"])
def test_a_history_that_never_ends_is_refused(name: str, small_files: Path, tmp_path: Path) -> None:
    """Neither waited for, nor read or written."""
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / name
    for file in ("adapted.h5", "temp.json"):
        shutil.copy(small_files / file, tmp_path)
    done = covcal("watch", "adapted.h5", "-c", "temp.json", "--history", path, cwd=tmp_path)
    assert done.code == 1
    line = done.err.splitlines()[-1].removeprefix("error: ")
    assert line.startswith(f"{path} is not a plain file (a pipe or device?): pass another")


def test_a_closed_stdout_is_named_with_the_remedy(small_files: Path) -> None:
    options = ("-c", small_files / "temp.json", "-o", "-")
    before = "import os; os.close(1)"
    done = covcal_process("apply", small_files / "adapted.h5", *options, before=before)
    assert done.code == 1
    assert done.err.splitlines()[-1].endswith("open the output, or name a file with -o")
