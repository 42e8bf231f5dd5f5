"""Describe proved calibration errors in sentences.

A sentence states an error only if the interval of the error excludes 0. If the interval contains 0,
the sentence gives the largest error that is possible.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from covcal_cli.errors import in_points, percent
from covcal_cli.evaluate.bins import Bins, GroupMetrics
from covcal_cli.evaluate.bootstrap import LEVEL, Interval, mean_gap_interval
from covcal_cli.maths.odds import interval_of_counts

MARGIN = 0.05  # Largest gap at which a class counts as calibrated.
_FEWEST_ROWS = 5  # Minimum number of rows for a valid interval.


@dataclass(frozen=True)
class MeanGap:
    """Mean confidence minus accuracy, with its interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, bins: Bins, level: float = LEVEL) -> "MeanGap":
        """Return the gap of binned rows, tested at the same significance level as the ECE."""
        value, interval = mean_gap_interval(bins, level)
        _, tested = mean_gap_interval(bins, 1 - (1 - level) / 2)
        if tested[0] <= 0 <= tested[1]:
            interval = tested
        return cls(value, *interval)

    @property
    def direction(self) -> int:
        """1 if the confidence is proved too high, -1 if too low, else 0."""
        return int(self.low > 0) - int(self.high < 0)

    @property
    def sentence(self) -> str:
        """The gap in words, such as ``too high by 11 points (8 to 14)``."""
        if self.direction:
            ends = sorted((abs(self.low), abs(self.high)))
            word = "too high" if self.direction > 0 else "too low"
            return f"{word} by {points(self.value)} points ({_ends(*ends)})"
        return (
            "the confidence may be right on average: it is at most "
            f"{points(self.low)} points too low or {points(self.high)} points too high"
        )


def ece_sentence(interval: Interval) -> str:
    """Return the interval of an ECE in words."""
    low, high = interval
    if low == 0:
        return f"at most {points(high)} points, perhaps 0"
    return f"{_ends(low, high)} points"


@dataclass(frozen=True)
class ClassGaps:
    """The result of the tests of all predicted classes."""

    off: tuple[GroupMetrics, ...]
    within: tuple[GroupMetrics, ...]
    undecided: tuple[GroupMetrics, ...]
    margin: float = MARGIN

    @classmethod
    def of(
        cls, groups: Sequence[GroupMetrics], level: float = LEVEL, margin: float = MARGIN
    ) -> "ClassGaps":
        """Test every predicted class, at one confidence level for all tests (Bonferroni)."""
        predicted = [group for group in groups if group.n]
        off: list[tuple[float, GroupMetrics]] = []
        within, undecided = [], []
        for group in predicted:
            if group.accuracy is None or group.mean_confidence is None:
                continue
            right = round(group.accuracy * group.n)
            ends = interval_of_counts(right, group.n, 1 - (1 - level) / len(predicted))
            gaps = [group.mean_confidence - end for end in ends]
            least = 0.0 if min(gaps) < 0 < max(gaps) else min(map(abs, gaps))
            if group.n < _FEWEST_ROWS:
                undecided.append(group)
            elif least > margin:
                off.append((least * math.sqrt(group.n), group))
            elif max(map(abs, gaps)) <= margin:
                within.append(group)
            else:
                undecided.append(group)
        worst_first = sorted(off, key=lambda entry: -entry[0])
        return cls(
            tuple(group for _, group in worst_first), tuple(within), tuple(undecided), margin
        )

    @property
    def n(self) -> int:
        """Number of predicted classes."""
        return len(self.off) + len(self.within) + len(self.undecided)

    @property
    def worst(self) -> str | None:
        """A sentence on the worst miscalibrated class, or None."""
        if not self.off:
            return None
        group = self.off[0]
        return (
            f"where {group.name} is predicted, the confidence is "
            f"{percent(group.mean_confidence, 0)} and the accuracy is "
            f"{percent(group.accuracy, 0)} ({group.n} rows)"
        )

    @property
    def count(self) -> str:
        """The number of miscalibrated classes, in words."""
        limit, few = in_points(f"{100 * self.margin:g}"), len(self.undecided)
        have = f"{'has' if few == 1 else 'have'} too few rows for a verdict"
        if not self.off and few:
            return f"{few} of {self.n} predicted classes {have}"
        if not self.off:
            return f"the confidence of all {self.n} predicted classes is right to within {limit}"
        rest = f"; {few} class{'' if few == 1 else 'es'} {have}" if few else ""
        return (
            f"the confidence of {'at least ' if few else ''}{len(self.off)} of {self.n} "
            f"predicted classes is wrong by over {limit} ({self._directions}){rest}"
        )

    @property
    def _directions(self) -> str:
        too_high = sum(direction_of(group) == "too high" for group in self.off)
        words = {"too high": too_high, "too low": len(self.off) - too_high}
        return ", ".join(f"{n} {word}" for word, n in words.items() if n)


def direction_of(group: GroupMetrics) -> str:
    """Return whether the mean confidence of a group is ``too high`` or ``too low``."""
    return "too high" if (group.mean_confidence or 0) > (group.accuracy or 0) else "too low"


def points(value: float) -> str:
    """Return the absolute value of a fraction as text, in percentage points."""
    magnitude = 100 * abs(value)
    return f"{magnitude:.0f}" if magnitude >= 9.95 else f"{magnitude:.1f}"


def _ends(low: float, high: float) -> str:
    near, far = points(low), points(high)
    return near if near == far else f"{near} to {far}"
