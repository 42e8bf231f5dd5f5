"""Adaptive, class-wise, debiased and smooth ECE, AURC and AUROC: against loops."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from covcal_cli.arrays import Booleans, Float64s, Labels
from covcal_cli.evaluate.bins import ClasswiseBins, debiased_ece
from covcal_cli.evaluate.ranked import (
    RowCollector,
    adaptive_bins,
    areas,
    confidence_of,
    correct_of,
    smooth_ece,
)
from tests.evaluate.made_bins import binned, ranked

KINDS = ("spread", "ties", "sure")


def made_rows(kind: str, n: int, seed: int = 0, gap: float = 0.06) -> tuple[Float64s, Booleans]:
    """Return confidences (float32 values) and correctness of an over-confident forecaster."""
    rng = np.random.default_rng([seed, n])
    confidence = rng.beta(5, 1.2, size=n)
    if kind == "ties":
        confidence = np.round(confidence, 1)
    if kind == "sure":
        confidence[: n // 3] = 1.0
    confidence = confidence.astype(np.float32).astype(np.float64)
    return confidence, rng.random(n) < np.clip(confidence - gap, 0, 1)


def in_block(probabilities: Float64s, labels: Labels) -> tuple[Float64s, Labels, Float64s, float]:
    """Return probabilities, (K, m), labels, their probabilities, and the sum of all squares."""
    of_labels = probabilities[labels, np.arange(len(labels))]
    return probabilities, labels, of_labels, float((probabilities**2).sum())


class TestRankedRows:
    @pytest.mark.parametrize("kind", KINDS)
    def test_rows_by_ascending_confidence(self, kind: str) -> None:
        """Blocks in any order come back sorted, each confidence with its correctness."""
        confidence, correct = made_rows(kind, 1000)
        collector = RowCollector()
        for part in (slice(700, 1000), slice(0, 0), slice(0, 700)):
            collector.add(confidence[part], correct[part])
        rows = collector.ranked()
        expected = sorted(zip(confidence.tolist(), correct.tolist(), strict=True))
        found = zip(
            confidence_of(rows.keys).tolist(),
            correct_of(rows.keys).tolist(),
            strict=True,
        )
        assert list(found) == expected

    @pytest.mark.parametrize("kind", KINDS)
    def test_sums_between_values(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Rows are cut at values, and runs summed, however many are looked at together."""
        monkeypatch.setattr("covcal_cli.evaluate.ranked._CHUNK", 7)
        confidence, correct = made_rows(kind, 500)
        rows = ranked(confidence, correct)
        values = np.array([0.0, 0.3, 0.7, 0.8, 0.9])
        starts = rows.starts_of(values)
        assert starts.tolist() == [int((confidence < value).sum()) for value in values]
        starts = np.unique(starts)
        sums, hits = rows.sums_from(starts)
        order = np.lexsort((correct, confidence))
        for number, part in enumerate(np.split(order, starts[1:])):
            assert sums[number] == pytest.approx(confidence[part].sum())
            assert hits[number] == correct[part].sum()

    def test_zero_one_and_the_smallest_number(self) -> None:
        """The ends of the interval, -0.0 and subnormal numbers keep their value."""
        values = np.array([1.0, -0.0, 1e-45, 0.0], dtype=np.float32)
        found = ranked(values, np.array([True, True, False, False]))
        assert confidence_of(found.keys).tolist() == [0.0, 0.0, float(np.float32(1e-45)), 1.0]


class TestAdaptiveBins:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(("n", "bins"), [(1, 15), (14, 15), (15, 15), (500, 15), (1001, 7)])
    def test_equals_a_loop_over_quantiles(self, kind: str, n: int, bins: int) -> None:
        """Bins start at NumPy's quantiles of the confidences; each row is in the last that fits."""
        confidence, correct = made_rows(kind, n)
        starts = [np.quantile(confidence, number / bins) for number in range(1, bins)]
        inside: dict[int, list[float]] = {}
        for value, hit in zip(confidence.tolist(), correct.tolist(), strict=True):
            number = sum(value >= start for start in starts)
            inside.setdefault(number, []).append(value - hit)
        expected = sum(abs(math.fsum(gaps)) for gaps in inside.values()) / n
        found = adaptive_bins(ranked(confidence, correct), bins)
        assert found.ece() == pytest.approx(expected, abs=1e-12)
        assert int(found.counts.sum()) == n
        assert int(found.hits.sum()) == correct.sum()

    def test_bins_hold_about_as_many_rows(self) -> None:
        """Without ties the sizes differ by one at most."""
        found = adaptive_bins(ranked(*made_rows("spread", 998)), 15)
        assert set(found.counts.tolist()) <= {66, 67}

    def test_no_rows(self) -> None:
        """Nothing to cut is an error, not 0."""
        for measure in (lambda rows: adaptive_bins(rows, 15), smooth_ece, areas):
            with pytest.raises(ValueError, match="no rows"):
                measure(ranked(np.empty(0), np.empty(0, bool)))


class TestClasswise:
    @pytest.mark.parametrize("bins", [1, 2, 15, 40])
    def test_equals_a_loop_over_classes_and_bins(self, bins: int) -> None:
        """Every class's probability against the share of rows of that class, bin by bin."""
        rng = np.random.default_rng(0)
        probabilities = rng.dirichlet([0.4, 0.3, 0.5, 0.2], size=400).T
        labels = rng.integers(4, size=400)
        total = 0.0
        for number, row in enumerate(probabilities):
            for low in range(bins):
                inside = (row > low / bins) & (row <= (low + 1) / bins)
                if low == 0:
                    inside |= row == 0
                total += abs(row[inside].sum() - (labels[inside] == number).sum()) / 400
        counted = ClasswiseBins(bins, 4)
        for part in (slice(0, 150), slice(150, 400)):
            counted.add(*in_block(probabilities[:, part], labels[part]))
        assert counted.ece() == pytest.approx(total / 4, abs=1e-12)
        assert counted.ece_by_class().shape == (4,)

    @pytest.mark.parametrize("bins", [1, 3, 15, 49])
    def test_every_edge_belongs_to_the_bin_below(self, bins: int) -> None:
        """0, 1 and every edge, with a wrong row each: each bin's gap has its own probabilities."""
        edges = np.arange(bins + 1) / bins
        probabilities = np.stack([edges, np.zeros(bins + 1)])
        labels = np.zeros(bins + 1, dtype=np.int64)
        counted = ClasswiseBins(bins, 2)
        counted.add(*in_block(probabilities, labels))
        # Every bin contains its upper edge, and the first bin also 0.
        gaps = np.abs(edges[1:] - 1)
        gaps[0] = abs(edges[1] - 2)
        assert counted.ece_by_class() == pytest.approx([gaps.sum() / (bins + 1), 0])

    def test_no_rows(self) -> None:
        """Nothing counted is an error, not 0."""
        with pytest.raises(ValueError, match="no rows"):
            ClasswiseBins(15, 3).ece()


def mean_magnitude(mean: float, deviation: float) -> float:
    """Return E|X| of a normal X, by numerical integration on both sides of 0."""
    low, high = mean - 9 * deviation, mean + 9 * deviation
    middle = min(max(0.0, low), high)
    return sum(
        float(integrate.quad(lambda x: abs(x) * stats.norm.pdf(x, mean, deviation), *part)[0])
        for part in ((low, middle), (middle, high))
    )


class TestDebiased:
    def test_equals_quadrature(self) -> None:
        """2 ECE - E[ECE*], the expectation by numerical integration over each bin's normal."""
        confidence, correct = made_rows("spread", 800)
        bins = binned(confidence, correct)
        expected = 2 * bins.ece()
        for count, accuracy, mean in zip(bins.counts, bins.accuracy, bins.confidence, strict=True):
            if count == 0:
                continue
            deviation = math.sqrt(accuracy * (1 - accuracy) / count)
            if deviation == 0:
                expected -= count / 800 * abs(mean - accuracy)
                continue
            expected -= count / 800 * mean_magnitude(mean - accuracy, deviation)
        found = debiased_ece(bins)
        assert found == pytest.approx(expected, abs=1e-9)
        assert found < bins.ece()

    def test_chance_alone_is_about_nothing(self) -> None:
        """Over samples of a calibrated forecaster its mean is well below that of the ECE."""
        plain, debiased = [], []
        for seed in range(60):
            bins = binned(*made_rows("spread", 500, seed=seed, gap=0.0))
            plain.append(bins.ece())
            debiased.append(debiased_ece(bins))
        assert np.mean(debiased) < 0.65 * np.mean(plain)
        assert min(debiased) < 0

    def test_no_rows(self) -> None:
        """Nothing counted is an error, not 0."""
        empty = binned(np.empty(0), np.empty(0, bool))
        with pytest.raises(ValueError, match="no rows"):
            debiased_ece(empty)


def smooth_by_definition(confidence: Float64s, correct: Booleans, bandwidth: float) -> float:
    """Return the integral of |mean residual under the reflected Gaussian|, row by row."""
    t = (np.arange(1000) + 0.5) / 1000
    total = np.zeros_like(t)
    for value, hit in zip(confidence.tolist(), correct.tolist(), strict=True):
        for centre in (value, -value, 2 - value):
            total += (value - hit) * stats.norm.pdf(t, centre, bandwidth)
    return float(np.abs(total / len(confidence)).mean())


class TestSmoothECE:
    @pytest.mark.parametrize("kind", KINDS)
    def test_equals_the_definition_at_its_own_bandwidth(self, kind: str) -> None:
        """The fixed point: at the bandwidth s = smECE the plain integral gives s again."""
        confidence, correct = made_rows(kind, 400, gap=0.08)
        found = smooth_ece(ranked(confidence, correct))
        assert smooth_by_definition(confidence, correct, found) == pytest.approx(found, abs=1.5e-3)

    def test_rows_at_the_ends_count_whole(self) -> None:
        """Rows of confidence 1, 0.9999 and 0.9996 weigh the same beside rows in the middle."""
        middle, hits = np.full(300, 0.5), np.arange(300) < 150
        right = np.arange(300) < 200
        values = [
            smooth_ece(ranked(np.append(middle, np.full(300, sure)), np.append(hits, right)))
            for sure in (1.0, 0.9999, 0.9996)
        ]
        assert values == pytest.approx([values[-1]] * 3, abs=2e-3)
        expected = smooth_by_definition(
            np.append(middle, np.ones(300)), np.append(hits, right), values[0]
        )
        assert values[0] == pytest.approx(expected, abs=1.5e-3)

    def test_many_rows_equal_few(self) -> None:
        """Rows gathered in cells, above 65 536, give what the rows themselves give."""
        confidence, correct = made_rows("spread", 50_000, gap=0.004)
        few = smooth_ece(ranked(confidence, correct))
        many = smooth_ece(ranked(np.tile(confidence, 2), np.tile(correct, 2)))
        assert many == pytest.approx(few, abs=2e-6)

    @pytest.mark.parametrize("value", [0.0, 1.0])
    def test_sure_and_always_wrong_or_right(self, value: float) -> None:
        """The ends are counted: certain and wrong is near 1, certain and right is 0."""
        confidence = np.full(50, value)
        right = np.full(50, value == 1.0)
        assert smooth_ece(ranked(confidence, right)) == pytest.approx(0, abs=1e-9)
        assert smooth_ece(ranked(confidence, ~right)) > 0.9


def aurc_by_shuffling(confidence: Float64s, correct: Booleans, orders: int) -> float:
    """Return the mean AURC over random orders of equally confident rows."""
    rng = np.random.default_rng(1)
    areas = []
    for _ in range(orders):
        order = np.lexsort((rng.random(len(confidence)), -confidence))
        errors = np.cumsum(~correct[order])
        areas.append((errors / np.arange(1, len(errors) + 1)).mean())
    return float(np.mean(areas))


class TestAUROC:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("chunk", [7, 1 << 16])
    def test_equals_all_pairs(self, monkeypatch: pytest.MonkeyPatch, kind: str, chunk: int) -> None:
        """Ties count half; the variance is that of the placements, however rows are cut."""
        monkeypatch.setattr("covcal_cli.evaluate.ranked._CHUNK", chunk)
        confidence, correct = made_rows(kind, 400)
        hits, misses = confidence[correct][:, None], confidence[~correct]
        pairs = (hits > misses) + (hits == misses) / 2
        variance = sum(
            float(np.var(pairs.mean(axis=axis), ddof=1)) / pairs.shape[1 - axis] for axis in (0, 1)
        )
        found = areas(ranked(confidence, correct)).auroc
        assert found is not None
        assert (found.right, found.wrong) == pairs.shape
        assert found.value == pytest.approx(float(pairs.mean()), abs=1e-12)
        assert found.variance == pytest.approx(variance, rel=1e-9)

    def test_the_ends(self) -> None:
        """Perfect order is 1, the reverse 0, no order a half."""
        confidence = np.linspace(0.1, 0.9, 40)
        for values, area in ((confidence, 1.0), (confidence[::-1], 0.0), (confidence * 0, 0.5)):
            found = areas(ranked(values, confidence > 0.7)).auroc
            assert found is not None
            assert found.value == area


class TestAURC:
    def test_equals_a_sum_over_thresholds(self) -> None:
        """Without ties: the mean over k of the error rate among the k most confident rows."""
        confidence, correct = made_rows("spread", 700)
        assert len(set(confidence.tolist())) == 700
        found = areas(ranked(confidence, correct)).aurc
        assert found == pytest.approx(aurc_by_shuffling(confidence, correct, 1), abs=1e-12)

    @pytest.mark.parametrize("kind", ["ties", "sure"])
    def test_ties_count_by_the_mean_over_their_orders(self, kind: str) -> None:
        """With ties the order of the file does not matter, and the mean over orders is found."""
        confidence, correct = made_rows(kind, 300)
        found = areas(ranked(confidence, correct)).aurc
        assert found == pytest.approx(aurc_by_shuffling(confidence, correct, 1000), abs=6e-4)
        assert areas(ranked(confidence[::-1], correct[::-1])).aurc == found

    def test_pieces_add_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """However many rows are looked at together, the area is the same."""
        rows: Any = ranked(*made_rows("ties", 500))
        whole = areas(rows).aurc
        monkeypatch.setattr("covcal_cli.evaluate.ranked._CHUNK", 7)
        assert areas(rows).aurc == pytest.approx(whole, abs=1e-12)

    def test_many_rows_equal_a_sum_over_runs(self) -> None:
        """More rows than are looked at together, many tied: a sum over runs."""
        rng = np.random.default_rng(3)
        confidence = np.sort(np.round(rng.beta(5, 1.2, size=150_000), 4))[::-1]
        correct = rng.random(len(confidence)) < confidence
        area, rank, wrong = 0.0, 0, 0
        _, sizes = np.unique(-confidence, return_counts=True)
        for size in sizes.tolist():
            errors = size - int(correct[rank : rank + size].sum())
            steps = np.arange(1, size + 1)
            area += float(((wrong + steps * errors / size) / (rank + steps)).sum())
            rank, wrong = rank + size, wrong + errors
        found = areas(ranked(confidence, correct)).aurc
        assert found == pytest.approx(area / len(confidence), abs=1e-12)

    def test_the_ends(self) -> None:
        """All right is 0, all wrong is 1."""
        confidence = np.linspace(0.1, 0.9, 40)
        assert areas(ranked(confidence, np.ones(40, bool))).aurc == 0
        assert areas(ranked(confidence, np.zeros(40, bool))).aurc == pytest.approx(1)
