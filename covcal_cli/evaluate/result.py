"""The result of an evaluation and of a decision on labelled rows, and metrics.json.

To add a metric of decisions, add an entry to `DECIDED`, and a property to `DecisionMetrics`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from covcal_cli import __version__
from covcal_cli.arrays import Float64s, Labels
from covcal_cli.errors import CovcalError
from covcal_cli.evaluate.bins import Bins, GroupMetrics
from covcal_cli.evaluate.bootstrap import LEVEL, Difference, Interval, PairedRows
from covcal_cli.evaluate.metrics import METRICS, Display, Metric, Metrics, require_possible
from covcal_cli.forecast import NONE
from covcal_cli.formats.decision import Decision
from covcal_cli.formats.features import ALL
from covcal_cli.maths.odds import wilson
from covcal_cli.maths.softmax import Forecasters, Scaling, Softmax, exp
from covcal_cli.records import (
    Count,
    Document,
    Input,
    Within,
    at,
    require_ascending,
    write_document,
)

Predictions = Literal["original", "own"]
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
    wanted: float | None  # coverage of the sets that the decision asks for
    is_promise: bool
    n: int
    accepted: int
    wrong: int  # wrong rows among the accepted rows
    covered: int  # rows whose set contains the right class
    members: int  # total number of classes in all sets

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
        """Return the number of rows behind a metric of `DECIDED`."""
        return self.accepted if name == "accepted_error" else self.n

    def interval(self, name: str, level: float) -> Interval:
        """Return Wilson's interval of a metric of `DECIDED`."""
        return wilson(self.value(name), self.rows(name), level)

    def to_json(self) -> dict[str, object]:
        """Return the counts, and the shares computed from them."""
        shares = ("accepted_share", "accepted_error", "coverage", "set_size")
        counts = ("calibration", "error", "is_promise", "n", "accepted", "wrong")
        return {name: getattr(self, name) for name in (*counts, *shares)}


class DecisionCounter:
    """A counter of accepted rows and of sets, block by block."""

    def __init__(self, decision: Decision) -> None:
        self._decision = decision
        self._n = self._accepted = self._wrong = self._covered = self._members = 0

    def add(self, forecast: Softmax, top: Labels, labels: Labels) -> None:
        """Count rows; `top` are the classifier's labels, and `labels` the true labels."""
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
    """Refuse to measure a decision on the rows with which it was made."""
    made_on = {entry.sha256 for entry in decision.inputs if entry.role == data.role}
    if data.sha256 in made_on and (split == ALL or split in decision.splits):
        raise CovcalError(
            f"the decision was made on {' and '.join(decision.splits)} rows of {path}, so these "
            "rows cannot measure it: use another split, such as --split test"
        )


@dataclass(frozen=True)
class Verdict:
    """The result of a limit on one calibration, for metrics.json."""

    metric: str
    limit: float
    calibration: str
    value: float
    # whether the whole interval, or the value if there is no interval, is beyond the limit
    exceeded: bool
    low: float | None = None  # ends of the interval
    high: float | None = None
    by: str | None = None  # the grouping and the group, for a limit on each group
    group: str | None = None
    n: int | None = None  # rows of the group, or rows that a decision accepts

    @property
    def is_open(self) -> bool:
        """Whether the interval contains the limit, so that the rows cannot decide."""
        if self.low is None or self.high is None or self.exceeded:
            return False
        if GATED[self.metric].better == "higher":
            return self.low < self.limit
        return self.high > self.limit


@dataclass(frozen=True)
class Change:
    """A metric of one calibration in the baseline and now, for metrics.json."""

    metric: str
    limit: float  # allowed change for the worse
    calibration: str
    before: float
    value: float  # now
    worse_by: float  # negative if it got better
    exceeded: bool  # whether `low`, or `worse_by` if there is no interval, is above the limit
    baseline: str  # the calibration's name in the baseline
    low: float | None = None  # ends of the interval of `worse_by`
    high: float | None = None
    same_rows: bool = False  # whether the interval is for a paired difference

    @property
    def is_open(self) -> bool:
        """Whether the interval contains the limit, so that the rows cannot decide."""
        return not self.exceeded and self.high is not None and self.high > self.limit


@dataclass(frozen=True)
class Since:
    """An earlier version of a calibration, compared with the current one on the current rows."""

    before: Metrics
    paired: PairedRows
    after: Metrics

    def differences(self, *, resamples: int, seed: int, level: float) -> dict[str, Difference]:
        """Return how much every metric changed, by name."""
        areas = tuple(
            entry.correctness_auroc if "correctness_auroc" in entry.names else None
            for entry in (self.before, self.after)
        )
        changes = self.paired.differences(
            "now", "before", (areas[0], areas[1]), resamples=resamples, seed=seed, level=level
        )
        return {change.metric: change for change in changes}


@dataclass(frozen=True)
class Evaluation:
    """Metrics of ``none`` and of every calibration on the same rows, by the calibration's name."""

    split: str
    predictions: Predictions  # the confidence is measured for these labels
    unlabelled: int  # rows of the split without a label, left out
    # rows of the split to which a calibration was fitted, left out for all calibrations
    left_out: int
    metrics: dict[str, Metrics]  # ``none`` first, then in the order given
    scalings: dict[str, Scaling]  # the scaling of each calibration
    inputs: tuple[Input, ...]
    # Rows by predicted label, in the order of the file's classes; empty for too many classes.
    classes: dict[str, tuple[GroupMetrics, ...]] = field(default_factory=dict)
    by: str | None = None  # how `groups` are formed
    groups: dict[str, tuple[GroupMetrics, ...]] = field(default_factory=dict)
    # The rows of every group in bins: by grouping, by calibration, by group.
    counts: Mapping[str, Mapping[str, Mapping[str, Bins]]] = field(default_factory=dict)
    resamples: int = 0  # number of bootstrap resamples; 0: no intervals
    level: float = LEVEL  # confidence level of the intervals
    seed: int = 0  # seed of the bootstrap
    intervals: dict[str, dict[str, Interval]] = field(default_factory=dict)  # by metric
    # Differences of every calibration from ``none`` and from the first calibration; empty without
    # resamples.
    differences: tuple[Difference, ...] = ()
    since: dict[str, Since] = field(default_factory=dict)  # earlier versions in a baseline
    decision: DecisionMetrics | None = None  # metrics of the decision in a decide.json
    model: str = ""  # the classifier's name
    notes: tuple[str, ...] = ()  # notes for the user about the rows

    @property
    def n(self) -> int:
        """Rows that were measured."""
        return self.metrics[NONE].n

    def difference(self, calibration: str, against: str, metric: str) -> Difference | None:
        """Return a paired difference, or None if it does not exist."""
        wanted = (calibration, against, metric)
        for change in self.differences:
            if (change.calibration, change.against, change.metric) == wanted:
                return change
        return None


@dataclass(frozen=True)
class MetricsRecord(Document):
    """The keys of a metrics.json that are read again; a field with a default was added later."""

    schema: ClassVar[str] = "covcal.metrics/1"

    metrics: Mapping[str, Mapping[str, float | None]]  # metrics of every calibration, by name
    n: Count  # rows that were measured
    split: str
    predictions: str
    edges: tuple[float, ...] = field(metadata=at("bins.edges"))
    bins: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict, metadata=at("bins.calibrations")
    )
    temperatures: Mapping[str, float] = field(default_factory=dict)
    forecasters: Mapping[str, Forecasters] = field(default_factory=dict)
    aligned_temperatures: Mapping[str, float] = field(default_factory=dict)  # T_a of blends
    bootstrap: Mapping[str, Any] | None = None
    intervals: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    limits: tuple[Verdict, ...] = ()
    regressions: tuple[Change, ...] = ()

    def __post_init__(self) -> None:
        for name, values in self.metrics.items():
            if (n := values.get("n", self.n)) != self.n:
                raise ValueError(f"metrics.{name}.n is {n}, and n is {self.n}")
            require_possible(f"metrics.{name}", values, self.n)
        for name, intervals in self.intervals.items():
            for metric, ends in intervals.items():
                if len(ends) != 2:
                    raise ValueError(f"intervals.{name}.{metric} has {len(ends)} entries, not 2")
                require_ascending(low=ends[0], high=ends[1])
                for end in ends if metric in METRICS else ():
                    _range_of(metric).require(f"intervals.{name}.{metric}", end)


def _range_of(metric: str) -> Within:
    """Return the possible values of a metric."""
    return Within(METRICS[metric].lowest, METRICS[metric].highest)


def metrics_document(
    evaluation: Evaluation, verdicts: Sequence[Verdict], changes: Sequence[Change] = ()
) -> dict[str, Any]:
    """Return the content of metrics.json, in the order of its keys."""
    resamples, metrics = evaluation.resamples, evaluation.metrics
    scalings = evaluation.scalings.items()
    bootstrap = {"resamples": resamples, "seed": evaluation.seed, "level": evaluation.level}
    return {
        "schema": MetricsRecord.schema,
        "version": __version__,
        "name": evaluation.model,
        "split": evaluation.split,
        "predictions": evaluation.predictions,
        "n": evaluation.n,
        "unlabelled": evaluation.unlabelled,
        "left_out": evaluation.left_out,
        "metrics": metrics,
        "temperatures": {name: scaling.temperature for name, scaling in scalings},
        "forecasters": {name: scaling.forecaster for name, scaling in scalings},
        "aligned_temperatures": {
            name: scaling.aligned_temperature
            for name, scaling in scalings
            if scaling.aligned_temperature is not None
        },
        "bins": {
            "edges": metrics[NONE].bins.edges.tolist(),
            "calibrations": {
                name: {
                    "count": entry.bins.counts.tolist(),
                    "confidence": _nullable(entry.bins.confidence),
                    "accuracy": _nullable(entry.bins.accuracy),
                }
                for name, entry in metrics.items()
            },
        },
        "bootstrap": bootstrap if resamples else None,
        "intervals": evaluation.intervals,
        "differences": evaluation.differences,
        "classes": evaluation.classes,
        "worst_class": {name: _worst(groups) for name, groups in evaluation.classes.items()},
        "by": evaluation.by,
        "groups": evaluation.groups,
        "decision": evaluation.decision,
        "limits": verdicts,
        "regressions": changes,
        "inputs": evaluation.inputs,
    }


def write_metrics(
    evaluation: Evaluation,
    verdicts: Sequence[Verdict],
    path: Path,
    *,
    force: bool,
    changes: Sequence[Change] = (),
) -> None:
    """Write metrics.json, whole or not at all."""
    write_document(metrics_document(evaluation, verdicts, changes), path, force=force)


def _worst(classes: Sequence[GroupMetrics]) -> GroupMetrics:
    """Return the class with the largest part in the class gap."""

    def share(group: GroupMetrics) -> float:
        return group.n * abs((group.mean_confidence or 0.0) - (group.accuracy or 0.0))

    return max(classes, key=share)


def _nullable(values: Float64s) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]
