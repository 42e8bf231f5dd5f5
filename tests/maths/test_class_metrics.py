"""Metrics of a class against scikit-learn, with labels and with probabilities as weights."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sklearn

from covcal_cli.arrays import Float64s
from covcal_cli.maths.class_metrics import CLASS_METRICS, ClassRows, class_odds, ranks_of

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "precision": lambda labels, hard, _scores, weights: sklearn.precision_score(
        labels, hard, sample_weight=weights
    ),
    "recall": lambda labels, hard, _scores, weights: sklearn.recall_score(
        labels, hard, sample_weight=weights
    ),
    "f1": lambda labels, hard, _scores, weights: sklearn.f1_score(
        labels, hard, sample_weight=weights
    ),
    "specificity": lambda labels, hard, _scores, weights: sklearn.recall_score(
        labels, hard, pos_label=0, sample_weight=weights
    ),
    "auroc": lambda labels, _hard, scores, weights: sklearn.roc_auc_score(
        labels, scores, sample_weight=weights
    ),
}


def made(n: int = 400, *, ties: bool = True) -> tuple[Float64s, Float64s]:
    """Return scores of rows, some of them equal, and probabilities of the class."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=n)
    if ties:
        scores = scores.round(1)
    return scores, 1 / (1 + np.exp(-scores - rng.normal(size=n) / 3))


def test_every_metric_is_compared() -> None:
    assert FUNCTIONS.keys() == CLASS_METRICS.keys()


@pytest.mark.parametrize("name", CLASS_METRICS)
def test_with_labels_it_is_scikit_learns(name: str) -> None:
    scores, chances = made()
    labels = np.random.default_rng(1).random(len(scores)) < chances
    rows = ClassRows(scores > 0.5, ranks_of(scores), labels.astype(float), np.ones(len(scores)))
    expected = FUNCTIONS[name](labels, scores > 0.5, scores, None)
    assert CLASS_METRICS[name].function(rows)[0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", CLASS_METRICS)
def test_a_probability_counts_as_two_weighted_rows(name: str) -> None:
    """Each row is once of the class and once not, with its probabilities as weights."""
    scores, chances = made()
    rows = ClassRows(scores > 0.5, ranks_of(scores), chances, np.ones(len(scores)))
    labels = np.repeat([1, 0], len(scores))
    doubled = np.tile(scores, 2)
    weights = np.concatenate([chances, 1 - chances])
    expected = FUNCTIONS[name](labels, doubled > 0.5, doubled, weights)
    assert CLASS_METRICS[name].function(rows)[0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", CLASS_METRICS)
def test_the_derivative_is_that_of_the_value(name: str) -> None:
    scores, chances = made(60)
    function, ranks, mass = CLASS_METRICS[name].function, ranks_of(scores), np.ones(60)
    _, slope = function(ClassRows(scores > 0.5, ranks, chances, mass))
    step = 1e-6
    for row in range(0, 60, 7):
        changed = [chances.copy(), chances.copy()]
        changed[0][row] -= step
        changed[1][row] += step
        below, above = (function(ClassRows(scores > 0.5, ranks, t, mass))[0] for t in changed)
        assert slope[row] == pytest.approx((above - below) / (2 * step), abs=1e-8)


def test_odds_rank_rows_whose_probability_rounds_to_one() -> None:
    logits = np.array([[0.0, 50.0], [0.0, 60.0], [1.0, 0.0], [900.0, 0.0]])
    assert ranks_of(class_odds(logits)[1]).tolist() == [2, 3, 1, 0]
    logits = np.random.default_rng(0).normal(size=(200, 5)) * 3
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for label in range(5):
        expected = np.log(chances[:, label] / (1 - chances[:, label]))
        np.testing.assert_allclose(class_odds(logits)[label], expected, atol=1e-5)
