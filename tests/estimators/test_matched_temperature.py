"""Temperatures without target labels: matching, UTDC, PseudoCal, TransCal."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_softmax, softmax

from covcal_cli.estimators.matched_temperature import match_accuracy
from covcal_cli.estimators.pseudocal import pseudocal
from covcal_cli.estimators.transcal import tempering_power, transcal
from covcal_cli.estimators.utdc import utdc_temperature
from covcal_cli.maths.weights import effective_sample_size
from tests.estimators.made_inputs import made_inputs

Floats = NDArray[np.float64]
SEEDS = range(3)


def mean_confidence(
    logits: NDArray[np.floating[Any]], log_t: float, labels: NDArray[np.int64] | None = None
) -> float:
    chances = softmax(logits / math.exp(log_t), axis=1)
    chosen = chances.argmax(axis=1) if labels is None else labels
    return float(chances[np.arange(len(logits)), chosen].mean())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("accuracy", [0.3, 0.6, 0.9, 0.99])
@pytest.mark.parametrize("factor", [1.0, 1000.0])
def test_matching_finds_scipy_s_root(seed: int, accuracy: float, factor: float) -> None:
    """The mean confidence at T is the accuracy, and T grows with the logits."""
    inputs, _ = made_inputs(seed)
    logits = inputs.target_logits
    found = match_accuracy(factor * logits, accuracy)
    expected = brentq(lambda s: mean_confidence(logits, s) - accuracy, -8, 8, xtol=1e-10)
    assert math.log(found.temperature / factor) == pytest.approx(expected, abs=1e-5)
    assert found.confidence == pytest.approx(accuracy, abs=1e-5)
    assert (found.crossings, found.guard.passed) == (1, True)


@pytest.mark.parametrize("accuracy", [0.0, 0.1, 0.2])
def test_an_accuracy_at_or_below_chance_is_clamped_in_words(accuracy: float) -> None:
    inputs, _ = made_inputs()
    found = match_accuracy(inputs.target_logits, accuracy)
    assert found.confidence == pytest.approx(1 / 5 + 0.01, abs=1e-5)
    assert not found.guard.passed
    assert "say nothing" in found.guard.sentence


def test_certainty_is_clamped_in_words() -> None:
    inputs, _ = made_inputs()
    found = match_accuracy(inputs.target_logits, 1.0)
    assert found.confidence == pytest.approx(1 - 0.5 / 801, abs=1e-5)
    assert not found.guard.passed
    assert "certainty" in found.guard.sentence


def test_logits_without_a_difference_keep_t_at_one() -> None:
    found = match_accuracy(np.full((10, 4), 3.0), 0.5)
    assert found.temperature == 1
    assert found.confidence == 0.25
    assert not found.guard.passed


def rising_and_falling() -> tuple[Floats, NDArray[np.int64]]:
    """Half the rows agree; in the other half the label comes second of three, by a little.

    Their chance is 0 at T = 0, nearly 1/2 in between and 1/3 at last: the mean is not monotone.
    """
    agreeing = np.tile([4.0, 0.0, 0.0], (50, 1))
    second = np.tile([4.0, 3.9, -20.0], (50, 1))
    labels = np.repeat([0, 1], 50)
    return np.concatenate([agreeing, second]), labels


def test_other_labels_take_the_softest_of_several_crossings() -> None:
    """Both crossings are true roots; the one with the larger T is taken."""
    logits, labels = rising_and_falling()
    found = match_accuracy(logits, 0.6, labels)
    grid = np.linspace(-8, 8, 4001)
    values = np.array([mean_confidence(logits, s, labels) for s in grid]) - 0.6
    crossings = np.flatnonzero(np.diff(np.sign(values)))
    assert len(crossings) == found.crossings == 2
    assert math.log(found.temperature) == pytest.approx(grid[crossings[-1]], abs=0.005)
    assert found.confidence == pytest.approx(0.6, abs=1e-5)
    assert found.guard.passed


def test_other_labels_that_never_get_there_take_the_highest() -> None:
    """No temperature gives these labels 0.95: their best is taken, and the guard says so."""
    logits, labels = rising_and_falling()
    found = match_accuracy(logits, 0.95, labels)
    best = max(mean_confidence(logits, s, labels) for s in np.linspace(-8, 8, 2001))
    assert found.crossings == 0
    assert found.confidence == pytest.approx(best, abs=0.01)
    assert not found.guard.passed
    assert "no temperature" in found.guard.sentence


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("accuracy", [0.4, 0.7])
def test_utdc_by_brute_force(seed: int, accuracy: float) -> None:
    """Its misfit, written anew, is nowhere lower on 1500 temperatures."""
    inputs, _ = made_inputs(seed, n_v=150, n_t=140)
    temperature = utdc_temperature(inputs, accuracy)
    confidence = softmax(inputs.source_logits, axis=1).max(axis=1)
    right = inputs.source_correct[np.argsort(confidence)]
    accuracies = right.reshape(15, 10).mean(axis=1)
    wanted = np.clip(accuracies * accuracy / right.mean(), 0.01, 0.99)
    order = np.argsort(softmax(inputs.target_logits, axis=1).max(axis=1))
    starts = np.arange(15) * 140 // 15

    def misfit(log_t: float) -> float:
        confidences = softmax(inputs.target_logits[order] / math.exp(log_t), axis=1).max(axis=1)
        means = [part.mean() for part in np.split(confidences, starts[1:])]
        return float(np.abs(wanted - np.array(means)).sum())

    best = min(misfit(s) for s in np.linspace(-2, 5, 1500))
    assert misfit(math.log(temperature)) <= best + 0.01


@pytest.mark.parametrize("seed", SEEDS)
def test_pseudocal_by_hand_through_the_head(seed: int) -> None:
    """Features are mixed and sent through W and b; T is SciPy's minimum of the NLL."""
    rng = np.random.default_rng(seed)
    weight, bias = rng.normal(size=(3, 4)), rng.normal(size=3)
    features = 2 * rng.normal(size=(300, 4))
    logits = features @ weight.T + bias
    inputs, _ = made_inputs(classes=3)
    found = pseudocal(replace(inputs, target_logits=logits), seed=seed)
    partner = np.random.default_rng(seed).permutation(300)
    own, other = logits.argmax(axis=1), logits[partner].argmax(axis=1)
    mixed = (0.65 * features + 0.35 * features[partner])[own != other] @ weight.T + bias
    labels = own[own != other]

    def nll(log_t: float) -> float:
        logs = log_softmax(mixed / math.exp(log_t), axis=1)
        return -float(logs[np.arange(len(labels)), labels].mean())

    best = minimize_scalar(nll, bounds=(-4, 4), method="bounded", options={"xatol": 1e-9})
    assert math.log(found.temperature) == pytest.approx(best.x, abs=1e-4)
    assert found.pairs == len(labels)
    assert found.guards[0].value == pytest.approx(float((mixed.argmax(axis=1) == labels).mean()))


@pytest.mark.parametrize("kept", [2, 3])
@pytest.mark.parametrize("value", [-1e9, -65504.0, float(np.finfo(np.float32).min)])
def test_pseudocal_mixes_no_masks(value: float, kept: int) -> None:
    """A class that either row of a pair rules out is ruled out, by whatever number."""
    inputs, _ = made_inputs(0, classes=4)
    logits = inputs.target_logits.copy()
    chance = np.random.default_rng(1).normal(size=logits.shape)
    chance[np.arange(len(logits)), logits.argmax(axis=1)] = 10  # the predicted class stays
    logits[chance < np.sort(chance, axis=1)[:, [-kept]]] = -np.inf
    filled = np.where(logits == -np.inf, value, logits)
    found = [pseudocal(replace(inputs, target_logits=given)) for given in (logits, filled)]
    assert found[1].temperature == pytest.approx(found[0].temperature, rel=1e-6)
    assert found[1].pairs == found[0].pairs


def test_pseudocal_without_pairs_keeps_the_source_temperature() -> None:
    """One predicted class leaves nothing to mix."""
    inputs, _ = made_inputs()
    target = inputs.target_logits.copy()
    target[:, 0] += 1000
    found = pseudocal(replace(inputs, target_logits=target))
    assert (found.temperature, found.pairs) == (inputs.temperature, 0)
    assert not found.guards[0].passed


@pytest.mark.parametrize("seed", SEEDS)
def test_transcal_by_its_formulas(seed: int) -> None:
    """With NumPy's covariances, for weights that are mild enough to stay as they are."""
    inputs, _ = made_inputs(seed, weighted=True)
    weights = inputs.source_weights
    assert weights is not None
    wrong = (inputs.source_predictions != inputs.source_labels).astype(float)
    loss, right = weights * wrong, 1 - wrong
    first = -np.cov(loss, weights)[0, 1] / np.var(weights, ddof=1)
    reduced = loss + first * (weights - 1)
    second = -np.cov(reduced, right)[0, 1] / np.var(right, ddof=1)
    confidence = softmax(inputs.source_logits / inputs.temperature, axis=1).max(axis=1)
    risk = loss.mean() + first * (weights.mean() - 1)
    risk += second * (right.mean() - confidence.mean())
    found = transcal(inputs)
    assert found.power == 1
    assert found.accuracy == pytest.approx(1 - risk, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_transcal_tempers_weights_to_thirty_percent_of_the_rows(seed: int) -> None:
    weights = np.exp(4 * np.random.default_rng(seed).normal(size=500))
    power = tempering_power(weights)
    assert 0 < power < 1
    assert effective_sample_size(weights**power) / 500 == pytest.approx(0.3, abs=1e-6)


def test_transcal_needs_weights_and_survives_no_error() -> None:
    inputs, _ = made_inputs(weighted=True)
    perfect = replace(inputs, source_labels=inputs.source_predictions)
    assert transcal(perfect).accuracy == pytest.approx(1)
    with pytest.raises(ValueError, match="weights"):
        transcal(replace(inputs, source_weights=None))
