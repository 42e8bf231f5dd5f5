"""All estimates of the target accuracy, and the combined estimate that the commands act on.

The rule of the combined estimate. Its constants are here, in `clusters` and in `guards`. They were
chosen on the half *choose* of the research benchmark.

1. The rule reads DoC, ATC and both clusterings; for two classes DoC, ATC and COT, because the
   logits then hold only one number. It uses
   - ATC and the clusterings (or COT) if the accuracy fell. That is: the confidence falls, or it
     rises by more than class frequencies explain, or most labels would have to change (check
     `fall in confidence`), and the clusterings do not mistake other class frequencies for errors
     (check `class frequencies`). If under 15 % of the predicted labels would have to change, DoC
     takes the place of the clustering with fixed class shares.
   - DoC and ATC otherwise. Perhaps only the class frequencies changed, and the other estimators
     take that for errors.
   - COT where the class frequencies are given, because COT then knows them. If its checks fail,
     the rule uses agreement, or else DoC.
2. The accuracy is A = A_v - 1.2 (A_v - m), with m the median of the estimators used. They all look
   at the same confusions, so they mostly miss the same errors.
3. The interval reaches 5 points (6 for two classes), plus 0.15 |A_v - A|, plus 0.2 of the distance
   between the lowest and the highest estimator read, plus sampling error, to both sides.
4. `temp` keeps its T if its mean target confidence is within 7 points of A or within sampling error
   of A, or if the interval is 60 points wide or wider.
5. Estimators 10 points or more apart fail a check where they leave the choice open: `temp` keeps
   its T, or some estimators lie above its confidence and some below.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from covcal_cli.arrays import Float64s
from covcal_cli.estimators.atc import atc
from covcal_cli.estimators.clusters import (
    CLUSTERING,
    FIXED_CLUSTERING,
    class_frequencies,
    clustering,
)
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
SAME = 0.07
# How far the mean target confidence may lie below the accuracy without a warning.
MAX_BELOW = 0.05
MAX_SAMPLING = 0.13
_PER_FALL, _PER_DISTANCE, _LEAST, _LEAST_OF_TWO = 0.15, 0.2, 0.05, 0.06
REACH = "rule-of-thumb range, not a confidence interval"
_SMALL_DRIFT = 0.15  # share of predicted labels that would have to change
_CONFIDENCE = ("doc", "atc")
_MILD = ("doc", "atc", CLUSTERING)
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
        inputs = self._inputs
        if self._prior is not None:
            other = self["agreement"] if "agreement" in self else self["doc"]
            return consensus(inputs, [self["cot"] if self["cot"].trusted else other], [])
        fell, frequencies = confidence_change(inputs).passed, None
        if fell and inputs.n_classes > 2:
            frequencies = class_frequencies(inputs)
            fell = frequencies.passed
        return combined(inputs, self, () if frequencies is None else (frequencies,), fell=fell)


def combined(
    inputs: EstimatorInputs,
    estimates: Mapping[str, Estimate],
    guards: Sequence[Guard] = (),
    *,
    fell: bool,
) -> Estimate:
    """Return the estimate to act on if the class frequencies are not given.

    `fell` is whether the accuracy fell, and not the class frequencies alone changed.
    """
    names = names_used(inputs, fell=fell)
    others = {*_CONFIDENCE, *(_TWO if inputs.n_classes == 2 else _MANY)}.difference(names)
    return consensus(
        inputs,
        [estimates[name] for name in names],
        [estimates[name] for name in sorted(others)],
        guards,
    )


def names_used(inputs: EstimatorInputs, *, fell: bool) -> tuple[str, ...]:
    """Return the names of the estimators whose median the rule uses if the accuracy fell or not."""
    if not fell:
        return _CONFIDENCE
    if inputs.n_classes == 2:
        return _TWO
    return _MILD if predicted_drift(inputs) < _SMALL_DRIFT else _MANY


def predicted_drift(inputs: EstimatorInputs) -> float:
    """Return the total variation between the predicted labels' shares of source and target."""
    before, after = inputs.predicted_shares()
    return 0.5 * float(np.abs(before - after).sum())


def consensus(
    inputs: EstimatorInputs,
    used: Sequence[Estimate],
    unused: Sequence[Estimate],
    guards: Sequence[Guard] = (),
) -> Estimate:
    """Combine the `used` estimates by the rule above; the `unused` ones only widen the interval."""
    source_accuracy = float(inputs.source_correct.mean())
    accuracy = _extrapolated(source_accuracy, used)
    read = [*used, *unused]
    values = [estimate.accuracy for estimate in read]
    sampling = _sampling(inputs, accuracy)
    reach = _LEAST_OF_TWO if inputs.n_classes == 2 else _LEAST
    reach += _PER_FALL * abs(source_accuracy - accuracy)
    reach += _PER_DISTANCE * (max(values) - min(values)) + sampling
    names = ", ".join(estimate.name for estimate in used)
    median = f"by the median of {names}" if len(used) > 1 else f"by {names}"
    estimate = Estimate(
        "combined",
        accuracy,
        max(accuracy - reach, 0.0),
        min(accuracy + reach, 1.0),
        f"the accuracy changes {FACTOR} times as much from source to target as {median}",
        interval=REACH,
    )
    keeps = reason_to_keep(inputs, estimate) is not None
    checks = (
        *guards,
        disagreement(read, float(inputs.target_confidence.mean()), keeps=keeps),
        enough_rows(sampling),
    )
    return replace(estimate, guards=checks)


def reason_to_keep(inputs: EstimatorInputs, estimate: Estimate) -> str | None:
    """Return why the estimate cannot tell that the confidence of `temp` is wrong, or None."""
    if not estimate.bounds:
        return f"its range of {estimate.low:.0%} to {estimate.high:.0%} is too wide to act on"
    distance = abs(float(inputs.target_confidence.mean()) - estimate.accuracy)
    if distance < SAME:
        return f"within {100 * SAME:.0f} points"
    sampling = _sampling(inputs, estimate.accuracy)
    if distance < sampling:
        return f"within the sampling error of {100 * sampling:.1f} points"
    return None


def _sampling(inputs: EstimatorInputs, accuracy: float) -> float:
    """Return the sampling error (95 %) of an accuracy that source errors and target rows give."""
    error = (inputs.source_errors + 0.5) / (inputs.n_source + 1)
    variance = error * (1 - error) / inputs.n_source
    variance += accuracy * (1 - accuracy) / inputs.n_target
    return Z * math.sqrt(variance)


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


def disagreement(estimates: Sequence[Estimate], confidence: float, *, keeps: bool) -> Guard:
    """Check that the estimators leave no doubt about what to do with the confidence of `temp`.

    They do so if they lie within 10 points of each other. They also do so if all lie on one side of
    the mean target `confidence`, and `temp` does not keep its T.
    """
    lowest, highest = (
        choose(estimates, key=lambda estimate: estimate.accuracy) for choose in (min, max)
    )
    distance = highest.accuracy - lowest.accuracy
    close, on_one_side = (
        distance < MAX_DISAGREEMENT,
        not keeps and not lowest.accuracy < confidence < highest.accuracy,
    )
    text = (
        f"{lowest.name} estimates {lowest.accuracy:.1%} and {highest.name} {highest.accuracy:.1%}"
    )
    if close:
        text += f", within {100 * MAX_DISAGREEMENT:.0f} points of each other"
    elif on_one_side:
        side = "below" if highest.accuracy <= confidence else "above"
        text += f", both {side} the mean confidence of {confidence:.1%} after temperature scaling"
    else:
        text += ". Only labels show which is right: label some target rows with covcal pick"
    return Guard(DISAGREE, distance, MAX_DISAGREEMENT, close or on_one_side, text)


def enough_rows(sampling: float) -> Guard:
    """Check that sampling alone moves the combined estimate by at most 13 points."""
    passed = sampling <= MAX_SAMPLING
    text = (
        f"sampling moves the estimate by {100 * sampling:.1f} points either way (at most "
        f"{100 * MAX_SAMPLING:.0f})"
    )
    text += "" if passed else ": give more target rows, or more labelled source rows"
    return Guard("rows", sampling, MAX_SAMPLING, passed, text)


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
