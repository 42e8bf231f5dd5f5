"""The result of a decision on labelled rows: the error of accepted rows, and the coverage of sets.

To add such a metric, add an entry to `DECIDED`, and a property to `DecisionMetrics`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covcal_cli.arrays import Labels
from covcal_cli.errors import CovcalError
from covcal_cli.evaluate.bootstrap import Interval
from covcal_cli.evaluate.metrics import METRICS, Display, Metric
from covcal_cli.formats.decision import Decision
from covcal_cli.formats.features import ALL
from covcal_cli.maths.odds import wilson
from covcal_cli.maths.softmax import Softmax, exp
from covcal_cli.records import Input

_TABLE = (
    Metric("accepted_error", Display("error of accepted rows"), None, interval="share"),
    Metric("coverage", Display("coverage of sets"), None, "higher", interval="share"),
)
DECIDED: Mapping[str, Metric] = {metric.name: metric for metric in _TABLE}
# Every metric that a gate can have.
GATED: Mapping[str, Metric] = {**METRICS, **DECIDED}


@dataclass(frozen=True, kw_only=True)
class DecisionMetrics:
    """The counts of one decision on labelled rows."""

    calibration: str  # the name of the calibration that the decision was made with
    accepts_rows: bool  # False: the decision makes only sets
    error: float | None  # the largest share of accepted rows that may be wrong, if it was given
    wanted: float | None  # coverage of the sets, as decided
    is_promise: bool
    n: int
    accepted: int
    wrong: int  # among the accepted rows
    covered: int  # rows whose set contains the right class
    members: int  # classes in all sets

    @property
    def accepted_share(self) -> float | None:
        """Share of the rows that is accepted."""
        return self.accepted / self.n if self.accepts_rows else None

    @property
    def accepted_error(self) -> float | None:
        """Share of the accepted rows that is wrong; None if no row is accepted."""
        return self.wrong / self.accepted if self.accepted else None

    @property
    def coverage(self) -> float | None:
        """Share of the rows whose set contains the right class."""
        return None if self.wanted is None else self.covered / self.n

    @property
    def set_size(self) -> float | None:
        """Mean number of classes in a set."""
        return None if self.wanted is None else self.members / self.n

    def value(self, name: str) -> float:
        """Return a metric of `DECIDED`; raise `CovcalError` if it has no value."""
        value: float | None = getattr(self, name)
        if value is not None:
            return value
        if name == "coverage":
            raise CovcalError("the decision has no sets, so coverage has no value: pass --set")
        raise CovcalError("the decision accepts no row, so accepted_error has no value")

    def rows(self, name: str) -> int:
        """Return the number of rows that a metric of `DECIDED` is a share of."""
        return self.accepted if name == "accepted_error" else self.n

    def interval(self, name: str, level: float) -> Interval:
        """Return Wilson's interval of a metric of `DECIDED`."""
        return wilson(self.value(name), self.rows(name), level)

    def to_json(self) -> dict[str, object]:
        """Return the counts, and the shares that they give."""
        shares = ("accepted_share", "accepted_error", "coverage", "set_size")
        counts = ("calibration", "error", "is_promise", "n", "accepted", "wrong")
        return {name: getattr(self, name) for name in (*counts, *shares)}


class DecisionCounter:
    """A counter of accepted rows and of sets, block by block."""

    def __init__(self, decision: Decision) -> None:
        self._decision = decision
        self._n = self._accepted = self._wrong = self._covered = self._members = 0

    def add(self, forecast: Softmax, top: Labels, labels: Labels) -> None:
        """Count rows; `top` are the classifier's labels, and `labels` the true ones."""
        places = np.arange(len(labels))
        accepted = self._decision.accepts(exp(forecast.logs_at(top * len(labels) + places)))
        self._n += len(labels)
        self._accepted += int(accepted.sum())
        self._wrong += int((top != labels)[accepted].sum())
        if self._decision.sets is not None:
            members = self._decision.sets.members(forecast.probabilities.T)
            self._covered += int(members[places, labels].sum())
            self._members += int(members.sum())

    def result(self, calibration: str) -> DecisionMetrics:
        """Return the metrics of all rows."""
        sets = self._decision.sets
        return DecisionMetrics(
            calibration=calibration,
            accepts_rows=self._decision.accepts_rows,
            error=self._decision.error,
            wanted=None if sets is None else sets.coverage,
            is_promise=self._decision.is_promise,
            n=self._n,
            accepted=self._accepted,
            wrong=self._wrong,
            covered=self._covered,
            members=self._members,
        )


def require_unseen(decision: Decision, path: Path, data: Input, split: str) -> None:
    """Refuse to measure a decision on rows that it was made on."""
    made_on = {entry.sha256 for entry in decision.inputs if entry.role == data.role}
    if data.sha256 in made_on and (split == ALL or split in decision.splits):
        raise CovcalError(
            f"the decision was made on {' and '.join(decision.splits)} rows of {path}: measure it "
            "on rows of another split, such as --split test"
        )
