"""What to expect of calibrations on a target without labels.

The accuracy is estimated and the mean confidence of every calibration is measured, for it needs no
label. If the estimate is right, the ECE is at least their distance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.estimation import Estimation, estimate
from covcal_cli.files import sha256_of
from covcal_cli.formats.features import FeatureFile
from covcal_cli.formats.forecaster import read_named, scaled_logits
from covcal_cli.problem import EstimateSettings, mean_confidence
from covcal_cli.records import Input, encoded, write_document


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
    asked: Mapping[str, Any] | None = None,
    *,
    networks: Path | None = None,
) -> Expectation:
    """Estimate the target accuracy, and see the confidence of calibrations against it.

    Parameters
    ----------
    path : Path
        A features or adapted file.
    documents : sequence of Path
        Calibrations of its classifier.
    asked : mapping, optional
        Fields of `EstimateSettings`; the others are as the first calibration was made with.
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
    settings: dict[str, Any] = dict(asked or {})
    if calibrations:
        first = next(iter(calibrations.values()))
        made = {"max_weight": first.max_weight, "seed": first.seed}
        settings = made | {"target_prior": first.target_prior["name"]} | settings
    with FeatureFile(path) as file:
        scaled = scaled_logits(file, calibrations, documents, networks)
        estimation = estimate(path, EstimateSettings(**settings))
        target, accuracy = file.require_target(), estimation.estimates[0].accuracy
        rows = np.union1d(target.rows("train"), target.rows("validation"))
        before = mean_confidence(target, rows, target.logits, 1.0) if scaled else 0.0
        found = []
        for name, entry in scaled.items():
            after = mean_confidence(target, rows, entry.of(target), entry.temperature)
            numbers = (before, after, accuracy, abs(after - accuracy))
            found.append(ExpectedCalibration(name, entry.temperature, len(rows), *numbers))
    inputs = (Input("calibration", document, sha256_of(document)) for document in documents)
    return Expectation(estimation, tuple(found), tuple(inputs))


def expectation_document(expectation: Expectation, document: Path) -> dict[str, Any]:
    """Return the content of estimate.json; paths are relative to `document`."""
    content: dict[str, Any] = encoded(expectation.estimation, document)
    if expectation.calibrations:
        content["calibrations"] = encoded(expectation.calibrations, document)
        content["inputs"] += encoded(expectation.inputs, document)
    return content


def write_expectation(expectation: Expectation, path: Path, *, force: bool) -> None:
    """Write estimate.json, whole or not at all."""
    write_document(expectation_document(expectation, path), path, force=force)
