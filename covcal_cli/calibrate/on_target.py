"""Methods whose T_f answers to unlabelled target rows, most through an estimated accuracy.

| method    | T_f makes                                                       |
|-----------|-----------------------------------------------------------------|
| cot       | the mean target confidence COT's accuracy; it is never below T_s|
| fl+cot    | the same of the classifier's labels under the aligned logits    |
| consensus | the mean target confidence the combined accuracy; at least 1    |
| blend     | the same of the classifier's and, by a T_a, of the aligned logits|
| atc       | the mean target confidence ATC's accuracy                       |
| transcal  | the mean target confidence TransCal's accuracy; at least 1      |
| utdc      | the confidence in every bin COT's accuracy there                |
| pseudocal | mixtures of target rows likely to have the heavier row's label  |

None of them minimises a loss on the source, so that T_s, the T of ``temp``, is what they are seen
against.
"""

import statistics
from dataclasses import replace

from covcal_cli.calibrate.problem import MethodFit, Problem, notes_on_weights
from covcal_cli.estimators.atc import atc
from covcal_cli.estimators.guards import (
    enough_errors,
    guards_on_weights,
    prior_drift,
    sentences_of_failed,
)
from covcal_cli.estimators.matched_temperature import Match, match_accuracy
from covcal_cli.estimators.pseudocal import pseudocal
from covcal_cli.estimators.transcal import transcal
from covcal_cli.estimators.utdc import utdc_temperature
from covcal_cli.maths.scaling import ForecasterName, Forecasters, Scaling, scaled_by
from covcal_cli.maths.weights import ImportanceWeights
from covcal_cli.records import Guard

_PRIOR_DRIFT = "prior drift"


def by_transport(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Match COT's accuracy on the classifier's logits, at a T of at least T_s.

    COT claims that a shift does harm. A lower T than the source's would say that it does good.
    """
    match = match_accuracy(problem.target_logits(forecaster), problem.cot.accuracy)
    least = problem.inputs.temperature
    notes = []
    if match.temperature < least:
        notes.append(
            f"the estimated accuracy {problem.cot.accuracy:.2%} would need T = "
            f"{match.temperature:.4g}: T is kept at the source's, {least:.4g}"
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
    """Match the combined estimate of the accuracy on the classifier's logits; T is at least 1.

    Of a blend the aligned logits are matched as well, each T by itself, so that their mean is.
    """
    accuracy = problem.accuracy
    guards, notes, matches = [*accuracy.guards], [], []
    for one in scaled_by(forecaster):
        match = _match(problem, one, accuracy.accuracy)
        matches.append(match)
        where, guard = "", match.guard
        if one == "aligned":
            where = "on the logits of adapt, "
            guard = replace(guard, name=f"aligned {guard.name}", sentence=where + guard.sentence)
        guards.append(guard)
        notes += _notes_on_crossings(match)
        if match.temperature < 1:
            notes.append(
                f"{where}the estimated accuracy {accuracy.accuracy:.2%} would need T = "
                f"{match.temperature:.4g}: no estimate is ground enough to sharpen, and T is kept "
                "at 1"
            )
    scaling = Scaling(forecaster, *(max(match.temperature, 1.0) for match in matches))
    fit = _fitted(problem, scaling, tuple(guards), notes)
    if any(match.temperature < 1 for match in matches):
        return fit
    return replace(fit, matched=statistics.fmean(match.confidence for match in matches))


def by_threshold(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Match ATC's accuracy on the classifier's logits."""
    estimate = atc(problem.inputs)
    match = match_accuracy(problem.target_logits(forecaster), estimate.accuracy)
    scaling = Scaling(forecaster, match.temperature)
    return _fitted(problem, scaling, (*estimate.guards, match.guard), [])


def by_control_variates(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Match TransCal's accuracy on the classifier's logits, at a T of at least 1 (as published)."""
    weights = problem.weights(forecaster)
    estimate = transcal(problem.inputs_with(weights.weights))
    match = match_accuracy(problem.target_logits(forecaster), estimate.accuracy)
    notes = notes_on_weights(weights)
    if match.temperature < 1:
        notes.append(
            f"the estimated accuracy {estimate.accuracy:.2%} would need T = "
            f"{match.temperature:.4g}: TransCal never sharpens, and T is kept at 1"
        )
    if estimate.power < 1:
        notes.append(
            f"the importance weights are raised to the power {estimate.power:.2f}, at which they "
            "are worth 30% of the rows"
        )
    guards = (*guards_on_weights(weights), match.guard)
    scaling = Scaling(forecaster, max(match.temperature, 1.0))
    return _fitted(problem, scaling, guards, notes, weights)


def by_reliability(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Match the source's reliability, rescaled to COT's accuracy, bin by bin (UTDC)."""
    temperature = utdc_temperature(problem.inputs, problem.cot.accuracy)
    return _fitted(problem, Scaling(forecaster, temperature), _transport_guards(problem), [])


def on_mixtures(problem: Problem, forecaster: ForecasterName) -> MethodFit:
    """Fit T to mixtures of target rows (PseudoCal)."""
    found = pseudocal(problem.inputs, seed=problem.settings.seed)
    notes = []
    if found.pairs == 0:
        notes.append("only one class is predicted on the target: T is the source's")
    fit = _fitted(problem, Scaling(forecaster, found.temperature), found.guards, notes)
    return replace(fit, at_limit=found.at_limit)


def _match(problem: Problem, forecaster: ForecasterName, accuracy: float) -> Match:
    """Match an accuracy with a forecaster's probability of the classifier's labels."""
    labels = None if forecaster == "original" else problem.inputs.target_predictions
    return match_accuracy(problem.target_logits(forecaster), accuracy, labels)


def _notes_on_crossings(match: Match) -> list[str]:
    if match.crossings < 2:
        return []
    return [f"{match.crossings} temperatures give the estimated accuracy: T is the softest of them"]


def _transport_guards(problem: Problem) -> tuple[Guard, ...]:
    """Return COT's guards and, where the prior is the source's, how far predictions drift from it.

    The drift is what COT reads, so that it speaks for COT as well as against it: its guard informs,
    and no rule asks for it.
    """
    if problem.prior is not None:
        return problem.cot.guards
    return *problem.cot.guards, prior_drift(*problem.inputs.predicted_shares())


def _fitted(
    problem: Problem,
    scaling: Scaling,
    guards: tuple[Guard, ...],
    notes: list[str],
    weights: ImportanceWeights | None = None,
) -> MethodFit:
    drift = [guard for guard in guards if guard.name == _PRIOR_DRIFT]
    warnings = sentences_of_failed(guard for guard in guards if guard not in drift)
    # A method that reads errors itself has this guard among its own.
    forecasters = scaled_by(scaling.forecaster)
    of_rows = enough_errors(problem.errors(forecasters[0]), len(problem.validation))
    if of_rows.name not in {guard.name for guard in guards}:
        guards = (*guards, of_rows)
    return MethodFit(
        scaling,
        problem.loss_of(scaling),
        problem.loss_of(Scaling(scaling.forecaster, *(1.0 for _ in forecasters))),
        guards=guards,
        weights=weights,
        notes=(*notes, *sentences_of_failed(drift)),
        warnings=tuple(warnings),
    )
