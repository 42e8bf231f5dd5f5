"""The result of an evaluation, and metrics.json."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal

from covcal_cli import __version__
from covcal_cli.arrays import Float64s
from covcal_cli.evaluate.bins import GroupMetrics
from covcal_cli.evaluate.bootstrap import LEVEL, Interval
from covcal_cli.evaluate.limits import Change, Verdict
from covcal_cli.evaluate.metrics import Metrics
from covcal_cli.evaluate.paired import Difference
from covcal_cli.forecast.forecaster import NONE
from covcal_cli.maths.scaling import Forecasters, Scaling
from covcal_cli.records import Document, Input, at, write_document

Predictions = Literal["original", "own"]


@dataclass(frozen=True)
class Since:
    """A calibration's earlier self on the rows of now, and how much it differs from that."""

    metrics: Metrics
    differences: Mapping[str, Difference]  # by metric


@dataclass(frozen=True)
class Evaluation:
    """Metrics of ``none`` and of every calibration on the same rows, by the calibration's name."""

    split: str
    predictions: Predictions  # whose label the confidence is about
    unlabelled: int  # rows of the split without a label, left out
    left_out: int  # rows of the split that a calibration was fitted to, left out for all
    metrics: dict[str, Metrics]  # ``none`` first, then in the order given
    scalings: dict[str, Scaling]  # what each does to logits
    inputs: tuple[Input, ...]
    # Rows by the label that is judged, in the order of the file's classes; not for too many.
    classes: dict[str, tuple[GroupMetrics, ...]] = field(default_factory=dict)
    by: str | None = None  # what `groups` are by
    groups: dict[str, tuple[GroupMetrics, ...]] = field(default_factory=dict)
    resamples: int = 0  # of the bootstrap; 0: none was asked for
    level: float = LEVEL  # of the intervals
    seed: int = 0  # of the bootstrap
    intervals: dict[str, dict[str, Interval]] = field(default_factory=dict)  # by metric
    # Of every calibration from ``none``, and from the first; none without resamples.
    differences: tuple[Difference, ...] = ()
    since: dict[str, Since] = field(default_factory=dict)  # of those with an earlier self
    model: str = ""  # the classifier's name
    notes: tuple[str, ...] = ()  # what a reader should know of the rows

    @property
    def n(self) -> int:
        """Rows that were judged."""
        return self.metrics[NONE].n

    def difference(self, calibration: str, against: str, metric: str) -> Difference | None:
        """Return a paired difference; None where there is none."""
        wanted = (calibration, against, metric)
        for one in self.differences:
            if (one.calibration, one.against, one.metric) == wanted:
                return one
        return None


@dataclass(frozen=True)
class MetricsRecord(Document):
    """What is read again of a metrics.json; fields with a default are younger than others."""

    schema: ClassVar[str] = "covcal.metrics/1"

    metrics: Mapping[str, Mapping[str, float | None]]  # of every calibration, by name
    n: int  # rows that were judged
    split: str
    predictions: str
    edges: tuple[float, ...] = field(metadata=at("bins.edges"))
    bins: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict, metadata=at("bins.calibrations")
    )
    temperatures: Mapping[str, float] = field(default_factory=dict)
    forecasters: Mapping[str, Forecasters] = field(default_factory=dict)
    aligned_temperatures: Mapping[str, float] = field(default_factory=dict)  # of blends
    bootstrap: Mapping[str, Any] | None = None
    intervals: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)


def metrics_document(
    evaluation: Evaluation, verdicts: Sequence[Verdict], changes: Sequence[Change] = ()
) -> dict[str, Any]:
    """Return what metrics.json holds, in the order of its keys."""
    resamples, metrics = evaluation.resamples, evaluation.metrics
    scalings = evaluation.scalings.items()
    bootstrap = {"resamples": resamples, "seed": evaluation.seed, "level": evaluation.level}
    return {
        "schema": MetricsRecord.schema,
        "version": __version__,
        "date": _today(),
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
        "worst_class": {name: _worst(found) for name, found in evaluation.classes.items()},
        "by": evaluation.by,
        "groups": evaluation.groups,
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
    """Return the class that adds the most to the class gap."""

    def share(group: GroupMetrics) -> float:
        return group.n * abs((group.mean_confidence or 0.0) - (group.accuracy or 0.0))

    return max(classes, key=share)


def _today() -> str:
    """Return the day in UTC; that of SOURCE_DATE_EPOCH, as reproducible builds have it, if set."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.fromtimestamp(int(seconds), UTC) if seconds.isdigit() else datetime.now(UTC)
    return now.date().isoformat()


def _nullable(values: Float64s) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]
