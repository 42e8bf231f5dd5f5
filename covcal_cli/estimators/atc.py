"""ATC: the target accuracy by average thresholded confidence."""

import numpy as np

from covcal_cli.arrays import Float64s
from covcal_cli.estimators.guards import above_chance, enough_errors
from covcal_cli.estimators.inputs import (
    Estimate,
    EstimatorInputs,
    Z,
    from_variance,
    variance_of_mean,
)
from covcal_cli.maths.odds import top_log_odds

ATC_ASSUMPTION = "the confidence below which the classifier errs is the same on the target"


def atc(inputs: EstimatorInputs) -> Estimate:
    """Estimate the target accuracy by average thresholded confidence.

    Garg et al., "Leveraging unlabeled data to predict out-of-distribution performance", ICLR 2022.
    The threshold t leaves as many source validation rows below it as there are errors. The estimate
    is the share of target rows at or above t. Scores are log-odds of the confidence at T_s. They
    have the order of the confidence, and still differ where the confidence rounds to 1. (The
    published code fits a temperature and never applies it. For two classes T_s does not change the
    order; for more it does.)

    The noise of t enters the interval: the target's share is also computed with the number of
    errors moved up and down by two standard errors.
    """
    scores = top_log_odds(inputs.source_logits, inputs.temperature)
    source = np.sort(scores)
    target = np.sort(top_log_odds(inputs.target_logits, inputs.temperature))
    errors, n_v = float(inputs.source_errors), inputs.n_source
    accuracy = _share_above(source, target, errors)
    # A row moves t if it is wrong and above t, or right and below t.
    below = _fraction_below(source, scores, errors)
    spread = Z * n_v * np.sqrt(variance_of_mean(1 - inputs.source_correct - below))
    reach = [
        _share_above(source, target, float(np.clip(errors + sign * spread, 0, n_v)))
        for sign in (-1, 1)
    ]
    of_threshold = (max(abs(reach[0] - accuracy), abs(reach[1] - accuracy)) / Z) ** 2
    of_rows = max(accuracy * (1 - accuracy) / len(target), (0.5 / len(target)) ** 2)
    guards = (
        enough_errors(inputs.source_errors, n_v),
        above_chance(accuracy, inputs.n_classes),
    )
    return from_variance("atc", accuracy, of_threshold + of_rows, ATC_ASSUMPTION, guards)


def _share_above(source: Float64s, target: Float64s, errors: float) -> float:
    """Return the target's share at or above the threshold; ties count in part."""
    return 1.0 - float(_fraction_below(source, target, errors).mean())


def _fraction_below(source: Float64s, scores: Float64s, errors: float) -> Float64s:
    """Return 1 for scores below the threshold, 0 above, and a fraction for ties.

    `source` is sorted. The fraction makes exactly `errors` source rows lie below the threshold.
    """
    if errors >= len(source):
        return np.ones(len(scores))
    threshold = source[int(errors)]
    lower = np.searchsorted(source, threshold, side="left")
    upper = np.searchsorted(source, threshold, side="right")
    of_ties = (errors - lower) / (upper - lower)
    below: Float64s = np.where(scores < threshold, 1.0, 0.0)
    below[scores == threshold] = of_ties
    return below
