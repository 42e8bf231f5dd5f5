"""What ``covcal calibrate`` does: a method's temperature on a file, and what to know about it.

`methods` says what the methods are, `methodfits` fits them, `autorule` chooses between them, and
`remarks` puts the findings into words.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.autorule import choose
from covcal_cli.bound import BoundTerms, bound_terms
from covcal_cli.calibration import Calibration, Candidate, model_of
from covcal_cli.case import Case
from covcal_cli.errors import CovcalError
from covcal_cli.featurefile import FeatureFile
from covcal_cli.fitted import Fitted
from covcal_cli.forecasters import target_confidence
from covcal_cli.methodfits import fit_method
from covcal_cli.methods import (
    AUTO,
    METHODS,
    SOURCE_PRIOR,
    Method,
    missing_for,
    missing_for_estimate,
    missing_for_weights,
)
from covcal_cli.minimised import guards_on_weights
from covcal_cli.records import Input
from covcal_cli.remarks import notes_on_rows, notes_on_weights, warnings_on_classifier
from covcal_cli.temperature import Loss
from covcal_cli.weights import DEFAULT_MAX_WEIGHT, ImportanceWeights

_BOUNDED = ("iw+temp", "fl+iw+temp")
"""The methods whose weights are those of the paper's bound."""


def calibrate(
    path: Path,
    *,
    method: str = AUTO,
    loss: Loss = "brier",
    max_weight: float = DEFAULT_MAX_WEIGHT,
    seed: int = 0,
    target_prior: str = SOURCE_PRIOR,
) -> Calibration:
    """Fit a method on a features or adapted file; no target label is read.

    Parameters
    ----------
    path : Path
        A ``covcal.features/1`` or ``covcal.adapted/1`` file.
    method : str
        ``"auto"`` or a key of `METHODS`.
    loss : {"brier", "nll"}
        What fitted temperatures minimise.
    max_weight : float
        U >= 1.
    seed : int
        Chooses rows where there are more than the fits use.
    target_prior : str
        Class frequencies on the target: ``source``, ``uniform``, ``bbse`` or a JSON file.

    Raises
    ------
    CovcalError
        If the file does not hold what the method needs, `max_weight` is no such number, or the
        method has no use for the prior that is given.
    """
    if not 1 <= max_weight < math.inf:
        raise CovcalError(f"max_weight must be a number of at least 1, not {max_weight}")
    if target_prior != SOURCE_PRIOR and not takes_prior(method):
        raise CovcalError(
            f"method {method} has no use for a target prior: it is for "
            f"{', '.join(name for name in (AUTO, *METHODS) if takes_prior(name))}"
        )
    with FeatureFile(path) as file:
        case = Case(file, loss=loss, max_weight=max_weight, seed=seed, prior_name=target_prior)
        if method == AUTO:
            fitted, reason, candidates = choose(case)
            return _calibration(case, method, fitted, reason, candidates, _auto_weights(case))
        fitted = _asked_for(case, METHODS[method])
        return _calibration(case, method, fitted, "asked for", (), fitted.weights)


def takes_prior(method: str) -> bool:
    """Return whether a method, or auto, asks for the target's class frequencies."""
    return method == AUTO or METHODS[method].takes_prior


def _asked_for(case: Case, method: Method) -> Fitted:
    lacking = missing_for(case.file, method, len(case.validation))
    if lacking is not None:
        raise CovcalError(f"{case.file.path}: method {method.name} needs {lacking}")
    return fit_method(case, method)


def _auto_weights(case: Case) -> ImportanceWeights | None:
    """Return the weights that the candidates needed: auto reports how far the domains overlap."""
    if missing_for_weights(case.file) is not None:
        return None
    return case.weights("aligned" if case.file.is_adapted else "original")


def _calibration(
    case: Case,
    asked: str,
    fitted: Fitted,
    reason: str,
    candidates: tuple[Candidate, ...],
    weights: ImportanceWeights | None,
) -> Calibration:
    file, count = case.file, len(case.validation)
    bound = _bound(case, fitted)
    guards = list(fitted.guards)
    notes = notes_on_rows(case.validation.labels, case.validation.unlabelled, file.classes)
    notes += fitted.notes
    if asked == AUTO:
        guards += [guard for guard in _auto_guards(case, weights) if guard not in guards]
        if weights is not None:
            notes += [note for note in notes_on_weights(weights) if note not in notes]
    return Calibration(
        method=asked,
        method_used=fitted.method.name,
        reason=reason,
        forecaster=fitted.forecaster,
        forecaster_temperature=fitted.temperature,
        discriminator_temperatures=tuple(
            fit.temperature for fit in (weights.temperatures if weights else ())
        ),
        discriminator=None if weights is None else "network" if file.is_adapted else "logistic",
        max_weight=case.max_weight,
        loss=case.loss,
        fit={
            "rows": count,
            "errors": case.errors(fitted.forecaster),
            "loss": fitted.loss,
            "loss_before": fitted.loss_before,
            "at_limit": fitted.at_limit,
        },
        weights=None if weights is None else weights.health.to_json(),
        bound=None if bound is None else bound.to_json(),
        estimates=target_confidence(file, fitted.forecaster, fitted.temperature),
        seed=case.seed,
        classes=tuple(file.classes),
        model=model_of(file),
        networks_sha256=file.attributes.get("networks_sha256"),
        feature_columns=file.feature_columns,
        inputs=(Input("adapted" if file.is_adapted else "features", file.path, file.sha256()),),
        notes=tuple(notes),
        warnings=(*warnings_on_classifier(case.errors("original"), count), *fitted.warnings),
        guards=tuple(guards),
        candidates=candidates,
        target_prior=_prior(case, asked),
    )


def _auto_guards(case: Case, weights: ImportanceWeights | None) -> list[Any]:
    """Return the guards that auto looked at, whatever it took."""
    guards = [] if weights is None else [*guards_on_weights(weights)]
    if missing_for_estimate(case.file, len(case.validation)) is None:
        guards = [*case.cot.guards, *guards]
    return guards


def _prior(case: Case, method: str) -> dict[str, Any]:
    readable = missing_for_estimate(case.file, len(case.validation)) is None
    if not (readable and takes_prior(method)) or case.prior is None:
        return {"name": case.prior_name, "shares": None}
    return {"name": case.prior_name, "shares": case.prior.tolist()}


def _bound(case: Case, fitted: Fitted) -> BoundTerms | None:
    weights = fitted.weights
    if weights is None or fitted.method.name not in _BOUNDED:
        return None
    losses = case.validation.row_losses(fitted.forecaster, fitted.temperature, "brier")
    brier = np.concatenate(list(losses))
    error = weights.health.discriminator_error
    return bound_terms(weights.fit_weights, brier, error, case.max_weight)
