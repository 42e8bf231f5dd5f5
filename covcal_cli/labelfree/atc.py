"""ATC: the share of target rows whose confidence exceeds a threshold set on the source.

Garg et al., "Leveraging unlabeled data to predict out-of-distribution performance", ICLR 2022. The
threshold t is where the source validation rows below it are as many as the errors; the estimate is
the share of target rows at or above t. Scores are log-odds of the confidence at T_s: its order, and
rows whose confidence rounds to 1 keep theirs. (The published code fits a temperature and never
applies it; with the top confidence, unlike with two classes, T_s does change the order.)
"""

import numpy as np

from covcal_cli.arrays import Float64s
from covcal_cli.labelfree.estimate import Estimate, Z, from_variance, variance_of_mean
from covcal_cli.labelfree.evidence import Evidence
from covcal_cli.labelfree.guards import above_chance, enough_errors
from covcal_cli.labelfree.scores import log_odds

ASSUMPTION = "the confidence below which the classifier errs is the same on the target"


def atc(evidence: Evidence) -> Estimate:
    """Estimate the target accuracy by average thresholded confidence.

    The noise of t enters the interval through the target's share at a number of errors two standard
    errors up and down.
    """
    source = np.sort(log_odds(evidence.source_logits, evidence.temperature))
    target = np.sort(log_odds(evidence.target_logits, evidence.temperature))
    errors, n_v = float(evidence.source_errors), evidence.n_source
    accuracy = _share_above(source, target, errors)
    unsorted = log_odds(evidence.source_logits, evidence.temperature)
    below = _fraction_below(source, unsorted, errors)
    spread = Z * n_v * np.sqrt(variance_of_mean(1 - evidence.source_correct - below))
    reach = [
        _share_above(source, target, float(np.clip(errors + sign * spread, 0, n_v)))
        for sign in (-1, 1)
    ]
    of_threshold = (max(abs(reach[0] - accuracy), abs(reach[1] - accuracy)) / Z) ** 2
    of_rows = max(accuracy * (1 - accuracy) / len(target), (0.5 / len(target)) ** 2)
    guards = (
        enough_errors(evidence.source_errors, n_v),
        above_chance(accuracy, evidence.n_classes),
    )
    return from_variance("atc", accuracy, of_threshold + of_rows, ASSUMPTION, guards)


def _share_above(source: Float64s, target: Float64s, errors: float) -> float:
    """Return the target's share at or above the threshold; rows that tie with it count in part."""
    return 1.0 - float(_fraction_below(source, target, errors).mean())


def _fraction_below(source: Float64s, scores: Float64s, errors: float) -> Float64s:
    """Return 1 for scores below the threshold, 0 above, and for ties what the source's ties need.

    `source` is sorted. `errors` of its rows lie below the threshold, fractions included.
    """
    if errors >= len(source):
        return np.ones(len(scores))
    threshold = source[int(errors)]
    lower, upper = (
        np.searchsorted(source, threshold, side="left"),
        np.searchsorted(source, threshold, side="right"),
    )
    of_ties = (errors - lower) / (upper - lower)
    below: Float64s = np.where(scores < threshold, 1.0, 0.0)
    below[scores == threshold] = of_ties
    return below
