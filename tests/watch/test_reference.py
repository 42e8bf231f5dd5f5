"""The reference data: small, without rows, made from the right rows, and checked when read."""

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covcal_cli.calibrate.calibrate import calibrate
from covcal_cli.calibrate.problem import CalibrateSettings
from covcal_cli.files import sha256_of
from covcal_cli.forecast import ScaledLogits
from covcal_cli.formats.calibration import read_calibration
from covcal_cli.formats.features import FeatureFile
from covcal_cli.maths.odds import top_log_odds
from covcal_cli.records import document_of, document_text, parsed_json, write_document
from covcal_cli.watch.reference import Reference, reference_path
from covcal_cli.watch.sketches import reference_of
from tests.cli_runner import covcal
from tests.made_files import Arrays, clusters_domain, made_domain, write_features
from tests.watch.weeks import alone, calibrated, week

SIZES = (200, 300, 50)


def reference(path: Path, source: Arrays, target: Arrays | None) -> Reference:
    write_features(path, source=source, target=target, only_source=target is None)
    calibration = calibrate(path, CalibrateSettings(method="temp", allow_limit=True))
    with FeatureFile(path) as file:
        sketch = reference_of(file, ScaledLogits(calibration.scaling), 0, "a" * 64)
    assert sketch is not None
    return sketch


def test_its_numbers_are_those_of_the_rows(tmp_path: Path) -> None:
    source, target = clusters_domain("source", sizes=SIZES), clusters_domain("target", sizes=SIZES)
    found = reference(tmp_path / "f.h5", source, target)
    held = source["split"] == 1
    right = source["logits"].argmax(axis=1) == source["labels"]
    assert (found.source.right, found.source.wrong) == (
        int((held & right).sum()),
        int((held & ~right).sum()),
    )
    odds = top_log_odds(source["logits"][held & ~right], found.temperature)
    assert found.source.wrong_odds.values == pytest.approx(np.sort(odds), rel=1e-6)
    rows = {signal.name: signal.rows for signal in found.signals}
    assert rows["confidence"] == SIZES[0] + SIZES[1]
    assert rows["density ratio"] == SIZES[1]  # its direction was fitted to training rows
    assert [name for name in rows if name.startswith("class ")] == [
        f"class class {number}" for number in range(5)
    ]
    assert found.coordinates.of == "features"
    axes = found.coordinates.axes
    places = axes.located(target["features"][target["split"] < 2])
    assert found.coordinates.target is not None
    assert found.coordinates.target.mean.values == pytest.approx(places.mean(axis=0), abs=1e-4)


def test_a_source_alone_is_its_own_baseline(tmp_path: Path) -> None:
    found = reference(tmp_path / "f.h5", clusters_domain("source", sizes=SIZES), None)
    assert found.baseline == "source"
    assert {signal.rows for signal in found.signals} == {SIZES[1]}
    assert found.coordinates.density is None


@pytest.mark.parametrize(("classes", "width"), [(150, 512), (10, 2048), (2, 3)])
def test_it_stays_small(classes: int, width: int, tmp_path: Path) -> None:
    """Below 200 kB, however wide the rows are; what is read is what was written."""
    source, target = (
        made_domain(name, sizes=(300, 600, 10), classes=classes, width=width, sharpness=0.1)
        for name in ("source", "target")
    )
    found = reference(tmp_path / "f.h5", source, target)
    path = tmp_path / "cal.reference.json"
    write_document(found, path, force=True)
    assert path.stat().st_size < 200_000
    assert document_of(Reference, parsed_json(path.read_text()), path) == found


@pytest.mark.parametrize("constant", [0.0, 1.0, 1e30, 1e-44])
def test_masked_classes_and_constant_columns_are_kept(constant: float, tmp_path: Path) -> None:
    source, target = clusters_domain("source", sizes=SIZES), clusters_domain("target", sizes=SIZES)
    for domain in (source, target):
        domain["logits"][domain["labels"] != 4, 4] = -np.inf
        domain["features"][:, 0] = constant
    found = reference(tmp_path / "f.h5", source, target)
    assert all(np.isfinite(signal.quantiles.values).all() for signal in found.signals)


# The file beside the calibration.


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibration that was watched, and a week; not to be changed."""
    folder = tmp_path_factory.mktemp("reference")
    calibrated(folder)
    week(folder / "w0.h5", 0)
    covcal("watch", "w0.h5", cwd=folder).require_success()
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "copy"))


def watched(folder: Path, *arguments: str) -> Any:
    """Return what watch prints as JSON on the week."""
    done = covcal("watch", "w0.h5", *arguments, "-o", "-", cwd=folder).require_success()
    return json.loads(done.out)["periods"][0]["measured"]


def test_the_first_watch_makes_it_and_later_ones_read_it(folder: Path) -> None:
    path = folder / "cal.reference.json"
    before = path.read_bytes()
    assert reference_path(folder / "cal.json") == path
    done = covcal("watch", "w0.h5", cwd=folder).require_success()
    assert "reference" not in done.err
    with_it = watched(folder)
    path.unlink()
    done = covcal("watch", "w0.h5", cwd=folder).require_success()
    assert "wrote cal.reference.json" in done.err
    assert path.read_bytes() == before
    assert watched(folder) == with_it


def test_it_goes_with_the_calibration_to_another_folder(folder: Path, tmp_path: Path) -> None:
    """The features are then no longer needed; without them the estimate rests on the sketch."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("cal.json", "cal.reference.json", "w0.h5"):
        shutil.copy(folder / name, elsewhere)
    assert watched(elsewhere)["signals"] == watched(folder)["signals"]


def test_another_calibration_makes_its_own(folder: Path) -> None:
    """The data of the calibration that was replaced are not used, and make way."""
    before = json.loads((folder / "cal.reference.json").read_text())
    covcal("calibrate", "features.h5", "--method", "none", "--force", cwd=folder).require_success()
    watched(folder)
    after = json.loads((folder / "cal.reference.json").read_text())
    assert after["calibration_sha256"] != before["calibration_sha256"]
    assert after["signals"][0] != before["signals"][0]


@pytest.mark.parametrize("has_reference", [True, False])
@pytest.mark.parametrize("change", ["is gone", "has changed"])
def test_what_is_missing_is_named_with_the_remedy(
    change: str, has_reference: bool, folder: Path
) -> None:
    """Neither the data of this calibration nor the file that they are made from."""
    if has_reference:  # of another calibration
        again = ("features.h5", "--method", "none", "--force")
        covcal("calibrate", *again, cwd=folder).require_success()
    else:
        (folder / "cal.reference.json").unlink()
    (folder / "features.h5").unlink()
    if change == "has changed":
        alone(folder / "features.h5", clusters_domain("target"))
    before = sorted(path.name for path in folder.iterdir())
    line = covcal("watch", "w0.h5", cwd=folder).error_line()
    assert "cal.json has no reference data for watch (cal.reference.json)" in line
    assert f"features.h5 {change}: put features.h5 back" in line
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_file_outside_the_folder_is_opened_only_if_the_user_names_it(
    folder: Path,
) -> None:
    """Once; then the reference data lie beside the calibration."""
    (folder / "in_use").mkdir()
    arguments = ("features.h5", "--method", "temp", "-o", "in_use/cal.json")
    covcal("calibrate", *arguments, cwd=folder).require_success()
    line = covcal("watch", "w0.h5", "-c", "in_use/cal.json", cwd=folder).error_line()
    assert "features.h5 is outside its folder: run covcal watch" in line
    for file in ("features.h5", "w0.h5"):
        covcal("watch", file, "-c", "in_use/cal.json", cwd=folder).require_success()


def test_a_file_with_too_few_labelled_rows_allows_none(tmp_path: Path) -> None:
    source, target = (clusters_domain(name, sizes=SIZES) for name in ("source", "target"))
    write_features(tmp_path / "features.h5", source=source, target=target)
    covcal("calibrate", "--method", "temp", cwd=tmp_path).require_success()
    source["labels"][source["split"] == 1] = -1
    write_features(tmp_path / "features.h5", source=source, target=target)
    document = json.loads((tmp_path / "cal.json").read_text())
    document["inputs"][0]["sha256"] = sha256_of(tmp_path / "features.h5")
    write_document(document, tmp_path / "cal.json", force=True)
    line = covcal("watch", "features.h5", cwd=tmp_path).error_line()
    assert "features.h5 has fewer than 2 labelled source validation rows" in line


def test_a_place_that_cannot_be_written_is_a_note(folder: Path) -> None:
    """The data then serve this watch only; a link that leads nowhere is such a place."""
    path = folder / "cal.reference.json"
    path.unlink()
    path.symlink_to(folder / "missing" / "cal.reference.json")
    done = covcal("watch", "w0.h5", cwd=folder).require_success()
    assert "note: the reference data cannot be saved for later runs of watch: " in done.err
    assert path.is_symlink()


def test_a_folder_in_its_place_is_named(folder: Path) -> None:
    (folder / "cal.reference.json").unlink()
    (folder / "cal.reference.json").mkdir()
    line = covcal("watch", "w0.h5", cwd=folder).error_line()
    assert "cal.reference.json is a folder" in line


# Damage.


def packed(values: Any) -> dict[str, Any]:
    array = np.asarray(values, dtype="<f4")
    return {"shape": list(array.shape), "float32": base64.b64encode(array.tobytes()).decode()}


def unpacked(content: dict[str, Any]) -> Any:
    flat = np.frombuffer(base64.b64decode(content["float32"]), dtype="<f4")
    return flat.reshape(content["shape"])


def at(content: Any, place: str) -> tuple[Any, Any]:
    """Return the object or list that contains a place (``signals.0.mean``), and its key there."""
    *way, name = [int(key) if key.isdecimal() else key for key in place.split(".")]
    for key in way:
        content = content[key]
    return content, name


def shorter(values: Any) -> Any:
    return values[..., :-1]


ARRAYS = (
    "signals.0.quantiles",
    "joint",
    "coordinates.axes.mean",
    "coordinates.axes.scale",
    "coordinates.axes.components",
    "coordinates.source.mean",
    "coordinates.source.covariance",
    "coordinates.target.mean",
    "coordinates.target.covariance",
    "coordinates.density",
    "source.predicted",
    "source.clusters.centres",
    "source.clusters.shares",
)


def damaged(folder: Path, change: Callable[[Any], None]) -> str:
    """Change the reference data, and return the error of watch."""
    path = folder / "cal.reference.json"
    content = json.loads(path.read_text())
    change(content)
    write_document(content, path, force=True)
    line = covcal("watch", "w0.h5", cwd=folder).error_line()
    assert "cal.reference.json is damaged (" in line
    assert "remove this file. covcal watch makes a new file from features.h5" in line
    return line


@pytest.mark.parametrize("place", [place for place in ARRAYS if place != "signals.0.quantiles"])
def test_an_array_of_another_length_is_damage(place: str, folder: Path) -> None:
    def change(content: Any) -> None:
        holder, name = at(content, place)
        holder[name] = packed(shorter(unpacked(holder[name])))

    damaged(folder, change)


@pytest.mark.parametrize(
    ("place", "factor"),
    [
        ("signals.0.quantiles", -1),
        ("signals.7.quantiles", -1),
        ("source.right_odds", -1),
        ("source.wrong_odds", -1),
        ("coordinates.axes.scale", -1),
        ("coordinates.axes.scale", 0),
        ("coordinates.axes.components", 1e10),
        ("coordinates.axes.components", 0),
        ("coordinates.source.covariance", -1),
        ("coordinates.target.covariance", 1e30),
        ("coordinates.target.mean", 1e30),
        ("source.predicted", 2),
        ("source.predicted", -1),
        ("source.clusters.shares", 0),
    ],
)
def test_an_array_that_no_rows_have_is_damage(place: str, factor: float, folder: Path) -> None:
    def change(content: Any) -> None:
        holder, name = at(content, place)
        holder[name] = packed(factor * unpacked(holder[name]))

    damaged(folder, change)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("temperature", 0),
        ("temperature", -1),
        ("baseline", "source"),
        ("coordinates.target", None),
        ("joint", None),
        ("calibration_sha256", "x"),
        ("signals.0.mean", 2147483648),
        ("signals.0.variance", 1e300),
        ("signals.0.variance", -0.1),
        ("signals.0.variance", 1e-320),
        ("signals.0.rows", 0),
        ("signals.0.rows", 3),
        ("signals.0.name", "density ratio"),
        ("signals.0.quantiles.shape", [3]),
        ("signals.2.class_number", 5),
        ("signals.2.class_number", -1),
        ("signals.7.axis", 999),
        ("coordinates.source.rows", 0),
        ("coordinates.of", "logits"),
        ("source.right", -1),
        ("source.clusters.strays", 1.5),
        ("source.clusters.classes", [0, 0, 1, 2, 3]),
        ("source.clusters.classes", [0, 1, 2, 3, 9]),
    ],
)
def test_a_number_that_no_rows_have_is_damage(place: str, value: Any, folder: Path) -> None:
    def change(content: Any) -> None:
        holder, name = at(content, place)
        holder[name] = value

    damaged(folder, change)


def test_another_document_stays_as_it_is(folder: Path) -> None:
    path = folder / "cal.reference.json"
    shutil.copy(folder / "cal.json", path)
    before = path.read_bytes()
    line = covcal("watch", "w0.h5", cwd=folder).error_line()
    assert "has schema 'covcal.calibration/1'" in line
    assert path.read_bytes() == before


def test_a_calibration_is_small_without_it(made: Path) -> None:
    assert (made / "cal.json").stat().st_size < 8000
    text = document_text(read_calibration(made / "cal.json"), made / "cal.json")
    assert "float32" not in text
