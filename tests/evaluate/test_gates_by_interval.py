"""Gates that judge intervals: what is beyond chance fails, and nothing else does."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covcal_cli import __version__
from covcal_cli.evaluate.bins import Bins
from covcal_cli.evaluate.bootstrap import LOSSES, Resampling, ece_interval
from covcal_cli.evaluate.gates import detectable, rows_to_decide
from covcal_cli.maths.odds import wilson
from covcal_cli.records import write_document
from tests import calibrating
from tests.cli_runner import Argument, covcal, printed_json
from tests.evaluate.made_bins import binned
from tests.labels.labelling import fill
from tests.made_files import clusters_domain, edited, made_domain, write_features

EXCEEDED = 3


@pytest.fixture(scope="module")
def first_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is not changed: 600 labelled target rows, cal.json by temp, and its metrics.

    old.json holds the metrics alone, resampled.json their intervals too.
    """
    folder = tmp_path_factory.mktemp("first")
    write(folder)
    calibrated(folder)
    baseline(folder)
    baseline(folder, "--bootstrap", 200, name="resampled.json")
    return folder


@pytest.fixture
def folder(first_files: Path, tmp_path: Path) -> Path:
    """A copy of the first files that a test may change."""
    shutil.copytree(first_files, tmp_path, dirs_exist_ok=True)
    return tmp_path


def write(folder: Path, *, moved: float = 0.8, seed: int = 0, n: int = 600) -> None:
    sizes = (300, 500, n)
    write_features(
        folder / "features.h5",
        source=clusters_domain("source", sizes=sizes),
        target=clusters_domain("target", sizes=sizes, moved=moved, seed=seed),
    )


def calibrated(
    folder: Path, *, times: float = 1.0, name: str = "cal.json", method: str = "temp"
) -> None:
    """Write a calibration, its temperature multiplied."""
    calibrating.calibrated(folder / "features.h5", method, name)
    content = json.loads((folder / name).read_text())
    content["temperatures"]["forecaster"] *= times
    write_document(content, folder / name, force=True)


def judged(
    folder: Path, *arguments: Argument, given: str = "cal.json"
) -> tuple[int, dict[str, Any]]:
    """Evaluate, and return the exit code and metrics.json."""
    path = folder / "metrics.json"
    done = covcal(
        *("evaluate", "features.h5", "-c", given, "-o", path, "--force", *arguments), cwd=folder
    )
    assert done.code in (0, EXCEEDED), done.err
    return done.code, json.loads(path.read_text())


def baseline(
    folder: Path, *arguments: Argument, given: str = "cal.json", name: str = "old.json"
) -> Path:
    covcal(
        *("evaluate", "features.h5", "-c", given, "-o", name, "--force", *arguments), cwd=folder
    ).require_success()
    return folder / name


class TestLimits:
    def test_the_lower_end_decides(self, folder: Path) -> None:
        """A limit between the lower end and the value is kept, and said to be undecided."""
        _, found = judged(folder, "--fail-above", "ece=1")
        (limit,) = found["limits"]
        low, value, high = limit["low"], limit["value"], limit["high"]
        assert low < value < high
        assert [low, high] == found["intervals"]["temp"]["ece"]
        code, _ = judged(folder, "--fail-above", f"ece={(low + value) / 2}")
        assert code == 0
        out = covcal(
            *("evaluate", "features.h5", "-c", "cal.json"),
            *("--fail-above", f"ece={(low + value) / 2}"),
            cwd=folder,
        ).out
        assert "; 600 rows are too few" in out
        assert judged(folder, "--fail-above", f"ece={low * 0.99}")[0] == EXCEEDED
        assert judged(folder, "--fail-above", f"ece={(low + value) / 2}", "--confidence", 0)[0]

    def test_a_lower_confidence_fails_sooner(self, folder: Path) -> None:
        """The level is that of the intervals, in the gate, the file and the sentence."""
        ends = []
        for level in (0.5, 0.95, 0.999):
            _, found = judged(folder, "--fail-above", "brier=2", "--confidence", level)
            assert found["bootstrap"]["level"] == level
            ends.append(found["limits"][0]["low"])
        assert ends[0] > ends[1] > ends[2]

    @pytest.mark.parametrize(
        ("option", "metric"),
        [
            *(("--fail-above", name) for name in ("classwise_ece", "debiased_ece", "smooth_ece")),
            *(("--fail-above", "aurc"), ("--fail-above", "mce"), ("--fail-regression", "mce")),
            ("--fail-regression", "calibration"),
        ],
    )
    def test_what_has_no_interval(self, folder: Path, option: str, metric: str) -> None:
        """Chance alone would fail its gate, so values as found are judged only where asked for."""
        old = ("--baseline", folder / "old.json") if option == "--fail-regression" else ()
        gate = (*old, option, f"{metric}=1")
        run = covcal("evaluate", "features.h5", "-c", "cal.json", *gate, cwd=folder)
        assert run.code == 2
        assert f"{metric} has no interval" in run.err
        code, found = judged(folder, *gate, "--confidence", 0)
        assert code == 0
        assert (found["limits"] + found["regressions"])[0]["low"] is None

    @pytest.mark.parametrize("level", [-0.1, 1, 1.5, "nan"])
    def test_a_level_that_is_none(self, folder: Path, level: Argument) -> None:
        run = covcal("evaluate", "features.h5", "--confidence", level, cwd=folder)
        assert run.code in (1, 2)
        assert "Traceback" not in run.err


class TestLeast:
    """What is better for being higher: --fail-below."""

    def test_the_upper_end_decides(self, folder: Path) -> None:
        """A limit between the value and the upper end is kept, and said to be undecided."""
        asked = ("evaluate", "features.h5", "-c", "cal.json", "--bootstrap", 50)
        found = printed_json(*asked, cwd=folder)
        for metric in ("accuracy", "correctness_auroc"):
            value, (low, high) = (
                found["metrics"]["temp"][metric],
                found["intervals"]["temp"][metric],
            )
            assert low < value < high
            gate = ("--fail-below", f"{metric}={(value + high) / 2}")
            out = covcal(*asked, *gate, cwd=folder).require_success().out
            assert f"gate {metric} >= " in out
            assert "; 600 rows are too few" in out
            assert covcal(*asked, *gate, "--confidence", 0, cwd=folder).code == EXCEEDED
            run = covcal(*asked, "--fail-below", f"{metric}={(1 + high) / 2}", cwd=folder)
            assert run.code == EXCEEDED
            assert f"gate {metric} >= " in run.out
            assert " FAILED by temp: " in run.out

    def test_an_error_has_no_least(self, folder: Path) -> None:
        run = covcal("evaluate", "features.h5", "--fail-below", "ece=0.1", cwd=folder)
        said = " ".join(run.usage_error().split())
        assert "a lower ece is better: use --fail-above ece=0.1" in said
        least = "accuracy, sharpness, agreement, correctness_auroc, coverage"
        assert f"(--fail-below takes {least})" in said

    @pytest.mark.parametrize("confidence", [0, 0.95])
    def test_no_value_is_no_pass(self, folder: Path, confidence: float) -> None:
        """If every row is right, there is no AUROC: the gate ends in an error and does not pass."""
        with edited(folder / "features.h5") as file:
            file["target/labels"][:] = file["target/logits"][:].argmax(axis=1)
        run = covcal(
            *("evaluate", "features.h5", "-c", "cal.json", "--confidence", confidence),
            *("--fail-below", "correctness_auroc=0"),
            cwd=folder,
        )
        assert run.error_line() == ("correctness_auroc of temp has no value: leave out this gate")


class TestGroups:
    """Gates on each group of rows: METRIC:GROUPS=LIMIT."""

    @pytest.fixture
    def one_bad_class(self, folder: Path) -> Path:
        """A folder whose confidence is fair on average, and far too high where 0 is predicted."""
        with edited(folder / "features.h5") as file:
            logits, labels = file["target/logits"][:], file["target/labels"][:]
            predicted = logits.argmax(axis=1)
            rng = np.random.default_rng(0)
            probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            drawn = (rng.random((len(labels), 1)) > probabilities.cumsum(axis=1)).sum(axis=1)
            wrong = (predicted == 0) & (rng.random(len(labels)) < 0.8)
            labels[:] = np.where(wrong, 1, np.minimum(drawn, logits.shape[1] - 1))
            file["target/labels"][:] = labels
        return folder

    def test_the_class_that_is_off_is_found(self, one_bad_class: Path) -> None:
        """The gate on predicted classes fails and names one class; metrics.json lists all."""
        gate = ("--fail-above", "ece:predicted=0.2")
        code, content = judged(one_bad_class, *gate)
        assert code == EXCEEDED
        by_group = {limit["group"]: limit for limit in content["limits"]}
        assert [g for g, limit in by_group.items() if limit["exceeded"]] == ["class 0"]
        assert {limit["by"] for limit in content["limits"]} == {"predicted"}
        assert sum(limit["n"] for limit in content["limits"]) == content["n"]
        arguments = ("evaluate", "features.h5", "-c", "cal.json", *gate)
        out = covcal(*arguments, cwd=one_bad_class).out
        assert "gate ece <= 0.2 by predicted FAILED by temp: class 0: ECE " in out
        assert "where class 0 is predicted, " in out

    def test_groups_of_a_column_and_a_least_value(self, one_bad_class: Path) -> None:
        """Several groupings in one job; the plain value decides with --confidence 0."""
        gates = ("--fail-below", "accuracy:predicted=0.9", "--fail-above", "ece:class=1")
        code, content = judged(one_bad_class, *gates, "--confidence", 0)
        assert code == EXCEEDED
        for limit in content["limits"]:
            assert limit["low"] is None
            if limit["by"] == "predicted":
                assert limit["exceeded"] == (limit["value"] < 0.9)
        assert {limit["by"] for limit in content["limits"]} == {"predicted", "class"}

    def test_by_shows_intervals_of_groups(self, folder: Path) -> None:
        """With --bootstrap every group has the interval of its accuracy and of its ECE."""
        content = printed_json(
            *("evaluate", "features.h5", "--by", "predicted", "--bootstrap", 100), cwd=folder
        )
        for group in content["groups"]["none"]:
            low, high = group["intervals"]["accuracy"]
            assert low <= group["accuracy"] <= high
            assert group["intervals"]["ece"][0] < group["intervals"]["ece"][1]

    @pytest.mark.parametrize(
        ("gate", "words"),
        [
            (("--fail-above", "nll:class=1"), "nll has no interval for groups of rows"),
            (("--fail-above", "ece:=1"), "must be METRIC=LIMIT"),
            (("--fail-above", "accuracy:class=1"), "use --fail-below accuracy:class=1"),
        ],
    )
    def test_gates_without_sense(
        self, folder: Path, gate: tuple[Argument, ...], words: str
    ) -> None:
        run = covcal("evaluate", "features.h5", *gate, cwd=folder)
        assert run.code == 2
        assert words in " ".join(run.err.split())

    def test_an_unknown_column(self, folder: Path) -> None:
        line = covcal("evaluate", "features.h5", "--fail-above", "ece:site=1", cwd=folder)
        assert "has no target column 'site' to group by" in line.error_line()


class TestOneLevel:
    """All gates of a job share one error rate."""

    def test_more_gates_have_wider_intervals(self, folder: Path) -> None:
        """Each of six gates has the interval of a sixth of the error rate."""
        _, alone = judged(folder, "--fail-above", "ece=1", "--confidence", 1 - 0.05 / 6)
        gates = [part for i in range(6) for part in ("--fail-above", f"ece={0.9 + i / 100}")]
        _, together = judged(folder, *gates, "--confidence", 0.95)
        (one,) = alone["limits"]
        for limit in together["limits"]:
            assert [limit["low"], limit["high"]] == pytest.approx([one["low"], one["high"]])

    def test_a_job_of_six_gates_fails_as_rarely_as_one(self) -> None:
        """Six calibrated groups with limit 0: at most 5 % of jobs fail, less chance of 12 jobs."""
        failures = 0
        for seed in range(12):
            rng = np.random.default_rng(seed)
            lows = []
            for _ in range(6):
                confidence = 0.5 + 0.5 * rng.random(250)
                sample = binned(confidence, rng.random(250) < confidence)
                level = 1 - 0.05 / 6
                lows.append(ece_interval(sample, Resampling(600, seed, level))[0])
            failures += max(lows) > 0
        assert failures <= 2


class TestPower:
    """What a gate's sentence says about rows."""

    def test_so_many_rows_decide_in_four_of_five_samples(self) -> None:
        """For an accuracy of 70 % and a limit of 64 %, by simulation."""
        n, value, limit = 200, 0.7, 0.64
        rows = rows_to_decide(n, value, wilson(value, n, 0.95), limit)
        assert rows is not None
        assert 400 < rows < 1000
        hits = np.random.default_rng(0).binomial(rows, value, size=400)
        decided = np.mean([wilson(count / rows, rows, 0.95)[0] > limit for count in hits])
        assert decided == pytest.approx(0.8, abs=0.07)

    def test_the_smallest_error_that_is_found(self) -> None:
        """An ECE beyond the limit by `detectable` fails its gate in about four of five samples."""
        n, limit = 400, 0.05

        def sample(gap: float, seed: int) -> Bins:
            rng = np.random.default_rng(seed)
            confidence = 0.6 + 0.4 * rng.random(n)
            return binned(confidence, rng.random(n) < confidence - gap)

        interval = ece_interval(sample(limit, 0), Resampling(400, 0))
        gap = limit + detectable(interval, 0.95)
        failed = [
            ece_interval(sample(gap, seed), Resampling(100, seed))[0] > limit for seed in range(60)
        ]
        assert 0.65 <= np.mean(failed) <= 0.98

    def test_a_value_at_the_limit_has_no_number(self) -> None:
        assert rows_to_decide(100, 0.05, (0.0, 0.1), 0.05) is None


class TestSameRows:
    def test_the_difference_is_paired(self, folder: Path) -> None:
        """Its interval is that of evaluate with both calibrations, far narrower than either's."""
        old = folder / "old.json"
        calibrated(folder, times=0.8, name="sharper.json")
        both = printed_json(
            *("evaluate", "features.h5", "-c", "old=cal.json", "-c", "new=sharper.json"),
            *("--bootstrap", 200, "--confidence", 1 - (1 - 0.95) / 7),  # as seven gates share it
            cwd=folder,
        )
        paired = {
            one["metric"]: one
            for one in both["differences"]
            if (one["calibration"], one["against"]) == ("new", "old")
        }
        gates = [
            part
            for name in ("ece", "class_gap", *LOSSES, "correctness_auroc")
            for part in ("--fail-regression", f"{name}=1")
        ]
        _, found = judged(folder, "--baseline", old, *gates, given="sharper.json")
        for change in found["regressions"]:
            assert change["same_rows"]
            one = paired[change["metric"]]
            sign = -1 if change["metric"] == "correctness_auroc" else 1
            ends = sorted([sign * one["low"], sign * one["high"]])
            assert [change["low"], change["high"]] == ends
            assert change["worse_by"] == pytest.approx(sign * one["value"], abs=1e-12)
        brier = found["intervals"]["temp"]["brier"]
        assert paired["brier"]["high"] - paired["brier"]["low"] < 0.3 * (brier[1] - brier[0])

    def test_a_small_harm_is_found(self, folder: Path) -> None:
        """That two intervals which overlap would pass."""
        old = folder / "old.json"
        calibrated(folder, times=0.85)
        code, found = judged(folder, "--baseline", old, "--fail-regression", "brier=0")
        assert code == EXCEEDED
        before = json.loads(old.read_text())["metrics"]["temp"]["brier"]
        assert found["intervals"]["temp"]["brier"][0] < before

    def test_nothing_changed(self, folder: Path) -> None:
        """Not even an allowance of 0 is exceeded, whatever the metric."""
        old = folder / "old.json"
        metrics = ("ece", "over_ece", "adaptive_ece", "accuracy", "brier", "correctness_auroc")
        gates = [
            part for name in (*metrics, "class_gap") for part in ("--fail-regression", f"{name}=0")
        ]
        code, found = judged(folder, "--baseline", old, *gates)
        assert code == 0
        assert len(found["regressions"]) == len(metrics) + 1
        assert all(change["same_rows"] for change in found["regressions"])

    def test_edited_metrics_are_not_the_same_rows(self, folder: Path) -> None:
        """A baseline that the rows contradict is of other rows, and compared as such."""
        old = folder / "resampled.json"
        content = json.loads(old.read_text())
        content["metrics"]["temp"]["nll"] += 0.01
        write_document(content, old, force=True)
        _, found = judged(folder, "--baseline", old, "--fail-regression", "nll=1")
        assert not found["regressions"][0]["same_rows"]


class TestOtherRows:
    def test_noise_passes_and_drift_does_not(self, folder: Path) -> None:
        """Two nights of the same distribution pass at an allowance of 0; a drift fails."""
        old = folder / "resampled.json"
        gates = ("--baseline", old, "--fail-regression", "ece=0", "--fail-regression", "accuracy=0")
        failed = 0
        for seed in range(1, 3):
            write(folder, seed=seed)
            code, found = judged(folder, *gates)
            failed += code == EXCEEDED
            assert not found["regressions"][0]["same_rows"]
        assert failed == 0
        write(folder, moved=2.0)
        assert judged(folder, *gates)[0] == EXCEEDED

    def test_a_baseline_of_an_older_version(self, folder: Path) -> None:
        """Without intervals or temperatures: they follow from its bins and its rows."""
        old = folder / "resampled.json"
        write(folder, seed=1)
        metrics = ("ece", "over_ece", "under_ece", "accuracy")
        gates = [part for name in metrics for part in ("--fail-regression", f"{name}=1")]
        _, found = judged(folder, "--baseline", old, *gates)
        content = json.loads(old.read_text())
        for name in ("version", "name", "forecasters", "differences"):
            del content[name]
        write_document(content | {"bootstrap": None, "intervals": {}}, old, force=True)
        _, without = judged(folder, "--baseline", old, *gates)
        for first, second in zip(found["regressions"], without["regressions"], strict=True):
            assert first["metric"] == second["metric"]
            for end in ("low", "high"):
                assert first[end] == pytest.approx(second[end], abs=0.01), first["metric"]

    @pytest.mark.parametrize("count", [-1, 1e300, "1", None, []])
    def test_bins_that_cannot_be(self, folder: Path, count: object) -> None:
        """A baseline with such counts has no interval: one line, whatever they are."""
        old = folder / "old.json"
        write(folder, seed=1)
        content = json.loads(old.read_text())
        content["bins"]["calibrations"]["temp"]["count"][-1] = count
        write_document(content, old, force=True)
        run = covcal(
            *("evaluate", "features.h5", "-c", "cal.json", "--baseline", old),
            *("--fail-regression", "ece=0"),
            cwd=folder,
        )
        assert "has no 95 % interval for ece of temp" in run.error_line()

    def test_a_mean_without_an_interval(self, folder: Path) -> None:
        """What cannot be told of an old baseline is an error with the ways out, never a pass."""
        old = folder / "old.json"
        write(folder, seed=1)
        run = covcal(
            *("evaluate", "features.h5", "-c", "cal.json", "--baseline", old),
            *("--fail-regression", "brier=0"),
            cwd=folder,
        )
        line = run.error_line()
        assert "has no 95 % interval for brier of temp" in line
        assert "--confidence 0" in line


class TestNames:
    def test_a_name_of_ones_own(self, folder: Path) -> None:
        """In the table, in metrics.json and in the gate's sentence."""
        code, found = judged(folder, "--fail-above", "nll=0", given="live=cal.json")
        assert code == EXCEEDED
        assert set(found["metrics"]) == {"none", "live"}
        assert found["limits"][0]["calibration"] == "live"
        content = printed_json("estimate", "features.h5", "-c", "live=cal.json", cwd=folder)
        assert [one["name"] for one in content["calibrations"]] == ["live"]

    def test_a_file_with_an_equals_sign_is_a_file(self, folder: Path) -> None:
        calibrated(folder, name="t=1.json")
        _, found = judged(folder, given="t=1.json")
        assert set(found["metrics"]) == {"none", "temp"}

    def test_another_method_under_one_name(self, folder: Path) -> None:
        """A baseline by temp and a calibration by cot compare under the name of both."""
        old = baseline(folder, given="live=cal.json")
        covcal(
            *("calibrate", "features.h5", "--method", "cot", "-o", "cal.json", "--force"),
            cwd=folder,
        ).require_success()
        gate = ("--baseline", old, "--fail-regression", "ece=1")
        _, found = judged(folder, *gate, given="live=cal.json")
        assert found["regressions"][0]["baseline"] == "live"

    def test_the_one_calibration_of_either_side(self, folder: Path) -> None:
        """Without names too, where there is nothing to confuse; the sentence says both names."""
        old = folder / "old.json"
        covcal(
            *("calibrate", "features.h5", "--method", "cot", "-o", "cal.json", "--force"),
            cwd=folder,
        ).require_success()
        _, found = judged(folder, "--baseline", old, "--fail-regression", "ece=1")
        (change,) = found["regressions"]
        assert (change["calibration"], change["baseline"]) == ("cot", "temp")

    def test_two_that_are_not_there(self, folder: Path) -> None:
        """Which is which cannot be guessed: an error that says how to name them."""
        old = folder / "old.json"
        calibrated(folder, name="b.json")
        run = covcal(
            *("evaluate", "features.h5", "-c", "a=cal.json", "-c", "b=b.json"),
            *("--baseline", old, "--fail-regression", "ece=1"),
            cwd=folder,
        )
        assert "has no calibration 'a' (it has none, temp)" in run.error_line()


class TestSplits:
    def test_all_of_them(self, folder: Path) -> None:
        found = printed_json("evaluate", "features.h5", "--split", "all", cwd=folder)
        assert (found["split"], found["n"]) == ("all", 1400)

    def test_rows_that_labels_were_read_of_are_left_out(self, folder: Path) -> None:
        arguments = ("features.h5", "--labels", 100, "-o", "few.json")
        covcal("calibrate", *arguments, cwd=folder).require_success()
        found = printed_json(
            "evaluate", "features.h5", "-c", "few.json", "--split", "all", cwd=folder
        )
        assert (found["n"], found["left_out"]) == (1300, 100)

    def test_labels_in_one_split_alone(self, folder: Path) -> None:
        """Those of other splits are found, or --split all is the remedy."""
        target = clusters_domain("target", sizes=(300, 500, 600))
        target["labels"][300:] = -1
        write_features(folder / "features.h5", source=clusters_domain("source"), target=target)
        run = covcal("evaluate", "features.h5", cwd=folder)
        assert "to measure the labelled rows of other splits, pass --split" in run.error_line()
        found = printed_json("evaluate", "features.h5", "--split", "all", cwd=folder)
        assert (found["n"], found["unlabelled"]) == (300, 1100)

    def test_labels_of_picked_rows_alone(self, folder: Path) -> None:
        """Picked rows are for the calibration, and the message names the rows to pick."""
        target = clusters_domain("target", sizes=(300, 500, 600))
        write_features(folder / "features.h5", source=clusters_domain("source"), target=target)
        covcal("pick", "features.h5", "-n", 20, cwd=folder).require_success()
        fill(folder / "to-label.csv", folder / "features.h5")
        target["labels"][:] = -1
        write_features(folder / "features.h5", source=clusters_domain("source"), target=target)
        covcal("label", "features.h5", "to-label.csv", cwd=folder).require_success()
        line = covcal("evaluate", "features.h5", cwd=folder).error_line()
        assert line.startswith("features.h5: none of its 600 target test rows has a label: ")
        assert "draw test rows with covcal pick features.h5 --split test and label" in line

    @pytest.mark.parametrize("labelled", [True, False])
    def test_no_test_rows(self, folder: Path, labelled: bool) -> None:
        """Labels elsewhere: --split all. None at all: the report does without measured figures."""
        target = made_domain("target", sizes=(300, 500, 0))
        if not labelled:
            target["labels"][:] = -1
        write_features(folder / "features.h5", source=made_domain("source"), target=target)
        calibrated(folder)
        line = covcal("evaluate", "features.h5", "-c", "cal.json", cwd=folder).error_line()
        run = covcal("report", "features.h5", "-c", "cal.json", cwd=folder)
        if labelled:
            assert "pass --split all" in line
            assert "pass --split all" in run.error_line()
            arguments = ("features.h5", "-c", "cal.json", "--split", "all")
            run = covcal("report", *arguments, cwd=folder).require_success()
            assert "Measured on 800 labelled target rows" in run.out
        else:
            assert "covcal estimate" in line
            assert "nothing here is measured" in run.require_success().out


def test_by_what_but_not_when(folder: Path) -> None:
    """metrics.json says version and model; a date would change its bytes from day to day."""
    found = printed_json("evaluate", "features.h5", cwd=folder)
    assert "date" not in found
    assert found["version"] == __version__
    assert found["name"] == "made.onnx"
