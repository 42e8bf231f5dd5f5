"""The temperature whose mean confidence is a given accuracy, against SciPy."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import softmax

from covcal_cli.estimators.matched_temperature import match_accuracy
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
    assert "even uniform probabilities" in found.guard.sentence


def test_certainty_is_clamped_in_words() -> None:
    inputs, _ = made_inputs()
    found = match_accuracy(inputs.target_logits, 1.0)
    assert found.confidence == pytest.approx(1 - 0.5 / 801, abs=1e-5)
    assert not found.guard.passed
    assert "so high an accuracy cannot be distinguished" in found.guard.sentence


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
    """Both crossings are true roots; the root with the larger T is used."""
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
