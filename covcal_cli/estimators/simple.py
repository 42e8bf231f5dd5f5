"""The estimators of one formula: ATC, DoC, mean confidence, agreement, importance weighting."""

import numpy as np

from covcal_cli.arrays import Float64s, Labels
from covcal_cli.estimators.evidence import (
    Estimate,
    Evidence,
    Z,
    from_variance,
    log_odds,
    slope,
    variance_of_mean,
)
from covcal_cli.estimators.guards import above_chance, enough_errors, ess_count, ess_share

ATC_ASSUMPTION = "the confidence below which the classifier errs is the same on the target"
DOC_ASSUMPTION = "confidence is off by as much on the target as on the source"
CONFIDENCE_ASSUMPTION = "confidence at the source's temperature is calibrated on the target"
AGREEMENT_ASSUMPTION = (
    "a row that the shift makes the classifier get wrong is one where the aligned forecasters no "
    "longer agree with it"
)
WEIGHTING_ASSUMPTION = (
    "p(y | x) is shared, the weights are the true density ratio, and the domains overlap"
)


def atc(evidence: Evidence) -> Estimate:
    """Estimate the target accuracy by average thresholded confidence.

    Garg et al., "Leveraging unlabeled data to predict out-of-distribution performance", ICLR 2022.
    The threshold t is where the source validation rows below it are as many as the errors; the
    estimate is the share of target rows at or above t. Scores are log-odds of the confidence at
    T_s: its order, and rows whose confidence rounds to 1 keep theirs. (The published code fits a
    temperature and never applies it; with the top confidence, unlike with two classes, T_s does
    change the order.)

    The noise of t enters the interval through the target's share at a number of errors two standard
    errors up and down.
    """
    scores = log_odds(evidence.source_logits, evidence.temperature)
    source = np.sort(scores)
    target = np.sort(log_odds(evidence.target_logits, evidence.temperature))
    errors, n_v = float(evidence.source_errors), evidence.n_source
    accuracy = _share_above(source, target, errors)
    # A row moves t where it is wrong and above it, or right and below it.
    below = _fraction_below(source, scores, errors)
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
    return from_variance("atc", accuracy, of_threshold + of_rows, ATC_ASSUMPTION, guards)


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
    lower = np.searchsorted(source, threshold, side="left")
    upper = np.searchsorted(source, threshold, side="right")
    of_ties = (errors - lower) / (upper - lower)
    below: Float64s = np.where(scores < threshold, 1.0, 0.0)
    below[scores == threshold] = of_ties
    return below


def doc(evidence: Evidence) -> Estimate:
    """Estimate the target accuracy by the difference of confidences.

    That is the source's accuracy, less what the mean confidence loses on the target. Guillory et
    al., "Predicting with confidence on unseen distributions", ICCV 2021: the estimate is
    A_v + mean_target c - mean_source c, with c the confidence at T_s.
    """
    gap = evidence.source_correct - evidence.source_confidence
    accuracy = float(gap.mean() + evidence.target_confidence.mean())
    variance = variance_of_mean(gap) + variance_of_mean(evidence.target_confidence)
    guards = (enough_errors(evidence.source_errors, evidence.n_source),)
    return from_variance("doc", accuracy, variance, DOC_ASSUMPTION, guards)


def mean_confidence(evidence: Evidence) -> Estimate:
    """Estimate the target accuracy by mean_target of the confidence at T_s.

    It is what a classifier that is calibrated on the target would say of itself.
    """
    values = evidence.target_confidence
    return from_variance(
        "confidence", float(values.mean()), variance_of_mean(values), CONFIDENCE_ASSUMPTION
    )


def agreement(evidence: Evidence) -> Estimate:
    """Estimate the target accuracy by how much less the aligned forecasters agree there.

    Jiang et al., "Assessing generalization of SGD via disagreement", ICLR 2022 (GDE): where two
    classifiers err independently and their ensemble is calibrated, they agree as often as each is
    right. The second classifiers here are the members of the aligned forecaster, which share the
    classifier's features and part of its errors, so the level of their agreement is too high. Its
    fall from source to target is not: the estimate is A_v + (agreement on the target - on the
    source).
    """
    aligned = evidence.aligned
    if aligned is None:
        raise ValueError("agreement needs aligned forecasters")
    on_target = _shared(aligned.target_labels, evidence.target_predictions)
    gap = evidence.source_correct - _shared(aligned.source_labels, evidence.source_predictions)
    accuracy = float(gap.mean() + on_target.mean())
    variance = variance_of_mean(gap) + variance_of_mean(on_target)
    return from_variance("agreement", accuracy, variance, AGREEMENT_ASSUMPTION)


def _shared(members: Labels, labels: Labels) -> Float64s:
    """Return the share of members (M, n) that have the given label (n,), row by row."""
    return np.asarray((members == labels).mean(axis=0), dtype=np.float64)


def weighted_accuracy(evidence: Evidence) -> Estimate:
    """Estimate the target accuracy by importance weighting with a control variate.

    Sugiyama et al., "Covariate shift adaptation by importance weighted cross validation", JMLR
    2007, with the control variate of You et al. (ICML 2019). With w = q/p and r = 1 where the
    classifier is right, E_source[w r] is the target accuracy. E_source[w] = 1 is known, so the
    noise that r shares with w is subtracted: mean(w r) - b (mean w - 1), b = cov(w r, w) / var(w).
    The mean of w is not forced to 1 and no sum of weights is divided by: copying every row changes
    nothing.
    """
    weights, correct = evidence.source_weights, evidence.source_correct
    if weights is None:
        raise ValueError("importance weighting needs importance weights")
    product = weights * correct
    # Equal weights carry no noise to subtract; their level is then the only error they can have.
    b = slope(product, weights, constant=float(correct.mean()))
    accuracy = float(product.mean()) - b * (float(weights.mean()) - 1)
    variance = variance_of_mean(product - b * weights)
    guards = (ess_share(weights), ess_count(weights))
    return from_variance("weighting", accuracy, variance, WEIGHTING_ASSUMPTION, guards)
