"""The CI jobs, the nightly script and the library snippet of ``examples/`` do what they say."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.examples import EXAMPLES
from tests.made_files import clusters_domain, write_features


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


NIGHTLY = EXAMPLES / "nightly.sh"
JOBS = {"ci_gate.yml": r"run: \|\n((?: {10}.*\n)+)", "gitlab_ci.yml": r"- \|\n((?: {6}.*\n)+)"}

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing")


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``covcal`` as installed, and a ``pip`` that has nothing to do."""
    folder = tmp_path / "bin"
    folder.mkdir()
    launched = {"covcal": f'exec "{sys.executable}" -m covcal_cli "$@"', "pip": "exit 0"}
    for name, line in launched.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent))


@pytest.fixture
def repository(small_files: Path, tmp_path: Path) -> Path:
    """A repository with what the jobs ask for, and nothing else."""
    folder = tmp_path / "repository"
    folder.mkdir()
    shutil.copy(small_files / "features.h5", folder)
    shutil.copy(small_files / "temp.json", folder / "cal.json")
    return folder


def steps(job: str) -> list[str]:
    """The scripts of a job, in order."""
    found = re.findall(JOBS[job], (EXAMPLES / job).read_text(encoding="utf-8"))
    assert len(found) == 4
    return [textwrap.dedent(text) for text in found]


def run_job(job: str, folder: Path) -> int:
    """Run every step as the service does, and stop at the first that fails."""
    for step in steps(job):
        done = subprocess.run(["bash", "-e", "-c", step], cwd=folder, check=False)
        if done.returncode:
            return done.returncode
    return 0


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize("job", JOBS)
def test_a_job_in_a_repository_without_a_baseline(
    job: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run makes one; another in the same workspace finds it, and replaces the rest."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(repository / "summary.md"))
    for _ in range(2):
        assert run_job(job, repository) in (0, 3)
        content = json.loads((repository / "metrics.json").read_text())
        (regression,) = content["regressions"]
        assert (regression["worse_by"], regression["same_rows"]) == (0, True)
        assert not regression["exceeded"]
        assert "live: ece worse by" in (repository / "calibration.xml").read_text()
        assert "live" in (repository / "calibration.html").read_text()
    if job == "ci_gate.yml":
        assert "| calibration |" in (repository / "summary.md").read_text()
    for name in re.findall(r"metrics\.\w+\.?\w*|calibration\.(?:xml|html)", "\n".join(steps(job))):
        assert name in (EXAMPLES / job).read_text().partition("artifact")[2]


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize("job", JOBS)
def test_a_job_fails_on_a_calibration_that_got_worse(job: str, repository: Path) -> None:
    """On the same rows, by more than the rows' noise: exit code 3, and everything is written."""
    run_job(job, repository)
    document = json.loads((repository / "cal.json").read_text())
    document["temperatures"]["forecaster"] *= 0.1
    (repository / "cal.json").write_text(json.dumps(document))
    assert run_job(job, repository) == 3
    content = json.loads((repository / "metrics.json").read_text())
    (regression,) = content["regressions"]
    assert regression["exceeded"]
    assert regression["low"] > 0.005
    assert "<failure" in (repository / "calibration.xml").read_text()


class Nights:
    """Nights of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "job"
        self.features = folder / "night.h5"

    def night(
        self, *, moved: float = 0.0, seed: int = 0, most: str = "0.2", method: str = "auto"
    ) -> int:
        """Run a night on rows moved so far, and return the exit code."""
        sizes = (300, 500, 600)
        write_features(
            self.features,
            source=clusters_domain("source", sizes=sizes),
            target=clusters_domain("target", sizes=sizes, moved=moved, seed=seed),
        )
        return subprocess.run(
            ["bash", str(NIGHTLY), str(self.features), str(self.folder)],
            env={**os.environ, "MAX_ECE": most, "METHOD": method},
            check=False,
        ).returncode

    def text(self, name: str) -> str:
        """What a file of the folder holds."""
        return (self.folder / name).read_text()


@pytest.mark.usefixtures("commands")
class TestNightly:
    def test_it_judges_before_it_replaces(self, tmp_path: Path) -> None:
        """A bad night leaves calibration and reference as they were; its own files tell of it."""
        nights = Nights(tmp_path)
        assert nights.night(most="0") == 0  # nothing is shown to be off, so nothing is exceeded
        kept = {name: nights.text(name) for name in ("cal.json", "reference.json")}
        assert nights.night(moved=1.2, seed=1, most="0.01") == 3
        assert {name: nights.text(name) for name in kept} == kept
        assert nights.text("candidate.json") != kept["cal.json"]
        assert "<failure" in nights.text("junit.xml")

    def test_a_first_night_that_fails_leaves_nothing_in_use(self, tmp_path: Path) -> None:
        nights = Nights(tmp_path)
        assert nights.night(moved=1.2, most="0.01") == 3
        assert not (nights.folder / "cal.json").exists()
        assert not (nights.folder / "reference.json").exists()

    def test_the_reference_does_not_move(self, tmp_path: Path) -> None:
        """Good nights replace the calibration; what they are compared with stays the first."""
        nights = Nights(tmp_path)
        assert nights.night() == 0
        reference, used = nights.text("reference.json"), nights.text("cal.json")
        for seed in (1, 2):
            assert nights.night(seed=seed) == 0
            assert nights.text("reference.json") == reference
            assert nights.text("cal.json") != used
            used = nights.text("cal.json")
            (change,) = json.loads(nights.text("metrics.json"))["regressions"]
            assert change["before"] == json.loads(reference)["metrics"]["nightly"]["ece"]
            assert not change["same_rows"]

    def test_another_method_is_compared_all_the_same(self, tmp_path: Path) -> None:
        """Its name is the job's, so a night on which auto changes its mind is judged, not stuck."""
        nights = Nights(tmp_path)
        for seed, method in enumerate(("temp", "cot", "temp")):
            assert nights.night(seed=seed, method=method, most="1") in (0, 3)
            assert json.loads(nights.text("candidate.json"))["method_used"] == method
            content = json.loads(nights.text("metrics.json"))
            assert set(content["metrics"]) == {"none", "nightly"}
            assert len(content["regressions"]) == (0 if seed == 0 else 1)

    def test_bad_input_leaves_no_metrics_of_another_night(self, tmp_path: Path) -> None:
        nights = Nights(tmp_path)
        assert nights.night() == 0
        used = nights.text("cal.json")
        nights.features.write_bytes(b"")
        command = ["bash", str(NIGHTLY), str(nights.features), str(nights.folder)]
        assert subprocess.run(command, check=False).returncode == 1
        assert not (nights.folder / "metrics.json").exists()
        assert nights.text("cal.json") == used
