"""An interval that is valid at every look: coverage, and the edges of what can be seen."""

import math

import numpy as np
import pytest

from covcal_cli.maths.odds import anytime_interval


@pytest.mark.parametrize("accuracy", [0.5, 0.9, 0.99])
def test_it_never_misses_more_often_than_allowed(accuracy: float) -> None:
    """Of 400 sequences of 300 draws, looked at after every fifth; the prior is 10 points off."""
    draws = np.random.default_rng(0).random((400, 300)) < accuracy
    right, looks = draws.cumsum(axis=1)[:, 4::5].astype(float), np.arange(5.0, 301, 5)
    low, high = anytime_interval(right, looks - right, accuracy - 0.1, 0.05)
    missed = ((accuracy < low) | (accuracy > high)).any(axis=1)
    assert missed.sum() <= 0.05 * 400


def test_an_interval_for_one_look_misses_too_often_at_many() -> None:
    """The test above can fail: Wilson's interval misses in many more sequences."""
    from covcal_cli.maths.odds import wilson

    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(400):
        right = (rng.random(300) < 0.9).cumsum()[4::5]
        looks = zip(range(5, 301, 5), right.tolist(), strict=True)
        ends = [wilson(s / n, n, 0.95) for n, s in looks]
        missed += any(not low <= 0.9 <= high for low, high in ends)
    assert missed > 0.1 * 400


def test_its_ends_are_where_the_evidence_is_at_the_limit() -> None:
    def log_beta(p: float, q: float) -> float:
        return math.lgamma(p) + math.lgamma(q) - math.lgamma(p + q)

    for end in anytime_interval(70, 30, 0.8, 0.05):
        likelihood = 70 * math.log(end) + 30 * math.log1p(-end)
        evidence = log_beta(16 + 70, 4 + 30) - log_beta(16, 4) - likelihood
        assert evidence == pytest.approx(math.log(20))


@pytest.mark.parametrize(("right", "wrong"), [(0, 0), (30, 0), (0, 30), (30, 1e-14), (1e-3, 2.5)])
def test_there_is_always_an_interval(right: float, wrong: float) -> None:
    low, high = anytime_interval(right, wrong, 1.0, 0.05)
    assert 0 <= low <= right / max(right + wrong, 1e-9) <= high <= 1 or right + wrong == 0
    assert (low == 0) == (right < 1)
    assert (high == 1) == (wrong < 1e-6)
