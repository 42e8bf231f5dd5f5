"""Reliability bins, the ECE family, Brier, NLL and sharpness: against loops, at every edge."""

import math
import tracemalloc
from bisect import bisect_left
from typing import Any

import numpy as np
import pytest

from covcal_cli.arrays import Booleans, Float64s, Labels
from covcal_cli.evaluate.bins import GroupBins, bin_edges, confidence_block
from covcal_cli.evaluate.metrics import MAIN, METRICS, LabelledRows, Metrics, MetricsAccumulator
from covcal_cli.maths.softmax import Softmax, class_major, log_softmax, softmax
from tests.evaluate.made_bins import binned

BIN_COUNTS = (1, 7, 10, 15, 49, 100)


def loop_ece(confidence: Float64s, correct: Booleans, bins: int) -> tuple[float, float]:
    """Return over- and under-confident ECE by plain loops with the rule (a, b], first closed."""
    edges = [number / bins for number in range(bins + 1)]
    over = under = 0.0
    for number in range(bins):
        inside = [
            (value, hit)
            for value, hit in zip(confidence.tolist(), correct.tolist(), strict=True)
            if edges[number] < value <= edges[number + 1] or (number == 0 and value == 0.0)
        ]
        gap = math.fsum(value for value, _ in inside) - sum(hit for _, hit in inside)
        over += max(0.0, gap) / len(confidence)
        under += max(0.0, -gap) / len(confidence)
    return over, under


def made_rows(n: int = 500, classes: int = 4, seed: int = 0) -> tuple[Float64s, Labels, Labels]:
    """Return log probabilities (K, n), the classifier's predictions and labels."""
    rng = np.random.default_rng(seed)
    truth = 1.5 * rng.normal(size=(n, classes))
    logits = 2 * truth + 0.3 * rng.normal(size=truth.shape)
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
    return log_softmax(class_major(logits), 1.3), truth.argmax(axis=1), labels


def forecast(logs: Float64s) -> Softmax:
    """Return probabilities of their logarithms."""
    return softmax(class_major(logs.T), 1.0)


def metrics_of(logs: Float64s, predictions: Labels, labels: Labels, bins: int = 15) -> Metrics:
    accumulator = MetricsAccumulator(bins, len(logs))
    accumulator.add(forecast(logs), LabelledRows(predictions, labels))
    return accumulator.result()


@pytest.mark.parametrize("bins", BIN_COUNTS)
def test_equals_a_loop_over_rows_and_bins(bins: int) -> None:
    """ECE and both its parts equal plain loops, with 0, 1, and every edge among the rows."""
    rng = np.random.default_rng(bins)
    edges = [number / bins for number in range(bins + 1)]
    confidence = np.concatenate([rng.random(400), edges, edges, [0.0, 1.0]])
    correct = rng.random(len(confidence)) < 0.6 * confidence + 0.2
    counted = binned(confidence, correct, bins)
    over, under = loop_ece(confidence, correct, bins)
    assert counted.over_ece() == pytest.approx(over, abs=1e-12)
    assert counted.under_ece() == pytest.approx(under, abs=1e-12)
    assert counted.ece() == pytest.approx(over + under, abs=1e-12)
    assert counted.n == len(confidence)


@pytest.mark.parametrize("bins", BIN_COUNTS)
def test_every_edge_and_its_neighbours_land_in_one_known_bin(bins: int) -> None:
    """number/bins is the last value of its bin, the next float the first of the next bin.

    An edge is the float nearest to number/bins: 5/7 is one, although 5 * (1/7) is another float.
    """
    for number in range(bins + 1):
        edge = number / bins
        for value in (math.nextafter(edge, -1), edge, math.nextafter(edge, 2)):
            if not 0 <= value <= 1:
                continue
            index = confidence_block(np.array([value]), np.array([True]), bin_edges(bins)).index
            expected = bisect_left([k / bins for k in range(1, bins)], value)
            assert index.tolist() == [expected], f"{value!r} in {bins} bins"


@pytest.mark.parametrize("bins", BIN_COUNTS)
def test_edges_as_published_are_the_edges_in_force(bins: int) -> None:
    """Counting with `edges`, as a reader of metrics.json would, gives the same counts."""
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.random(1000), bin_edges(bins), np.arange(bins + 1) / bins])
    counted = binned(values, values > 0.5, bins)
    by_hand = np.clip(np.searchsorted(counted.edges, values, side="left") - 1, 0, None)
    assert counted.counts.tolist() == np.bincount(by_hand, minlength=bins).tolist()
    assert counted.edges[[0, -1]].tolist() == [0.0, 1.0]


def test_one_right_at_95_and_one_wrong_at_100_percent() -> None:
    """{0.95 right, 1.0 wrong} is 0.475; torchmetrics 1.9 says 0.525."""
    assert binned(np.array([0.95, 1.0]), np.array([True, False])).ece() == pytest.approx(0.475)


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_zero_and_one_are_counted(value: float, dtype: type[Any]) -> None:
    """Confidence 0 lands in the first bin and 1 in the last, in every float type."""
    counted = binned(np.full(3, value, dtype=dtype), np.array([True, False, False]))
    assert counted.counts[-1 if value else 0] == counted.n == 3
    assert counted.ece() == pytest.approx(abs(value - 1 / 3))


def test_thirty_million_rows_lose_nothing() -> None:
    """3e7 rows of confidence 0.967 and accuracy 0.6 give 0.367; torchmetrics 1.9 gives 0.0."""
    confidence = np.full(1_000_000, 0.967)
    correct = np.arange(1_000_000) % 5 < 3
    block = confidence_block(confidence, correct, bin_edges(15))
    collected = GroupBins(15)
    for _ in range(30):
        collected.add(block)
    counted = collected.together()
    assert counted.n == 30_000_000
    assert counted.ece() == counted.over_ece() == pytest.approx(0.367, abs=1e-9)
    assert counted.counts.dtype.kind == counted.hits.dtype.kind == "i"


def test_blocks_of_any_size_add_up() -> None:
    """Rows added in blocks, an empty one included, give the numbers of one block, to rounding."""
    logs, predictions, labels = made_rows()
    whole = metrics_of(logs, predictions, labels)
    parts = MetricsAccumulator(15, len(logs))
    for start, stop in [(0, 1), (1, 1), (1, 170), (170, 500)]:
        parts.add(
            forecast(logs[:, start:stop]), LabelledRows(predictions[start:stop], labels[start:stop])
        )
    found = parts.result()
    assert found.bins.counts.tolist() == whole.bins.counts.tolist()
    assert found.to_json() == pytest.approx(whole.to_json(), rel=1e-12)


def test_over_and_under_add_up_to_the_ece() -> None:
    """The two parts are non-negative and sum to the ECE; each alone when all bins lean one way."""
    rng = np.random.default_rng(0)
    for bins in (1, 5, 15):
        confidence = rng.random(300)
        mixed = binned(confidence, rng.random(300) < 0.5, bins)
        assert min(mixed.over_ece(), mixed.under_ece()) >= 0
        assert mixed.over_ece() + mixed.under_ece() == pytest.approx(mixed.ece(), abs=1e-15)
        assert binned(confidence, np.zeros(300, bool), bins).under_ece() == 0
        assert binned(confidence, np.ones(300, bool), bins).over_ece() == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.01, 1.01, 1.00001])
def test_a_confidence_that_is_no_probability_is_refused(value: float) -> None:
    """NaN and values outside [0, 1] raise: a block that holds one cannot be counted."""
    with pytest.raises(ValueError, match="NaN or outside"):
        binned(np.array([0.5, value, 0.5]), np.array([True, True, True]))


@pytest.mark.parametrize("value", [1 + 1e-7, -1e-7])
def test_rounding_beyond_the_ends_is_accepted(value: float) -> None:
    """1.0000001 counts as 1 and -0.0000001 as 0: float32 probabilities do that."""
    counted = binned(np.array([value]), np.array([value > 0.5]))
    assert counted.counts[-1 if value > 0.5 else 0] == 1
    assert counted.ece() == 0


def test_an_empty_bin_is_nan_and_counts_for_nothing() -> None:
    """Mean confidence and accuracy of an empty bin are NaN, of the others numbers."""
    counted = binned(np.array([0.05, 0.95]), np.array([False, True]), bins=10)
    assert np.isnan(counted.confidence).tolist() == [False] + [True] * 8 + [False]
    assert np.isnan(counted.accuracy).tolist() == [False] + [True] * 8 + [False]
    assert counted.accuracy[[0, -1]].tolist() == [0.0, 1.0]
    assert counted.ece() == pytest.approx(0.05)


def test_no_rows_are_refused() -> None:
    """Metrics of nothing raise ValueError instead of being 0 or NaN."""
    for empty in (GroupBins(15).together().ece, MetricsAccumulator(15, 3).result):
        with pytest.raises(ValueError, match="no rows"):
            empty()


def test_every_metric_equals_its_definition() -> None:
    """Accuracy, confidence, NLL, Brier, agreement: plain formulas on the given probabilities."""
    logs, predictions, labels = made_rows()
    found = metrics_of(logs, predictions, labels)
    p, columns = np.exp(logs), np.arange(len(labels))
    one_hot = np.eye(len(logs))[labels].T
    confidence = p[predictions, columns]
    over, under = loop_ece(confidence, predictions == labels, 15)
    assert found.n == len(labels)
    assert found.accuracy == (predictions == labels).mean()
    assert found.mean_confidence == pytest.approx(confidence.mean(), rel=1e-6)
    assert found.over_ece == pytest.approx(over, abs=1e-6)
    assert found.under_ece == pytest.approx(under, abs=1e-6)
    assert found.nll == pytest.approx(-logs[labels, columns].mean(), rel=1e-9)
    assert found.brier == pytest.approx(((p - one_hot) ** 2).sum(axis=0).mean(), rel=1e-6)
    assert found.agreement == (p.argmax(axis=0) == predictions).mean()
    assert found.agreement < 1
    assert list(found.to_json()) == ["n", *METRICS]


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_calibration_and_sharpness_are_equation_2_class_by_class(classes: int) -> None:
    """Against loops: c_k is the frequency of class k among rows of the same bin of p_k."""
    logits = np.random.default_rng(3).normal(size=(200, classes)) * 2
    labels = np.random.default_rng(4).integers(classes, size=200)
    logs = log_softmax(class_major(logits), 1.3)
    found = metrics_of(logs, logits.argmax(axis=1), labels, bins=5)
    calibration = sharpness = 0.0
    for k, chances in enumerate(np.exp(logs)):
        index = np.maximum(np.ceil(chances * 5) - 1, 0)
        for value in np.unique(index):
            rows = index == value
            frequency = float((labels[rows] == k).mean())
            calibration += float(((chances[rows] - frequency) ** 2).sum()) / 200
            sharpness += int(rows.sum()) * frequency**2 / 200
    assert found.calibration == pytest.approx(calibration, rel=1e-5)
    assert found.sharpness == pytest.approx(sharpness)


def test_calibration_is_never_negative_and_adds_up_to_brier() -> None:
    """Right class by class, with more in common than the confidence tells: about 0, never below."""
    rng = np.random.default_rng(0)
    logs = np.log(np.repeat([[0.62], [0.37], [0.01]], 10_000, axis=1))
    labels = rng.choice(3, size=10_000, p=[0.62, 0.37, 0.01])
    chances = np.exp(logs)
    for row in range(0, 10_000, 2):
        chances[[0, 1], row] = chances[[1, 0], row]
        labels[row] = (1, 0, 2)[labels[row]]
    found = metrics_of(np.log(chances), chances.argmax(axis=0), labels)
    assert found.calibration is not None
    assert found.sharpness is not None
    assert 0 <= found.calibration < 0.002
    assert found.brier == pytest.approx(found.calibration + 1 - found.sharpness, abs=1e-6)


def test_a_forecast_equal_to_the_label_frequencies_has_no_calibration_error() -> None:
    """Probabilities that equal the frequencies of their cell: calibration 0, ECE 0."""
    logs = np.log(np.repeat([[0.7], [0.2], [0.1]], 10, axis=1))
    labels = np.repeat([0, 1, 2], [7, 2, 1])
    found = metrics_of(logs, np.zeros(10, np.int64), labels)
    assert found.calibration == pytest.approx(0, abs=1e-6)
    assert found.ece == pytest.approx(0, abs=1e-6)
    assert found.sharpness == pytest.approx(0.49 + 0.04 + 0.01)


def test_the_perfect_and_the_worst_forecast_reach_the_ends() -> None:
    """Certain and right is Brier 0, certain and wrong is 2: one-hot labels allow both."""
    logs = log_softmax(class_major(np.array([[1e4, 0.0, 0.0]])), 1.0)
    zero = np.zeros(1, np.int64)
    assert metrics_of(logs, zero, zero).brier == 0
    worst = metrics_of(logs, zero, zero + 1)
    assert worst.brier == worst.ece + 1 == 2
    assert worst.nll == pytest.approx(708.396, abs=1e-3)  # -log of the least float64


def test_with_very_many_classes_only_the_decomposition_is_left_out() -> None:
    """Above a million counts calibration and sharpness are None; everything else stands."""
    rng = np.random.default_rng(0)
    logs = log_softmax(class_major(rng.normal(size=(50, 1000))), 1.0)
    labels = rng.integers(1000, size=50)
    predictions = logs.argmax(axis=0)
    found = metrics_of(logs, predictions, labels, bins=1001)
    assert found.sharpness is None
    assert found.calibration is None
    over, under = loop_ece(np.exp(logs.max(axis=0)), predictions == labels, 1001)
    assert found.ece == pytest.approx(over + under, rel=1e-6)


def test_a_class_without_rows_changes_nothing() -> None:
    """A further class of probability 0 that no row has leaves every metric as it is.

    The class-wise ECE alone is a mean over classes, and so shrinks.
    """
    logs, predictions, labels = made_rows()
    more = np.concatenate([logs, np.full((1, logs.shape[1]), -800.0)])
    with_it = metrics_of(more, predictions, labels).to_json()
    without = metrics_of(logs, predictions, labels).to_json()
    share = len(logs) / len(more)
    mean = without.pop("classwise_ece")
    assert mean is not None
    assert with_it.pop("classwise_ece") == pytest.approx(mean * share)
    assert with_it == pytest.approx(without, rel=1e-12)


def test_the_judged_label_is_the_classifiers_not_the_forecasters() -> None:
    """Confidence is the probability of the given prediction, even where it is not the highest."""
    logs = np.log(np.array([[0.3], [0.6], [0.1]]))
    found = metrics_of(logs, np.array([0]), np.array([1]))
    assert found.accuracy == 0
    assert found.mean_confidence == pytest.approx(0.3)
    assert found.agreement == 0


class TestCorrectness:
    """The confidence as a forecast of whether the label is right, and what it misses by class."""

    @pytest.mark.parametrize("classes", [2, 5])
    def test_equals_loops(self, classes: int) -> None:
        """Brier score, log loss, AUROC over all pairs, and the gap per predicted class."""
        logs, predictions, labels = made_rows(n=200, classes=classes)
        logs = np.round(logs, 1) - np.log(np.exp(np.round(logs, 1)).sum(axis=0))  # with ties
        found = metrics_of(logs, predictions, labels)
        confidence = np.exp(logs[predictions, np.arange(200)]).tolist()
        right = (predictions == labels).tolist()
        rows = list(zip(confidence, right, strict=True))
        assert found.correctness_brier == pytest.approx(
            sum((c - r) ** 2 for c, r in rows) / 200, rel=1e-6
        )
        losses = [-math.log(c if r else 1 - c) for c, r in rows]
        assert found.correctness_nll == pytest.approx(sum(losses) / 200, rel=1e-6)
        hits, misses = ([round(c, 7) for c, r in rows if r == kind] for kind in (True, False))
        pairs = [(h > m) + (h == m) / 2 for h in hits for m in misses]
        assert found.correctness_auroc == pytest.approx(np.mean(pairs), abs=1e-3)
        gap = 0.0
        for label in range(classes):
            inside = np.flatnonzero(predictions == label)
            gap += abs(sum(rows[row][0] - rows[row][1] for row in inside)) / 200
        assert found.class_gap == pytest.approx(gap, rel=1e-6)

    @pytest.mark.parametrize(
        ("logits", "wrong", "right"),
        [
            ([50.0, 0.0, 0.0], 50 - math.log(2), 0.0),  # 1 - c is not 1 - 1.0
            ([300.0, 0.0, -np.inf], 300.0, 0.0),
            ([800.0, 0.0, 0.0], 708.3964, 0.0),
            ([0.0, -np.inf, -np.inf], 708.3964, 0.0),
            ([0.0, 60.0, -np.inf], 0.0, 60.0),
            ([0.0, 800.0, 0.0], 0.0, 708.3964),
        ],
    )
    def test_as_good_as_certain(self, logits: list[float], wrong: float, right: float) -> None:
        """Summed over the other classes, and 708 where float64 holds nothing, as in the NLL."""
        block = softmax(class_major(np.array([logits])), 1.0)
        for label, expected in ((1, wrong), (0, right)):
            accumulator = MetricsAccumulator(15, 3)
            accumulator.add(block, LabelledRows(np.array([0]), np.array([label])))
            found = accumulator.result()
            assert found.correctness_nll is not None
            assert found.correctness_nll == pytest.approx(expected, abs=1e-4)
            assert found.correctness_nll <= found.nll + 1e-9

    def test_are_never_above_the_scores_of_the_distribution(self) -> None:
        """To know that a label is wrong says less than to know which one is right."""
        logs, predictions, labels = made_rows()
        found = metrics_of(logs, predictions, labels)
        assert (found.correctness_nll or np.inf) < found.nll
        assert (found.correctness_brier or np.inf) < found.brier

    @pytest.mark.parametrize("right", [True, False])
    def test_without_two_kinds_of_rows_nothing_is_ranked(self, right: bool) -> None:
        logs, predictions, _ = made_rows(n=20)
        labels = predictions if right else (predictions + 1) % len(logs)
        assert metrics_of(logs, predictions, labels).correctness_auroc is None

    def test_very_many_classes(self) -> None:
        """More than a million counts are not kept; the others do not need them."""
        logs = np.log(np.full((20_000, 2), 1 / 20_000))
        found = metrics_of(logs, np.array([0, 1]), np.array([0, 2]), bins=100)
        assert found.class_gap is None
        assert found.correctness_auroc == 0.5


def test_memory_grows_by_four_bytes_a_row() -> None:
    """Two hundred blocks leave four bytes a row behind, and need no more on the way than two."""
    logs, predictions, labels = made_rows(n=2000)
    accumulator, block = MetricsAccumulator(15, len(logs)), forecast(logs)

    def kept_and_peak(blocks: int) -> tuple[int, int]:
        tracemalloc.reset_peak()
        for _ in range(blocks):
            accumulator.add(block, LabelledRows(predictions, labels))
        return tracemalloc.get_traced_memory()

    tracemalloc.start()
    try:
        few_kept, few_peak = kept_and_peak(2)
        many_kept, many_peak = kept_and_peak(200)
    finally:
        tracemalloc.stop()
    rows = 200 * 2000
    assert 4 * rows <= many_kept - few_kept < 4.2 * rows
    assert many_peak - many_kept < few_peak - few_kept + 65_536


def test_the_largest_gap_of_a_bin() -> None:
    """MCE is the largest |confidence - accuracy| over bins that hold rows, by a plain loop."""
    rng = np.random.default_rng(0)
    confidence = rng.random(300)
    correct = rng.random(300) < confidence**2
    index = np.maximum(np.ceil(confidence * 40).astype(int) - 1, 0)
    gaps = [
        abs(confidence[index == number].mean() - correct[index == number].mean())
        for number in set(index.tolist())
    ]
    assert binned(confidence, correct, 40).mce() == pytest.approx(max(gaps))
    with pytest.raises(ValueError, match="no rows"):
        GroupBins(15).together().mce()


@pytest.mark.parametrize("temperature", [1.0, 1.3])
def test_a_softmax_counts_as_its_logarithms_do(temperature: float) -> None:
    """What the caller has already computed changes nothing, at any temperature."""
    logs, predictions, labels = made_rows()
    block = class_major(logs.T)
    given = MetricsAccumulator(15, len(logs))
    given.add(softmax(block, temperature), LabelledRows(predictions, labels))
    expected = metrics_of(log_softmax(block, temperature), predictions, labels)
    assert given.result().to_json() == pytest.approx(expected.to_json(), abs=1e-7)


def test_fewer_metrics_have_the_same_values() -> None:
    """Metrics that are asked for do not change when others are left out, and others are refused."""
    logs, predictions, labels = made_rows()
    whole = metrics_of(logs, predictions, labels)
    for names in (MAIN, ("aurc",), ("correctness_nll", "sharpness")):
        accumulator = MetricsAccumulator(15, len(logs), names=names)
        accumulator.add(forecast(logs), LabelledRows(predictions, labels))
        few = accumulator.result()
        assert few.to_json() == {"n": whole.n} | {
            name: whole.value(name) for name in METRICS if name in names
        }
        for name in set(METRICS) - set(names):
            with pytest.raises(ValueError, match=f"{name} was not asked for"):
                few.value(name)
