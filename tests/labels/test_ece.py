"""The ECE by a few labels: near to that of all rows, and an interval that says how near."""

import numpy as np
import pytest
from scipy.special import expit, logit

from covcal_cli.labels.posterior import folds, label_ece
from tests.labels.made_draws import made_draw

N = 5000


@pytest.mark.parametrize(
    ("offset", "slope", "fitted", "spread"),
    [(0.0, 1.0, False, 1), (-0.7, 0.7, False, 1), (0.0, 1.0, True, 1), (-4.6, 5.0, True, 0.2)],
)
def test_intervals_hold_the_ece_of_all_rows(
    offset: float, slope: float, fitted: bool, spread: float
) -> None:
    """On nine of ten draws of 50 rows, and the mean estimate of many rows is the ECE.

    A fitted confidence may have the right mean, but vary too little.
    """
    rng = np.random.default_rng(0)
    confidence = expit(1.15 + spread * (logit(rng.beta(4, 1, N)) - 1.15))
    chances = expit(offset + slope * logit(confidence))
    right = (rng.random(N) < chances).astype(float)
    expected = np.abs(chances - confidence).mean()

    def of_labels(n: int) -> tuple[float, float, float]:
        rows = rng.choice(N, n, replace=False)
        draw = made_draw(N, n / N, n)
        return label_ece(confidence, confidence[rows], draw, right[rows], fitted=fitted)

    ece, low, high = of_labels(3000)
    assert ece == pytest.approx(expected, abs=0.015)
    assert high - low < 0.06
    intervals = [of_labels(50) for _ in range(20)]
    assert np.mean([low - 0.01 <= expected <= high for _, low, high in intervals]) >= 0.9
    assert np.mean([high - low for _, low, high in intervals]) > 0.05


@pytest.mark.parametrize("labels", [50, 230])
def test_a_few_rows_with_large_weights_prove_little(labels: int) -> None:
    """Rows outside a decision's region are drawn 50 times less often; the confidence is right."""
    rng = np.random.default_rng(1)
    confidence = -np.sort(-rng.beta(4, 1, N))
    right = (rng.random(N) < confidence).astype(float)
    inclusion = np.where(np.arange(N) < 0.4 * N, 1.0, 1 / 50)
    inclusion *= labels / inclusion.sum()
    lows = []
    for _ in range(20):
        rows = np.flatnonzero(rng.random(N) < inclusion)
        draw = made_draw(N, inclusion[rows], len(rows))
        ece = label_ece(confidence, confidence[rows], draw, right[rows], fitted=False)
        lows.append(ece[1])
    assert np.mean(np.array(lows) < 0.01) >= 0.9


@pytest.mark.parametrize(("n", "expected"), [(1, 1), (3, 3), (52, 5)])
def test_folds_are_alike_in_size(n: int, expected: int) -> None:
    parts, fold = folds(n, 0)
    sizes = np.bincount(fold, minlength=parts)
    assert parts == expected
    assert sizes.max() - sizes.min() <= 1
    assert sizes.sum() == n
