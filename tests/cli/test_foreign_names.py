"""Names of any origin reach terminals, logs, Markdown and pages as plain printable text."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from covcal_cli.cli import console, tables
from covcal_cli.errors import CovcalError, message, printable
from tests.cli_runner import covcal
from tests.made_files import edited

NAMES = (
    "\x1b[2J\x07\x08bell",
    "new\n::error::injected\r\n::stop-commands::x",
    "bidi \u202e\u2066 and \u2028 lines \x85",
)
UNSEEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


def test_a_text_becomes_printable() -> None:
    assert printable("cat, Straße, \u732b \U0001f408") == "cat, Straße, \u732b \U0001f408"
    assert printable(NAMES[0]) == r"\x1b[2J\x07\x08bell"
    assert printable("a\nb\r\t\x00") == r"a\nb\r\t\x00"
    assert printable("\u202e\u2028\x85\udcff") == r"\u202e\u2028\x85\udcff"


def test_a_message_keeps_its_beginning_and_its_remedy() -> None:
    text = f"{'a' * 200_000}.h5 is damaged: make it again"
    assert len(message(text)) < 1100
    assert message(text).startswith("aaa")
    assert message(text).endswith(".h5 is damaged: make it again")
    assert str(CovcalError("x\x1b\n")) == r"x\x1b\n"
    assert len(str(CovcalError(text))) < 1100


@pytest.fixture
def named(adapted: Path, small_files: Path) -> Path:
    """A folder with a file whose classes, ids, groups and model have such names."""
    shutil.copy(small_files / "temp.json", adapted.parent / "cal.json")
    ids = [name.encode() for name in NAMES]
    with edited(adapted) as file:
        del file["classes"]
        file["classes"] = np.array(ids)
        n = len(file["target/labels"])
        for name in ("ids", "columns/site"):
            if f"target/{name}" in file:
                del file[f"target/{name}"]
            file[f"target/{name}"] = np.array([ids[i % 3] + b"%d" % i for i in range(n)])
        if "columns/site" in file["target"]:
            del file["target/columns/site"]
        file["target/columns/site"] = np.array([ids[i % 3] for i in range(n)])
        file.attrs["model_name"] = NAMES[1]
    covcal("calibrate", adapted.name, "--method", "temp", "-f", cwd=adapted.parent)
    return adapted.parent


@pytest.mark.parametrize(
    "command",
    [
        ("inspect", "adapted.h5"),
        ("inspect", "cal.json"),
        ("evaluate", "adapted.h5", "-c", "cal.json", "--by", "site"),
        ("evaluate", "adapted.h5", "-c", "cal.json", "--by", "site", "--format", "markdown"),
        ("evaluate", "adapted.h5", "-c", "cal.json", "--by", "predicted", "--format", "github"),
        ("evaluate", "adapted.h5", "-c", "cal.json", "--format", "github", "--fail-above", "ece=0"),
        ("apply", "adapted.h5", "-c", "cal.json", "-o", "-"),
        ("estimate", "adapted.h5"),
        ("pick", "adapted.h5", "-n", "9", "--page", "x.html"),
        ("calibrate", "adapted.h5", "-o", "x.json", "-v"),
        ("calibrate", "adapted.h5", "--method", "prior", "--target-prior", "uniform", "-v", "-f"),
        ("report", "adapted.h5", "-c", "cal.json", "-o", "x.html"),
        ("watch", "adapted.h5", "-c", "cal.json"),
    ],
)
def test_no_control_character_is_printed(command: tuple[str, ...], named: Path) -> None:
    """And no line begins with what GitHub takes for a command, but our own."""
    done = covcal(*command, cwd=named)
    assert done.code in (0, 3), done.err
    for text in (done.out, done.err):
        assert UNSEEN.search(text) is None
        lines = text.splitlines()
        assert all(re.match("::(?!(?:error|warning)::covcal: )", line) is None for line in lines)
    if command[0] == "apply":
        assert all(line.count(",") == 6 for line in done.out.splitlines())


def test_a_screen_spells_what_no_terminal_shows(capsys: pytest.CaptureFixture[str]) -> None:
    console.Console().screen(tables.aligned({"classes": "\n::error::x", "a\x1b": NAMES[2]}))
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 2
    assert UNSEEN.search(shown) is None


def test_markdown_and_pages_hold_no_foreign_markup(named: Path) -> None:
    with edited(named / "adapted.h5") as file:
        rows = len(file["target/labels"])
        del file["target/columns/site"]
        file["target/columns/site"] = np.array([b"<img src=x>|**b**|[a](b)\x1b"] * rows)
    done = covcal(
        *("evaluate", "adapted.h5", "-c", "cal.json", "--by", "site", "--format", "markdown"),
        cwd=named,
    ).require_success()
    assert r"&lt;img src=x>\|\*\*b\*\*\|\[a\](b)\\x1b" in done.out
    covcal("report", "adapted.h5", "-c", "cal.json", "-o", "r.html", cwd=named).require_success()
    assert UNSEEN.search((named / "r.html").read_text()) is None


def test_errors_name_such_things_in_one_line(tmp_path: Path) -> None:
    for name in NAMES:
        line = covcal("inspect", f"{name}.h5", cwd=tmp_path).error_line()
        assert printable(name) in line
    line = covcal("inspect", "x" * 5000, cwd=tmp_path).error_line()
    assert len(line) < 1100
