"""``covcal compare``: apply every method to every shift with every seed, and compare them."""

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from covcal_cli.calibrate.methods import AUTO
from covcal_cli.compare.runs import BASELINES, CompareSettings, Record, Run, finished
from covcal_cli.errors import CovcalError
from covcal_cli.evaluate.metrics import METRICS, Metric
from covcal_cli.progress import Progress, ProgressCallback, silent

# Thresholds for harm: the loss of a method minus the loss of the better baseline.
HARMS = (0.01, 0.03, 0.05)


@dataclass(frozen=True)
class Entry:
    """The results of a method on a shift, summarised over all seeds."""

    temperature: float
    means: Mapping[str, float]  # Means over seeds, by metric.
    deviations: Mapping[str, float]


@dataclass(frozen=True)
class Coverage:
    """Errors of the estimated accuracies, as means over shifts."""

    shifts: int
    error: float  # Mean of |estimated accuracy - true accuracy|.
    held: float
    width: float
    missed: tuple[str, ...]  # Shifts where most ranges miss the true accuracy.


@dataclass(frozen=True)
class Comparison:
    """The results of every method on every shift.

    Metrics are fractions. A method's score on a shift is the mean of the ranking metric over seeds.
    All shifts have the same weight.
    """

    metric: Metric  # The ranking metric.
    methods: tuple[str, ...]
    records: Mapping[str, tuple[Record, ...]]

    def of(self, shifts: Collection[str]) -> "Comparison":
        """Return the comparison restricted to some shifts."""
        if set(shifts) >= set(self.records):
            return self
        return replace(self, records={s: r for s, r in self.records.items() if s in shifts})

    @property
    def seeds(self) -> int:
        """The number of seeds per shift (the largest if shifts differ)."""
        return max(map(len, self.records.values()))

    @cached_property
    def shifts(self) -> Mapping[str, Mapping[str, Entry]]:
        """The results by shift and method, without methods that cannot be fitted."""
        return {
            shift: {
                method: _over_seeds(records, method)
                for method in self.methods
                if all(method in record.metrics for record in records)
            }
            for shift, records in self.records.items()
        }

    def score(self, shift: str, method: str) -> float | None:
        """Return the mean of the ranking metric over seeds; None if the method did not run."""
        entry = self.shifts[shift].get(method)
        return None if entry is None else entry.means.get(self.metric.name)

    def loss(self, shift: str, method: str) -> float | None:
        """Return the score as a loss: multiplied by -1 if higher scores are better."""
        score = self.score(shift, method)
        return score if score is None or self.metric.better == "lower" else -score

    def losses(self, shift: str) -> dict[str, float]:
        """Return the loss of each method on a shift."""
        losses = ((method, self.loss(shift, method)) for method in self.methods)
        return {method: loss for method, loss in losses if loss is not None}

    def ranks(self, shift: str) -> dict[str, float]:
        """Return the rank of each method on a shift. Rank 1 is best; ties get the mean rank."""
        losses = self.losses(shift)
        return {
            method: 1
            + sum(other < loss for other in losses.values())
            + (sum(other == loss for other in losses.values()) - 1) / 2
            for method, loss in losses.items()
        }

    @cached_property
    def ran(self) -> tuple[str, ...]:
        """The methods that ran on at least one shift."""
        return tuple(
            method
            for method in self.methods
            if any(method in entries for entries in self.shifts.values())
        )

    @cached_property
    def everywhere(self) -> tuple[str, ...]:
        """The methods that ran on every shift, whose means are comparable."""
        return tuple(
            method
            for method in self.methods
            if all(self.score(shift, method) is not None for shift in self.shifts)
        )

    def mean(self, method: str, metric: str | None = None) -> float:
        """Return the mean of a metric (default: the ranking metric) over shifts."""
        name = metric or self.metric.name
        values = (entries[method].means.get(name) for entries in self.shifts.values())
        return statistics.fmean(value for value in values if value is not None)

    def worst(self, method: str) -> str:
        """Return the shift with the worst score of a method that ran on every shift."""
        return max(self.shifts, key=lambda shift: self.losses(shift)[method])

    def best(self) -> str:
        """Return the method with the best mean over shifts, except ``auto``."""
        sign = 1 if self.metric.better == "lower" else -1
        singles = [method for method in self.everywhere if method != AUTO]
        return min(singles, key=lambda method: sign * self.mean(method))

    def mean_rank(self, method: str) -> float:
        """Return a method's mean rank among the methods that ran on every shift."""
        comparable = replace(self, methods=self.everywhere)
        return statistics.fmean(comparable.ranks(shift)[method] for shift in self.shifts)

    def regret(self, method: str) -> float:
        """Return the mean regret of a method over shifts: its loss minus the lowest loss."""
        by_shift = [self.losses(shift) for shift in self.shifts]
        return statistics.fmean(
            losses[method] - min(loss for name, loss in losses.items() if name != AUTO)
            for losses in by_shift
        )

    def harm(self, shift: str, method: str) -> float | None:
        """Return a method's loss minus the better baseline's loss."""
        losses = self.losses(shift)
        baselines = [losses[name] for name in BASELINES if name in losses]
        return losses[method] - min(baselines) if method in losses and baselines else None

    def harmed(self, method: str, by: float = HARMS[0]) -> tuple[str, ...]:
        """Return the shifts where a method is worse than the better baseline by more than `by`."""
        harms = {
            shift: harm
            for shift in self.shifts
            if (harm := self.harm(shift, method)) is not None and harm > by
        }
        return tuple(sorted(harms, key=lambda shift: -harms[shift]))

    def took(self, shift: str, method: str = AUTO) -> dict[str, int]:
        """Count the methods that `method` (usually auto) chose on a shift, most frequent first."""
        fits = (record.fits.get(method) for record in self.records[shift])
        return dict(Counter(fit.method_used for fit in fits if fit is not None).most_common())

    def failed(self, shift: str, method: str = AUTO) -> dict[str, int]:
        """Count the failed checks on a shift, most frequent first."""
        fits = (record.fits.get(method) for record in self.records[shift])
        names = (g.name for fit in fits if fit is not None for g in fit.guards if not g.passed)
        return dict(Counter(names).most_common())

    def estimate(self, shift: str) -> tuple[float, float, float] | None:
        """Return the estimated accuracy and its interval, as means over seeds."""
        estimates = [record.estimates[0] for record in self.records[shift] if record.estimates]
        if not estimates:
            return None
        numbers = ((estimate.accuracy, estimate.low, estimate.high) for estimate in estimates)
        accuracy, low, high = map(statistics.fmean, zip(*numbers, strict=True))
        return accuracy, low, high

    def coverage(self, truth: Callable[[Record], float] | None = None) -> Coverage | None:
        """Return the errors of the estimated accuracies; None without estimates.

        `truth` returns the true accuracy of a run. Default: the accuracy on labelled test rows.
        """
        true = truth or _measured_accuracy
        by_shift = {
            shift: [(record.estimates[0], true(record)) for record in records if record.estimates]
            for shift, records in self.records.items()
        }
        by_shift = {shift: pairs for shift, pairs in by_shift.items() if pairs}
        if not by_shift:
            return None
        contained = {
            shift: statistics.fmean(
                estimate.low <= accuracy <= estimate.high for estimate, accuracy in pairs
            )
            for shift, pairs in by_shift.items()
        }
        return Coverage(
            shifts=len(contained),
            error=statistics.fmean(
                statistics.fmean(abs(estimate.accuracy - accuracy) for estimate, accuracy in pairs)
                for pairs in by_shift.values()
            ),
            held=statistics.fmean(contained.values()),
            width=statistics.fmean(
                statistics.fmean(estimate.high - estimate.low for estimate, _ in pairs)
                for pairs in by_shift.values()
            ),
            missed=tuple(shift for shift, share in contained.items() if share < 0.5),
        )


def _measured_accuracy(record: Record) -> float:
    return record.metrics[BASELINES[0]]["accuracy"] or 0.0


def _over_seeds(records: Collection[Record], method: str) -> Entry:
    values = {
        name: [v for record in records if (v := record.metrics[method].get(name)) is not None]
        for name in METRICS
    }
    return Entry(
        temperature=statistics.fmean(record.temperature(method) for record in records),
        means={name: statistics.fmean(scores) for name, scores in values.items() if scores},
        deviations={
            name: statistics.stdev(scores) if len(scores) > 1 else 0.0
            for name, scores in values.items()
            if scores
        },
    )


DEFAULTS = CompareSettings()


def compare(
    paths: Sequence[str | Path],
    folder: str | Path,
    settings: CompareSettings = DEFAULTS,
    *,
    progress: ProgressCallback | None = None,
) -> Comparison:
    """Adapt, calibrate and evaluate every file with every seed.

    Parameters
    ----------
    paths : sequence of str or Path
        Features or adapted files, one per shift, with labelled target test rows.
    folder : str or Path
        Folder for adapted files and records, which later calls reuse.
    settings : CompareSettings
    progress : callable, optional
        Called with a `Progress` after each run.

    Raises
    ------
    CovcalError
        If two files have the same name, or a run fails. Finished records are kept.
    """
    shifts = _named(paths)
    runs = [
        Run(name, path, seed) for name, path in shifts.items() for seed in range(settings.seeds)
    ]
    return compare_runs(runs, folder, settings, progress=progress)


def compare_runs(
    runs: Sequence[Run],
    folder: str | Path,
    settings: CompareSettings = DEFAULTS,
    *,
    progress: ProgressCallback | None = None,
) -> Comparison:
    """Run every shift with every seed, and compare the methods.

    Each pair of a shift and a seed must be unique.
    """
    folder, tell = Path(folder), progress or silent
    if folder.exists() and not folder.is_dir():
        raise CovcalError(
            f"{folder} is a file, but compare needs a folder for its records: name another path"
        )
    done: dict[Run, Record] = {}
    tell(Progress("compare", 0, len(runs)))
    with closing(finished(runs, folder, settings)) as records:
        for run, record in records:
            done[run] = record
            tell(Progress("compare", len(done), len(runs)))
    shifts: dict[str, tuple[Record, ...]] = {}
    for run in runs:
        shifts[run.shift] = (*shifts.get(run.shift, ()), done[run])
    return Comparison(METRICS[settings.metric], settings.fitted, shifts)


def _named(paths: Sequence[str | Path]) -> dict[str, Path]:
    shifts: dict[str, Path] = {}
    for path in map(Path, paths):
        if path.stem in shifts:
            raise CovcalError(
                f"{shifts[path.stem]} and {path} are both called {path.stem}, but a shift gets "
                "the name of its file: rename one of the files"
            )
        shifts[path.stem] = path
    if not shifts:
        raise CovcalError("there is no file to compare on: give at least one features file")
    return shifts
