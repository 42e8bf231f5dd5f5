"""Guards: each looks at one number and says in a sentence whether a method's ground holds.

A guard never changes a result. It is a number, a threshold and a sentence that a user can act on;
whoever chooses between methods decides what a failed guard means.
"""

from collections.abc import Iterable

import numpy as np

from covcal_cli.arrays import Float64s
from covcal_cli.maths.temperature import Limit
from covcal_cli.maths.weights import ImportanceWeights, effective_sample_size
from covcal_cli.records import Guard

MIN_SIGMA = 2.0
MIN_SOURCE_ERRORS = 20
MAX_PRIOR_DRIFT = 0.1
MAX_PLAUSIBLE_DRIFT = 0.5
MAX_HALF_WIDTH = 0.055
MIN_ESS_SHARE = 0.05
MIN_ESS = 50.0
MIN_DISCRIMINATOR_ERROR = 0.1
CHANCE_ERROR = 0.25
MAX_CONDITION = 1e3
MIN_PSEUDO_ACCURACY = 0.5


# On a shift and its estimate.


def detectable_shift(shift: float, standard_error: float) -> Guard:
    """Return whether a rise of the error stands out of its noise by two standard errors."""
    sigmas = _sigmas(shift, standard_error)
    passed = sigmas > MIN_SIGMA
    verdict = "stands out of" if passed else "is within"
    text = (
        f"the estimated rise of the error, {100 * shift:.2f} points, {verdict} its noise "
        f"({100 * standard_error:.2f} points, {MIN_SIGMA:.0f} needed)"
    )
    return Guard("detectable shift", sigmas, MIN_SIGMA, passed, text)


def second_witness(fall: float, standard_error: float, drift: float) -> Guard:
    """Return whether more than class frequencies speaks for a shift that hurts the classifier.

    COT cannot tell a classifier that errs from classes that have become rarer or more frequent:
    both change how often each class is predicted. Errors mostly lower the mean confidence too;
    other frequencies alone do not, nor can they plausibly change most predicted labels.

    `fall` and `standard_error` are of the mean confidence from source to target, `drift` is the
    total variation between the frequencies of predicted labels on the two domains.
    """
    if drift > MAX_PLAUSIBLE_DRIFT:
        text = (
            f"{drift:.0%} of the predicted labels would have to change for the classes to be as "
            "frequent as on the source: no change of the classes themselves explains that"
        )
        return Guard("second witness", drift, MAX_PLAUSIBLE_DRIFT, True, text)
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
    text = f"the mean confidence {verdict}{doubt}"
    return Guard("second witness", sigmas, MIN_SIGMA, passed, text)


def precise(half_width: float) -> Guard:
    """Return whether sampling alone moves an estimate by at most 5.5 points."""
    passed = half_width <= MAX_HALF_WIDTH
    text = (
        f"the estimate is good to {100 * half_width:.1f} points either way "
        f"(at most {100 * MAX_HALF_WIDTH:.1f})"
    )
    text += "" if passed else "; give more source validation and target rows"
    return Guard("precision", half_width, MAX_HALF_WIDTH, passed, text)


# On rows, classes and the accuracy that is read off them.


def enough_errors(errors: int, rows: int, *, of: str = "source validation rows") -> Guard:
    """Return whether labelled rows hold at least 20 errors to learn from."""
    name, least = f"{of.partition(' ')[0]} errors", MIN_SOURCE_ERRORS
    text = f"{errors} errors among {rows} {of} (at least {least} fix where errors begin)"
    return Guard(name, float(errors), float(least), errors >= least, text)


def prior_drift(source: Float64s, target: Float64s) -> Guard:
    """Return whether two label distributions, shape (K,), differ by at most 0.1 in total variation.

    Without target labels, `target` is how often the classifier predicts each class on the target
    and `source` how often on the source: a drift may be true or an effect of the shift on the
    classifier, and either way a prior taken from the source may be wrong.
    """
    drift = 0.5 * float(np.abs(source - target).sum())
    passed = drift <= MAX_PRIOR_DRIFT
    advice = "" if passed else "; if you know how often each class occurs, give --target-prior"
    text = (
        f"{drift:.1%} of the predicted labels would have to change for the target's classes to be "
        f"as frequent as the source's (at most {MAX_PRIOR_DRIFT:.0%}){advice}"
    )
    return Guard("prior drift", drift, MAX_PRIOR_DRIFT, passed, text)


def above_chance(accuracy: float, n_classes: int) -> Guard:
    """Return whether an estimated accuracy is at least that of guessing, 1/K."""
    guessing = 1 / n_classes
    text = f"the estimated accuracy is {accuracy:.1%}, guessing has {guessing:.1%}"
    return Guard("above chance", accuracy, guessing, accuracy >= guessing, text)


def condition(number: float) -> Guard:
    """Return whether the confusion matrix can be inverted: condition number at most 1000."""
    value = float(min(number, np.finfo(float).max))
    passed = value <= MAX_CONDITION
    text = (
        f"the confusion matrix has condition number {value:.3g} (at most {MAX_CONDITION:.0f}): "
        f"class frequencies {'can' if passed else 'cannot'} be read off the predictions"
    )
    return Guard("confusion condition", value, MAX_CONDITION, passed, text)


# On importance weights (ARCHITECTURE, section 3.9).


def ess_share(weights: Float64s) -> Guard:
    """Return whether the weights are worth at least 5 % of the rows: the domains overlap."""
    share = effective_sample_size(weights) / max(1, len(weights))
    passed = share >= MIN_ESS_SHARE
    verdict = "the domains overlap" if passed else "the domains hardly overlap"
    text = (
        f"{verdict}: the importance weights are worth {share:.1%} of {len(weights)} rows "
        f"(at least {MIN_ESS_SHARE:.0%})"
    )
    return Guard("ess share", share, MIN_ESS_SHARE, passed, text)


def ess_count(weights: Float64s) -> Guard:
    """Return whether the weights are worth at least 50 rows: a weighted mean is not noise."""
    count = effective_sample_size(weights)
    text = (
        f"a weighted mean rests on {count:.1f} effective rows of {len(weights)} "
        f"(at least {MIN_ESS:.0f})"
    )
    return Guard("ess", count, MIN_ESS, count >= MIN_ESS, text)


def domain_overlap(error: float) -> Guard:
    """Return whether the source discriminator errs enough for a density ratio to mean anything.

    Its squared error with each domain weighing one half is 0.25 at chance; below 0.1 it separates
    the domains, and the ratio between them rests on the rows it is unsure of.
    """
    passed = error >= MIN_DISCRIMINATOR_ERROR
    verdict = "leaves the domains overlapping" if passed else "separates the domains"
    text = (
        f"the source discriminator {verdict}: squared error {error:.3f} "
        f"where chance has {CHANCE_ERROR} (at least {MIN_DISCRIMINATOR_ERROR})"
    )
    return Guard("discriminator error", error, MIN_DISCRIMINATOR_ERROR, passed, text)


def guards_on_weights(weights: ImportanceWeights) -> tuple[Guard, ...]:
    """Return the three guards on importance weights."""
    return (
        ess_share(weights.weights),
        ess_count(weights.weights),
        domain_overlap(weights.health.discriminator_error),
    )


# On a temperature and what it was fitted to.


def pseudo_accuracy(share: float) -> Guard:
    """Return whether the classifier follows the pseudo-labels of mixed rows at least half the time.

    Mixing two classes must mostly give the heavier one, or the classes are no clusters.
    """
    least = MIN_PSEUDO_ACCURACY
    text = (
        f"mixed rows keep the label of their heavier half {share:.1%} of the time "
        f"(at least {least:.0%})"
    )
    return Guard("pseudo accuracy", share, least, share >= least, text)


def not_at_limit(temperature: float, at_limit: Limit | None) -> Guard:
    """Return whether a fitted temperature lies inside its search interval."""
    where = "inside its interval" if at_limit is None else f"at its {at_limit} limit"
    text = f"the temperature {temperature:.4g} stands {where}"
    return Guard("temperature limit", float(at_limit is not None), 0.0, at_limit is None, text)


def not_clamped(wanted: float, used: float, why: str) -> Guard:
    """Return whether the mean confidence that was matched is the accuracy that was wanted."""
    gap = abs(wanted - used)
    text = f"the mean confidence was matched to {used:.2%}"
    text += "" if gap == 0 else f" instead of {wanted:.2%}: {why}"
    return Guard("clamp", gap, 0.0, gap == 0, text)


def sentences_of_failed(guards: Iterable[Guard]) -> list[str]:
    """Return what the guards that fail say."""
    return [guard.sentence for guard in guards if not guard.passed]


def _sigmas(difference: float, standard_error: float) -> float:
    ratio = difference / max(standard_error, float(np.finfo(float).tiny))
    return float(np.clip(ratio, -1e6, 1e6))  # JSON has no infinity
