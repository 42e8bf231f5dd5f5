"""BBSE and RLLS against SciPy and against the truth; ``--target-prior``."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import lstsq
from scipy.optimize import minimize
from scipy.special import softmax

from covcal_cli.errors import CovcalError
from covcal_cli.estimators.inputs import EstimatorInputs
from covcal_cli.estimators.label_shift import (
    Solver,
    confusion,
    label_shift,
    rlls_penalty,
    rlls_theta,
    target_prior,
)
from tests.estimators.made_inputs import made_inputs, made_rows

Floats = NDArray[np.float64]
SEEDS = range(3)
PRIOR = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
CLASSES = ("a", "b", "c", "d", "e")


def shifted(seed: int, n: int = 4000) -> EstimatorInputs:
    """Return the inputs of a pure label shift, calibrated."""
    source, labels = made_rows(n, classes=5, moved=0.0, seed=2 * seed)
    target, _ = made_rows(n, classes=5, moved=0.0, seed=2 * seed + 1, prior=PRIOR)
    return EstimatorInputs(source, labels, target, 2.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_confusion_matrix_row_by_row(seed: int) -> None:
    inputs, _ = made_inputs(seed, n_v=50, n_t=60)
    chances = softmax(inputs.source_logits / inputs.temperature, axis=1)
    expected = np.zeros((5, 5))
    for chance, label in zip(chances, inputs.source_labels, strict=True):
        expected[:, label] += chance / 50
    joint, means = confusion(inputs)
    assert joint == pytest.approx(expected, abs=1e-6)
    assert means == pytest.approx(
        softmax(inputs.target_logits / inputs.temperature, axis=1).mean(axis=0), abs=1e-6
    )
    assert joint.sum() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_bbse_is_least_squares_made_a_distribution(seed: int) -> None:
    inputs, _ = made_inputs(seed)
    joint, means = confusion(inputs)
    raw = np.maximum(lstsq(joint, means)[0], 0)
    pi = np.bincount(inputs.source_labels, minlength=5) / inputs.n_source
    found = label_shift(inputs, "bbse")
    assert found.ratios == pytest.approx(raw / (pi @ raw), rel=1e-6)
    assert found.prior == pytest.approx(pi * found.ratios)
    assert found.ratios[inputs.source_labels].mean() == pytest.approx(1)


@pytest.mark.parametrize(
    ("seed", "penalty", "classes"), [(0, 0.0005, 5), (1, 0.003, 2), (2, 0.02, 5), (4, 1.0, 5)]
)
def test_rlls_against_a_quadratic_programme(seed: int, penalty: float, classes: int) -> None:
    """No theta >= -1 that SLSQP finds from several starts is better, and none is below -1."""
    rng = np.random.default_rng(seed)
    joint = softmax(3 * np.eye(classes) + rng.normal(size=(classes, classes)), axis=0)
    joint *= rng.dirichlet(np.full(classes, 3))
    target = rng.dirichlet(np.full(classes, 0.7))
    gap = joint @ (target / joint.sum(axis=0) - 1) + 0.01 * rng.normal(size=classes)

    def objective(theta: Floats) -> float:
        return float(np.linalg.norm(joint @ theta - gap) + penalty * np.linalg.norm(theta))

    found = rlls_theta(joint, gap, penalty)
    assert found.min() >= -1
    rivals = [
        minimize(
            objective,
            start,
            method="SLSQP",
            bounds=[(-1, None)] * classes,
            options={"maxiter": 100, "ftol": 1e-14},
        ).x
        for start in (found + 1e-3, rng.normal(size=classes) / 10, np.ones(classes))
    ]
    best = min(objective(rival) for rival in (*rivals, np.zeros(classes)))
    assert objective(found) <= best + 1e-8
    assert objective(found) >= best - 1e-5  # SLSQP finds the same minimum, less precisely


def test_rlls_does_nothing_where_noise_explains_the_gap() -> None:
    """A penalty above every singular value gives theta = 0; so do no gap and a zero matrix."""
    joint = np.diag([0.3, 0.4, 0.3])
    gap = np.array([0.1, -0.05, -0.05])
    assert np.array_equal(rlls_theta(joint, gap, 0.5), np.zeros(3))
    assert np.array_equal(rlls_theta(joint, np.zeros(3), 0.1), np.zeros(3))
    assert np.array_equal(rlls_theta(np.zeros((3, 3)), gap, 0.1), np.zeros(3))


def test_a_class_that_is_gone_has_the_ratio_0() -> None:
    """The bound theta >= -1 holds without a rounding error beyond it."""
    joint = 0.9 * np.diag([0.3, 0.4, 0.3]) + 0.1 / 9
    gap = joint @ np.array([-1.5, 0.5, 1.0])
    assert rlls_theta(joint, gap, 1e-3)[0] == -1


def test_the_published_penalty() -> None:
    inputs, _ = made_inputs(n_v=1000)
    logs = np.log(2 * 5 / 0.05)
    expected = 0.01 * 3 * (2 * logs / 3000 + np.sqrt(2 * logs / 1000))
    assert rlls_penalty(inputs) == pytest.approx(expected)


@pytest.mark.parametrize("solver", ["bbse", "rlls"])
@pytest.mark.parametrize(("n", "error"), [(200, 0.12), (2000, 0.03)])
def test_the_error_of_a_found_prior(solver: Solver, n: int, error: float) -> None:
    """The mean total variation to the true frequencies from few rows; the shift moves 30 %."""
    found = [label_shift(shifted(seed, n), solver) for seed in range(10)]
    assert np.mean([0.5 * np.abs(one.prior - PRIOR).sum() for one in found]) < error
    assert all(one.moved > 0.15 and one.sigmas > 2 for one in found)


@pytest.mark.parametrize("n", [200, 2000])
def test_no_shift_is_within_its_noise(n: int) -> None:
    """Two samples of one world: at most 1 of 10 mean predictions are two sigmas apart."""
    apart = 0
    for seed in range(10):
        source, labels = made_rows(n, classes=5, moved=0.0, seed=2 * seed)
        target, _ = made_rows(n, classes=5, moved=0.0, seed=2 * seed + 1)
        apart += label_shift(EstimatorInputs(source, labels, target, 2.0), "rlls").sigmas > 2
    assert apart <= 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pure_label_shift_is_found(seed: int) -> None:
    """The prior to 0.05 in every class."""
    found = label_shift(shifted(seed), "bbse")
    assert found.prior == pytest.approx(PRIOR, abs=0.05)
    assert all(guard.passed for guard in found.guards)


@pytest.mark.parametrize("solver", ["bbse", "rlls"])
def test_absent_classes_and_hopeless_predictions_stay_finite(solver: Solver) -> None:
    """A class without a source row gets no mass; equal logits leave the prior and fail a guard."""
    inputs, _ = made_inputs()
    kept = inputs.source_labels != 2
    absent = replace(
        inputs,
        source_logits=inputs.source_logits[kept],
        source_labels=inputs.source_labels[kept],
    )
    found = label_shift(absent, solver)
    assert found.prior[2] == 0
    assert found.prior.sum() == pytest.approx(1)
    flat = replace(
        inputs,
        source_logits=np.zeros_like(inputs.source_logits),
        target_logits=np.zeros_like(inputs.target_logits),
    )
    blind = label_shift(flat, solver)
    assert np.isfinite(blind.ratios).all()
    assert blind.prior.sum() == pytest.approx(1)
    assert not blind.guards[0].passed
    assert np.isfinite(blind.guards[0].value)


def test_named_priors() -> None:
    """source stands for itself, uniform is equal shares, bbse is estimated when asked."""
    inputs, _ = made_inputs()
    assert target_prior("source", inputs, CLASSES) is None
    assert target_prior("uniform", inputs, CLASSES) == pytest.approx(np.full(5, 0.2))
    asked = target_prior("bbse", inputs, CLASSES)
    assert asked == pytest.approx(label_shift(inputs, "bbse").prior)


@pytest.mark.parametrize("rounded", [1, 1.01, 0.99])
def test_a_prior_from_a_file(tmp_path: Path, rounded: float) -> None:
    """Shares by class name, in any order; a sum that rounding moved off 1 is brought back to it."""
    inputs, _ = made_inputs()
    path = tmp_path / "prior.json"
    path.write_text(json.dumps({"e": 0.1, "a": 0.5, "b": 0.2, "c": 0.15, "d": 0.05 * rounded}))
    found = target_prior(str(path), inputs, CLASSES)
    assert found == pytest.approx(np.array([0.5, 0.2, 0.15, 0.05, 0.1]), abs=1e-3)
    assert found is not None
    assert found.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: 1", "not JSON"),
        ("[1, 2]", "every class"),
        ('{"a": 1}', "no share for class b"),
        ('{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1}', "f, but the model has no such class"),
        ('{"a": "x", "b": 1, "c": 1, "d": 1, "e": 1}', "give a number"),
        ('{"a": true, "b": 1, "c": 1, "d": 1, "e": 1}', "give a number"),
        ('{"a": -1, "b": 1, "c": 1, "d": 1, "e": 1}', "give 0 or more"),
        ('{"a": NaN, "b": 1, "c": 1, "d": 1, "e": 1}', "not a finite number"),
        ('{"a": 0, "b": 0, "c": 0, "d": 0, "e": 0}', "sum to 0, not to 1"),
        ('{"a": 0.8, "b": 0.8, "c": 0, "d": 0, "e": 0}', "sum to 1.6, not to 1"),
        ('{"a": 5, "b": 2, "c": 1, "d": 1, "e": 1}', "sum to 10, not to 1"),
        ('{"a": 0.3, "b": 0.3, "c": 0.3, "d": 0, "e": 0.09}', "sum to 0.99, not to 1"),
    ],
)
def test_a_bad_prior_file_is_refused_in_words(tmp_path: Path, content: str, message: str) -> None:
    inputs, _ = made_inputs()
    path = tmp_path / "prior.json"
    path.write_text(content)
    with pytest.raises(CovcalError, match=message) as caught:
        target_prior(str(path), inputs, CLASSES)
    assert str(path) in str(caught.value)


def test_an_unknown_prior_names_what_there_is() -> None:
    inputs, _ = made_inputs()
    with pytest.raises(CovcalError, match="source, uniform, bbse"):
        target_prior("unifrom", inputs, CLASSES)
