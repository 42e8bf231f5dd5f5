"""All estimates of the target accuracy, and the combined estimate that the commands act on.

The rule of the combined estimate. Its constants are here, in `clusters` and in `guards`. They were
chosen on the half *choose* of the research benchmark.

1. The rule uses these estimators:
   - Where the check `fall in confidence` passes, ATC and both clusterings. That is: the confidence
     falls, or it rises by more than class frequencies explain, or most labels would have to change.
     For two classes ATC and COT are used, because the logits then hold only one number.
   - Where it fails, DoC alone. Perhaps only the class frequencies changed, and all other estimators
     take that for errors.
   - Where the class frequencies are given, COT, which then knows them. If its checks fail, the rule
     uses agreement, or else DoC.
2. The accuracy is A = A_v - 1.2 (A_v - m), with m the median of the estimators used. They all look
   at the same confusions, so they mostly miss the same errors.
3. The interval reaches 0.2 |A_v - A| + 6 points to both sides, plus sampling error. Where the check
   fails, it also contains what the estimators that are not used would give.
4. Estimators that differ by 10 points or more disagree: a check that fails.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from covcal_cli.arrays import Float64s
from covcal_cli.estimators.atc import atc
from covcal_cli.estimators.clusters import CLUSTERING, FIXED_CLUSTERING, clustering
from covcal_cli.estimators.cot import confidence_change, cot
from covcal_cli.estimators.doc import agreement, doc, mean_confidence
from covcal_cli.estimators.guards import ess_count, ess_share
from covcal_cli.estimators.inputs import (
    Estimate,
    EstimatorInputs,
    Z,
    from_variance,
    slope,
    variance_of_mean,
)
from covcal_cli.records import Guard

FACTOR = 1.2
MAX_DISAGREEMENT = 0.1
DISAGREE = "estimators disagree"  # the name of a check that the posterior by labels reads
# ``temp`` keeps its T where its mean target confidence is this near to the accuracy (`auto`).
SAME = 0.03
# How far the mean target confidence may lie below the accuracy without a warning.
MAX_BELOW = 0.05
_PER_FALL, _LEAST = 0.2, 0.06
REACH = (
    "rule-of-thumb range, not a confidence interval; it contained the true accuracy on 86 % of 64 "
    "test shifts"
)
_MANY = ("atc", CLUSTERING, FIXED_CLUSTERING)
_TWO = ("atc", "cot")


class Estimates(Mapping[str, Estimate]):
    """The estimates that some inputs allow, by name; each is computed when it is first read.

    Agreement needs aligned forecasters, and weighting needs importance weights. `prior` holds the
    class frequencies on the target, shape (K,), where the user gives them.
    """

    def __init__(self, inputs: EstimatorInputs, prior: Float64s | None = None) -> None:
        self._inputs, self._prior = inputs, prior
        self._computed: dict[str, Estimate] = {}
        self._estimators: dict[str, Callable[[EstimatorInputs], Estimate]] = {
            "cot": lambda inputs: cot(inputs, prior),
            "atc": atc,
            "doc": doc,
            "confidence": mean_confidence,
            CLUSTERING: lambda inputs: clustering(inputs, fixed=False),
            FIXED_CLUSTERING: lambda inputs: clustering(inputs, fixed=True),
        }
        if inputs.aligned is not None:
            self._estimators["agreement"] = agreement
        if inputs.source_weights is not None:
            self._estimators["weighting"] = weighted_accuracy

    def __getitem__(self, name: str) -> Estimate:
        """Return the estimate called `name`."""
        if name not in self._computed:
            self._computed[name] = self._estimators[name](self._inputs)
        return self._computed[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names in the order of the tables."""
        return iter(self._estimators)

    def __len__(self) -> int:
        """Return how many estimators apply."""
        return len(self._estimators)

    @cached_property
    def combined(self) -> Estimate:
        """The estimate to act on, by the rule above."""
        fall = confidence_change(self._inputs) if self._prior is None else None
        return combined(self._inputs, self, fall)


def combined(
    inputs: EstimatorInputs, estimates: Mapping[str, Estimate], fall: Guard | None
) -> Estimate:
    """Return the estimate to act on, by the rule above.

    `fall` is the check `fall in confidence`, or None where the class frequencies are given.
    """
    if fall is None:
        cot_or_doc = estimates.get("agreement") or estimates["doc"]
        return consensus(inputs, [estimates["cot"] if estimates["cot"].trusted else cot_or_doc], [])
    names = _TWO if inputs.n_classes == 2 else _MANY
    others = [estimates[name] for name in names if name in estimates]
    if fall.passed:
        return consensus(inputs, others, [])
    return consensus(inputs, [estimates["doc"]], others)


def consensus(
    inputs: EstimatorInputs, used: Sequence[Estimate], unused: Sequence[Estimate]
) -> Estimate:
    """Combine the `used` estimates by the rule above; the `unused` ones only widen the interval."""
    source_accuracy = float(inputs.source_correct.mean())
    accuracy = _extrapolated(source_accuracy, used)
    error = (inputs.source_errors + 0.5) / (inputs.n_source + 1)
    variance = error * (1 - error) / inputs.n_source
    variance += accuracy * (1 - accuracy) / inputs.n_target
    reach = _PER_FALL * abs(source_accuracy - accuracy) + _LEAST + Z * math.sqrt(variance)
    ends = [max(accuracy - reach, 0.0), min(accuracy + reach, 1.0)]
    if unused:
        ends.append(_extrapolated(source_accuracy, unused))
    names = ", ".join(estimate.name for estimate in used)
    median = f"by the median of {names}" if len(used) > 1 else f"by {names}"
    return Estimate(
        "combined",
        accuracy,
        min(ends),
        max(ends),
        f"the accuracy changes {FACTOR} times as much from source to target as {median}",
        (disagreement([*used, *unused]),),
        REACH,
    )


def _extrapolated(source_accuracy: float, estimates: Sequence[Estimate]) -> float:
    middle = float(np.median([estimate.accuracy for estimate in estimates]))
    return float(np.clip(source_accuracy - FACTOR * (source_accuracy - middle), 0.0, 1.0))


def under_confidence(accuracy: float, confidence: float) -> Guard:
    """Check that the mean target confidence is not far below the estimated accuracy."""
    below = accuracy - confidence
    passed = below < MAX_BELOW
    text = f"the mean target confidence is {confidence:.1%}, "
    text += (
        f"at most {100 * MAX_BELOW:.0f} points below the estimated accuracy"
        if passed
        else f"{100 * below:.1f} points below the estimated accuracy: the model looks "
        "under-confident. An estimate alone is not enough evidence to raise it: label some target "
        "rows with covcal pick"
    )
    return Guard("under-confidence", below, MAX_BELOW, passed, text)


def disagreement(estimates: Sequence[Estimate]) -> Guard:
    """Check that all estimates lie within 10 points of each other."""
    lowest, highest = (
        choose(estimates, key=lambda estimate: estimate.accuracy) for choose in (min, max)
    )
    distance = highest.accuracy - lowest.accuracy
    passed = distance < MAX_DISAGREEMENT
    text = (
        f"{lowest.name} estimates {lowest.accuracy:.1%} and {highest.name} {highest.accuracy:.1%}"
    )
    text += (
        f", within {100 * MAX_DISAGREEMENT:.0f} points of each other"
        if passed
        else ". Without labels, covcal cannot tell lower accuracy from lower confidence or a "
        "change in class frequencies: label some target rows with covcal pick"
    )
    return Guard(DISAGREE, distance, MAX_DISAGREEMENT, passed, text)


WEIGHTING_ASSUMPTION = (
    "p(y | x) is shared, the weights are the true density ratio, and the domains overlap"
)


def weighted_accuracy(inputs: EstimatorInputs) -> Estimate:
    """Estimate the target accuracy by importance weighting with a control variate.

    Sugiyama et al., "Covariate shift adaptation by importance weighted cross validation", JMLR
    2007, with the control variate of You et al. (ICML 2019). With w = q/p and r = 1 where the
    classifier is right, E_source[w r] is the target accuracy. E_source[w] = 1 is known, so the
    noise that r shares with w is subtracted: mean(w r) - b (mean w - 1), b = cov(w r, w) / var(w).
    The weights are not normalised, so copying every row changes nothing.
    """
    weights, correct = inputs.source_weights, inputs.source_correct
    if weights is None:
        raise ValueError("importance weighting needs importance weights")
    product = weights * correct
    # Equal weights have no noise to subtract. Only their level can be wrong.
    b = slope(product, weights, constant=float(correct.mean()))
    accuracy = float(product.mean()) - b * (float(weights.mean()) - 1)
    variance = variance_of_mean(product - b * weights)
    guards = (ess_share(weights), ess_count(weights))
    return from_variance("weighting", accuracy, variance, WEIGHTING_ASSUMPTION, guards)
