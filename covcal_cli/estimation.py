"""What ``covcal estimate`` does: the target accuracy by every estimator, without a target label."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covcal_cli.calibration import Input, model_of
from covcal_cli.case import Case
from covcal_cli.errors import CovcalError
from covcal_cli.featurefile import FeatureFile
from covcal_cli.files import relative_to_folder_of, write_text
from covcal_cli.labelfree.combined import combined
from covcal_cli.labelfree.estimate import Estimate
from covcal_cli.labelfree.guards import Guard, prior_drift
from covcal_cli.labelfree.panel import panel
from covcal_cli.methods import SOURCE_PRIOR, missing_for_estimate, missing_for_weights
from covcal_cli.minimised import guards_on_weights
from covcal_cli.remarks import notes_on_rows
from covcal_cli.softmax import Array
from covcal_cli.weights import DEFAULT_MAX_WEIGHT

SCHEMA = "covcal.estimate/1"


@dataclass(frozen=True)
class Estimation:
    """Everything that ``covcal estimate`` found, as its JSON holds it.

    Attributes
    ----------
    estimates : tuple of Estimate
        The combined one first.
    guards : tuple of Guard
        On what several estimates share: the domains' overlap, the drift of predicted labels.
    temperature : float
        T_s, at which confidences are calibrated on the source.
    rows : tuple of int
        Source and target rows that were read.
    prior_name : str
        As asked for.
    prior : array of float64, shape (K,), or None
        Class frequencies on the target where they are not the source's.
    seed : int
    max_weight : float
        U.
    classes : tuple of str
    model : mapping
        Name and sha256 of the classifier.
    inputs : tuple of Input
    notes : tuple of str
    """

    estimates: tuple[Estimate, ...]
    guards: tuple[Guard, ...]
    temperature: float
    rows: tuple[int, int]
    prior_name: str
    prior: Array | None
    seed: int
    max_weight: float
    classes: tuple[str, ...]
    model: Mapping[str, str]
    inputs: tuple[Input, ...]
    notes: tuple[str, ...]


def estimate(
    path: Path,
    *,
    target_prior: str = SOURCE_PRIOR,
    max_weight: float = DEFAULT_MAX_WEIGHT,
    seed: int = 0,
) -> Estimation:
    """Estimate the target accuracy of a file's classifier; no target label is read.

    Parameters
    ----------
    path : Path
        A features or adapted file.
    target_prior : str
        ``source``, ``uniform``, ``bbse``, or a JSON file with a share per class.
    max_weight : float
        U >= 1.
    seed : int

    Raises
    ------
    CovcalError
        If the file has too few rows for an estimate, or an option is of no use.
    """
    if not 1 <= max_weight < math.inf:
        raise CovcalError(f"max_weight must be a number of at least 1, not {max_weight}")
    with FeatureFile(path) as file:
        case = Case(file, max_weight=max_weight, seed=seed, prior_name=target_prior)
        lacking = missing_for_estimate(file, len(case.validation))
        if lacking is not None:
            raise CovcalError(f"{path}: an estimate needs {lacking}")
        notes = notes_on_rows(case.validation.labels, case.validation.unlabelled, file.classes)
        guards = [prior_drift(*case.evidence.predicted_shares())]
        evidence = case.evidence
        lacking = missing_for_weights(file)
        if lacking is None:
            weights = case.weights("aligned" if file.is_adapted else "original")
            evidence = case.evidence_with(weights.weights)
            guards += guards_on_weights(weights)
        else:
            notes.append(f"no estimate by importance weighting, which would need {lacking}")
        if not file.is_adapted:
            notes.append("no estimate by agreement, which would need an adapted file")
        found = panel(evidence, case.cot)
        return Estimation(
            estimates=(combined(found), *found),
            guards=tuple(guards),
            temperature=evidence.temperature,
            rows=(evidence.n_source, evidence.n_target),
            prior_name=target_prior,
            prior=case.prior,
            seed=seed,
            max_weight=max_weight,
            classes=tuple(file.classes),
            model=model_of(file),
            inputs=(Input("adapted" if file.is_adapted else "features", path, file.sha256()),),
            notes=tuple(notes),
        )


def estimation_document(estimation: Estimation, document: Path) -> dict[str, Any]:
    """Return the JSON content; paths are relative to `document`."""
    source, target = estimation.rows
    prior = estimation.prior
    return {
        "schema": SCHEMA,
        "estimates": [one.to_json() for one in estimation.estimates],
        "guards": [guard.to_json() for guard in estimation.guards],
        "temperature": estimation.temperature,
        "rows": {"source": source, "target": target},
        "target_prior": {
            "name": estimation.prior_name,
            "shares": None if prior is None else prior.tolist(),
        },
        "used_target_labels": False,
        "notes": list(estimation.notes),
        "seed": estimation.seed,
        "max_weight": estimation.max_weight,
        "classes": list(estimation.classes),
        "model": dict(estimation.model),
        "inputs": [
            {
                "role": entry.role,
                "path": relative_to_folder_of(entry.path, document),
                "sha256": entry.sha256,
            }
            for entry in estimation.inputs
        ],
    }


def write_estimation(estimation: Estimation, path: Path, *, force: bool) -> None:
    """Write the estimates as JSON, whole or not at all."""
    content = estimation_document(estimation, path)
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n", force=force)
