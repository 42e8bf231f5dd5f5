"""Paired differences: against a bootstrap of rows, and how seldom they claim what is not so."""

import math

import numpy as np
import pytest
from scipy.stats import norm, rankdata

from covcal_cli.arrays import Booleans, Float64s
from covcal_cli.evaluate.bins import ConfidenceBlock, bin_edges, confidence_block
from covcal_cli.evaluate.bootstrap import LOSSES, Difference, PairedRows, Resampling

BINS = 15


def drawn(n: int, seed: int) -> tuple[Float64s, Booleans]:
    """Return the log odds of the predicted class, 0 or more, and whether each row is right."""
    rng = np.random.default_rng(seed)
    odds = 2 * np.abs(rng.normal(size=n))
    return odds, rng.random(n) < 1 / (1 + np.exp(-odds))


def judged(odds: Float64s, correct: Booleans, temperature: float) -> ConfidenceBlock:
    """Return what the confidence at a temperature is worth on each row of two classes."""
    confidence = 1 / (1 + np.exp(-odds / temperature))
    of_label = np.where(correct, confidence, 1 - confidence)
    rows = confidence_block(confidence, correct, bin_edges(BINS))
    brier, nll = (1 - of_label) ** 2, -np.log(of_label)
    losses = {"brier": 2 * brier, "nll": nll, "correctness_brier": brier, "correctness_nll": nll}
    return ConfidenceBlock(rows.confidence, rows.correct, rows.index, losses)


def compared(
    odds: Float64s, correct: Booleans, before: float, after: float, *, resamples: int = 300
) -> dict[str, Difference]:
    paired = PairedRows(BINS)
    for part in np.array_split(np.arange(len(odds)), 3):
        first, second = (judged(odds[part], correct[part], one) for one in (before, after))
        paired.add(first, second)
    found = paired.differences("after", "before", Resampling(resamples, 0))
    return {one.metric: one for one in found}


def ece(rows: ConfidenceBlock, chosen: np.ndarray) -> float:
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


@pytest.mark.parametrize(("n", "seen"), [(93, 1), (452, 12), (2000, 19)])
def test_what_is_worse_is_seen_where_there_are_rows_enough(n: int, seen: int) -> None:
    """Twice too sharp: worse by the Brier score in so many of 20 samples, and better in none."""
    directions = [
        compared(*drawn(n, seed), 1.0, 0.5, resamples=100)["brier"].direction for seed in range(20)
    ]
    assert -1 not in directions
    assert directions.count(1) >= seen


@pytest.mark.parametrize("metric", ["ece", "brier", "nll"])
@pytest.mark.campaign
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
    found = paired.differences("after", "before", Resampling(20, 0))
    assert [one.metric for one in found] == list(LOSSES)


def test_the_class_gap_is_that_of_a_bootstrap_of_rows() -> None:
    """Value exactly, ends within the noise of resampling; more classes than cells have none."""
    odds, correct = drawn(600, 1)
    classes = (np.arange(600) * 7 + (odds > 1)) % 4
    sides = judged(odds, correct, 1.0), judged(odds, correct, 0.6)

    def difference(chosen: np.ndarray) -> float:
        of_class, gaps = classes[chosen], [(one.confidence - one.correct)[chosen] for one in sides]
        before, after = (np.abs(np.bincount(of_class, gap, 4)).sum() for gap in gaps)
        return float((after - before) / len(chosen))

    def found(n_classes: int) -> dict[str, Difference]:
        paired = PairedRows(BINS, n_classes)
        paired.add(*sides, classes)
        differences = paired.differences("after", "before", Resampling(1000, 0))
        return {one.metric: one for one in differences}

    one, value = found(4)["class_gap"], difference(np.arange(600))
    assert one.value == pytest.approx(value, rel=1e-9)
    rng = np.random.default_rng(5)
    samples = [difference(rng.integers(600, size=600)) for _ in range(1000)]
    low, high = np.quantile(samples, [0.025, 0.975])
    expected = min(low, 2 * value - high), max(high, 2 * value - low)
    assert (one.low, one.high) == pytest.approx(expected, abs=0.005)
    of_bins = compared(odds, correct, 1.0, 0.6, resamples=1000)["ece"]
    assert found(4)["ece"].low == pytest.approx(of_bins.low, rel=1e-9)
    assert "class_gap" not in found(1000)


class TestAreas:
    """The AUROC of correctness, whose difference needs another order of the rows."""

    def difference(self, n: int, seed: int, noise: float = 0.8) -> tuple[Difference, float]:
        """Return what is said of two noisy orders of the same rows, and the bootstrap's deviation.

        The first has the confidence of the rows' odds, the second that of odds with `noise`.
        """
        odds, correct = drawn(n, seed)
        rng = np.random.default_rng(seed)
        sides = judged(odds, correct, 1.0), judged(odds + noise * rng.normal(size=n), correct, 1.0)
        paired = PairedRows(BINS)
        paired.add(*sides)

        def area(rows: ConfidenceBlock, chosen: np.ndarray) -> float:
            right = rows.correct[chosen]
            ranks = rankdata(rows.confidence[chosen])[right]
            hits, misses = right.sum(), (~right).sum()
            return float((ranks.mean() - (hits + 1) / 2) / misses)

        areas = area(sides[0], np.arange(n)), area(sides[1], np.arange(n))
        one = paired.differences("after", "before", Resampling(10, 0), areas)[-1]
        assert one.value == areas[1] - areas[0]
        samples = [rng.integers(n, size=n) for _ in range(300)]
        resampled = [area(sides[1], chosen) - area(sides[0], chosen) for chosen in samples]
        return one, float(np.std(resampled))

    def test_the_deviation_is_that_of_a_bootstrap_of_rows(self) -> None:
        one, deviation = self.difference(800, 0)
        assert (one.high - one.low) / (2 * 1.96) == pytest.approx(deviation, rel=0.1)
        assert one.metric == "correctness_auroc"

    def test_few_errors_make_the_interval_wide(self) -> None:
        """Confidences are binormal, so the true difference is known."""
        shift, noise, hits = 2.0, 0.5, 0
        true = norm.cdf(shift / math.sqrt(2 * (1 + noise**2))) - norm.cdf(shift / math.sqrt(2))
        for seed in range(150):
            rng = np.random.default_rng(seed)
            correct = np.arange(300) >= 5
            score = shift * correct + rng.normal(size=300)
            both = (score, score + noise * rng.normal(size=300))
            confidences = [norm.cdf(values / 3) for values in both]
            sides = [confidence_block(side, correct, bin_edges(BINS)) for side in confidences]
            paired = PairedRows(BINS, names=("correctness_auroc",))
            paired.add(sides[0], sides[1])
            areas = [float((rankdata(side)[5:].mean() - 148) / 5) for side in confidences]
            (one,) = paired.differences("b", "a", Resampling(10, 0), (areas[0], areas[1]))
            hits += one.low <= true <= one.high
        assert hits >= 135

    def test_less_is_worse(self) -> None:
        """Noise in the confidence costs area; what is better for being higher is called so."""
        one, _ = self.difference(2000, 0, noise=1.5)
        assert one.high < 0
        assert one.direction == 1
        other = Difference("before", "after", one.metric, -one.value, -one.high, -one.low)
        assert other.direction == -1

    def test_no_area_no_difference(self) -> None:
        """Where all rows of one of them are right, with the forecaster's own labels, say."""
        odds, correct = drawn(50, 0)
        paired = PairedRows(BINS)
        paired.add(judged(odds, correct, 1.0), judged(odds, correct, 2.0))
        for areas in ((None, 0.5), (0.5, None)):
            found = paired.differences("after", "before", Resampling(10, 0), areas)
            assert "correctness_auroc" not in [one.metric for one in found]


@pytest.mark.parametrize("errors", [0, 1])
def test_few_errors_prove_no_temperature(errors: int) -> None:
    """Of 50 rows with 97 % confidence, 1 or 2 are wrong: a lower T is not proved to be better."""
    odds = np.full(50, np.log(0.97 / 0.03)) + np.linspace(-0.5, 0.5, 50)
    found = compared(odds, np.arange(50) >= errors, 1.25, 0.6, resamples=1000)
    assert all(found[name].high >= 0 for name in ("ece", "brier", "nll"))
