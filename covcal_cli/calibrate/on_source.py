"""Methods whose T_f minimises a loss on weighted, labelled source validation rows.

| method             | weight of a row                                  |
|--------------------|--------------------------------------------------|
| temp, fl+temp      | 1; the T of temp is T_s                          |
| iw+temp, fl+iw+temp| 1/g - 1/2                                        |
| weights-only       | 1/g - 1                                          |
| label-shift        | target over source frequency of its class (RLLS) |
"""

from dataclasses import replace

from covcal_cli.arrays import Float64s
from covcal_cli.calibrate.problem import MethodFit, Problem
from covcal_cli.errors import CovcalError
from covcal_cli.estimators.guards import (
    MIN_ESS_SHARE,
    MIN_SIGMA,
    enough_errors,
    guards_on_weights,
    not_at_limit,
    sentences_of_failed,
)
from covcal_cli.estimators.label_shift import LabelShift, label_shift
from covcal_cli.maths.scaling import ForecasterName, Scaling
from covcal_cli.maths.temperature import MIN_ERRORS, Limit, TemperatureFit
from covcal_cli.maths.weights import ImportanceWeights, bound_terms
from covcal_cli.records import Guard

_NOT_MOVED = 1e-6  # the largest change of class frequencies that counts as none
_MIN_ESS_FIT = 100.0  # the effective sample size that a weighted fit of T_f needs
_MAX_MEAN_WEIGHT_GAP = 0.2
_MAX_CLIPPED_SHARE = 0.01
# What T at a limit of its search interval means.
LIMITS: dict[Limit, str] = {
    "lower": (
        "T is at its lower limit: the rows that it was fitted to call for ever more confidence, "
        "which no data can justify"
    ),
    "upper": (
        "T is at its upper limit: on the rows that it was fitted to, the logits say nothing about "
        "the labels, or the opposite"
    ),
}


def unscaled(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Return T = 1."""
    scaling = Scaling(forecaster, 1.0)
    loss = problem.loss_of(scaling)
    return MethodFit(scaling, loss, loss)


def plain(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Fit T with equal weights."""
    return _minimised(problem, forecaster, None, ())


def importance_weighted(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Fit T with the weights 1/g - 1/2 of Theorem 1, and compute the theorem's bound."""
    weights = problem.weights(forecaster)
    guards = guards_on_weights(weights)
    fit = _minimised(problem, forecaster, weights.fit_weights, guards, weights)
    bound = bound_terms(
        weights.fit_weights,
        problem.validation.row_losses(fit.scaling, "brier"),
        weights.health.discriminator_error,
        problem.settings.max_weight,
    )
    return replace(fit, bound=bound)


def weights_alone(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Fit T with the weights 1/g - 1."""
    weights = problem.weights(forecaster)
    if weights.weights.max() == 0:
        raise CovcalError(
            f"{problem.file.path}: all importance weights are 0, because no source validation row "
            "looks like the target: choose a method without weights"
        )
    guards = guards_on_weights(weights)
    return _minimised(problem, forecaster, weights.weights, guards, weights)


def class_weighted(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Fit T with each row weighted by its class's ratio of frequencies, estimated by RLLS."""
    shift = label_shift(problem.inputs, "rlls")
    row_weights = shift.ratios[problem.validation.labels]
    if row_weights.max() == 0:
        raise CovcalError(
            f"{problem.file.path}: no class of the source validation rows seems to occur on the "
            "target: choose another method"
        )
    fit = _minimised(problem, forecaster, row_weights, shift.guards)
    return replace(fit, notes=(*fit.notes, _frequencies_in_words(shift)))


def _frequencies_in_words(shift: LabelShift) -> str:
    """Say how far the estimated class frequencies are from the source's, and if it may be chance.

    RLLS returns equal frequencies where its penalty outweighs the difference.
    """
    if shift.moved < _NOT_MOVED:
        return (
            "RLLS finds no difference in class frequencies, because there are too few rows: T is "
            "that of temp"
        )
    text = f"by RLLS {shift.moved:.1%} of the target's rows have other classes than on the source"
    if shift.sigmas > MIN_SIGMA:
        return text
    return (
        f"{text}, which may be chance: the mean prediction moves by {shift.sigmas:.1f} standard "
        f"errors ({MIN_SIGMA:.0f} needed)"
    )


def _minimised(
    problem: Problem,
    forecaster: ForecasterName,
    row_weights: Float64s | None,
    guards: tuple[Guard, ...],
    weights: ImportanceWeights | None = None,
) -> MethodFit:
    fit = problem.fit(forecaster, row_weights)
    errors, rows = problem.errors(forecaster), len(problem.validation)
    of_rows = enough_errors(errors, rows)
    warnings = _warnings_on_temperature(fit, errors, rows)
    warnings += warnings_on_weights(weights) if weights else sentences_of_failed(guards)
    return MethodFit(
        Scaling(forecaster, fit.temperature),
        fit.loss,
        fit.loss_at_one,
        fit.at_limit,
        guards=(
            *guards,
            *(() if of_rows in guards else (of_rows,)),
            not_at_limit(fit.temperature, fit.at_limit),
        ),
        weights=weights,
        notes=tuple(notes_on_weights(weights)) if weights else (),
        warnings=tuple(warnings),
    )


def _warnings_on_temperature(fit: TemperatureFit, errors: int, rows: int) -> list[str]:
    """Warn of a T that is kept at 1, lies at a limit, or cannot help some rows."""
    warnings = []
    if fit.ruled_out:
        warnings.append(
            f"{fit.ruled_out} of {rows} source validation rows have a label that the classifier "
            "rules out (a masked logit): its probability is 0 at every T. Check the labels, or the "
            "mask"
        )
    if fit.held_at_one:
        warnings.append(
            f"{errors} errors among {rows} source validation rows are too few to justify more "
            f"confidence (at least {MIN_ERRORS} needed): T is kept at {fit.temperature:.4g}"
        )
    if fit.at_limit:
        warnings.append(f"do not trust these confidences: {LIMITS[fit.at_limit]}")
    return warnings


def notes_on_weights(weights: ImportanceWeights) -> list[str]:
    """Note that the discriminators find no difference between the domains."""
    if all(fit.at_limit == "upper" for fit in weights.temperatures):
        return ["the discriminator finds no shift: all importance weights are about 1"]
    return []


def warnings_on_weights(weights: ImportanceWeights) -> list[str]:
    """Warn of importance weights that a fit must not use."""
    health, warnings = weights.health, []
    few = []
    if health.ess_share < MIN_ESS_SHARE:
        few.append(f"at least {MIN_ESS_SHARE * health.n:.1f} needed")
    if health.ess_fit < _MIN_ESS_FIT:
        few.append(f"{health.ess_fit:.1f} in the fit, at least {_MIN_ESS_FIT:.0f} needed")
    if few:
        warnings.append(
            f"the effective sample size of the importance weights is {health.ess:.1f} of "
            f"{health.n} rows ({'; '.join(few)}): do not use a method with iw here"
        )
    if abs(health.mean_weight - 1) > _MAX_MEAN_WEIGHT_GAP:
        warnings.append(
            f"the mean importance weight is {health.mean_weight:.2f} instead of 1, so the source "
            "discriminator is wrong: do not use a method with iw here"
        )
    if health.clipped_share > _MAX_CLIPPED_SHARE:
        warnings.append(
            f"{health.clipped_share:.1%} of the importance weights are cut at the limit U: parts "
            "of the target have almost no source rows"
        )
    return warnings
