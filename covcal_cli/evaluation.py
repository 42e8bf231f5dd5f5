"""What ``covcal evaluate`` does: the metrics of calibrations on labelled target rows.

One pass over the file in blocks, whatever the number of calibrations. Besides `labelled` this is
the only place where target labels are read; the rows that it used are left out here.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from covcal_cli.calibration import (
    Calibration,
    Input,
)
from covcal_cli.errors import CovcalError
from covcal_cli.featurefile import Domain, FeatureFile, Rows
from covcal_cli.files import relative_to_folder_of, sha256_of, write_text
from covcal_cli.forecasters import forecaster_logits, log_probabilities
from covcal_cli.limits import NONE, Verdict
from covcal_cli.methods import Forecaster
from covcal_cli.metrics import Metrics, MetricsAccumulator
from covcal_cli.softmax import Array
from covcal_cli.target_labels import target_labels

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
    """

    split: str
    predictions: Predictions
    unlabelled: int
    left_out: int
    metrics: dict[str, Metrics]
    temperatures: dict[str, float]
    inputs: tuple[Input, ...]

    @property
    def n(self) -> int:
        """Rows that were judged."""
        return self.metrics[NONE].n


def evaluate(
    path: Path,
    calibrations: Mapping[str, Calibration],
    *,
    split: str = "test",
    bins: int = 15,
    predictions: Predictions = "original",
    documents: Sequence[Path] = (),
) -> Evaluation:
    """Measure calibrations, and the uncalibrated classifier beside them, on target rows.

    Parameters
    ----------
    path : Path
        A features or adapted file with labelled target rows in `split`.
    calibrations : mapping of str to Calibration
        By the name to report them under; see `named`.
    split : {"train", "validation", "test"}
    bins : int
        Equally wide bins of confidence, at least 1.
    predictions : {"original", "own"}
        Judge the confidence in the classifier's label, or in the forecaster's own.
    documents : sequence of Path
        The files that hold the calibrations, for the record.

    Raises
    ------
    CovcalError
        If the split is empty or unlabelled, or a calibration does not fit the file.
    """
    with FeatureFile(path) as file:
        for calibration in calibrations.values():
            calibration.require_fit(file)
        target = file.require_target()
        rows = target.require_rows(split)
        rows, left_out = _without_fitted(target, rows, calibrations)
        labels = target_labels(target, rows)
        known = labels >= 0
        if not known.any():
            raise CovcalError(
                f"{path} holds no label for its {len(rows)} target {split} rows, and evaluate "
                "needs them; covcal estimate prints the accuracy to expect without labels"
            )
        settings: dict[str, tuple[Forecaster, float]] = {NONE: ("original", 1.0)}
        for name, calibration in calibrations.items():
            settings[name] = calibration.forecaster, calibration.forecaster_temperature
        collected = {name: MetricsAccumulator(bins, len(file.classes)) for name in settings}
        kept, kept_labels, start = rows[known], labels[known], 0
        for block in target.blocks(kept):
            block_labels = kept_labels[start : start + len(block)]
            logits = _logits(target, block, {forecaster for forecaster, _ in settings.values()})
            original = logits["original"].argmax(axis=0)
            for name, (forecaster, temperature) in settings.items():
                scaled = log_probabilities(logits[forecaster], temperature)
                judged = original if predictions == "original" else scaled.argmax(axis=0)
                collected[name].add(scaled, judged, block_labels)
            start += len(block)
        role = "adapted" if file.is_adapted else "features"
        return Evaluation(
            split=split,
            predictions=predictions,
            unlabelled=int((~known).sum()),
            left_out=left_out,
            metrics={name: accumulator.result() for name, accumulator in collected.items()},
            temperatures={name: temperature for name, (_, temperature) in settings.items()},
            inputs=(
                Input(role, path, file.sha256()),
                *(Input("calibration", document, sha256_of(document)) for document in documents),
            ),
        )


def named(calibrations: Sequence[tuple[Path, Calibration]]) -> dict[str, Calibration]:
    """Name calibrations by their method, or by their file's stem where two share one.

    A calibration by none is ``none`` itself.

    Raises
    ------
    CovcalError
        If two files share method and stem.
    """
    methods = [calibration.method_used for _, calibration in calibrations]
    names: dict[str, Calibration] = {}
    for path, calibration in calibrations:
        method = calibration.method_used
        name = path.stem if methods.count(method) > 1 and method != NONE else method
        if name in names or (name == NONE and method != NONE):
            raise CovcalError(f"two calibrations would be named {name!r}: rename {path}")
        names[name] = calibration
    return names


def require_unchanged(calibration: Calibration, document: Path) -> Path:
    """Return the file that a calibration was fitted on, if it is still the same.

    Raises
    ------
    CovcalError
        If it is gone, or its sha256 is another.
    """
    entry = calibration.inputs[0]
    if not entry.path.is_file():
        raise CovcalError(
            f"{document} was fitted on {entry.path}, which is gone: name a file to evaluate"
        )
    with FeatureFile(entry.path) as file:
        if file.sha256() != entry.sha256:
            raise CovcalError(
                f"{entry.path} has changed since {document} was fitted on it: calibrate again, or "
                f"pass {entry.path} -c {document} to evaluate it all the same"
            )
    return entry.path


def metrics_document(
    evaluation: Evaluation, verdicts: Sequence[Verdict], document: Path | None
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
    evaluation: Evaluation, verdicts: Sequence[Verdict], path: Path, *, force: bool
) -> None:
    """Write metrics.json, whole or not at all."""
    content = metrics_document(evaluation, verdicts, path)
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n", force=force)


def _without_fitted(
    target: Domain, rows: Rows, calibrations: Mapping[str, Calibration]
) -> tuple[Rows, int]:
    """Return `rows` without those whose labels a calibration was fitted to, and their number.

    Rows are known by their ids, so that a calibration is judged fairly on a file made anew too.
    """
    fitted = {
        known
        for calibration in calibrations.values()
        if calibration.labelled_rows is not None
        for known in calibration.labelled_rows["ids"]
    }
    if not fitted:
        return rows, 0
    kept = np.array([known not in fitted for known in target.ids(rows)], dtype=bool)
    if not kept.any():
        raise CovcalError(
            f"{target.path}: every row to judge was used by calibrate-labelled: take fewer --rows, "
            "or another --split"
        )
    return rows[kept], int((~kept).sum())


def _logits(target: Domain, block: Rows, forecasters: set[Forecaster]) -> dict[Forecaster, Array]:
    return {name: forecaster_logits(target, block, name) for name in {*forecasters, "original"}}


def _nullable(values: Array) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]
