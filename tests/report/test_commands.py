"""The commands of a report, typed in a folder with nothing but the inputs, give the same page."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.classifiers.onnx.onnx_graphs import SIDE, grey_classifier
from tests.cli_runner import Argument, covcal
from tests.forecast.test_compatibility import write_images
from tests.labels.labelling import fill
from tests.report.test_report import shown_commands
from tests.short_training import short_training

PLACES = {"SOURCE": "src", "TARGET": "tgt", "TABLE": "all.csv"}
PLACES |= {"CSV": "to-label.csv", "CSV2": "more.csv"}
PLACES |= {"CALIBRATION": "before.json", "ERROR": "0.4", "DECISION": "decide.json"}


def images(folder: Path) -> None:
    """A model, images of two domains, class names, and settings of images in a file."""
    grey_classifier(folder)
    write_images(folder / "src", [f"{'abc'[i % 3]}/{i:03d}.png" for i in range(90)], 0)
    write_images(folder / "tgt", [f"{'abc'[i % 3]}/{i:03d}.png" for i in range(90)], 1)
    (folder / "names.txt").write_text("c\nb\na\n")
    (folder / "prior.json").write_text('{"a": 0.5, "b": 0.3, "c": 0.2}')
    (folder / "image.json").write_text(
        json.dumps(
            {
                "do_resize": True,
                "size": {"height": 2 * SIDE, "width": 2 * SIDE},
                "do_center_crop": True,
                "crop_size": {"height": SIDE, "width": SIDE},
                "do_rescale": True,
                "rescale_factor": 1 / 255,
                "do_normalize": False,
                "image_processor_type": "ViTImageProcessor",
            }
        )
    )


def tables(folder: Path) -> None:
    """Probabilities of made rows: one table per domain, and one table of both domains."""
    rng = np.random.default_rng(0)
    parts = {}
    for name, count in (("source", 300), ("target", 250)):
        chances = rng.dirichlet(np.ones(3), count)
        labels = [rng.choice(list("abc"), p=row) for row in chances]
        parts[name] = [
            [*(f"{p:.9f}" for p in row), label, name]
            for row, label in zip(chances, labels, strict=True)
        ]
    head = ["prob_a", "prob_b", "prob_c", "label"]
    for path, rows in (("src", parts["source"]), ("tgt", parts["target"])):
        with (folder / f"{path}.csv").open("w", newline="") as handle:
            csv.writer(handle).writerows([head, *(row[:-1] for row in rows)])
    with (folder / "all.csv").open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerows([[*head, "domain"], *parts["source"], *parts["target"]])


@pytest.mark.parametrize(
    ("inputs", "extraction", "calibration"),
    [
        pytest.param(
            images,
            (
                *("model.onnx", "src", "tgt", "--scale", "0.5", "--mean", "-3", "--std", "2"),
                *("--resize", "short:9", "--crop", SIDE, "--resample", "box", "--exif"),
                *("--classes", "names.txt", "--fractions", "0.5,0.3,0.2", "--seed", "3"),
            ),
            ("--method", "cot", "--target-prior", "prior.json", "--seed", 2),
            id="preprocessing",
        ),
        pytest.param(
            images,
            ("model.onnx", "src", "tgt", "--preprocess", "image.json", "--phi", "none"),
            ("--loss", "nll", "--method", "temp"),
            id="a file of settings",
        ),
        pytest.param(
            images,
            ("model.onnx", "src", "tgt", "--phi", "input", "--sample", 80, "--color", "L"),
            ("--method", "iw+temp", "--max-weight", "12.3456789"),
            id="phi",
        ),
        pytest.param(
            tables, ("--probabilities", "src.csv", "tgt.csv"), ("--method", "temp"), id="tables"
        ),
        pytest.param(tables, ("--probabilities", "all.csv"), ("--method", "atc"), id="one table"),
        pytest.param(
            tables, ("--probabilities", "src.csv", "tgt.csv"), ("--labels", "auto"), id="labels"
        ),
        pytest.param(
            tables,
            ("--probabilities", "src.csv", "tgt.csv"),
            ("--labels", "none", "--method", "temp"),
            id="decision",
        ),
    ],
)
def test_the_commands_reproduce_the_report(
    tmp_path: Path,
    inputs: Callable[[Path], None],
    extraction: tuple[Argument, ...],
    calibration: tuple[Argument, ...],
) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    first.mkdir()
    inputs(first)
    shutil.copytree(first, again)
    covcal("extract", *extraction, cwd=first).require_success()
    if "auto" in calibration:
        # The calibration does not use the labels for a decision that the report does not show.
        labelled(first, "-n", 20)
        covcal("calibrate", "-o", "before.json", cwd=first).require_success()
        shutil.copy(first / "before.json", again)
        covcal("decide", "-c", "before.json", "--error", 0.4, cwd=first).require_success()
        labelled(first, "-n", 60, "--for", "decide.json", "--seed", 1, "--force")
    covcal("calibrate", *calibration, "--force", cwd=first).require_success()
    options: list[Argument] = ["--bootstrap", 50]
    if "none" in calibration:
        decide = ("decide", "--error", 0.4, "--certainty", 0.8, "--force")
        covcal(*decide, cwd=first).require_success()
        labelled(first, "-n", 60, "--for", "decide.json", "--seed", 1)
        covcal(*decide, cwd=first).require_success()
        options += ["--decide", "decide.json"]
    covcal("report", *options, cwd=first).require_success()
    typed_again(first, again, ".csv" if inputs is tables else "")
    assert (again / "report.html").read_bytes() == (first / "report.html").read_bytes()


def labelled(folder: Path, *options: Argument) -> None:
    """Label rows of features.h5 with their true labels."""
    covcal("pick", *options, cwd=folder).require_success()
    fill(folder / "to-label.csv", folder / "features.h5")
    covcal("label", "features.h5", "to-label.csv", cwd=folder).require_success()


def typed_again(first: Path, again: Path, suffix: str = "") -> None:
    """Type the commands that a report shows, with the places that no file keeps."""
    for words in shown_commands(first):
        assert words.pop(0) == "covcal"
        typed = [PLACES.get(word, word) for word in words]
        typed = [word + suffix if word in ("src", "tgt") else word for word in typed]
        covcal(*typed, cwd=again).require_success()
        if words[0] == "pick":
            fill(again / typed[typed.index("-o") + 1], again / "features.h5")


def test_the_commands_of_calibrations_of_two_files(tmp_path: Path) -> None:
    """Each calibration is of the file that it was fitted on, and both are made in a subfolder."""
    first, again = tmp_path / "first", tmp_path / "again"
    first.mkdir()
    images(first)
    (first / "out").mkdir()
    shutil.copytree(first, again)
    covcal("extract", "model.onnx", "src", "tgt", "-o", "out/f.h5", cwd=first).require_success()
    with short_training(20):
        arguments = ("out/f.h5", "-o", "out/a.h5", "--members", 1, "--seed", 4)
        covcal("adapt", *arguments, cwd=first).require_success()
        for file, name, method in (("a", "fl", "fl+temp"), ("f", "plain", "temp")):
            fitted = (f"out/{file}.h5", "--method", method, "-o", f"out/{name}.json")
            covcal("calibrate", *fitted, "--force", cwd=first).require_success()
        given = ("out/a.h5", "-c", "out/fl.json", "-c", "out/plain.json")
        covcal("report", *given, cwd=first).require_success()
        typed_again(first, again)
    assert (again / "report.html").read_bytes() == (first / "report.html").read_bytes()
