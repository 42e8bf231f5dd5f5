"""A second model: extract joins its predictions by id, and estimates use the agreement."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from covcal_cli.calibrate.estimate import estimate
from covcal_cli.errors import CovcalError
from covcal_cli.estimators.consensus import Estimates
from covcal_cli.estimators.inputs import EstimatorInputs, SecondModel
from covcal_cli.extract.extract import extract
from covcal_cli.extract.settings import ExtractSettings
from covcal_cli.formats.features import FeatureFile
from tests.made_rows import write_csv

N = 400
RNG = np.random.default_rng(3)
CLASSES = ("cat", "dog")


def tables(folder: Path, name: str, noise: float, order: np.ndarray) -> tuple[Path, Path]:
    """Save logits of a model for the same rows, in this order; on the target, it errs more."""
    paths = []
    for domain, shift in (("source", 1.0), ("target", 3.0)):
        labels = np.arange(N) % 2
        margin = 4 * (2 * labels - 1) + shift * noise * np.random.default_rng(len(name)).normal(
            size=N
        )
        cells = {
            "id": [f"row {row}" for row in order],
            "logit_cat": (-margin[order] / 2).tolist(),
            "logit_dog": (margin[order] / 2).tolist(),
            "label": [CLASSES[labels[row]] for row in order],
        }
        paths.append(write_csv(folder / f"{name}-{domain}.csv", cells))
    return paths[0], paths[1]


def extracted(folder: Path, name: str, noise: float, second: Path | None = None) -> Path:
    order = RNG.permutation(N) if second is None else np.arange(N)
    source, target = tables(folder, name, noise, order)
    output = folder / f"{name}.h5"
    extract(None, source, target, output, ExtractSettings(second=second))
    return output


def test_the_second_model_is_joined_by_id(tmp_path: Path) -> None:
    """The rows of the second model's tables have another order."""
    other = extracted(tmp_path, "other", 3.0)
    path = extracted(tmp_path, "model", 2.0, second=other)
    with FeatureFile(path) as file, FeatureFile(other) as second:
        target, theirs = file.require_target(), second.require_target()
        logits = theirs.logits(theirs.rows("all"))
        places = [theirs.ids(theirs.rows("all")).index(i) for i in target.ids(target.rows("all"))]
        expected = [CLASSES[label].encode() for label in logits[places].argmax(axis=1)]
        assert target.column("second_prediction", target.rows("all")).tolist() == expected
        sure = target.column("second_confidence", target.rows("all"))
        assert sure == pytest.approx(1 / (1 + np.exp(-np.ptp(logits[places], axis=1))))
    notes = " ".join(estimate(path).notes)
    assert "the second model is right on" in notes
    assert "both models agree on" in notes


@pytest.mark.parametrize("problem", ["row", "class", "no source"])
def test_a_second_model_of_other_rows_or_classes_is_refused(problem: str, tmp_path: Path) -> None:
    source, target = tables(tmp_path, "model", 2.0, np.arange(N))
    rows = np.arange(N - 1) if problem == "row" else np.arange(N)
    theirs = tables(tmp_path, "other", 3.0, rows)
    if problem == "class":
        for path in theirs:
            path.write_text(path.read_text().replace("dog", "eel"))
    other = tmp_path / "other.h5"
    extract(None, None if problem == "no source" else theirs[0], theirs[1], other)
    words = {"row": "has no source row 'row 399'", "class": "'eel'", "no source": "no source"}
    with pytest.raises(CovcalError, match=words[problem]):
        extract(None, source, target, tmp_path / "new.h5", ExtractSettings(second=other))
    assert not (tmp_path / "new.h5").exists()


def inputs_with_second(*, agree: float, sure: float = 0.9, right: float = 0.9) -> EstimatorInputs:
    """Return two classes; both models agree on 90 % of the source and `agree` of the target.

    The second model is right on the share `right` of the source, and its confidence is 0.9 there
    and `sure` on the target. The classifier's confidence is the same on both domains.
    """
    labels = np.arange(1000) % 2
    wrong = np.arange(1000) < 100
    predicted = np.where(wrong, 1 - labels, labels)
    logits = np.where(np.arange(2) == predicted[:, None], 2.0, 0.0)
    lowest = round(1000 * (1 - right))
    of_second = np.where(np.arange(1000)[::-1] < lowest, 1 - labels, labels)
    on_target = np.where(np.arange(1000) < round(1000 * agree), predicted, 1 - predicted)
    second = SecondModel(of_second, on_target, np.full(1000, 0.9), np.full(1000, sure))
    return EstimatorInputs(logits, labels, logits, 1.0, second=second)


def test_the_accuracy_falls_as_far_as_the_agreement() -> None:
    inputs = inputs_with_second(agree=0.7)
    # Each model errs on other 10 % of the source rows, so they agree on 80 % of them.
    found = Estimates(inputs)
    assert found["second model"].accuracy == pytest.approx(0.8)
    assert found.combined.accuracy == pytest.approx(0.8)
    without = Estimates(replace(inputs, second=None)).combined
    assert without.accuracy == pytest.approx(0.9)
    width = without.high - without.low
    assert found.combined.high - found.combined.low == pytest.approx(width, abs=0.01)


def test_a_fall_of_the_second_model_alone_does_not_count() -> None:
    """Its confidence falls by 8 points, so only 2 of 10 points of the agreement count."""
    found = Estimates(inputs_with_second(agree=0.7, sure=0.82)).combined
    assert found.accuracy == pytest.approx(0.88)


def test_a_much_worse_second_model_is_not_used() -> None:
    found = Estimates(inputs_with_second(agree=0.6, right=0.8))
    assert not found["second model"].trusted
    assert found.combined.accuracy == pytest.approx(0.9)
