"""The accuracy by marked labels: unbiased, and within an interval that misses as it may."""

import numpy as np
import pytest

from covcal_cli.labels.design import drawn, inclusion_probabilities
from covcal_cli.watch.labels import difference_estimate


@pytest.mark.parametrize("honest", [True, False])
def test_it_is_unbiased_and_its_interval_covers(honest: bool) -> None:
    """Of draws by `pick`'s design, whether or not the confidence is about right."""
    rng = np.random.default_rng(0)
    p = rng.uniform(0.3, 0.99, size=400)
    right = (rng.random(400) < (p if honest else 0.8 * p)).astype(np.float64)
    inclusion = inclusion_probabilities(p, 60)
    found, misses = [], 0
    for _ in range(300):
        rows = drawn(inclusion, rng)
        batch = np.zeros(len(rows), dtype=np.int64)
        one = (p, p[rows], right[rows], inclusion[rows], batch)
        accuracy, low, high = difference_estimate(400, *one, 0.1)
        found.append(accuracy)
        misses += not low <= right.mean() <= high
    assert np.mean(found) == pytest.approx(right.mean(), abs=3 * np.std(found) / np.sqrt(300))
    assert misses <= 300 * 0.1 + 2 * np.sqrt(300 * 0.09)


def test_two_batches_are_one_estimate() -> None:
    """Unbiased as well where the second is drawn from what the first left."""
    rng = np.random.default_rng(1)
    p = rng.uniform(0.4, 0.95, size=120)
    right = (rng.random(120) < p).astype(np.float64)
    found = []
    for _ in range(400):
        first = np.sort(rng.choice(120, 20, replace=False))
        left = np.setdiff1d(np.arange(120), first)
        second = np.sort(rng.choice(left, 30, replace=False))
        rows, batch = np.concatenate([first, second]), np.repeat([0, 1], [20, 30])
        inclusion = np.repeat([20 / 120, 30 / 100], [20, 30])
        one = (p, p[rows], right[rows], inclusion, batch)
        found.append(difference_estimate(120, *one, 0.1)[0])
    assert np.mean(found) == pytest.approx(right.mean(), abs=3 * np.std(found) / np.sqrt(400))


def test_all_labels_leave_no_doubt() -> None:
    right = np.array([1.0, 0.0, 1.0, 1.0])
    p, ones = np.full(4, 0.9), np.ones(4)
    batch = np.zeros(4, dtype=np.int64)
    assert difference_estimate(4, p, p, right, ones, batch, 0.1) == pytest.approx((0.75,) * 3)
