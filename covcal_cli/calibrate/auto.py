"""Choose a method for ``--method auto``, and list the other methods for comparison.

`calibrate/README.md`, section "The rule of auto", explains the rule. T_s is the temperature of the
method ``temp``.

| choice | condition |
|---|---|
| ``temp`` | the mean target confidence at T_s is near the estimated accuracy |
| ``none`` | the same, and T_s is below the floor of T |
| ``consensus`` | otherwise: T makes the mean target confidence equal to the estimated accuracy |
| ``prior+cot`` | the user gives the class frequencies, and the checks of COT pass |
| ``prior`` | the user gives the class frequencies, and a check of COT fails |
| ``cot`` or ``temp`` | ``--target-prior bbse``: the class frequencies are estimated |

T is never below a floor (see `Problem.least_temperature`), because an estimate alone is not enough
evidence to raise confidence.

cal.json lists the mean target confidence of each method. The ECE of a method is at least the
distance between its mean confidence and the accuracy.
"""

from collections.abc import Mapping

from covcal_cli.calibrate.methods import BBSE_PRIOR, METHODS
from covcal_cli.calibrate.problem import MethodFit, Problem
from covcal_cli.errors import percent
from covcal_cli.estimators.consensus import reason_to_keep
from covcal_cli.estimators.matched_temperature import possible_confidence
from covcal_cli.formats.calibration import Candidate
from covcal_cli.maths.softmax import Scaling

_NONE, _TEMP, _COT, _CONSENSUS = "none", "temp", "cot", "consensus"
_RULE = _NONE, _TEMP, _CONSENSUS
_NOT_CHOSEN = "not chosen"
_COMPARED = "shown for comparison; auto never picks it"
_SHOWN = 5e-5
_MOST_CLASSES_OF_COT = 100


def choose(problem: Problem) -> tuple[str, str]:
    """Return the method that auto chooses, and the reason."""
    lacking = problem.missing_for_estimate
    if lacking is not None:
        return _TEMP, (
            "T is fitted to the source, because an estimate of the target accuracy needs "
            f"{lacking}."
        )
    return _by_accuracy(problem) if problem.prior is None else _by_prior(problem)


def candidates_for(problem: Problem, chosen: str) -> list[str]:
    """Return the names of the methods to compare in cal.json."""
    many = len(problem.file.classes) > _MOST_CLASSES_OF_COT and problem.prior is None
    return [
        name
        for name, method in METHODS.items()
        if method.candidate
        and problem.missing_for(method) is None
        and (name == chosen or not (many and method.reads_cot))
    ]


def candidates(
    problem: Problem, fits: Mapping[str, MethodFit], chosen: str
) -> tuple[Candidate, ...]:
    """Compare the methods in `fits` for cal.json."""
    return tuple(_candidate(problem, name, fit, chosen) for name, fit in fits.items())


def _by_accuracy(problem: Problem) -> tuple[str, str]:
    accuracy, temperature = problem.accuracy.accuracy, problem.inputs.temperature
    confidence = float(problem.inputs.target_confidence.mean())
    floor = problem.least_temperature("original")
    estimated = f"The estimated accuracy is {percent(accuracy, 1)}"
    reason = reason_to_keep(problem.inputs, problem.accuracy)
    if reason is None:
        inputs = problem.inputs
        rises_or_falls = "rises" if confidence > accuracy else "falls"
        reached = possible_confidence(accuracy, inputs.n_target, inputs.n_classes)
        result = f"So T {rises_or_falls} until the confidence is {percent(reached, 1)}."
        if problem.target_confidence(Scaling("original", floor)) <= accuracy:
            result = f"But without labels, T is at least {floor:.3g}."
        return _CONSENSUS, (
            f"{estimated}. With T fitted to the source ({temperature:.3g}), the mean confidence is "
            f"{percent(confidence, 1)}. {result}"
        )
    estimate = f"{estimated}, {reason}"
    if temperature >= floor:
        return _TEMP, f"{estimate}, so T comes from the method temp."
    if floor < 1 and problem.accuracy.bounds:
        return _CONSENSUS, (
            f"{estimate}. The method temp gives T = {temperature:.3g}. But with so few errors on "
            f"the source, T must be at least {floor:.3g}."
        )
    return _NONE, (
        f"{estimate}. The method temp would raise the confidence (T = {temperature:.4g}), but the "
        "source rows are not enough evidence for a higher confidence."
    )


def _by_prior(problem: Problem) -> tuple[str, str]:
    cot = problem.cot
    trusting, cautious = _rivals(problem)
    failed = [guard for guard in cot.guards if not guard.passed]
    estimated = f"COT estimates an accuracy of {percent(cot.accuracy, 1)}"
    if failed:
        return cautious, (
            f"{estimated}, but a check failed ({failed[0].sentence}). So T comes from the "
            "method temp."
        )
    return trusting, (
        f"{estimated}. All {len(cot.guards)} checks of COT passed, so T makes the mean confidence "
        "equal to the accuracy that COT estimates."
    )


def _rivals(problem: Problem) -> tuple[str, str]:
    """Return the method to choose if COT is trusted, and the method to choose otherwise."""
    bbse = problem.settings.target_prior == BBSE_PRIOR
    return (_COT, _TEMP) if bbse else ("prior+cot", "prior")


def _candidate(problem: Problem, name: str, fit: MethodFit, chosen: str) -> Candidate:
    temperature = fit.scaling.temperature
    if problem.missing_for_estimate is not None:
        why = "chosen, because there is no estimate" if name == chosen else _COMPARED
        return Candidate(name, temperature, None, None, None, name == chosen, why)
    confidence = problem.target_confidence(fit.scaling)
    accuracy = problem.accuracy.accuracy
    gap = abs(confidence - accuracy)
    matched = fit.matched is not None and abs(fit.matched - accuracy) < _SHOWN
    return Candidate(
        name,
        temperature,
        confidence,
        accuracy,
        expected_ece=gap,
        chosen=name == chosen,
        why=_why(problem, name, fit, name == chosen, matched),
        least_ece=None if matched else gap,
        matched=matched,
        aligned_temperature=fit.scaling.aligned_temperature,
    )


def _why(problem: Problem, name: str, fit: MethodFit, chosen: bool, matched: bool) -> str:
    if problem.prior is None:
        if chosen:
            return {
                _NONE: "chosen, because the source rows are not enough evidence for a lower T",
                _TEMP: "chosen, because the mean confidence is near the estimated accuracy",
            }.get(
                name,
                "chosen, because the mean confidence equals the estimated accuracy"
                if matched
                else "chosen, because the mean confidence is nearest to the estimated accuracy"
                if fit.matched is not None
                else "chosen, because without labels T must be at least "
                f"{fit.scaling.temperature:.3g}",
            )
        if name in _RULE:
            return _NOT_CHOSEN
    else:
        trusting, cautious = _rivals(problem)
        if name == trusting:
            choice = "chosen" if chosen else _NOT_CHOSEN
            if problem.cot.trusted:
                return f"{choice}, because all checks of the accuracy estimator COT passed"
            problems = problem.cot.trust.removeprefix("no: ")
            return f"{choice}, because the accuracy estimator COT is not trusted ({problems})"
        if name == cautious:
            reason = "chosen, because the accuracy estimator COT is not trusted here"
            return reason if chosen else _NOT_CHOSEN
    if fit.weights is not None:
        health = fit.weights.health
        return f"{_COMPARED}; effective sample size {health.ess:.1f} of {health.n} rows"
    return _COMPARED
