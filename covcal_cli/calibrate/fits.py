"""Fit the scaling (temperature and offsets) of each method.

The tables in `calibrate/README.md` list the logits, the row weights and the estimate of each
method. T_s is the temperature of ``temp``. `Problem.least_temperature` returns the lowest T that
the methods ``consensus`` and ``blend`` may use.

Two methods correct probabilities for the class frequencies of the target, by Bayes' rule (Saerens
et al., Neural Computation 2002; Elkan, IJCAI 2001). The predicted class stays the same.

| symbol | meaning |
|---|---|
| p | class frequencies of labelled source validation rows |
| q | class frequencies of the target, from the user |
| b_y = log(q_y / p_y) | class offsets |
| softmax(z / T + b) | probabilities, if only P(y) changes from p to q |

| method    | T                                                                              |
|-----------|--------------------------------------------------------------------------------|
| prior     | T_s                                                                            |
| prior+cot | makes the mean target confidence COT's accuracy; it is never below T_s         |
"""

import statistics
from dataclasses import replace

import numpy as np

from covcal_cli.arrays import Float64s
from covcal_cli.calibrate.problem import MethodFit, Problem, minimised
from covcal_cli.errors import CovcalError, percent
from covcal_cli.estimators.confidences import atc
from covcal_cli.estimators.consensus import ESTIMATE_ALONE
from covcal_cli.estimators.guards import (
    MIN_ESS_SHARE,
    MIN_SIGMA,
    guards_on_weights,
    prior_drift,
    prior_reached,
    prior_rows,
)
from covcal_cli.estimators.label_shift import LabelShift, label_shift
from covcal_cli.estimators.matched_temperature import Match, match_accuracy
from covcal_cli.forecast import enough_errors
from covcal_cli.maths.odds import probabilities
from covcal_cli.maths.softmax import ForecasterName, Forecasters, Scaling, scaled_by, with_offsets
from covcal_cli.maths.weights import ImportanceWeights, bound_terms
from covcal_cli.records import Guard, sentences_of_failed

_NOT_MOVED = 1e-6
_MIN_ESS_FIT = 100.0  # minimum effective sample size of a weighted fit
_MAX_MEAN_WEIGHT_GAP = 0.2
_MAX_CLIPPED_SHARE = 0.01
_PRIOR_DRIFT = "prior drift"


def unscaled(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Use T = 1 (no calibration)."""
    scaling = Scaling(forecaster, 1.0)
    loss = problem.loss_of(scaling)
    return MethodFit(scaling, loss, loss)


def importance_weighted(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Fit T to source rows with the weights 1/g - 1/2, and compute the bound of Theorem 1."""
    weights = problem.weights(forecaster)
    fit = _weighted(problem, forecaster, weights.fit_weights, weights)
    bound = bound_terms(
        weights.fit_weights,
        problem.validation.row_losses(fit.scaling, "brier"),
        weights.health.discriminator_error,
        problem.settings.max_weight,
    )
    return replace(fit, bound=bound)


def weights_alone(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Fit T to source rows with the importance weights 1/g - 1."""
    weights = problem.weights(forecaster)
    if weights.weights.max() == 0:
        raise CovcalError(
            f"{problem.file.path}: no source validation row is similar to the target, so all "
            "importance weights are 0: choose a method without weights"
        )
    return _weighted(problem, forecaster, weights.weights, weights)


def class_weighted(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Fit T to source rows, weighted by the ratio of the target and source class frequencies."""
    shift = label_shift(problem.inputs, "rlls")
    row_weights = shift.ratios[problem.validation.labels]
    if row_weights.max() == 0:
        raise CovcalError(
            f"{problem.file.path}: the estimated target frequency of every class is 0: choose "
            "another method"
        )
    failed = sentences_of_failed(shift.guards)
    fit = minimised(problem, forecaster, row_weights, shift.guards, failed)
    return replace(fit, notes=(*fit.notes, _frequencies_in_words(shift)))


def _frequencies_in_words(shift: LabelShift) -> str:
    if shift.moved < _NOT_MOVED:
        return (
            "RLLS has too few rows to find a change in class frequencies, so T comes from the "
            "method temp"
        )
    text = (
        f"RLLS estimates that the class frequencies changed by {percent(shift.moved, 1)} in total"
    )
    if shift.sigmas > MIN_SIGMA:
        return text
    return (
        f"{text}. The change may be due to chance: it is only {shift.sigmas:.1f} standard errors "
        f"(at least {MIN_SIGMA:.0f} needed)"
    )


def _weighted(
    problem: Problem, forecaster: ForecasterName, row_weights: Float64s, weights: ImportanceWeights
) -> MethodFit:
    guards = guards_on_weights(weights)
    fit = minimised(problem, forecaster, row_weights, guards, warnings_on_weights(weights))
    return replace(fit, weights=weights, notes=tuple(notes_on_weights(weights)))


def notes_on_weights(weights: ImportanceWeights) -> list[str]:
    """Return a note if the discriminator finds no difference between the domains."""
    if all(fit.at_limit == "upper" for fit in weights.temperatures):
        return ["the domain classifier finds no shift, so all importance weights are about 1"]
    return []


def warnings_on_weights(weights: ImportanceWeights) -> list[str]:
    """Return warnings if few rows have most of the importance weight."""
    health, warnings = weights.health, []
    if health.ess == 0:
        return [
            "no source validation row is similar to the target, so T is fitted without "
            "weights: use auto, or label target rows with covcal pick"
        ]
    limits = []
    if health.ess_share < MIN_ESS_SHARE:
        limits.append(f"at least {MIN_ESS_SHARE * health.n:.1f} are needed")
    if health.ess_fit < _MIN_ESS_FIT:
        limits.append(f"the fit of T uses {health.ess_fit:.1f}, but needs {_MIN_ESS_FIT:.0f} rows")
    if limits:
        warnings.append(
            f"the effective sample size of the importance weights is {health.ess:.1f} of {health.n}"
            f" rows ({'; '.join(limits)}): do not use a method with importance weights (iw)"
        )
    if abs(health.mean_weight - 1) > _MAX_MEAN_WEIGHT_GAP:
        warnings.append(
            f"the mean importance weight is {health.mean_weight:.2f} instead of 1: do not use a "
            "method with importance weights (iw)"
        )
    if health.clipped_share > _MAX_CLIPPED_SHARE:
        warnings.append(
            f"{percent(health.clipped_share, 1)} of the importance weights were cut at the "
            "maximum weight: some target rows have almost no similar source rows"
        )
    return warnings


def by_transport(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Choose T so that the mean target confidence equals the accuracy estimated by COT."""
    match = match_accuracy(problem.target_logits(forecaster), problem.cot.accuracy)
    least = problem.inputs.temperature
    notes = []
    if match.temperature < least:
        notes.append(
            f"the estimated accuracy of {percent(problem.cot.accuracy, 1)} needs T = "
            f"{match.temperature:.4g}. But the method cot never uses a lower T than the method "
            f"temp, so T is {least:.4g}"
        )
    guards = (*_transport_guards(problem), match.guard)
    fit = _fitted(problem, Scaling(forecaster, max(match.temperature, least)), guards, notes)
    return replace(fit, matched=match.confidence if match.temperature >= least else None)


def by_transport_aligned(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Choose T so that the aligned forecaster's mean confidence equals the accuracy from COT."""
    match = _match(problem, forecaster, problem.cot.accuracy)
    guards = (*_transport_guards(problem), match.guard)
    fit = _fitted(
        problem, Scaling(forecaster, match.temperature), guards, _notes_on_crossings(match)
    )
    return replace(fit, matched=match.confidence)


def by_consensus(problem: Problem, forecaster: Forecasters) -> MethodFit:
    """Choose T so that the mean target confidence equals the combined estimate of the accuracy.

    The method ``blend`` has separate temperatures for the classifier and the aligned forecaster.
    """
    accuracy = problem.accuracy
    guards, notes, matches, floors = [*accuracy.guards], [], [], []
    for name in scaled_by(forecaster):
        match = _match(problem, name, accuracy.accuracy)
        matches.append(match)
        floors.append(problem.least_temperature(name))
        on_logits, guard = "", match.guard
        if name == "aligned":
            on_logits = "on the logits of adapt: "
            guard = replace(
                guard, name=f"aligned {guard.name}", sentence=on_logits + guard.sentence
            )
        guards.append(guard)
        notes += _notes_on_crossings(match)
        if match.temperature < floors[-1]:
            notes.append(
                f"{on_logits}the estimated accuracy of {percent(accuracy.accuracy, 1)} needs a "
                f"temperature of {match.temperature:.4g}. "
                f"{ESTIMATE_ALONE}, so the temperature is {floors[-1]:.4g}"
            )
    temperatures = [
        max(match.temperature, floor) for match, floor in zip(matches, floors, strict=True)
    ]
    scaling = Scaling(forecaster, *temperatures)
    fit = _fitted(problem, scaling, tuple(guards), notes)
    if temperatures != [match.temperature for match in matches]:
        return fit
    return replace(fit, matched=statistics.fmean(match.confidence for match in matches))


def by_threshold(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Choose T so that the mean target confidence equals the accuracy estimated by ATC."""
    estimate = atc(problem.inputs)
    match = match_accuracy(problem.target_logits(forecaster), estimate.accuracy)
    scaling = Scaling(forecaster, match.temperature)
    return _fitted(problem, scaling, (*estimate.guards, match.guard), [])


def _match(problem: Problem, forecaster: ForecasterName, accuracy: float) -> Match:
    labels = None if forecaster == "original" else problem.inputs.target_predictions
    return match_accuracy(problem.target_logits(forecaster), accuracy, labels)


def _notes_on_crossings(match: Match) -> list[str]:
    if match.crossings < 2:
        return []
    return [
        f"{match.crossings} temperatures make the mean confidence equal to the estimated "
        "accuracy: covcal uses the largest T"
    ]


def _transport_guards(problem: Problem) -> tuple[Guard, ...]:
    if problem.prior is not None:
        return problem.cot.guards
    return *problem.cot.guards, prior_drift(*problem.inputs.predicted_shares())


def _fitted(
    problem: Problem, scaling: Scaling, guards: tuple[Guard, ...], notes: list[str]
) -> MethodFit:
    drift = [guard for guard in guards if guard.name == _PRIOR_DRIFT]
    warnings = sentences_of_failed(guard for guard in guards if guard not in drift)
    forecasters = scaled_by(scaling.forecaster)
    of_rows = enough_errors(problem.errors(forecasters[0]), len(problem.validation))
    if of_rows.name not in {guard.name for guard in guards}:
        guards = (*guards, of_rows)
    return MethodFit(
        scaling,
        problem.loss_of(scaling),
        problem.loss_of(Scaling(scaling.forecaster, *(1.0 for _ in forecasters))),
        guards=guards,
        notes=(*notes, *sentences_of_failed(drift)),
        warnings=tuple(warnings),
    )


def by_prior(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Use the temperature of ``temp``, and class offsets for the given class frequencies."""
    fit = minimised(problem, forecaster)
    guards = _prior_guards(problem, forecaster, fit.scaling.temperature)
    return replace(
        fit,
        scaling=replace(fit.scaling, offsets=problem.prior_offsets),
        guards=(*guards, *fit.guards),
        warnings=(*sentences_of_failed(guards), *fit.warnings),
    )


def by_prior_and_transport(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Use class offsets, and choose T so that the mean confidence equals the accuracy from COT."""
    logits, labels = problem.target_logits(forecaster), problem.inputs.target_predictions
    match = match_accuracy(logits, problem.cot.accuracy, labels, problem.prior_offsets)
    fit = minimised(problem, forecaster)
    least = fit.scaling.temperature
    scaling = Scaling(forecaster, max(match.temperature, least), offsets=problem.prior_offsets)
    of_cot = (*problem.cot.guards, match.guard)
    of_prior = _prior_guards(problem, forecaster, scaling.temperature)
    return replace(
        fit,
        scaling=scaling,
        matched=match.confidence if match.temperature >= least else None,
        loss=problem.loss_of(scaling),
        guards=(*of_cot, *of_prior, *fit.guards),
        warnings=(*sentences_of_failed((*of_cot, *of_prior)), *fit.warnings),
    )


def _prior_guards(
    problem: Problem, forecaster: ForecasterName, temperature: float
) -> tuple[Guard, ...]:
    offsets = problem.prior_offsets
    moved = with_offsets(problem.target_logits(forecaster), temperature, offsets)
    counts = np.bincount(problem.validation.labels, minlength=len(offsets)) + 0.5
    prior = np.exp(offsets) * counts / counts.sum()
    return (
        prior_rows(float(prior @ counts**-0.5)),
        prior_reached(prior, probabilities(moved, temperature).mean(axis=1)),
    )
