"""What a comparison says: means and deviations over seeds, ranks, harm, and how estimates fared."""

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from covcal_cli.calibrate.methods import AUTO
from covcal_cli.compare.runs import BASELINES, Record
from covcal_cli.evaluate.metrics import METRICS, Metric

# By how much a method may be worse than the better baseline before that counts as harm.
HARMS = (0.01, 0.03, 0.05)


@dataclass(frozen=True)
class Entry:
    """One method on one shift, over seeds."""

    temperature: float  # mean
    means: Mapping[str, float]  # by metric, those that have a value
    deviations: Mapping[str, float]  # sample standard deviations; 0 for a single seed


@dataclass(frozen=True)
class Coverage:
    """How the estimate of the accuracy fared, every shift weighing the same."""

    shifts: int
    error: float  # mean |estimate - truth|
    held: float  # share whose interval holds the truth
    width: float  # mean, of the interval
    missed: tuple[str, ...]  # shifts whose interval does not hold it in most seeds


@dataclass(frozen=True)
class Comparison:
    """Every method on every shift.

    All numbers are fractions where the metric is one. A method's score on a shift is the mean of
    the ranking metric over seeds; every shift weighs the same.
    """

    metric: Metric  # that ranks
    methods: tuple[str, ...]
    records: Mapping[str, tuple[Record, ...]]  # by shift, one per seed

    def of(self, shifts: Collection[str]) -> "Comparison":
        """Return the comparison on some of the shifts."""
        return replace(self, records={s: r for s, r in self.records.items() if s in shifts})

    @property
    def seeds(self) -> int:
        """The most runs that a shift has."""
        return max(map(len, self.records.values()))

    @cached_property
    def shifts(self) -> Mapping[str, Mapping[str, Entry]]:
        """By shift, then by method that no run refused."""
        return {
            shift: {
                method: _over_seeds(records, method)
                for method in self.methods
                if all(method in record.metrics for record in records)
            }
            for shift, records in self.records.items()
        }

    def score(self, shift: str, method: str) -> float | None:
        """Return a method's mean of the ranking metric, None where it did not run."""
        entry = self.shifts[shift].get(method)
        return None if entry is None else entry.means.get(self.metric.name)

    def loss(self, shift: str, method: str) -> float | None:
        """Return the score so that less is better."""
        score = self.score(shift, method)
        return score if score is None or self.metric.better == "lower" else -score

    def losses(self, shift: str) -> dict[str, float]:
        """Return the losses of the methods that ran on a shift."""
        found = ((method, self.loss(shift, method)) for method in self.methods)
        return {method: loss for method, loss in found if loss is not None}

    def ranks(self, shift: str) -> dict[str, float]:
        """Return the ranks of the methods that ran on a shift, 1 the best; ties share the mean."""
        losses = self.losses(shift)
        return {
            method: 1
            + sum(other < loss for other in losses.values())
            + (sum(other == loss for other in losses.values()) - 1) / 2
            for method, loss in losses.items()
        }

    @cached_property
    def everywhere(self) -> tuple[str, ...]:
        """The methods that ran on every shift, which alone can be averaged fairly."""
        return tuple(
            method
            for method in self.methods
            if all(self.score(shift, method) is not None for shift in self.shifts)
        )

    @cached_property
    def singles(self) -> tuple[str, ...]:
        """Those of them among which ``auto`` chooses."""
        return tuple(method for method in self.everywhere if method != AUTO)

    def mean(self, method: str, metric: str | None = None) -> float:
        """Return a method's mean over shifts, of the ranking metric or of another.

        The method ran `everywhere`, and the metric has a value somewhere.
        """
        name = metric or self.metric.name
        values = (entries[method].means.get(name) for entries in self.shifts.values())
        return statistics.fmean(value for value in values if value is not None)

    def worst(self, method: str) -> str:
        """Return the shift on which a method that ran `everywhere` is worst."""
        return max(self.shifts, key=lambda shift: self.losses(shift)[method])

    def best(self) -> str:
        """Return the one of the `singles` with the best mean."""
        sign = 1 if self.metric.better == "lower" else -1
        return min(self.singles, key=lambda method: sign * self.mean(method))

    def mean_rank(self, method: str) -> float:
        """Return the mean over shifts of a method's rank among those that ran `everywhere`."""
        among = self._among_those_everywhere
        return statistics.fmean(ranks[method] for ranks in among.values())

    @cached_property
    def _among_those_everywhere(self) -> Mapping[str, Mapping[str, float]]:
        among = replace(self, methods=self.everywhere)
        return {shift: among.ranks(shift) for shift in self.shifts}

    def regret(self, method: str) -> float:
        """Return by how much a method is worse than the best single one of each shift, on average.

        Nobody knows those beforehand.
        """
        losses = [self.losses(shift) for shift in self.shifts]
        return statistics.fmean(
            one[method] - min(loss for name, loss in one.items() if name != AUTO) for one in losses
        )

    def harm(self, shift: str, method: str) -> float | None:
        """Return by how much a method is worse than the better baseline (negative: better)."""
        losses = self.losses(shift)
        base = [losses[name] for name in BASELINES if name in losses]
        return losses[method] - min(base) if method in losses and base else None

    def harmed(self, method: str, by: float = HARMS[0]) -> tuple[str, ...]:
        """Return the shifts where a method does more harm than `by`, the worst first."""
        found = {
            shift: harm
            for shift in self.shifts
            if (harm := self.harm(shift, method)) is not None and harm > by
        }
        return tuple(sorted(found, key=lambda shift: -found[shift]))

    # What calibrations said of themselves.

    def took(self, shift: str, method: str = AUTO) -> dict[str, int]:
        """Return the seeds by the method that was in force, the most frequent first."""
        fits = (record.fits.get(method) for record in self.records[shift])
        return dict(Counter(fit.method_used for fit in fits if fit is not None).most_common())

    def failed(self, shift: str, method: str = AUTO) -> dict[str, int]:
        """Return the seeds by the guard that failed, the most frequent first."""
        fits = (record.fits.get(method) for record in self.records[shift])
        names = (g.name for fit in fits if fit is not None for g in fit.guards if not g.passed)
        return dict(Counter(names).most_common())

    def estimate(self, shift: str) -> tuple[float, float, float] | None:
        """Return the estimated accuracy and its interval, means over seeds."""
        found = [record.estimates[0] for record in self.records[shift] if record.estimates]
        if not found:
            return None
        ends = zip(*((one.accuracy, one.low, one.high) for one in found), strict=True)
        accuracy, low, high = map(statistics.fmean, ends)
        return accuracy, low, high

    def coverage(self, truth: Callable[[Record], float] | None = None) -> Coverage | None:
        """Return how the estimate of the accuracy fared; None where no file allowed any.

        `truth` gives the accuracy to hold it against; left out, it is that on the rows judged.
        """
        true = truth or _on_rows_judged
        by_shift = {
            shift: [(record.estimates[0], true(record)) for record in records if record.estimates]
            for shift, records in self.records.items()
        }
        by_shift = {shift: pairs for shift, pairs in by_shift.items() if pairs}
        if not by_shift:
            return None
        held = {
            shift: statistics.fmean(one.low <= found <= one.high for one, found in pairs)
            for shift, pairs in by_shift.items()
        }
        return Coverage(
            shifts=len(held),
            error=statistics.fmean(
                statistics.fmean(abs(one.accuracy - found) for one, found in pairs)
                for pairs in by_shift.values()
            ),
            held=statistics.fmean(held.values()),
            width=statistics.fmean(
                statistics.fmean(one.high - one.low for one, _ in pairs)
                for pairs in by_shift.values()
            ),
            missed=tuple(shift for shift, share in held.items() if share < 0.5),
        )


def _on_rows_judged(record: Record) -> float:
    return record.metrics[BASELINES[0]]["accuracy"] or 0.0


def _over_seeds(records: Collection[Record], method: str) -> Entry:
    """Return what the runs of a shift say of a method."""
    values = {
        name: [v for one in records if (v := one.metrics[method].get(name)) is not None]
        for name in METRICS
    }
    return Entry(
        temperature=statistics.fmean(record.temperature(method) for record in records),
        means={name: statistics.fmean(those) for name, those in values.items() if those},
        deviations={
            name: statistics.stdev(those) if len(those) > 1 else 0.0
            for name, those in values.items()
            if those
        },
    )
