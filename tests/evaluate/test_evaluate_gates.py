"""Gates of ``covcal evaluate`` beyond ``--fail-above``: regressions, JUnit, GitHub's summary."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from covcal_cli.cli.gates import junit_report
from covcal_cli.evaluate.gates import GateResult
from covcal_cli.evaluate.metrics import METRICS
from covcal_cli.records import write_document
from tests.cli_runner import Argument, Outcome, covcal


@pytest.fixture(scope="session")
def baseline(small_files: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The metrics.json of today's temp on adapted.h5, to be changed and written elsewhere."""
    path = tmp_path_factory.mktemp("baseline") / "metrics.json"
    done = covcal("evaluate", "adapted.h5", "-c", "temp.json", "-o", path, cwd=small_files)
    done.require_success()
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def against(folder: Path, tmp_path: Path, content: dict[str, Any], *arguments: Argument) -> Outcome:
    """Judge temp against a baseline of this content."""
    path = tmp_path / "old.json"
    write_document(content, path, force=True)
    return covcal(
        *("evaluate", "adapted.h5", "-c", "temp.json", "--baseline", path, *arguments),
        *("--confidence", 0),
        cwd=folder,
    )


def with_metric(content: dict[str, Any], metric: str, value: Any) -> dict[str, Any]:
    """Return metrics.json with one metric, so that no other metric contradicts the value."""
    changed: dict[str, Any] = json.loads(json.dumps(content))
    changed["metrics"]["temp"] |= dict.fromkeys(METRICS) | {metric: value}
    return changed


class TestRegression:
    """Values as they were found; what intervals make of them is in test_gates_by_interval.py."""

    def test_no_change_is_no_regression(
        self, small_files: Path, tmp_path: Path, baseline: dict[str, Any]
    ) -> None:
        """Against itself every metric that has a direction passes with an allowance of 0."""
        limits = [
            part
            for name, metric in METRICS.items()
            if metric.better != "neither"
            for part in ("--fail-regression", f"{name}=0")
        ]
        done = against(small_files, tmp_path, baseline, *limits).require_success()
        assert done.out.count(" passed by temp: ") == len(limits) // 2

    def test_a_blend_is_paired_with_its_earlier_self(
        self, small_files: Path, tmp_path: Path
    ) -> None:
        """metrics.json has both temperatures of a blend; if both are equal, no row differs."""
        judged = ("evaluate", "adapted.h5", "-c", "blend.json", "-o")
        covcal(*judged, tmp_path / "old.json", cwd=small_files).require_success()
        against = ("--baseline", tmp_path / "old.json", "--fail-regression", "brier=0")
        covcal(*judged, tmp_path / "now.json", *against, cwd=small_files).require_success()
        (change,) = json.loads((tmp_path / "now.json").read_text())["regressions"]
        assert (change["low"], change["worse_by"], change["high"]) == (0, 0, 0)

    @pytest.mark.parametrize(
        "metric",
        [
            *("ece", "accuracy", "aurc", "correctness_auroc", "class_gap"),
        ],
    )
    def test_worse_by_more_than_allowed(
        self, small_files: Path, tmp_path: Path, baseline: dict[str, Any], metric: str
    ) -> None:
        """Worse is higher for errors and lower for the accuracy; better never fails."""
        now, n = baseline["metrics"]["temp"][metric], baseline["metrics"]["temp"]["n"]
        sign = 1 if metric in ("accuracy", "correctness_auroc") else -1
        change = sign * round(0.02 * n) / n  # an accuracy is a share of n rows
        for before, allowed, code in (
            (now + change, 0.01, 3),
            (now + change, 0.03, 0),
            (now - change, 0, 0),
        ):
            old = with_metric(baseline, metric, before)
            done = against(small_files, tmp_path, old, "--fail-regression", f"{metric}={allowed}")
            assert done.code == code, done.out

    def test_equal_is_not_exceeded(
        self, small_files: Path, tmp_path: Path, baseline: dict[str, Any]
    ) -> None:
        """Exceeded means strictly worse by more than the allowance."""
        old = with_metric(baseline, "ece", 0.0)
        now = baseline["metrics"]["temp"]["ece"]
        assert against(small_files, tmp_path, old, "--fail-regression", f"ece={now!r}").code == 0
        less = now * (1 - 1e-12)
        assert against(small_files, tmp_path, old, "--fail-regression", f"ece={less!r}").code == 3

    def test_what_is_written(
        self, small_files: Path, tmp_path: Path, baseline: dict[str, Any]
    ) -> None:
        """metrics.json lists every comparison; the sentence names both values."""
        old, path = with_metric(baseline, "ece", 0.001), tmp_path / "new.json"
        done = against(small_files, tmp_path, old, "--fail-regression", "ece=0.01", "-o", path)
        assert done.code == 3
        now = baseline["metrics"]["temp"]["ece"]
        assert json.loads(path.read_text())["regressions"] == [
            {
                "metric": "ece",
                "limit": 0.01,
                "calibration": "temp",
                "before": 0.001,
                "value": now,
                "worse_by": now - 0.001,
                "exceeded": True,
                "baseline": "temp",
                "low": None,
                "high": None,
                "same_rows": False,
            }
        ]
        assert "gate ece worse by <= 0.01 FAILED by temp: ECE 0.1 % -> " in done.out
        points = f"{100 * (now - 0.001):.1f}".removesuffix(".0")
        assert f"worse by {points} points, allowed 1 point" in done.out

    @pytest.mark.parametrize(
        ("metric", "value", "words"),
        [
            ("ece", None, "ece of temp has no value in"),
            ("ece", "0.1", "metrics.temp.ece is a text, not a number"),
            ("ece", True, "metrics.temp.ece is true, not a number"),
            # The accuracy shows whether the rows are the same, and so which interval is valid.
            ("accuracy", "x", "metrics.temp.accuracy is a text, not a number"),
        ],
    )
    def test_a_value_that_is_none_never_passes(
        self,
        small_files: Path,
        tmp_path: Path,
        baseline: dict[str, Any],
        metric: str,
        value: Any,
        words: str,
    ) -> None:
        """null, a text or a truth value in the baseline is an error, not a pass."""
        old = with_metric(baseline, metric, value)
        done = against(small_files, tmp_path, old, "--fail-regression", "ece=1")
        assert words in done.error_line()

    def test_a_metric_of_a_later_version(
        self, small_files: Path, tmp_path: Path, baseline: dict[str, Any]
    ) -> None:
        """A baseline written before a metric existed cannot vouch for it."""
        old = json.loads(json.dumps(baseline))
        del old["metrics"]["temp"]["smooth_ece"]
        done = against(
            *(small_files, tmp_path, old),
            *("--fail-regression", "smooth_ece=1", "--confidence", 0),
        )
        assert "smooth_ece of temp has no value in" in done.error_line()

    def test_a_calibration_that_the_baseline_lacks(
        self, small_files: Path, tmp_path: Path, baseline: dict[str, Any]
    ) -> None:
        """Compared by name: one that is missing is an error that lists what there is."""
        old = json.loads(json.dumps(baseline))
        del old["metrics"]["temp"]
        line = against(small_files, tmp_path, old, "--fail-regression", "ece=1").error_line()
        assert "has no calibration 'temp' (it has none)" in line

    def test_other_rows_are_noted(
        self, small_files: Path, tmp_path: Path, baseline: dict[str, Any]
    ) -> None:
        """A baseline of another number of rows compares, with a note of both numbers."""
        arguments = ("--fail-regression", "ece=1")
        n = baseline["n"]
        done = against(small_files, tmp_path, baseline, *arguments).require_success()
        assert "this evaluation" not in done.err
        metrics = {name: values | {"n": 2 * n} for name, values in baseline["metrics"].items()}
        twice = baseline | {"n": 2 * n, "metrics": metrics}
        done = against(small_files, tmp_path, twice, *arguments)
        assert f"has {2 * n} rows but this evaluation has {n}, so" in done.require_success().err

    @pytest.mark.parametrize(
        ("option", "value"), [("split", "validation"), ("bins", 10), ("predictions", "own")]
    )
    def test_other_settings_do_not_compare(
        self,
        small_files: Path,
        tmp_path: Path,
        baseline: dict[str, Any],
        option: str,
        value: Argument,
    ) -> None:
        """A baseline of other rows, bins or labels is refused, saying what to pass."""
        done = against(
            *(small_files, tmp_path, baseline, "--fail-regression", "ece=1"),
            *(f"--{option}", value),
        )
        assert f"was made with --{option} " in done.error_line()

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("", "is empty"),
            ("{", "is not JSON"),
            ("[]", "has schema None"),
            ('{"schema": "covcal.calibration/1"}', "has schema 'covcal.calibration/1'"),
            ('{"schema": "covcal.metrics/1"}', "is damaged (content_sha256 is missing)"),
            ({"schema": "covcal.metrics/1"}, "is damaged (metrics is missing)"),
            (
                {"schema": "covcal.metrics/1", "metrics": 1, "split": 1},
                "is damaged (metrics is a number, not an object)",
            ),
        ],
    )
    def test_what_is_no_baseline(
        self, small_files: Path, tmp_path: Path, content: str | dict[str, Any], words: str
    ) -> None:
        """Any other file is refused in one line that says how to make a baseline."""
        path = tmp_path / "old.json"
        if isinstance(content, str):
            path.write_text(content)
        else:
            write_document(content, path, force=False)
        done = covcal(
            *("evaluate", "adapted.h5", "--baseline", path, "--fail-regression", "ece=0"),
            cwd=small_files,
        )
        line = done.error_line()
        assert words in line
        assert "covcal evaluate -o" in line

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("--fail-regression", "ece=0.1"), "needs --baseline"),
            (("--baseline", "temp.json"), "needs --fail-regression"),
            (("--baseline", "a", "--fail-regression", "mean_confidence=0"), "can be good or bad"),
            (("--baseline", "a", "--fail-regression", "ece=-1"), "must be between 0 and"),
            (("--baseline", "a", "--fail-regression", "n=1"), "METRIC=LIMIT"),
        ],
    )
    def test_arguments(
        self, small_files: Path, arguments: tuple[Argument, ...], words: str
    ) -> None:
        """Half a gate, or one without sense, is a usage error."""
        done = covcal("evaluate", "adapted.h5", *arguments, cwd=small_files)
        assert done.code == 2
        assert words in " ".join(done.err.split())


class TestJUnit:
    def test_one_case_per_gate_and_calibration(self, small_files: Path, tmp_path: Path) -> None:
        """The report parses, counts its failures, and says what was found."""
        path = tmp_path / "junit.xml"
        done = covcal(
            *("evaluate", "adapted.h5", "-c", "temp.json", "-c", "fl+temp.json"),
            *("--fail-above", "nll=0", "--fail-above", "brier=2", "--junit", path),
            cwd=small_files,
        )
        assert done.code == 3
        assert f"wrote {path}" in done.err
        root = ET.fromstring(path.read_text(encoding="utf-8"))
        assert root.tag == "testsuites"
        suite = root[0]
        assert (suite.get("tests"), suite.get("failures")) == ("4", "2")
        failed = {case.get("name"): case.find("failure") is not None for case in suite}
        assert failed == {
            "temp: nll <= 0": True,
            "fl+temp: nll <= 0": True,
            "temp: brier <= 2": False,
            "fl+temp: brier <= 2": False,
        }
        message = suite[0].find("failure")
        assert message is not None
        assert "gate nll <= 0 FAILED by temp: " in str(message.get("message"))

    def test_a_gate_that_is_not_proved_is_skipped(self) -> None:
        """The gate neither passed nor failed, and its sentence is the message."""
        gate = GateResult("temp", "ece <= 0.1", "gate ece <= 0.1 not proved by temp", "not proved")
        suite = ET.fromstring(junit_report([gate]))[0]
        skipped = suite[0].find("skipped")
        assert (suite.get("failures"), suite.get("skipped")) == ("0", "1")
        assert skipped is not None
        assert skipped.get("message") == gate.sentence

    def test_names_that_xml_cannot_hold(self) -> None:
        """Control characters, quotes and angle brackets of a file's name leave valid XML."""
        report = junit_report([GateResult('a<b>"\x07&', "ece <= 0.1", "\x00é", "failed")])
        case = ET.fromstring(report.encode("utf-8"))[0][0]
        assert case.get("name") == 'a<b>"\ufffd&: ece <= 0.1'
        assert case[0].text == "\ufffdé"

    @pytest.mark.parametrize(
        "bad", [("--by", "site"), ("-c", "missing.json"), ("-c", "adapted.h5")]
    )
    def test_bad_input_is_an_error_in_the_report(
        self, small_files: Path, tmp_path: Path, bad: tuple[Argument, ...]
    ) -> None:
        """Where no gate could be judged the report says so; an earlier, green one is replaced."""
        path = tmp_path / "junit.xml"
        gate = ("--fail-above", "ece=1", "--junit", path, "--force")
        covcal("evaluate", "adapted.h5", *gate, cwd=small_files).require_success()
        assert ET.fromstring(path.read_text())[0].get("errors") == "0"
        line = covcal("evaluate", "adapted.h5", *gate, *bad, cwd=small_files).error_line()
        suite = ET.fromstring(path.read_text())[0]
        assert (suite.get("tests"), suite.get("errors"), suite.get("failures")) == ("1", "1", "0")
        assert suite[0][0].tag == "error"
        assert suite[0][0].get("message") == line

    def test_a_first_report_of_an_error(self, small_files: Path, tmp_path: Path) -> None:
        """A metric without a value leaves an error, too, where no report was before."""
        path = tmp_path / "junit.xml"
        covcal(
            *("evaluate", "adapted.h5", "--fail-above", "ece=1", "--by", "site", "--junit", path),
            cwd=small_files,
        ).error_line()
        assert ET.fromstring(path.read_text())[0].get("errors") == "1"

    @pytest.mark.parametrize("force", [(), ("--force",)])
    def test_an_error_replaces_nothing_but_a_report(
        self, small_files: Path, tmp_path: Path, force: tuple[Argument, ...]
    ) -> None:
        """Any other file stays unchanged, even with --force; without it, a report stays too."""
        for content in ("mine", '<?xml version="1.0" encoding="UTF-8"?>\n<a/>')[: 2 - len(force)]:
            path = tmp_path / "junit.xml"
            path.write_text(content)
            covcal(
                *("evaluate", "adapted.h5", "-c", "missing.json", "--fail-above", "ece=1"),
                *("--junit", path, *force),
                cwd=small_files,
            ).error_line()
            assert path.read_text() == content

    def test_without_a_gate(self, small_files: Path, tmp_path: Path) -> None:
        """A report of no gates would always be green."""
        done = covcal("evaluate", "adapted.h5", "--junit", tmp_path / "j.xml", cwd=small_files)
        assert "needs --fail-above, --fail-below or" in " ".join(done.usage_error().split())


class TestGitHub:
    def test_the_summary_gets_the_tables(
        self, small_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In a GitHub job the Markdown is appended to the summary; annotations stay on stdout."""
        summary = tmp_path / "summary.md"
        summary.write_text("before\n")
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
        arguments = ("evaluate", "adapted.h5", "--format", "github", "--fail-above", "ece=0")
        done = covcal(*arguments, cwd=small_files)
        assert done.code == 3
        written = summary.read_text()
        assert written.startswith("before\n- gate ece <= 0 FAILED by the uncalibrated classifier")
        assert "\n- **Verdict**: Do not trust the confidence" in written
        assert "\n\n| calibration |" in written
        assert "::error::" not in written
        assert done.out.splitlines()[-1].startswith("::error::covcal: gate ece <= 0 FAILED")
        covcal("evaluate", "adapted.h5", cwd=small_files).require_success()
        assert summary.read_text() == written

    def test_a_summary_that_cannot_be_written(
        self, small_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A wrong path is named with the way round it."""
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "no" / "summary.md"))
        done = covcal("evaluate", "adapted.h5", "--format", "github", cwd=small_files)
        assert done.code == 1
        assert "unset GITHUB_STEP_SUMMARY" in done.err
