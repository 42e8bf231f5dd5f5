"""Defects of published code for the same estimators, each kept out by a test."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import softmax

from covcal_cli.estimators import label_shift
from covcal_cli.estimators.confidences import atc, doc, mean_confidence
from covcal_cli.estimators.consensus import Estimates, weighted_accuracy
from covcal_cli.estimators.cot import cot
from covcal_cli.estimators.matched_temperature import match_accuracy
from tests.estimators.made_inputs import made_inputs

Floats = NDArray[np.float64]
SEEDS = range(3)


@pytest.mark.parametrize("seed", SEEDS)
def test_atc_reads_scores_at_the_source_temperature(seed: int) -> None:
    """Published: a temperature is fitted and never applied. With three classes it changes ranks."""
    inputs, _ = made_inputs(seed, classes=3, n_v=2000, n_t=2000)

    def by_hand(temperature: float) -> float:
        source, target = (
            np.sort(softmax(logits / temperature, axis=1).max(axis=1))
            for logits in (inputs.source_logits, inputs.target_logits)
        )
        return float((target >= source[inputs.source_errors]).mean())

    found = [atc(replace(inputs, temperature=t)).accuracy for t in (1.0, 20.0)]
    assert found == pytest.approx([by_hand(1.0), by_hand(20.0)])
    assert found[0] != found[1]


def test_nothing_depends_on_the_sum_of_weights() -> None:
    """Published (skada#112): weights divided by their sum made results depend on n."""
    inputs, _ = made_inputs(weighted=True)
    assert inputs.source_weights is not None
    doubled = replace(
        inputs,
        source_logits=np.repeat(inputs.source_logits, 2, axis=0),
        source_labels=np.repeat(inputs.source_labels, 2),
        source_weights=np.repeat(inputs.source_weights, 2),
        target_logits=np.repeat(inputs.target_logits, 2, axis=0),
    )
    for estimator in (weighted_accuracy, atc, doc, mean_confidence):
        assert estimator(doubled).accuracy == pytest.approx(estimator(inputs).accuracy)
    # The half row that COT adds to every class and to the errors weighs less among more rows.
    assert cot(doubled).accuracy == pytest.approx(cot(inputs).accuracy, abs=2e-3)


@pytest.mark.parametrize("level", [1e-20, 1e-3, 1e3, 1e20])
@pytest.mark.parametrize("classes", [2, 4])
def test_saturated_and_flat_logits_never_give_nan(level: float, classes: int) -> None:
    """Published (OmniFold): saturated probabilities, and nan_to_num over what they cause."""
    inputs, _ = made_inputs(n_v=60, n_t=50, classes=classes, weighted=True)
    extreme = replace(
        inputs,
        source_logits=(level * inputs.source_logits).astype(np.float32),
        target_logits=(level * inputs.target_logits).astype(np.float32),
        source_weights=np.where(np.arange(60) < 2, 1e9, 1e-300),
    )
    for found in Estimates(extreme).values():
        numbers = [found.accuracy, found.low, found.high, *(g.value for g in found.guards)]
        assert np.isfinite(numbers).all(), found
    assert 0 < match_accuracy(extreme.target_logits, 0.7).temperature < np.inf


def test_the_prior_is_never_estimated_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """BBSE goes wrong where more than class frequencies shift; the estimates do without it."""

    def refuse(*_: object) -> None:
        raise AssertionError("a prior was estimated")

    monkeypatch.setattr(label_shift, "label_shift", refuse)
    inputs, _ = made_inputs()
    assert len(list(Estimates(inputs).values())) == 6
    assert label_shift.target_prior("source", inputs, ("a", "b", "c", "d", "e")) is None
    with pytest.raises(AssertionError, match="estimated"):
        label_shift.target_prior("bbse", inputs, ("a", "b", "c", "d", "e"))
