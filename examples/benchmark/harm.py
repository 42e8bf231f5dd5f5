"""Where auto made a model worse than it was, and whether it said so.

- ``contradiction``: the guard of that name failed, and auto warned.
- Without it, an accuracy inside the estimate's interval is *noise*: of the estimate, or of the
  rows that judge.
- A truth above the interval is doubt, or other class frequencies, that all witnesses took for
  errors; one below it are errors that none of them sees.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.summary import MAX_HARM, per_shift
from covcal_cli.calibrate.methods import AUTO

Record = Mapping[str, Any]
CONTRADICTION, NOISE = "contradiction", "none: noise"
DOUBT, UNSEEN = "none: doubt taken for errors", "none: errors that no witness sees"


@dataclass(frozen=True)
class Harm:
    """A shift on which auto is too much worse than the better of none and temp."""

    family: str
    shift: str
    points: float  # by how much, on average over seeds
    guard: str  # the one that failed in most seeds, or why there is none
    took: dict[str, int]  # seeds by the method that auto took
    estimated: float  # mean accuracy in percent, by the combined estimate
    true: float  # and by the labels
    guards: dict[str, tuple[float, float]]  # mean value and threshold of each that auto looked at


def harmed(records: Sequence[Record]) -> list[Harm]:
    """Return the shifts that auto harmed, the worst first."""
    by_shift: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        by_shift[record["family"], record["shift"]].append(record)
    found = []
    for one in per_shift(records):
        points = one.harm(AUTO)
        if points <= MAX_HARM:
            continue
        runs = by_shift[one.family, one.shift]
        estimated = [run["estimates"]["combined"]["accuracy"] for run in runs]
        found.append(
            Harm(
                family=one.family,
                shift=one.shift,
                points=points,
                guard=Counter(map(to_blame, runs)).most_common(1)[0][0],
                took=dict(Counter(run["auto"]["method_used"] for run in runs).most_common()),
                estimated=100 * statistics.fmean(estimated),
                true=100 * statistics.fmean(r["truth"]["accuracy"] for r in runs),
                guards=_guards(runs),
            )
        )
    return sorted(found, key=lambda harm: -harm.points)


def to_blame(record: Record) -> str:
    """Return the guard that failed in a run, or why none did."""
    if any(guard["name"] == CONTRADICTION and not guard["passed"] for guard in _found(record)):
        return CONTRADICTION
    truth, found = record["truth"]["accuracy"], record["estimates"]["combined"]
    if found["low"] <= truth <= found["high"]:
        return NOISE
    return DOUBT if truth > found["high"] else UNSEEN


def _found(record: Record) -> Sequence[Mapping[str, Any]]:
    guards: Sequence[Mapping[str, Any]] = record["auto"]["guards"]
    return guards


def _guards(runs: Sequence[Record]) -> dict[str, tuple[float, float]]:
    values: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        for guard in _found(run):
            values[guard["name"]].append((guard["value"], guard["threshold"]))
    return {
        name: (statistics.fmean(v for v, _ in found), statistics.fmean(t for _, t in found))
        for name, found in values.items()
    }
