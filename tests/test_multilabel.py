"""Files with several independent labels: each label is a problem of two classes, in one file."""

import csv
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

import covcal_cli.api as api
from covcal_cli.cli.multilabel import run_summary
from covcal_cli.data.classes import named_classes
from covcal_cli.data.labels import LabelSets
from covcal_cli.data.outputs import open_outputs
from covcal_cli.data.stores import open_store
from covcal_cli.decide.decide import DecideSettings, decide
from covcal_cli.errors import CovcalError
from covcal_cli.evaluate.metrics import METRICS
from covcal_cli.extract.settings import ExtractSettings
from covcal_cli.formats.features import FeatureFile, labels_in
from covcal_cli.formats.lineage import labels_of
from covcal_cli.inspect import describe
from covcal_cli.labels.draws import write_copy
from covcal_cli.labels.filled_sheet import read_sheet
from covcal_cli.labels.picked_labels import draw_with_labels
from covcal_cli.labels.score import forecasters_of, score_blocks
from covcal_cli.labels.sheet import sheet_text
from covcal_cli.multilabel import current_label, for_each_label, gathered, one_label
from covcal_cli.records import of_labels, write_document
from covcal_cli.report.page import reliability_diagram
from covcal_cli.report.verdict import verdict
from covcal_cli.run.renewal import earlier_run
from covcal_cli.run.run import RunSettings, Step, run
from covcal_cli.watch.reference import reference_path
from covcal_cli.watch.watch import watch
from tests.classifiers.onnx.onnx_graphs import Graph, node
from tests.cli_runner import covcal, printed_json
from tests.conftest import shared_folder
from tests.labels.labelling import lines_of, write_lines
from tests.made_files import edited
from tests.made_rows import write_csv, write_json_lines

LABELS = ("cat", "dog", "bird")
PICKED = 60
TRUTH = [f"label_{label}" for label in LABELS]
N = 400
WEIGHT = np.random.default_rng(3).normal(size=(3, 4)).astype(np.float32)
Rows = dict[str, NDArray[Any]]


def made(domain: str) -> Rows:
    """Return features, over-confident logits and labels of one domain."""
    rng = np.random.default_rng(len(domain))
    x = rng.normal(0.6 * (domain == "target"), 1, size=(N, 4)).astype(np.float32)
    logits = (2 * x @ WEIGHT.T).astype(np.float32)
    y = (logits / 2 + rng.logistic(size=logits.shape) > 0).astype(np.int64)
    return {"x": x, "logits": logits, "y": y}


def columns(rows: Rows, *labels: str, truth: str = "label_{}") -> dict[str, Any]:
    """Return ids, a column of logits per label, features and a column of truth per label."""
    chosen = [LABELS.index(label) for label in labels or LABELS]
    return (
        {"id": [f"r{row}" for row in range(N)]}
        | {f"logit_{LABELS[j]}": rows["logits"][:, j].tolist() for j in chosen}
        | {f"feature_{i}": values.tolist() for i, values in enumerate(rows["x"].T)}
        | {"group_site": ["AB"[row % 2] for row in range(N)]}
        | {truth.format(LABELS[j]): rows["y"][:, j].tolist() for j in chosen}
    )


def _fill(folder: Path) -> None:
    for domain in ("source", "target"):
        write_csv(folder / f"{domain}.csv", columns(made(domain)))
    tables = ("--logits", "--multilabel", "source.csv", "target.csv")
    covcal("extract", *tables, cwd=folder).require_success()
    covcal("calibrate", "--method", "temp", cwd=folder).require_success()
    covcal("pick", "-n", PICKED, cwd=folder).require_success()


@pytest.fixture(scope="session")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with features.h5, cal.json and to-label.csv of three labels; not to be changed."""
    return shared_folder(tmp_path_factory, "several", _fill)


def alone(folder: Path, label: str) -> Path:
    """Extract one label as an ordinary table of two classes, and return its features file."""
    for domain in ("source", "target"):
        rows = columns(made(domain), label, truth="label")
        write_csv(
            folder / f"{domain}.csv", {name.replace(label, "1"): v for name, v in rows.items()}
        )
    output = folder / "features.h5"
    tables = (folder / "source.csv", folder / "target.csv")
    api.extract(None, *tables, output, ExtractSettings(outputs="logits"))
    return output


def test_a_label_is_calibrated_and_measured_as_in_a_file_of_its_own(
    several: Path, tmp_path: Path
) -> None:
    """Temperature, estimates, weights and all metrics are the same as with two classes."""
    own = alone(tmp_path, "dog")
    settings = api.CalibrateSettings(method="iw+temp")
    expected = api.calibrate(own, settings)
    with one_label("dog"):
        calibration = api.calibrate(several / "features.h5", settings)
        measured = api.evaluate(several / "features.h5", {"cal": calibration})
    for name in ("forecaster_temperature", "estimates", "weights", "fit"):
        assert getattr(calibration, name) == getattr(expected, name)
    expected_metrics = api.evaluate(own, {"cal": expected}).metrics["cal"]
    for metric in METRICS:
        assert measured.metrics["cal"].value(metric) == expected_metrics.value(metric)


def test_probabilities_and_logits_of_labels_give_the_same_file(
    several: Path, tmp_path: Path
) -> None:
    """The log odds of a probability are the logit of its label."""
    for domain in ("source", "target"):
        rows = columns(made(domain))
        for label in LABELS:
            odds = np.array(rows.pop(f"logit_{label}"))
            rows[f"prob_{label}"] = (1 / (1 + np.exp(-odds))).tolist()
        write_csv(tmp_path / f"{domain}.csv", rows)
    settings = ExtractSettings(outputs="probabilities", multilabel=True)
    paths = (tmp_path / "source.csv", tmp_path / "target.csv", tmp_path / "f.h5")
    assert api.extract(None, *paths, settings).classes == LABELS
    every = np.arange(N, dtype=np.int64)
    logits = []
    for path in (several / "features.h5", tmp_path / "f.h5"):
        with one_label("bird"), FeatureFile(path) as file:
            logits.append(file.require_target().logits(every))
            assert file.require_target().columns == ("site",)
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(logits[0][:, 1], made("target")["logits"][:, 2])


def test_ece_of_every_label_is_that_of_a_plain_loop(several: Path) -> None:
    """The mean and the worst over labels agree with ECEs that are counted bin by bin."""
    read = printed_json("evaluate", "-o", "-", "--split", "all", cwd=several)
    assert labels_of(None, [several / "cal.json"]) == LABELS
    rows, expected = made("target"), {}
    for j, label in enumerate(LABELS):
        with one_label(label):
            temperature = api.read_calibration(several / "cal.json").forecaster_temperature
        present = 1 / (1 + np.exp(-rows["logits"][:, j].astype(float) / temperature))
        right = (present > 0.5) == rows["y"][:, j]
        confidence = np.maximum(present, 1 - present)
        number = np.ceil(confidence * 15)
        gaps = [
            abs(confidence[number == b].sum() - right[number == b].sum()) for b in np.unique(number)
        ]
        expected[label] = sum(gaps) / N
        assert read["labels"][label]["metrics"]["cal"]["ece"] == pytest.approx(expected[label])
    assert read["macro"]["cal"]["ece"] == pytest.approx(np.mean([*expected.values()]))
    worst = max(expected, key=lambda label: expected[label])
    assert read["worst"]["cal"]["ece"]["label"] == worst


def test_evaluate_says_that_no_calibration_was_measured(several: Path) -> None:
    """A named file without -c measures only the classifier, and the screen says so."""
    done = covcal("evaluate", "features.h5", cwd=several).require_success()
    assert "Measured    the uncalibrated classifier, because no calibration was given" in done.out


def test_gates_apply_to_every_label_and_to_their_mean(several: Path, tmp_path: Path) -> None:
    """A limit that only the worst label exceeds fails, and one above the mean passes."""
    plain = ("--confidence", 0, "-o", tmp_path / "m.json")
    values = printed_json("evaluate", "-o", "-", cwd=several)
    mean, worst = values["macro"]["cal"]["ece"], values["worst"]["cal"]["ece"]
    limit = (mean + worst["value"]) / 2
    each = covcal("evaluate", *plain, "--fail-above", f"ece={limit}", cwd=several)
    macro = covcal("evaluate", *plain, "-f", "--fail-above", f"ece:macro={limit}", cwd=several)
    assert each.code == 3
    assert f"{worst['label']}: gate ece" in each.out
    assert macro.code == 0
    assert "mean of 3 labels" in macro.out
    (verdict,) = json.loads((tmp_path / "m.json").read_text())["limits"]
    assert verdict["value"] == pytest.approx(mean)


def test_intervals_of_gates_share_one_error_rate_over_all_labels(several: Path) -> None:
    """Three labels with a gate each have intervals of 1 - 0.05 / 3."""
    screen = covcal("evaluate", "--fail-above", "ece=0.2", cwd=several)
    assert screen.out.count("98.3 % interval") == len(LABELS)


def test_a_label_without_target_labels_is_left_out_with_a_note(
    several: Path, tmp_path: Path
) -> None:
    for name in FILES:
        shutil.copy(several / name, tmp_path)
    place = f"label/{LABELS.index('dog')}/target/labels"
    with edited(tmp_path / "features.h5") as file:
        file[place][:] = -1
    arguments = ("evaluate", "features.h5", "-c", "cal.json")
    done = covcal(*arguments, "-o", "m.json", cwd=tmp_path).require_success()
    assert "1 of 3 labels are not measured, because the target has no values for them: dog" in (
        " ".join(done.err.split())
    )
    content = json.loads((tmp_path / "m.json").read_text())
    assert list(content["labels"]) == [label for label in LABELS if label != "dog"]
    with edited(tmp_path / "features.h5") as file:
        for number in range(len(LABELS)):
            file[f"label/{number}/target/labels"][:] = -1
    assert "has a label" in covcal(*arguments, cwd=tmp_path).error_line()


def test_labels_that_differ_by_case_have_reference_data_of_their_own(tmp_path: Path) -> None:
    """Disks that do not tell a from A would otherwise hold one file for both."""
    names = []
    for label in ("a", "A", "ä", "a b"):
        with one_label(label):
            names.append(reference_path(tmp_path / "cal.json").name.casefold())
    assert len(set(names)) == len(names)
    assert names[0] == "cal.a.reference.json"


def test_screens_have_a_row_per_label_the_mean_and_the_worst(several: Path, tmp_path: Path) -> None:
    """Tables and inspect name every label; groups are shown for each."""
    made_again = covcal("calibrate", "-o", tmp_path / "c.json", cwd=several).require_success()
    shown = covcal("evaluate", "--by", "site", cwd=several).require_success()
    for screen in (made_again, shown, *(covcal("inspect", f, cwd=several) for f in FILES)):
        assert all(label in screen.out for label in LABELS)
    assert made_again.out.splitlines()[1].startswith("Verdict ")
    assert "mean (macro)" in shown.out
    assert "worst" in shown.out
    assert "dog, by site" in shown.out


FILES = ("features.h5", "cal.json")


@pytest.mark.parametrize(
    "command",
    [
        ("merge", *FILES[:1] * 2, "-o", "m.h5"),
    ],
    ids=lambda command: command[0],
)
def test_a_step_for_one_classifier_says_what_to_do(command: tuple[str, ...], several: Path) -> None:
    """Commands that do not support several labels refuse in one line, and name the way out."""
    line = covcal(*command, cwd=several).error_line()
    assert "can have 3 labels, but this command" in line
    assert "extract a table of one label" in line


def test_an_error_names_its_label_and_an_unknown_label_is_refused(several: Path) -> None:
    """A message says which label it is about."""
    with (
        pytest.raises(CovcalError, match=r"^label 'cow': .* use one of cat, dog, bird$"),
        one_label("cow"),
    ):
        api.read_calibration(several / "cal.json")
    assert labels_in(several / "features.h5") == LABELS


def test_a_file_without_a_label_of_the_calibration_is_refused(
    several: Path, tmp_path: Path
) -> None:
    """Results that lack a label in silence would look complete."""
    two = tmp_path / "two.h5"
    write_csv(tmp_path / "t.csv", columns(made("target"), *LABELS[:2]))
    settings = ExtractSettings(outputs="logits", multilabel=True)
    api.extract(None, None, tmp_path / "t.csv", two, settings)
    document, page = several / "cal.json", tmp_path / "r.html"
    for call in (
        lambda: api.apply(two, document, tmp_path / "p.csv"),
        lambda: api.report(two, [document], page),
    ):
        with pytest.raises(CovcalError, match=r"two\.h5 does not have the label 'bird' of .*json"):
            call()
    for command in (("decide", "--error", "0.1"), ("evaluate",)):
        line = covcal(*command, two, "-c", document, cwd=tmp_path).error_line()
        assert "two.h5 does not have the label 'bird'" in line
    assert not (tmp_path / "p.csv").exists()
    assert not page.exists()


@pytest.mark.parametrize("command", ["watch", "apply", "evaluate"])
def test_a_cut_calibration_is_to_be_made_with_calibrate(
    command: str, several: Path, tmp_path: Path
) -> None:
    """The remedy names the command that makes the broken file, not the one of another file."""
    cut = tmp_path / "cal.json"
    cut.write_bytes((several / "cal.json").read_bytes()[:500])
    line = covcal(command, several / "features.h5", "-c", cut, cwd=tmp_path).error_line()
    assert f"{cut} is not JSON: make it with covcal calibrate" in line


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".h5", ".parquet"])
def test_apply_writes_the_calibrated_probability_of_every_label(
    suffix: str, several: Path, tmp_path: Path
) -> None:
    """Each is the sigmoid of its logit over its T, in every format, and is read back."""
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    output = tmp_path / f"p{suffix}"
    report = api.apply(several / "features.h5", several / "cal.json", output)
    assert re.search(rf"rows +{N}.*\n.*: {', '.join(LABELS)}", describe(output))
    settings = ExtractSettings(outputs="probabilities", multilabel=True)
    api.extract(None, None, output, tmp_path / "f.h5", settings)
    for j, label in enumerate(LABELS):
        with one_label(label), FeatureFile(tmp_path / "f.h5") as file:
            temperature = api.read_calibration(several / "cal.json").forecaster_temperature
            logits = file.require_target().logits(np.arange(N, dtype=np.int64))[:, 1]
        expected = made("target")["logits"][:, j] / temperature
        np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)
        mean = np.mean(1 / (1 + np.exp(-expected)))
        assert report.labels[label] == pytest.approx(mean, abs=1e-5)
    if suffix == ".csv":
        assert output.read_text().splitlines()[0] == "id,prob_cat,prob_dog,prob_bird"
        assert all(label in covcal("inspect", output).out for label in LABELS)


def test_the_estimate_of_every_label_is_that_of_two_classes(several: Path) -> None:
    """The accuracy, F1 and gates of each label are estimated by itself."""
    gate = ("--metrics", "f1", "--fail-below", "f1:present=0.99")
    hint = covcal("estimate", "features.h5", cwd=several).require_success().err
    assert hint.endswith("next: covcal pick features.h5 -n 50 -o more.csv  # draws rows to label\n")
    screen = covcal("estimate", "features.h5", *gate, cwd=several)
    assert screen.code == 3
    assert screen.out.count("gate f1:present >= 0.99 FAILED") == len(LABELS)
    lines = [line.split()[:2] for line in screen.out.splitlines()]
    assert all([label, name] in lines for label in LABELS for name in ("absent", "present"))
    read = printed_json("estimate", "features.h5", "--metrics", "f1", "-o", "-", cwd=several)
    for label in LABELS:
        with one_label(label):
            best = api.estimate(several / "features.h5").estimates[0]
        assert read["labels"][label]["estimates"][0]["accuracy"] == best.accuracy


def test_decisions_are_made_applied_and_measured_for_every_label(
    several: Path, tmp_path: Path
) -> None:
    """A row is accepted for a label where its confidence in that label is above the threshold."""
    output, rows = tmp_path / "decide.json", tmp_path / "p.csv"
    for name in ("features.h5", "cal.json"):
        shutil.copy(several / name, tmp_path)
    covcal("decide", "--error", 0.15, cwd=tmp_path).require_success()
    read = json.loads(output.read_text())["labels"]
    with one_label("dog"):
        settings = DecideSettings(error=0.15)
        estimate = api.estimate(several / "features.h5").estimates[0]
        own = decide(several / "features.h5", several / "cal.json", settings, estimate)
    assert read["dog"]["threshold"] == own.threshold
    api.apply(several / "features.h5", several / "cal.json", rows, decision=output)
    with rows.open() as file:
        lines = list(csv.DictReader(file))
    assert {line["decision_cat"] for line in lines} == {"accept", "review"}
    for label in LABELS:
        above = read[label]["threshold"] or 1
        for line in lines:
            probability = float(line[f"prob_{label}"])
            accepted = max(probability, 1 - probability) > above
            assert line[f"decision_{label}"] == ("accept" if accepted else "review")
    shown = covcal("evaluate", "features.h5", "-c", "cal.json", "--decide", output, cwd=several)
    assert "rows that the decision accepts" in shown.require_success().out
    for options in (("--set", 0.9), ("--error", 0.1, "--promise-by", "predicted")):
        done = covcal("decide", "features.h5", "-c", "cal.json", *options, cwd=several)
        assert f"leave out {options[-2]}, which is for one class per row" in done.usage_error()


def test_one_sheet_makes_a_promise_for_every_label(several: Path, tmp_path: Path) -> None:
    """All rows are drawn with the same probability, so each label's test is exact."""
    for name in ("features.h5", "cal.json"):
        shutil.copy(several / name, tmp_path)
    suggested = covcal("decide", "--error", 0.3, cwd=tmp_path).require_success()
    numbers = re.findall(r"promises need up to (\d+) labels: covcal pick -n \1", suggested.out)
    assert len(numbers) == 1
    done = covcal("pick", "-n", 150, "--for", "decide.json", "-o", "s.csv", cwd=tmp_path)
    assert "label_NAME with 1 or 0" in done.require_success().err
    assert len({line["inclusion"] for line in lines_of(tmp_path / "s.csv")}) == 1
    filled(tmp_path, "s.csv")
    covcal("label", "features.h5", "s.csv", "-q", cwd=tmp_path).require_success()
    done = covcal("decide", "--error", 0.3, "-f", cwd=tmp_path).require_success()
    assert "Each label has 90 % certainty, but not all labels together" in done.out
    read = json.loads((tmp_path / "decide.json").read_text())["labels"]
    promised = [label for label in LABELS if read[label]["is_promise"]]
    assert promised
    # The labels of each test are those of the sheet above the threshold.
    for label in promised:
        assert read[label]["labels"]["drawn"] == 150


def test_a_label_is_watched_as_in_a_file_of_its_own(several: Path, tmp_path: Path) -> None:
    """Verdict, accuracy and evidence are as with two classes; one history has all labels."""
    own = alone(tmp_path, "dog")
    settings = api.CalibrateSettings(method="temp")
    api.write_document(api.calibrate(own, settings), tmp_path / "own.json", force=True)
    expected = watch([own], tmp_path / "own.json").periods[0]
    for name in FILES:
        shutil.copy(several / name, tmp_path)
    for _ in range(2):
        watched = printed_json(
            *("watch", "features.h5", "--history", "w.jsonl", "-o", "-"), cwd=tmp_path
        )
    period = watched["labels"]["dog"]["periods"][0]
    assert (period["verdict"], period["why"]) == (expected.verdict, expected.why)
    assert period["measured"]["confidence"] == expected.measured.confidence
    assert period["alarm"]["log_evidence"] == expected.alarm.log_evidence
    assert len((tmp_path / "w.jsonl").read_text().splitlines()) == len(LABELS)
    assert (tmp_path / "cal.dog.reference.json").exists()
    gates = ("--fail-on", "changed", "--fail-below", "accuracy=0")
    screen = covcal("watch", "features.h5", *gates, cwd=tmp_path)
    assert all(f"{label}: gate accuracy >= 0 passed" in screen.out for label in LABELS)
    assert screen.out.count("rows changed") == screen.out.count("all classes") == len(LABELS)


# The report.


def test_the_report_shows_all_labels_and_the_details_of_each(several: Path, tmp_path: Path) -> None:
    """The verdict names the worst label; each diagram is that of the label's own measurement."""
    shown = covcal("report", "-o", tmp_path / "r.html", "--bootstrap", 20, cwd=several)
    page = (tmp_path / "r.html").read_text()
    eces, diagrams = {}, {}
    for label in LABELS:
        with one_label(label):
            calibration = api.read_calibration(several / "cal.json")
            metrics = api.evaluate(several / "features.h5", {"cal": calibration}).metrics["cal"]
        eces[label], diagrams[label] = metrics.ece, reliability_diagram("cal", metrics)
    worst = max(eces, key=lambda label: eces[label])
    assert shown.out.startswith(f"The worst of 3 labels is {worst}. ")
    assert f"{100 * sum(eces.values()) / 3:.1f} after" in shown.out
    assert page.index(f"The worst of 3 labels is {worst}.") < page.index('data-label="label">cat')
    parts = page.split("<details><summary>")
    assert page.count('id="over"') == parts[0].count('id="over"') == 1
    for label in LABELS:
        start = page.index(f"<details><summary>{label}: ")
        assert page.index(diagrams[label]) > start
        assert page.count(diagrams[label]) == 1


def test_a_report_without_labels_shows_estimates(tmp_path: Path) -> None:
    """Nothing is called measured, and the worst label is that with the largest difference."""
    write_csv(tmp_path / "old.csv", columns(made("source")))
    rows = {k: v for k, v in columns(made("target")).items() if not k.startswith("label_")}
    write_csv(tmp_path / "new.csv", rows)
    settings = ExtractSettings(outputs="logits", multilabel=True)
    features, document = tmp_path / "f.h5", tmp_path / "cal.json"
    api.extract(None, tmp_path / "old.csv", tmp_path / "new.csv", features, settings)
    calibrations = for_each_label(
        LABELS, lambda: api.calibrate(features, api.CalibrateSettings(method="temp"))
    )
    write_document(of_labels(calibrations, document), document, force=False)
    content = api.report(features, [document], tmp_path / "r.html")
    result = verdict(content)
    assert "No target test row has a value for any label, so nothing is measured" in " ".join(
        result.sentences
    )
    gaps = {}
    for label, of_label in content.labels.items():
        assert of_label.estimation is not None
        after = of_label.calibration.target_confidence[1]
        gaps[label] = abs((after or 0) - of_label.estimation.estimates[0].accuracy)
    assert max(gaps, key=lambda label: gaps[label]) in result.headline
    # A warning counts more than the difference.
    least = min(gaps, key=lambda label: gaps[label])
    of_least = content.labels[least]
    warned = replace(of_least.calibration, warnings=("the estimators disagree",))
    of_least = replace(of_least, calibrations={of_least.name: warned})
    again = verdict(replace(content, labels={**content.labels, least: of_least}))
    assert again.headline.startswith(f"The worst of 3 labels is {least}. ")
    assert "Before and after" not in (tmp_path / "r.html").read_text()


# All steps in one folder.


def test_a_run_makes_the_results_of_all_commands(
    several: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run makes the same results as the single steps; a second run makes nothing."""
    monkeypatch.setattr("covcal_cli.run.run.RESAMPLES", 10)
    settings = RunSettings(ExtractSettings(outputs="logits", multilabel=True), method="temp")
    steps: list[Step] = []
    for _ in range(2):
        report = run(
            None,
            several / "source.csv",
            several / "target.csv",
            tmp_path / "out",
            settings,
            tell=steps.append,
        )
    names = ["features.h5", "cal.json", "metrics.json", "probs.csv", "report.html"]
    assert [(step.output.name, step.reused) for step in steps] == [
        (name, reused) for reused in (False, True) for name in names
    ]
    for label in LABELS:
        with one_label(label):
            own = api.read_calibration(several / "cal.json")
            expected = api.evaluate(several / "features.h5", {"cal": own}).metrics["cal"]
        assert report.calibrations[label].scaling == own.scaling
    read = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert read["labels"][LABELS[-1]]["metrics"]["cal"]["ece"] == expected.ece
    api.apply(several / "features.h5", several / "cal.json", tmp_path / "probs.csv")
    assert (tmp_path / "probs.csv").read_bytes() == (tmp_path / "out/probs.csv").read_bytes()
    assert "each on 74 labelled target rows" in run_summary(report, verbose=False)
    with pytest.raises(CovcalError, match="--from is for one label"):
        earlier_run(tmp_path / "out")


def test_networks_for_several_labels_are_refused(several: Path, tmp_path: Path) -> None:
    """The message says why, and what to do instead; `run` refuses before it extracts."""
    line = covcal("adapt", several / "features.h5", cwd=tmp_path).error_line()
    assert "adapt works for one label per row: use covcal calibrate" in line
    with pytest.raises(CovcalError, match="leave out --adapt, and use another --method"):
        RunSettings(ExtractSettings(multilabel=True), adapt=True)


# Export.


@pytest.mark.parametrize("tail", ["Sigmoid", "Clip"])
def test_an_exported_model_gives_the_probabilities_of_apply(tail: str, tmp_path: Path) -> None:
    """Temperatures, offsets and the prediction of each label are built in, for any outputs."""
    ort = pytest.importorskip("onnxruntime")
    constants = {"w": 2 * WEIGHT, "b": np.zeros(3, np.float32)}
    nodes = [node("Relu", "x", "phi"), node("Gemm", "phi w b", "z", transB=1)]
    # "Clip" hides that the outputs are sigmoids, so the log odds of probabilities are read
    nodes += [node("Sigmoid", "z", "s"), node("Clip", "s", "y")] if tail == "Clip" else []
    nodes += [] if tail == "Clip" else [node(tail, "z", "y")]
    model = Graph(nodes, constants=constants, shape=("N", 4)).save(tmp_path)
    for domain in ("source", "target"):
        rows = made(domain)
        np.savez(tmp_path / f"{domain}.npz", x=rows["x"], y=rows["y"])
    features, document = tmp_path / "f.h5", tmp_path / "cal.json"
    paths = (tmp_path / "source.npz", tmp_path / "target.npz", features)
    (tmp_path / "names.txt").write_text("\n".join(LABELS))
    named = ExtractSettings(multilabel=True, classes=tmp_path / "names.txt")
    api.extract(model, *paths, named)
    settings = {
        "cat": api.CalibrateSettings(method="temp"),
        "dog": api.CalibrateSettings(labels=60),
        "bird": api.CalibrateSettings(method="prior", target_prior="uniform"),
    }
    calibrations = for_each_label(
        LABELS, lambda: api.calibrate(features, settings[current_label() or ""])
    )
    assert calibrations["dog"].confidence_offset
    assert any(calibrations["bird"].class_offsets)
    write_document(of_labels(calibrations, document), document, force=False)
    api.export(model, document, tmp_path / "out.onnx")
    api.apply(features, document, tmp_path / "p.npz")
    session = ort.InferenceSession(tmp_path / "out.onnx")
    before, after = session.run(["y", "probabilities"], {"x": made("target")["x"]})
    expected = np.load(tmp_path / "p.npz")["probabilities"]
    np.testing.assert_allclose(after, expected, atol=1e-5)
    assert np.abs(after - before).max() > 0.05
    assert '["cat", "dog", "bird"]' in describe(tmp_path / "out.onnx")


def test_a_decision_and_torch_are_exported_for_one_classifier(
    several: Path, tmp_path: Path
) -> None:
    for words in (("m.onnx", "--decide", "d.json"), ("m:build", "--trust-model")):
        line = covcal("export", *words, "-c", several / "cal.json", cwd=tmp_path).error_line()
        assert "use covcal apply" in line


# Rows to label: one draw and one sheet for all labels.


@pytest.fixture
def picked(several: Path, tmp_path: Path) -> Path:
    """A folder with features.h5, cal.json and the empty sheet of 60 rows."""
    for name in (*FILES, "to-label.csv"):
        shutil.copy(several / name, tmp_path)
    return tmp_path


def filled(folder: Path, name: str = "to-label.csv", **changed: list[str]) -> Path:
    """Fill in a sheet with the truth in words that people use, except for changed columns."""
    lines, y = lines_of(folder / name), made("target")["y"]
    for j, label in enumerate(LABELS):
        truth = [["0", "no", "False"][j], ["1", "yes", "True"][j]]
        for place, line in enumerate(lines):
            cells = changed.get(label)
            right = truth[y[int(line["id"][1:]), j]]
            line[f"label_{label}"] = right if cells is None else cells[place]
    write_lines(folder / name, lines)
    return folder / name


def test_rows_are_drawn_for_all_labels_together(picked: Path) -> None:
    """The probability of a row follows the mean variance of whether its labels are right."""
    spread = np.zeros(N)
    for label in LABELS:
        with one_label(label), FeatureFile(picked / "features.h5") as file:
            scaled = forecasters_of(file, None, 0)
            rows = np.arange(N, dtype=np.int64)
            right = np.concatenate([s for _, s in score_blocks(file, rows, scaled)])
            drawable = file.require_target().split != 2
            spread += right * (1 - right) / len(LABELS)
    size = np.sqrt(spread[drawable])
    expected = PICKED * (0.8 * size / size.sum() + 0.2 / len(size))
    assert expected.max() < 1
    inclusion = dict(zip(np.flatnonzero(drawable), expected, strict=True))
    lines = lines_of(picked / "to-label.csv")
    assert [*lines[0]] == [
        "id",
        "site",
        *(f"label_{label}" for label in LABELS),
        "inclusion",
        "draw",
    ]
    for line in lines:
        assert float(line["inclusion"]) == pytest.approx(inclusion[int(line["id"][1:])])
    text = (picked / "to-label.csv").read_text()
    assert sheet_text(read_sheet(picked / "to-label.csv")) == text


def test_labels_are_used_as_in_a_file_of_one_label(picked: Path, tmp_path: Path) -> None:
    """Estimate and calibration are the same as with two classes, the same draw and labels."""
    report = api.label(picked / "features.h5", [filled(picked)])
    assert (report.new, report.labelled, report.empty) == (3 * PICKED, 3 * PICKED, 0)
    assert {label: one.labelled for label, one in report.of_label.items()} == dict.fromkeys(
        LABELS, PICKED
    )
    own, labelled = tmp_path / "own", tmp_path / "own" / "labelled.h5"
    own.mkdir()
    with one_label("dog"):
        with FeatureFile(picked / "features.h5") as file:
            draw = draw_with_labels(file)
        y = made("target")["y"][draw.rows, 1]
        np.testing.assert_array_equal(draw.labels, y)
        expected = api.calibrate(picked / "features.h5")
        measured = api.evaluate(
            picked / "features.h5", {"cal": expected}, api.EvaluateSettings(split="all")
        )
    with FeatureFile(alone(own, "dog")) as file:
        write_copy(labelled, [(file, draw)])
    calibration = api.calibrate(labelled)
    assert calibration.used_target_labels
    for name in ("scaling", "estimates", "labelled_rows", "guards"):
        assert getattr(calibration, name) == getattr(expected, name)
    assert measured.n == N - PICKED
    assert "60 of 326 train and validation rows by confidences of 3 labels" in (
        describe(picked / "features.h5")
    )
    with h5py.File(picked / "features.h5") as stored:  # features are not stored for each label
        assert stored["label/0/target/features"] == stored["label/2/target/features"]
        assert stored["label/0/target/logits"] != stored["label/2/target/logits"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda lines: [{**x, "label_dog": "maybe"} for x in lines],
            "'maybe' in the column label_",
        ),
        (
            lambda lines: [{**x, "label_dog": ""} for x in lines],
            "60 of 180 labels are empty (dog 6",
        ),
        (lambda lines: [{**x, "inclusion": "0.5"} for x in lines], "but covcal pick wrote 0."),
        (
            lambda lines: [{k: x[k] for k in x if k != "label_dog"} for x in lines],
            "no column label",
        ),
        (lambda lines: [x | {"label_cow": "1"} for x in lines], "but the file has no such label"),
        (
            lambda lines: lines[1:],
            "the picked rows are missing|which says how rows were drawn, is missi",
        ),
        (
            lambda lines: [
                x | {"label_bird": cell}
                for x, cell in zip(lines, sorted(x["label_bird"] for x in lines), strict=True)
            ],
            "the column label_bird was sorted without the other columns",
        ),
        (
            lambda lines: [
                x | {n: y[n] for n in y if not n.startswith("label_")}
                for x, y in zip(lines, sorted(lines, key=lambda y: y["id"]), strict=True)
            ],
            "the labels may belong to other lines",
        ),
        (lambda lines: [x | dict.fromkeys(TRUTH, "") for x in lines], "has no labels yet"),
        (
            lambda lines: [
                x | {n: "" for n in TRUTH if x[n] in ("0", "no", "False")} for x in lines
            ],
            "but never 0. An empty cell means",
        ),
    ],
    ids=["maybe", "blank", "chance", "lack", "cow", "line", "sorted", "moved", "none", "ticked"],
)
def test_a_sheet_that_was_changed_is_refused(change: Any, message: str, picked: Path) -> None:
    sheet, before = filled(picked), (picked / "features.h5").read_bytes()
    write_lines(sheet, change(lines_of(sheet)))
    with pytest.raises(CovcalError) as error:
        api.label(picked / "features.h5", [sheet])
    assert any(part in str(error.value) for part in message.split("|"))
    assert (picked / "features.h5").read_bytes() == before


def test_two_labellers_disagree_about_one_label(several: Path, tmp_path: Path) -> None:
    """Agreement is counted for each label; a disagreement names the label."""
    shutil.copy(several / "features.h5", tmp_path)
    covcal("pick", "-n", 40, "--overlap", 10, "--predictions", cwd=tmp_path).require_success()
    sheets = ["to-label-1.csv", "to-label-2.csv"]
    for name in sheets:
        filled(tmp_path, name)
    lines = lines_of(tmp_path / sheets[1])
    lines[3]["label_dog"] = "no" if lines[3]["label_dog"] == "yes" else "yes"
    write_lines(tmp_path / sheets[1], lines)
    line = covcal("label", "features.h5", *sheets, cwd=tmp_path).error_line()
    assert "label 'dog': labellers disagree on 1 row of 10" in line
    done = covcal("label", "features.h5", *sheets, "--resolve", "drop", cwd=tmp_path)
    done.require_success()
    assert "119 added; 119 of the 120 labels" in done.out
    assert "lowest for dog: the labels agree on 9 of 10 rows" in done.out
    assert f"dog: '{lines[3]['id']}' is" in done.out


def test_labels_that_come_late_are_joined_to_every_label(picked: Path) -> None:
    """`watch --labels` reads a column of each label."""
    sheet = filled(picked)
    late = printed_json("watch", "features.h5", "--labels", sheet, "-o", "-", cwd=picked)
    counts = [one["periods"][0]["measured"]["labels"]["rows"] for one in late["labels"].values()]
    assert counts == [PICKED] * 3


@pytest.mark.parametrize("option", [("--page", "l.html"), ("-o", "l.jsonl")])
def test_a_page_and_tasks_are_for_one_label(
    option: tuple[str, str], several: Path, tmp_path: Path
) -> None:
    line = covcal("pick", several / "features.h5", *option, cwd=tmp_path).error_line()
    assert "features.h5 has several labels per row, but" in line


# Extraction: the forms of labels, models, and what is refused.


def test_later_rows_may_name_their_labels_by_the_calibration(several: Path, tmp_path: Path) -> None:
    """`--classes cal.json` reads the labels of a calibration in its order."""
    rows = columns(made("target"), "bird", "cat", "dog", truth="group_{}")
    write_csv(tmp_path / "new.csv", rows)
    options = ("--target", "new.csv", "--multilabel", "--classes", several / "cal.json")
    covcal("extract", *options, cwd=tmp_path).require_success()
    assert labels_in(tmp_path / "features.h5") == LABELS


def lists(y: NDArray[Any], form: Callable[[list[str]], Any]) -> list[Any]:
    """Return the labels of every row in one cell."""
    return [form([LABELS[j] for j in np.flatnonzero(row)]) for row in y]


@pytest.mark.parametrize(
    "cells",
    [
        lambda y: {f"true_{label}": y[:, j] for j, label in enumerate(LABELS)},
        lambda y: {"labels": lists(y, ";".join)},
        lambda y: {"label": lists(y, lambda names: "|".join(names) or "nothing")},
        lambda y: {"y_true": lists(y, json.dumps)},
        lambda y: {"y_true": lists(y, str)},
    ],
    ids=["columns", "semicolons", "bars", "json", "python"],
)
def test_labels_are_read_in_every_usual_form(
    cells: Callable[[NDArray[Any]], dict[str, Any]], tmp_path: Path
) -> None:
    """Columns of 1 and 0 and lists in one column give the same sets of labels."""
    y = made("target")["y"][:40]
    path = write_csv(tmp_path / "t.csv", {"a": range(40), **cells(y)})
    np.testing.assert_array_equal(LabelSets(open_store(path), 40).indices(named_classes(LABELS)), y)


def test_json_lines_hold_lists_of_labels_or_an_object(tmp_path: Path) -> None:
    """A list of names is the set of labels; -1, null and empty cells are unknown."""
    y = made("target")["y"][:40]
    named = named_classes(LABELS)
    path = write_json_lines(tmp_path / "t.jsonl", {"labels": lists(y, list)})
    np.testing.assert_array_equal(LabelSets(open_store(path), 40).indices(named), y)
    objects = [dict(zip(LABELS[::-1], map(int, row[::-1]), strict=True)) for row in y]
    path = write_json_lines(tmp_path / "o.jsonl", {"labels": objects})
    np.testing.assert_array_equal(LabelSets(open_store(path), 40).indices(named), y)
    outputs = [dict.fromkeys(LABELS, 0.4)] * 40  # beside labels of the same form
    path = write_json_lines(path, {"probs": outputs, "labels": objects})
    table = open_outputs(None, path, "probabilities", multilabel=True)["target"]
    np.testing.assert_array_equal(table.labels(named), y)
    path = write_json_lines(path, {"labels": [["cat"], None, []]})
    sets = LabelSets(open_store(path), 3).indices(named)
    np.testing.assert_array_equal(sets, [[1, 0, 0], [-1, -1, -1], [0, 0, 0]])
    path = write_csv(tmp_path / "u.csv", {"label_cat": ["1", "", "-1"], "label_dog": [0, 1, 0]})
    sets = LabelSets(open_store(path), 3).indices(named)
    np.testing.assert_array_equal(sets, [[1, 0, -1], [-1, 1, -1], [-1, 0, -1]])


@pytest.mark.parametrize("wrong", ["cat dog", "Cat", "cat;DOG"])
def test_labels_in_one_cell_that_are_written_otherwise_are_refused(
    wrong: str, tmp_path: Path
) -> None:
    path = write_csv(tmp_path / "t.csv", {"labels": ["cat", wrong, "bird"]})
    with pytest.raises(CovcalError, match=r"labels hold .*separate several labels by a semicolon"):
        LabelSets(open_store(path), 3).indices(named_classes(LABELS))
    path = write_csv(path, {"labels": ["cafe\u0301;cow", "cat"]})
    sets = LabelSets(open_store(path), 2).indices(named_classes(("cat", "caf\u00e9")))
    np.testing.assert_array_equal(sets, [[0, 1], [1, 0]])


@pytest.mark.parametrize("tail", ["Sigmoid", "Identity"])
def test_a_model_of_sigmoids_or_logits_gives_the_logits_of_its_labels(
    tail: str, tmp_path: Path
) -> None:
    """The last layer's outputs are one logit per label, not the logits of exclusive classes."""
    constants = {"w": 2 * WEIGHT, "b": np.zeros(3, np.float32)}
    nodes = [node("Relu", "x", "phi"), node("Gemm", "phi w b", "z", transB=1), node(tail, "z", "y")]
    model = Graph(nodes, constants=constants, shape=("N", 4)).save(tmp_path)
    rows = made("target")
    np.savez(tmp_path / "t.npz", x=rows["x"], y=rows["y"], classes=LABELS)
    (tmp_path / "names.txt").write_text("\n".join(LABELS))
    settings = ExtractSettings(multilabel=True, classes=tmp_path / "names.txt")
    api.extract(model, tmp_path / "t.npz", None, tmp_path / "f.h5", settings)
    for number, label in enumerate(LABELS):
        with one_label(label), FeatureFile(tmp_path / "f.h5") as file:
            source = file.require_source()
            every = np.arange(N, dtype=np.int64)
            expected = np.maximum(rows["x"], 0) @ (2 * WEIGHT[number])
            np.testing.assert_allclose(source.logits(every)[:, 1], expected, atol=1e-4)
            assert not source.logits(every)[:, 0].any()
            np.testing.assert_array_equal(source.labels(every), rows["y"][:, number])


def test_a_softmax_and_a_source_without_a_label_are_refused(tmp_path: Path) -> None:
    """Exclusive classes are refused, and so is a label that no source row has."""
    constants = {"w": WEIGHT, "b": np.zeros(3, np.float32)}
    nodes = [node("Gemm", "x w b", "z", transB=1), node("Softmax", "z", "y")]
    model = Graph(nodes, constants=constants, shape=("N", 4)).save(tmp_path)
    rows = made("target")
    np.savez(tmp_path / "t.npz", x=rows["x"], y=rows["y"])
    settings = ExtractSettings(multilabel=True)
    with pytest.raises(CovcalError, match="leave out multilabel"):
        api.extract(model, tmp_path / "t.npz", None, tmp_path / "f.h5", settings)
    rows["y"][:, 1] = 0
    np.savez(tmp_path / "t.npz", x=rows["x"], y=rows["y"])
    with pytest.raises(CovcalError, match="have the same value for 1: leave"):
        api.extract(model, tmp_path / "t.npz", None, tmp_path / "f.h5", settings)
    assert not (tmp_path / "f.h5").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prob_cat": [1.5] * N}, "which is not a probability"),
        ({"prob_cat": [""] + ["0.5"] * (N - 1)}, "is missing, NaN or infinite"),
        ({"label_cat": [3] * N}, "is 3: write 1 for yes"),
        ({"label_cow": [1] * N}, "the model has no output for the label label_cow"),
        ({"label": ["cat"] * N}, "keep one of them"),
    ],
    ids=["above 1", "missing", "three", "unknown", "two forms"],
)
def test_tables_that_are_wrong_are_refused_in_one_line(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """The message names the column or row, and what to do."""
    rows = columns(made("target"))
    rows |= {f"prob_{label}": [0.3, 0.6] * (N // 2) for label in LABELS} | change
    write_csv(tmp_path / "t.csv", rows)
    tables = ("--probabilities", "--multilabel", "--target", "t.csv")
    assert message in covcal("extract", *tables, cwd=tmp_path).error_line()
    assert not (tmp_path / "features.h5").exists()


def test_documents_that_moved_between_labels_are_refused(several: Path, tmp_path: Path) -> None:
    """Each document has a digest of its own, so only that of the file shows it."""
    content = json.loads((several / "cal.json").read_text())
    labels = content["labels"]
    labels["cat"], labels["dog"] = labels["dog"], labels["cat"]
    (tmp_path / "cal.json").write_text(json.dumps(content))
    with one_label("cat"), pytest.raises(CovcalError, match="changed after covcal wrote it"):
        api.read_calibration(tmp_path / "cal.json")


@pytest.mark.parametrize("names", ["[]", '["cat", "cat", "bird"]', '["", "dog", "bird"]', "3"])
def test_names_of_labels_that_are_damaged_are_refused(
    names: str, several: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copy(several / "features.h5", tmp_path))
    with edited(path) as file:
        file.attrs["labels"] = names
    with pytest.raises(CovcalError, match="its attribute 'labels' holds no label names"):
        labels_in(path)


def test_a_target_without_rows_does_not_look_like_probabilities(
    several: Path, tmp_path: Path
) -> None:
    head = (several / "target.csv").read_text().splitlines()[0]
    (tmp_path / "night.csv").write_text(f"{head}\n")
    settings = ExtractSettings(multilabel=True)
    report = api.extract(None, None, tmp_path / "night.csv", tmp_path / "f.h5", settings)
    assert report.warnings == ()


def test_texts_that_differ_only_in_numbers_are_one_line() -> None:
    """Twenty labels repeated a note of three lines twenty times."""
    texts = {f"l{k}": [f"the accuracy is {k}.5%", "no features"] for k in range(8)}
    texts["l2"].append("label more rows")
    assert gathered(texts) == [
        "l0: the accuracy is 0.5% (similar for l1, l2, l3, l4 and 3 more labels)",
        "no features",
        "l2: label more rows",
    ]
