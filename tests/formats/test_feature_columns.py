"""A later table is fed the columns that the calibration was made with, or is refused by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covcal_cli.formats.features import FeatureFile, columns_text
from covcal_cli.records import write_document
from tests.cli_runner import Outcome, covcal
from tests.extract.named_tables import FEATURES, columns, dataset, model, save
from tests.made_files import write_features

REVERSED = FEATURES[::-1]


def table(name: str, order: tuple[str, ...] = FEATURES, **renamed: str) -> dict[str, Any]:
    """Return a table in which the classifier is wrong on every fourth row."""
    found = columns(name, order)
    found["label"] = [(y + (row % 4 == 0)) % 3 for row, y in enumerate(found["label"])]
    return {renamed.get(key, key): values for key, values in found.items()}


@pytest.fixture
def calibrated(tmp_path: Path) -> Path:
    """A folder with the model, s.csv, t.csv, features.h5 and cal.json of them."""
    for name in ("source", "target"):
        save("csv", tmp_path, name[0], table(name))
    covcal("extract", model(tmp_path), "s.csv", "t.csv", cwd=tmp_path).require_success()
    covcal("calibrate", "features.h5", "--method", "temp", cwd=tmp_path).require_success()
    return tmp_path


def later(folder: Path, content: dict[str, Any], kind: str = "csv") -> Outcome:
    """Extract a table that came later, alone, and apply the calibration to it."""
    name = save(kind, folder, "new", content)
    arguments = ("extract", "model.onnx", "--target", name, "-o", "new.h5", "-f")
    covcal(*arguments, cwd=folder).require_success()
    return covcal("apply", "new.h5", "-c", "cal.json", "-o", "new-out.csv", "-f", cwd=folder)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_same_columns_are_applied_to(kind: str, calibrated: Path) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="Parquet needs covcal[parquet]")
    later(calibrated, table("target"), kind).require_success()
    assert json.loads((calibrated / "cal.json").read_text())["feature_columns"] == list(FEATURES)


def test_another_order_is_refused(calibrated: Path) -> None:
    line = later(calibrated, table("target", REVERSED)).error_line()
    assert "in different orders (column 0 is weight, not age)" in line
    assert not (calibrated / "new-out.csv").exists()


def test_the_way_out_of_another_order_works(calibrated: Path) -> None:
    """Beside the source, columns go by name."""
    save("csv", calibrated, "new", table("target", REVERSED))
    arguments = ("extract", "model.onnx", "s.csv", "new.csv", "-o", "new.h5")
    covcal(*arguments, cwd=calibrated).require_success()
    covcal("apply", "new.h5", "-c", "cal.json", "-o", "o.csv", cwd=calibrated).require_success()
    np.testing.assert_array_equal(
        dataset(calibrated, "target/logits"), dataset(calibrated, "target/logits", "new.h5")
    )


def test_another_column_is_refused(calibrated: Path) -> None:
    line = later(calibrated, table("target", age="Age")).error_line()
    assert line.endswith(
        " and the calibration have different feature columns (the file lacks age and has Age): "
        "give the columns of the calibration"
    )


@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_other_commands_refuse_it_too(command: str, calibrated: Path) -> None:
    later(calibrated, table("target", REVERSED))
    done = covcal(command, "new.h5", "-c", "cal.json", cwd=calibrated)
    assert "in different orders" in done.error_line()


def test_arrays_beside_tables_have_none(calibrated: Path) -> None:
    """What is known of no columns is compared with nothing."""
    np.savez(calibrated / "n.npz", x=dataset(calibrated, "target/features"))
    arguments = ("extract", "model.onnx", "--target", "n.npz", "-o", "new.h5")
    covcal(*arguments, cwd=calibrated).require_success()
    covcal("apply", "new.h5", "-c", "cal.json", "-o", "o.csv", cwd=calibrated).require_success()


def test_a_calibration_of_an_earlier_version_has_none(calibrated: Path) -> None:
    document = json.loads((calibrated / "cal.json").read_text())
    del document["feature_columns"]
    write_document(document, calibrated / "cal.json", force=True)
    later(calibrated, table("target", REVERSED)).require_success()


def test_shards_of_other_columns_are_not_merged(calibrated: Path) -> None:
    save("csv", calibrated, "new", table("target", REVERSED))
    for shard, name in ((1, "t"), (2, "new")):
        arguments = ("--target", f"{name}.csv", "--shard", f"{shard}/2", "-o", f"{shard}.h5")
        covcal("extract", "model.onnx", *arguments, cwd=calibrated).require_success()
    line = covcal("merge", "1.h5", "2.h5", "-o", "m.h5", cwd=calibrated).error_line()
    assert "1.h5 and 2.h5 differ in their feature columns" in line


def test_very_many_columns_are_known_by_their_digest(tmp_path: Path) -> None:
    """HDF5 attributes hold 64 KiB."""
    names = [f"column_{index:05}" for index in range(20_000)]
    short = columns_text(names)
    assert len(short) < 200
    assert short != columns_text(names[::-1])
    path = write_features(tmp_path / "f.h5", attributes={"feature_columns": short})
    with FeatureFile(path) as file:
        assert file.feature_columns[0] == "20000 columns"


@pytest.mark.parametrize("names", [("ä", 'a"b', ""), ("one",)])
def test_names_of_columns_are_read_as_they_were_written(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    path = write_features(tmp_path / "f.h5", attributes={"feature_columns": columns_text(names)})
    with FeatureFile(path) as file:
        assert file.feature_columns == names
