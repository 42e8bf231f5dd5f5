"""Estimators on logits centred domain by domain, against plain loops and what they must see."""

from collections.abc import Callable

import numpy as np
import pytest

from covcal_cli.arrays import Float64s
from covcal_cli.estimators.centred import NEIGHBOURS, balance, neighbours
from covcal_cli.estimators.evidence import Estimate, Evidence
from tests.estimators.made_evidence import made_evidence

BOTH = pytest.mark.parametrize("estimator", [neighbours, balance])


def standardised(logits: Float64s) -> Float64s:
    rows = logits - logits.mean(axis=1, keepdims=True)
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def shares(evidence: Evidence) -> list[list[float]]:
    """Return by plain loops the shares of nearest source rows with each row's predicted label."""
    source = standardised(np.asarray(evidence.source_logits))
    target = standardised(np.asarray(evidence.target_logits))
    found = []
    for rows, labels, same in (
        (source, evidence.source_predictions, True),
        (target, evidence.target_predictions, False),
    ):
        part = []
        for place, row in enumerate(rows):
            order = [j for j in np.argsort(-(source @ row)) if not (same and j == place)]
            near = evidence.source_labels[order[:NEIGHBOURS]]
            part.append(float((near == labels[place]).mean()))
        found.append(part)
    return found


@pytest.mark.parametrize("n_v", [8, 300])
def test_neighbours_by_plain_loops(n_v: int) -> None:
    """With few rows all the others are neighbours."""
    evidence, _ = made_evidence(n_v=n_v, n_t=200)
    on_source, on_target = shares(evidence)
    expected = evidence.source_correct.mean() + np.mean(on_target) - np.mean(on_source)
    assert neighbours(evidence).accuracy == pytest.approx(min(expected, 1.0), abs=1e-3)


def test_balance_by_plain_loops() -> None:
    evidence, _ = made_evidence(n_t=200)
    source, target = (
        z - z.mean(axis=1, keepdims=True)
        for z in (np.asarray(evidence.source_logits), np.asarray(evidence.target_logits))
    )
    changed = 0
    for row in target:
        other = row - target.mean(axis=0) + source.mean(axis=0)
        changed += int(other.argmax()) != int(row.argmax())
    expected = evidence.source_correct.mean() - changed / len(target)
    assert balance(evidence).accuracy == pytest.approx(expected)


@BOTH
@pytest.mark.parametrize("scale", [1e-3, 100.0])
def test_the_size_of_logits_and_what_softmax_does_not_see_change_nothing(
    estimator: Callable[[Evidence], Estimate], scale: float
) -> None:
    evidence, _ = made_evidence()
    rows = np.random.default_rng(0).normal(size=len(evidence.target_logits))[:, None]
    other = Evidence(
        evidence.source_logits * scale,
        evidence.source_labels,
        evidence.target_logits * scale + rows * scale,
        2.0 * scale,
    )
    assert estimator(other).accuracy == pytest.approx(estimator(evidence).accuracy, abs=3e-3)


@BOTH
@pytest.mark.parametrize("mask", [-1e9, -3.4e38, -np.inf])
def test_a_masked_class_changes_nothing(
    estimator: Callable[[Evidence], Estimate], mask: float
) -> None:
    evidence, _ = made_evidence()
    masked = Evidence(
        np.insert(np.asarray(evidence.source_logits), 2, mask, axis=1),
        evidence.source_labels + (evidence.source_labels >= 2),
        np.insert(np.asarray(evidence.target_logits), 2, mask, axis=1),
        2.0,
    )
    assert estimator(masked).accuracy == pytest.approx(estimator(evidence).accuracy)


@BOTH
def test_a_common_push_of_the_logits_is_seen_that_confidence_hides(
    estimator: Callable[[Evidence], Estimate],
) -> None:
    """A shift that adds a bonus to one class makes rows wrong, and surer than they were."""
    evidence, _ = made_evidence(moved=0.0, n_v=2000, n_t=2000)
    pushed = np.asarray(evidence.target_logits) + np.array([12.0, 0, 0, 0, 0])
    other = Evidence(evidence.source_logits, evidence.source_labels, pushed, 2.0)
    _, truth = made_evidence(moved=0.0, n_v=2000, n_t=2000)
    right = float((pushed.argmax(axis=1) == truth).mean())
    assert other.target_confidence.mean() > evidence.target_confidence.mean()
    assert evidence.source_correct.mean() - right > 0.25
    off = 0.05 if estimator is neighbours else 0.15  # balance counts wrong rows that move too
    assert estimator(other).accuracy == pytest.approx(right, abs=off)


@BOTH
def test_no_shift_is_no_fall(estimator: Callable[[Evidence], Estimate]) -> None:
    evidence, _ = made_evidence(moved=0.0, n_v=1500, n_t=1500)
    found = estimator(evidence)
    assert found.accuracy == pytest.approx(evidence.source_correct.mean(), abs=0.03)
    assert found.low < found.accuracy < found.high


def test_rows_of_equal_logits_are_no_error() -> None:
    flat = np.zeros((20, 3))
    evidence = Evidence(flat, np.arange(20) % 3, flat, 1.0)
    for estimator in (neighbours, balance):
        assert 0 <= estimator(evidence).accuracy <= 1
