"""``covcal estimate``: the target accuracy by every estimator, without a target label."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from covcal_cli.errors import CovcalError
from covcal_cli.estimators.estimate import Estimate
from covcal_cli.estimators.guards import guards_on_weights, prior_drift
from covcal_cli.estimators.panel import combined, panel
from covcal_cli.formats.calibration import model_of
from covcal_cli.formats.features import FeatureFile
from covcal_cli.problem import EstimateSettings, Problem, input_of
from covcal_cli.records import Document, Guard, Input, at, write_document

_AS_IT_COMES = EstimateSettings()


@dataclass(frozen=True, kw_only=True)
class Estimation(Document):
    """Everything that ``covcal estimate`` found."""

    schema: ClassVar[str] = "covcal.estimate/1"

    estimates: tuple[Estimate, ...]  # the combined one first
    guards: tuple[Guard, ...]  # on what several estimates share: the overlap, the prior's drift
    temperature: float  # T_s, at which confidences are calibrated on the source
    source_rows: int = field(metadata=at("rows.source"))  # that were read
    target_rows: int = field(metadata=at("rows.target"))
    prior_name: str = field(metadata=at("target_prior.name"))  # as asked for
    # Class frequencies on the target, where they are not the source's.
    prior: tuple[float, ...] | None = field(metadata=at("target_prior.shares"))
    used_target_labels: Literal[False] = False
    notes: tuple[str, ...]
    seed: int
    max_weight: float  # U
    classes: tuple[str, ...]
    model: Mapping[str, str]  # name and sha256 of the classifier
    inputs: tuple[Input, ...]


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
            source_rows=evidence.n_source,
            target_rows=evidence.n_target,
            prior_name=settings.target_prior,
            prior=None if problem.prior is None else tuple(problem.prior.tolist()),
            seed=settings.seed,
            max_weight=settings.max_weight,
            classes=tuple(file.classes),
            model=model_of(file),
            inputs=(input_of(file),),
            notes=tuple(notes),
        )


def write_estimation(estimation: Estimation, path: Path, *, force: bool) -> None:
    """Write the estimates as JSON, whole or not at all."""
    write_document(estimation, path, force=force)
