"""The CI jobs, the nightly script and the library snippet of ``examples/`` do what they say."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from covcal_cli.records import write_document
from covcal_cli.watch.history import read_history
from tests.examples import EXAMPLES
from tests.forked import forked
from tests.made_files import clusters_domain, edited, write_features


def test_the_library_snippet(
    small_files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Calibrates, estimates, applies and judges a file, and finds the T of plain arrays."""
    script = EXAMPLES / "use_the_library.py"
    monkeypatch.setattr(sys, "argv", [str(script), str(small_files / "adapted.h5")])
    runpy.run_path(str(script), run_name="__main__")
    reason, accuracy, none, auto, arrays, watch = capsys.readouterr().out.splitlines()
    assert reason.startswith("The estimated accuracy is ")
    assert re.fullmatch(r"accuracy \d+\.\d%, \d+\.\d% to \d+\.\d%", accuracy)
    for line, name in ((none, "none"), (auto, "auto")):
        assert re.match(rf"{name}: ECE \d+\.\d\d% \(true value ", line)
    found = re.match(r"arrays: T (\d\.\d+), mean confidence ", arrays)
    assert found is not None
    assert float(found[1]) == pytest.approx(2, rel=0.15)
    assert watch.startswith("watch: ")


NIGHTLY = EXAMPLES / "nightly.sh"
CI = "ci_gate.yml"
JOBS = {"ci_gate.yml": r"run: \|\n((?: {10}.*\n)+)", "gitlab_ci.yml": r"- \|\n((?: {6}.*\n)+)"}
SIZES = (120, 200, 200)

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing")


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """``covcal`` as installed, and a ``pip`` that has nothing to do."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "pip").write_text("#!/bin/sh\nexit 0\n")
    (folder / "pip").chmod(0o755)
    with forked(folder):
        yield folder


@contextmanager
def on_path(folder: Path) -> Iterator[None]:
    """Let jobs find the commands of a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        yield


@pytest.fixture
def commands(bin_folder: Path) -> Iterator[None]:
    """The commands that jobs find."""
    with on_path(bin_folder):
        yield


def write_week(path: Path, week: int, moved: float = 0.0, sharper: float = 1.0) -> None:
    """Write features of new target rows, moved so far from the source's.

    A model that broke gives logits that are `sharper` by a factor.
    """
    source = clusters_domain("source", sizes=SIZES)
    target = clusters_domain("target", sizes=SIZES, moved=moved, seed=week)
    target["logits"] *= np.float32(sharper)
    write_features(path, source=source, target=target)


@pytest.fixture(scope="module")
def after_one_run(tmp_path_factory: pytest.TempPathFactory, bin_folder: Path) -> Path:
    """A repository with rows alone in which the job has run once; not to be changed."""
    folder = tmp_path_factory.mktemp("once") / "repository"
    folder.mkdir()
    write_week(folder / "features.h5", 0)
    with on_path(bin_folder):
        assert run_job("ci_gate.yml", folder) in (0, 3)
    return folder


@pytest.fixture
def repository(after_one_run: Path, tmp_path: Path) -> Path:
    """The repository after the first run, which a test may change."""
    return Path(shutil.copytree(after_one_run, tmp_path / "repository"))


def steps(job: str) -> list[str]:
    """The scripts of a job, in order."""
    found = re.findall(JOBS[job], (EXAMPLES / job).read_text(encoding="utf-8"))
    assert len(found) == 4
    return [textwrap.dedent(text) for text in found]


def run_job(job: str, folder: Path, week: int = 0) -> int:
    """Run every step as the service does, and stop at the first that fails."""
    summary = str(folder / "summary.md")
    env = {**os.environ, "PERIOD": f"2026-W{week + 1:02}", "GITHUB_STEP_SUMMARY": summary}
    for step in steps(job):
        done = subprocess.run(["bash", "-e", "-c", step], cwd=folder, env=env, check=False)
        if done.returncode:
            return done.returncode
    return 0


def published(job: str) -> list[str]:
    """What a job keeps as artifacts."""
    text = (EXAMPLES / job).read_text(encoding="utf-8")
    listed = text[text.index("upload-artifact" if job == "ci_gate.yml" else "artifacts:") :]
    return re.findall(r"^ +-? ?(\w+(?:\.(?:json|xml|html))?)$", listed, re.MULTILINE)


def test_both_services_run_the_same_commands() -> None:
    """Apart from the words that GitHub alone reads, so that the tests below run one of them."""
    own = [text.replace("::warning::", "").replace("--format github ", "") for text in steps(CI)]
    assert steps("gitlab_ci.yml") == own
    assert sorted(published("gitlab_ci.yml")) == sorted(published(CI))


@pytest.mark.usefixtures("commands")
def test_a_job_in_a_repository_without_a_baseline(repository: Path) -> None:
    """The first run makes one; another in the same workspace finds it, and replaces the rest."""
    for run in (1, 2):
        if run == 2:
            assert run_job(CI, repository) in (0, 3)
        content = json.loads((repository / "metrics.json").read_text())
        (regression,) = content["regressions"]
        assert (regression["worse_by"], regression["same_rows"]) == (0, True)
        assert not regression["exceeded"]
        assert "live: ece worse by" in (repository / "calibration.xml").read_text()
        assert "confidence not off" in (repository / "watch.xml").read_text()
        assert "live" in (repository / "calibration.html").read_text()
    summary = (repository / "summary.md").read_text()
    assert "| calibration |" in summary
    assert "| 2026-W01 |" in summary
    made = {path.name for path in repository.iterdir()} - {"features.h5", "summary.md"}
    assert set(published(CI)) == made
    kept = {"cal.json", "cal.reference.json", "metrics.baseline.json", "watch.jsonl"}
    assert {path.name for path in (repository / "calibration").iterdir()} == kept


@pytest.mark.usefixtures("commands")
def test_a_job_fails_on_a_calibration_that_got_worse(repository: Path) -> None:
    """On the same rows, by more than the rows' noise: exit code 3, and everything is written."""
    used = repository / "calibration" / "cal.json"
    document = json.loads(used.read_text())
    document["temperatures"]["forecaster"] *= 0.05
    write_document(document, used, force=True)
    assert run_job(CI, repository) == 3
    content = json.loads((repository / "metrics.json").read_text())
    (regression,) = content["regressions"]
    assert regression["exceeded"]
    assert regression["low"] > 0.005
    assert "<failure" in (repository / "calibration.xml").read_text()
    assert set(published(CI)) <= {path.name for path in repository.iterdir()}


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize(
    ("weeks", "moved"), [(3, 1), pytest.param(26, 7, marks=pytest.mark.campaign)]
)
def test_a_job_over_the_weeks(repository: Path, weeks: int, moved: int) -> None:
    """The job passes while rows stay alike, fails from the drift on, and draws every week."""
    codes = []
    for week in range(1, weeks):
        write_week(repository / "features.h5", week, moved=0.0 if week < weeks - moved else 1.2)
        codes.append(run_job(CI, repository, week))
    assert codes == [0] * (weeks - moved - 1) + [3] * moved
    periods = read_history(repository / "calibration" / "watch.jsonl").periods
    named = [f"2026-W{week:02}" for week in range(1, weeks + 1)]
    assert [one.measured.period for one in periods] == named
    failed = [one.verdict == "off" for one in periods]
    assert failed == [False] * (weeks - moved) + [True] * moved
    page = (repository / "trend.html").read_text()
    told = (
        f"{weeks} periods, 1 calibration: 0 holds, {moved} off, {weeks - moved} not known; "
        f"rows changed in {moved}."
    )
    assert told in page
    assert "<failure" in (repository / "watch.xml").read_text()


class Nights:
    """Nights of one folder."""

    def __init__(self, folder: Path, number: int = 0) -> None:
        """Go on after so many nights of a folder."""
        self.folder = folder / "job"
        self.features = folder / "night.h5"
        self.number = number
        self.mail = ""  # what cron would send

    def night(
        self,
        *words: str,
        moved: float = 0.0,
        sharper: float = 1.0,
        most: str = "0.2",
        method: str = "auto",
        tolerance: str = "10",
    ) -> int:
        """Run a night on rows of a kind, and return the exit code."""
        self.number += 1
        write_week(self.features, self.number, moved, sharper)
        return self.again(*words, MAX_ECE=most, METHOD=method, TOLERANCE=tolerance)

    def again(self, *words: str, **env: str) -> int:
        """Run the night on its rows as they are."""
        done = subprocess.run(
            ["bash", str(NIGHTLY), str(self.features), str(self.folder), *words],
            env={**os.environ, "PERIOD": f"2026-11-{self.number:02}", "TOLERANCE": "10", **env},
            check=False,
            capture_output=True,
            text=True,
        )
        self.mail = done.stdout + done.stderr
        return done.returncode

    def text(self, name: str) -> str:
        """What a file of the folder holds."""
        return (self.folder / name).read_text()


@pytest.fixture(scope="module")
def first_night(tmp_path_factory: pytest.TempPathFactory, bin_folder: Path) -> Path:
    """A folder after one good night; not to be changed."""
    nights = Nights(tmp_path_factory.mktemp("nights"))
    with on_path(bin_folder):
        assert nights.night(most="1", method="temp") == 0
    assert nights.mail == ""
    return nights.folder.parent


@pytest.fixture
def nights(first_night: Path, tmp_path: Path) -> Nights:
    """The job after its first, good night."""
    return Nights(Path(shutil.copytree(first_night, tmp_path / "copy")), 1)


@pytest.mark.usefixtures("commands")
class TestNightly:
    def test_a_bad_night_counts_until_somebody_acts(self, nights: Nights) -> None:
        """A bad night changes neither calibration nor reference, and its own files describe it.

        The next night fails too, however it looks, until a person says that the fault is mended.
        The labels of the bad nights then no longer count.
        """
        kept = {name: nights.text(name) for name in ("cal.json", "reference.json")}
        assert nights.night(moved=1.2, method="none", most="0.05") == 3
        assert nights.text("candidate.json") != kept["cal.json"]
        assert "<failure" in nights.text("junit.xml")
        assert "nightly" in nights.text("report.html")
        first = nights.text("bad")
        # A candidate that fails is not accepted.
        assert nights.again("accept", METHOD="none", MAX_ECE="0.05") == 3
        assert {name: nights.text(name) for name in kept} == kept
        assert nights.night() == 3
        assert nights.text("bad") == first
        assert nights.mail.rstrip().endswith(f"{nights.features} {nights.folder} mended")
        assert nights.night("mended", method="none", tolerance="5") == 0
        assert not (nights.folder / "bad").exists()
        periods = [json.loads(line) for line in nights.text("watch.jsonl").splitlines()]
        assert first.strip() not in [entry["measured"]["period"] for entry in periods]

    def test_a_first_night_that_fails_leaves_nothing_in_use(self, tmp_path: Path) -> None:
        nights = Nights(tmp_path)
        assert nights.night(moved=1.2, method="none", most="0.05") == 3
        assert not (nights.folder / "cal.json").exists()
        assert not (nights.folder / "reference.json").exists()

    def test_a_change_that_does_not_matter_is_told_once(self, nights: Nights) -> None:
        """A good night prints nothing, nor does another one on which the rows are changed."""
        limits = {"MAX_ECE": "1", "MAX_REGRESSION": "1", "TOLERANCE": "90"}
        mails = []
        for moved in (0.0, 1.2, 1.2):
            nights.number += 1
            write_week(nights.features, nights.number, moved)
            assert nights.again(METHOD="temp", **limits) == 0
            mails.append(nights.mail)
            assert "confidence not off" in nights.text("night.log")
            assert "ece" in nights.text("junit.xml")
            assert "ece" in nights.text("junit-nights.xml")
        assert [bool(mail) for mail in mails] == [False, True, False]
        assert mails[1].startswith("rows  ")
        assert "changed since 2026-11-03" in mails[1]

    def test_nights_that_break(self, nights: Nights) -> None:
        """Nothing takes over by itself; once somebody acts, the job passes on such rows."""
        sharp = 2.5
        used = nights.text("cal.json")
        assert nights.night(most="1", tolerance="3", sharper=sharp, method="temp") == 3
        assert "stays in use" in nights.mail
        assert nights.text("cal.json") == used
        assert nights.text("candidate.json") != used
        assert "candidate" in nights.text("report.html")
        assert not (nights.folder / "cal.1.json").exists()
        # Somebody acts: the new rows are normal, and the job passes on such rows from then on.
        baseline = nights.text("reference.json")
        (nights.folder / "reference.json").unlink()
        assert nights.again("accept", MAX_ECE="1", METHOD="temp") == 0
        assert nights.text("cal.1.json") == used
        assert nights.text("cal.json") == nights.text("candidate.json")
        assert nights.text("reference.json") != baseline
        assert nights.night(most="1", sharper=sharp) == 0
        assert "2 periods, 2 calibrations: " in nights.text("trend.html")

    def test_another_method_is_compared_all_the_same(self, nights: Nights) -> None:
        """Its name is the job's, so a calibration of another method has the same baseline."""
        assert nights.night("accept", method="cot", most="1") == 0
        assert json.loads(nights.text("cal.json"))["method_used"] == "cot"
        content = json.loads(nights.text("metrics.json"))
        assert set(content["metrics"]) == {"none", "nightly"}
        assert len(content["regressions"]) == 1

    def test_a_night_without_labels_is_normal(self, nights: Nights) -> None:
        """Such a night has no metrics and no gates, and prints nothing."""
        used = nights.text("cal.json")
        nights.number += 1
        write_week(nights.features, nights.number, 0.0)
        with edited(nights.features) as file:
            file["target/labels"][:] = -1
        assert nights.again(TOLERANCE="90") == 0
        assert nights.mail == ""
        assert nights.text("cal.json") == used
        assert "nothing here is measured" in nights.text("night.log")
        for name in ("metrics.json", "junit.xml", "junit-nights.xml"):
            assert not (nights.folder / name).exists()

    def test_a_bad_night_without_source_rows_has_no_candidate(self, nights: Nights) -> None:
        """Later rows are usually extracted without the source; the job still fails with 3."""
        nights.number += 1
        write_week(nights.features, nights.number, moved=1.2)
        with edited(nights.features) as file:
            del file["source"]
        assert nights.again(MAX_ECE="0.05") == 3
        assert "extract these rows together with the source, then run: " in nights.mail
        assert "nightly" in nights.text("report.html")
        assert not (nights.folder / "candidate.json").exists()

    def test_bad_input_leaves_no_metrics_of_another_night(self, nights: Nights) -> None:
        used = nights.text("cal.json")
        nights.features.write_bytes(b"")
        assert nights.again() == 1
        assert not (nights.folder / "metrics.json").exists()
        assert nights.text("cal.json") == used
