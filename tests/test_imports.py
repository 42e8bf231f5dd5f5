"""A command loads what it needs: help and the light steps none of the heavy packages."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import pytest

from covcal_cli.__main__ import main
from covcal_cli.arrays import one_blas_thread
from tests.cli_runner import Argument

HEAVY = {"torch", "onnx", "onnxruntime", "matplotlib", "PIL", "pyarrow", "sklearn", "scipy"}


LIGHT = (
    ("--help",),
    ("--version",),
    ("extract", "--help"),
    ("adapt", "--help"),
    ("calibrate", "adapted.h5", "-o", "-"),
    ("calibrate", "features.h5", "--method", "cot", "-o", "-"),
    ("calibrate", "features.h5", "--labels", "9", "-o", "-"),
    ("estimate", "adapted.h5"),
    ("evaluate", "adapted.h5", "-c", "fl+temp.json", "--bootstrap", "100"),
    ("apply", "adapted.h5", "-c", "fl+temp.json", "-o", "-"),
    ("report", "adapted.h5", "-c", "fl+temp.json", "--bootstrap", "100"),
    ("inspect", "adapted.h5"),
    ("pick", "adapted.h5", "-c", "fl+temp.json", "-n", "9"),
    ("label", "--help"),
)
ONE_AFTER_ANOTHER = """
import json, os, sys
from contextlib import redirect_stdout
from covcal_cli.cli.app import run
heavy, found = set(sys.argv[2:]), []
for arguments in json.loads(sys.argv[1]):
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        code = run(arguments)
    found.append([code, sorted(heavy & set(sys.modules))])
print(json.dumps(found))
"""


def loaded_by(*commands: Sequence[Argument], cwd: Path) -> list[tuple[int, set[str]]]:
    """Run commands one after another in one fresh process.

    Return the exit code of each command, and the heavy packages that are loaded after it.
    """
    words = json.dumps([[str(argument) for argument in command] for command in commands])
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_ANOTHER, words, *HEAVY],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=True,
    )
    return [(code, set(names)) for code, names in json.loads(done.stdout)]


def test_light_commands_load_nothing_heavy(small_files: Path, digits: Path, tmp_path: Path) -> None:
    """Help and the steps that a job which only evaluates needs do without the heavy packages.

    After them extract is seen to load its packages, so the test is not blind.
    """
    folder = shutil.copytree(small_files, tmp_path / "files")
    sets = [digits / name for name in ("digits.onnx", "source.npz", "target.npz")]
    heavy: tuple[Argument, ...] = ("extract", *sets, "--limit", 20, "-o", "f.h5")
    *found, extract = loaded_by(*LIGHT, heavy, cwd=folder)
    assert dict(zip(LIGHT, found, strict=True)) == dict.fromkeys(LIGHT, (0, set()))
    assert extract[0] == 0
    assert extract[1] >= {"onnx", "onnxruntime", "PIL"}


def test_help_loads_typer_and_the_commands_alone() -> None:
    """``covcal --help`` stays quick, because no command's work is loaded to describe it."""
    script = (
        "import json, sys; from covcal_cli.cli.app import run\n"
        "run(['--help']); print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    modules = json.loads(done.stderr)
    packages = {name.partition(".")[0] for name in modules if not name.startswith("_")}
    ours = {name.split(".")[1] for name in modules if name.startswith("covcal_cli.")}
    assert packages - sys.stdlib_module_names >= {"covcal_cli", "typer"}
    assert not packages & (HEAVY | {"numpy", "h5py", "rich", "pandas", "pyarrow"})
    assert ours <= {"cli", "calibrate", "classifiers", "data", "errors", "files", "progress"}


def test_blas_keeps_to_one_thread_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set before NumPy is loaded; who sets the variable keeps the say."""
    script = (
        "import os, sys; sys.argv = ['covcal', '--version']\n"
        "from covcal_cli.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n"
        "    print('numpy' in sys.modules, os.environ['OPENBLAS_NUM_THREADS'])"
    )
    for given, used in ((None, "1"), ("3", "3")):
        if given is None:
            monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
        else:
            monkeypatch.setenv("OPENBLAS_NUM_THREADS", given)
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == f"False {used}"
    pools = pytest.importorskip("threadpoolctl")
    for given, threads in ((None, {1}), ("2", {2})):
        with monkeypatch.context() as patch, pools.threadpool_limits(2, "blas"):
            patch.delenv("OPENBLAS_NUM_THREADS", raising=False)
            if given is not None:
                patch.setenv("OPENBLAS_NUM_THREADS", given)
            with one_blas_thread():
                found = pools.threadpool_info()
            assert {pool["num_threads"] for pool in found if pool["user_api"] == "blas"} == threads


def test_a_calibration_can_be_followed_through_17_modules(
    small_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the start of ``covcal calibrate --method temp`` to the end, imports not counted."""
    command = f"covcal calibrate {small_files / 'features.h5'} --method temp -o -"
    monkeypatch.setattr(sys, "argv", command.split())
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # Ctrl-C still ends the tests
    entered: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("covcal_cli"):
            entered.add(name)

    def calibrate() -> None:
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0

    calibrate()  # after which everything is imported
    sys.setprofile(note)
    try:
        calibrate()
    finally:
        sys.setprofile(None)
    assert {"covcal_cli.__main__", "covcal_cli.maths.temperature"} <= entered
    assert len(entered) <= 17, sorted(entered)
