"""Errors, regret, harm and coverage from the records, in percent and points.

A shift's error is the mean over its seeds, a family's the mean over its shifts; over a half of the
benchmark every shift weighs the same.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.families import HALVES, Half
from benchmark.runs import CEILINGS
from covcal_cli.calibrate.methods import AUTO
from covcal_cli.formats.forecaster import NONE

Record = Mapping[str, Any]
TEMP = "temp"
# Points by which a method may be worse than the better of none and temp.
MAX_HARM = 1.0


@dataclass(frozen=True)
class ShiftErrors:
    """One shift: the mean ECE in percent over seeds of every method that never refused it."""

    family: str
    shift: str
    half: Half
    seeds: int
    errors: dict[str, float]

    def harm(self, method: str) -> float:
        """Return by how many points a method is worse than the better of none and temp."""
        return self.errors[method] - min(self.errors[NONE], self.errors[TEMP])

    def best(self) -> float:
        """Return the lowest error of any single method."""
        return min(error for name, error in self.errors.items() if is_single(name))


@dataclass(frozen=True)
class Row:
    """One method over a group of shifts; errors in percent, regret in points (negative: better)."""

    method: str
    shifts: int  # on which it ran
    mean: float
    worst: float
    worst_shift: str
    over_none: float  # mean regret to none, and so on
    over_temp: float
    over_best: float | None  # to the lowest mean of this group; None if it did not run everywhere
    over_each: float  # to the best method of every shift, which nobody knows beforehand
    harmed: tuple[str, ...]  # shifts on which it does more than `MAX_HARM` harm


@dataclass(frozen=True)
class Coverage:
    """How often the interval of ``covcal estimate`` holds the true accuracy, over shifts."""

    shifts: int
    seen: float  # share for the accuracy on the rows that the estimate reads, without labels
    test: float  # share on test rows, whose own sampling noise no interval accounts for
    width: float  # mean, in points
    error: float  # mean |estimate - truth| in points, on the rows read
    missed: tuple[str, ...]  # shifts that most seeds miss


def is_single(method: str) -> bool:
    """Return whether a name is one of the methods that auto could be compared with."""
    return method != AUTO and method not in CEILINGS


def per_shift(records: Iterable[Record]) -> list[ShiftErrors]:
    """Return the errors of every shift, in the order in which shifts first appear."""
    by_shift: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        by_shift[record["family"], record["shift"]].append(record)
    found = []
    for (family, shift), runs in by_shift.items():
        names = [
            name
            for name in runs[0]["methods"]
            if all("ece" in run["methods"].get(name, {}) for run in runs)
        ]
        errors = {
            name: 100 * statistics.fmean(run["methods"][name]["ece"] for run in runs)
            for name in names
        }
        found.append(ShiftErrors(family, shift, runs[0]["half"], len(runs), errors))
    return found


def groups(shifts: Sequence[ShiftErrors]) -> dict[str, list[ShiftErrors]]:
    """Return shifts by family, half by half, and behind its families those of the half."""
    found: dict[str, list[ShiftErrors]] = {}
    for half in HALVES:
        members = [one for one in shifts if one.half == half]
        for one in members:
            found.setdefault(one.family, []).append(one)
        if members:
            found[half] = members
    return found


def best_single(shifts: Sequence[ShiftErrors]) -> str:
    """Return the method with the lowest mean among those that ran on all `shifts`."""
    names = [
        name
        for name in shifts[0].errors
        if is_single(name) and all(name in s.errors for s in shifts)
    ]
    return min(names, key=lambda name: statistics.fmean(s.errors[name] for s in shifts))


def rows(shifts: Sequence[ShiftErrors]) -> list[Row]:
    """Return a row per method that ran on any of `shifts`, in the order of the records."""
    best = best_single(shifts)
    found = []
    for method in dict.fromkeys(name for one in shifts for name in one.errors):
        ran = [one for one in shifts if method in one.errors]
        errors = [one.errors[method] for one in ran]
        worst = max(ran, key=lambda one: one.errors[method])

        def regret(others: Iterable[float], errors: Sequence[float] = errors) -> float:
            return statistics.fmean(e - o for e, o in zip(errors, others, strict=True))

        found.append(
            Row(
                method=method,
                shifts=len(ran),
                mean=statistics.fmean(errors),
                worst=worst.errors[method],
                worst_shift=worst.shift,
                over_none=regret(one.errors[NONE] for one in ran),
                over_temp=regret(one.errors[TEMP] for one in ran),
                over_best=(
                    regret(one.errors[best] for one in ran) if len(ran) == len(shifts) else None
                ),
                over_each=regret(one.best() for one in ran),
                harmed=tuple(one.shift for one in ran if one.harm(method) > MAX_HARM),
            )
        )
    return found


def coverage(records: Sequence[Record]) -> Coverage:
    """Return how the intervals of some runs fared, every shift weighing the same."""
    by_shift: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_shift[record["shift"]].append(record)

    def mean(value: Any) -> float:
        return statistics.fmean(
            statistics.fmean(float(value(run)) for run in runs) for runs in by_shift.values()
        )

    missed = tuple(
        shift
        for shift, runs in by_shift.items()
        if sum(covers(run, "accuracy") for run in runs) < len(runs) / 2
    )
    return Coverage(
        shifts=len(by_shift),
        seen=mean(lambda run: covers(run, "accuracy")),
        test=mean(lambda run: covers(run, "test_accuracy")),
        width=100 * mean(lambda run: _interval(run)[1] - _interval(run)[0]),
        error=100
        * mean(
            lambda run: abs(run["estimates"]["combined"]["accuracy"] - run["truth"]["accuracy"])
        ),
        missed=missed,
    )


def covers(record: Record, which: str) -> bool:
    """Return whether the interval holds the truth; `which` is a key of the record's ``truth``."""
    low, high = _interval(record)
    return bool(low <= record["truth"][which] <= high)


def _interval(record: Record) -> tuple[float, float]:
    found = record["estimates"]["combined"]
    return found["low"], found["high"]
