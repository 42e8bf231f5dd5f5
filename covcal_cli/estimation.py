"""``covcal estimate``: the target accuracy by every estimator, without a target label."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covcal_cli.arrays import Float64s
from covcal_cli.calibration import Input, model_of
from covcal_cli.errors import CovcalError
from covcal_cli.featurefile import FeatureFile
from covcal_cli.files import relative_to_folder_of, write_text
from covcal_cli.labelfree.combined import combined
from covcal_cli.labelfree.estimate import Estimate
from covcal_cli.labelfree.guards import Guard, guards_on_weights, prior_drift
from covcal_cli.labelfree.panel import panel
from covcal_cli.problem import EstimateSettings, Problem, input_of

SCHEMA = "covcal.estimate/1"
_AS_IT_COMES = EstimateSettings()


@dataclass(frozen=True)
class Estimation:
    """Everything that ``covcal estimate`` found, as its JSON holds it."""

    estimates: tuple[Estimate, ...]  # the combined one first
    guards: tuple[Guard, ...]  # on what several share: overlap, the drift of predicted labels
    temperature: float  # T_s, at which confidences are calibrated on the source
    rows: tuple[int, int]  # source and target rows that were read
    prior_name: str  # as asked for
    prior: Float64s | None  # class frequencies (K,) on the target where they are not the source's
    seed: int
    max_weight: float  # U
    classes: tuple[str, ...]
    model: Mapping[str, str]  # name and sha256 of the classifier
    inputs: tuple[Input, ...]
    notes: tuple[str, ...]


def estimate(path: Path, settings: EstimateSettings = _AS_IT_COMES) -> Estimation:
    """Estimate the target accuracy of a file's classifier; no target label is read.

    Raises
    ------
    CovcalError
        If the file has too few rows for an estimate, or the prior is of no use.
    """
    with FeatureFile(path) as file:
        problem = Problem(file, settings)
        lacking = problem.missing_for_estimate
        if lacking is not None:
            raise CovcalError(f"{path}: an estimate needs {lacking}")
        evidence = problem.evidence
        notes = problem.validation.notes(file.classes)
        guards = [prior_drift(*evidence.predicted_shares())]
        lacking = problem.missing_for_weights
        if lacking is None:
            weights = problem.weights(problem.fullest)
            evidence = problem.evidence_with(weights.weights)
            guards += guards_on_weights(weights)
        else:
            notes.append(f"no estimate by importance weighting, which would need {lacking}")
        if not file.is_adapted:
            notes.append("no estimate by agreement, which would need an adapted file")
        found = panel(evidence, problem.cot)
        return Estimation(
            estimates=(combined(found), *found),
            guards=tuple(guards),
            temperature=evidence.temperature,
            rows=(evidence.n_source, evidence.n_target),
            prior_name=settings.target_prior,
            prior=problem.prior,
            seed=settings.seed,
            max_weight=settings.max_weight,
            classes=tuple(file.classes),
            model=model_of(file),
            inputs=(input_of(file),),
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
