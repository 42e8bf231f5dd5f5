"""Every estimate of the target accuracy side by side, and one out of them to act on."""

from collections.abc import Sequence

import numpy as np

from covcal_cli.estimators.evidence import Estimate, Evidence
from covcal_cli.estimators.simple import agreement, atc, doc, mean_confidence, weighted_accuracy

# Chosen on the shifts of ``examples/benchmark`` without the graded ones, where the interval covers
# the truth on 82 % of 33 shifts (76 % with 1, 91 % with 2).
_REACH = 1.5
REACH = (
    "1.5 times as far as the other estimates lie, plus sampling; no level, but such intervals held "
    "the truth on 32 of the benchmark's 38 shifts (of reviews on 6 of 12)"
)
_MEASURES = ("cot", "atc", "doc", "agreement")


def panel(evidence: Evidence, of_cot: Estimate) -> tuple[Estimate, ...]:
    """Return every estimate that the evidence allows; COT's is given.

    Agreement needs the evidence's aligned forecasters, weighting its importance weights.
    """
    found = [of_cot, atc(evidence), doc(evidence), mean_confidence(evidence)]
    if evidence.aligned is not None:
        found.append(agreement(evidence))
    if evidence.source_weights is not None:
        found.append(weighted_accuracy(evidence))
    return tuple(found)


def combined(estimates: Sequence[Estimate]) -> Estimate:
    """Return the estimate to act on, with an interval for its assumption as well as for sampling.

    The estimate is that of the estimator whose assumption holds here:

    - COT, where its three guards pass: the shift is detectable, something besides class frequencies
      points to it, and sampling moves it by few points. It is then the only estimator that sees
      errors made with confidence.
    - Else agreement with the aligned forecasters, where there are any: it does not care about class
      frequencies.
    - Else the difference of confidences, which does not either but believes in confidence.

    The interval reaches 1.5 times as far to both sides as the furthest other estimator lies, plus
    the sampling noise of the chosen one: no estimator's own interval knows whether its assumption
    is true, and the distance between estimators with different assumptions is what there is to know
    about that. It has no level: how often it holds the truth is known only of the benchmark's
    shifts.

    COT and DoC must be among the estimates; ATC counts only where its guards pass.
    """
    by_name = {estimate.name: estimate for estimate in estimates}
    chosen = by_name["cot"]
    if not chosen.trusted:
        chosen = by_name.get("agreement", by_name["doc"])
    witnesses = [
        by_name[name].accuracy
        for name in _MEASURES
        if name in by_name and (name != "atc" or by_name[name].trusted)
    ]
    reach = _REACH * max(abs(accuracy - chosen.accuracy) for accuracy in witnesses)
    reach += max(chosen.high - chosen.accuracy, chosen.accuracy - chosen.low)
    low, high = np.clip([chosen.accuracy - reach, chosen.accuracy + reach], 0.0, 1.0)
    return Estimate(
        "combined",
        chosen.accuracy,
        float(low),
        float(high),
        f"that of {chosen.name}: {chosen.assumption}",
        chosen.guards,
        REACH,
    )
