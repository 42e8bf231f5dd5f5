"""Intervals: that they cover the truth as often as they say, and what they are made of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from covcal_cli.arrays import Float64s
from covcal_cli.evaluate.bins import Bins, ValueCells, over, under
from covcal_cli.evaluate.bootstrap import (
    Resampling,
    _shares_as_far,
    ece_interval,
    hypothetical_losses,
    intervals,
    mean_interval,
    ranks_interval,
)
from covcal_cli.evaluate.metrics import LabelledRows, Metrics, MetricsAccumulator
from covcal_cli.evaluate.ranked import Auroc, areas
from covcal_cli.maths.odds import interval_of_counts, wilson
from covcal_cli.maths.softmax import class_major, softmax
from tests.evaluate.made_bins import ranked

BINS, REPEATS = 15, 100


@dataclass(frozen=True)
class World:
    """A forecaster of known calibration: confidences, and how likely each is right."""

    draw: Callable[[np.random.Generator, int], Float64s]
    accuracy: Callable[[Float64s], Float64s]

    def sample(self, n: int, seed: int) -> Bins:
        """Return a sample in bins."""
        rng = np.random.default_rng(seed)
        confidence = self.draw(rng, n)
        correct = rng.random(n) < self.accuracy(confidence)
        return binned(confidence, correct)

    def errors(self) -> tuple[float, float, float]:
        """Return the true ECE and both its parts, of the very bins."""
        confidence = self.draw(np.random.default_rng(99), 300_000)
        index = np.ceil(confidence * BINS).astype(int) - 1
        gap = np.bincount(index, confidence - self.accuracy(confidence), BINS) / len(confidence)
        return float(np.abs(gap).sum()), float(gap[gap > 0].sum()), float(-gap[gap < 0].sum())


def binned(confidence: Float64s, correct: NDArray[Any]) -> Bins:
    index = np.ceil(confidence * BINS).astype(int) - 1
    hits = np.bincount(index, correct, BINS).astype(int)
    sums = np.bincount(index, confidence, BINS).astype(np.float64)
    return Bins(np.bincount(index, minlength=BINS), hits, sums)


def skewed(rng: np.random.Generator, n: int) -> Float64s:
    return np.asarray(0.1 + 0.9 * rng.beta(5, 1.2, size=n))


def mostly_sure(rng: np.random.Generator, size: int) -> Float64s:
    return np.where(rng.random(size) < 0.08, 0.55 + 0.44 * rng.random(size), 0.9995)


THIN = World(mostly_sure, lambda c: np.where(c < 0.999, c - 0.05, c))
CALIBRATED = World(skewed, lambda c: c)
OVERCONFIDENT = World(skewed, lambda c: c - 0.05)
MIXED = World(skewed, lambda c: np.clip(c - 0.3 * (c - 0.7), 0, 1))


def covered(
    world: World,
    n: int,
    truth: float,
    part: Callable[[Float64s], Float64s] = np.abs,
    repeats: int = REPEATS,
) -> float:
    """Return the share of samples whose 95 % interval holds the true value."""
    inside = 0
    for seed in range(repeats):
        low, high = ece_interval(world.sample(n, seed), Resampling(120, seed), part=part)
        inside += low <= truth <= high
    return inside / repeats


class TestCoverage:
    """100 samples each; the nominal 95 % within 4 points."""

    def test_calibrated(self) -> None:
        """The true ECE of a calibrated forecaster, 0, is inside in 95 % of the samples."""
        assert CALIBRATED.errors() == (0, 0, 0)
        assert covered(CALIBRATED, 2000, 0.0) == pytest.approx(0.95, abs=0.04)

    @pytest.mark.parametrize("n", [60, 1000])
    def test_a_gate_at_zero(self, n: int) -> None:
        """`--fail-above ece=0` fails in 5 % of calibrated samples at most, less chance of 60."""
        beyond = 0
        for seed in range(60):
            sample = CALIBRATED.sample(n, seed)
            beyond += ece_interval(sample, Resampling(100, seed))[0] > 0
        assert beyond <= 60 * 0.05 + 2 * np.sqrt(60 * 0.05 * 0.95)

    def test_overconfident_everywhere(self) -> None:
        """A known ECE of 5 %, every bin over-confident."""
        truth = OVERCONFIDENT.errors()[0]
        assert truth == pytest.approx(0.05)
        assert covered(OVERCONFIDENT, 5000, truth) == pytest.approx(0.95, abs=0.04)

    @pytest.mark.parametrize(("number", "part"), [(0, np.abs), (1, over), (2, under)])
    def test_over_in_some_bins_and_under_in_others(
        self, number: int, part: Callable[[Float64s], Float64s]
    ) -> None:
        """Mixed signs: the ECE and either part are covered at least as often as promised."""
        truth = MIXED.errors()[number]
        assert truth > 0.005
        assert covered(MIXED, 5000, truth, part, repeats=40) >= 0.92

    def test_gaps_in_bins_with_few_rows(self) -> None:
        """One bin has nearly all rows, and no gap in any other bin is significant alone."""
        truth = THIN.errors()[0]
        assert 0.003 < truth < 0.005
        assert covered(THIN, 10_000, truth, repeats=40) >= 0.92

    def test_percentiles_would_never_cover(self) -> None:
        """Why not percentiles of resampled ECEs: of a calibrated forecaster none comes near 0."""
        sample = CALIBRATED.sample(2000, 0)
        shares = sample.hits / np.maximum(sample.counts, 1)
        drawn = np.random.default_rng(0).binomial(sample.counts, shares, (500, BINS))
        resampled = np.abs(sample.confidence_sums - drawn).sum(axis=1) / 2000
        assert np.quantile(resampled, 0.025) > 0.005
        assert ece_interval(sample, Resampling(500, 0))[0] == 0


class TestEceInterval:
    def test_more_rows_narrow_it(self) -> None:
        """A hundred times as many rows: about a tenth of the width, around the truth."""
        few, many = (
            ece_interval(OVERCONFIDENT.sample(n, 1), Resampling(400, 0)) for n in (1000, 100_000)
        )
        assert 6 < (few[1] - few[0]) / (many[1] - many[0]) < 16
        assert many[0] < 0.05 < many[1]

    def test_one_row_and_empty_bins(self) -> None:
        """A single row says next to nothing, and does not fail."""
        low, high = ece_interval(binned(np.array([0.95]), np.array([True])), Resampling(50, 0))
        assert low == 0
        assert high > 0.3

    @pytest.mark.parametrize("part", [np.abs, over, under])
    def test_a_few_rows_that_are_far_off(self, part: Callable[[Float64s], Float64s]) -> None:
        """No bin can be further off, so the interval must not end below the ECE that was found."""
        for seed in range(10):
            confidence = np.random.default_rng(seed).uniform(0.1, 0.9, 11)
            bins = binned(confidence, confidence < 0.5)
            found = float(part((bins.confidence_sums - bins.hits) / bins.n).sum())
            low, high = ece_interval(bins, Resampling(100, 0), part=part)
            assert low - 1e-12 <= found <= high + 1e-12

    def test_all_wrong_and_sure(self) -> None:
        """Always wrong at 99 % is an ECE of about 99 %, beyond doubt, and never above 1."""
        sample = binned(np.full(500, 0.99), np.zeros(500, bool))
        low, high = ece_interval(sample, Resampling(200, 0))
        assert 0.95 < low <= high <= 1
        assert ece_interval(sample, Resampling(200, 0), part=under)[1] < 0.05

    def test_seeds(self) -> None:
        """Equal seeds give equal intervals; another seed moves them a little."""
        sample = OVERCONFIDENT.sample(1000, 0)
        first, again, other = (ece_interval(sample, Resampling(300, seed)) for seed in (0, 0, 1))
        assert first == again
        assert other != first
        assert other == pytest.approx(first, abs=0.01)


class TestMeans:
    @pytest.mark.parametrize(("hits", "n"), [(0, 20), (20, 20), (7, 20), (812, 1000)])
    def test_wilson_equals_scipy(self, hits: int, n: int) -> None:
        """The accuracy's interval is SciPy's; it has a width when all rows are right."""
        expected = stats.binomtest(hits, n).proportion_ci(method="wilson")
        assert wilson(hits / n, n, 0.95) == pytest.approx((expected.low, expected.high), abs=1e-9)

    @pytest.mark.parametrize("groups", [1, 10, 1000])
    def test_a_share_at_its_limit_fails_as_seldom_as_its_level_says(self, groups: int) -> None:
        """Of any share, also near 0 and 1: Wilson's end missed .99 of 10 rows 200 times too often.

        Where hits or misses are few, the ends are SciPy's exact ones.
        """
        level = 1 - 0.05 / groups
        for n, share in ((10, 0.99), (30, 0.05), (60, 0.98), (300, 0.999)):
            hits = np.arange(n + 1)
            ends = np.array([interval_of_counts(int(count), n, level) for count in hits])
            outside = (ends[:, 1] < share) | (ends[:, 0] > share)
            assert groups * stats.binom.pmf(hits[outside], n, share).sum() <= 0.05
        for count, n in ((0, 7), (3, 50), (49, 50), (7, 10**7)):
            exact = stats.binomtest(count, n).proportion_ci(level, method="exact")
            expected = pytest.approx((exact.low, exact.high), rel=1e-5, abs=1e-12)
            assert interval_of_counts(count, n, level) == expected

    def test_rows_without_errors_do_not_prove_a_mean(self) -> None:
        """Rows that are right in 97 % show no error in 1 of 5 samples: the mean is inside still."""
        rng, held = np.random.default_rng(0), 0
        for _ in range(40):
            confidence = np.full(60, 0.97)
            correct = rng.random(60) < confidence
            rows = binned(confidence, correct)
            values = np.where(correct, -np.log(0.97), -np.log(0.03))
            cells = ValueCells()
            cells.add(values)
            more = hypothetical_losses("nll", rows)
            low, high = mean_interval(*cells.filled(), Resampling(300, 0), more)
            held += low <= -0.97 * np.log(0.97) - 0.03 * np.log(0.03) <= high
        assert held >= 37

    def test_cells_equal_a_bootstrap_of_rows(self) -> None:
        """Resampling cells gives the same percentiles as resampling the rows one by one."""
        rng = np.random.default_rng(0)
        losses = rng.exponential(size=800) ** 2
        cells = ValueCells()
        for part in np.array_split(losses, 3):
            cells.add(part)
        counts, values = cells.filled()
        assert counts.sum() == 800
        assert counts @ values / 800 == pytest.approx(losses.mean(), rel=1e-12)
        found = mean_interval(counts, values, Resampling(20_000, 1))
        means = losses[rng.integers(800, size=(4000, 800))].mean(axis=1)
        width = np.quantile(means, 0.975) - np.quantile(means, 0.025)
        assert found == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.05 * width)

    def test_resamples_in_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """However many resamples are drawn at once, the interval is the same."""
        counts, values = np.array([5, 10, 7]), np.array([0.0, 1.0, 4.0])
        whole = mean_interval(counts, values, Resampling(100, 0))
        monkeypatch.setattr("covcal_cli.evaluate.bootstrap.MAX_DRAWS", 21)
        pieces = mean_interval(counts, values, Resampling(100, 0))
        assert pieces == whole

    def test_values_of_either_sign(self) -> None:
        """Every cell has values of one sign and size, so the mean of a difference is resampled."""
        cells = ValueCells()
        cells.add(np.array([0.0, -1e-17, 700.0, -0.25, 0.25, -0.25]))
        counts, values = cells.filled()
        assert counts.tolist() == [1, 1, 1, 1, 2]
        assert values == pytest.approx([0, 0.25, 700, 0, -0.25])


def made_metrics(n: int, seed: int = 0) -> Metrics:
    rng = np.random.default_rng(seed)
    truth = 2 * rng.normal(size=(n, 5))
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
    accumulator = MetricsAccumulator(BINS, 5, keep_losses=True)
    accumulator.add(
        softmax(class_major(1.5 * truth), 1.0), LabelledRows(truth.argmax(axis=1), labels)
    )
    return accumulator.result()


def test_every_interval_is_around_its_metric() -> None:
    """Names, order of the ends, and for means the value inside."""
    metrics = made_metrics(3000)
    found = intervals(metrics, Resampling(300, 0))
    assert list(found) == [
        "accuracy",
        "correctness_auroc",
        "mean_confidence",
        "nll",
        "brier",
        "correctness_brier",
        "correctness_nll",
        "ece",
        "over_ece",
        "under_ece",
        "adaptive_ece",
        "class_gap",
    ]
    for name, (low, high) in found.items():
        assert low <= high
        if name not in ("under_ece", "adaptive_ece"):
            assert low < getattr(metrics, name) < high, name
    assert found["adaptive_ece"] == pytest.approx(found["ece"], abs=0.02)
    assert found["under_ece"][0] == 0


@pytest.mark.parametrize("n", [40, 300, 3000])
def test_no_part_exceeds_the_whole(n: int) -> None:
    """No part's interval begins above, or ends above, the interval of the whole ECE.

    Intervals are only widened to agree, so each contains its original interval.
    """
    widened = 0
    for seed in range(4):
        metrics = made_metrics(n, seed)
        found = intervals(metrics, Resampling(60, seed))
        for name, part in (("ece", np.abs), ("over_ece", over), ("under_ece", under)):
            alone = ece_interval(metrics.bins, Resampling(60, seed), part=part)
            assert found[name][0] <= alone[0] <= alone[1] <= found[name][1]
            assert found[name][0] <= found["ece"][0]
            assert found[name][1] <= found["ece"][1]
            widened += found[name] != alone
    assert widened > 0


def test_means_are_covered() -> None:
    """The intervals of NLL and Brier hold the values of a very large sample in at least 85 %."""
    truth = made_metrics(50_000, seed=1000)
    inside = {"nll": 0, "brier": 0}
    for seed in range(60):
        metrics = made_metrics(300, seed)
        for name in inside:
            cells = metrics.losses[name].filled()
            low, high = mean_interval(*cells, Resampling(100, seed))
            inside[name] += low <= getattr(truth, name) <= high
    assert all(51 <= count <= 60 for count in inside.values()), inside


class TestRanks:
    """The AUROC of correctness."""

    @pytest.mark.parametrize("n", [50, 500])
    @pytest.mark.parametrize("decimals", [1, 9])
    def test_covers(self, n: int, decimals: int) -> None:
        """The value of a very large sample is inside in 95 % of 200 samples, with ties too."""

        def area(rows: int, seed: int) -> Auroc:
            rng = np.random.default_rng(seed)
            confidence = np.round(skewed(rng, rows), decimals)
            found = areas(ranked(confidence, rng.random(rows) < confidence)).auroc
            assert found is not None
            return found

        truth = area(200_000, 1000).value
        ends = [ranks_interval(area(n, seed)) for seed in range(200)]
        inside = np.mean([low <= truth <= high for low, high in ends])
        assert 0.91 <= inside <= (1.0 if n == 50 else 0.99)  # more than 95 % with few wrong rows

    def test_few_wrong_rows_have_no_variance(self) -> None:
        """The AUROC of 1 to 3 wrong rows of 60 is inside in nearly all samples, not in half."""
        inside = []
        for seed in range(100):
            rng = np.random.default_rng(seed)
            is_right = np.arange(60) >= 1 + seed % 3
            score = np.clip(0.5 + 0.1 * (rng.normal(size=60) + is_right), 0, 1)
            area = areas(ranked(score, is_right)).auroc
            assert area is not None
            low, high = ranks_interval(area)
            inside.append(low <= stats.norm.cdf(0.5**0.5) <= high)
        assert np.mean(inside) >= 0.93

    def test_a_perfect_order_keeps_a_width(self) -> None:
        """Two wrong rows below all others are little evidence."""
        is_right = np.arange(502) >= 2
        area = areas(ranked(0.1 + 0.8 * is_right, is_right)).auroc
        assert area is not None
        low, high = ranks_interval(area)
        assert (low, high) == wilson(1.0, 2, 0.95)
        assert low < 0.4

    def test_no_order_has_no_interval(self) -> None:
        """Where all rows are right."""
        accumulator = MetricsAccumulator(BINS, 2, keep_losses=True)
        accumulator.add(
            softmax(class_major(np.eye(2)), 1.0), LabelledRows(np.arange(2), np.arange(2))
        )
        assert "correctness_auroc" not in intervals(accumulator.result(), Resampling(10, 0))


@pytest.mark.parametrize(("classes", "n", "gap"), [(3, 200, 0.1), (40, 1000, 0.0)])
def test_the_class_gap_is_covered(classes: int, n: int, gap: float) -> None:
    """In 95 % of 50 samples, less three standard errors; what is found is more than the truth."""
    true, inside, noise = gap * (classes // 2 / classes), 0, 0.0
    for seed in range(50):
        rng = np.random.default_rng(seed)
        judged, confidence = rng.integers(classes, size=n), skewed(rng, n)
        correct = rng.random(n) < np.clip(confidence - gap * (judged % 2), 0, 1)
        rows, hits = (np.bincount(one, minlength=classes) for one in (judged, judged[correct]))
        bins = Bins(rows, hits, np.bincount(judged, confidence, classes).astype(np.float64))
        low, high = ece_interval(bins, Resampling(120, seed))
        inside += low <= true <= high
        noise += bins.ece() - true
    assert inside >= 43
    assert noise > 0


def sharp(rng: np.random.Generator, n: int) -> Float64s:
    return np.asarray(np.clip(rng.beta(20, 0.5, size=n), 0.2, 0.9999))


class TestMeanGap:
    """The gap of mean confidence and accuracy, which no ECE is below (Jensen)."""

    @pytest.mark.parametrize(
        ("world", "n"),
        [
            (World(skewed, lambda c: c - 0.15), 200),
            (World(skewed, lambda c: c - 0.05), 2000),
            (World(sharp, lambda c: c - 0.05), 2000),
        ],
    )
    def test_no_lower_end_is_below_its_own(self, world: World, n: int) -> None:
        """The normal interval of the rows' confidence - correct, with half the error rate."""
        above = 0
        for seed in range(30):
            rng = np.random.default_rng(seed)
            confidence = world.draw(rng, n)
            correct = rng.random(n) < world.accuracy(confidence)
            gaps = confidence - correct
            least = max(0.0, abs(gaps.mean()) - 2.2414 * gaps.std() / np.sqrt(n))
            low, high = ece_interval(binned(confidence, correct), Resampling(100, seed))
            assert low >= least - 0.002
            assert low <= high
            above += least > 0
        assert above > 15  # so that there was something to see

    def test_it_counts_for_the_part_on_its_side_alone(self) -> None:
        """A world that promises too much has no lower end of too little."""
        sample = World(skewed, lambda c: c - 0.15).sample(500, 0)
        low = {
            part.__name__: ece_interval(sample, Resampling(100, 0), part=part)[0]
            for part in (over, under)
        }
        assert low["over"] > 0.05
        assert low["under"] == 0

    @pytest.mark.parametrize("draw", [skewed, sharp])
    @pytest.mark.parametrize("n", [56, 2000])
    def test_it_does_not_cost_the_coverage_of_calibrated_forecasters(
        self, draw: Callable[[np.random.Generator, int], Float64s], n: int
    ) -> None:
        """0 stays in the interval, with few rows per bin too; all right is no fault."""
        assert covered(World(draw, lambda c: c), n, 0.0, repeats=40) >= 0.85

    @pytest.mark.parametrize("n", [56, 2000])
    def test_it_does_not_cost_the_coverage_of_others(self, n: int) -> None:
        """Over-confident by 5 points, of which the mean gap is the whole."""
        assert covered(OVERCONFIDENT, n, 0.05, repeats=40) >= 0.92


def test_levels() -> None:
    """A higher level holds a lower one's interval, and Wilson's is SciPy's at any."""
    metrics = made_metrics(400)
    narrow, wide = (intervals(metrics, Resampling(400, 0, level)) for level in (0.8, 0.99))
    for name, (low, high) in narrow.items():
        assert wide[name][0] <= low <= high <= wide[name][1], name
    expected = stats.binomtest(7, 20).proportion_ci(0.8, method="wilson")
    assert wilson(7 / 20, 20, 0.8) == pytest.approx((expected.low, expected.high), abs=1e-9)


@pytest.mark.parametrize(("standard_errors", "is_proved"), [(2.0, False), (2.6, True)])
def test_two_tests_share_the_error_rate_of_an_ece_above_0(
    standard_errors: float, is_proved: bool
) -> None:
    """Each has 2.5 %: a gap of 2 standard errors (4.6 %) proves nothing, of 2.6 (0.9 %) it does."""
    n, error = 10_000, 0.005  # of a share of one half
    hits = round(n * (0.5 - standard_errors * error))
    bins = Bins(*(np.array([value]) for value in (n, 0.5 * n, hits)))
    low, high = ece_interval(bins, Resampling(1000, 0))
    assert (low > 0) == is_proved
    assert low <= standard_errors * error <= high


@pytest.mark.parametrize(("standard_errors", "is_kept"), [(1.9, False), (2.1, True)])
def test_only_gaps_beyond_two_standard_errors_are_kept(
    standard_errors: float, is_kept: bool
) -> None:
    """The noise of a kept under-confident bin does not count for over-confident bins."""
    n, error = 10_000, 0.005  # of a share of one half
    confidence = 0.5 - standard_errors * error
    bins = Bins(np.array([n]), np.array([n // 2]), np.array([n * confidence]))
    _, high = ece_interval(bins, Resampling(200, 0), part=over)
    assert (high == 0) == is_kept


def test_ends_far_out_are_found_as_well() -> None:
    """At 99.99 % an interval reaches 3.89 standard errors to either side."""
    n, error = 10_000, 0.005
    bins = Bins(np.array([n]), np.array([n // 2]), np.array([0.6 * n]))
    ends = ece_interval(bins, Resampling(50_000, 0, 0.9999))
    assert ends == pytest.approx((0.1 - 3.89 * error, 0.1 + 3.89 * error), abs=0.0015)


def test_draws_are_as_far_as_the_value_from_their_median() -> None:
    """The mean of skewed draws, here 2, is no middle: all would be as far from it as 4."""
    assert _shares_as_far(np.array([[0.0, 0.0, 0.0, 0.0, 10.0]]), 4.0) == pytest.approx(0.2)
