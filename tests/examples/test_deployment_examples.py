"""The CI gate, the nightly script and the library snippet of ``examples/`` do what they say."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli_runner import covcal
from tests.examples import EXAMPLES


def test_the_library_snippet(small_files: Path) -> None:
    """Calibrates, estimates, applies and judges a file, and finds the T of plain arrays."""
    command = [sys.executable, str(EXAMPLES / "use_the_library.py")]
    command.append(str(small_files / "adapted.h5"))
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    reason, accuracy, none, auto, arrays = out.splitlines()
    assert ", as " in reason
    assert re.fullmatch(r"accuracy \d+\.\d%, \d+\.\d% to \d+\.\d%", accuracy)
    for line, name in ((none, "none"), (auto, "auto")):
        assert re.match(rf"{name}: ECE \d+\.\d\d% \(true value ", line)
    found = re.match(r"arrays: T (\d\.\d+), mean confidence ", arrays)
    assert found is not None
    assert float(found[1]) == pytest.approx(2, rel=0.15)


@pytest.fixture
def gate(small_files: Path, tmp_path: Path) -> tuple[Path, list[str]]:
    """A folder as the CI job finds it, and the job's covcal command."""
    text = (EXAMPLES / "ci_gate.yml").read_text(encoding="utf-8")
    folded = re.search(r"run: >-\n((?: {10}.*\n)+)", text)
    assert folded is not None
    words = shlex.split(" ".join(folded[1].split()))
    assert words[0] == "covcal"
    shutil.copy(small_files / "features.h5", tmp_path)
    shutil.copy(small_files / "temp.json", tmp_path / "cal.json")
    arguments = ("features.h5", "-c", "cal.json", "-o", "metrics.baseline.json")
    covcal("evaluate", *arguments, cwd=tmp_path).require_success()
    return tmp_path, words[1:]


def test_the_ci_gate(gate: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's very command runs, judges both gates, and writes summary, report and metrics."""
    folder, arguments = gate
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(folder / "summary.md"))
    done = covcal(*arguments, cwd=folder)
    assert done.code in (0, 3)
    content = json.loads((folder / "metrics.json").read_text())
    ece = content["metrics"]["temp"]["ece"]
    assert done.code == (3 if ece > 0.05 else 0)
    assert content["regressions"][0]["worse_by"] == 0
    assert "temp: ece worse by" in (folder / "calibration.xml").read_text()
    assert "| calibration |" in (folder / "summary.md").read_text()


def test_the_ci_gate_fails_on_a_regression(gate: tuple[Path, list[str]]) -> None:
    """A baseline that was better makes the job fail with exit code 3."""
    folder, arguments = gate
    path = folder / "metrics.baseline.json"
    content = json.loads(path.read_text())
    content["metrics"]["temp"]["ece"] = 0.0
    path.write_text(json.dumps(content))
    assert covcal(*arguments, cwd=folder).code == 3
    assert json.loads((folder / "metrics.json").read_text())["regressions"][0]["exceeded"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing")
def test_the_nightly_script(small_files: Path, tmp_path: Path) -> None:
    """The first night makes the baseline, a good night renews it, a bad one keeps it and fails."""
    (tmp_path / "bin").mkdir()
    launcher = tmp_path / "bin" / "covcal"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m covcal_cli "$@"\n')
    launcher.chmod(0o755)

    def night(most: str) -> int:
        path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            [str(EXAMPLES / "nightly.sh"), str(small_files / "features.h5"), str(tmp_path / "job")],
            env={**os.environ, "PATH": path, "MAX_ECE": most},
            check=False,
            capture_output=True,
        ).returncode

    baseline = tmp_path / "job" / "baseline.json"
    assert night("0") == 3
    assert not baseline.exists()
    assert night("1") == 0
    first = json.loads(baseline.read_text())
    assert first["regressions"] == []
    assert night("1") == 0
    assert [entry["exceeded"] for entry in json.loads(baseline.read_text())["regressions"]] == [
        False
    ]
