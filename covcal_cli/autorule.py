"""What ``--method auto`` takes, and every candidate's numbers beside it.

The rule. T_s is the temperature of ``temp``. If the three guards of COT's estimate pass, the method
is ``cot`` on the classifier's own logits: T = max(T_s, the T whose mean target confidence is COT's
accuracy). Else it is ``temp``. The guards (`labelfree.guards`):

- detectable shift: the estimated rise of the error exceeds 2 standard errors;
- second witness: the mean confidence falls by more than 2 standard errors too, or more than half of
  the predicted labels would have to change (not asked where a prior is given);
- precision: sampling moves the estimate by at most 5.5 points either way (95 %).

The thresholds were chosen on made shifts, corrupted scikit-learn digits, SVHN to USPS,
Office-Caltech10 and Amazon reviews; no other MNIST or USPS shift was among them.

For every candidate the mean confidence on target training and validation rows stands beside the
estimated accuracy (`labelfree.combined`). Their distance is the ECE to expect, were the estimate
right: a lower bound of it, as confidence may be right on average and wrong row by row.
"""

import numpy as np

from covcal_cli.calibration import Candidate
from covcal_cli.case import Case
from covcal_cli.fitted import Fitted
from covcal_cli.labelfree.scores import confidences
from covcal_cli.methodfits import fit_method
from covcal_cli.methods import METHODS, missing_for, missing_for_estimate

CANDIDATES = ("none", "temp", "iw+temp", "fl+temp", "fl+iw+temp", "cot", "fl+cot")
_COT, _TEMP = "cot", "temp"


def choose(case: Case) -> tuple[Fitted, str, tuple[Candidate, ...]]:
    """Return auto's choice, the reason in one sentence, and every candidate that the file allows.

    Without an estimate the candidates have no confidence, accuracy or expected error.
    """
    lacking = missing_for_estimate(case.file, len(case.validation))
    if lacking is not None:
        chosen = _TEMP
        reason = f"{_TEMP}, as an estimate of the target accuracy would need {lacking}"
    else:
        chosen, reason = _ruled(case)
    fits = {name: fit_method(case, METHODS[name]) for name in _allowed(case)}
    estimated = lacking is None
    candidates = tuple(
        _candidate(case, fit, chosen=name == chosen, estimated=estimated)
        for name, fit in fits.items()
    )
    return fits[chosen], reason, candidates


def _ruled(case: Case) -> tuple[str, str]:
    failed = [guard for guard in case.cot.guards if not guard.passed]
    if not failed:
        accuracy = case.cot.accuracy
        return _COT, (
            f"{_COT}, as the estimated accuracy {accuracy:.2%} passes every guard: "
            f"{case.cot.guard('detectable shift').sentence}"
        )
    return _TEMP, f"{_TEMP}, as the guard {failed[0].name!r} fails: {failed[0].sentence}"


def _allowed(case: Case) -> list[str]:
    labelled = len(case.validation)
    return [name for name in CANDIDATES if missing_for(case.file, METHODS[name], labelled) is None]


def _candidate(case: Case, fit: Fitted, *, chosen: bool, estimated: bool) -> Candidate:
    if not estimated:
        return Candidate(
            fit.method.name, fit.temperature, None, None, None, chosen, _why(case, fit, chosen)
        )
    confidence = _target_confidence(case, fit)
    accuracy = case.accuracy.accuracy
    return Candidate(
        fit.method.name,
        fit.temperature,
        confidence,
        accuracy,
        abs(confidence - accuracy),
        chosen,
        _why(case, fit, chosen),
    )


def _target_confidence(case: Case, fit: Fitted) -> float:
    """Return the mean probability of the classifier's labels on the estimate's target rows."""
    evidence = case.evidence
    if fit.forecaster == "original":
        return float(np.mean(confidences(evidence.target_logits, fit.temperature)))
    logits, labels = case.aligned.target_logits, evidence.target_predictions
    return float(np.mean(confidences(logits, fit.temperature, labels)))


def _why(case: Case, fit: Fitted, chosen: bool) -> str:
    name = fit.method.name
    if name == _COT:
        failed = [guard.name for guard in case.cot.guards if not guard.passed]
        return "its guards pass" if chosen else f"its guards fail: {', '.join(failed)}"
    if name == _TEMP:
        return "cot cannot be trusted here" if chosen else "cot can be trusted here"
    if fit.weights is not None:
        health = fit.weights.health
        return f"not in the rule; weights worth {health.ess:.1f} of {health.n} rows"
    return "not in the rule"
