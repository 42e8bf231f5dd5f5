"""Estimators on logits standardised by domain, against plain loops and what they must see."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax

from covcal_cli.arrays import Float64s, Labels
from covcal_cli.estimators import clusters
from covcal_cli.estimators.clusters import clusterings
from covcal_cli.estimators.inputs import EstimatorInputs
from tests.estimators.made_inputs import made_inputs

FREE, FIXED = "clustering", "clustering with fixed class shares"
BOTH = pytest.mark.parametrize("name", [FREE, FIXED])


def standardised(logits: Float64s) -> Float64s:
    rows = logits - logits.mean(axis=1, keepdims=True)
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def left(rows: Float64s, labels: Labels, centres: Float64s, sizes: Float64s | None) -> float:
    """Count in plain loops the share of rows whose cluster is not the cluster of their label."""
    K = len(centres)
    for _ in range(10):
        near = [[math.log(K) / 0.115 * float(row @ centre) for centre in centres] for row in rows]
        offsets = [0.0] * K
        shares = [softmax(one) for one in near]
        for _ in range(5 if sizes is not None else 0):
            means = np.mean(shares, axis=0)
            assert sizes is not None
            offsets = [o + math.log(s / m) for o, s, m in zip(offsets, sizes, means, strict=True)]
            shares = [softmax(np.add(one, offsets)) for one in near]
        sums = [sum(p[k] * row for p, row in zip(shares, rows, strict=True)) for k in range(K)]
        centres = np.array([one / np.linalg.norm(one) for one in sums])
    return float(
        np.mean(
            [np.argmax(centres @ row) != label for row, label in zip(rows, labels, strict=True)]
        )
    )


@BOTH
def test_clusters_by_plain_loops(name: str) -> None:
    inputs, _ = made_inputs(n_v=150, n_t=200)
    source = standardised(np.asarray(inputs.source_logits))
    target = standardised(np.asarray(inputs.target_logits))
    centres = [source[inputs.source_labels == k].sum(axis=0) for k in range(inputs.n_classes)]
    start = np.array([one / np.linalg.norm(one) for one in centres])
    counts = np.bincount(inputs.source_labels, minlength=inputs.n_classes) + 0.5
    sizes = counts / counts.sum() if name == FIXED else None
    before = left(source, inputs.source_predictions, start, sizes)
    after = left(target, inputs.target_predictions, start, sizes)
    assert after > before
    expected = inputs.source_correct.mean() + before - after
    assert clusterings(inputs)[name].accuracy == pytest.approx(
        expected, abs=0.006
    )  # a row, in float32


@pytest.mark.parametrize("d", [9, 200])
def test_logits_of_few_features_are_clustered_in_few_dimensions(
    monkeypatch: pytest.MonkeyPatch, d: int
) -> None:
    """Many classes of a classifier with few features take less time, and give the same."""
    rng = np.random.default_rng(0)
    weight, kinds = rng.normal(size=(120, d)), rng.integers(120, size=(2, 300))
    features = weight[kinds] + np.array([0.4, 0.7])[:, None, None] * rng.normal(size=(2, 300, d))
    source, target = (features @ weight.T).astype(np.float32)
    inputs = EstimatorInputs(source, kinds[0], target, 1.0)
    points = clusters.directions(target)
    assert clusters._in_basis(points, points)[0].shape == (300, d if d < 80 else 120)
    found = clusterings(inputs)
    monkeypatch.setattr(clusters, "_MANY_CLASSES", 120)
    assert clusterings(replace(inputs, of_source={})) == found
    assert found[FREE].accuracy < inputs.source_correct.mean()


@BOTH
@pytest.mark.parametrize("scale", [1e-3, 100.0])
def test_the_size_of_logits_and_what_softmax_does_not_see_change_nothing(
    name: str, scale: float
) -> None:
    inputs, _ = made_inputs()
    rows = np.random.default_rng(0).normal(size=len(inputs.target_logits))[:, None]
    other = EstimatorInputs(
        inputs.source_logits * scale,
        inputs.source_labels,
        inputs.target_logits * scale + rows * scale,
        2.0 * scale,
    )
    assert clusterings(other)[name].accuracy == pytest.approx(
        clusterings(inputs)[name].accuracy, abs=3e-3
    )


@BOTH
@pytest.mark.parametrize("mask", [-1e9, -3.4e38, -np.inf])
def test_a_masked_class_changes_nothing(name: str, mask: float) -> None:
    inputs, _ = made_inputs()
    masked = EstimatorInputs(
        np.insert(np.asarray(inputs.source_logits), 2, mask, axis=1),
        inputs.source_labels + (inputs.source_labels >= 2),
        np.insert(np.asarray(inputs.target_logits), 2, mask, axis=1),
        2.0,
    )
    assert clusterings(masked)[name].accuracy == pytest.approx(clusterings(inputs)[name].accuracy)


@BOTH
def test_a_common_push_of_the_logits_is_seen_that_confidence_hides(
    name: str,
) -> None:
    """A shift that adds a bonus to one class makes rows wrong, and surer than they were."""
    inputs, _ = made_inputs(moved=0.0, n_v=2000, n_t=2000)
    pushed = np.asarray(inputs.target_logits) + np.array([12.0, 0, 0, 0, 0])
    other = EstimatorInputs(inputs.source_logits, inputs.source_labels, pushed, 2.0)
    _, truth = made_inputs(moved=0.0, n_v=2000, n_t=2000)
    right = float((pushed.argmax(axis=1) == truth).mean())
    assert other.target_confidence.mean() > inputs.target_confidence.mean()
    assert inputs.source_correct.mean() - right > 0.25
    assert clusterings(other)[name].accuracy == pytest.approx(right, abs=0.08)


@BOTH
def test_no_shift_is_no_fall(name: str) -> None:
    inputs, _ = made_inputs(moved=0.0, n_v=1500, n_t=1500)
    found = clusterings(inputs)[name]
    assert found.accuracy == pytest.approx(inputs.source_correct.mean(), abs=0.03)
    assert found.low < found.accuracy < found.high


def test_rows_of_equal_logits_are_no_error() -> None:
    flat = np.zeros((20, 3))
    inputs = EstimatorInputs(flat, np.arange(20) % 3, flat, 1.0)
    for name in (FREE, FIXED):
        assert 0 <= clusterings(inputs)[name].accuracy <= 1


@BOTH
def test_a_class_without_a_source_row_gets_no_target_row(
    name: str,
) -> None:
    """Rows that the classifier gives a class which no labelled row has all count as wrong."""
    inputs, _ = made_inputs(moved=0.0, n_v=1500, n_t=1500)
    seen = inputs.source_labels != 4
    without = EstimatorInputs(
        np.asarray(inputs.source_logits)[seen],
        inputs.source_labels[seen],
        inputs.target_logits,
        2.0,
    )
    given = float((inputs.target_predictions == 4).mean())
    assert clusterings(without)[name].accuracy <= without.source_correct.mean() - given + 0.1


def test_periods_share_the_clusters_of_their_source() -> None:
    """The estimate is that of inputs of their own, and other source rows share nothing."""
    inputs, _ = made_inputs()
    clusterings(inputs)
    later = replace(inputs, target_logits=inputs.target_logits[:50])
    alone = replace(later, of_source={})
    assert later.of_source is inputs.of_source
    assert clusterings(later) == clusterings(alone)
    assert replace(inputs, source_logits=inputs.source_logits[::-1]).of_source.keys() == {"of"}


def test_where_class_centres_coincide_rounding_decides_nothing() -> None:
    """Both classes have most rows on one side: the centres are equal, so no row changes cluster."""
    rows = np.array([[2.0, -2.0], [2.0, -2.0], [-1.0, 1.0]])
    source, labels = np.tile(rows, (40, 1)), np.repeat([0, 1], 60)
    for target in (np.tile(rows, (30, 1)), np.tile(rows[[0, 2, 2, 2, 2]], (20, 1))):
        inputs = EstimatorInputs(source, labels, target, 2.0)
        for estimate in clusterings(inputs).values():
            assert estimate.accuracy == inputs.source_correct.mean()
