"""Temperature and offset by labels and a prior: each counts for what it knows."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from covcal_cli.arrays import Float64s
from covcal_cli.estimators.inputs import Estimate
from covcal_cli.estimators.matched_temperature import match_accuracy
from covcal_cli.labels import posterior as grid
from covcal_cli.labels.draws import Draw
from covcal_cli.labels.posterior import OFFSET, OFFSET_SPREAD
from covcal_cli.labels.posterior import posterior as scaling_and_accuracy
from covcal_cli.maths.odds import top_log_odds
from covcal_cli.records import Guard
from tests.labels.made_draws import made_draw

GUARD = Guard("estimators disagree", 0.0, 0.1, True, "")
PRIOR = Estimate("combined", 0.7, 0.5, 0.9, "", (GUARD,))
CONTRADICTED = replace(PRIOR, guards=(replace(GUARD, value=0.2, passed=False),))


GRID = grid._POINTS


@pytest.fixture(autouse=True)
def whole_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "_POINTS", GRID)


@pytest.fixture
def logits() -> Float64s:
    return np.random.default_rng(0).normal(size=(1000, 5)) * 2


class Fit(NamedTuple):
    """What the posterior says."""

    temperature: float
    offset: float
    accuracy: float


def posterior(frame: Float64s, logits: Float64s, draw: Draw, prior: Estimate | None) -> Fit:
    scaling, accuracy = scaling_and_accuracy(frame, logits, draw, prior)
    return Fit(scaling.temperature, scaling.of_label, accuracy)


def first(n: int, logits: Float64s, right: Float64s) -> Draw:
    """Return the draw of the first n rows, with labels that make the classifier right or not."""
    return draw_of(logits[:n], right[:n], max(n, 1) / 1000)


def draw_of(logits: Float64s, right: Float64s, inclusion: Float64s | float) -> Draw:
    labels = logits.argmax(axis=1)
    labels = np.where(right == 1, labels, (labels + 1) % logits.shape[1])
    return made_draw(1000, inclusion, len(logits), labels=labels)


def made(logits: Float64s, temperature: float, offset: float) -> Float64s:
    """Return what is right if a temperature and an offset are."""
    chances = expit(top_log_odds(logits, temperature) + offset)
    return np.asarray(np.random.default_rng(1).random(len(logits)) < chances, dtype=float)


def test_many_labels_decide(logits: Float64s) -> None:
    """The most likely T and offset, as an optimiser finds them, whatever the prior says."""
    right = made(logits, 3.0, -0.3)

    def loss(at: Float64s) -> float:
        odds = top_log_odds(logits, float(np.exp(at[0]))) + at[1]
        of_offset = ((at[1] - OFFSET) / OFFSET_SPREAD) ** 2 / 2
        return float((np.logaddexp(0, odds) - right * odds).sum() + of_offset)

    log_t, offset = minimize(loss, [1.0, 0.0], method="Nelder-Mead").x
    found = posterior(logits, logits, first(1000, logits, right), None)
    assert np.log(found.temperature) == pytest.approx(log_t, abs=0.03)
    assert found.offset == pytest.approx(offset, abs=0.03)
    assert found.accuracy == pytest.approx(right.mean(), abs=0.01)
    with_prior = posterior(logits, logits, first(1000, logits, right), PRIOR)
    assert with_prior.accuracy == pytest.approx(found.accuracy, abs=0.005)


def test_the_mean_confidence_is_the_accuracy(logits: Float64s) -> None:
    found = posterior(logits, logits[:20], first(20, logits, made(logits, 3.0, -0.3)), PRIOR)
    confidence = expit(top_log_odds(logits, found.temperature) + found.offset)
    assert confidence.mean() == pytest.approx(found.accuracy, abs=0.002)


def test_few_labels_keep_to_the_prior(logits: Float64s) -> None:
    """One row moves the accuracy little, and more where the estimators disagree."""
    right = np.zeros(1000)
    close, far = (
        posterior(logits, logits[:1], first(1, logits, right), one) for one in (PRIOR, CONTRADICTED)
    )
    assert 0.65 < close.accuracy < 0.7
    assert far.accuracy < close.accuracy
    flatter = match_accuracy(logits, close.accuracy).temperature
    assert close.temperature > flatter  # as the offset raises the confidence


def test_labels_outweigh_the_prior_in_time(logits: Float64s) -> None:
    right = made(logits, 20.0, -0.5)
    accuracies = [
        posterior(logits, logits[:n], first(n, logits, right), PRIOR).accuracy for n in (3, 30, 300)
    ]
    assert accuracies == sorted(accuracies, reverse=True)
    assert accuracies[-1] == pytest.approx(right.mean(), abs=0.05)


def test_rows_count_by_their_weight(logits: Float64s) -> None:
    """A row that stands for three counts as three."""
    right = made(logits, 3.0, 0.0)
    whole = np.array([0, 1, 2, 2, 2, 3])
    once = np.array([0, 1, 2, 3])
    inclusion = np.array([0.1, 0.1, 0.1 / 3, 0.1])
    # Weights have the mean 1 in both: of 6 rows, and of 4.
    few, many = (
        posterior(logits, logits[rows], draw_of(logits[rows], right[rows], probabilities), None)
        for rows, probabilities in ((once, inclusion), (whole, 0.1))
    )
    assert abs(few.accuracy - many.accuracy) < 0.06


@pytest.mark.parametrize("factor", [1e-3, 50.0])
def test_scaled_logits_scale_the_temperature(logits: Float64s, factor: float) -> None:
    right = made(logits, 3.0, -0.3)
    one, other = (
        posterior(k * logits[:500], k * logits[:40], first(40, k * logits, right), PRIOR)
        for k in (1.0, factor)
    )
    assert other.temperature == pytest.approx(factor * one.temperature, rel=1e-6)
    assert other.offset == pytest.approx(one.offset, abs=1e-9)


def test_without_a_label_it_is_the_prior(logits: Float64s) -> None:
    found = posterior(logits, logits[:0], first(0, logits, np.zeros(1000)), PRIOR)
    assert found.accuracy == pytest.approx(PRIOR.accuracy, abs=0.02)
    assert found.offset == pytest.approx(OFFSET, abs=0.01)
