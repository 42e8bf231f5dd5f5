"""The table of methods, and what is read off it: choices, help, documentation, fits."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

import covcal_cli
from covcal_cli.calibrate.calibrate import calibrate
from covcal_cli.calibrate.methods import AUTO, METHODS, Method
from covcal_cli.calibrate.problem import CalibrateSettings
from covcal_cli.cli.options import MethodName
from tests.cli_runner import covcal
from tests.made_files import write_adapted

# The page that documents the methods: a row of a table for each.
PAGE = Path(covcal_cli.__file__).parent / "calibrate" / "README.md"


def undocumented(page: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if not re.search(rf"^\| `{re.escape(name)}` \|", page, re.M)]


def unexplained(help_page: str, methods: Iterable[Method]) -> list[str]:
    return [one.name for one in methods if f"    {one.name:<12}  {one.help}\n" not in help_page]


def test_the_command_line_takes_every_method() -> None:
    """--method takes exactly the methods there are, and auto."""
    assert [method.value for method in MethodName] == [AUTO, *METHODS]


def test_every_method_is_in_the_help_and_on_the_page() -> None:
    assert unexplained(covcal("calibrate", "--help").out, METHODS.values()) == []
    assert undocumented(PAGE.read_text(encoding="utf-8"), METHODS) == []


def test_a_forgotten_method_would_be_found() -> None:
    made = Method("made-up", "original", "minimised", "an entry that nobody documented")
    assert unexplained(covcal("calibrate", "--help").out, [made]) == ["made-up"]
    assert undocumented(PAGE.read_text(encoding="utf-8"), ["temp", "made-up"]) == ["made-up"]


def test_an_entry_is_all_that_a_method_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method put into the table is fitted under its name, and auto looks at it."""
    made = Method("again", "original", "minimised", "temp once more", candidate=True)
    monkeypatch.setitem(METHODS, "again", made)
    path = write_adapted(tmp_path / "a.h5")
    found, temp = (calibrate(path, CalibrateSettings(method=name)) for name in ("again", "temp"))
    assert found.method_used == "again"
    assert found.forecaster_temperature == temp.forecaster_temperature
    assert "again" in [candidate.method for candidate in calibrate(path).candidates]
