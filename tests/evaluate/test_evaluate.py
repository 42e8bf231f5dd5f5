"""``covcal evaluate``: what it computes, what it refuses, and how it judges limits."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from covcal_cli.arrays import Float64s, Floats, Labels
from covcal_cli.errors import UnlabelledError
from covcal_cli.evaluate.evaluate import evaluate
from covcal_cli.evaluate.metrics import METRICS
from covcal_cli.files import sha256_of
from covcal_cli.forecast import read_named
from covcal_cli.records import write_document
from tests.cli_runner import Argument, Outcome, covcal, printed_json
from tests.made_files import edited, made_domain, only_rows, write_features

CLOSE = 1e-6
AGAIN = ": fit another calibration on this file"


def rows_of(path: Path, split: int = 2) -> dict[str, NDArray[Any]]:
    """Return the target's arrays of one split, read without covcal."""
    with h5py.File(path) as file:
        keep = np.flatnonzero(file["target/split"][:] == split)
        found = {name: file["target"][name][:] for name in ("logits", "labels")}
        found = {name: values[keep] for name, values in found.items()}
        if "aligned_logits" in file["target"]:
            found["aligned_logits"] = file["target/aligned_logits"][:][:, keep]
    return found


def softmax(logits: Floats, temperature: float) -> Float64s:
    powers = np.exp((logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)) / temperature)
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def by_hand(probabilities: Float64s, judged: Labels, labels: Labels, bins: int) -> dict[str, float]:
    """Return the metrics by a plain loop over bins."""
    n = len(labels)
    rows = np.arange(n)
    confidence, correct = probabilities[rows, judged], judged == labels
    over = under = 0.0
    for number in range(bins):
        low, high = number / bins, (number + 1) / bins
        inside = (confidence > low) & (confidence <= high)
        if number == 0:
            inside |= confidence == 0
        if inside.any():
            gap = inside.sum() / n * (confidence[inside].mean() - correct[inside].mean())
            over, under = over + max(gap, 0), under + max(-gap, 0)
    truth = np.eye(probabilities.shape[1])[labels]
    return {
        "n": n,
        "accuracy": correct.mean(),
        "mean_confidence": confidence.mean(),
        "ece": over + under,
        "over_ece": over,
        "under_ece": under,
        "nll": -np.log(probabilities[rows, labels]).mean(),
        "brier": ((probabilities - truth) ** 2).sum(axis=1).mean(),
        "agreement": (probabilities.argmax(axis=1) == judged).mean(),
    }


def temperature_of(path: Path) -> float:
    return float(json.loads(path.read_text())["temperatures"]["forecaster"])


def report(*arguments: Argument, cwd: Path | None = None) -> dict[str, Any]:
    return printed_json("evaluate", *arguments, cwd=cwd)


class TestNumbers:
    @pytest.mark.parametrize("bins", [1, 7, 15, 100])
    def test_none_is_the_classifier_itself(self, small_files: Path, bins: int) -> None:
        """``none`` is always measured, and is the softmax of the logits."""
        path = small_files / "features.h5"
        found = report(path, "--bins", bins)["metrics"]
        assert list(found) == ["none"]
        rows = rows_of(path)
        probabilities, judged = softmax(rows["logits"], 1.0), rows["logits"].argmax(axis=1)
        for name, value in by_hand(probabilities, judged, rows["labels"], bins).items():
            assert found["none"][name] == pytest.approx(value, rel=CLOSE), name

    def test_a_temperature_divides_the_logits(self, small_files: Path) -> None:
        """temp judges the classifier's labels with softmax(z / T)."""
        path, calibration = small_files / "adapted.h5", small_files / "temp.json"
        found = report(path, "-c", calibration)
        rows = rows_of(path)
        temperature = temperature_of(calibration)
        assert temperature > 1
        assert found["temperatures"] == {"none": 1.0, "temp": temperature}
        expected = by_hand(
            softmax(rows["logits"], temperature), rows["logits"].argmax(axis=1), rows["labels"], 15
        )
        for name, value in expected.items():
            assert found["metrics"]["temp"][name] == pytest.approx(value, rel=CLOSE), name

    @pytest.mark.parametrize("method", ["fl+temp", "blend"])
    @pytest.mark.parametrize("predictions", ["original", "own"])
    def test_the_aligned_forecaster_judges_the_original_label(
        self, small_files: Path, predictions: str, method: str
    ) -> None:
        """fl methods give their confidence in f's label, unless --predictions own is asked for."""
        path, calibration = small_files / "adapted.h5", small_files / f"{method}.json"
        found = report(path, "-c", calibration, "--predictions", predictions)
        rows = rows_of(path)
        mean = softmax(rows["aligned_logits"], 1.0).mean(axis=0)
        probabilities = softmax(np.log(mean), temperature_of(calibration))
        if method == "blend":
            given = json.loads(calibration.read_text())["temperatures"]
            assert found["temperatures"][method] == given["forecaster"]
            assert found["aligned_temperatures"] == {method: given["aligned"]}
            parts = (
                softmax(rows["logits"], given["forecaster"]),
                softmax(np.log(mean), given["aligned"]),
            )
            probabilities = (parts[0] + parts[1]) / 2
        original = rows["logits"].argmax(axis=1)
        judged = original if predictions == "original" else probabilities.argmax(axis=1)
        assert (probabilities.argmax(axis=1) != original).any()
        assert found["predictions"] == predictions
        for name, value in by_hand(probabilities, judged, rows["labels"], 15).items():
            assert found["metrics"][method][name] == pytest.approx(value, rel=CLOSE), name

    def test_the_parts_sum_up(self, small_files: Path) -> None:
        """ECE is the sum of its two parts, and Brier about calibration + 1 - sharpness."""
        path = small_files / "adapted.h5"
        for entry in report(path, "-c", small_files / "temp.json")["metrics"].values():
            assert list(entry) == ["n", *METRICS]
            assert entry["ece"] == pytest.approx(entry["over_ece"] + entry["under_ece"])
            assert entry["brier"] == pytest.approx(
                entry["calibration"] + 1 - entry["sharpness"], abs=0.01
            )

    def test_blocks_change_nothing(
        self, small_files: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However many rows are read at once, the report is the same."""
        path = small_files / "adapted.h5"
        arguments = (path, "-c", small_files / "fl+iw+temp.json", "--split", "validation")
        whole = report(*arguments)
        monkeypatch.setattr(
            "covcal_cli.formats.features.Domain.blocks",
            lambda _, rows, *_names: (rows[start : start + 7] for start in range(0, len(rows), 7)),
        )
        pieces = report(*arguments)
        assert (
            pieces["bins"]["calibrations"]["fl+iw+temp"]["count"]
            == (whole["bins"]["calibrations"]["fl+iw+temp"]["count"])
        )
        for name, value in whole["metrics"]["fl+iw+temp"].items():
            assert pieces["metrics"]["fl+iw+temp"][name] == pytest.approx(value, rel=1e-12)

    def test_files_may_be_named_by_strings(self, small_files: Path) -> None:
        """As from Python; what is found is the same."""
        path, document = small_files / "adapted.h5", small_files / "fl+temp.json"
        named = read_named([document])
        found = evaluate(str(path), named, documents=[str(document)])
        expected = evaluate(path, named, documents=[document])
        assert found.inputs == expected.inputs
        assert found.metrics["fl+temp"].to_json() == expected.metrics["fl+temp"].to_json()


class TestRows:
    @pytest.mark.parametrize(("split", "number"), [("train", 0), ("validation", 1), ("test", 2)])
    def test_split(self, small_files: Path, split: str, number: int) -> None:
        """--split chooses the rows; test is the default."""
        path = small_files / "features.h5"
        found = report(path, "--split", split)
        assert found["split"] == split
        assert found["n"] == len(rows_of(path, number)["labels"])
        if split == "test":
            assert found == report(path)

    def test_a_file_of_later_rows_is_measured_whole(self, tmp_path: Path) -> None:
        """Without --split, all rows count if no calibration has read them, else the test rows."""
        write_features(tmp_path / "features.h5", source=made_domain("source"))
        calibration = tmp_path / "cal.json"
        covcal("calibrate", tmp_path / "features.h5", "--method", "temp", "-o", calibration)
        later = write_features(tmp_path / "week.h5", target=made_domain("target", shift=1.0))
        with edited(later) as file:
            del file["source"]
        total = len(rows_of(later, 0)["labels"]) + len(rows_of(later, 1)["labels"])
        total += len(rows_of(later)["labels"])
        found = report(later, "-c", calibration)
        assert (found["split"], found["n"]) == ("all", total)
        screen = covcal("evaluate", later, "-c", calibration).require_success()
        assert "covcal has already used" not in screen.err
        assert "pick" not in screen.err
        gate = ("--split", "test", "--fail-above", "ece=0.12")
        done = covcal("evaluate", later, "-c", calibration, *gate).require_success()
        assert f"to measure all {total:,} labelled rows, pass --split all" in done.out
        document = json.loads(calibration.read_text())
        document["inputs"][0]["sha256"] = found["inputs"][0]["sha256"]
        write_document(document, calibration, force=True)
        assert report(later, "-c", calibration)["split"] == "test"

    def test_unlabelled_rows_are_left_out_and_counted(self, features: Path) -> None:
        """Rows with label -1 do not count, and a note says how many there are."""
        with edited(features) as file:
            keep = file["target/split"][:] == 2
            labels = file["target/labels"][:]
            labels[np.flatnonzero(keep)[::4]] = -1
            file["target/labels"][:] = labels
        done = covcal("evaluate", features, "-o", "-").require_success()
        found = json.loads(done.out)
        rows = rows_of(features)
        known = rows["labels"] >= 0
        assert found["unlabelled"] == (~known).sum() == 20
        assert found["n"] == known.sum() == 60
        assert "note: 20 rows without a label are left out\n" in done.err
        logits, labels = rows["logits"][known], rows["labels"][known]
        expected = by_hand(softmax(logits, 1.0), logits.argmax(axis=1), labels, 15)
        assert found["metrics"]["none"]["ece"] == pytest.approx(expected["ece"], rel=CLOSE)

    def test_no_label_at_all(self, features: Path) -> None:
        """Without target labels there is nothing to judge; the label-free command is named."""
        with edited(features) as file:
            file["target/labels"][...] = -1
        line = covcal("evaluate", features).error_line()
        assert line == (
            f"{features}: none of its 80 target test rows has a label: "
            f"draw test rows with covcal pick {features} --split test and label these rows, "
            "or to estimate the accuracy without labels, run covcal estimate "
            f"{features} -c cal.json"
        )

    def test_no_label_and_no_source(self, features: Path) -> None:
        """Nothing is estimated without a source, so no command is named that refuses the file."""
        with edited(features) as file:
            file["target/labels"][...] = -1
            del file["source"]
        line = covcal("evaluate", features).error_line()
        assert "covcal estimate features" not in line
        assert "extract the target together with the source" in line

    def test_the_library_tells_no_labels_from_other_faults(self, features: Path) -> None:
        """What can do without labels catches `UnlabelledError` alone."""
        with edited(features) as file:
            file["target/labels"][...] = -1
        with pytest.raises(UnlabelledError, match="none of its 80 target test rows has a label"):
            evaluate(features, {})

    def test_an_empty_split(self, tmp_path: Path) -> None:
        """An empty split is an error that names the rows in each."""
        target = made_domain("target", sizes=(30, 20, 0))
        path = write_features(tmp_path / "f.h5", target=target)
        assert "(target: train 30, validation 20, test 0)" in covcal("evaluate", path).error_line()


class TestCalibrations:
    def test_several_side_by_side(self, small_files: Path) -> None:
        """Every -c is one entry after ``none``, in the order given, under its method."""
        names = ("fl+iw+temp", "temp", "iw+temp", "fl+temp")
        arguments = [part for name in names for part in ("-c", f"{name}.json")]
        found = report("adapted.h5", *arguments, cwd=small_files)
        assert list(found["metrics"]) == ["none", *names]
        assert list(found["bins"]["calibrations"]) == ["none", *names]

    def test_stems_tell_two_of_one_method_apart(self, small_files: Path, tmp_path: Path) -> None:
        """Where two share a method, both go by their file's stem; the others by their method."""
        for name in ("a", "b"):
            shutil.copy(small_files / "temp.json", tmp_path / f"{name}.json")
        arguments = ("-c", "a.json", "-c", "b.json", "-c", small_files / "iw+temp.json")
        found = report(small_files / "adapted.h5", *arguments, cwd=tmp_path)
        assert list(found["metrics"]) == ["none", "a", "b", "iw+temp"]

    def test_two_of_one_name_are_refused(self, small_files: Path, tmp_path: Path) -> None:
        """Two files of one method and one stem cannot be told apart, and are not merged."""
        copy = Path(shutil.copy(small_files / "temp.json", tmp_path))
        done = covcal("evaluate", "adapted.h5", "-c", "temp.json", "-c", copy, cwd=small_files)
        assert done.error_line() == (
            f"two calibrations have the name 'temp': rename {copy}, or give it a name: "
            f"-c NAME={copy}"
        )

    def test_a_calibration_by_none_is_none_itself(self, small_files: Path) -> None:
        """none.json, the natural name for --method none, may be given like any other."""
        found = report("adapted.h5", "-c", "none.json", "-c", "temp.json", cwd=small_files)
        assert list(found["metrics"]) == ["none", "temp"]

    @pytest.mark.parametrize(
        ("key", "value", "words", "remedy"),
        [
            ("classes", ["class 0", "class 1"], "has 3 classes, but ", AGAIN),
            (
                "classes",
                ["class 0", "other", "class 2"],
                "and the calibration have different class names (class 1 is class 1, not other)",
                "cal.json",
            ),
            (
                "model",
                {"name": "better.onnx", "sha256": "0" * 64},
                "and the calibration come from different models (the calibration was made for "
                "better.onnx)",
                AGAIN,
            ),
            (
                "networks_sha256",
                "0" * 64,
                "and the calibration have different aligned networks",
                AGAIN,
            ),
        ],
    )
    def test_a_calibration_of_something_else(
        self, adapted: Path, small_files: Path, key: str, value: Any, words: str, remedy: str
    ) -> None:
        """Other classes, another model or other networks: refused, saying which differ."""
        content = json.loads((small_files / "fl+temp.json").read_text())
        document = adapted.with_name("cal.json")
        write_document(content | {key: value}, document, force=True)
        line = covcal("evaluate", adapted, "-c", document).error_line()
        assert line.startswith(f"{adapted} {words}")
        assert line.endswith(remedy)

    def test_a_features_file_has_no_aligned_forecaster(self, small_files: Path) -> None:
        """An fl calibration needs logits or networks; temp does not care which file it gets."""
        line = covcal("evaluate", "features.h5", "-c", "fl+temp.json", cwd=small_files).error_line()
        assert line == "adapted.h5: /networks is missing: run covcal adapt again"
        report("features.h5", "-c", "temp.json", cwd=small_files)


class TestMetricsFile:
    def test_content(self, small_files: Path, tmp_path: Path) -> None:
        """metrics.json holds everything, in fractions, with its input's hash."""
        source = small_files / "adapted.h5"
        path = tmp_path / "metrics.json"
        arguments = (source, "-c", small_files / "temp.json", "--fail-above", "ece=1", "-o", path)
        covcal("evaluate", *arguments).require_success()
        found = json.loads(path.read_text())
        assert set(found) == {
            "schema",
            "version",
            "content_sha256",
            "name",
            "subject",
            "split",
            "predictions",
            "n",
            "unlabelled",
            "left_out",
            "metrics",
            "temperatures",
            "forecasters",
            "aligned_temperatures",
            "bins",
            "bootstrap",
            "intervals",
            "differences",
            "classes",
            "worst_class",
            "by",
            "groups",
            "decision",
            "limits",
            "regressions",
            "inputs",
        }
        assert found["schema"] == "covcal.metrics/1"
        value = found["metrics"]["temp"]["ece"]
        assert found["limits"] == [
            {
                "metric": "ece",
                "limit": 1.0,
                "calibration": "temp",
                "value": value,
                "exceeded": False,
                "low": found["intervals"]["temp"]["ece"][0],
                "high": found["intervals"]["temp"]["ece"][1],
                **dict.fromkeys(("by", "group", "n")),  # of limits on groups
            }
        ]
        entry, *documents = found["inputs"]
        assert documents
        assert {one["role"] for one in documents} == {"calibration"}
        for one in documents:
            assert one["sha256"] == sha256_of(tmp_path / one["path"])
        assert entry["role"] == "adapted"
        assert entry["sha256"] == sha256_of(source)
        assert (tmp_path / entry["path"]).resolve() == source.resolve()

    def test_bins(self, small_files: Path) -> None:
        """Bins hold counts that sum to n; an empty one has null for confidence and accuracy."""
        found = report(small_files / "features.h5", "--bins", 40)
        bins = found["bins"]["calibrations"]["none"]
        assert len(found["bins"]["edges"]) == 41
        assert found["bins"]["edges"][0] == 0
        assert found["bins"]["edges"][-1] == 1
        assert sum(bins["count"]) == found["n"]
        assert 0 in bins["count"]
        for count, confidence, accuracy in zip(
            bins["count"], bins["confidence"], bins["accuracy"], strict=True
        ):
            assert (confidence is None) == (accuracy is None) == (count == 0)

    def test_the_file_and_stdout_hold_the_same(self, features: Path) -> None:
        """-o - prints what -o FILE writes beside the input, and prints nothing else."""
        path = features.with_name("metrics.json")
        covcal("evaluate", features, "-o", path).require_success()
        printed = covcal("evaluate", features, "-q", "-o", "-", cwd=path.parent).require_success()
        assert printed.out == path.read_text()
        assert printed.err == ""


class TestLimits:
    """Values as they were found; what intervals make of them is in test_gates_by_interval.py."""

    def judged(self, folder: Path, *limits: str, calibrations: tuple[str, ...] = ()) -> Outcome:
        arguments = [part for name in calibrations for part in ("-c", f"{name}.json")]
        arguments += [part for limit in limits for part in ("--fail-above", limit)]
        return covcal("evaluate", "adapted.h5", "--confidence", 0, *arguments, cwd=folder)

    def test_equal_is_not_exceeded(self, small_files: Path) -> None:
        """Exceeded means strictly greater: the very value passes, the next float below fails."""
        value = report("adapted.h5", cwd=small_files)["metrics"]["none"]["ece"]
        assert self.judged(small_files, f"ece={value!r}").code == 0
        below = float(np.nextafter(value, 0))
        assert self.judged(small_files, f"ece={below!r}").code == 3

    def test_the_report_is_printed_in_full(self, small_files: Path) -> None:
        """Exit 3 changes nothing of the report, on screen or on disk; both verdicts are named."""
        plain = covcal("evaluate", "adapted.h5", cwd=small_files).out
        done = self.judged(small_files, "ece=0", "brier=2")
        assert done.code == 3
        assert done.out.endswith(plain)
        assert "gate ece <= 0 FAILED by the uncalibrated classifier: " in done.out
        assert "gate brier <= 2 passed by the uncalibrated classifier: " in done.out

    def test_metrics_are_written_all_the_same(self, features: Path) -> None:
        """With exit 3 the metrics file and the diagram are written."""
        path, picture = features.with_name("m.json"), features.with_name("r.svg")
        done = covcal(
            *("evaluate", features, "--fail-above", "ece=0", "-o", path, "--diagram", picture)
        )
        assert done.code == 3
        assert json.loads(path.read_text())["limits"][0]["exceeded"] is True
        assert picture.stat().st_size > 1000

    def test_every_calibration_given_is_judged(self, small_files: Path) -> None:
        """With -c, each calibration is judged by each limit, and ``none`` is not."""
        done = self.judged(small_files, "ece=0", "nll=9", calibrations=("temp", "fl+temp"))
        assert done.code == 3
        limits = [line for line in done.out.splitlines() if line.startswith("gate ")]
        assert [line.split(": ")[0] for line in limits] == [
            "gate ece <= 0 FAILED by temp",
            "gate ece <= 0 FAILED by fl+temp",
            "gate nll <= 9 passed by temp",
            "gate nll <= 9 passed by fl+temp",
        ]

    def test_one_exceeded_limit_is_enough(self, small_files: Path) -> None:
        """One limit exceeded by one calibration decides the exit code."""
        found = report("adapted.h5", "-c", "temp.json", cwd=small_files)["metrics"]
        assert found["temp"]["ece"] < found["none"]["ece"]
        between = (found["temp"]["ece"] + found["none"]["ece"]) / 2
        assert self.judged(small_files, f"ece={between}").code == 3
        assert self.judged(small_files, f"ece={between}", calibrations=("temp",)).code == 0

    @pytest.mark.parametrize(
        "limit", ["foo=1", "ece", "ece=", "ece=x", "ece=nan", "ece=inf", "=1", "", "n=5", "ECE=1"]
    )
    def test_a_limit_that_makes_no_sense_is_a_usage_error(self, features: Path, limit: str) -> None:
        """An unknown metric or a limit that is no finite number: exit 2, nothing computed."""
        done = covcal("evaluate", features, "--fail-above", limit)
        assert "--fail-above" in done.usage_error()

    def test_a_metric_without_a_value_never_passes(self, tmp_path: Path) -> None:
        """Sharpness is not kept for many classes: a limit on it is an error, not a pass."""
        source, target = (
            made_domain(name, sizes=(5, 5, 20), classes=300) for name in ("source", "target")
        )
        path = write_features(tmp_path / "wide.h5", source=source, target=target)
        assert report(path, "--bins", 5000)["metrics"]["none"]["sharpness"] is None
        line = covcal(
            *("evaluate", path, "--bins", 5000, "--fail-above", "calibration=1"),
            *("--confidence", 0),
        ).error_line()
        assert line == "calibration of none has no value: leave out this gate"

    @pytest.mark.parametrize("metric", ["accuracy", "agreement", "sharpness", "correctness_auroc"])
    def test_a_metric_that_is_better_when_higher_has_no_such_limit(
        self, features: Path, metric: str
    ) -> None:
        """accuracy=0.9 would pass at 75 % and fail at 95 %: refused, with what to use instead."""
        done = covcal("evaluate", features, "--fail-above", f"{metric}=0.9")
        assert done.usage_error()
        said = " ".join(done.err.split())
        assert f"use --fail-below {metric}=0.9" in said
        assert all(name in said for name in ("ece", "over_ece", "nll", "brier"))


class TestFormats:
    def test_table(self, small_files: Path) -> None:
        """The table shows percent with one decimal, one row per calibration."""
        done = covcal("evaluate", "adapted.h5", "-c", "temp.json", cwd=small_files)
        found = report("adapted.h5", "-c", "temp.json", cwd=small_files)["metrics"]
        lines = done.require_success().out.splitlines()
        assert lines[0].startswith("Verdict  ")
        assert lines[1].startswith("Accuracy  ")
        table = lines[next(i for i, line in enumerate(lines) if line.startswith("calibration")) :]
        for name, line in (("none", table[2]), ("temp", table[3])):
            shown = re.split(" {2,}", line)
            assert shown[0] == name
            assert shown[2:] == [
                str(found[name]["n"]),
                *(
                    f"{100 * found[name][key]:.1f} %"
                    for key in ("accuracy", "mean_confidence", "ece", "over_ece")
                ),
                *(f"{found[name][key]:.4f}" for key in ("nll", "brier")),
            ]

    def test_latex_has_the_same_cells(self, small_files: Path) -> None:
        """Percent signs are escaped, and every line has as many cells as there are columns."""
        arguments = ("evaluate", "adapted.h5", "-c", "temp.json", "--format", "latex")
        text = covcal(*arguments, cwd=small_files).require_success().out
        rows = [line for line in text.splitlines() if line.endswith(r"\\")]
        assert [row.split(" & ")[0] for row in rows] == ["calibration", "none", "temp"]
        assert {row.count("&") for row in rows} == {8}
        assert r"\begin{tabular}{lrrrrrrrr}" in text
        assert "%" not in text.replace(r"\%", "")

    def test_json_is_the_metrics_document(self, small_files: Path) -> None:
        """--format json prints what -o - prints."""
        done = covcal("evaluate", "adapted.h5", "--format", "json", cwd=small_files)
        assert json.loads(done.require_success().out) == report("adapted.h5", cwd=small_files)

    @pytest.mark.parametrize("kind", ["markdown", "github"])
    def test_markdown_has_equal_columns(self, small_files: Path, kind: str) -> None:
        """Every line of the Markdown table has as many cells as its head."""
        done = covcal("evaluate", "adapted.h5", "--format", kind, cwd=small_files)
        lines = [line for line in done.require_success().out.splitlines() if "|" in line]
        assert len(lines) == 3
        assert {line.count("|") for line in lines} == {10}

    def test_github_annotates_what_is_exceeded(self, small_files: Path) -> None:
        """--format github adds one ::error:: line per exceeded limit, and none otherwise."""
        arguments = ("--format", "github", "--fail-above", "ece=0", "--fail-above", "brier=2")
        done = covcal("evaluate", "adapted.h5", *arguments, cwd=small_files)
        annotations = [line for line in done.out.splitlines() if line.startswith("::")]
        assert done.code == 3
        assert len(annotations) == 1
        assert annotations[0].startswith(
            "::error::covcal: gate ece <= 0 FAILED by the uncalibrated classifier"
        )


@pytest.fixture
def calibrated(adapted: Path) -> Path:
    """A folder with adapted.h5 and the cal.json of a bare ``covcal calibrate``."""
    covcal("calibrate", cwd=adapted.parent).require_success()
    return adapted.parent


class TestAlone:
    def test_it_uses_the_calibration_of_this_folder(self, calibrated: Path) -> None:
        """``covcal evaluate`` alone judges cal.json on the file that it was fitted on."""
        done = covcal("evaluate", cwd=calibrated).require_success()
        assert "note: measuring cal.json on adapted.h5\n" in done.err
        expected = covcal("evaluate", "adapted.h5", "-c", "cal.json", cwd=calibrated)
        assert done.out == expected.out

    def test_from_another_folder(self, calibrated: Path, tmp_path: Path) -> None:
        """-c alone finds the input relative to the calibration, wherever one stands."""
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        document = Path(os.path.relpath(calibrated / "cal.json", elsewhere))
        covcal("evaluate", "-c", document, cwd=elsewhere).require_success()

    def test_a_changed_input_is_refused(self, calibrated: Path) -> None:
        """Another sha256 is refused with the command that evaluates it all the same."""
        with edited(calibrated / "adapted.h5") as file:
            file.attrs["remark"] = "changed"
        line = covcal("evaluate", cwd=calibrated).error_line()
        assert line == (
            "adapted.h5 has changed since cal.json was fitted on it: calibrate again, or pass "
            "adapted.h5 -c cal.json to evaluate this file anyway"
        )
        covcal("evaluate", "adapted.h5", "-c", "cal.json", cwd=calibrated).require_success()

    def test_an_input_that_is_gone(self, calibrated: Path) -> None:
        """Without its input, the calibration asks for a file."""
        (calibrated / "adapted.h5").rename(calibrated / "moved.h5")
        line = covcal("evaluate", cwd=calibrated).error_line()
        assert (
            line == "cal.json was fitted on adapted.h5, which is missing: give a file to evaluate"
        )
        covcal("evaluate", "moved.h5", "-c", "cal.json", cwd=calibrated).require_success()

    def test_no_calibration_here(self, tmp_path: Path) -> None:
        """Without cal.json the step that makes it is named."""
        line = covcal("evaluate", cwd=tmp_path).error_line()
        assert line == "cal.json does not exist: make it with covcal calibrate"


def test_labels_of_a_missing_class_change_nothing(tmp_path: Path) -> None:
    """A class that no target row has leaves every metric defined."""
    target = made_domain("target", sizes=(10, 10, 60))
    target["labels"][target["labels"] == 2] = 0
    path = write_features(tmp_path / "f.h5", target=target)
    assert all(value is not None for value in report(path)["metrics"]["none"].values())


def test_an_infinite_loss_is_no_crash(features: Path, small_files: Path) -> None:
    """A temperature so small that the loss overflows is refused, not written as Infinity."""
    content = json.loads((small_files / "temp.json").read_text())
    content["temperatures"]["forecaster"] = 1e-310
    document = features.with_name("cal.json")
    write_document(content, document, force=True)
    covcal("evaluate", features, "-c", document, "-o", "-").error_line()


class TestArguments:
    @pytest.mark.parametrize("limit", ["ece=5", "ece=-0.1", "brier=2.5", "mce=80", "nll=-1"])
    def test_a_limit_that_could_never_or_always_fire(self, features: Path, limit: str) -> None:
        """A gate in percent, or below zero, is a usage error, not a job that is always green."""
        done = covcal("evaluate", features, "--fail-above", limit)
        assert "must be between 0 and" in done.usage_error()

    def test_a_percent_is_read_back_as_a_fraction(self, features: Path) -> None:
        """Who wrote ece=5 is told what was meant."""
        line = covcal("evaluate", features, "--fail-above", "ece=5").usage_error()
        assert "did you mean 0.05?" in line

    def test_two_outputs_of_one_name(self, features: Path) -> None:
        """A diagram never overwrites the metrics of the same run."""
        done = covcal("evaluate", features, "-o", "a.png", "--diagram", "a.png", "-f")
        assert "has the same name as the file of -o" in done.usage_error()

    def test_json_and_another_format(self, features: Path) -> None:
        """-o - prints JSON; asking for Markdown beside it is not ignored in silence."""
        done = covcal("evaluate", features, "-o", "-", "--format", "markdown")
        assert "prints JSON" in done.usage_error()

    def test_notes_say_what_the_numbers_mean(self, small_files: Path) -> None:
        """Two gates share the level; NLL and Brier score of an fl method are of its networks."""
        files = ("adapted.h5", "-c", "temp.json", "-c", "fl+temp.json", "--fail-above", "ece=1")
        err = covcal("evaluate", *files, cwd=small_files).require_success().err
        assert "so that all intervals together hold with 95 % confidence" in err
        assert "each gate uses an interval of 97.5 %" in err
        assert "NLL and Brier score of fl+temp measure the networks of adapt" in err
        single = covcal("evaluate", *files[:3], *files[5:], cwd=small_files).require_success().err
        assert "all gates together" not in single
        assert "measure the networks" not in single
        # stderr does not reach a LaTeX file, so the file has the note as a comment
        tex = covcal("evaluate", *files[:5], "--format", "latex", cwd=small_files).require_success()
        assert tex.out.startswith("% note: the NLL and Brier score of fl+temp measure ")

    def test_without_a_calibration(self, features: Path) -> None:
        """Every format says that only the classifier is measured, also with -q."""
        words = "the uncalibrated classifier, because no calibration was given with -c"
        (features.parent / "cal.json").touch()
        for kind in ("table", "markdown", "github", "latex"):
            done = covcal("evaluate", features, "-q", "--format", kind).require_success()
            assert words in done.out
            assert f"pass -c {features.parent / 'cal.json'}" in done.out.replace("\\", "")
        assert printed_json("evaluate", features)["subject"] == "the uncalibrated classifier"
        junit = features.parent / "gate.xml"
        covcal("evaluate", features, "--fail-above", "ece=0", "--junit", junit)
        assert "by the uncalibrated classifier: ECE" in junit.read_text()


def rounded(document: dict[str, Any]) -> Any:
    """Return a document without differences in the order of summation."""
    return json.loads(json.dumps(document), parse_float=lambda text: round(float(text), 9))


class TestSeveralFiles:
    """Rows of several periods are measured together."""

    @pytest.fixture
    def nights(self, tmp_path: Path) -> list[Path]:
        """One file with all rows, then three nights with parts of them."""
        target = made_domain("target", sizes=(0, 0, 300), shift=1.0)
        target["columns/shop"] = np.repeat([3.0, 1.0, 2.0, 10.0], 75)
        parts = np.split(np.arange(300), [100, 200])
        return [
            write_features(tmp_path / f"night{number}.h5", target=only_rows(target, part))
            for number, part in enumerate([np.arange(300), *parts])
        ]

    def test_the_numbers_are_those_of_one_file_with_all_rows(
        self, nights: list[Path], small_files: Path
    ) -> None:
        """Metrics, intervals, groups, and the gates on all rows together."""
        whole, *parts = nights
        gates = ("--fail-above", "ece:shop=0.9", "--bootstrap", 50, "--by", "shop")
        options = ("-c", small_files / "temp.json", *gates)
        expected, pooled = report(whole, *options), report(*parts, *options)
        assert [entry["role"] for entry in pooled["inputs"]] == [*["features"] * 3, "calibration"]
        for document in (expected, pooled):
            del document["inputs"], document["content_sha256"]
        assert rounded(pooled) == rounded(expected)
        screen = covcal("evaluate", *parts, "-c", small_files / "temp.json")
        assert "on 300 labelled target rows of 3 files" in screen.require_success().out

    def test_a_gate_that_no_night_decides_is_decided_by_all(self, nights: list[Path]) -> None:
        first, _, last = nights[1:]
        for night in (first, last):
            done = covcal("evaluate", night, "--fail-above", "ece=0.07")
            assert (
                "gate ece <= 0.07 not proved by the uncalibrated classifier"
                in done.require_success().out
            )
        assert covcal("evaluate", first, last, "--fail-above", "ece=0.07").code == 3

    def test_rows_that_come_twice_are_measured_once(self, tmp_path: Path) -> None:
        """A row without a label that comes again with its label counts with the label."""
        target = made_domain("target", shift=1.0)
        whole = [only_rows(target, np.arange(*ends)) for ends in ((0, 150), (100, 250))]
        for of_numbers in (False, True):
            for number, rows in enumerate(whole):
                if of_numbers:
                    rows["ids"] = np.arange(100 * number, 150 + 100 * number).astype("S")
                write_features(tmp_path / f"{number}.h5", target=rows)
            files = [tmp_path / "0.h5", tmp_path / "1.h5"]
            done = covcal("evaluate", *files, "--split", "all").require_success()
            assert "have 50 labelled rows in common: these rows are measured once" in done.err
            assert "on 250 labelled target rows of 2 files" in done.out
        with edited(files[0]) as file:
            file["target/labels"][100:] = -1
        done = covcal("evaluate", *files, "--split", "all").require_success()
        assert "on 250 labelled target rows of 2 files" in done.out

    def test_a_night_without_labels_is_counted(self, nights: list[Path]) -> None:
        with edited(nights[1]) as file:
            file["target/labels"][:] = -1
        pooled = report(*nights[1:])
        assert (pooled["n"], pooled["unlabelled"]) == (200, 100)

    def test_what_does_not_fit_together_is_refused(
        self, nights: list[Path], tmp_path: Path
    ) -> None:
        shutil.copy(nights[1], tmp_path / "copy.h5")
        done = covcal("evaluate", *nights[1:], tmp_path / "copy.h5")
        assert "copy.h5 holds the same rows as" in done.error_line()
        other = write_features(tmp_path / "other.h5", class_names=["a", "b", "c"])
        assert "are of different classifiers" in covcal("evaluate", nights[1], other).error_line()
        texts = only_rows(made_domain("target"), np.arange(200, 250))
        texts["columns/shop"] = np.full(50, b"north")
        write_features(tmp_path / "texts.h5", target=texts)
        done = covcal("evaluate", nights[1], tmp_path / "texts.h5", "--by", "shop")
        assert "texts in one file and numbers in another" in done.error_line()
