"""Why auto made a model worse than it was, and whether it said so.

- ``contradiction``: the guard of that name failed, and auto warned.
- Without it, an accuracy inside the estimate's interval is *noise*: of the estimate, or of the
  rows that judge.
- A truth above the interval is doubt, or other class frequencies, that all estimators take for
  errors; one below it are errors that none of them sees.
"""

from collections import Counter
from collections.abc import Sequence

from benchmark.labels import Truth
from covcal_cli.calibrate.methods import AUTO
from covcal_cli.compare.runs import Record

CONTRADICTION, NOISE, UNESTIMATED = "estimators disagree", "none: noise", "none: no estimate"
DOUBT, UNSEEN = "none: doubt taken for errors", "none: errors that no estimator sees"


def to_blame(records: Sequence[Record], truths: Sequence[Truth]) -> str:
    """Return the guard that failed in most runs of a shift, or why none did."""
    found = Counter(map(_of_run, records, truths))
    return found.most_common(1)[0][0]


def _of_run(record: Record, truth: Truth) -> str:
    guards = record.fits[AUTO].guards
    if any(guard.name == CONTRADICTION and not guard.passed for guard in guards):
        return CONTRADICTION
    if not record.estimates:
        return UNESTIMATED
    found = record.estimates[0]
    if found.low <= truth.accuracy <= found.high:
        return NOISE
    return DOUBT if truth.accuracy > found.high else UNSEEN
