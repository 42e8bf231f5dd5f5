"""The four short scripts of ``examples/``, one for each of README's users, on small data."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from covcal_cli.demo import MODEL
from tests.examples import EXAMPLES
from tests.forked import forked
from tests.test_pages import require_known

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PATH on which ``covcal`` starts at once."""
    folder = tmp_path_factory.mktemp("bin")
    with forked(folder):
        yield f"{folder}{os.pathsep}{os.environ['PATH']}"


def run(script: str, *arguments: str | Path, folder: Path, path: str) -> int:
    """Run a script in a folder and return its exit code."""
    command = ["bash", str(EXAMPLES / script), *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, check=False
    ).returncode


def write_probabilities(path: Path, shift: float, *, labels: bool, seed: int) -> None:
    """Write a CSV of three class probabilities, twice too sure."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(300, 3)) * (2 - shift)
    drawn = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    probabilities = np.exp(2 * logits)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    lines = ["prob_a,prob_b,prob_c" + (",label" if labels else "")]
    for row, label in zip(probabilities, drawn, strict=True):
        cells = ",".join(f"{value:.6f}" for value in row)
        lines.append(cells + (f",{'abc'[label]}" if labels else ""))
    path.write_text("\n".join(lines) + "\n")


def test_image_model(whole_demo: Path, tmp_path: Path, path: str) -> None:
    """Writes a calibrated model and a report from a model and two folders."""
    shutil.copytree(whole_demo, tmp_path / "demo", copy_function=os.link)
    for image in sorted((tmp_path / "demo").rglob("*.png"))[::2]:
        image.unlink()
    arguments = (tmp_path / "demo" / name for name in (MODEL, "source", "target"))
    assert run("image_model.sh", *arguments, folder=tmp_path, path=path) == 0
    written = {file.name for file in (tmp_path / "calibrated").iterdir()}
    assert {"features.h5", "cal.json", "calibrated.onnx", "report.html"} <= written


def test_probability_table(tmp_path: Path, path: str) -> None:
    """Writes a probability of every class for every target row."""
    write_probabilities(tmp_path / "old.csv", 0.0, labels=True, seed=0)
    write_probabilities(tmp_path / "new.csv", 0.5, labels=False, seed=1)
    names = ("old.csv", "new.csv", "out.csv")
    assert run("probability_table.sh", *names, folder=tmp_path, path=path) == 0
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 301


def test_paper_table_calls_every_method_for_every_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script runs the commands of the paper's table; other tests test the commands."""
    calls = tmp_path / "calls"
    (tmp_path / "covcal").write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    (tmp_path / "covcal").chmod(0o755)
    for name in ("model.onnx", "source", "target"):
        (tmp_path / name).touch()
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    arguments = ("model.onnx", "source", "target", "0", "1")
    monkeypatch.setenv("EXTRACT", "--preprocess imagenet")
    assert run("paper_table.sh", *arguments, folder=tmp_path, path=path) == 0
    commands = calls.read_text().splitlines()
    assert [line.split()[0] for line in commands] == ["extract"] + 2 * [
        "adapt",
        *5 * ["calibrate"],
        "evaluate",
    ]
    assert commands[0].endswith(" --preprocess imagenet")
    assert "-c fl+iw+temp=fl+iw+temp-1.json" in commands[-1]
    for line in commands:
        require_known(["covcal", *line.split()])


@pytest.mark.parametrize(("limit", "code"), [("0.5", 0), ("0.0001", 3)])
def test_ci_check(small_files: Path, tmp_path: Path, path: str, limit: str, code: int) -> None:
    """Exit code 3 where the error is above the limit, and a JUnit report in both cases."""
    arguments = (small_files / "features.h5", small_files / "none.json", limit)
    assert run("ci_check.sh", *arguments, folder=tmp_path, path=path) == code
    assert ("<failure" in (tmp_path / "calibration.xml").read_text()) == (code == 3)
