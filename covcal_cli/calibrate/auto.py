"""The choice of ``--method auto``, with every candidate's numbers beside it.

The rule. T_s is the temperature of ``temp``. If the three guards of COT's estimate pass, the method
is ``cot`` on the classifier's own logits: T = max(T_s, the T whose mean target confidence is COT's
accuracy). Else it is ``temp``. The guards (`estimators.guards`):

- detectable shift: the estimated rise of the error exceeds 2 standard errors;
- second witness: the mean confidence falls by more than 2 standard errors too, or more than half of
  the predicted labels would have to change (not asked where a prior is given);
- precision: sampling moves the estimate by at most 5.5 points either way (95 %).

The thresholds were chosen on made shifts, corrupted scikit-learn digits, SVHN to USPS,
Office-Caltech10 and Amazon reviews; no other MNIST or USPS shift was among them.

Where the target's class frequencies are given, the same guards of COT's estimate with that prior
choose ``prior+cot``, else ``prior``: whatever else shifts, Bayes' rule knows what frequencies do.
On those data sets, as they come and with classes made rarer (91 shifts, true frequencies given),
that has a mean Brier score of .267 where the first rule has .310 and ``temp`` .342. Frequencies
that BBSE estimates are not known ones: ``prior`` with them has .354, so that the first rule stands.

For every candidate the mean confidence on target training and validation rows stands beside the
estimated accuracy (`panel.combined`). Were the estimate right, no ECE could be smaller than their
distance; it may be larger, as confidence may be right on average and wrong row by row. A candidate
whose T was matched to that very estimate has the distance 0 whatever the truth. The rule does not
look at distances: where COT's estimate is not trusted, `panel.combined` is only the best of those
that are left.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from covcal_cli.calibrate.methods import BBSE_PRIOR, SOURCE_PRIOR
from covcal_cli.calibrate.problem import MethodFit, Problem
from covcal_cli.estimators.evidence import confidences
from covcal_cli.formats.calibration import Candidate
from covcal_cli.maths.softmax import with_offsets

_COT, _TEMP = "cot", "temp"
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
            Candidate(name, fit.temperature, None, None, None, name == _TEMP, _NOT_IN_RULE)
            for name, fit in fits.items()
        ]
        return _TEMP, reason, tuple(found)
    chosen, reason = _ruled(problem)
    candidates = tuple(_candidate(problem, *fit, chosen) for fit in fits.items())
    return chosen, reason + _objection(candidates), candidates


def _ruled(problem: Problem) -> tuple[str, str]:
    cot = problem.cot
    trusting, cautious = _rivals(problem)
    failed = [guard for guard in cot.guards if not guard.passed]
    if failed:
        return cautious, f"{cautious}, as the guard {failed[0].name!r} fails: {failed[0].sentence}"
    unchecked = (
        ""
        if problem.prior is not None
        else ("; that the classes are as frequent as on the source cannot be checked")
    )
    return trusting, (
        f"{trusting}, as the {len(cot.guards)} guards of cot's estimate {cot.accuracy:.2%} pass: "
        f"{cot.guard('detectable shift').sentence}{unchecked}"
    )


def _rivals(problem: Problem) -> tuple[str, str]:
    """Return what auto takes where COT's guards pass, and else."""
    known = problem.settings.target_prior not in (SOURCE_PRIOR, BBSE_PRIOR)
    return _WITH_PRIOR if known else (_COT, _TEMP)


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
    logits, labels = problem.target_logits(fit.forecaster), problem.evidence.target_predictions
    moved = with_offsets(logits, fit.temperature, fit.offsets)
    confidence = float(np.mean(confidences(moved, fit.temperature, labels)))
    accuracy = problem.accuracy.accuracy
    gap = abs(confidence - accuracy)
    matched = fit.matched is not None and abs(fit.matched - accuracy) < _SHOWN
    return Candidate(
        name,
        fit.temperature,
        confidence,
        accuracy,
        expected_ece=gap,
        chosen=name == chosen,
        why=_why(problem, name, fit, name == chosen),
        least_ece=None if matched else gap,
        matched=matched,
    )


def _why(problem: Problem, name: str, fit: MethodFit, chosen: bool) -> str:
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
