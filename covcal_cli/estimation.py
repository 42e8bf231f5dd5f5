"""``covcal estimate``: the target accuracy by every estimator, without a target label."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from covcal_cli.calibration import model_of
from covcal_cli.case import Case
from covcal_cli.errors import CovcalError
from covcal_cli.featurefile import FeatureFile
from covcal_cli.labelfree.combined import combined
from covcal_cli.labelfree.disagreement import worst_case
from covcal_cli.labelfree.estimate import Estimate
from covcal_cli.labelfree.guards import prior_drift
from covcal_cli.labelfree.panel import measures
from covcal_cli.methods import SOURCE_PRIOR, missing_for_estimate, missing_for_weights
from covcal_cli.minimised import guards_on_weights
from covcal_cli.records import Document, Guard, Input, at, write_document
from covcal_cli.remarks import notes_on_rows
from covcal_cli.weights import DEFAULT_MAX_WEIGHT


@dataclass(frozen=True, kw_only=True)
class Estimation(Document):
    """Everything that ``covcal estimate`` found."""

    schema: ClassVar[str] = "covcal.estimate/1"

    estimates: tuple[Estimate, ...]  # the combined one first, the worst case last
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
        found = measures(evidence, case.cot)
        return Estimation(
            estimates=(combined(found), *found, worst_case(evidence, seed=seed)),
            guards=tuple(guards),
            temperature=evidence.temperature,
            source_rows=evidence.n_source,
            target_rows=evidence.n_target,
            prior_name=target_prior,
            prior=None if case.prior is None else tuple(case.prior.tolist()),
            seed=seed,
            max_weight=max_weight,
            classes=tuple(file.classes),
            model=model_of(file),
            inputs=(Input("adapted" if file.is_adapted else "features", path, file.sha256()),),
            notes=tuple(notes),
        )


def write_estimation(estimation: Estimation, path: Path, *, force: bool) -> None:
    """Write the estimates as JSON, whole or not at all."""
    write_document(estimation, path, force=force)
