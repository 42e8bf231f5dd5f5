"""``covcal evaluate --estimate``: what to expect of calibrations where no target label is known.

The accuracy is estimated, as ``covcal estimate`` does; the mean confidence of every calibration is
measured, for it needs no label. If the estimate is right, the ECE is at least their distance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.alignednetworks import AlignedNetworks
from covcal_cli.calibration import Calibration
from covcal_cli.calibrationfiles import networks_for
from covcal_cli.estimation import Estimation, estimate
from covcal_cli.evaluate.limits import NONE
from covcal_cli.featurefile import Domain, FeatureFile, ForecasterName, Rows
from covcal_cli.forecasters import forecaster_logits, log_probabilities
from covcal_cli.labelfree.estimate import Estimate
from covcal_cli.problem import EstimateSettings
from covcal_cli.records import write_document
from covcal_cli.softmax import exp

SCHEMA = "covcal.estimated-metrics/1"


@dataclass(frozen=True)
class EstimatedMetrics:
    """What is expected of one calibration; fractions.

    Attributes
    ----------
    n : int
        Target rows.
    temperature : float
        T_f.
    mean_confidence : float
        Measured.
    least_ece : float
        Distance between that and the estimated accuracy: an ECE is never smaller than the gap of
        its means.
    """

    n: int
    temperature: float
    mean_confidence: float
    least_ece: float


@dataclass(frozen=True)
class EstimatedEvaluation:
    """Estimates for ``none`` and every calibration; no label was read.

    Attributes
    ----------
    split : str
    estimation : Estimation
    accuracy : Estimate
        The combined estimate of the accuracy.
    metrics : dict of str to EstimatedMetrics
    """

    split: str
    estimation: Estimation
    accuracy: Estimate
    metrics: dict[str, EstimatedMetrics]


def estimate_evaluation(
    path: Path,
    calibrations: Mapping[str, Calibration],
    *,
    split: str = "test",
    documents: Sequence[Path] = (),
    networks: Path | None = None,
    seed: int = 0,
) -> EstimatedEvaluation:
    """Estimate what `evaluation.evaluate` would measure; its arguments mean the same.

    Raises
    ------
    CovcalError
        If the file allows no estimate, the split is empty, or a calibration does not fit the file.
    """
    estimation = estimate(path, EstimateSettings(seed=seed))
    accuracy = estimation.estimates[0]
    with FeatureFile(path) as file:
        target = file.require_target()
        rows = target.require_rows(split)
        judged: dict[str, tuple[ForecasterName, float, AlignedNetworks | None]] = {
            NONE: ("original", 1.0, None)
        }
        for number, (name, calibration) in enumerate(calibrations.items()):
            document = documents[number] if number < len(documents) else Path("cal.json")
            given = networks if calibration.forecaster == "aligned" else None
            judged[name] = (
                calibration.forecaster,
                calibration.forecaster_temperature,
                networks_for(calibration, document, file, given),
            )
        means = {name: _mean_confidence(target, rows, *entry) for name, entry in judged.items()}
    return EstimatedEvaluation(
        split=split,
        estimation=estimation,
        accuracy=accuracy,
        metrics={
            name: EstimatedMetrics(len(rows), judged[name][1], mean, abs(mean - accuracy.accuracy))
            for name, mean in means.items()
        },
    )


def _mean_confidence(
    target: Domain,
    rows: Rows,
    forecaster: ForecasterName,
    temperature: float,
    networks: AlignedNetworks | None,
) -> float:
    """Return the mean calibrated probability of the classifier's own labels."""
    total = 0.0
    for block in target.blocks(rows):
        labels = forecaster_logits(target, block, "original").argmax(axis=0)
        logits = forecaster_logits(target, block, forecaster, networks)
        probabilities = exp(log_probabilities(logits, temperature))
        total += float(probabilities[labels, np.arange(len(block))].sum())
    return total / len(rows)


def estimated_document(evaluation: EstimatedEvaluation) -> dict[str, Any]:
    """Return the JSON content: every name says what is estimated."""
    accuracy = evaluation.accuracy
    return {
        "schema": SCHEMA,
        "estimated": True,
        "used_target_labels": False,
        "split": evaluation.split,
        "estimated_metrics": {
            name: {
                "n": entry.n,
                "mean_confidence": entry.mean_confidence,
                "estimated_accuracy": accuracy.accuracy,
                "estimated_accuracy_interval": [accuracy.low, accuracy.high],
                "estimated_least_ece": entry.least_ece,
            }
            for name, entry in evaluation.metrics.items()
        },
        "temperatures": {name: entry.temperature for name, entry in evaluation.metrics.items()},
        "notes": list(evaluation.estimation.notes),
    }


def write_estimated(evaluation: EstimatedEvaluation, path: Path, *, force: bool) -> None:
    """Write the estimates as JSON, whole or not at all."""
    write_document(estimated_document(evaluation), path, force=force)
