"""Find the reason why the method auto increased the ECE on a shift.

- ``estimators disagree``: the estimates of the accuracy differed, and auto warned.
- ``chance``: the estimators agreed, and the true accuracy is inside the estimated range.
- ``estimate too low``: the true accuracy is above the estimated range. Low confidence or changed
  class frequencies led all estimators to expect too many errors.
- ``estimate too high``: the true accuracy is below the estimated range.
"""

from collections import Counter
from collections.abc import Sequence

from benchmark.labels import Truth
from covcal_cli.calibrate.methods import AUTO
from covcal_cli.compare.runs import Record

DISAGREE, CHANCE, UNESTIMATED = "estimators disagree", "chance", "no estimate"
TOO_LOW, TOO_HIGH = "estimate too low", "estimate too high"


def cause_of_harm(records: Sequence[Record], truths: Sequence[Truth]) -> str:
    """Return the most frequent reason among the runs of a shift."""
    causes = Counter(map(_cause, records, truths))
    return causes.most_common(1)[0][0]


def _cause(record: Record, truth: Truth) -> str:
    guards = record.fits[AUTO].guards
    if any(guard.name == DISAGREE and not guard.passed for guard in guards):
        return DISAGREE
    if not record.estimates:
        return UNESTIMATED
    estimate = record.estimates[0]
    if estimate.low <= truth.accuracy <= estimate.high:
        return CHANCE
    return TOO_LOW if truth.accuracy > estimate.high else TOO_HIGH
