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
MAX_PLAUSIBLE_RISE = 0.15
SECOND_WITNESS = "second witness"
MAX_PRIOR_NOISE = 1 / 3
MAX_HALF_WIDTH = 0.055
MIN_ESS_SHARE = 0.05
MIN_ESS = 50.0
MIN_DISCRIMINATOR_ERROR = 0.1
CHANCE_ERROR = 0.25
MAX_CONDITION = 1e3
MIN_PSEUDO_ACCURACY = 0.5
_MOST_DIGITS = 12


# On a shift and its estimate.


def detectable_shift(shift: float, standard_error: float) -> Guard:
    """Return whether a rise of the error stands out of its noise by two standard errors."""
    sigmas = _sigmas(shift, standard_error)
    passed = sigmas > MIN_SIGMA
    text = (
        f"the estimated rise of the error, {100 * shift:.2f} points, is "
        f"{_told_apart(sigmas, MIN_SIGMA, 1)} standard errors (more than {MIN_SIGMA:.0f} needed)"
    )
    text += "" if passed else "; no harm can be told from chance"
    return Guard("detectable shift", sigmas, MIN_SIGMA, passed, text)


def second_witness(fall: float, standard_error: float, drift: float) -> Guard:
    """Return whether more than class frequencies speaks for a shift that hurts the classifier.

    COT cannot tell a classifier that errs from classes that have become rarer or more frequent:
    both change how often each class is predicted. Errors mostly lower the mean confidence too;
    other frequencies alone do not, nor can they plausibly change most predicted labels, or raise
    the confidence by more than 15 points.

    `fall` and `standard_error` are of the mean confidence from source to target, `drift` is the
    total variation between the frequencies of predicted labels on the two domains.
    """
    if drift > MAX_PLAUSIBLE_DRIFT:
        text = (
            f"{drift:.0%} of the predicted labels would have to change for the classes to be as "
            "frequent as on the source: no change of the classes themselves explains that"
        )
        return Guard(SECOND_WITNESS, drift, MAX_PLAUSIBLE_DRIFT, True, text)
    if -fall > MAX_PLAUSIBLE_RISE:
        text = (
            f"the mean confidence rises by {-100 * fall:.2f} points: no change of the classes' "
            "frequencies explains that"
        )
        return Guard(SECOND_WITNESS, -fall, MAX_PLAUSIBLE_RISE, True, text)
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
    return Guard(SECOND_WITNESS, sigmas, MIN_SIGMA, passed, text)


def precise(half_width: float) -> Guard:
    """Return whether sampling alone moves an estimate by at most 5.5 points."""
    passed = half_width <= MAX_HALF_WIDTH
    most = 100 * MAX_HALF_WIDTH
    found = _told_apart(100 * half_width, most, 1)
    text = f"sampling moves the estimate by {found} points either way (at most {most:.1f})"
    text += "" if passed else "; give more source validation and target rows"
    return Guard("precision", half_width, MAX_HALF_WIDTH, passed, text)


# On rows, classes and the accuracy that is read off them.


def enough_errors(errors: int, rows: int, *, of: str = "source validation rows") -> Guard:
    """Return whether labelled rows hold at least 20 errors to learn from."""
    name, least = f"{of.partition(' ')[0]} errors", MIN_SOURCE_ERRORS
    text = f"{errors} errors among {rows} {of} (at least {least} fix where errors begin)"
    text += "" if errors >= least else f"; give more {of}"
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
        f"{_percent(drift, MAX_PRIOR_DRIFT)} of the predicted labels would have to change for the "
        "target's classes to be as frequent as the source's "
        f"(at most {MAX_PRIOR_DRIFT:.0%}){advice}"
    )
    return Guard("prior drift", drift, MAX_PRIOR_DRIFT, passed, text)


def prior_rows(noise: float) -> Guard:
    """Return whether the source's class frequencies are known to a third: nine rows a class.

    `noise` is the standard error of log p_y, 1 / sqrt(rows of the class), on average over the
    target's classes.
    """
    passed = noise <= MAX_PRIOR_NOISE
    text = (
        f"sampling moves the source's class frequencies by {_percent(noise, MAX_PRIOR_NOISE)} on "
        f"average (at most {MAX_PRIOR_NOISE:.0%})"
    )
    text += "" if passed else "; give more labelled source validation rows of every class"
    return Guard("prior rows", noise, MAX_PRIOR_NOISE, passed, text)


def prior_reached(given: Float64s, mean: Float64s) -> Guard:
    """Return whether probabilities corrected for a prior keep to it, within 0.1 in total variation.

    If only class frequencies changed, and to `given`, shape (K,), the `mean` corrected
    probabilities of target rows, shape (K,), are `given`.
    """
    drift = 0.5 * float(np.abs(given - mean).sum())
    passed = drift <= MAX_PRIOR_DRIFT
    text = (
        f"the corrected probabilities have {_percent(drift, MAX_PRIOR_DRIFT)} of their mass on "
        f"other classes than the target prior (at most {MAX_PRIOR_DRIFT:.0%})"
    )
    text += "" if passed else "; more than class frequencies changed, or they are not those"
    return Guard("prior reached", drift, MAX_PRIOR_DRIFT, passed, text)


def above_chance(accuracy: float, n_classes: int) -> Guard:
    """Return whether an estimated accuracy is at least that of guessing, 1/K."""
    guessing = 1 / n_classes
    text = f"the estimated accuracy is {_percent(accuracy, guessing)}, guessing has {guessing:.1%}"
    text += "" if accuracy >= guessing else "; an estimate below that is none"
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


# On importance weights (MATHEMATICS, section 9).


def ess_share(weights: Float64s) -> Guard:
    """Return whether the weights are worth at least 5 % of the rows: the domains overlap."""
    share = effective_sample_size(weights) / max(1, len(weights))
    passed = share >= MIN_ESS_SHARE
    verdict = "the domains overlap" if passed else "the domains hardly overlap"
    text = (
        f"{verdict}: the importance weights are worth {_percent(share, MIN_ESS_SHARE)} of "
        f"{len(weights)} rows (at least {MIN_ESS_SHARE:.0%})"
    )
    text += "" if passed else "; prefer a method without them"
    return Guard("ess share", share, MIN_ESS_SHARE, passed, text)


def ess_count(weights: Float64s) -> Guard:
    """Return whether the weights are worth at least 50 rows: a weighted mean is not noise."""
    count = effective_sample_size(weights)
    text = (
        f"a weighted mean rests on {_told_apart(count, MIN_ESS, 1)} effective rows of "
        f"{len(weights)} (at least {MIN_ESS:.0f})"
    )
    text += "" if count >= MIN_ESS else "; with fewer it is noise"
    return Guard("ess", count, MIN_ESS, count >= MIN_ESS, text)


def domain_overlap(error: float) -> Guard:
    """Return whether the source discriminator errs enough for a density ratio to mean anything.

    Its squared error with each domain weighing one half is 0.25 at chance; below 0.1 it separates
    the domains, and the ratio between them rests on the rows it is unsure of.
    """
    passed = error >= MIN_DISCRIMINATOR_ERROR
    verdict = "leaves the domains overlapping" if passed else "separates the domains"
    text = (
        f"the source discriminator {verdict}: squared error "
        f"{_told_apart(error, MIN_DISCRIMINATOR_ERROR, 3)} where chance has {CHANCE_ERROR} "
        f"(at least {MIN_DISCRIMINATOR_ERROR})"
    )
    text += "" if passed else "; the ratio between them rests on few rows"
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
        f"mixed rows keep the label of their heavier half {_percent(share, least)} of the time "
        f"(at least {least:.0%})"
    )
    text += "" if share >= least else "; mixtures say little of this classifier"
    return Guard("pseudo accuracy", share, least, share >= least, text)


def not_at_limit(temperature: float, at_limit: Limit | None) -> Guard:
    """Return whether a fitted temperature lies inside its search interval."""
    where = "inside its interval" if at_limit is None else f"at its {at_limit} limit"
    text = f"the temperature {temperature:.4g} stands {where}"
    text += "" if at_limit is None else "; the rows do not fix it"
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


def _percent(share: float, threshold: float) -> str:
    return f"{_told_apart(100 * share, 100 * threshold, 1)}%"


def _told_apart(value: float, threshold: float, digits: int) -> str:
    """Return a number with `digits` decimals, or as many as tell it from its threshold."""
    while digits < _MOST_DIGITS and value != threshold:
        shown = f"{value:.{digits}f}"
        if float(shown) != float(f"{threshold:.{digits}f}"):
            return shown
        digits += 1
    return f"{value:.{digits}f}"


def _sigmas(difference: float, standard_error: float) -> float:
    ratio = difference / max(standard_error, float(np.finfo(float).tiny))
    return float(np.clip(ratio, -1e6, 1e6))  # JSON has no infinity
