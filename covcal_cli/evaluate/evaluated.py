"""An evaluation, and metrics.json."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from covcal_cli.calibration import Input
from covcal_cli.evaluate.limits import Verdict
from covcal_cli.evaluate.regression import Change
from covcal_cli.files import relative_to_folder_of, write_text
from covcal_cli.metrics.bootstrap import LEVEL, Interval
from covcal_cli.metrics.groups import GroupMetrics
from covcal_cli.metrics.metrics import Metrics
from covcal_cli.namedcalibrations import NONE
from covcal_cli.softmax import Array

SCHEMA = "covcal.metrics/1"
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
    evaluation: Evaluation,
    verdicts: Sequence[Verdict],
    document: Path | None,
    changes: Sequence[Change] = (),
) -> dict[str, Any]:
    """Return the content of metrics.json; paths are relative to `document` where there is one."""
    bins = next(iter(evaluation.metrics.values())).bins
    return {
        "schema": SCHEMA,
        "split": evaluation.split,
        "predictions": evaluation.predictions,
        "n": evaluation.n,
        "unlabelled": evaluation.unlabelled,
        "left_out": evaluation.left_out,
        "metrics": {name: entry.to_json() for name, entry in evaluation.metrics.items()},
        "temperatures": evaluation.temperatures,
        "bins": {
            "edges": bins.edges.tolist(),
            "calibrations": {
                name: {
                    "count": entry.bins.counts.tolist(),
                    "confidence": _nullable(entry.bins.confidence),
                    "accuracy": _nullable(entry.bins.accuracy),
                }
                for name, entry in evaluation.metrics.items()
            },
        },
        "bootstrap": {
            "resamples": evaluation.resamples,
            "seed": evaluation.seed,
            "level": LEVEL,
        }
        if evaluation.resamples
        else None,
        "intervals": {
            name: {metric: list(interval) for metric, interval in found.items()}
            for name, found in evaluation.intervals.items()
        },
        "classes": _by_calibration(evaluation.classes),
        "by": evaluation.by,
        "groups": _by_calibration(evaluation.groups),
        "limits": [
            {
                "metric": verdict.limit.metric,
                "limit": verdict.limit.limit,
                "calibration": verdict.calibration,
                "value": verdict.value,
                "exceeded": verdict.exceeded,
            }
            for verdict in verdicts
        ],
        "regressions": [change.to_json() for change in changes],
        "inputs": [
            {
                "role": entry.role,
                "path": relative_to_folder_of(entry.path, document or Path("metrics.json")),
                "sha256": entry.sha256,
            }
            for entry in evaluation.inputs
        ],
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
    content = metrics_document(evaluation, verdicts, path, changes)
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n", force=force)


def _nullable(values: Array) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def _by_calibration(
    groups: Mapping[str, Sequence[GroupMetrics]],
) -> dict[str, list[dict[str, Any]]]:
    return {name: [group.to_json() for group in found] for name, found in groups.items()}
