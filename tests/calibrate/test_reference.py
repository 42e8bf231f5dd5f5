"""What cal.json keeps of rows: small, no rows, and nothing that calibrate may not read."""

import json
from pathlib import Path

import numpy as np
import pytest
from covcal_cli.formats.reference import Reference

from covcal_cli.calibrate.calibrate import CalibrateSettings, calibrate
from covcal_cli.errors import CovcalError
from covcal_cli.formats.calibration import Calibration, read_calibration
from covcal_cli.maths.odds import top_log_odds
from covcal_cli.records import document_text, write_document
from tests.made_files import Arrays, clusters_domain, made_domain, write_features

SIZES = (200, 300, 50)


def calibrated(path: Path, source: Arrays, target: Arrays | None) -> Calibration:
    write_features(path, source=source, target=target, only_source=target is None)
    return calibrate(path, CalibrateSettings(method="temp", allow_limit=True))


def reference(path: Path, source: Arrays, target: Arrays | None) -> Reference:
    found = calibrated(path, source, target).reference
    assert found is not None
    return found


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
    rows = {one.name: one.rows for one in found.signals}
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
    assert {one.rows for one in found.signals} == {SIZES[1]}
    assert found.coordinates.density is None


@pytest.mark.parametrize(("classes", "width"), [(100, 8), (150, 512), (10, 2048), (2, 3)])
def test_it_stays_small(classes: int, width: int, tmp_path: Path) -> None:
    """Below 200 kB, however wide the rows are."""
    source, target = (
        made_domain(name, sizes=(300, 600, 10), classes=classes, width=width, sharpness=0.1)
        for name in ("source", "target")
    )
    found = calibrated(tmp_path / "f.h5", source, target)
    assert found.reference is not None
    path = tmp_path / "cal.json"
    write_document(found, path, force=True)
    without = len(document_text({**json.loads(path.read_text()), "reference": None}, path))
    assert path.stat().st_size - without < 200_000
    assert read_calibration(path).reference == found.reference


def test_masked_classes_and_equal_logits_are_kept(tmp_path: Path) -> None:
    source, target = clusters_domain("source", sizes=SIZES), clusters_domain("target", sizes=SIZES)
    for domain in (source, target):
        domain["logits"][domain["labels"] != 4, 4] = -np.inf
        del domain["features"]
    found = reference(tmp_path / "f.h5", source, target)
    assert found.coordinates.of == "logits"
    assert all(np.isfinite(one.quantiles.values).all() for one in found.signals)


def test_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cal.json"
    found = calibrated(tmp_path / "f.h5", clusters_domain("source", sizes=SIZES), None)
    write_document(found, path, force=True)
    document = json.loads(path.read_text())
    document["reference"]["signals"][0]["quantiles"]["shape"] = [3]
    path.write_text(json.dumps(document))
    with pytest.raises(CovcalError, match=r"cal\.json is damaged \(a reference array has .* again"):
        read_calibration(path)
