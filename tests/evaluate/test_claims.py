"""Sentences on a confidence: a claim holds as often as the level of its interval."""

from dataclasses import replace

import numpy as np
import pytest

from covcal_cli.errors import in_points
from covcal_cli.evaluate.bins import GroupBins, GroupMetrics, bin_edges, confidence_block
from covcal_cli.evaluate.claims import ClassGaps, MeanGap, ece_sentence, points
from tests.evaluate.made_bins import binned


def gap_of(n: int, seed: int, *, off: float = 0.0) -> MeanGap:
    """Measure the mean gap of a sample whose confidence is too high by `off`."""
    rng = np.random.default_rng(seed)
    confidence = 0.3 + 0.7 * rng.random(n)
    return MeanGap.of(binned(confidence, rng.random(n) < confidence - off))


class TestMeanGap:
    @pytest.mark.parametrize("n", [60, 250, 1000, 5000])
    def test_a_calibrated_classifier_is_rarely_called_off(self, n: int) -> None:
        """In at most 2.5 % of 300 samples: the test of the ECE has the other half of the 5 %."""
        called = sum(gap_of(n, seed).direction != 0 for seed in range(300))
        assert called <= 300 * 0.025 + 2 * np.sqrt(300 * 0.025 * 0.975)

    def test_the_interval_holds_the_true_gap(self) -> None:
        held = [g.low <= 0.1 <= g.high for g in (gap_of(300, s, off=0.1) for s in range(300))]
        assert np.mean(held) == pytest.approx(0.95, abs=0.03)

    @pytest.mark.parametrize("n", [20, 60, 200])
    def test_the_interval_holds_the_gap_of_rare_errors(self, n: int) -> None:
        """3 % of the rows are wrong, and the confidence is 99 %."""
        samples = (np.random.default_rng(seed).random(n) < 0.97 for seed in range(300))
        gaps = [MeanGap.of(binned(np.full(n, 0.99), correct)) for correct in samples]
        assert np.mean([gap.low <= 0.02 <= gap.high for gap in gaps]) >= 0.94

    @pytest.mark.parametrize("right", [False, True])
    def test_the_interval_has_only_possible_gaps(self, *, right: bool) -> None:
        """A confidence of 70 % is at most 70 points too high, and 30 points too low."""
        gap = MeanGap.of(binned(np.array([0.7]), np.array([right])))
        assert (gap.low, gap.high) == pytest.approx((-0.3, 0.7))

    @pytest.mark.parametrize(
        ("gap", "words"),
        [
            (MeanGap(0.112, 0.08, 0.14), "too high by 11 points (8.0 to 14)"),
            (MeanGap(-0.112, -0.14, -0.08), "too low by 11 points (8.0 to 14)"),
            (MeanGap(0.03, -0.02, 0.08), "at most 2.0 points too low or 8.0 points too high"),
        ],
    )
    def test_words(self, gap: MeanGap, words: str) -> None:
        """An error is stated only where the interval excludes 0."""
        assert words in gap.sentence
        assert gap.direction or gap.sentence.startswith("the confidence may be right")


def test_one_point_is_singular() -> None:
    assert [in_points(number) for number in ("0", "1", "1.0", "2")] == [
        "0 points",
        "1 point",
        "1.0 points",
        "2 points",
    ]


def test_the_ece_is_an_upper_bound_where_zero_is_possible() -> None:
    assert ece_sentence((0.0, 0.25)) == "at most 25 points, perhaps 0"
    assert ece_sentence((0.005, 0.07)) == "0.5 to 7.0 points"
    assert points(0.0996) == "10"


def classes_of(n: int, gaps: tuple[float, ...], seed: int = 0) -> tuple[GroupMetrics, ...]:
    """Count rows of as many predicted classes as there are true gaps."""
    rng = np.random.default_rng(seed)
    predicted = rng.integers(len(gaps), size=n)
    confidence = 0.5 + 0.4 * rng.random(n)
    correct = rng.random(n) < confidence - np.array(gaps)[predicted]
    counts = GroupBins(15, len(gaps))
    counts.add(confidence_block(confidence, correct, bin_edges(15)), predicted)
    return counts.result([f"class {number}" for number in range(len(gaps))])


class TestClassGaps:
    def test_a_count_is_a_lower_bound(self) -> None:
        """Few rows prove one class of five that are all off: at least one, and four undecided."""
        gaps = ClassGaps.of(classes_of(600, (0.2,) * 5))
        assert 1 <= len(gaps.off) < 5
        assert gaps.count.startswith(f"the confidence of at least {len(gaps.off)} of 5 predicted")
        assert gaps.count.endswith("too few rows for a verdict")

    def test_many_rows_decide_for_all(self) -> None:
        """With many rows, the count is a fact, and the worst class is named with its numbers."""
        gaps = ClassGaps.of(classes_of(200_000, (0.0, 0.2, 0.1, 0.0)))
        assert gaps.count == (
            "the confidence of 2 of 4 predicted classes is wrong by over 5 points (2 too high)"
        )
        assert gaps.worst is not None
        assert gaps.worst.startswith("where class 1 is predicted, the confidence is 70 % and the ")
        assert ClassGaps.of(classes_of(200_000, (0.0, 0.0))).count == (
            "the confidence of all 2 predicted classes is right to within 5 points"
        )

    def test_a_fair_classifier_is_rarely_accused(self) -> None:
        """Some class is called off in at most 5 % of samples whose classes are at the margin."""
        accused = sum(bool(ClassGaps.of(classes_of(400, (0.05,) * 4, s)).off) for s in range(200))
        assert accused <= 200 * 0.05 + 2 * np.sqrt(200 * 0.05 * 0.95)

    def test_a_single_wrong_row_proves_nothing(self) -> None:
        groups = classes_of(1, (0.9,))
        assert groups[0].accuracy == 0
        assert ClassGaps.of((replace(groups[0], mean_confidence=0.97),)).undecided

    def test_no_rows_prove_nothing(self) -> None:
        gaps = ClassGaps.of(())
        assert (gaps.n, gaps.worst) == (0, None)
