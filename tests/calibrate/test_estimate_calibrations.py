"""``covcal estimate -c``: what to expect of calibrations where no target label is known."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from scipy.special import softmax

from covcal_cli.errors import percent
from covcal_cli.files import sha256_of
from covcal_cli.records import write_document
from tests.cli_runner import Argument, covcal, printed_json
from tests.made_files import edited


def estimated(*arguments: Argument, cwd: Path | None = None) -> dict[str, Any]:
    return printed_json("estimate", *arguments, cwd=cwd)


def confidence_by_hand(path: Path, document: Path | None = None) -> float:
    """Return the mean confidence in the classifier's labels, read without covcal."""
    with h5py.File(path) as file:
        keep = np.flatnonzero(file["target/split"][:] != 2)
        logits = file["target/logits"][:][keep].astype(np.float64)
        aligned = file["target/aligned_logits"][:][:, keep].astype(np.float64)
    judged = logits.argmax(axis=1)
    if document is not None:
        content = json.loads(document.read_text())
        learnt = np.log(softmax(aligned, axis=-1).mean(axis=0))
        if content["forecaster"] == "aligned":
            logits = learnt
        logits = logits / content["temperatures"]["forecaster"]
        if content["forecaster"] == "blend":
            parts = logits, learnt / content["temperatures"]["aligned"]
            logits = np.log(np.mean([softmax(part, axis=-1) for part in parts], axis=0))
    return float(softmax(logits, axis=-1)[np.arange(len(keep)), judged].mean())


def test_numbers(small_files: Path) -> None:
    """Confidences are measured, the accuracy is the combined estimate, the distance is theirs."""
    names = ("temp", "fl+temp", "blend")
    given = [part for name in names for part in ("-c", f"{name}.json")]
    found = estimated("adapted.h5", *given, cwd=small_files)
    path = small_files / "adapted.h5"
    before = confidence_by_hand(path)
    assert [entry["name"] for entry in found["calibrations"]] == list(names)
    for name, entry in zip(names, found["calibrations"], strict=True):
        document = small_files / f"{name}.json"
        content = json.loads(document.read_text())
        after = confidence_by_hand(path, document)
        assert entry["temperature"] == content["temperatures"]["forecaster"]
        assert entry["aligned_temperature"] == content["temperatures"]["aligned"]
        assert entry["rows"] == found["rows"]["target"] == 270
        assert entry["mean_confidence_before"] == pytest.approx(before, rel=1e-6)
        assert entry["mean_confidence"] == pytest.approx(after, rel=1e-6)
        assert entry["estimated_accuracy"] == found["estimates"][0]["accuracy"]
        distance = abs(entry["mean_confidence"] - entry["estimated_accuracy"])
        assert entry["distance"] == distance
        listed = {"role": "calibration", "path": document.name, "sha256": sha256_of(document)}
        assert listed in found["inputs"]


def test_without_a_calibration_nothing_is_added(small_files: Path) -> None:
    """The document is what it was: no key, no further input."""
    plain = estimated("adapted.h5", cwd=small_files)
    found = estimated("adapted.h5", "-c", "temp.json", cwd=small_files)
    *fields, digest = plain
    assert list(found) == [*fields, "calibrations", digest]
    assert {name: found[name] for name in fields if name != "inputs"} == {
        name: value for name, value in plain.items() if name not in ("inputs", digest)
    }


def test_the_tables(small_files: Path, tmp_path: Path) -> None:
    """One more table, as text and as Markdown; the file says what is printed."""
    path = tmp_path / "e.json"
    arguments = ("estimate", "adapted.h5", "-c", "temp.json")
    out = covcal(*arguments, "-o", path, cwd=small_files).require_success().out
    (entry,) = json.loads(path.read_text())["calibrations"]
    cells = [
        "temp",
        f"{entry['temperature']:.4g}",
        percent(entry["mean_confidence_before"]),
        percent(entry["mean_confidence"]),
        percent(entry["estimated_accuracy"]),
        percent(entry["distance"]),
    ]
    assert re.split(" {2,}", out.splitlines()[-1]) == cells
    shown = covcal(*arguments, "--format", "markdown", cwd=small_files).require_success().out
    assert shown.splitlines()[-1] == f"| {' | '.join(cells)} |"


def test_settings_are_those_of_the_first_calibration(adapted: Path) -> None:
    """Prior, limit and seed come from cal.json, unless the command line says otherwise."""
    folder = adapted.parent
    made = ("--target-prior", "uniform", "--max-weight", 50, "--seed", 3)
    arguments = ("calibrate", "adapted.h5", "--method", "cot", *made, "-q", "-o", "cot.json")
    covcal(*arguments, cwd=folder).require_success()

    def settings(*options: Argument) -> tuple[Any, ...]:
        found = estimated("adapted.h5", "-c", "cot.json", *options, cwd=folder)
        return found["target_prior"]["name"], found["max_weight"], found["seed"]

    assert settings() == ("uniform", 50, 3)
    given = ("--target-prior", "source", "--max-weight", 1000, "--seed", 0)
    assert settings(*given) == ("source", 1000, 0)
    assert settings("--seed", 1) == ("uniform", 50, 1)


def test_labels_change_nothing(adapted: Path, small_files: Path) -> None:
    """Whatever the target's labels are, the table is the same: none is read."""
    arguments = ("estimate", adapted, "-c", small_files / "temp.json", "-c")
    before = covcal(*arguments, small_files / "fl+temp.json").require_success().out
    with edited(adapted) as file:
        file["target/labels"][...] = 12345
    assert covcal(*arguments, small_files / "fl+temp.json").require_success().out == before


def test_a_calibration_of_another_model(adapted: Path, small_files: Path) -> None:
    """Refused as evaluate does, before anything is estimated."""
    content = json.loads((small_files / "temp.json").read_text())
    content["model"] = {"name": "better.onnx", "sha256": "0" * 64}
    document = adapted.with_name("cal.json")
    write_document(content, document, force=True)
    line = covcal("estimate", adapted, "-c", document).error_line()
    assert "come from different models (the calibration was made for better.onnx)" in line


def test_networks(trained: Path, small_files: Path, tmp_path: Path) -> None:
    """On a features file an fl method finds its networks, or is told where they are."""
    shutil.copy(trained, tmp_path / "adapted.h5")
    shutil.copy(small_files / "features.h5", tmp_path)
    fitted = ("adapted.h5", "--method", "fl+temp", "-o", "fl.json")
    covcal("calibrate", *fitted, cwd=tmp_path).require_success()
    (stored,) = estimated("adapted.h5", "-c", "fl.json", cwd=tmp_path)["calibrations"]
    arguments = ("features.h5", "-c", "fl.json")
    (computed,) = estimated(*arguments, cwd=tmp_path)["calibrations"]
    assert computed["mean_confidence"] == pytest.approx(stored["mean_confidence"], abs=1e-5)
    (tmp_path / "adapted.h5").rename(tmp_path / "moved.h5")
    assert "pass --networks" in covcal("estimate", *arguments, cwd=tmp_path).error_line()
    (again,) = estimated(*arguments, "--networks", "moved.h5", cwd=tmp_path)["calibrations"]
    assert again == computed


def test_networks_that_nothing_needs(small_files: Path) -> None:
    """Without an fl calibration the option is a mistake."""
    done = covcal("estimate", "features.h5", "--networks", "adapted.h5", cwd=small_files)
    assert "no calibration uses it" in done.usage_error()
