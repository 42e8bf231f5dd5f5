"""Ctrl-C while covcal is being loaded, or in a destructor: one line, exit code 130."""

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import REPOSITORY

PYPROJECT = REPOSITORY / "pyproject.toml"
STOPPED = "interrupted: no partial output was left\n"
# In the place of a package that the command line imports first.
CTRL_C = """
import os, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the place of covcal's own
os.kill(os.getpid(), signal.SIGINT)
time.sleep(10)
"""


DESTRUCTOR = """
import os, signal, time
class Closing:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)
Closing()
time.sleep(10)
"""


def program() -> list[str]:
    """Return what the script that pip writes for ``covcal`` does."""
    (entry,) = tomllib.loads(PYPROJECT.read_text())["project"]["scripts"].values()
    module, _, function = entry.partition(":")
    return ["-c", f"import sys\nfrom {module} import {function}\nsys.exit({function}())"]


def started(arguments: list[str], first_in_path: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with a folder before all installed packages.

    The new process obeys Ctrl-C. A shell's background job, and every process that the job starts,
    would ignore it.
    """
    path = os.pathsep.join([str(first_in_path), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *arguments, "--version"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path.strip(os.pathsep)},
        cwd=PYPROJECT.parent,
        check=False,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize("how", ["the script", "python -m"])
def test_ctrl_c_while_modules_are_loaded(how: str, tmp_path: Path) -> None:
    """A real SIGINT in the middle of an import: no traceback, nothing on stdout."""
    arguments = program() if how == "the script" else ["-m", "covcal_cli"]
    (tmp_path / "typer.py").write_text(CTRL_C)
    done = started(arguments, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", STOPPED)


def test_ctrl_c_in_a_destructor_is_not_forgotten(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text(CTRL_C.partition("os.kill")[0] + DESTRUCTOR)
    done = started(["-m", "covcal_cli"], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", STOPPED)
