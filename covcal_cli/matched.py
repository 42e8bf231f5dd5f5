"""Methods whose T_f answers to unlabelled target rows, most through an estimated accuracy.

None of them minimises a loss on the source, so that T_s, the T of ``temp``, is what they are seen
against.
"""

from covcal_cli.case import Case
from covcal_cli.fitted import Fitted
from covcal_cli.labelfree.atc import atc
from covcal_cli.labelfree.guards import prior_drift
from covcal_cli.labelfree.matching import Match, match_accuracy
from covcal_cli.labelfree.pseudocal import pseudocal
from covcal_cli.labelfree.transcal import transcal
from covcal_cli.labelfree.utdc import utdc_temperature
from covcal_cli.methods import Method
from covcal_cli.minimised import guards_on_weights, source_guards
from covcal_cli.records import Guard
from covcal_cli.remarks import notes_on_weights, warnings_on_guards
from covcal_cli.weights import ImportanceWeights

_PRIOR_DRIFT = "prior drift"


def by_transport(case: Case, method: Method) -> Fitted:
    """Match COT's accuracy on the classifier's logits, at a T of at least T_s.

    COT claims that a shift does harm. A lower T than the source's would say that it does good.
    """
    match = match_accuracy(case.evidence.target_logits, case.cot.accuracy)
    least = case.evidence.temperature
    notes = []
    if match.temperature < least:
        notes.append(
            f"the estimated accuracy {case.cot.accuracy:.2%} would need T = "
            f"{match.temperature:.4g}: T is kept at the source's, {least:.4g}"
        )
    guards = (*_transport_guards(case), match.guard)
    return _fitted(case, method, max(match.temperature, least), guards, notes)


def by_transport_aligned(case: Case, method: Method) -> Fitted:
    """Match COT's accuracy with the aligned forecaster's probability of the classifier's labels."""
    logits, labels = case.aligned.target_logits, case.evidence.target_predictions
    match = match_accuracy(logits, case.cot.accuracy, labels)
    guards = (*_transport_guards(case), match.guard)
    return _fitted(case, method, match.temperature, guards, _on_crossings(match))


def by_threshold(case: Case, method: Method) -> Fitted:
    """Match ATC's accuracy on the classifier's logits."""
    estimate = atc(case.evidence)
    match = match_accuracy(case.evidence.target_logits, estimate.accuracy)
    return _fitted(case, method, match.temperature, (*estimate.guards, match.guard), [])


def by_control_variates(case: Case, method: Method) -> Fitted:
    """Match TransCal's accuracy on the classifier's logits."""
    weights = case.weights("original")
    estimate = transcal(case.evidence_with(weights.weights))
    match = match_accuracy(case.evidence.target_logits, estimate.accuracy)
    notes = notes_on_weights(weights)
    if estimate.power < 1:
        notes.append(
            f"the importance weights are raised to the power {estimate.power:.2f}, at which they "
            "are worth 30% of the rows"
        )
    guards = (*guards_on_weights(weights), match.guard)
    return _fitted(case, method, match.temperature, guards, notes, weights)


def by_reliability(case: Case, method: Method) -> Fitted:
    """Match the source's reliability, rescaled to COT's accuracy, bin by bin (UTDC)."""
    temperature = utdc_temperature(case.evidence, case.cot.accuracy)
    return _fitted(case, method, temperature, _transport_guards(case), [])


def on_mixtures(case: Case, method: Method) -> Fitted:
    """Fit T to mixtures of target rows (PseudoCal)."""
    found = pseudocal(case.evidence, seed=case.seed)
    notes = []
    if found.pairs == 0:
        notes.append("only one class is predicted on the target: T is the source's")
    return _fitted(case, method, found.temperature, found.guards, notes)


def _transport_guards(case: Case) -> tuple[Guard, ...]:
    """Return COT's guards and, where the prior is the source's, how far predictions drift from it.

    The drift is what COT reads, so that it speaks for COT as well as against it: its guard informs,
    and no rule asks for it.
    """
    if case.prior is not None:
        return case.cot.guards
    return *case.cot.guards, prior_drift(*case.evidence.predicted_shares())


def _on_crossings(match: Match) -> list[str]:
    if match.crossings <= 1:
        return []
    return [f"{match.crossings} temperatures give the estimated accuracy: T is the softest of them"]


def _fitted(
    case: Case,
    method: Method,
    temperature: float,
    guards: tuple[Guard, ...],
    notes: list[str],
    weights: ImportanceWeights | None = None,
) -> Fitted:
    forecaster = method.forecaster_in(case.file)
    known = {guard.name for guard in guards}
    guards += tuple(g for g in source_guards(case, forecaster) if g.name not in known)
    informing = [guard for guard in guards if guard.name == _PRIOR_DRIFT and not guard.passed]
    warning = [g for g in guards if g.name in known and g.name != _PRIOR_DRIFT]
    return Fitted(
        method,
        forecaster,
        temperature,
        case.loss_at(forecaster, temperature),
        case.loss_at(forecaster, 1.0),
        guards=guards,
        weights=weights,
        notes=(*notes, *(guard.sentence for guard in informing)),
        warnings=tuple(warnings_on_guards(warning)),
    )
