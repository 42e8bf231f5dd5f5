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

For every candidate the mean confidence on target training and validation rows stands beside the
estimated accuracy (`panel.combined`). Their distance is the ECE to expect, were the estimate
right: a lower bound of it, as confidence may be right on average and wrong row by row.
"""

from collections.abc import Mapping

import numpy as np

from covcal_cli.calibrate.problem import MethodFit, Problem
from covcal_cli.estimators.evidence import confidences
from covcal_cli.formats.calibration import Candidate

_COT, _TEMP = "cot", "temp"


def choose(
    problem: Problem, fits: Mapping[str, MethodFit]
) -> tuple[str, str, tuple[Candidate, ...]]:
    """Return the name of auto's choice among `fits`, the reason in one sentence, and all of them.

    Without an estimate the candidates have no confidence, accuracy or expected error.
    """
    lacking = problem.missing_for_estimate
    if lacking is None:
        chosen, reason = _ruled(problem)
    else:
        chosen = _TEMP
        reason = f"{_TEMP}, as an estimate of the target accuracy would need {lacking}"
    return chosen, reason, tuple(_candidate(problem, *fit, chosen) for fit in fits.items())


def _ruled(problem: Problem) -> tuple[str, str]:
    cot = problem.cot
    failed = [guard for guard in cot.guards if not guard.passed]
    if failed:
        return _TEMP, f"{_TEMP}, as the guard {failed[0].name!r} fails: {failed[0].sentence}"
    return _COT, (
        f"{_COT}, as the estimated accuracy {cot.accuracy:.2%} passes every guard: "
        f"{cot.guard('detectable shift').sentence}"
    )


def _candidate(problem: Problem, name: str, fit: MethodFit, chosen: str) -> Candidate:
    confidence = accuracy = gap = None
    if problem.missing_for_estimate is None:
        logits, labels = problem.target_logits(fit.forecaster), problem.evidence.target_predictions
        confidence = float(np.mean(confidences(logits, fit.temperature, labels)))
        accuracy = problem.accuracy.accuracy
        gap = abs(confidence - accuracy)
    why = _why(problem, name, fit, name == chosen)
    return Candidate(name, fit.temperature, confidence, accuracy, gap, name == chosen, why)


def _why(problem: Problem, name: str, fit: MethodFit, chosen: bool) -> str:
    if name == _COT:
        failed = [guard.name for guard in problem.cot.guards if not guard.passed]
        return "its guards pass" if chosen else f"its guards fail: {', '.join(failed)}"
    if name == _TEMP:
        return "cot cannot be trusted here" if chosen else "cot can be trusted here"
    if fit.weights is not None:
        health = fit.weights.health
        return f"not in the rule; weights worth {health.ess:.1f} of {health.n} rows"
    return "not in the rule"
