"""The result of an evaluation, and metrics.json."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from covcal_cli.arrays import Float64s
from covcal_cli.evaluate.bins import GroupMetrics
from covcal_cli.evaluate.bootstrap import LEVEL, Interval
from covcal_cli.evaluate.limits import Change, Verdict, WrittenMetrics
from covcal_cli.evaluate.metrics import Metrics
from covcal_cli.formats.forecaster import NONE
from covcal_cli.records import Input, write_document

Predictions = Literal["original", "own"]


@dataclass(frozen=True)
class Evaluation:
    """Metrics of ``none`` and of every calibration on the same rows, by the calibration's name."""

    split: str
    predictions: Predictions  # whose label the confidence is about
    unlabelled: int  # rows of the split without a label, left out
    left_out: int  # rows of the split that a calibration was fitted to, left out for all
    metrics: dict[str, Metrics]  # ``none`` first, then in the order given
    temperatures: dict[str, float]  # T_f
    inputs: tuple[Input, ...]
    # Rows by the label that is judged, in the order of the file's classes; not for too many.
    classes: dict[str, tuple[GroupMetrics, ...]] = field(default_factory=dict)
    by: str | None = None  # what `groups` are by
    groups: dict[str, tuple[GroupMetrics, ...]] = field(default_factory=dict)
    resamples: int = 0  # of the bootstrap; 0: none was asked for
    seed: int = 0  # of the bootstrap
    intervals: dict[str, dict[str, Interval]] = field(default_factory=dict)  # by metric, 95 %
    notes: tuple[str, ...] = ()  # what a reader should know of the rows

    @property
    def n(self) -> int:
        """Rows that were judged."""
        return self.metrics[NONE].n


def metrics_document(
    evaluation: Evaluation, verdicts: Sequence[Verdict], changes: Sequence[Change] = ()
) -> dict[str, Any]:
    """Return what metrics.json holds, in the order of its keys."""
    resamples, metrics = evaluation.resamples, evaluation.metrics
    bootstrap = {"resamples": resamples, "seed": evaluation.seed, "level": LEVEL}
    return {
        "schema": WrittenMetrics.schema,
        "split": evaluation.split,
        "predictions": evaluation.predictions,
        "n": evaluation.n,
        "unlabelled": evaluation.unlabelled,
        "left_out": evaluation.left_out,
        "metrics": metrics,
        "temperatures": evaluation.temperatures,
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
        "classes": evaluation.classes,
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


def _nullable(values: Float64s) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]
