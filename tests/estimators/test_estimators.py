"""ATC, DoC, mean confidence, agreement and weighting, each by brute force."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import softmax

from covcal_cli.estimators.confidences import agreement, atc, doc, mean_confidence
from covcal_cli.estimators.consensus import weighted_accuracy
from covcal_cli.estimators.inputs import AlignedForecasters, EstimatorInputs
from tests.estimators.made_inputs import made_inputs

Floats = NDArray[np.float64]
SEEDS = range(3)


def top(logits: NDArray[np.floating[Any]], temperature: float) -> Floats:
    chances: Floats = softmax(logits / temperature, axis=1)
    return np.asarray(chances.max(axis=1))


@pytest.mark.parametrize("seed", SEEDS)
def test_atc_by_trying_every_threshold(seed: int) -> None:
    """The threshold is the source score with as many rows below it as there are errors."""
    inputs, _ = made_inputs(seed)
    source, target = (
        top(logits, inputs.temperature) for logits in (inputs.source_logits, inputs.target_logits)
    )
    shares = [
        float((target >= t).mean()) for t in source if (source < t).sum() == inputs.source_errors
    ]
    assert atc(inputs).accuracy == pytest.approx(shares[0], abs=1e-12)
    assert len(set(shares)) == 1


def test_atc_splits_ties_as_the_source_does() -> None:
    """Where all rows tie, every row is as likely an error as on the source."""
    logits = np.tile([2.0, 0.0, 1.0], (10, 1))
    labels = np.array([0] * 7 + [1] * 3)
    found = atc(EstimatorInputs(logits, labels, logits[:4], 1.0))
    assert found.accuracy == pytest.approx(0.7)


def test_atc_orders_rows_whose_confidence_rounds_to_one() -> None:
    """Margins of 100 and 200 are different, though both confidences are 1."""
    margins = np.array([100.0, 150.0, 200.0, 250.0])
    logits = np.stack([margins, np.zeros(4), np.zeros(4)], axis=1)
    labels = np.array([1, 0, 0, 0])  # the least confident row is wrong
    target = np.stack([np.array([120.0, 160.0]), np.zeros(2), np.zeros(2)], axis=1)
    assert atc(EstimatorInputs(logits, labels, target, 1.0)).accuracy == pytest.approx(0.5)


@pytest.mark.parametrize("seed", SEEDS)
def test_doc_and_mean_confidence_by_their_formulas(seed: int) -> None:
    inputs, _ = made_inputs(seed)
    source, target = (
        top(logits, inputs.temperature) for logits in (inputs.source_logits, inputs.target_logits)
    )
    right = inputs.source_logits.argmax(axis=1) == inputs.source_labels
    assert mean_confidence(inputs).accuracy == pytest.approx(target.mean(), abs=1e-6)
    found = doc(inputs)
    assert found.accuracy == pytest.approx(right.mean() + target.mean() - source.mean(), abs=1e-6)
    gap = right - source
    error = math.sqrt(gap.var(ddof=1) / len(gap) + target.var(ddof=1) / len(target))
    assert found.high - found.low == pytest.approx(2 * 1.959964 * error, rel=1e-4)


@pytest.mark.parametrize("seed", SEEDS)
def test_agreement_is_the_source_accuracy_less_the_fall(seed: int) -> None:
    """Mean over members, target less source."""
    inputs, _ = made_inputs(seed, n_t=50)
    rng = np.random.default_rng(seed)
    own, source = rng.integers(5, size=(3, 50)), rng.integers(5, size=(3, inputs.n_source))
    own[:, :40] = inputs.target_predictions[:40]
    source[:, :550] = inputs.source_predictions[:550]
    aligned = AlignedForecasters(inputs.source_logits, inputs.target_logits, source, own)
    on_target = [float((member == inputs.target_predictions).mean()) for member in own]
    on_source = [float((member == inputs.source_predictions).mean()) for member in source]
    expected = inputs.source_correct.mean() + np.mean(on_target) - np.mean(on_source)
    found = agreement(replace(inputs, aligned=aligned))
    assert found.accuracy == pytest.approx(expected)
    with pytest.raises(ValueError, match="aligned"):
        agreement(inputs)


@pytest.mark.parametrize("seed", SEEDS)
def test_weighting_is_a_regression_read_off_at_the_known_mean(seed: int) -> None:
    """Least squares of w r on (w - 1) and a constant: the constant is the estimate."""
    inputs, _ = made_inputs(seed, weighted=True)
    weights = inputs.source_weights
    assert weights is not None
    right = (inputs.source_predictions == inputs.source_labels).astype(float)
    regressors = np.stack([np.ones_like(weights), weights - 1], axis=1)
    constant = np.linalg.lstsq(regressors, weights * right, rcond=None)[0][0]
    assert weighted_accuracy(inputs).accuracy == pytest.approx(constant)
    with pytest.raises(ValueError, match="weights"):
        weighted_accuracy(replace(inputs, source_weights=None))


@pytest.mark.parametrize("level", [0.1, 1.0, 3.0])
def test_equal_weights_give_the_source_accuracy(level: float) -> None:
    inputs, _ = made_inputs()
    equal = replace(inputs, source_weights=np.full(inputs.n_source, level))
    assert weighted_accuracy(equal).accuracy == pytest.approx(inputs.source_correct.mean())


def test_weighting_recovers_the_target_where_its_assumption_holds() -> None:
    """True density ratios between the two domains of a one-dimensional world."""
    rng = np.random.default_rng(0)
    source, target = rng.normal(size=20_000), rng.normal(size=20_000) + 0.5
    labels, truth = (
        (rng.random(len(x)) < 1 / (1 + np.exp(-2 * x))).astype(np.int64) for x in (source, target)
    )
    logits, other = (np.stack([np.zeros_like(x), x], axis=1) for x in (source, target))
    weights = np.exp(0.5 * source - 0.125)
    found = weighted_accuracy(EstimatorInputs(logits, labels, other, 1.0, source_weights=weights))
    true = float(((target > 0) == truth).mean())
    assert found.accuracy == pytest.approx(true, abs=0.01)
    assert found.low < true < found.high


@pytest.mark.parametrize("n_t", [2, 3])
@pytest.mark.parametrize("classes", [2, 5])
def test_two_rows_and_no_error_are_enough_for_a_number(n_t: int, classes: int) -> None:
    """All-correct source, absent classes, two target rows: finite estimates and honest guards."""
    rng = np.random.default_rng(0)
    labels = np.zeros(20, dtype=np.int64)
    logits = rng.normal(size=(20, classes))
    logits[:, 0] += 10
    inputs = EstimatorInputs(
        logits,
        labels,
        rng.normal(size=(n_t, classes)),
        1.0,
        source_weights=np.ones(20),
    )
    for found in (
        atc(inputs),
        doc(inputs),
        mean_confidence(inputs),
        weighted_accuracy(inputs),
    ):
        numbers = [found.accuracy, found.low, found.high]
        assert np.isfinite(numbers).all()
        assert 0 <= found.low <= found.accuracy <= found.high <= 1
    assert not atc(inputs).guard("source errors").passed
    assert doc(inputs).high - doc(inputs).low > 0.01
