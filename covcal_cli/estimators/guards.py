"""Check the assumptions of estimates and temperatures.

Each check returns a `Guard`: a number, its threshold and a sentence.
"""

import numpy as np

from covcal_cli.arrays import Booleans, Float64s
from covcal_cli.errors import percent
from covcal_cli.forecast import MIN_SOURCE_ERRORS, SOURCE_ERRORS
from covcal_cli.maths.weights import ImportanceWeights, effective_sample_size
from covcal_cli.records import Guard

MIN_SIGMA = 2.0
MAX_PRIOR_DRIFT = 0.1
MAX_PLAUSIBLE_DRIFT = 0.5
MAX_PLAUSIBLE_RISE = 0.15
FALL_IN_CONFIDENCE = "fall in confidence"
SHIFT_WITHIN_CLASSES = "shift within classes"
MIN_MOVE = 0.3
MAX_STRAYS = 0.5
MAX_SAMPLING = 0.12
MAX_PRIOR_NOISE = 1 / 3
MAX_HALF_WIDTH = 0.055
MIN_ESS_SHARE = 0.05
MIN_ESS = 50.0
MIN_DISCRIMINATOR_ERROR = 0.1
CHANCE_ERROR = 0.25
MAX_CONDITION = 1e3
_MOST_DIGITS = 12
PROBLEMS = {
    "above chance": "the estimate is no better than guessing",
    "agreement with labels": "the labels contradict the estimate",
    "confusion condition": "the predictions do not determine the class frequencies",
    "detectable shift": "the rise of the error may be due to chance",
    "discriminator error": "the domains hardly overlap",
    "effective labels": "too few effective labels",
    "effective sample share": f"under {percent(MIN_ESS_SHARE, 0)} effective rows",
    "effective sample size": f"fewer than {MIN_ESS:.0f} effective rows",
    "estimators disagree": "the estimators disagree",
    FALL_IN_CONFIDENCE: "the mean confidence did not fall",
    "independent evidence": "nothing confirms the estimate",
    "matched confidence": "no T makes the mean confidence equal to the estimate",
    "precision": "too few rows for this estimator",
    "prior drift": "the class frequencies changed",
    "prior reached": "the corrected class frequencies differ from the target prior",
    "prior rows": "too few source rows of each class",
    "rise of the accuracy": "the estimate is above the source accuracy",
    "rows": "too few rows",
    SHIFT_WITHIN_CLASSES: "the logits within each class are unchanged",
    "source clusters": "the source's classes form no clusters",
    SOURCE_ERRORS: f"fewer than {MIN_SOURCE_ERRORS} source errors",
    "temperature limit": "T is at an end of its range",
    "under-confidence": "the confidence looks too low",
}
# Probability of a false warning about the errors of confident source rows.
_FALSE_WARNING = 0.01


def problem_of(name: str) -> str:
    """Return a few words that name the problem if the check `name` fails."""
    return PROBLEMS[name.removeprefix("aligned ")]


def detectable_shift(shift: float, standard_error: float) -> Guard:
    """Check whether the estimated error is significantly higher than the source error."""
    sigmas = _sigmas(shift, standard_error)
    passed = sigmas > MIN_SIGMA
    text = (
        f"the estimated error rises by {100 * shift:.2f} points "
        f"({_told_apart(sigmas, MIN_SIGMA, 1)} standard errors, more than {MIN_SIGMA:.0f} needed)"
    )
    text += "" if passed else "; the rise may be due to chance"
    return Guard("detectable shift", sigmas, MIN_SIGMA, passed, text)


def fall_in_confidence(fall: float, standard_error: float, drift: float) -> Guard:
    """Check with the mean confidence whether something besides the class frequencies changed.

    A change of the class frequencies alone hardly lowers the mean confidence. So the check passes
    if the mean confidence falls. The check also passes if the mean confidence rises by more than 15
    points, or if most predictions change.

    `fall` is the fall of the mean confidence from source to target. `drift` is the total variation
    distance between the predicted classes of source and target.
    """
    if drift > MAX_PLAUSIBLE_DRIFT:
        text = (
            f"the predicted class frequencies changed by {percent(drift, 0)}, too much "
            "for a change of class frequencies alone"
        )
        return Guard(FALL_IN_CONFIDENCE, drift, MAX_PLAUSIBLE_DRIFT, True, text)
    if -fall > MAX_PLAUSIBLE_RISE:
        text = (
            f"the mean confidence rises by {-100 * fall:.2f} points, too much for a change of "
            "class frequencies alone"
        )
        return Guard(FALL_IN_CONFIDENCE, -fall, MAX_PLAUSIBLE_RISE, True, text)
    sigmas = _sigmas(fall, standard_error)
    passed = sigmas > MIN_SIGMA
    noise = f"{MIN_SIGMA:.0f} standard errors (each {100 * standard_error:.2f})"
    if passed:
        text = f"the mean confidence falls by {100 * fall:.2f} points, more than {noise}"
    elif fall > 0:
        points = f"{100 * fall:.2f} points"
        text = f"the mean confidence falls by only {points}; up to {noise} can be noise"
    else:
        points = f"{abs(100 * fall):.2f} points (standard error {100 * standard_error:.2f})"
        text = f"the mean confidence rises by {points}"
    text += "" if passed else ". Perhaps only the class frequencies changed"
    return Guard(FALL_IN_CONFIDENCE, sigmas, MIN_SIGMA, passed, text)


def could_be_frequencies(fall: Guard) -> bool:
    """Return whether a change of class frequencies alone could explain the check's numbers."""
    return fall.threshold == MIN_SIGMA


def shift_within_classes(move: float) -> Guard:
    """Check whether the logits of the predicted classes have moved.

    A change of the class frequencies alone moves no logits. `move` is the distance from source to
    target, in standard deviations.
    """
    passed = move >= MIN_MOVE
    text = (
        f"the logits of the predicted classes have moved by {_told_apart(move, MIN_MOVE, 2)} "
        f"standard deviations (at least {MIN_MOVE} needed)"
    )
    text += "" if passed else ". Perhaps only the class frequencies changed"
    return Guard(SHIFT_WITHIN_CLASSES, move, MIN_MOVE, passed, text)


def clusters_know_classes(strays: float) -> Guard:
    """Check that at least half of the source rows are in the cluster of their predicted class."""
    passed = strays <= MAX_STRAYS
    text = (
        f"{_percent(strays, MAX_STRAYS)} of the source rows are in the cluster of another "
        f"class (at most {percent(MAX_STRAYS, 0)} allowed)"
    )
    text += "" if passed else ". Do not use this estimate"
    return Guard("source clusters", strays, MAX_STRAYS, passed, text)


def enough_rows(sampling: float) -> Guard:
    """Check that the sampling error of the combined estimate is at most 12 points."""
    passed = sampling <= MAX_SAMPLING
    points = _told_apart(100 * sampling, 100 * MAX_SAMPLING, 1)
    text = (
        f"random sampling changes the estimate by up to {points} points "
        f"(at most {100 * MAX_SAMPLING:.0f} allowed)"
    )
    text += "" if passed else ". Give more target rows, or more labelled source rows"
    return Guard("rows", sampling, MAX_SAMPLING, passed, text)


def precise(half_width: float) -> Guard:
    """Check that the sampling error of an estimate is at most 5.5 points."""
    passed = half_width <= MAX_HALF_WIDTH
    most = 100 * MAX_HALF_WIDTH
    points = _told_apart(100 * half_width, most, 1)
    text = (
        f"random sampling changes the estimate by up to {points} points "
        f"(at most {most:.1f} allowed)"
    )
    text += "" if passed else "; give more source validation and target rows"
    return Guard("precision", half_width, MAX_HALF_WIDTH, passed, text)


def prior_drift(source: Float64s, target: Float64s) -> Guard:
    """Check that the frequencies of predicted classes differ by at most 0.1 (total variation).

    `source` and `target` have shape (K,). A larger difference may mean that the frequencies of the
    true classes changed too.
    """
    drift = 0.5 * float(np.abs(source - target).sum())
    passed = drift <= MAX_PRIOR_DRIFT
    advice = "" if passed else "; if you know how often each class occurs, pass --target-prior"
    text = (
        f"the predicted class frequencies changed by {_percent(drift, MAX_PRIOR_DRIFT)} (at most "
        f"{percent(MAX_PRIOR_DRIFT, 0)} allowed){advice}"
    )
    return Guard("prior drift", drift, MAX_PRIOR_DRIFT, passed, text)


def prior_rows(noise: float) -> Guard:
    """Check that there are enough source rows to estimate the class frequencies p_y.

    `noise` is the standard error of log p_y, as a mean over the classes of the target. Nine rows
    per class give the limit, 1/3.
    """
    passed = noise <= MAX_PRIOR_NOISE
    text = (
        "random sampling changes the class frequencies of the source by "
        f"{_percent(noise, MAX_PRIOR_NOISE)} on average (at most "
        f"{percent(MAX_PRIOR_NOISE, 0)} allowed)"
    )
    text += "" if passed else "; give more labelled source validation rows of every class"
    return Guard("prior rows", noise, MAX_PRIOR_NOISE, passed, text)


def prior_reached(wanted: Float64s, mean: Float64s) -> Guard:
    """Check that the mean of the corrected probabilities is near the given class frequencies.

    `wanted` and `mean`, (K,), may have a total variation distance of at most 0.1.
    """
    drift = 0.5 * float(np.abs(wanted - mean).sum())
    passed = drift <= MAX_PRIOR_DRIFT
    text = (
        "the class frequencies after the correction differ from the target prior by "
        f"{_percent(drift, MAX_PRIOR_DRIFT)} (at most {percent(MAX_PRIOR_DRIFT, 0)} allowed)"
    )
    text += "" if passed else "; perhaps the target prior is wrong"
    return Guard("prior reached", drift, MAX_PRIOR_DRIFT, passed, text)


def above_chance(accuracy: float, n_classes: int) -> Guard:
    """Check whether an estimated accuracy is at least the accuracy of guessing, 1/K."""
    guessing = 1 / n_classes
    text = (
        f"the estimated accuracy is {_percent(accuracy, guessing)}, and guessing gives "
        f"{percent(guessing, 1)}"
    )
    text += "" if accuracy >= guessing else "; do not use this estimate"
    return Guard("above chance", accuracy, guessing, accuracy >= guessing, text)


def condition(number: float) -> Guard:
    """Check whether the confusion matrix can be inverted (condition number up to 1000)."""
    value = float(min(number, np.finfo(float).max))
    passed = value <= MAX_CONDITION
    verdict = "determine" if passed else "do not determine"
    text = (
        f"the predictions {verdict} the class frequencies: the confusion matrix has condition "
        f"number {value:.3g} (at most {MAX_CONDITION:.0f} allowed)"
    )
    return Guard("confusion condition", value, MAX_CONDITION, passed, text)


_NO_WEIGHT = (
    "no source row is similar to the target, so all importance weights are 0; do not use a "
    "method with importance weights (iw)"
)


def ess_share(weights: Float64s) -> Guard:
    """Check whether the effective sample size of the weights is at least 5 % of the rows."""
    share = effective_sample_size(weights) / max(1, len(weights))
    if share == 0:
        return Guard("effective sample share", 0.0, MIN_ESS_SHARE, False, _NO_WEIGHT)
    passed = share >= MIN_ESS_SHARE
    verdict = "the domains overlap" if passed else "the domains hardly overlap"
    text = (
        f"{verdict}: the effective sample size is {_percent(share, MIN_ESS_SHARE)} of "
        f"{len(weights)} rows (at least {percent(MIN_ESS_SHARE, 0)} needed)"
    )
    text += "" if passed else "; do not use a method with importance weights (iw)"
    return Guard("effective sample share", share, MIN_ESS_SHARE, passed, text)


def ess_count(weights: Float64s) -> Guard:
    """Check whether the effective sample size of the weights is at least 50 rows."""
    count = effective_sample_size(weights)
    if count == 0:
        return Guard("effective sample size", 0.0, MIN_ESS, False, _NO_WEIGHT)
    text = (
        f"the effective sample size is {_told_apart(count, MIN_ESS, 1)} of {len(weights)} rows "
        f"(at least {MIN_ESS:.0f} needed)"
    )
    text += "" if count >= MIN_ESS else "; a weighted mean is mostly noise"
    return Guard("effective sample size", count, MIN_ESS, count >= MIN_ESS, text)


def domain_overlap(error: float) -> Guard:
    """Check whether source and target overlap enough for importance weights.

    The discriminator's squared error is 0.25 if the domains are the same. Below 0.1, the
    discriminator separates the domains, and the weights depend on few rows.
    """
    passed = error >= MIN_DISCRIMINATOR_ERROR
    verdict = "overlap" if passed else "hardly overlap"
    text = (
        f"the domains {verdict}: the squared error of the domain classifier is "
        f"{_told_apart(error, MIN_DISCRIMINATOR_ERROR, 3)} (at least {MIN_DISCRIMINATOR_ERROR} "
        f"needed, {CHANCE_ERROR} for identical domains)"
    )
    text += "" if passed else "; the importance weights depend on few rows"
    return Guard("discriminator error", error, MIN_DISCRIMINATOR_ERROR, passed, text)


def guards_on_weights(weights: ImportanceWeights) -> tuple[Guard, ...]:
    """Return all checks of importance weights (MATHEMATICS, section 9)."""
    return (
        ess_share(weights.weights),
        ess_count(weights.weights),
        domain_overlap(weights.health.discriminator_error),
    )


def not_clamped(wanted: float, used: float, why: str) -> Guard:
    """Check that the mean confidence at the chosen T is the wanted mean confidence."""
    gap = abs(wanted - used)
    text = f"the mean confidence is set to {percent(used, 2)}"
    text += "" if gap == 0 else f" instead of {percent(wanted, 2)}: {why}"
    return Guard("matched confidence", gap, 0.0, gap == 0, text)


def errors_of_confident(confidence: Float64s, wrong: Booleans, above: float) -> str | None:
    """Return a warning if confident source rows are wrong more often than expected.

    The rows with the highest confidence are expected to have e errors. For w > e, the probability
    of w or more errors is at most exp(w - e + w log(e / w)) (Chernoff bound). A warning needs a
    bound below .01 / (w (w + 1)), so a false warning has a probability of at most .01.

    - `confidence`, (n,): confidences of source rows.
    - `wrong`, (n,): whether the classifier is wrong.
    - `above`: errors of rows with a lower confidence give no warning.
    """
    order = np.argsort(-confidence, kind="stable")
    falling = confidence[order]
    rows = np.searchsorted(-falling, -falling, side="right")
    errors = np.cumsum(wrong[order])[rows - 1]
    expected = np.maximum(np.cumsum(1 - falling)[rows - 1], np.finfo(np.float64).tiny)
    w = np.maximum(errors, 1)
    logs = w - expected + w * np.log(expected / w)
    is_rare = (errors > expected) & (logs < np.log(_FALSE_WARNING / (w * (w + 1))))
    found = np.flatnonzero(is_rare & (falling > above))
    if not len(found):
        return None
    worst = found[logs[found].argmin()]
    is_are = "is" if errors[worst] == 1 else "are"
    fault = f"{errors[worst]} of the {rows[worst]} most confident source rows {is_are} wrong"
    if rows[worst] == 1:
        fault = "the most confident source row is wrong"
    only = "only" if expected[worst] >= 0.01 else "fewer than"
    number = max(expected[worst], 0.01)
    count = f"{number:,.0f}" if number >= 10 else f"{number:.2g}"
    return f"{fault}, but {only} {count} errors were expected"


def _percent(share: float, threshold: float) -> str:
    return f"{_told_apart(100 * share, 100 * threshold, 1)} %"


def _told_apart(value: float, threshold: float, digits: int) -> str:
    while digits < _MOST_DIGITS and value != threshold:
        text = f"{value:.{digits}f}"
        if float(text) != float(f"{threshold:.{digits}f}"):
            return text
        digits += 1
    return f"{value:.{digits}f}"


def _sigmas(difference: float, standard_error: float) -> float:
    ratio = difference / max(standard_error, float(np.finfo(float).tiny))
    return float(np.clip(ratio, -1e6, 1e6))
