"""Guards: each looks at one number and says in a sentence whether a method's ground holds.

A guard never changes a result. It is a number, a threshold and a sentence that a user can act on;
whoever chooses between methods decides what a failed guard means.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np

from covcal_cli.softmax import Array

MIN_SIGMA = 2.0
MIN_SOURCE_ERRORS = 20
MAX_PRIOR_DRIFT = 0.1
MAX_PLAUSIBLE_DRIFT = 0.5
MAX_HALF_WIDTH = 0.055


@dataclass(frozen=True)
class Guard:
    """One check.

    Attributes
    ----------
    name : str
        The same for the same check everywhere.
    value, threshold : float
        What was found and what it is held against; finite.
    passed : bool
    sentence : str
        What was found and what follows from it.
    """

    name: str
    value: float
    threshold: float
    passed: bool
    sentence: str

    def to_json(self) -> dict[str, float | bool | str]:
        """Return the attributes as a dictionary."""
        return asdict(self)


def detectable_shift(shift: float, standard_error: float) -> Guard:
    """Return whether a rise of the error stands out of its noise by two standard errors."""
    sigmas = _sigmas(shift, standard_error)
    passed = sigmas > MIN_SIGMA
    verdict = "stands out of" if passed else "is within"
    return Guard(
        "detectable shift",
        sigmas,
        MIN_SIGMA,
        passed,
        f"the estimated rise of the error, {100 * shift:.2f} points, {verdict} its noise "
        f"({100 * standard_error:.2f} points, {MIN_SIGMA:.0f} needed)",
    )


def second_witness(fall: float, standard_error: float, drift: float) -> Guard:
    """Return whether more than class frequencies speaks for a shift that hurts the classifier.

    COT cannot tell a classifier that errs from classes that have become rarer or more frequent:
    both change how often each class is predicted. Errors mostly lower the mean confidence too;
    other frequencies alone do not. Where most predicted labels would have to change, no plausible
    change of frequencies explains it, however sure the classifier is.

    Parameters
    ----------
    fall, standard_error : float
        Of the mean confidence from source to target.
    drift : float
        Total variation between the frequencies of predicted labels on the two domains.
    """
    if drift > MAX_PLAUSIBLE_DRIFT:
        return Guard(
            "second witness",
            drift,
            MAX_PLAUSIBLE_DRIFT,
            True,
            f"{drift:.0%} of the predicted labels would have to change for the classes to be as "
            "frequent as on the source: no change of the classes themselves explains that",
        )
    sigmas = _sigmas(fall, standard_error)
    passed = sigmas > MIN_SIGMA
    noise = f"{MIN_SIGMA:.0f} x its noise of {100 * standard_error:.2f}"
    if passed:
        verdict = f"falls too, by {100 * fall:.2f} points, more than {noise}"
    elif fall > 0:
        verdict = f"falls by {100 * fall:.2f} points, within {noise}"
    else:
        verdict = f"does not fall: it rises by {abs(100 * fall):.2f} points (noise "
        verdict += f"{100 * standard_error:.2f})"
    doubt = "" if passed else "; perhaps only class frequencies changed"
    return Guard(
        "second witness", sigmas, MIN_SIGMA, passed, f"the mean confidence {verdict}{doubt}"
    )


def precise(half_width: float) -> Guard:
    """Return whether sampling alone moves an estimate by at most 5.5 points."""
    passed = half_width <= MAX_HALF_WIDTH
    return Guard(
        "precision",
        half_width,
        MAX_HALF_WIDTH,
        passed,
        f"the estimate is good to {100 * half_width:.1f} points either way "
        f"(at most {100 * MAX_HALF_WIDTH:.1f})"
        + ("" if passed else "; give more source validation and target rows"),
    )


def enough_errors(errors: int, rows: int, *, of: str = "source validation rows") -> Guard:
    """Return whether labelled rows hold at least 20 errors to learn from."""
    return Guard(
        f"{of.partition(' ')[0]} errors",
        float(errors),
        float(MIN_SOURCE_ERRORS),
        errors >= MIN_SOURCE_ERRORS,
        f"{errors} errors among {rows} {of} (at least {MIN_SOURCE_ERRORS} fix where errors begin)",
    )


def prior_drift(source: Array, target: Array) -> Guard:
    """Return whether two label distributions, shape (K,), differ by at most 0.1 in total variation.

    Without target labels, `target` is how often the classifier predicts each class on the target
    and `source` how often on the source: a drift may be true or an effect of the shift on the
    classifier, and either way a prior taken from the source may be wrong.
    """
    drift = 0.5 * float(np.abs(source - target).sum())
    passed = drift <= MAX_PRIOR_DRIFT
    advice = "" if passed else "; if you know how often each class occurs, give --target-prior"
    return Guard(
        "prior drift",
        drift,
        MAX_PRIOR_DRIFT,
        passed,
        f"{drift:.1%} of the predicted labels would have to change for the target's classes to be "
        f"as frequent as the source's (at most {MAX_PRIOR_DRIFT:.0%}){advice}",
    )


def above_chance(accuracy: float, n_classes: int) -> Guard:
    """Return whether an estimated accuracy is at least that of guessing, 1/K."""
    return Guard(
        "above chance",
        accuracy,
        1 / n_classes,
        accuracy >= 1 / n_classes,
        f"the estimated accuracy is {accuracy:.1%}, guessing has {1 / n_classes:.1%}",
    )


def sentences_of_failed(guards: Iterable[Guard]) -> list[str]:
    """Return what the guards that fail say."""
    return [guard.sentence for guard in guards if not guard.passed]


def _sigmas(difference: float, standard_error: float) -> float:
    ratio = difference / max(standard_error, float(np.finfo(float).tiny))
    return float(np.clip(ratio, -1e6, 1e6))  # JSON has no infinity
