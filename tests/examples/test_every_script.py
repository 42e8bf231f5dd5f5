"""Every script of ``examples/`` says what it wants, and how it is called."""

import runpy
import sys
from pathlib import Path

import pytest

from tests.examples import EXAMPLES

PLAIN = {"use_the_library.py"}  # a snippet to read, with one argument
SCRIPTS = [path for path in sorted(EXAMPLES.rglob("*.py")) if '"__main__"' in path.read_text()]


@pytest.mark.parametrize(
    "script",
    [path for path in SCRIPTS if path.name not in PLAIN],
    ids=lambda path: path.relative_to(EXAMPLES).as_posix(),
)
def test_help(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--help`` runs, so all imports exist, and the docstring shows the call."""
    monkeypatch.setattr(sys, "argv", [script.name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {script.name} ")
    call = f"python {script.relative_to(EXAMPLES.parent).as_posix()} "
    assert call in script.read_text(encoding="utf-8")
