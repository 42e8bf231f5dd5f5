"""Methods whose T_f minimises a loss on labelled source validation rows, weighted or not."""

from covcal_cli.case import Case
from covcal_cli.errors import CovcalError
from covcal_cli.fitted import Fitted
from covcal_cli.labelfree.fit_guards import domain_overlap, ess_count, ess_share, not_at_limit
from covcal_cli.labelfree.guards import enough_errors
from covcal_cli.labelfree.label_shift import label_shift
from covcal_cli.methods import Forecaster, Method
from covcal_cli.records import Guard
from covcal_cli.remarks import (
    notes_on_weights,
    warnings_on_guards,
    warnings_on_temperature,
    warnings_on_weights,
)
from covcal_cli.softmax import Array
from covcal_cli.weights import ImportanceWeights


def unscaled(case: Case, method: Method) -> Fitted:
    """Return ``none``: T = 1."""
    loss = case.loss_at("original", 1.0)
    return Fitted(method, "original", 1.0, loss, loss)


def plain(case: Case, method: Method) -> Fitted:
    """Fit ``temp`` or ``fl+temp``: every row weighs the same."""
    return _minimised(case, method, None, ())


def importance_weighted(case: Case, method: Method) -> Fitted:
    """Fit with 1/g - 1/2, the bound's weight (paper Theorem 1), or with 1/g - 1 alone.

    Raises
    ------
    CovcalError
        If all weights 1/g - 1 are 0, and only they count.
    """
    weights = case.weights(method.forecaster_in(case.file))
    row_weights = weights.fit_weights
    if method.name == "weights-only":
        row_weights = weights.weights
        if row_weights.max() == 0:
            raise CovcalError(
                f"{case.file.path}: all importance weights are 0, as no source validation row "
                "looks like the target: take a method without weights"
            )
    return _minimised(case, method, row_weights, guards_on_weights(weights), weights)


def class_weighted(case: Case, method: Method) -> Fitted:
    """Fit ``label-shift``: a row weighs what RLLS says its class does on the target.

    Raises
    ------
    CovcalError
        If no labelled row is of a class that occurs on the target.
    """
    shift = label_shift(case.evidence, "rlls")
    row_weights = shift.ratios[case.validation.labels]
    if row_weights.max() == 0:
        raise CovcalError(
            f"{case.file.path}: no class of the source validation rows seems to occur on the "
            "target: take another method"
        )
    return _minimised(case, method, row_weights, shift.guards)


def guards_on_weights(weights: ImportanceWeights) -> tuple[Guard, ...]:
    """Return the guards on importance weights."""
    return (
        ess_share(weights.weights),
        ess_count(weights.weights),
        domain_overlap(weights.health.discriminator_error),
    )


def source_guards(case: Case, forecaster: Forecaster) -> tuple[Guard, ...]:
    """Return the guard on the number of errors that a fit can learn from."""
    return (enough_errors(case.errors(forecaster), len(case.validation)),)


def _minimised(
    case: Case,
    method: Method,
    row_weights: Array | None,
    guards: tuple[Guard, ...],
    weights: ImportanceWeights | None = None,
) -> Fitted:
    forecaster = method.forecaster_in(case.file)
    fit = case.fit(forecaster, row_weights)
    errors, rows = case.errors(forecaster), len(case.validation)
    warnings = warnings_on_temperature(fit, errors, rows)
    if weights is not None:
        warnings += warnings_on_weights(weights)
    else:
        warnings += warnings_on_guards(guards)
    return Fitted(
        method,
        forecaster,
        fit.temperature,
        fit.loss,
        fit.loss_at_one,
        fit.at_limit,
        (
            *guards,
            *(guard for guard in source_guards(case, forecaster) if guard not in guards),
            not_at_limit(fit.temperature, fit.at_limit),
        ),
        weights,
        tuple(notes_on_weights(weights)) if weights is not None else (),
        tuple(warnings),
    )
