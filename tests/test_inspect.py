"""``covcal inspect``: a few true lines on any file that covcal wrote."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covcal_cli.errors import percent
from covcal_cli.files import sha256_of
from covcal_cli.records import write_document
from covcal_cli.run.journal import Journal, Messages
from tests.cli_runner import covcal
from tests.made_files import edited


def shown(path: Path) -> dict[str, str]:
    """Return what inspect prints, by the name in front of each line."""
    lines = covcal("inspect", path).require_success().out.splitlines()
    named = (line.split("  ", 1) for line in lines if "  " in line)
    return {name: text.strip() for name, text in named}


def test_features(small_files: Path) -> None:
    """A features file: schema, classes, rows per split, widths and provenance."""
    found = shown(small_files / "features.h5")
    assert found["schema"] == "covcal.features/1"
    assert found["classes"] == "3: class 0, class 1, class 2"
    assert found["source"] == (
        "350 rows (train 120, validation 150, test 80), all labelled; features 4, logits 3"
    )
    assert found["model_name"] == "made.onnx"
    assert "complete" not in found


def test_adapted(small_files: Path) -> None:
    """An adapted file shows its members, and that it holds no features."""
    found = shown(small_files / "adapted.h5")
    assert found["schema"] == "covcal.adapted/1"
    assert found["target"].endswith("features none, logits 3; members 2")


def test_a_trained_file_stays_a_few_lines(trained: Path, tmp_path: Path) -> None:
    """The training record, a thousand numbers, is not poured over the screen."""
    path = Path(shutil.copy(trained, tmp_path))
    with edited(path) as file:
        record = json.loads(file.attrs["training"])
        record["members"][0]["losses"] *= 100
        file.attrs["training"] = json.dumps(record)
    lines = covcal("inspect", path).require_success().out.splitlines()
    assert len(lines) < 40
    assert max(map(len, lines)) < 300


def test_calibration(small_files: Path) -> None:
    """A calibration shows method, reason, temperature, model, input and its warnings."""
    path = small_files / "temp.json"
    source = small_files / "adapted.h5"
    content = json.loads(path.read_text())
    found = shown(path)
    assert found["schema"] == "covcal.calibration/1"
    assert found["method"] == "temp (asked for: temp)"
    temperature, meaning = found["T_f"].split("; ", 1)
    expected = content["temperatures"]["forecaster"]
    assert float(temperature) == pytest.approx(expected, rel=1e-5)
    assert meaning == "the logits of the classifier are divided by T_f"
    assert found["adapted"] == f"{source} {sha256_of(source)[:12]}"
    assert "T_a" not in found
    blend = json.loads((small_files / "blend.json").read_text())["temperatures"]["aligned"]
    assert shown(small_files / "blend.json")["T_a"].startswith(f"{blend:.6g}; ")


def test_warnings_of_a_calibration_are_shown(small_files: Path, tmp_path: Path) -> None:
    """Whoever gets a cal.json from somebody else sees what its maker was warned of."""
    content = json.loads((small_files / "temp.json").read_text())
    path = tmp_path / "cal.json"
    write_document(
        content | {"warnings": ["first", "second"], "notes": ["third"]}, path, force=True
    )
    out = covcal("inspect", path).require_success().out
    assert all(word in out for word in ("first", "second", "third"))


def test_metrics(features: Path) -> None:
    """A metrics file shows rows and the main numbers of each calibration."""
    path = features.with_name("metrics.json")
    answer = covcal("evaluate", features, "-o", path).require_success().out
    entry = json.loads(path.read_text())["metrics"]["none"]
    found = shown(path)
    assert found["rows"] == "80 target rows (test)"
    gap, _, numbers = found["none"].partition("; ")
    assert gap.removeprefix("confidence ") in answer
    assert numbers == (
        f"accuracy {percent(entry['accuracy'])}, ECE {percent(entry['ece'])}, "
        f"NLL {entry['nll']:.4f}"
    )
    assert found["classes"].removeprefix("with none, ") in answer


def test_many_classes_are_cut(features: Path) -> None:
    """Of many classes the first few are named."""
    with edited(features) as file:
        names = [f"c{number}".encode() for number in range(1000)]
        del file["classes"], file["source"], file["target"]
        file["classes"] = np.array(names)
    assert shown(features)["classes"] == "1000: c0, c1, c2, c3, c4, c5, c6, c7, ..."


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "text",
        "{}",
        '{"schema": 3}',
        '{"schema": "covcal.metrics/2"}',
        '{"schema": "covcal.calibration/1"}',
        pytest.param('{"schema": "covcal.metrics/1"}'),
        pytest.param(
            '{"schema": "covcal.metrics/1", "n": 1, "split": "test", "metrics": []}',
        ),
        pytest.param(
            '{"schema": "covcal.metrics/1", "n": 1, "split": "test", "metrics": {"none": {}}}',
        ),
    ],
)
def test_a_damaged_or_foreign_json_file(tmp_path: Path, content: str) -> None:
    """Damage is one line that names the file, whatever is missing inside."""
    path = tmp_path / "x.json"
    path.write_text(content)
    assert covcal("inspect", path).error_line().startswith(str(path))


@pytest.mark.parametrize("name", ["digits.onnx", "source.npz"])
def test_a_file_of_another_program(digits: Path, name: str) -> None:
    """A model or a file of arrays is not covcal's; the message names no command to make it."""
    line = covcal("inspect", digits / name).error_line()
    assert line.startswith(f"{digits / name} is not")


@pytest.mark.parametrize("name", ["rows.csv", "rows.npz", "rows.parquet"])
def test_tables_that_apply_writes(small_files: Path, tmp_path: Path, name: str) -> None:
    """Calibrated rows show how many they are, their mean confidence and their columns."""
    path = tmp_path / name
    if path.suffix == ".parquet":
        pytest.importorskip("pyarrow")
    arguments = ("adapted.h5", "-c", "temp.json", "-o", path)
    covcal("apply", *arguments, cwd=small_files).require_success()
    found = shown(path)
    assert found["rows"] == "350, written by covcal apply"
    assert float(found["confidence"].partition("%")[0]) > 30
    assert {"id", "label_index", "confidence"} <= set(found["columns"].split(", "))


def test_a_sheet_to_label_explains_its_columns(features: Path) -> None:
    """Nobody deletes the columns that covcal label needs."""
    sheet = features.with_name("to-label.csv")
    covcal("pick", features, "-n", "5", "-o", sheet).require_success()
    found = shown(sheet)
    assert found["sheet"] == "5 rows that covcal pick drew; 0 have a label"
    assert "Do not change the other columns" in found["to do"]
    assert "covcal label needs this column" in found["draw"]


@pytest.mark.parametrize("name", ["tasks.json", "tasks.jsonl"])
def test_tasks_say_what_to_do(features: Path, name: str) -> None:
    covcal("pick", features, "-n", "5", "-o", features.with_name(name)).require_success()
    found = shown(features.with_name(name))
    assert found["tasks"] == "5 rows that covcal pick drew; 0 have a label"
    assert "give the export to covcal label" in found["to do"]


@pytest.mark.parametrize(
    ("start", "kind"),
    [("<!DOCTYPE html>", "is a web page: open it"), ("<?xml version", "is an XML document: open")],
)
def test_a_page_is_called_a_page(start: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(start)
    assert kind in covcal("inspect", path).error_line()


def test_a_decision_and_reference_data(features: Path) -> None:
    """decide.json begins with the answer of decide; the reference data say what they are for."""
    folder = features.parent
    covcal("calibrate", features, "-o", "cal.json", cwd=folder).require_success()
    for limit in ("0.001", "0.4"):
        arguments = ("decide", "--error", limit, "--force", "--quiet")
        answer = covcal(*arguments, cwd=folder).require_success().out
        out = covcal("inspect", "decide.json", cwd=folder).require_success().out
        assert out.startswith(f"{answer.strip()}\n\n")
    covcal("watch", features, cwd=folder).require_success()
    assert "covcal watch compares" in shown(folder / "cal.reference.json")["purpose"]


def test_a_gate_is_the_first_line_of_metrics(features: Path) -> None:
    path = features.with_name("metrics.json")
    done = covcal("evaluate", features, "--fail-above", "ece=0", "-o", path)
    assert done.code in (0, 3)
    first, *_ = covcal("inspect", path).require_success().out.splitlines()
    outcome = "FAILED" if done.code == 3 else "not proved"
    assert " ".join(first.split()).startswith(
        f"gate {outcome} by the uncalibrated classifier: ece <= 0: "
    )


def test_a_calibration_begins_with_verdict_and_answer(small_files: Path) -> None:
    out = covcal("inspect", small_files / "temp.json").require_success().out
    names = [line.partition("  ")[0] for line in out.splitlines()]
    assert names[:4] == ["Verdict", "Target accuracy", "Confidence", "Temperature"]


@pytest.mark.parametrize("schema", ["metrics", "estimate", "calibration"])
def test_damage_is_told_in_plain_words(tmp_path: Path, schema: str) -> None:
    """The field that is missing is named, in no language of a program."""
    path = tmp_path / "x.json"
    write_document({"schema": f"covcal.{schema}/1"}, path, force=True)
    line = covcal("inspect", path).error_line()
    assert line.startswith(f"{path} is damaged (")
    assert " is missing): " in line
    assert "Error" not in line


def test_nothing_but_text_is_printed(small_files: Path) -> None:
    """Attributes of any type are shown as text, not as bytes or arrays' names."""
    out: Any = covcal("inspect", small_files / "adapted.h5").require_success().out
    assert "b'" not in out
    assert "dtype" not in out


def test_applied_rows(small_files: Path, tmp_path: Path) -> None:
    """What apply writes as HDF5 shows its rows and where they come from."""
    path = tmp_path / "rows.h5"
    arguments = (small_files / "adapted.h5", "-c", small_files / "temp.json", "-o", path)
    covcal("apply", *arguments).require_success()
    found = shown(path)
    assert found["schema"] == "covcal.applied/1"
    assert found["rows"] == "350, probabilities"
    assert found["calibration_sha256"] == sha256_of(small_files / "temp.json")


def test_the_journal_of_a_run(tmp_path: Path) -> None:
    """run.json shows its results."""
    output = tmp_path / "cal.json"
    output.write_text("{}")
    Journal(tmp_path).record(output, "key", Messages(("few rows",)))
    found = shown(tmp_path / "run.json")
    assert found["cal.json"] == f"sha256 {sha256_of(output)[:12]}, warnings: 1"


def test_how_well_the_classifier_does(small_files: Path, tmp_path: Path) -> None:
    """Labelled rows, groups and source accuracy; a doubt where it is near chance."""
    path = Path(shutil.copy(small_files / "features.h5", tmp_path))
    with edited(path) as file:
        file["source/columns/site"] = np.zeros(350)
        labels, unseen = file["source/labels"][:], file["source/split"][:] > 0
        right = int((file["source/logits"][:].argmax(axis=1) == labels)[unseen].sum())
        file["target/labels"][:100] = -1
    found = shown(path)
    assert "), all labelled;" in found["source"]
    assert "), 250 labelled for covcal evaluate;" in found["target"]
    assert found["groups"] == "site"
    assert found["accuracy"].startswith(f"{100 * right / 230:.1f} % (")
    assert found["accuracy"].endswith(" of 230 labelled source rows (validation and test)")
    assert "warning" not in found
    with edited(path) as file:
        file["source/labels"][:] = np.random.default_rng(0).permutation(labels)
    assert "better than always answering" in shown(path)["warning"]


def test_preprocessing_in_words(digits: Path, tmp_path: Path) -> None:
    inputs = (digits / name for name in ("digits.onnx", "source.npz", "target.npz"))
    covcal("extract", *inputs, "-o", tmp_path / "f.h5", "--sample", 90).require_success()
    found = shown(tmp_path / "f.h5")
    assert "{" not in found["images"]
    assert "color L" in found["images"]
    assert "preprocessing" not in found


def test_a_model_that_export_wrote(digits: Path, tmp_path: Path) -> None:
    """What is merged into it and of what, without loading a model's library."""
    inputs = [digits / name for name in ("digits.onnx", "source.npz", "target.npz")]
    covcal("extract", *inputs, "-q", cwd=tmp_path).require_success()
    covcal("calibrate", "--method", "temp", "-q", cwd=tmp_path).require_success()
    covcal("export", inputs[0], "-q", cwd=tmp_path).require_success()
    content = json.loads((tmp_path / "cal.json").read_text())
    found = shown(tmp_path / "calibrated.onnx")
    assert float(found["covcal.temperature"]) == content["temperatures"]["forecaster"]
    assert found["covcal.classes"] == "10: 0, 1, 2, 3, 4, 5, 6, 7, ..."
    assert found["covcal.calibration_sha256"] == sha256_of(tmp_path / "cal.json")


@pytest.mark.parametrize("cut", [0.01, 0.3, 0.9, 0.999])
def test_a_model_that_is_cut_off(cut: float, digits: Path, tmp_path: Path) -> None:
    content = (digits / "digits.onnx").read_bytes()
    path = tmp_path / "model.onnx"
    path.write_bytes(content[: int(cut * len(content))])
    assert covcal("inspect", path).error_line().startswith(str(path))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("accuracy", 100.0, "estimates[0].accuracy is 100, outside 0 to 1"),
        ("high", 9.2e18, "estimates[0].high is 9.2e+18, outside 0 to 1"),
        ("high", 0.0, "is more than high (0)"),
    ],
)
def test_an_estimate_that_nothing_can_have(
    key: str, value: float, words: str, small_files: Path, tmp_path: Path
) -> None:
    """Refused even where the digest was made anew."""
    path = tmp_path / "estimate.json"
    covcal("estimate", small_files / "adapted.h5", "-o", path).require_success()
    content = json.loads(path.read_text())
    content["estimates"][0][key] = value
    path.write_text(json.dumps(content))
    assert "was changed after covcal wrote it" in covcal("inspect", path).error_line()
    write_document(content, path, force=True)
    assert words in covcal("inspect", path).error_line()


@pytest.mark.parametrize(
    ("place", "key", "value", "words"),
    [
        ("metrics.none", "accuracy", 100, "metrics.none.accuracy is 100, outside 0 to 1"),
        ("bootstrap", "level", -1, "bootstrap.level is -1, outside 0 to 1"),
        ("bootstrap", "level", 1, "bootstrap.level is 1"),
        ("metrics.none", "ece", 3.5e38, "metrics.none.ece is 3.5e+38, outside 0 to 1"),
        ("metrics.none", "brier", -0.1, "metrics.none.brier is -0.1, outside 0 to 2"),
        ("metrics.none", "n", 9.2e18, "metrics.none.n is 9.2e+18, but n is"),
        ("", "n", -3, "n is -3, below 0"),
        ("intervals.none", "ece", [0.3, 0.1], "low (0.3) is more than high (0.1)"),
        ("worst_class.none", "accuracy", 9, "worst_class.none.accuracy is 9, outside 0 to 1"),
        ("worst_class.none", "n", -3, "worst_class.none.n is -3, below 0"),
        ("intervals.none", "ece", [0.3], "intervals.none.ece has 1 entries, not 2"),
    ],
)
def test_metrics_that_no_rows_can_have(
    place: str, key: str, value: Any, words: str, small_files: Path, tmp_path: Path
) -> None:
    """Refused even where the digest was made anew."""
    path = tmp_path / "metrics.json"
    write_document(_changed(small_files, path, place, key, value), path, force=True)
    assert words in covcal("inspect", path).error_line()


@pytest.mark.parametrize(
    ("place", "key", "value", "words"),
    [
        ("fit", "loss", "x", "fit.loss is a text, not a number"),
        ("fit", "rows", None, "fit.rows is null, not a whole number"),
        ("fit", "errors", -1, "fit.errors is -1, below 0"),
        ("bound", "weighted_error", [], "bound.weighted_error is a list, not a number"),
        ("estimates", "target_confidence", 1.7, "estimates.target_confidence is 1.7, outside 0"),
        ("estimates", "accuracy", 0.5, "estimates.accuracy_low is missing"),
        ("estimates", "labelled", {}, "estimates.labelled.accuracy is missing"),
        ("weights", "ess", None, "weights.ess is null, not a number"),
    ],
)
def test_a_calibration_whose_numbers_are_none(
    place: str, key: str, value: Any, words: str, small_files: Path, tmp_path: Path
) -> None:
    path = tmp_path / "cal.json"
    covcal(
        *("calibrate", small_files / "adapted.h5", "--method", "iw+temp", "-o", path)
    ).require_success()
    content = json.loads(path.read_text())
    content[place][key] = value
    write_document(content, path, force=True)
    assert words in covcal("inspect", path).error_line()


def _changed(folder: Path, path: Path, place: str, key: str, value: Any) -> dict[str, Any]:
    """Return the content of a metrics.json with another value at a place."""
    command = ("evaluate", folder / "adapted.h5", "-c", folder / "temp.json", "--bootstrap", "20")
    covcal(*command, "-o", path).require_success()
    content: dict[str, Any] = json.loads(path.read_text())
    inner = content
    for name in place.split(".") if place else ():
        inner = inner[name]
    inner[key] = value
    return content
