"""One confidence per row: its columns, its units, and what every command makes of it."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from covcal_cli.data.classes import named_classes
from covcal_cli.data.outputs import OutputTable, open_outputs
from covcal_cli.errors import CovcalError
from covcal_cli.extract.extract import extract
from covcal_cli.formats.features import FeatureFile
from covcal_cli.labels.pick import PickSettings, pick
from covcal_cli.records import write_document
from tests.cli_runner import covcal

CLASSES = ("cat", "dog", "owl")


def table(path: Path, header: str, rows: Sequence[Sequence[Any]]) -> Path:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def opened(*paths: Path) -> dict[str, OutputTable]:
    source = paths[0] if len(paths) == 2 else None
    return open_outputs(source, paths[-1], "confidence")


def shares(read: OutputTable) -> NDArray[np.float64]:
    rows = np.arange(len(read.ids), dtype=np.int64)
    batches = list(read.batches(None, rows, size=7, threads=1))
    logits = np.concatenate([batch.inputs["logits"] for batch in batches])
    return np.asarray(np.exp(logits), dtype=np.float64)


def detections(path: Path, n: int, shift: float, *, truth: str = "correct", seed: int = 0) -> Path:
    """Write predictions of three classes, surer than right, with two decimals and some without."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=n)
    scores = rng.normal(size=(n, 3))
    scores[np.arange(n), labels] += 2.5 - shift
    chances = np.exp(2 * scores)
    chances /= chances.sum(axis=1, keepdims=True)
    rows = []
    for number, (chance, label) in enumerate(zip(chances, labels.tolist(), strict=True)):
        answer = int(chance.argmax())
        confidence = -1 if number % 50 == 7 else f"{chance.max():.2f}"
        known = {"correct": int(answer == label), "label": CLASSES[label]}
        rows.append([f"r{number}", CLASSES[answer], confidence, *([known[truth]] if truth else [])])
    return table(path, f"id,prediction,confidence{',' + truth if truth else ''}", rows)


def test_the_prediction_has_its_confidence_and_the_other_classes_share_the_rest(
    tmp_path: Path,
) -> None:
    rows = [("cat", 0.75, "dog"), ("owl", 0.625, "owl"), ("dog", 0.5, "dog")]
    read = opened(table(tmp_path / "a.csv", "prediction,confidence,label", rows))["target"]
    assert read.class_names == CLASSES
    expected = [[0.75, 0.125, 0.125], [0.1875, 0.1875, 0.625], [0.25, 0.5, 0.25]]
    np.testing.assert_allclose(shares(read), expected, rtol=1e-6)
    assert read.class_folders == ("dog", "owl")


def test_percentages_are_divided_and_rows_without_confidence_left_out(tmp_path: Path) -> None:
    rows = [("a", 80, "r0"), ("b", -1, "r1"), ("b", "", "r2"), ("c", 60, "r3")]
    read = opened(table(tmp_path / "a.csv", "prediction,score,id", rows))["target"]
    np.testing.assert_allclose(shares(read).max(axis=1), [0.8, 0.6], rtol=1e-6)
    assert read.ids == ["r0", "r3"]
    assert any("2 rows without a confidence are left out" in note for note in read.notes)
    with_signs = [("a", "80%"), ("b", "none"), ("c", "6%")]
    read = opened(table(tmp_path / "b.csv", "prediction,conf", with_signs))["target"]
    np.testing.assert_allclose(shares(read).max(axis=1), [0.8, 0.5], rtol=1e-3)
    assert any("so covcal sets them to 0.5" in note for note in read.notes)


def test_a_confidence_of_1_is_as_sure_as_its_decimals(tmp_path: Path) -> None:
    rows = [("a", 1.0), ("b", 0.95), ("c", 0.9)]
    read = opened(table(tmp_path / "a.csv", "prediction,confidence", rows))["target"]
    np.testing.assert_allclose(shares(read).max(axis=1), [0.9975, 0.95, 0.9], rtol=1e-6)


def test_whether_a_prediction_is_right_needs_no_label(tmp_path: Path) -> None:
    rows = [("a", 0.9, 1), ("b", 0.8, 0), ("a", 0.7, "")]
    read = opened(table(tmp_path / "a.csv", "prediction,confidence,correct", rows))["target"]
    assert read.class_names == ("a", "another answer", "b")
    assert read.class_folders == ("a", "another answer")


@pytest.mark.parametrize("header", ["confidence,correct", "prediction,confidence,correct"])
def test_free_texts_are_right_or_wrong(header: str, tmp_path: Path) -> None:
    rows = [[f"text {number}", 0.5, number % 2] for number in range(300)]
    rows = [row[-len(header.split(",")) :] for row in rows]
    read = opened(table(tmp_path / "a.csv", header, rows))["target"]
    assert read.class_names is not None
    assert read.class_names[:2] == ("right", "wrong")
    assert (shares(read).argmax(axis=1) == 0).all()
    np.testing.assert_allclose(shares(read)[:, 0], 0.5, rtol=1e-6)


@pytest.mark.parametrize(
    "record",
    [
        lambda right: {"image_id": 3, "category_id": 17, "score": 0.75, "matched": right},
        lambda right: {"label": "17", "score": 0.75, "is_correct": right},
        lambda right: {"label": "17", "score": 0.75, "answer": "accept" if right else "reject"},
        lambda right: {
            "id": 9,
            "data": {"text": "a"},
            "annotations": [{"result": [choice("17" if right else "18")]}],
            "predictions": [{"score": 0.75, "result": [choice("17")]}],
        },
    ],
    ids=["detections", "pipeline", "Prodigy", "Label Studio"],
)
@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl"])
def test_layouts_of_tools(name: str, record: Any, tmp_path: Path) -> None:
    records = [record(number % 3 > 0) for number in range(30)]
    lines = "".join(json.dumps(line) + "\n" for line in records)
    text = json.dumps(records) if name.endswith(".json") else lines
    (tmp_path / name).write_text(text)
    read = opened(tmp_path / name, tmp_path / name)["source"]
    np.testing.assert_allclose(shares(read).max(axis=1), 0.75, rtol=1e-6)
    assert read.class_names is not None
    assert "17" in read.class_names
    assert "accept" not in read.class_names


def test_names_that_differ_are_refused_or_noted(tmp_path: Path) -> None:
    def read(*rows: tuple[Any, ...], header: str = "prediction,confidence,label") -> OutputTable:
        path = table(tmp_path / "a.csv", header, rows)
        return opened(path, path)["source"]

    usual = ("dog", 0.7, "dog")
    with pytest.raises(CovcalError, match="classes Cat, cat differ only in case"):
        read(("cat", 0.9, "Cat"), ("A", 0.8, "a"), usual)
    same = read(("caf\u00e9", 0.9, "cafe\u0301"), (" ice  tea", 0.8, "ice\u00a0tea\u200b"), usual)
    assert same.class_names == ("caf\u00e9", "dog", "ice tea")
    notes = " ".join(read(("dog.", 0.9, "dog"), usual).notes)
    assert "in 1 rows, prediction and label differ only in case or punct" in notes
    assert not read((1, 0.9, -1), (-1, 0.8, -1), (1, 0.7, 1)).notes
    with pytest.raises(CovcalError, match=r"no prediction \(0, 1\) is one of the labels \(a, b\)"):
        read(*[(0, 0.9, "a"), (1, 0.8, "b")] * 5)
    with pytest.raises(
        CovcalError, match=r"label contradict each other in 1 of 2 rows, .* in line 3: keep"
    ):
        read((*usual, 1), (*usual, 0), header="prediction,confidence,label,correct")


def test_none_is_a_class_if_it_is_predicted(tmp_path: Path) -> None:
    rows = [("none", 0.9, "none"), ("NA", 0.9, "NA"), ("dent", 0.8, "none"), ("dent", 0.7, "nan")]
    path = table(tmp_path / "a.csv", "prediction,confidence,label", rows)
    read = opened(path, path)["source"]
    assert read.class_names == ("NA", "dent", "none")
    assert read.labels(named_classes(read.class_names)).tolist() == [2, 0, 2, -1]
    rows = [("dent", 0.9, "none"), ("dent", 0.8, "dent")]
    assert opened(path, table(path, "prediction,confidence,label", rows))["source"].n_classes == 2


def test_codes_that_differ_in_zeros_are_different_classes(tmp_path: Path) -> None:
    rows = [("007", 0.9, "7"), ("7", 0.9, "7"), ("007", 0.8, "007"), (2**53, 0.7, 2**53 + 1)]
    path = table(tmp_path / "a.csv", "prediction,confidence,label", rows)
    read = opened(path, path)["source"]
    names = read.class_names
    assert names is not None
    labels = read.labels(named_classes(names)).tolist()
    assert [names[label] for label in labels] == ["7", "7", "007", str(2**53 + 1)]


@pytest.mark.parametrize("other", [1.2, 95.0, 3.0])
def test_values_of_two_units_are_refused(other: float, tmp_path: Path) -> None:
    rows = [("a", 0.9), ("b", 0.8), ("a", 0.7), ("a", other)]
    path = table(tmp_path / "a.csv", "prediction,confidence", rows)
    with pytest.raises(CovcalError, match=rf"up to {other:g} \(line 5\), but 3 of 4 values are at"):
        opened(path)
    rows = [("a", 1 + 1e-7), ("b", 0.5)]
    np.testing.assert_allclose(
        shares(opened(table(path, "prediction,confidence", rows))["target"]).max(axis=1),
        [0.975, 0.5],
        rtol=0.01,
    )


def test_scores_of_a_detector_are_forecasts_of_being_right(tmp_path: Path) -> None:
    """Many are below chance among the categories; that is no sign of a bad classifier."""
    rng = np.random.default_rng(0)
    for domain in ("old", "new"):
        scores = rng.random(300)
        boxes = [
            {"category_id": 1 + row % 3, "bbox": [0.5, 0, 2, 2], "score": float(score)}
            | {"correct": int(rng.random() < score)}
            for row, score in enumerate(scores)
        ]
        (tmp_path / f"{domain}.json").write_text(json.dumps(boxes))
    report = extract(None, tmp_path / "old.json", tmp_path / "new.json", tmp_path / "f.h5")
    assert report.facts["classes"].startswith("covcal uses the classes 'right' and 'wrong', ")
    assert not any("no better than" in warning or "bbox" in warning for warning in report.warnings)
    # A person who judges a prediction must see it, and its box.
    sheet = pick(tmp_path / "f.h5", tmp_path / "sheet.csv", PickSettings(rows=20))
    assert sheet.classes == ("right", "wrong")
    text = (tmp_path / "sheet.csv").read_text()
    assert text.startswith("id,bbox,prediction,label,")
    assert text.count('"0.5, 0, 2, 2"') == 20
    del boxes[0]["correct"]
    (tmp_path / "old.json").write_text(json.dumps(boxes[:1]))
    with pytest.raises(CovcalError, match="for boxes: match the boxes with the annotations"):
        opened(tmp_path / "old.json", tmp_path / "new.json")


def choice(name: str) -> dict[str, Any]:
    return {"type": "choices", "from_name": "c", "to_name": "t", "value": {"choices": [name]}}


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("prediction,label", ("a", "a"), "there is no column confidence"),
        ("prediction,confidence", ("a", 0.5), "which predictions are right: add a column correct"),
        ("confidence,label", (0.5, "a"), "the predictions are missing: add a column prediction"),
        ("confidence,label", (0.5, "1"), "one class, rename it to prob_NAME"),
        (
            "score,label",
            (0.5, "1"),
            "(its column label is read as the prediction): add a column correct",
        ),
        ("score,label", (0.5, "1"), "If score is the probability of one class, rename it to prob_"),
        ("prediction,confidence,correct", ("a", -0.5, 1), "confidence of line 2 is -0.5"),
        ("prediction,confidence,correct", ("a", 170, 1), "confidence of line 2 is 170"),
        ("prediction,confidence,correct", ("a", "high", 1), "confidence of line 2 is 'high'"),
        ("prediction,confidence,correct", ("a", 0.5, "maybe"), "correct of line 2 is 'maybe'"),
        ("prediction,confidence,correct", ("a", -1, 1), "no row has a value in confidence"),
    ],
)
def test_what_is_wrong_is_named(
    header: str, row: tuple[Any, ...], message: str, tmp_path: Path
) -> None:
    path = table(tmp_path / "a.csv", header, [row] * 3)
    with pytest.raises(CovcalError, match=r"a\.csv") as caught:
        opened(path, path)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["prediction", "confidence", "label", "correct"])
@pytest.mark.parametrize("shape", [(), (9,), (11,), (10, 2)])
def test_every_array_has_one_value_per_row(
    name: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    usual = dict.fromkeys(("prediction", "confidence", "label"), np.ones(10))
    arrays = {**usual, name: np.ones(shape)}
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(CovcalError, match=r"a\.npz: .* has shape \[.*, but confidence has "):
        opened(tmp_path / "a.npz", tmp_path / "a.npz")


def test_both_tables_have_one_unit(tmp_path: Path) -> None:
    ours = table(tmp_path / "a.csv", "prediction,confidence,correct", [("a", 90, 1), ("b", 80, 0)])
    theirs = table(tmp_path / "b.csv", "prediction,confidence", [("a", 0.9), ("b", 0.8)])
    with pytest.raises(CovcalError, match=r"b\.csv.*only values up to 1.*percentages"):
        opened(ours, theirs)
    assert not opened(ours, table(tmp_path / "b.csv", "prediction,confidence", []))["target"].ids


@pytest.mark.parametrize("names", [("v1.0", "v1", "v2"), ("GPL-2.0", "GPL-2", "MIT")])
def test_a_final_0_can_be_part_of_a_name(names: tuple[str, ...], tmp_path: Path) -> None:
    rows = [(names[row % 3], 0.6, names[row % 2]) for row in range(30)]
    path = table(tmp_path / "a.csv", "prediction,confidence,label", rows)
    assert opened(path, path)["source"].class_names == tuple(sorted(names))


def test_the_probability_of_one_class_is_no_confidence(tmp_path: Path) -> None:
    """Where all low values belong to one of two predictions, they are the other's probability."""
    shares = [0.05 + 0.03 * number for number in range(30)]
    rows = [(int(share > 0.5), share, int(number % 3 > 0)) for number, share in enumerate(shares)]
    path = table(tmp_path / "a.csv", "prediction,confidence,label", rows)
    with pytest.raises(
        CovcalError, match=r"probability of 1 in every row.* rename the column to prob_1"
    ):
        opened(path, path)
    correct = table(path, "prediction,confidence,correct", rows)
    with pytest.raises(CovcalError, match=r"rename the column to prob_1"):
        opened(correct, correct)
    path = table(path, "prediction,confidence,label", rows)
    own = [(answer, share if answer else 1 - share, label) for answer, share, label in rows]
    assert len(opened(table(path, "prediction,confidence,label", own))["target"].ids) == 30


def test_a_forecast_of_being_right_has_no_note_on_its_wrong_answers(tmp_path: Path) -> None:
    rows = [(0.5 + number / 100, int(number % 3 > 0)) for number in range(30)]
    path = table(tmp_path / "a.csv", "confidence,correct", rows)
    done = covcal("extract", path, path, "-o", tmp_path / "f.h5").require_success()
    assert "wrong 2" not in done.err


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a features file of detections, and its calibration."""
    place = tmp_path_factory.mktemp("detections")
    old = detections(place / "old.csv", 600, 0.0, seed=1)
    new = detections(place / "new.csv", 500, 1.2, seed=2)
    features = place / "features.h5"
    covcal("extract", "--confidence", old, new, "-o", features).require_success()
    covcal("calibrate", features, "-o", place / "cal.json").require_success()
    return place


@pytest.mark.parametrize(
    "command",
    [
        "estimate {0}/features.h5",
        "evaluate {0}/features.h5 -c {0}/cal.json --metrics all",
        "apply {0}/features.h5 -c {0}/cal.json -o {1}/rows.csv",
        "decide {0}/features.h5 -c {0}/cal.json --error 0.2 -o {1}/decide.json",
        "pick {0}/features.h5 -n 20 -o {1}/sheet.csv",
        "report {0}/features.h5 -c {0}/cal.json -o {1}/report.html",
        "inspect {0}/features.h5",
        "calibrate {0}/features.h5 --labels 50 -o {1}/labelled.json",
    ],
)
def test_a_forecast_of_being_right_serves_every_command(
    command: str, folder: Path, tmp_path: Path
) -> None:
    covcal(*command.format(folder, tmp_path).split()).require_success()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("watch {} -c {c} --metrics recall", "--metrics needs the probabilities of all classes"),
        ("calibrate {} --method cot", "cot needs a file with the probabilities of all"),
        ("calibrate {} --method prior --target-prior uniform", "--target-prior needs the probab"),
        ("calibrate {} --method label-shift", "label-shift needs a file with the prob"),
        ("calibrate {} --method blend", "blend needs an adapted file"),
        ("decide {} -c {c} --set 0.9", "--set needs the probabilities of all classes"),
        ("estimate {} --metrics f1", "--metrics needs the probabilities of all classes"),
        ("evaluate {} -c {c} --fail-above brier=0.1", "brier of consensus has no value"),
    ],
)
def test_what_needs_all_classes_says_so_in_one_line(
    command: str, message: str, folder: Path, tmp_path: Path
) -> None:
    words = command.format(folder / "features.h5", c=folder / "cal.json").split()
    output = [] if words[0] in ("estimate", "evaluate") else ["-o", str(tmp_path / "out.json")]
    done = covcal(*words, *output)
    assert done.code == 1
    assert message in done.err
    assert len(done.err.strip().splitlines()) <= 2


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz", "h5"])
@pytest.mark.parametrize("different", [3, 250])
def test_apply_keeps_the_predictions(different: int, ending: str, tmp_path: Path) -> None:
    """Also if the classes are right and wrong, and after the output was read again."""
    answers = [f"Answer {row % different}, {'é' * (1 + row % 60)}" for row in range(300)]
    rows = [(row, answer, 0.4 + row % 59 / 100) for row, answer in enumerate(answers)]
    labelled = [(*row, int(row[0] % 3 > 0)) for row in rows]
    old = tmp_path / "old.jsonl"
    keys = ("id", "prediction", "confidence", "correct")
    old.write_text(
        "".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in labelled)
    )
    out, files = tmp_path / f"rows.{ending}", (tmp_path / "f.h5", "-c", tmp_path / "c.json")
    covcal("extract", old, old, "-o", files[0]).require_success()
    covcal("calibrate", files[0], "--method", "temp", "-o", files[2]).require_success()
    covcal("apply", *files, "-o", out).require_success()
    again = (out, "--classes", files[2], "-o", files[0], "-f")
    covcal("extract", "--target", *again).require_success()
    lines = csv.DictReader(covcal("apply", *files, "-o", "-").require_success().out.splitlines())
    assert [line["label"] for line in lines] == answers


def test_what_is_written_has_no_probabilities_of_other_classes(
    folder: Path, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.csv"
    arguments = (folder / "features.h5", "-c", folder / "cal.json")
    covcal("apply", *arguments, "-o", rows).require_success()
    assert rows.read_text().splitlines()[0] == "id,label,label_index,confidence"
    # Low confidence does not make another class more probable, so no warning says so.
    content = json.loads((folder / "cal.json").read_text()) | {"confidence_offset": -3.0}
    write_document(content, tmp_path / "low.json", force=False)
    done = covcal("apply", arguments[0], "-c", tmp_path / "low.json", "-o", rows, "-f")
    assert "no longer the most probable" not in done.require_success().err
    covcal("evaluate", *arguments, "-o", tmp_path / "metrics.json").require_success()
    metrics = json.loads((tmp_path / "metrics.json").read_text())["metrics"]["none"]
    assert "correctness_brier" in metrics
    assert not {"brier", "nll", "agreement"} & metrics.keys()


def test_later_rows_need_the_classes_of_the_calibration(folder: Path, tmp_path: Path) -> None:
    later = detections(tmp_path / "later.csv", 200, 1.0, truth="", seed=3)
    command = ("extract", "--confidence", "--target", later, "-o", tmp_path / "later.h5")
    covcal(*command, "--classes", folder / "cal.json").require_success()
    with FeatureFile(tmp_path / "later.h5") as file:
        assert file.has_one_confidence
    covcal("watch", tmp_path / "later.h5", "-c", folder / "cal.json").require_success()
    owls = table(tmp_path / "later.csv", "prediction,confidence", [("cat", 0.5), ("elk", 0.6)])
    done = covcal("extract", "--confidence", "--target", owls, "--classes", folder / "cal.json")
    assert done.code == 1
    assert "prediction of line 3 is 'elk': give a class of the calibration" in done.err


def test_two_closed_classes_are_the_whole_distribution(tmp_path: Path) -> None:
    rows = [("ab"[number % 2], 0.6 + number / 100, "ab"[number % 3 % 2]) for number in range(30)]
    path = table(tmp_path / "rows.csv", "prediction,confidence,label", rows)
    covcal("extract", "--confidence", path, path, "-o", tmp_path / "f.h5").require_success()
    with FeatureFile(tmp_path / "f.h5") as file:
        assert not file.has_one_confidence


def test_the_frequencies_of_predictions_count_as_evidence(tmp_path: Path) -> None:
    """If nearly all rows are predicted as one class, most must be wrong, however sure they are."""
    rng = np.random.default_rng(0)
    old = [(CLASSES[k % 3], 0.99, int(rng.random() < 0.95)) for k in range(300)]
    new = [("cat" if rng.random() < 0.9 else "owl", 0.98) for _ in range(300)]
    paths = (
        table(tmp_path / "old.csv", "prediction,confidence,correct", old),
        table(tmp_path / "new.csv", "prediction,confidence", new),
    )
    covcal("extract", "--confidence", *paths, "-o", tmp_path / "f.h5").require_success()
    covcal("estimate", tmp_path / "f.h5", "-o", tmp_path / "e.json").require_success()
    estimates = json.loads((tmp_path / "e.json").read_text())["estimates"]
    of_classes = next(e for e in estimates if e["name"] == "predicted classes")
    assert of_classes["accuracy"] == pytest.approx(0.95 - 0.57, abs=0.06)
    assert estimates[0]["accuracy"] < 0.4
