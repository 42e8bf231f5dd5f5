"""Methods whose T_f minimises a loss on labelled source validation rows, each with a weight.

| method             | weight of a row                                  |
|--------------------|--------------------------------------------------|
| temp, fl+temp      | 1; the T of temp is T_s                          |
| iw+temp, fl+iw+temp| 1/g - 1/2                                        |
| weights-only       | 1/g - 1                                          |
| label-shift        | target over source frequency of its class (RLLS) |
"""

from dataclasses import replace

from covcal_cli.arrays import Float64s
from covcal_cli.calibrate.problem import (
    MethodFit,
    Problem,
    notes_on_weights,
    warnings_on_temperature,
    warnings_on_weights,
)
from covcal_cli.errors import CovcalError
from covcal_cli.estimators.guards import (
    enough_errors,
    guards_on_weights,
    not_at_limit,
    sentences_of_failed,
)
from covcal_cli.estimators.label_shift import label_shift
from covcal_cli.formats.features import ForecasterName
from covcal_cli.maths.weights import ImportanceWeights, bound_terms
from covcal_cli.records import Guard


def unscaled(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Return T = 1."""
    loss = problem.loss_at(forecaster, 1.0)
    return MethodFit(forecaster, 1.0, loss, loss)


def plain(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Fit T with every row weighing the same."""
    return _minimised(problem, forecaster, None, ())


def importance_weighted(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Fit T with 1/g - 1/2, the weight of the bound of Theorem 1, which comes with it."""
    weights = problem.weights(forecaster)
    guards = guards_on_weights(weights)
    fit = _minimised(problem, forecaster, weights.fit_weights, guards, weights)
    bound = bound_terms(
        weights.fit_weights,
        problem.validation.row_losses(forecaster, fit.temperature, "brier"),
        weights.health.discriminator_error,
        problem.settings.max_weight,
    )
    return replace(fit, bound=bound)


def weights_alone(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Fit T with 1/g - 1."""
    weights = problem.weights(forecaster)
    if weights.weights.max() == 0:
        raise CovcalError(
            f"{problem.file.path}: all importance weights are 0, as no source validation row "
            "looks like the target: take a method without weights"
        )
    guards = guards_on_weights(weights)
    return _minimised(problem, forecaster, weights.weights, guards, weights)


def class_weighted(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Fit T with what RLLS says that a row's class weighs on the target."""
    shift = label_shift(problem.evidence, "rlls")
    row_weights = shift.ratios[problem.validation.labels]
    if row_weights.max() == 0:
        raise CovcalError(
            f"{problem.file.path}: no class of the source validation rows seems to occur on the "
            "target: take another method"
        )
    return _minimised(problem, forecaster, row_weights, shift.guards)


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
    warnings = warnings_on_temperature(fit, errors, rows)
    warnings += warnings_on_weights(weights) if weights else sentences_of_failed(guards)
    return MethodFit(
        forecaster,
        fit.temperature,
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
