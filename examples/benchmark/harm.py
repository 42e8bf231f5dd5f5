"""Where auto made a model worse than it was, and which guard should have held it back.

The truth decides, which no guard can see. Where auto took cot all three of its guards passed, and

- ``detectable shift`` should have failed if the classifier is no worse on the target than on the
  source at all;
- ``precision`` should have failed if the truth lies inside COT's interval of sampling: the noise
  was too much;
- ``second witness`` should have failed if the truth lies outside it and the classes are not as
  frequent as on the source: COT took other frequencies for errors;
- no guard looks at what remains with classes as frequent as on the source: a truth above the
  interval, where COT took doubt for errors, or one below it, where errors leave the predicted
  shares as they are and COT cannot see them.

Where auto took temp, and uncalibrated probabilities were better, it is ``source errors``: T_s rests
on too few of them. auto prints that guard and does not ask it.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.summary import MAX_HARM, per_shift
from covcal_cli.calibrate.methods import AUTO
from covcal_cli.estimators.guards import MAX_PRIOR_DRIFT

Record = Mapping[str, Any]
DETECTABLE, WITNESS, PRECISION = "detectable shift", "second witness", "precision"
ERRORS = "source errors"
DOUBT, UNSEEN = "none: doubt taken for errors", "none: errors that leave class shares unchanged"


@dataclass(frozen=True)
class Harm:
    """A shift on which auto is too much worse than the better of none and temp."""

    family: str
    shift: str
    points: float  # by how much, on average over seeds
    guard: str  # the one that should have held, in most seeds, or why there is none
    took: dict[str, int]  # seeds by the method that auto took
    estimated: float  # mean accuracy in percent by COT
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
        found.append(
            Harm(
                family=one.family,
                shift=one.shift,
                points=points,
                guard=Counter(map(to_blame, runs)).most_common(1)[0][0],
                took=dict(Counter(run["auto"]["method_used"] for run in runs).most_common()),
                estimated=100 * statistics.fmean(r["estimates"]["cot"]["accuracy"] for r in runs),
                true=100 * statistics.fmean(r["truth"]["accuracy"] for r in runs),
                guards=_guards(runs),
            )
        )
    return sorted(found, key=lambda harm: -harm.points)


def to_blame(record: Record) -> str:
    """Return the name of the guard that should have failed in a run."""
    if record["auto"]["method_used"] != "cot":
        return ERRORS
    truth, cot = record["truth"], record["estimates"]["cot"]
    if truth["accuracy"] >= truth["source_accuracy"]:
        return DETECTABLE
    if cot["low"] <= truth["accuracy"] <= cot["high"]:
        return PRECISION
    if truth["prior_drift"] > MAX_PRIOR_DRIFT:
        return WITNESS
    return DOUBT if truth["accuracy"] > cot["high"] else UNSEEN


def _guards(runs: Sequence[Record]) -> dict[str, tuple[float, float]]:
    values: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        for guard in run["auto"]["guards"]:
            values[guard["name"]].append((guard["value"], guard["threshold"]))
    return {
        name: (statistics.fmean(v for v, _ in found), statistics.fmean(t for _, t in found))
        for name, found in values.items()
    }
