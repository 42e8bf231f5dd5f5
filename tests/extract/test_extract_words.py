"""What extract says of ids, labels and tables that are not what people meant."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covcal_cli.formats.features import FeatureFile
from tests.cli_runner import Argument, covcal
from tests.extract.named_tables import ANIMALS, N, X, columns, model, outputs, save


@pytest.mark.parametrize("option", ["model", "--logits"])
def test_ids_that_repeat_or_are_empty_are_named(option: str, tmp_path: Path) -> None:
    ids = [f"r{row}" for row in range(N)]
    ids[5], ids[9], ids[12] = "r3", "r3", " "
    table = columns("target") if option == "model" else outputs()
    save("csv", tmp_path, "t", {"id": ids, **table})
    first = model(tmp_path) if option == "model" else option
    done = covcal("extract", first, "--target", "t.csv", cwd=tmp_path).require_success()
    assert (
        "t.csv: 3 rows have the id 'r3'. Joining results by id would repeat these rows" in done.err
    )
    assert "t.csv: 1 of 40 ids are empty (first in row 12)" in done.err
    save("csv", tmp_path, "t", {"id": [f"r{row}" for row in range(N)], **table})
    done = covcal("extract", first, "--target", "t.csv", "-f", cwd=tmp_path).require_success()
    assert " ids are empty" not in done.err
    assert "multiply" not in done.err
    save("csv", tmp_path, "t", {"id": [""] * N, **table})
    covcal("extract", first, "--target", "t.csv", "-f", cwd=tmp_path).require_success()
    with FeatureFile(tmp_path / "features.h5") as file:
        assert [*file.require_target().ids(np.arange(N))] == [str(row) for row in range(N)]


def test_one_table_is_the_target_aloud_or_as_asked(tmp_path: Path) -> None:
    save("csv", tmp_path, "t", outputs())
    done = covcal("extract", "--logits", "t.csv", cwd=tmp_path).require_success()
    assert "note: t.csv is used as the target, because the table has no column" in done.err
    done = covcal("extract", "--logits", "--target", "t.csv", "-f", cwd=tmp_path).require_success()
    assert "used as the target" not in done.err
    assert "next: covcal apply features.h5" in done.err
    save("csv", tmp_path, "t", {**outputs(), "label": [ANIMALS[i % 3] for i in range(N)]})
    done = covcal("extract", "--logits", "--target", "t.csv", "-f", cwd=tmp_path).require_success()
    assert "next: covcal evaluate features.h5" in done.err


@pytest.mark.parametrize(
    ("options", "following"),
    [
        ((), ["next: covcal calibrate f.h5"]),
        (("--fractions", "0,1,0"), ["next: covcal calibrate f.h5"]),
        (("--expect-accuracy", 0.9), ["next: covcal calibrate f.h5"]),
    ],
)
def test_what_comes_next_is_what_goes_on(
    options: tuple[Argument, ...], following: list[str], tmp_path: Path
) -> None:
    """Nothing is adapted without training rows, and no command goes on from what is refused."""
    for name in ("source", "target"):
        save("csv", tmp_path, name, columns(name))
    files = (model(tmp_path), "source.csv", "target.csv", "-o", "f.h5", "--force")
    run = covcal("extract", *files, *options, cwd=tmp_path).require_success()
    assert [line for line in run.err.splitlines() if line.startswith("next: ")] == following
    wrong = columns("source")
    wrong["label"] = [(label + 1) % 3 for label in wrong["label"]]
    save("csv", tmp_path, "source", wrong)
    run = covcal("extract", *files, *options, "--expect-accuracy", 0.9, cwd=tmp_path)
    assert run.code == 3
    assert "wrote f.h5" in run.err
    assert "next: " not in run.err


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([1, 2, 3], (), "label in line 4 is 3, but the model has 3 classes: the labels are 1 to 3"),
        ([1, 2, 3], ("--classes", "names.txt"), "subtract 1, or give class names as labels"),
        (
            [0, 5, 1],
            (),
            "label in line 3 is 5, but the model has 3 classes: write 0 to 2 or -1",
        ),
        (["cat", "cow", "eel"], (), "'cow' is not a class of the columns (cat, dog, eel): correct"),
        (
            ["cat", "cow", "eel"],
            ("--classes", "names.txt"),
            "'cow' is not a class of --classes (cat, dog, eel): correct it",
        ),
    ],
)
def test_a_label_that_is_no_class_is_told_whose_and_where(
    labels: list[Any], options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    (tmp_path / "names.txt").write_text("cat\ndog\neel\n")
    save("csv", tmp_path, "t", {**outputs(), "label": [labels[i % 3] for i in range(N)]})
    line = covcal("extract", "--logits", "--target", "t.csv", *options, cwd=tmp_path).error_line()
    assert message in line
    assert ("--classes FILE" in line) == (not options and labels != [1, 2, 3])


def test_a_source_without_labels_is_told_where_to_put_them(tmp_path: Path) -> None:
    name = model(tmp_path)
    table = columns("source")
    del table["label"]
    save("csv", tmp_path, "s", table)
    save("csv", tmp_path, "t", table)
    line = covcal("extract", name, "s.csv", "t.csv", cwd=tmp_path).error_line()
    assert "add a column named 'label' with class numbers or names. The path of a target" in line
    np.savez(tmp_path / "s.npz", x=X["source"])
    line = covcal("extract", name, "s.npz", "t.csv", cwd=tmp_path).error_line()
    assert "save an array named 'y'" in line
