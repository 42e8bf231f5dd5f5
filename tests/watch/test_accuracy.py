"""The accuracy from the sketch of the source, whose rows have the log odds of the sketch."""

from pathlib import Path

import numpy as np
import pytest

from covcal_cli.formats.calibration import read_calibration
from covcal_cli.formats.features import FeatureFile
from covcal_cli.maths.odds import top_log_odds
from covcal_cli.watch.accuracy import _top_against_rest, source_rows
from covcal_cli.watch.reference import read_reference
from tests.cli_runner import covcal
from tests.watch.weeks import calibrated, week


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_rows_made_of_log_odds_have_these(classes: int, temperature: float) -> None:
    """Whatever the number of classes and T: the top class's probability at T against the rest."""
    least = -np.log(classes - 1)  # of a row whose classes are all alike
    odds = np.array([least, least + 0.1, least + 1, least + 8])
    logits = _top_against_rest(odds, classes, temperature)
    assert logits.shape == (4, classes)
    assert (logits.argmax(axis=1) == 0).all()
    assert top_log_odds(logits, temperature) == pytest.approx(odds, abs=1e-5)


@pytest.mark.parametrize(("moved", "prior"), [(0.0, [0.7, 0.1, 0.1, 0.05, 0.05]), (1.0, None)])
def test_a_sketch_decides_as_the_source_rows_do(
    tmp_path: Path, moved: float, prior: list[float] | None
) -> None:
    """The two checks of classes are the same without the features file, and so is the estimate."""
    document = calibrated(tmp_path)
    week(tmp_path / "week.h5", seed=3, moved=moved, prior=prior)
    covcal("watch", "week.h5", "-c", document, cwd=tmp_path)
    calibration = read_calibration(document)
    reference = read_reference(calibration)
    assert reference is not None
    assert reference.source.places is not None
    with FeatureFile(tmp_path / "week.h5") as file:
        target = file.require_target()
        logits = target.logits(target.drawn(target.n, 0, "train", "validation", "test"))
    known = source_rows(calibration, reference).estimate(logits)
    calibration.inputs[0].path.unlink()
    sketched = source_rows(calibration, reference).estimate(logits)
    assert known is not None
    assert sketched is not None
    assert "summary" in sketched.of
    assert sketched.accuracy == pytest.approx(known.accuracy, abs=0.03)
    assert sketched.low == pytest.approx(known.low, abs=0.05)
