"""The design of a draw, against brute force: what it promises of probabilities holds exactly."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq

from covcal_cli.labels import draws
from covcal_cli.labels.draws import (
    FLOOR,
    drawn,
    drawn_along,
    inclusion_probabilities,
    inclusion_rule,
    order_of_likeness,
)

DRAWS = 700


def forecast(n: int, seed: int = 0) -> NDArray[np.float64]:
    """Return forecasts with certain rows, hopeless rows and all between."""
    found = np.random.default_rng(seed).random(n) ** 0.5
    found[:2] = 0, 1
    return found


@pytest.mark.parametrize(("rows", "n"), [(7, 3), (12, 11), (40, 5), (40, 20), (9, 1), (5, 5)])
def test_a_row_is_drawn_as_often_as_its_probability_says(rows: int, n: int) -> None:
    """And every draw has n rows, none of them twice."""
    probabilities = inclusion_probabilities(forecast(rows), n)
    rng = np.random.default_rng(1)
    counts = np.zeros(rows)
    for _ in range(DRAWS):
        found = drawn(probabilities, rng)
        assert len(found) == n
        assert (np.diff(found) > 0).all()
        counts[found] += 1
    error = np.sqrt(probabilities * (1 - probabilities) / DRAWS)
    assert np.abs(counts / DRAWS - probabilities).max() < 4.5 * error.max() + 1e-12
    assert (np.abs(counts / DRAWS - probabilities) <= 4.5 * error + 1e-12).all()


@pytest.mark.parametrize("n", [1, 10, 45, 59, 60])
@pytest.mark.parametrize("kind", ["mixed", "certain", "one doubtful"])
def test_probabilities_are_the_sizes_capped_at_one(n: int, kind: str) -> None:
    """The probabilities are min(1, c q); the test finds the c with sum n by bisection."""
    rows = 60
    s = forecast(rows) if kind == "mixed" else np.ones(rows)
    if kind == "one doubtful":
        s[0] = 0.5
    spread = np.sqrt(s * (1 - s))
    q = np.full(rows, 1 / rows)
    if spread.sum() > 0:
        q = (1 - FLOOR) * spread / spread.sum() + FLOOR / rows
    expected = np.ones(rows)
    if n < rows:
        c = brentq(lambda c: np.minimum(1, c * q).sum() - n, 0, rows / q.min(), xtol=1e-13)
        expected = np.minimum(1, c * q)
    found = inclusion_probabilities(s, n)
    assert found == pytest.approx(expected, rel=1e-8)
    assert found.sum() == pytest.approx(n, rel=1e-12)
    assert found.min() >= FLOOR * n / rows * (1 - 1e-12)


def test_rows_lie_all_along_the_order() -> None:
    """Of any run of rows about as many are drawn as their probabilities add up to."""
    probabilities = inclusion_probabilities(forecast(300), 30)
    ends = np.cumsum(probabilities)
    rng = np.random.default_rng(0)
    for _ in range(100):
        count = np.searchsorted(drawn(probabilities, rng), np.arange(1, 301))
        assert np.abs(count - ends).max() < 2


def totals(right: NDArray[np.float64], s: NDArray[np.float64], draws: int) -> NDArray[np.float64]:
    """Return the difference estimates of how many are right, one per draw of 12 rows."""
    probabilities = inclusion_probabilities(s, 12)
    rng = np.random.default_rng(3)
    samples = (drawn(probabilities, rng) for _ in range(draws))
    return np.array([s.sum() + ((right[i] - s[i]) / probabilities[i]).sum() for i in samples])


@pytest.mark.parametrize("kind", ["right", "wrong"])
def test_the_difference_estimator_is_unbiased_whatever_the_forecast(kind: str) -> None:
    """And no more spread out than with rows drawn one by one with replacement."""
    rng = np.random.default_rng(0)
    s = np.sort(forecast(200))
    right = (rng.random(200) < (s if kind == "right" else 1 - s)).astype(np.float64)
    found = totals(right, s, DRAWS)
    assert abs(found.mean() - right.sum()) < 4.5 * found.std() / np.sqrt(DRAWS)
    p = inclusion_probabilities(s, 12) / 12
    residual = right - s
    with_replacement = ((residual / p - residual.sum()) ** 2 * p).sum() / 12
    assert found.var() < 1.1 * with_replacement


def test_batches_together_are_unbiased() -> None:
    """A second draw of what the first left, by another forecast, adds to what is known."""
    rng = np.random.default_rng(0)
    s = forecast(80)
    right = (rng.random(80) < s).astype(np.float64)
    found = []
    for _ in range(DRAWS):
        first_pi = inclusion_probabilities(s, 6)
        first = drawn(first_pi, rng)
        estimate = s.sum() + ((right[first] - s[first]) / first_pi[first]).sum()
        # What the first taught: here, how many of it were right.
        left = np.setdiff1d(np.arange(80), first)
        again = np.clip(s[left] * right[first].mean(), 0.05, 0.95)
        second_pi = inclusion_probabilities(again, 9)
        second = drawn(second_pi, rng)
        rest = right[left] - again
        following = right[first].sum() + again.sum() + (rest[second] / second_pi[second]).sum()
        found.append((6 * estimate + 9 * following) / 15)
    assert abs(np.mean(found) - right.sum()) < 4.5 * np.std(found) / np.sqrt(DRAWS)


def test_a_seed_draws_the_same_rows() -> None:
    probabilities = inclusion_probabilities(forecast(50), 10)
    one, same, other = (drawn(probabilities, np.random.default_rng(s)) for s in (4, 4, 5))
    assert one.tolist() == same.tolist() != other.tolist()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n", [1, 3, 5, 7, 40, 233])
@pytest.mark.parametrize("kind", ["mixed", "ties", "all alike"])
def test_neighbours_in_the_order_are_alike(
    n: int, dtype: type, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifths of the score; classes within; forth and back: as one sort of all rows has it."""
    monkeypatch.setattr(draws, "_CHUNK", 16)
    rng = np.random.default_rng(n)
    s = {"mixed": rng.random(n), "ties": rng.integers(0, 4, n) / 4, "all alike": np.ones(n)}[kind]
    scores: NDArray[Any] = s.astype(dtype)
    predictions = rng.integers(0, 3, n).astype(np.int8)
    rank = np.argsort(np.argsort(scores, kind="stable"), kind="stable")
    band = rank * 5 // n
    expected = []
    for number in range(5):
        rows = [row for row in range(n) if band[row] == number]
        turn = -1 if number in (1, 3) else 1
        expected += sorted(rows, key=lambda row: (turn * predictions[row], turn * scores[row]))
    parts = list(order_of_likeness(scores, predictions))
    assert np.concatenate(parts).tolist() == expected


@pytest.mark.parametrize("cut", [0, 1, 17, 60])
def test_a_draw_in_parts_is_the_draw(cut: int) -> None:
    """Probabilities and rows are the same if the scores are read in parts."""
    s = forecast(60)
    s[[5, 30, 31]] = 0.5
    for n in (1, 7, 30, 59):
        whole = inclusion_probabilities(s, n)
        rule = inclusion_rule(lambda: (s[:cut], s[cut:]), n)
        assert rule(s) == pytest.approx(whole, rel=1e-12)
        for seed in range(6):
            rngs = [np.random.default_rng(seed) for _ in range(2)]
            numbers = np.random.default_rng(seed).permutation(60)
            parts = [(numbers[:cut], whole[:cut]), (numbers[cut:], whole[cut:])]
            rows = drawn_along(parts, rngs[1])
            assert numbers[drawn(whole, rngs[0])].tolist() == rows.tolist()
