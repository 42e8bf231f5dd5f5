"""The choice of ``--method auto``, with every candidate's numbers beside it.

The rule. T_s is the temperature of ``temp``. The accuracy on the target is estimated by
`estimators.consensus`, which holds the rule of the estimate and all constants. The method is
``consensus``: the T of at least 1 whose mean target confidence is that accuracy. Where the mean
confidence at T_s is within 3 points of it, ``temp`` stays, or ``none`` where T_s would sharpen:
errors of a few source rows are no ground to be surer on other data.

Where the target's class frequencies are given, the guards of COT's estimate with that prior choose
``prior+cot``, else ``prior``: whatever else shifts, Bayes' rule knows what frequencies do. On the
benchmark's first 33 shifts, as they come and with classes made rarer (91 shifts, true frequencies
given), that has a mean Brier score of .267 where ``cot`` and ``temp`` by the same guards have
.310 and ``temp`` .342. Frequencies that BBSE estimates are not known ones: ``prior`` with them
has .354, so that there it is ``cot`` or ``temp`` by the guards.

For every candidate the mean confidence on target training and validation rows stands beside the
estimated accuracy (`panel.combined`). Were the estimate right, no ECE could be smaller than their
distance; it may be larger, as confidence may be right on average and wrong row by row. A candidate
whose T was matched to that very estimate has the distance 0 whatever the truth. The estimate may be
wrong all the same: its guard says where its witnesses contradict each other.
"""

from collections.abc import Mapping, Sequence

from covcal_cli.calibrate.methods import BBSE_PRIOR
from covcal_cli.calibrate.problem import MethodFit, Problem
from covcal_cli.estimators.consensus import SAME
from covcal_cli.formats.calibration import Candidate

_NONE, _TEMP, _COT, _CONSENSUS = "none", "temp", "cot", "consensus"
_WITH_PRIOR = "prior+cot", "prior"
_NOT_IN_RULE = "not in the rule"
_SHOWN = 5e-5  # the last digit that is printed


def choose(
    problem: Problem, fits: Mapping[str, MethodFit]
) -> tuple[str, str, tuple[Candidate, ...]]:
    """Return the name of auto's choice among `fits`, the reason in words, and all of them.

    Without an estimate the candidates have no confidence, accuracy or distance.
    """
    lacking = problem.missing_for_estimate
    if lacking is not None:
        reason = f"{_TEMP}, as an estimate of the target accuracy would need {lacking}"
        found = [
            Candidate(name, fit.scaling.temperature, None, None, None, name == _TEMP, _NOT_IN_RULE)
            for name, fit in fits.items()
        ]
        return _TEMP, reason, tuple(found)
    chosen, reason = _ruled(problem)
    candidates = tuple(_candidate(problem, *fit, chosen) for fit in fits.items())
    return chosen, reason + _objection(candidates), candidates


def _ruled(problem: Problem) -> tuple[str, str]:
    return _by_accuracy(problem) if problem.prior is None else _by_prior(problem)


def _by_accuracy(problem: Problem) -> tuple[str, str]:
    accuracy, temperature = problem.accuracy, problem.inputs.temperature
    confidence = float(problem.inputs.target_confidence.mean())
    found = f"the accuracy is estimated at {accuracy.accuracy:.2%}, if {accuracy.assumption},"
    if abs(confidence - accuracy.accuracy) >= SAME:
        reason = f"{_CONSENSUS}, as {found} and the mean confidence by {_TEMP} is {confidence:.2%}"
        return _CONSENSUS, reason
    same = (
        f"as {found} and the mean confidence by {_TEMP}, {confidence:.2%}, is the same within "
        f"{100 * SAME:.0f} points"
    )
    if temperature >= 1:
        return _TEMP, f"{_TEMP}, {same}"
    return _NONE, f"{_NONE}, {same}, and its T of {temperature:.4g} would sharpen"


def _by_prior(problem: Problem) -> tuple[str, str]:
    cot = problem.cot
    trusting, cautious = _rivals(problem)
    failed = [guard for guard in cot.guards if not guard.passed]
    if failed:
        return cautious, f"{cautious}, as the guard {failed[0].name!r} fails: {failed[0].sentence}"
    return trusting, (
        f"{trusting}, as the {len(cot.guards)} guards of cot's estimate {cot.accuracy:.2%} pass: "
        f"{cot.guard('detectable shift').sentence}"
    )


def _rivals(problem: Problem) -> tuple[str, str]:
    """Return what auto takes with a prior where COT's guards pass, and else."""
    return (_COT, _TEMP) if problem.settings.target_prior == BBSE_PRIOR else _WITH_PRIOR


def _objection(candidates: Sequence[Candidate]) -> str:
    """Return why the choice stands although another candidate is nearer to the estimate."""
    chosen = next(candidate for candidate in candidates if candidate.chosen)
    rivals = [candidate for candidate in candidates if not candidate.matched]
    nearest = min(rivals, key=lambda candidate: candidate.expected_ece or 0.0, default=chosen)
    gain = (chosen.expected_ece or 0.0) - (nearest.expected_ece or 0.0)
    if gain < _SHOWN:
        return ""
    return (
        f" ({nearest.method} is nearer to the estimated accuracy, which does not decide: the "
        "estimate may be off, and being right on average is not enough)"
    )


def _candidate(problem: Problem, name: str, fit: MethodFit, chosen: str) -> Candidate:
    confidence = problem.target_confidence(fit.scaling)
    accuracy = problem.accuracy.accuracy
    gap = abs(confidence - accuracy)
    matched = fit.matched is not None and abs(fit.matched - accuracy) < _SHOWN
    return Candidate(
        name,
        fit.scaling.temperature,
        confidence,
        accuracy,
        expected_ece=gap,
        chosen=name == chosen,
        why=_why(problem, name, fit, name == chosen),
        least_ece=None if matched else gap,
        matched=matched,
        aligned_temperature=fit.scaling.aligned_temperature,
    )


def _why(problem: Problem, name: str, fit: MethodFit, chosen: bool) -> str:
    if problem.prior is None:
        if chosen:
            return "its confidence is the estimate, or near to it"
        if name in (_NONE, _TEMP, _CONSENSUS):
            return "the rule takes another"
    else:
        trusting, cautious = _rivals(problem)
        if name == trusting:
            failed = [guard.name for guard in problem.cot.guards if not guard.passed]
            return "cot's guards pass" if chosen else f"cot's guards fail: {', '.join(failed)}"
        if name == cautious:
            return "cot is not trusted here" if chosen else "cot is trusted here"
    if fit.weights is not None:
        health = fit.weights.health
        return f"{_NOT_IN_RULE}; weights worth {health.ess:.1f} of {health.n} rows"
    return _NOT_IN_RULE
