"""Combine all estimates of the target accuracy into one.

`calibrate/README.md`, section "The rule of auto", explains the rule. The constants were chosen on
one half of ``examples/research/benchmark``.

| data | estimators |
|---|---|
| more than two classes | ATC and both clusterings |
| two classes | DoC, ATC and COT |
| one confidence per row | DoC, ATC (needs 5 source errors); `predicted classes` alone if lower |
| class frequencies given | COT; if a check of COT fails, agreement or else DoC |
| a check of the first three rows fails | DoC, because perhaps only the class frequencies changed |

The checks are `fall in confidence`, and for more than two classes also `shift within classes` and
`source clusters`.

The estimators underestimate the fall of the accuracy, so the fall is multiplied by 1.2. The
estimate is A_v - 1.2 (A_v - m), where A_v is the source accuracy, and m is the median of the
estimators.

Half the width of the range is a sum of four parts:

| part | size |
|---|---|
| constant | 4 points (7 for two classes) |
| disagreement | a tenth of the distance between the lowest and the highest estimator |
| class frequencies | 0.15 times the total variation distance of predicted classes |
| sampling | sampling error |

If DoC is used because a check failed, the range is widened to contain the combined estimate of the
other estimators.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from covcal_cli.arrays import Float64s
from covcal_cli.errors import percent
from covcal_cli.estimators import confidences
from covcal_cli.estimators.clusters import (
    CLUSTERING,
    FIXED_CLUSTERING,
    change_within_classes,
    clusterings,
)
from covcal_cli.estimators.cot import confidence_change, cot
from covcal_cli.estimators.guards import (
    FALL_IN_CONFIDENCE,
    SHIFT_WITHIN_CLASSES,
    could_be_frequencies,
    enough_rows,
    ess_count,
    ess_share,
)
from covcal_cli.estimators.inputs import (
    Estimate,
    EstimatorInputs,
    Z,
    from_variance,
    slope,
    variance_of_mean,
)
from covcal_cli.maths.temperature import MIN_ERRORS
from covcal_cli.records import Guard

FACTOR = 1.2
MAX_DISAGREEMENT = 0.2
DISAGREE = "estimators disagree"
# `auto` keeps `temp` if mean target confidence and estimated accuracy differ by less than 3 points.
SAME = 0.03
# Covcal warns if the mean target confidence is 5 points or more below the estimated accuracy.
MAX_BELOW = 0.05
ESTIMATE_ALONE = "An estimate alone is not enough evidence to raise confidence"
_PER_DISTANCE, _PER_DRIFT = 0.1, 0.15
_LEAST, _LEAST_OF_TWO = 0.04, 0.07
REACH, REACH_OF_ONE_CONFIDENCE = (
    f"rule-of-thumb range; it contained the true accuracy on {held} test shifts"
    for held in ("90 % of 144", "84 % of 122")
)
_MANY = ("atc", CLUSTERING, FIXED_CLUSTERING)
_TWO = ("doc", "atc", "cot")
_DOC_BECAUSE = {
    FALL_IN_CONFIDENCE: "the mean confidence did not fall significantly",
    SHIFT_WITHIN_CLASSES: "the logits within each predicted class are unchanged",
}
_NO_CLUSTERS = "the classes form no clusters"


class Estimates(Mapping[str, Estimate]):
    """The estimates of all estimators, by name.

    An estimate is computed when it is first read. `prior`, (K,), are the class frequencies that the
    user gives for the target.
    """

    def __init__(self, inputs: EstimatorInputs, prior: Float64s | None = None) -> None:
        self._inputs, self._prior = inputs, prior
        self._computed: dict[str, Estimate] = {}
        by_confidence: dict[str, Callable[[EstimatorInputs], Estimate]] = {
            "atc": confidences.atc,
            "doc": confidences.doc,
            "confidence": confidences.mean_confidence,
        }
        if not inputs.has_all_classes:
            self._estimators = by_confidence
            if len(np.unique(inputs.source_predictions)) > 1:
                self._estimators[confidences.PREDICTED_CLASSES] = confidences.predicted_classes
            return
        self._estimators = {
            "cot": lambda inputs: cot(inputs, prior),
            **by_confidence,
            CLUSTERING: lambda _: self._clusterings[CLUSTERING],
            FIXED_CLUSTERING: lambda _: self._clusterings[FIXED_CLUSTERING],
        }
        if inputs.aligned is not None:
            self._estimators["agreement"] = confidences.agreement
        if inputs.source_weights is not None:
            self._estimators["weighting"] = weighted_accuracy

    def __getitem__(self, name: str) -> Estimate:
        if name not in self._computed:
            self._computed[name] = self._estimators[name](self._inputs)
        return self._computed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._estimators)

    def __len__(self) -> int:
        return len(self._estimators)

    @cached_property
    def _clusterings(self) -> Mapping[str, Estimate]:
        return clusterings(self._inputs)

    @cached_property
    def combined(self) -> Estimate:
        """The combined estimate."""
        inputs = self._inputs
        if self._prior is not None:
            cot_or_other = self["cot"]
            if not cot_or_other.trusted:
                cot_or_other = self["agreement"] if "agreement" in self else self["doc"]
            return consensus(inputs, [cot_or_other], [])
        checks = [confidence_change(inputs)]
        if not inputs.has_all_classes:
            estimate = by_confidence(inputs, self, checks[0])
        else:
            if inputs.n_classes > 2:
                checks += [change_within_classes(inputs), *self[CLUSTERING].guards]
            estimate = combined(inputs, self, checks)
        return replace(estimate, guards=(*estimate.guards, *_rise(inputs, estimate.accuracy)))


def combined(
    inputs: EstimatorInputs,
    estimates: Mapping[str, Estimate],
    checks: Sequence[Guard],
    drift: float | None = None,
) -> Estimate:
    """Combine estimates, if the user gives no class frequencies.

    - `checks`: the check `fall in confidence` comes first. The checks `shift within classes` and
      `source clusters` may follow.
    - `drift`: the total variation distance of predicted classes. The default comes from `inputs`.
    """
    doc_alone = [estimates["doc"]]
    names = _TWO if inputs.n_classes == 2 else _MANY
    others = [estimates[name] for name in names if name in estimates]
    if not could_be_frequencies(checks[0]):
        checks = checks[:1]
    failed = [guard.name for guard in checks if not guard.passed]
    if failed:
        others = [estimate for estimate in others if estimate.name != "doc"]
        reason = _DOC_BECAUSE.get(failed[0], _NO_CLUSTERS)
        estimate = consensus(inputs, doc_alone, others, drift=drift, reason=reason)
    else:
        unused = doc_alone if inputs.n_classes > 2 else []
        estimate = consensus(inputs, others, unused, drift=drift)
    if inputs.n_classes > 2:
        return estimate
    confidence = float(inputs.target_confidence.mean())
    guard = independent_evidence(estimate.accuracy, confidence)
    return replace(estimate, guards=(*estimate.guards, guard))


def by_confidence(
    inputs: EstimatorInputs,
    estimates: Mapping[str, Estimate],
    fall: Guard,
    drift: float | None = None,
) -> Estimate:
    """Combine estimates, if the file has one confidence per row instead of one per class.

    - `fall`: the result of the check `fall in confidence`.
    - `drift`: see `combined`.
    """
    names = ("atc", "doc") if inputs.source_errors >= MIN_ERRORS else ("doc",)
    used = [estimates[name] for name in names]
    if not fall.passed:
        reason = _DOC_BECAUSE[FALL_IN_CONFIDENCE]
        return consensus(inputs, [estimates["doc"]], used, drift=drift, reason=reason)
    of_classes = estimates.get(confidences.PREDICTED_CLASSES)
    if of_classes is not None and of_classes.accuracy < _median(used):
        return consensus(inputs, [of_classes], used, drift=drift)
    return consensus(inputs, used, [], drift=drift)


def consensus(
    inputs: EstimatorInputs,
    used: Sequence[Estimate],
    unused: Sequence[Estimate],
    *,
    drift: float | None = None,
    reason: str = "",
) -> Estimate:
    """Combine the `used` estimates. The `unused` estimates may only widen the range."""
    accuracy = _extrapolated(inputs, used)
    every = [*used, *unused]
    sampling = _sampling(inputs, accuracy)
    distance = disagreement(every)
    reach = (_LEAST_OF_TWO if inputs.n_classes == 2 else _LEAST) + sampling
    reach += _PER_DISTANCE * distance.value
    reach += _PER_DRIFT * (inputs.predicted_drift if drift is None else drift)
    ends = [max(accuracy - reach, 0.0), min(accuracy + reach, 1.0)]
    if reason in _DOC_BECAUSE.values():
        ends.append(_extrapolated(inputs, unused))
    names = ", ".join(estimate.name for estimate in used)
    median = f"the median of {names}" if len(used) > 1 else names
    because = f", which is used because {reason}" if reason else ""
    return Estimate(
        "combined",
        accuracy,
        min(ends),
        max(ends),
        f"the change of the accuracy is {FACTOR} times the change according to {median}{because}",
        (distance, enough_rows(sampling)),
        REACH if inputs.has_all_classes else REACH_OF_ONE_CONFIDENCE,
    )


def reason_to_keep(inputs: EstimatorInputs, estimate: Estimate) -> str | None:
    """Return why `auto` keeps `temp`, or None if it chooses `consensus`."""
    confidence = float(inputs.target_confidence.mean())
    distance = abs(confidence - estimate.accuracy)
    at_source = f"the mean confidence of {percent(confidence, 1)} (T is fitted to the source)"
    if distance < SAME:
        return f"which is within {100 * SAME:.0f} points of {at_source}"
    sampling = _sampling(inputs, estimate.accuracy)
    if distance < sampling:
        points = f"{100 * sampling:.1f} points"
        return f"which differs from {at_source} by less than the sampling error of {points}"
    if not estimate.bounds:
        ends = f"{percent(estimate.low, 0)} to {percent(estimate.high, 0)}"
        return f"but the range of the estimate, {ends}, is too wide to act on"
    return None


def _extrapolated(inputs: EstimatorInputs, estimates: Sequence[Estimate]) -> float:
    source_accuracy = float(inputs.source_correct.mean())
    fall = source_accuracy - _median(estimates)
    return float(np.clip(source_accuracy - FACTOR * fall, 0.0, 1.0))


def _sampling(inputs: EstimatorInputs, accuracy: float) -> float:
    error = (inputs.source_errors + 0.5) / (inputs.n_source + 1)
    variance = error * (1 - error) / inputs.n_source
    variance += accuracy * (1 - accuracy) / inputs.n_target
    return Z * math.sqrt(variance)


def _rise(inputs: EstimatorInputs, accuracy: float) -> list[Guard]:
    """Return a failed check if the estimated accuracy is clearly above the source accuracy.

    Noisy features can raise the confidence and the estimates while the accuracy falls.
    """
    source_accuracy = float(inputs.source_correct.mean())
    rise, limit = accuracy - source_accuracy, max(SAME, _sampling(inputs, accuracy))
    if rise <= limit:
        return []
    text = (
        f"the estimated accuracy is {100 * rise:.1f} points above the source accuracy of "
        f"{percent(source_accuracy, 1)}, which is unusual: check that SOURCE comes before "
        "TARGET, and label some target rows with covcal pick"
    )
    return [Guard("rise of the accuracy", rise, limit, False, text)]


def _median(estimates: Sequence[Estimate]) -> float:
    return statistics.median(estimate.accuracy for estimate in estimates)


def under_confidence(accuracy: float, confidence: float) -> Guard:
    """Check whether the mean target confidence is far below the estimated accuracy."""
    below = accuracy - confidence
    passed = below < MAX_BELOW
    points = f"at most {100 * MAX_BELOW:.0f} points" if passed else f"{100 * below:.1f} points"
    text = (
        f"the mean target confidence of {percent(confidence, 1)} is {points} below the estimated "
        "accuracy"
    )
    if not passed:
        text += f". {ESTIMATE_ALONE}: label some target rows with covcal pick"
    return Guard("under-confidence", below, MAX_BELOW, passed, text)


def disagreement(estimates: Sequence[Estimate]) -> Guard:
    """Check whether all estimates are within 20 points of each other."""
    lowest, highest = (
        choose(estimates, key=lambda estimate: estimate.accuracy) for choose in (min, max)
    )
    distance = highest.accuracy - lowest.accuracy
    passed = distance < MAX_DISAGREEMENT
    text = (
        f"{lowest.name} estimates {percent(lowest.accuracy, 1)} and {highest.name} "
        f"{percent(highest.accuracy, 1)}"
    )
    text = (
        f"{text}, within {100 * MAX_DISAGREEMENT:.0f} points of each other"
        if passed
        else f"the estimators disagree: {text}; label some target rows with covcal pick"
    )
    return Guard(DISAGREE, distance, MAX_DISAGREEMENT, passed, text)


def independent_evidence(accuracy: float, confidence: float) -> Guard:
    """For two classes, check that the estimated accuracy is near the mean target confidence.

    All estimators for two classes use only the confidence, so their agreement proves nothing.
    """
    distance = abs(accuracy - confidence)
    passed = distance < SAME
    text = (
        f"with T fitted to the source, the mean confidence is {percent(confidence, 1)}, which is "
        f"{100 * distance:.1f} points from the estimated accuracy"
    )
    if not passed:
        text += (
            ". With two classes, no estimator can confirm the estimated accuracy: label some "
            "target rows with covcal pick"
        )
    return Guard("independent evidence", distance, SAME, passed, text)


WEIGHTING_ASSUMPTION = (
    "the class probabilities of an input are the same on both domains, and the weights are "
    "the true density ratio"
)


def weighted_accuracy(inputs: EstimatorInputs) -> Estimate:
    """Estimate the target accuracy by importance weighting, with a control variate.

    | symbol | meaning |
    |---|---|
    | w | importance weight of a source row |
    | r | 1 for a right source row, else 0 |
    | b = cov(w r, w) / var(w) | control variate |
    | mean(w r) - b (mean w - 1) | estimate |

    Source of the weighting: Sugiyama et al., "Covariate shift adaptation by importance weighted
    cross validation", JMLR 2007. Source of b: You et al., ICML 2019.
    """
    weights, correct = inputs.source_weights, inputs.source_correct
    if weights is None:
        raise ValueError("importance weighting needs importance weights")
    product = weights * correct
    b = slope(product, weights, constant=float(correct.mean()))
    accuracy = float(product.mean()) - b * (float(weights.mean()) - 1)
    variance = variance_of_mean(product - b * weights)
    guards = (ess_share(weights), ess_count(weights))
    return from_variance("weighting", accuracy, variance, WEIGHTING_ASSUMPTION, guards)
