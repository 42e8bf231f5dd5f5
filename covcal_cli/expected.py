"""What to expect of calibrations on a target without labels.

The accuracy is estimated and the mean confidence of every calibration is measured, for it needs no
label. If the estimate is right, the ECE is at least their distance.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.calibration import Input
from covcal_cli.estimation import Estimation, estimate, estimation_document
from covcal_cli.featurefile import Domain, FeatureFile, Rows
from covcal_cli.files import relative_to_folder_of, sha256_of, write_text
from covcal_cli.forecasters import forecaster_logits, log_probabilities
from covcal_cli.namedcalibrations import ScaledLogits, read_named, scaled_logits
from covcal_cli.softmax import exp


@dataclass(frozen=True)
class ExpectedCalibration:
    """One calibration on target training and validation rows, as estimate.json has it."""

    name: str
    temperature: float
    rows: int
    mean_confidence_before: float  # of the classifier as it came
    mean_confidence: float
    estimated_accuracy: float  # the combined estimate
    distance: float  # of the two: no ECE is smaller than the gap of its means


@dataclass(frozen=True)
class Expectation:
    """Estimates of the accuracy, and what they say of calibrations."""

    estimation: Estimation
    calibrations: tuple[ExpectedCalibration, ...] = ()
    inputs: tuple[Input, ...] = ()  # the calibrations' files


def expect(
    path: Path,
    documents: Sequence[Path] = (),
    *,
    target_prior: str | None = None,
    max_weight: float | None = None,
    seed: int | None = None,
    networks: Path | None = None,
) -> Expectation:
    """Estimate the target accuracy, and see the confidence of calibrations against it.

    Parameters
    ----------
    path : Path
        A features or adapted file.
    documents : sequence of Path
        Calibrations of its classifier.
    target_prior, max_weight, seed
        As `estimation.estimate` has them; None: as the first calibration was made with.
    networks : Path, optional
        The adapted file with an fl method's networks, if it has moved.

    Raises
    ------
    CovcalError
        If the file allows no estimate, or a calibration does not fit it.
    UnusedOptionError
        If `networks` are given and no calibration needs any.
    """
    calibrations = read_named(documents, networks)
    asked = {"target_prior": target_prior, "max_weight": max_weight, "seed": seed}
    settings: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if calibrations:
        first = next(iter(calibrations.values()))
        made = {"max_weight": first.max_weight, "seed": first.seed}
        settings = made | {"target_prior": first.target_prior["name"]} | settings
    with FeatureFile(path) as file:
        scaled = scaled_logits(file, calibrations, documents, networks)
        estimation = estimate(path, **settings)
        target, accuracy = file.require_target(), estimation.estimates[0].accuracy
        rows = np.union1d(target.rows("train"), target.rows("validation"))
        before = _mean_confidence(target, rows, ScaledLogits("original", 1.0)) if scaled else 0.0
        found = []
        for name, entry in scaled.items():
            after = _mean_confidence(target, rows, entry)
            numbers = (before, after, accuracy, abs(after - accuracy))
            found.append(ExpectedCalibration(name, entry.temperature, len(rows), *numbers))
    inputs = (Input("calibration", document, sha256_of(document)) for document in documents)
    return Expectation(estimation, tuple(found), tuple(inputs))


def _mean_confidence(target: Domain, rows: Rows, scaled: ScaledLogits) -> float:
    """Return the mean calibrated probability of the classifier's own labels."""
    total = 0.0
    for block in target.blocks(rows, "logits", scaled.reads):
        labels = forecaster_logits(target, block, "original").argmax(axis=0)
        logits = forecaster_logits(target, block, scaled.forecaster, scaled.networks)
        probabilities = exp(log_probabilities(logits, scaled.temperature))
        total += float(probabilities[labels, np.arange(len(block))].sum())
    return total / len(rows)


def expectation_document(expectation: Expectation, document: Path) -> dict[str, Any]:
    """Return the content of estimate.json; paths are relative to `document`."""
    content = estimation_document(expectation.estimation, document)
    if expectation.calibrations:
        content["calibrations"] = [asdict(entry) for entry in expectation.calibrations]
        content["inputs"] += [
            {
                "role": entry.role,
                "path": relative_to_folder_of(entry.path, document),
                "sha256": entry.sha256,
            }
            for entry in expectation.inputs
        ]
    return content


def write_expectation(expectation: Expectation, path: Path, *, force: bool) -> None:
    """Write estimate.json, whole or not at all."""
    content = expectation_document(expectation, path)
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n", force=force)
