"""What an evaluation found, and metrics.json."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from covcal_cli.calibration import Input
from covcal_cli.evaluate.limits import NONE, Verdict
from covcal_cli.evaluate.regression import Change
from covcal_cli.files import relative_to_folder_of, write_text
from covcal_cli.metrics.bootstrap import LEVEL, Interval
from covcal_cli.metrics.groups import GroupMetrics
from covcal_cli.metrics.metrics import Metrics
from covcal_cli.softmax import Array

SCHEMA = "covcal.metrics/1"
Predictions = Literal["original", "own"]


@dataclass(frozen=True)
class Evaluation:
    """Metrics of ``none`` and of every calibration on the same rows.

    Attributes
    ----------
    split : str
    predictions : {"original", "own"}
        Whose label the confidence is about.
    unlabelled : int
        Rows of the split without a label, left out.
    left_out : int
        Rows of the split that a calibration was fitted to, left out for all.
    metrics : dict of str to Metrics
        ``none`` first, then in the order given.
    temperatures : dict of str to float
        T_f of each.
    inputs : tuple of Input
    classes : dict of str to tuple of GroupMetrics
        Per calibration, the rows by the label whose confidence is judged, in the order of the
        file's classes; empty where there are too many to count.
    by : str or None
        What `groups` are by.
    groups : dict of str to tuple of GroupMetrics
        Per calibration, where groups were asked for.
    resamples, seed : int
        Of the bootstrap; 0 resamples: none was asked for.
    intervals : dict of str to dict of str to (float, float)
        Per calibration and metric, 95 %, where a bootstrap was asked for.
    notes : tuple of str
        What a reader should know of the rows.
    """

    split: str
    predictions: Predictions
    unlabelled: int
    left_out: int
    metrics: dict[str, Metrics]
    temperatures: dict[str, float]
    inputs: tuple[Input, ...]
    classes: dict[str, tuple[GroupMetrics, ...]] = field(default_factory=dict)
    by: str | None = None
    groups: dict[str, tuple[GroupMetrics, ...]] = field(default_factory=dict)
    resamples: int = 0
    seed: int = 0
    intervals: dict[str, dict[str, Interval]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

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
