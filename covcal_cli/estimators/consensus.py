"""Every estimate of the target accuracy side by side, and the consensus to act on.

The rule. Its constants are here, in `centred` and in `guards`, chosen on the half *choose* of
``examples/research/benchmark``.

1. Which estimates are heard, the *witnesses*:
   - where the second witness passes (the confidence falls, or rises by more than class frequencies
     explain, or most labels would have to change), ATC and both kinds of clusters; of a classifier
     of two classes, whose clusters are the signs of one number, ATC and COT;
   - where it does not pass, perhaps only class frequencies have changed, which all but confidence
     take for errors: DoC alone;
   - where the class frequencies are given, COT, which then knows them, if its guards pass, else
     agreement or DoC.
2. The accuracy is A = A_v - 1.2 (A_v - m), m being their median: they look at the same confusions,
   so that what one overlooks the others mostly do too.
3. The interval reaches 0.2 |A_v - A| + 6 points to both sides, and the noise of sampling; where the
   second witness does not pass, at least to what those say who are not heard.
4. Witnesses that lie 10 points or more apart contradict each other: a guard that fails.
"""

import math
from collections.abc import Sequence

import numpy as np

from covcal_cli.estimators.atc import atc
from covcal_cli.estimators.clusters import clusters, held_clusters
from covcal_cli.estimators.doc import agreement, doc, mean_confidence
from covcal_cli.estimators.guards import SECOND_WITNESS
from covcal_cli.estimators.inputs import Estimate, EstimatorInputs, Z
from covcal_cli.estimators.weighting import weighted_accuracy
from covcal_cli.records import Guard

FACTOR = 1.2
MAX_CONTRADICTION = 0.1
# T of ``temp`` stays where its mean target confidence is this near to the accuracy (`auto`).
SAME = 0.03
# How far T = 1 may leave the mean target confidence below the accuracy without a warning.
MAX_BELOW = 0.05
_PER_FALL, _LEAST = 0.2, 0.06
REACH = (
    "0.2 times the fall from the source's accuracy and 6 points to both sides, plus sampling; no "
    "level, but such intervals held the truth on 91 % of the 78 shifts that they were chosen on "
    "and on 86 % of 64 others"
)
_MANY = ("atc", "clusters", "held clusters")
_TWO = ("atc", "cot")


def panel(inputs: EstimatorInputs, of_cot: Estimate) -> tuple[Estimate, ...]:
    """Return every estimate that the inputs allow; COT's is given.

    Agreement needs aligned forecasters, weighting importance weights.
    """
    found = [
        of_cot,
        atc(inputs),
        doc(inputs),
        mean_confidence(inputs),
        clusters(inputs),
        held_clusters(inputs),
    ]
    if inputs.aligned is not None:
        found.append(agreement(inputs))
    if inputs.source_weights is not None:
        found.append(weighted_accuracy(inputs))
    return tuple(found)


def combined(inputs: EstimatorInputs, estimates: Sequence[Estimate]) -> Estimate:
    """Return the estimate to act on, by the rule above, from those of `panel`.

    The interval has no level: how often it holds the truth is known only of the benchmark's shifts.
    """
    return consensus(inputs, *_witnesses(inputs, estimates))


def consensus(
    inputs: EstimatorInputs, heard: Sequence[Estimate], unheard: Sequence[Estimate]
) -> Estimate:
    """Return the estimate to act on, by the rule above, from the witnesses that are heard.

    Those that are not may be right, and widen the interval.
    """
    right = float(inputs.source_correct.mean())
    accuracy = _corrected(right, heard)
    error = (inputs.source_errors + 0.5) / (inputs.n_source + 1)
    variance = error * (1 - error) / inputs.n_source
    variance += accuracy * (1 - accuracy) / inputs.n_target
    reach = _PER_FALL * abs(right - accuracy) + _LEAST + Z * math.sqrt(variance)
    ends = [max(accuracy - reach, 0.0), min(accuracy + reach, 1.0)]
    if unheard:
        ends.append(_corrected(right, unheard))
    names = ", ".join(witness.name for witness in heard)
    median = f"the median of {names}" if len(heard) > 1 else names
    return Estimate(
        "combined",
        accuracy,
        min(ends),
        max(ends),
        f"the accuracy falls {FACTOR} times as far as {median} says",
        (contradiction([*heard, *unheard]),),
        REACH,
    )


def _corrected(right: float, witnesses: Sequence[Estimate]) -> float:
    middle = float(np.median([witness.accuracy for witness in witnesses]))
    return float(np.clip(right - FACTOR * (right - middle), 0.0, 1.0))


def _witnesses(
    inputs: EstimatorInputs, estimates: Sequence[Estimate]
) -> tuple[list[Estimate], list[Estimate]]:
    """Return the witnesses that are heard, and those that are not but may be right."""
    by_name = {estimate.name: estimate for estimate in estimates}
    cot, confidence = by_name["cot"], by_name["doc"]
    second = next((guard for guard in cot.guards if guard.name == SECOND_WITNESS), None)
    if second is None:  # the class frequencies are given, and the others do not know them
        return [cot if cot.trusted else by_name.get("agreement", confidence)], []
    names = _TWO if inputs.n_classes == 2 else _MANY
    others = [by_name[name] for name in names if name in by_name]
    return (others, []) if second.passed else ([confidence], others)


def kept_from_sharpening(accuracy: float, confidence: float) -> Guard:
    """Return whether the mean target confidence is not far below the estimated accuracy."""
    below = accuracy - confidence
    passed = below < MAX_BELOW
    text = f"the mean target confidence, {confidence:.1%}, is "
    text += (
        f"at most {100 * MAX_BELOW:.0f} points below the estimated accuracy"
        if passed
        else f"{100 * below:.1f} points below the estimated accuracy, as T is at least 1: it may "
        "well be too low; label some target rows, which may justify more"
    )
    return Guard("kept from sharpening", below, MAX_BELOW, passed, text)


def contradiction(witnesses: Sequence[Estimate]) -> Guard:
    """Return whether all witnesses lie within 10 points of each other."""
    lowest, highest = (
        choose(witnesses, key=lambda witness: witness.accuracy) for choose in (min, max)
    )
    distance = highest.accuracy - lowest.accuracy
    passed = distance < MAX_CONTRADICTION
    text = (
        f"{lowest.name} sees an accuracy of {lowest.accuracy:.1%} and {highest.name} one of "
        f"{highest.accuracy:.1%}"
    )
    text += (
        f", within {100 * MAX_CONTRADICTION:.0f} points of each other"
        if passed
        else ": whether the classifier errs or only doubts, or classes are rarer, cannot be told "
        "without labels; label some target rows, which covcal pick draws"
    )
    return Guard("contradiction", distance, MAX_CONTRADICTION, passed, text)
