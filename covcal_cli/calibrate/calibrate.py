"""``covcal calibrate``: choose and fit a method."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from covcal_cli.calibrate import fits
from covcal_cli.calibrate.auto import candidates, candidates_for, choose
from covcal_cli.calibrate.labelled import (
    LABELLED,
    LabelledFit,
    effective_labels,
    labels_against,
    labels_for,
)
from covcal_cli.calibrate.methods import (
    AUTO,
    BBSE_PRIOR,
    MARKED_LABELS,
    METHODS,
    TAKE_PRIOR,
    Method,
)
from covcal_cli.calibrate.problem import (
    DEFAULTS,
    LIMITS,
    CalibrateSettings,
    EstimateSettings,
    MethodFit,
    Problem,
    input_of,
)
from covcal_cli.errors import CovcalError, TooFewRowsError
from covcal_cli.estimators.consensus import ESTIMATE_ALONE, under_confidence
from covcal_cli.estimators.guards import guards_on_weights
from covcal_cli.estimators.inputs import ESTIMATED
from covcal_cli.estimators.label_shift import given_prior
from covcal_cli.files import as_word
from covcal_cli.forecast import UNSCALED, ScaledLogits, source_accuracy
from covcal_cli.formats.calibration import (
    CONTRADICTED,
    SOURCE_PRIOR,
    Calibration,
    Candidate,
    TargetPrior,
)
from covcal_cli.formats.features import FeatureFile
from covcal_cli.labels.draws import FOR_DECISION, Draw
from covcal_cli.maths.softmax import Forecasters, Scaling, scaled_by
from covcal_cli.maths.source_accuracy import SourceAccuracy
from covcal_cli.maths.temperature import Limit
from covcal_cli.maths.weights import ImportanceWeights
from covcal_cli.records import Guard, sentences_of_failed

_LARGE = 10.0
_REMEDIES: dict[Limit, str] = {
    "lower": "give more labelled rows, or choose another method",
    "upper": "check the labels and the order of the classes",
}


def calibrate(
    path: str | Path, settings: CalibrateSettings = DEFAULTS, labels: Draw | None = None
) -> Calibration:
    """Fit a method on a features or adapted file.

    Only the method "auto" uses target labels, from ``covcal label``. Labels for a decision (`covcal
    pick --for`) are used only if labels="marked".

    `labels` are labelled target rows from `random_labels`. Raises `CovcalError` if the file lacks
    data for the method, or T is at the end of its range.
    """
    with FeatureFile(Path(path)) as file:
        if labels is None and not isinstance(settings.labels, str):
            raise CovcalError(
                "labels=N needs the function covcal_cli.api.calibrate, which draws the rows"
            )
        if labels is not None:
            return _fit_to_labels(file, labels, settings, LABELLED)
        if settings.method == AUTO and (draw := labels_for(file, settings)) is not None:
            if settings.labels == MARKED_LABELS:
                return _fit_to_labels(file, draw, settings, LABELLED)
            if not draw.is_for_decision:
                return _fit_to_labels(file, draw, settings, AUTO)
            calibration = calibrate_file(Problem(file, settings, settings.loss), settings)
            comparison, is_contradicted = labels_against(file.require_target(), draw, calibration)
            remedy = (
                f"To calibrate with these labels, run covcal calibrate {as_word(path)} --labels "
                "marked -o labelled.json"
            )
            if not all(guard.passed for guard in effective_labels(draw)):
                remedy = (
                    "These labels are too few to calibrate: run covcal pick again without --for"
                )
            uses = "so only covcal decide uses these labels"
            note = f"the {len(draw)} {FOR_DECISION}, {uses}. {remedy}"
            warnings = [f"{CONTRADICTED}: {comparison}"]
            return replace(
                calibration,
                notes=(note, *([] if is_contradicted else [comparison]), *calibration.notes),
                warnings=(*(warnings if is_contradicted else []), *calibration.warnings),
            )
        return calibrate_file(Problem(file, settings, settings.loss), settings)


def calibrate_file(problem: Problem, settings: CalibrateSettings = DEFAULTS) -> Calibration:
    """Fit a method on an open file, without target labels."""
    auto = settings.method == AUTO
    calibration = _chosen(problem) if auto else _asked_for(problem, settings.method)
    return _require_inside(problem.file.path, calibration, allow_limit=settings.allow_limit)


def _asked_for(problem: Problem, asked: str) -> Calibration:
    method = METHODS[asked]
    lacking = problem.missing_for(method)
    if lacking is not None:
        raise CovcalError(f"{problem.file.path}: method {method.name} needs {lacking}")
    fit = _fit(problem, method)
    estimated = method.fit == "by_consensus"
    return _calibration(
        problem, asked, method.name, "asked for", fit, fit.weights, estimated=estimated
    )


def _fit(problem: Problem, method: Method) -> MethodFit:
    fit: Callable[[Problem, Forecasters], MethodFit] = getattr(fits, method.fit)
    return fit(problem, method.forecaster or problem.fullest)


def _chosen(problem: Problem) -> Calibration:
    name, reason = choose(problem)
    fitted = {other: _fit(problem, METHODS[other]) for other in candidates_for(problem, name)}
    fit, compared = fitted[name], candidates(problem, fitted, name)
    weights = None
    guards: list[Guard] = []
    notes: list[str] = []
    warnings: list[str] = []
    if problem.missing_for_estimate is None:
        checked = list(problem.accuracy.guards)
        guards += checked if problem.prior is None else problem.cot.guards
        if problem.prior is None:
            mean = next(candidate.target_confidence for candidate in compared if candidate.chosen)
            checked.append(under_confidence(problem.accuracy.accuracy, mean or 0.0))
            guards.append(checked[-1])
            if not checked[-1].passed:
                notes_of_fit = tuple(text for text in fit.notes if ESTIMATE_ALONE not in text)
                fit = replace(fit, notes=notes_of_fit)
        warnings = sentences_of_failed(checked)
    if problem.missing_for_weights is None:
        weights = problem.weights(problem.fullest)
        guards += guards_on_weights(weights)
        notes += fits.notes_on_weights(weights)
    fit = replace(
        fit,
        guards=(*fit.guards, *(guard for guard in guards if guard not in fit.guards)),
        notes=(*fit.notes, *(note for note in notes if note not in fit.notes)),
        warnings=(*fit.warnings, *(text for text in warnings if text not in fit.warnings)),
    )
    estimated = problem.missing_for_estimate is None
    return _calibration(problem, AUTO, name, reason, fit, weights, compared, estimated=estimated)


def _calibration(
    problem: Problem,
    asked: str,
    name: str,
    reason: str,
    fit: MethodFit,
    weights: ImportanceWeights | None,
    compared: tuple[Candidate, ...] = (),
    *,
    estimated: bool,
) -> Calibration:
    validation, errors = problem.validation, problem.errors("original")
    warnings = fit.warnings
    if errors == 0:
        no_error = (
            f"the classifier makes no error on its {len(validation)} source validation rows. "
            "If the classifier was trained on these rows, extract other source rows"
        )
        warnings = (no_error, *warnings)
    notes = (*validation.notes(problem.file.classes, errors), *fit.notes)
    calibration = _document(
        problem.file,
        problem.settings,
        replace(fit, warnings=warnings, notes=notes),
        asked=asked,
        name=name,
        reason=reason,
        rows=len(validation),
        errors=problem.errors(scaled_by(fit.scaling.forecaster)[0]),
        loss=problem.loss,
    )
    if estimated:
        best = problem.accuracy
        ends = {"accuracy_low": best.low, "accuracy_high": best.high}
        estimates = {**calibration.estimates, "accuracy": best.accuracy, **ends}
        calibration = replace(calibration, estimates=estimates)
    if weights is not None:
        calibration = replace(
            calibration,
            discriminator_temperatures=tuple(fitted.temperature for fitted in weights.temperatures),
            discriminator="network" if problem.file.is_adapted else "logistic",
            weights=asdict(weights.health),
        )
    return replace(
        calibration,
        bound=None if fit.bound is None else asdict(fit.bound),
        candidates=compared,
        target_prior=_prior(problem, asked),
    )


def _fit_to_labels(
    file: FeatureFile, draw: Draw, settings: CalibrateSettings, asked: str
) -> Calibration:
    try:
        problem = Problem(file, settings, settings.loss)
    # A fit to target labels needs no labelled source rows.
    except TooFewRowsError:
        problem = None
    labelled = LabelledFit(file, draw, problem)
    fit = labelled.method_fit(settings.loss)
    calibration = _document(
        file,
        settings,
        replace(fit, notes=(*draw.notes, *labelled.history())),
        asked=asked,
        name=LABELLED,
        reason=labelled.reason(),
        rows=len(draw),
        errors=len(draw) - int(draw.right(labelled.logits).sum()),
        loss=settings.loss,
    )
    return replace(
        calibration,
        estimates={**calibration.estimates, LABELLED: labelled.estimates()},
        used_target_labels=True,
        labelled_rows=draw.recorded(file.require_target()),
        seed=draw.seed if problem is None else problem.settings.seed,
    )


def _document(
    file: FeatureFile,
    settings: EstimateSettings,
    fit: MethodFit,
    *,
    asked: str,
    name: str,
    reason: str,
    rows: int,
    errors: int,
    loss: str,
) -> Calibration:
    scaling, accuracy = fit.scaling, source_accuracy(file)
    return Calibration(
        method=asked,
        method_used=name,
        reason=reason,
        forecaster=scaling.forecaster,
        forecaster_temperature=scaling.temperature,
        aligned_temperature=scaling.aligned_temperature,
        discriminator_temperatures=(),
        discriminator=None,
        max_weight=settings.max_weight,
        loss=loss,
        fit={
            "rows": rows,
            "errors": errors,
            "loss": fit.loss,
            "loss_before": fit.loss_at_one,
            "at_limit": fit.at_limit,
        },
        weights=None,
        bound=None,
        estimates=_target_confidence(file, scaling),
        guards=fit.guards,
        class_offsets=() if scaling.offsets is None else tuple(scaling.offsets.tolist()),
        confidence_offset=scaling.of_label,
        notes=fit.notes,
        warnings=(*fit.warnings, *warnings_on_reading(accuracy, scaling)),
        seed=settings.seed,
        classes=tuple(file.classes),
        model=file.model,
        source_accuracy=accuracy,
        feature_columns=tuple(file.feature_columns),
        reading=file.reading,
        networks_sha256=file.attributes.get("networks_sha256"),
        inputs=(input_of(file),),
    )


def _target_confidence(file: FeatureFile, scaling: Scaling) -> Mapping[str, Any]:
    target = file.target
    if target is None or target.count(*ESTIMATED) == 0:
        return {"rows": 0, "target_confidence_before": None, "target_confidence": None}
    return {
        "rows": target.count(*ESTIMATED),
        "target_confidence_before": ScaledLogits(UNSCALED).mean_confidence(target, *ESTIMATED),
        "target_confidence": ScaledLogits(scaling).mean_confidence(target, *ESTIMATED),
    }


def _prior(problem: Problem, asked: str) -> TargetPrior:
    name, shares = problem.settings.target_prior, None
    if problem.settings.prior_shares is not None:
        return TargetPrior(name, problem.settings.prior_shares)
    if name == SOURCE_PRIOR.name:
        return SOURCE_PRIOR
    if asked in TAKE_PRIOR and problem.missing_for_estimate is None:
        shares = problem.prior
    elif name != BBSE_PRIOR:
        shares = given_prior(name, problem.file.classes)
    return TargetPrior(name, None if shares is None else tuple(shares.tolist()))


def _require_inside(path: Path, calibration: Calibration, *, allow_limit: bool) -> Calibration:
    limit: Limit | None = calibration.fit["at_limit"]
    if limit is not None and not allow_limit:
        raise CovcalError(
            f"{path}: method {calibration.method_used}: {LIMITS[limit]} (T = "
            f"{calibration.forecaster_temperature:.3g}). Either {_REMEDIES[limit]}, or pass "
            "--force (allow_limit=True in Python)"
        )
    return calibration


def warnings_on_reading(accuracy: SourceAccuracy | None, scaling: Scaling) -> list[str]:
    """Return warnings if the source accuracy is near chance, or T is very large."""
    doubt = None if accuracy is None else accuracy.doubt
    warnings = [] if doubt is None else [doubt]
    temperature = min(scaling.temperatures.values())
    if temperature > _LARGE:
        right = "" if accuracy is None else f" The classifier gets {accuracy} right."
        warnings.append(
            f"T = {temperature:.4g} is very large: the outputs are far more confident than "
            f"accurate.{right} Check that the chosen output holds logits"
        )
    return warnings
