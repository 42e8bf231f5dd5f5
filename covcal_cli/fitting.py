"""What ``covcal calibrate`` does: weights, temperature, diagnostics, from a file's arrays.

`methods` says what each method is and how auto chooses; `remarks` puts the findings into words.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.bound import BoundTerms, bound_terms
from covcal_cli.calibration import (
    Calibration,
    Input,
    forecaster_blocks,
    forecaster_logits,
    log_probabilities,
    model_of,
)
from covcal_cli.discriminator import fit_discriminator
from covcal_cli.errors import CovcalError
from covcal_cli.featurefile import FeatureFile, Rows, SourceDomain
from covcal_cli.methods import (
    AUTO,
    METHODS,
    MIN_ERRORS,
    Forecaster,
    Method,
    choose,
    missing_for,
)
from covcal_cli.remarks import (
    notes_on_rows,
    notes_on_weights,
    warnings_on_classifier,
    warnings_on_temperature,
    warnings_on_weights,
)
from covcal_cli.softmax import Array, exp
from covcal_cli.temperature import Loss, TemperatureFit, fit_temperature
from covcal_cli.weights import DEFAULT_MAX_WEIGHT, ImportanceWeights, importance_weights


@dataclass(frozen=True)
class _Validation:
    """Labelled source validation rows."""

    source: SourceDomain
    rows: Rows
    labels: NDArray[np.int64]
    unlabelled: int


def calibrate(
    path: Path,
    *,
    method: str = AUTO,
    loss: Loss = "brier",
    max_weight: float = DEFAULT_MAX_WEIGHT,
    seed: int = 0,
) -> Calibration:
    """Fit T_g and T_f on a features or adapted file; no target label is read.

    Parameters
    ----------
    path : Path
        A ``covcal.features/1`` or ``covcal.adapted/1`` file.
    method : str
        ``"auto"`` or a key of `METHODS`.
    loss : {"brier", "nll"}
        What T_f minimises.
    max_weight : float
        U >= 1.
    seed : int
        Chooses rows where there are more than the fits use.

    Raises
    ------
    CovcalError
        If the file does not hold what the method needs, or `max_weight` is no such number.
    """
    if not 1 <= max_weight < math.inf:
        raise CovcalError(f"max_weight must be a number of at least 1, not {max_weight}")
    with FeatureFile(path) as file:
        validation = _validation(file)
        chosen, weights, reason = _choose(file, validation, method, max_weight, seed)
        count = len(validation.rows)
        notes = notes_on_rows(validation.labels, validation.unlabelled, file.classes)
        warnings = warnings_on_classifier(_errors(validation, "original"), count)
        errors = _errors(validation, chosen.forecaster)
        fit = _fit(validation, chosen, weights, loss, errors, seed)
        temperature = fit.temperature if chosen.scaled else 1.0
        if chosen.scaled:
            warnings += warnings_on_temperature(fit, errors, count)
        if weights is not None:
            notes += notes_on_weights(weights)
        if weights is not None and chosen.weighted:
            warnings += warnings_on_weights(weights)
        bound = _bound(validation, chosen, weights, temperature, max_weight)
        return Calibration(
            method=method,
            method_used=chosen.name,
            reason=reason,
            forecaster=chosen.forecaster,
            forecaster_temperature=temperature,
            discriminator_temperatures=tuple(
                fit.temperature for fit in (weights.temperatures if weights else ())
            ),
            discriminator=None if weights is None else _discriminator_kind(file),
            max_weight=max_weight,
            loss=loss,
            fit={
                "rows": count,
                "errors": errors,
                "loss": fit.loss if chosen.scaled else fit.loss_at_one,
                "loss_before": fit.loss_at_one,
                "at_limit": fit.at_limit if chosen.scaled else None,
            },
            weights=None if weights is None else weights.health.to_json(),
            bound=None if bound is None else bound.to_json(),
            estimates=_estimates(file, chosen, temperature),
            seed=seed,
            classes=tuple(file.classes),
            model=model_of(file),
            networks_sha256=file.attributes.get("networks_sha256"),
            inputs=(Input("adapted" if file.is_adapted else "features", path, file.sha256()),),
            notes=tuple(notes),
            warnings=tuple(warnings),
        )


def _validation(file: FeatureFile) -> _Validation:
    source = file.require_source()
    rows = source.require_rows("validation")
    labels = source.labels(rows)
    known = labels >= 0
    if not known.any():
        raise CovcalError(
            f"{file.path}: none of the {len(rows)} source validation rows has a label: "
            "extract the source from class folders, or give y"
        )
    return _Validation(source, rows[known], labels[known], int((~known).sum()))


def _choose(
    file: FeatureFile, validation: _Validation, asked: str, max_weight: float, seed: int
) -> tuple[Method, ImportanceWeights | None, str]:
    """Return the method in force, the weights if they were computed, and the reason."""
    if asked == AUTO:
        method = METHODS["fl+iw+temp" if file.is_adapted else "iw+temp"]
    else:
        method = METHODS[asked]
    lacking = missing_for(file, method)
    if lacking is not None and asked != AUTO:
        raise CovcalError(f"{file.path}: method {asked} needs {lacking}")
    if lacking is not None:
        plain = method.unweighted()
        return plain, None, f"{plain.name}, as importance weights would need {lacking}"
    if not method.weighted:
        return method, None, "asked for"
    weights = _weights(file, validation, method, max_weight, seed)
    if asked != AUTO:
        return method, weights, "asked for"
    chosen, reason = choose(method, weights.health)
    return chosen, weights, reason


def _weights(
    file: FeatureFile, validation: _Validation, method: Method, max_weight: float, seed: int
) -> ImportanceWeights:
    source, target = validation.source, file.require_target()
    target_rows = target.rows("validation")
    if method.forecaster == "aligned":
        on_source = source.aligned_domain_logits(validation.rows)
        on_target = target.aligned_domain_logits(target_rows)
    elif file.is_adapted:
        on_source = source.domain_logits(validation.rows)[None]
        on_target = target.domain_logits(target_rows)[None]
    else:
        logistic = fit_discriminator(source, target, seed=seed)
        return importance_weights(
            logistic.domain_logits(source, validation.rows)[None],
            logistic.domain_logits(target, target_rows)[None],
            max_weight=max_weight,
        )
    return importance_weights(on_source, on_target, max_weight=max_weight)


def _discriminator_kind(file: FeatureFile) -> str:
    return "network" if file.is_adapted else "logistic"


def _errors(validation: _Validation, forecaster: Forecaster) -> int:
    wrong, start = 0, 0
    for block in validation.source.blocks(validation.rows):
        logits = forecaster_logits(validation.source, block, forecaster)
        labels = validation.labels[start : start + len(block)]
        wrong += int((logits.argmax(axis=0) != labels).sum())
        start += len(block)
    return wrong


def _fit(
    validation: _Validation,
    method: Method,
    weights: ImportanceWeights | None,
    loss: Loss,
    errors: int,
    seed: int,
) -> TemperatureFit:
    return fit_temperature(
        forecaster_blocks(validation.source, validation.rows, method.forecaster),
        validation.labels,
        weights.fit_weights if weights is not None and method.weighted else None,
        loss=loss,
        allow_sharpening=errors >= MIN_ERRORS,
        seed=seed,
    )


def _bound(
    validation: _Validation,
    method: Method,
    weights: ImportanceWeights | None,
    temperature: float,
    max_weight: float,
) -> BoundTerms | None:
    if weights is None or not method.weighted:
        return None
    brier = np.concatenate(list(_brier(validation, method.forecaster, temperature)))
    return bound_terms(weights.fit_weights, brier, weights.health.discriminator_error, max_weight)


def _brier(validation: _Validation, forecaster: Forecaster, temperature: float) -> Iterator[Array]:
    """Yield ||fhat - y||^2 of the validation rows, block by block."""
    start = 0
    for block in validation.source.blocks(validation.rows):
        labels = validation.labels[start : start + len(block)]
        logits = forecaster_logits(validation.source, block, forecaster)
        probabilities = exp(log_probabilities(logits, temperature))
        probabilities[labels, np.arange(len(labels))] -= 1
        yield np.einsum("km,km->m", probabilities, probabilities)
        start += len(block)


def _estimates(file: FeatureFile, method: Method, temperature: float) -> dict[str, Any]:
    """Return the mean confidence in the classifier's labels on target validation rows."""
    rows = np.empty(0, np.int64) if file.target is None else file.target.rows("validation")
    if file.target is None or len(rows) == 0:
        return {"rows": 0, "target_confidence_before": None, "target_confidence": None}
    before = after = 0.0
    for block in file.target.blocks(rows):
        original = forecaster_logits(file.target, block, "original")
        scaled = forecaster_logits(file.target, block, method.forecaster)
        label, columns = original.argmax(axis=0), np.arange(len(block))
        before += float(exp(log_probabilities(original, 1.0))[label, columns].sum())
        after += float(exp(log_probabilities(scaled, temperature))[label, columns].sum())
    return {
        "rows": len(rows),
        "target_confidence_before": before / len(rows),
        "target_confidence": after / len(rows),
    }
