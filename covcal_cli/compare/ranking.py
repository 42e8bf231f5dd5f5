"""What a comparison says: means and deviations over seeds, ranks, harm."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from covcal_cli.evaluate.metrics import Metric

# The classifier as it is, and the calibration without a look at the target: what a method that
# looks at it must beat.
BASELINES = ("none", "temp")
# By how much a method may be worse than the better baseline before that counts as harm.
MAX_HARM = 0.01


@dataclass(frozen=True)
class Entry:
    """One method on one shift, over seeds."""

    temperature: float  # mean
    means: Mapping[str, float]  # by metric, those that have a value
    deviations: Mapping[str, float]  # sample standard deviations; 0 for a single seed


@dataclass(frozen=True)
class Comparison:
    """Every method on every shift.

    All numbers are fractions where the metric is one. A method's score on a shift is the mean of
    the ranking metric over seeds; every shift weighs the same.
    """

    metric: Metric  # that ranks
    seeds: int
    methods: tuple[str, ...]
    shifts: Mapping[str, Mapping[str, Entry]]  # by shift, then by method where it ran
    rows: Mapping[str, int]  # judged, by shift
    refused: Mapping[str, Mapping[str, str]]  # by shift: methods that it does not fit, and why

    def score(self, shift: str, method: str) -> float | None:
        """Return a method's mean of the ranking metric, None where it did not run."""
        entry = self.shifts[shift].get(method)
        return None if entry is None else entry.means.get(self.metric.name)

    def ranks(self, shift: str) -> dict[str, float]:
        """Return the ranks of the methods that ran on a shift, 1 the best; ties share the mean."""
        scores = {
            method: score if self.metric.better == "lower" else -score
            for method in self.methods
            if (score := self.score(shift, method)) is not None
        }
        return {
            method: 1
            + sum(other < score for other in scores.values())
            + (sum(other == score for other in scores.values()) - 1) / 2
            for method, score in scores.items()
        }

    def everywhere(self) -> tuple[str, ...]:
        """Return the methods that ran on every shift, which alone can be averaged fairly."""
        return tuple(
            method
            for method in self.methods
            if all(self.score(shift, method) is not None for shift in self.shifts)
        )

    def mean(self, method: str) -> float:
        """Return a method's mean over shifts; it ran `everywhere`."""
        scores = (self.score(shift, method) for shift in self.shifts)
        return statistics.fmean(score for score in scores if score is not None)

    def mean_rank(self, method: str) -> float:
        """Return the mean over shifts of a method's rank among those that ran `everywhere`."""
        among = replace(self, methods=self.everywhere())
        return statistics.fmean(among.ranks(shift)[method] for shift in self.shifts)

    def harm(self, shift: str, method: str) -> float | None:
        """Return by how much a method is worse than the better baseline (negative: better)."""
        score = self.score(shift, method)
        base = [found for name in BASELINES if (found := self.score(shift, name)) is not None]
        if score is None or not base:
            return None
        return score - min(base) if self.metric.better == "lower" else max(base) - score

    def harmed(self, method: str) -> tuple[str, ...]:
        """Return the shifts where a method does more than `MAX_HARM` harm."""
        return tuple(shift for shift in self.shifts if (self.harm(shift, method) or 0.0) > MAX_HARM)
