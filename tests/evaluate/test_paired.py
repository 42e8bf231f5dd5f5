"""Paired differences: against a bootstrap of rows, and how seldom they claim what is not so."""

import numpy as np
import pytest

from covcal_cli.arrays import Booleans, Float64s
from covcal_cli.evaluate.bins import JudgedRows, bin_edges, judged_rows
from covcal_cli.evaluate.paired import Difference, PairedRows

BINS = 15


def drawn(n: int, seed: int) -> tuple[Float64s, Booleans]:
    """Return the log odds of the predicted class, 0 or more, and whether each row is right."""
    rng = np.random.default_rng(seed)
    odds = 2 * np.abs(rng.normal(size=n))
    return odds, rng.random(n) < 1 / (1 + np.exp(-odds))


def judged(odds: Float64s, correct: Booleans, temperature: float) -> JudgedRows:
    """Return what the confidence at a temperature is worth on each row of two classes."""
    confidence = 1 / (1 + np.exp(-odds / temperature))
    of_label = np.where(correct, confidence, 1 - confidence)
    rows = judged_rows(confidence, correct, bin_edges(BINS))
    losses = {"brier": 2 * (1 - of_label) ** 2, "nll": -np.log(of_label)}
    return JudgedRows(rows.confidence, rows.correct, rows.index, losses)


def compared(
    odds: Float64s, correct: Booleans, before: float, after: float, *, resamples: int = 300
) -> dict[str, Difference]:
    paired = PairedRows(BINS)
    for part in np.array_split(np.arange(len(odds)), 3):
        rows = (judged(odds[part], correct[part], one) for one in (before, after))
        paired.add(*rows)
    found = paired.differences("after", "before", resamples=resamples, seed=0)
    return {one.metric: one for one in found}


def ece(rows: JudgedRows, chosen: np.ndarray) -> float:
    gaps = (rows.confidence - rows.correct)[chosen]
    return float(np.abs(np.bincount(rows.index[chosen], gaps, BINS)).sum() / len(chosen))


def test_they_are_those_of_a_bootstrap_of_rows() -> None:
    """Values exactly, and ends within the noise of resampling; the ECE's spans its reflection."""
    odds, correct = drawn(600, 1)
    before, after = judged(odds, correct, 1.0), judged(odds, correct, 0.6)
    found = compared(odds, correct, 1.0, 0.6, resamples=4000)
    rng = np.random.default_rng(5)
    samples = [rng.integers(600, size=600) for _ in range(4000)]
    for metric in ("brier", "nll"):
        rows = after.losses[metric] - before.losses[metric]
        assert found[metric].value == pytest.approx(rows.mean(), rel=1e-9)
        means = [rows[chosen].mean() for chosen in samples]
        ends = np.quantile(means, [0.025, 0.975])
        assert (found[metric].low, found[metric].high) == pytest.approx(
            tuple(ends), abs=0.06 * np.ptp(ends)
        )
    value = ece(after, np.arange(600)) - ece(before, np.arange(600))
    assert found["ece"].value == pytest.approx(value, rel=1e-9)
    low, high = np.quantile(
        [ece(after, chosen) - ece(before, chosen) for chosen in samples], [0.025, 0.975]
    )
    expected = (min(low, 2 * value - high), max(high, 2 * value - low))
    assert (found["ece"].low, found["ece"].high) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize(("n", "seen"), [(93, 5), (452, 25), (2000, 38)])
def test_what_is_worse_is_seen_where_there_are_rows_enough(n: int, seen: int) -> None:
    """Twice too sharp: worse by the Brier score in so many of 40 samples, and better in none."""
    directions = [compared(*drawn(n, seed), 1.0, 0.5)["brier"].direction for seed in range(40)]
    assert -1 not in directions
    assert directions.count(1) >= seen


@pytest.mark.parametrize("metric", ["ece", "brier", "nll"])
def test_false_claims_are_rare(metric: str) -> None:
    """Of two temperatures that are equally far off, neither is called better than 5 in 100."""
    truth_odds, truth_correct = drawn(200_000, 1000)
    # The temperature above 1 whose score is that of 0.8.
    wanted = judged(truth_odds, truth_correct, 0.8)
    grid = np.linspace(1.05, 1.6, 23)
    if metric == "ece":
        everything = np.arange(len(truth_odds))
        found = [ece(judged(truth_odds, truth_correct, one), everything) for one in grid]
        score = ece(wanted, everything)
    else:
        found = [judged(truth_odds, truth_correct, one).losses[metric].mean() for one in grid]
        score = float(wanted.losses[metric].mean())
    equal = float(grid[np.abs(np.array(found) - score).argmin()])
    claims = [
        compared(*drawn(400, seed), 0.8, equal, resamples=150)[metric].direction != 0
        for seed in range(200)
    ]
    assert np.mean(claims) <= 0.08  # 5 % and three standard errors of 200 samples


def test_the_same_calibration_twice_differs_by_nothing() -> None:
    """No difference has no width."""
    for one in compared(*drawn(300, 0), 1.3, 1.3).values():
        assert (one.value, one.low, one.high, one.direction) == (0, 0, 0, 0)


def test_too_many_bins_for_joint_counts() -> None:
    """The ECE has no paired difference then; the losses have."""
    odds, correct = drawn(50, 0)
    paired = PairedRows(10_000)
    paired.add(judged(odds, correct, 1.0), judged(odds, correct, 2.0))
    found = paired.differences("after", "before", resamples=20, seed=0)
    assert [one.metric for one in found] == ["brier", "nll"]
