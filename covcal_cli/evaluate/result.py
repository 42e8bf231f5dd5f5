"""The results of evaluations, and the content of metrics.json.

To add a metric of decisions, add an entry to `DECIDED` and a property to `DecisionMetrics`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from covcal_cli import __version__
from covcal_cli.arrays import Float64s, Labels, Rows
from covcal_cli.errors import CovcalError
from covcal_cli.evaluate.bins import Bins, GroupMetrics
from covcal_cli.evaluate.bootstrap import (
    LEVEL,
    RESAMPLES,
    Difference,
    Interval,
    PairedRows,
    Resampling,
    ece_intervals,
)
from covcal_cli.evaluate.metrics import METRICS, Display, Metric, Metrics, require_possible
from covcal_cli.forecast import NONE
from covcal_cli.formats.decision import Decision
from covcal_cli.formats.features import ALL, Domain
from covcal_cli.maths.odds import interval_of_counts
from covcal_cli.maths.softmax import Forecasters, Scaling, Softmax, exp
from covcal_cli.records import Count, Document, Input, Share, at, require_ascending, require_fields

Predictions = Literal["original", "own"]
_TABLE = (
    Metric("accepted_error", Display("error of accepted rows"), None, interval="share"),
    Metric("coverage", Display("coverage of sets"), None, "higher", interval="share"),
)
DECIDED: Mapping[str, Metric] = {metric.name: metric for metric in _TABLE}
GATED: Mapping[str, Metric] = {**METRICS, **DECIDED}

UNCALIBRATED = "the uncalibrated classifier"
# Matches ``none`` and ``none (mean of 3 labels)``.
_NONE = re.compile(rf"{NONE}(?= \(mean |$)")


def measured_name(calibration: str) -> str:
    """Return a calibration's name for messages: ``none`` is "the uncalibrated classifier"."""
    return _NONE.sub(UNCALIBRATED, calibration)


@dataclass
class DecisionMetrics:
    """Counts of accepted rows, errors and set sizes for a decision."""

    decision: Decision
    calibration: str
    n: int = 0
    accepted: int = 0
    wrong: int = 0
    covered: int = 0  # Number of prediction sets with the right class.
    members: int = 0  # Sum of the sizes of all prediction sets.

    def add(
        self, forecast: Softmax, top: Labels, labels: Labels, domain: Domain, rows: Rows
    ) -> None:
        """Add a block of rows with predicted labels `top` and true labels `labels`."""
        places = np.arange(len(labels))
        confidence = exp(forecast.logs_at(top * len(labels) + places))
        accepted = self.decision.accepts(confidence, domain, rows)
        self.n += len(labels)
        self.accepted += int(accepted.sum())
        self.wrong += int((top != labels)[accepted].sum())
        if self.decision.sets is not None:
            members = self.decision.sets.members(forecast.probabilities.T)
            self.covered += int(members[places, labels].sum())
            self.members += int(members.sum())

    @property
    def accepted_share(self) -> float | None:
        """Share of accepted rows."""
        return self.accepted / self.n if self.decision.accepts_rows else None

    @property
    def accepted_error(self) -> float | None:
        """Error rate of the accepted rows; None if no row is accepted."""
        return self.wrong / self.accepted if self.accepted else None

    @property
    def coverage(self) -> float | None:
        """Share of prediction sets that contain the right class."""
        return None if self.decision.sets is None else self.covered / self.n

    @property
    def set_size(self) -> float | None:
        """Mean number of classes in a prediction set."""
        return None if self.decision.sets is None else self.members / self.n

    def value(self, name: str) -> float:
        """Return a metric of `DECIDED`; raise `CovcalError` if it has no value."""
        value: float | None = getattr(self, name)
        if value is not None:
            return value
        if name == "coverage":
            raise CovcalError(
                "the decision has no sets, so coverage has no value: run covcal decide with --set"
            )
        raise CovcalError("the decision accepts no row, so accepted_error has no value")

    def rows(self, name: str) -> int:
        """Return the number of rows from which a metric of `DECIDED` is computed."""
        return self.accepted if name == "accepted_error" else self.n

    def interval(self, name: str, level: float) -> Interval:
        """Return the interval of a metric of `DECIDED`."""
        hits = self.wrong if name == "accepted_error" else self.covered
        self.value(name)
        return interval_of_counts(hits, self.rows(name), level)

    def to_json(self) -> dict[str, object]:
        """Return the counts and the shares as a JSON object."""
        of_decision = {name: getattr(self.decision, name) for name in ("error", "is_promise")}
        counts = {name: getattr(self, name) for name in ("n", "accepted", "wrong")}
        names = ("accepted_share", "accepted_error", "coverage", "set_size")
        shares = {name: getattr(self, name) for name in names}
        return {"calibration": self.calibration, **of_decision, **counts, **shares}


def require_unseen(decision: Decision, path: Path, data: Input, split: str) -> None:
    """Raise a CovcalError if the decision was made on these rows."""
    made_on = {entry.sha256 for entry in decision.inputs if entry.role == data.role}
    if data.sha256 in made_on and (split == ALL or split in decision.splits):
        raise CovcalError(
            f"the decision was made on {' and '.join(decision.splits)} rows of {path}: "
            "measure the decision on another split, such as --split test"
        )


@dataclass(frozen=True)
class Verdict:
    """Whether one calibration exceeds one limit, as in metrics.json."""

    metric: str
    limit: float
    calibration: str
    value: float
    exceeded: bool
    low: float | None = None  # lower end of the interval
    high: float | None = None
    by: str | None = None  # grouping: "class", "predicted" or a column; None for all rows
    group: str | None = None
    n: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether the result is open, because the interval contains the limit."""
        if self.low is None or self.high is None or self.exceeded:
            return False
        if GATED[self.metric].better == "higher":
            return self.low < self.limit
        return self.high > self.limit


@dataclass(frozen=True)
class Change:
    """The change of a metric of one calibration since the baseline, as in metrics.json."""

    metric: str
    limit: float  # largest allowed deterioration
    calibration: str
    before: float
    value: float
    worse_by: float  # the deterioration; negative if the metric improved
    exceeded: bool
    baseline: str
    low: float | None = None  # lower end of the interval of `worse_by`
    high: float | None = None
    same_rows: bool = False  # whether the baseline was measured on the same rows

    @property
    def is_open(self) -> bool:
        """Whether the result is open, because the interval contains the limit."""
        return not self.exceeded and self.high is not None and self.high > self.limit


@dataclass(frozen=True)
class Since:
    """A calibration and its earlier version, measured on the same rows."""

    before: Metrics
    paired: PairedRows
    after: Metrics

    def differences(self, resampling: Resampling) -> dict[str, Difference]:
        """Return the changes of all metrics, by name."""
        areas = auroc_of(self.before), auroc_of(self.after)
        changes = self.paired.differences("now", "before", resampling, areas)
        return {change.metric: change for change in changes}


def auroc_of(metrics: Metrics) -> float | None:
    """Return the AUROC, or None if it was not requested."""
    return metrics.correctness_auroc if "correctness_auroc" in metrics.names else None


@dataclass(frozen=True)
class Evaluation:
    """The metrics of all calibrations, and of the uncalibrated classifier, on the same rows."""

    split: str
    predictions: Predictions
    labelled: int  # Number of labelled target rows of all splits.
    total: int  # Number of target rows of all splits.
    unlabelled: int  # Number of measured rows without a label.
    left_out: int  # Number of rows left out because a calibration was fitted to them.
    metrics: dict[str, Metrics]  # ``none`` first.
    scalings: dict[str, Scaling]
    inputs: tuple[Input, ...]
    # Metrics of each predicted class, by calibration; empty with too many classes.
    classes: dict[str, tuple[GroupMetrics, ...]] = field(default_factory=dict)
    by: str | None = None  # grouping: "class", "predicted" or a column
    groups: dict[str, tuple[GroupMetrics, ...]] = field(default_factory=dict)
    # The rows of each group in bins. The keys are the grouping, the calibration and the group.
    counts: Mapping[str, Mapping[str, Mapping[str, Bins]]] = field(default_factory=dict)
    resamples: int = 0
    level: float = LEVEL
    seed: int = 0
    intervals: dict[str, dict[str, Interval]] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()
    # Counts of rows by the confidences of two calibrations, the later calibration first.
    pairs: Mapping[tuple[str, str], PairedRows] = field(default_factory=dict)
    since: dict[str, Since] = field(default_factory=dict)
    decision: DecisionMetrics | None = None
    model: str = ""
    notes: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        """Number of measured rows."""
        return self.metrics[NONE].n

    @property
    def subject(self) -> str:
        """The measured calibrations, or the uncalibrated classifier, in words."""
        return ", ".join(name for name in self.metrics if name != NONE) or UNCALIBRATED

    @property
    def in_all_splits(self) -> int:
        """Number of labelled rows in all splits; 0 if every labelled row was measured."""
        return self.labelled if self.labelled > self.n + self.left_out else 0

    @property
    def resampling(self) -> Resampling:
        """The settings with which the intervals were computed."""
        return Resampling(self.resamples, self.seed, self.level)

    @cached_property
    def judged(self) -> "Evaluation":
        """The evaluation with intervals from `RESAMPLES` resamples, for verdicts in words."""
        if self.resamples == RESAMPLES:
            return self
        resampling = replace(self.resampling, resamples=RESAMPLES)
        return replace(
            self,
            resamples=RESAMPLES,
            intervals={
                name: ece_intervals(entry.bins, resampling) for name, entry in self.metrics.items()
            },
            differences=tuple(
                change
                for (after, before), paired in self.pairs.items()
                for change in paired.differences(after, before, resampling)
            ),
        )

    def difference(self, calibration: str, against: str, metric: str) -> Difference | None:
        """Return the difference of a metric between two calibrations; None if not computed."""
        wanted = (calibration, against, metric)
        for change in self.differences:
            if (change.calibration, change.against, change.metric) == wanted:
                return change
        return None


@dataclass(frozen=True)
class MetricsRecord(Document):
    """The keys of metrics.json that covcal reads. Old files lack some keys."""

    schema: ClassVar[str] = "covcal.metrics/1"

    metrics: Mapping[str, Mapping[str, float | None]]
    n: Count
    split: str
    predictions: str
    edges: tuple[float, ...] = field(metadata=at("bins.edges"))
    bins: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict, metadata=at("bins.calibrations")
    )
    temperatures: Mapping[str, float] = field(default_factory=dict)
    forecasters: Mapping[str, Forecasters] = field(default_factory=dict)
    # Temperature T_a of the aligned logits, for blends.
    aligned_temperatures: Mapping[str, float] = field(default_factory=dict)
    bootstrap: Mapping[str, Any] | None = None
    intervals: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    # Metrics of predicted classes, of the worst class, and of groups, by calibration.
    classes: Mapping[str, tuple[GroupMetrics, ...]] = field(default_factory=dict)
    worst_class: Mapping[str, GroupMetrics] = field(default_factory=dict)
    groups: Mapping[str, tuple[GroupMetrics, ...]] = field(default_factory=dict)
    limits: tuple[Verdict, ...] = ()
    regressions: tuple[Change, ...] = ()

    def __post_init__(self) -> None:
        if self.bootstrap is not None:
            require_fields("bootstrap", self.bootstrap, {"level": Share})
            if not 0 < self.bootstrap["level"] < 1:
                raise ValueError(f"bootstrap.level is {self.bootstrap['level']}")
        for name, values in self.metrics.items():
            if (n := values.get("n", self.n)) != self.n:
                raise ValueError(f"metrics.{name}.n is {n}, but n is {self.n}")
            require_possible(f"metrics.{name}", values, self.n)
        for name, intervals in self.intervals.items():
            for metric, ends in intervals.items():
                if len(ends) != 2:
                    raise ValueError(f"intervals.{name}.{metric} has {len(ends)} entries, not 2")
                require_ascending(low=ends[0], high=ends[1])
                for end in ends if metric in METRICS else ():
                    METRICS[metric].limits.require(f"intervals.{name}.{metric}", end)

    def bins_of(self, name: str) -> Bins | None:
        """Return the bins of a calibration; None if they are missing or damaged."""
        arrays = self.bins.get(name, {})
        try:
            counts, confidence, accuracy = (
                np.array([0.0 if value is None else float(value) for value in arrays[key]])
                for key in ("count", "confidence", "accuracy")
            )
            hits, sums = counts * accuracy, counts * confidence
        except (KeyError, TypeError, ValueError):
            return None
        possible = all(((part >= 0) & (part <= counts)).all() for part in (hits, sums))
        if not possible or counts.sum() != self.n:
            return None
        return Bins(counts.astype(np.int64), np.rint(hits).astype(np.int64), sums)


def metrics_document(
    evaluation: Evaluation, verdicts: Sequence[Verdict], changes: Sequence[Change] = ()
) -> dict[str, Any]:
    """Return the content of metrics.json."""
    metrics, scalings = evaluation.metrics, evaluation.scalings.items()
    return {
        "schema": MetricsRecord.schema,
        "version": __version__,
        "name": evaluation.model,
        "subject": evaluation.subject,
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
        "bootstrap": evaluation.resampling if evaluation.resamples else None,
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


def _worst(classes: Sequence[GroupMetrics]) -> GroupMetrics:
    def share(group: GroupMetrics) -> float:
        return group.n * abs((group.mean_confidence or 0.0) - (group.accuracy or 0.0))

    return max(classes, key=share)


def _nullable(values: Float64s) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]
