"""Sketches: ranks against SciPy's, distances against scikit-learn's discriminant."""

import numpy as np
import pytest
from scipy.stats import percentileofscore
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from covcal_cli.watch.reference import Packed, quantiles, ranks
from covcal_cli.watch.sketches import (
    direction,
    margins,
    moments,
    signal,
    squared_distance,
    watched_classes,
)


def test_ranks_are_percentiles_of_the_rows() -> None:
    """Ranks of the reference's own values are exact; ties count one half."""
    values = np.random.default_rng(0).integers(0, 30, size=200).astype(np.float64)
    found = signal("made", values)
    asked = np.unique(values)
    expected = [percentileofscore(values, one, kind="mean") / 100 for one in asked]
    assert found.ranks(asked) == pytest.approx(np.array(expected))
    assert found.mean == pytest.approx(0.5)


@pytest.mark.parametrize("shape", ["normal", "exponential", "standard_cauchy"])
def test_ranks_of_a_sketch_are_near_to_those_of_all_rows(shape: str) -> None:
    rng = np.random.default_rng(1)
    draw = getattr(rng, shape)
    values, others = draw(size=20_000), draw(size=300)
    kept = quantiles(values)
    exact = np.searchsorted(np.sort(values), others) / len(values)
    assert np.abs(ranks(kept.values, others) - exact).max() < 1 / 257
    outside = ranks(kept.values, np.array([-np.inf, np.inf]))
    assert outside == pytest.approx([0, 1], abs=1 / 257)


def test_margins_by_brute_force() -> None:
    """Each class's logit less the highest other; masked classes lie lowest."""
    logits = np.random.default_rng(2).normal(size=(50, 4)).astype(np.float32)
    logits[3, 1] = logits[4, 2] = -np.inf
    logits[5, :3] = -np.inf
    found = margins(logits, [0, 2])
    for row in range(50):
        for place, number in enumerate((0, 2)):
            own, rest = logits[row, number], np.delete(logits[row], number).max()
            if np.isfinite(own) and np.isfinite(rest):
                assert found[place, row] == pytest.approx(float(own - rest), abs=1e-6)
    assert found[1, 4] == -np.inf


def test_two_classes_have_one_signal() -> None:
    assert watched_classes(np.array([0.3, 0.7])) == [1]
    assert watched_classes(np.array([0.5, 0.3, 0.2])) == [0, 1, 2]
    assert len(watched_classes(np.full(100, 0.01))) == 10


def test_the_direction_is_fishers() -> None:
    """Up to a factor, that of scikit-learn's discriminant."""
    rng = np.random.default_rng(3)
    mixing = rng.normal(size=(5, 5))
    one, other = rng.normal(size=(300, 5)) @ mixing, (rng.normal(size=(300, 5)) + 0.5) @ mixing
    fitted = LinearDiscriminantAnalysis(solver="lsqr")
    fitted.fit(np.vstack([one, other]), np.repeat([0, 1], 300))
    ours, theirs = direction(moments(other), moments(one)), fitted.coef_[0]
    cosine = ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs)
    assert cosine == pytest.approx(1, abs=0.01)


def test_the_squared_distance_has_no_bias_to_speak_of() -> None:
    """Of equal domains it is about 0, and of distant ones what it is."""
    rng = np.random.default_rng(4)
    moved = np.array([0.6, 0.8, 0, 0, 0, 0])
    near, far = [], []
    for _ in range(60):
        one, other = moments(rng.normal(size=(100, 6))), moments(rng.normal(size=(80, 6)))
        near.append(squared_distance(one, other))
        far.append(squared_distance(one, moments(rng.normal(size=(80, 6)) + moved)))
    assert np.mean(near) < 0.05
    assert np.mean(far) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(
    ("shape", "text", "says"),
    [
        ((3,), "AAAAAA==", "1 numbers"),
        ((1,), "&", "base64"),
        ((1,), "AADAfw==", "finite"),
    ],
)
def test_damaged_arrays_are_refused(shape: tuple[int, ...], text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Packed(shape, text)


def test_arrays_come_back_as_they_were() -> None:
    values = np.random.default_rng(5).normal(size=(3, 4)).astype(np.float32)
    assert np.array_equal(Packed.of(values).values, values)
