"""Methods that use the target: its estimated accuracy, or its class frequencies.

Most match the mean target confidence to an estimate of the target accuracy:

| method    | estimate          | logits                            | least T  |
|-----------|-------------------|-----------------------------------|----------|
| cot       | COT               | the classifier's                  | T_s      |
| fl+cot    | COT               | adapt's, the classifier's labels  | -        |
| consensus | combined estimate | the classifier's                  | floor    |
| blend     | combined estimate | both, each with its own T         | floors   |
| atc       | ATC               | the classifier's                  | -        |

They do not minimise a loss on the source. T_s is the temperature of ``temp``, which does. The floor
is 1. Where T_s is below 1 and the source has at least 10 errors, the floor is T_s: then the source
proves that the classifier is not confident enough.

Two correct the log odds for the class frequencies of the target. If only P(y) changes from p to q,
the target's p(y | x) is proportional to q_y / p_y times the source's (Saerens et al., Neural
Computation 2002; Elkan, IJCAI 2001). So the probabilities are softmax(z / T + b) with
b_y = log(q_y / p_y). The frequencies p are those of the labelled source validation rows, to which
T_s is fitted. The user gives q. The classifier's label does not change, even where another class
becomes more probable.

| method    | T                                                                              |
|-----------|--------------------------------------------------------------------------------|
| prior     | T_s                                                                            |
| prior+cot | makes the mean target confidence COT's accuracy; it is never below T_s         |
"""

import statistics
from dataclasses import replace

import numpy as np

from covcal_cli.calibrate.on_source import plain
from covcal_cli.calibrate.problem import MethodFit, Problem
from covcal_cli.estimators.atc import atc
from covcal_cli.estimators.guards import (
    enough_errors,
    prior_drift,
    prior_reached,
    prior_rows,
    sentences_of_failed,
)
from covcal_cli.estimators.matched_temperature import Match, match_accuracy
from covcal_cli.maths.odds import probabilities
from covcal_cli.maths.scaling import ForecasterName, Forecasters, Scaling, scaled_by
from covcal_cli.maths.softmax import with_offsets
from covcal_cli.records import Guard

_PRIOR_DRIFT = "prior drift"


def by_transport(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Match COT's accuracy on the classifier's logits, with a T of at least T_s.

    COT measures the harm of a shift. A T below T_s would mean that the shift helps.
    """
    match = match_accuracy(problem.target_logits(forecaster), problem.cot.accuracy)
    least = problem.inputs.temperature
    notes = []
    if match.temperature < least:
        notes.append(
            f"the estimated accuracy of {problem.cot.accuracy:.1%} would need T = "
            f"{match.temperature:.4g}, but T stays at least that of the source, {least:.4g}"
        )
    guards = (*_transport_guards(problem), match.guard)
    fit = _fitted(problem, Scaling(forecaster, max(match.temperature, least)), guards, notes)
    return replace(fit, matched=match.confidence if match.temperature >= least else None)


def by_transport_aligned(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Match COT's accuracy with the aligned forecaster's probability of the classifier's labels."""
    match = _match(problem, forecaster, problem.cot.accuracy)
    guards = (*_transport_guards(problem), match.guard)
    fit = _fitted(
        problem, Scaling(forecaster, match.temperature), guards, _notes_on_crossings(match)
    )
    return replace(fit, matched=match.confidence)


def by_consensus(problem: Problem, forecaster: Forecasters) -> MethodFit:
    """Match the combined estimate on the classifier's logits, with a T of at least the floor.

    For a blend, match both logits separately; their mean then matches too.
    """
    accuracy = problem.accuracy
    guards, notes, matches, floors = [*accuracy.guards], [], [], []
    for name in scaled_by(forecaster):
        match = _match(problem, name, accuracy.accuracy)
        matches.append(match)
        floors.append(problem.least_temperature(name))
        where, guard = "", match.guard
        if name == "aligned":
            where = "on the logits of adapt: "
            guard = replace(guard, name=f"aligned {guard.name}", sentence=where + guard.sentence)
        guards.append(guard)
        notes += _notes_on_crossings(match)
        if match.temperature < floors[-1]:
            notes.append(
                f"{where}the estimated accuracy of {accuracy.accuracy:.1%} would need T = "
                f"{match.temperature:.4g}, but an estimate alone is not enough evidence to raise "
                f"confidence: T is kept at {floors[-1]:.4g}"
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
    """Match ATC's accuracy on the classifier's logits."""
    estimate = atc(problem.inputs)
    match = match_accuracy(problem.target_logits(forecaster), estimate.accuracy)
    scaling = Scaling(forecaster, match.temperature)
    return _fitted(problem, scaling, (*estimate.guards, match.guard), [])


def _match(problem: Problem, forecaster: ForecasterName, accuracy: float) -> Match:
    """Match an accuracy with a forecaster's probability of the classifier's labels."""
    labels = None if forecaster == "original" else problem.inputs.target_predictions
    return match_accuracy(problem.target_logits(forecaster), accuracy, labels)


def _notes_on_crossings(match: Match) -> list[str]:
    if match.crossings < 2:
        return []
    return [f"{match.crossings} temperatures give the estimated accuracy: T is the largest of them"]


def _transport_guards(problem: Problem) -> tuple[Guard, ...]:
    """Return COT's checks and, without a given prior, the check of the predictions' drift.

    COT uses the drift itself, so a drift can make COT right or wrong. The check only
    informs.
    """
    if problem.prior is not None:
        return problem.cot.guards
    return *problem.cot.guards, prior_drift(*problem.inputs.predicted_shares())


def _fitted(
    problem: Problem,
    scaling: Scaling,
    guards: tuple[Guard, ...],
    notes: list[str],
) -> MethodFit:
    drift = [guard for guard in guards if guard.name == _PRIOR_DRIFT]
    warnings = sentences_of_failed(guard for guard in guards if guard not in drift)
    # A method whose estimate reads source errors has this check already.
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
    """Take T_s, and move the log odds by b."""
    fit = plain(problem, forecaster)
    guards = _prior_guards(problem, forecaster, fit.scaling.temperature)
    return replace(
        fit,
        scaling=replace(fit.scaling, offsets=problem.prior_offsets),
        guards=(*guards, *fit.guards),
        warnings=(*sentences_of_failed(guards), *fit.warnings),
    )


def by_prior_and_transport(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Move the log odds by b, and match COT's accuracy with a T of at least T_s."""
    logits, labels = problem.target_logits(forecaster), problem.inputs.target_predictions
    match = match_accuracy(logits, problem.cot.accuracy, labels, problem.prior_offsets)
    fit = plain(problem, forecaster)
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
    """Check the source's class frequencies, and those of the corrected probabilities."""
    offsets = problem.prior_offsets
    moved = with_offsets(problem.target_logits(forecaster), temperature, offsets)
    counts = np.bincount(problem.validation.labels, minlength=len(offsets)) + 0.5
    prior = np.exp(offsets) * counts / counts.sum()
    return (
        prior_rows(float(prior @ counts**-0.5)),
        prior_reached(prior, probabilities(moved, temperature).mean(axis=1)),
    )
