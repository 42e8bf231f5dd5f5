"""Estimate the target accuracy from confidences and predictions."""

import math

import numpy as np

from covcal_cli.arrays import Float64s, Labels
from covcal_cli.estimators.guards import above_chance
from covcal_cli.estimators.inputs import (
    Estimate,
    EstimatorInputs,
    Z,
    from_variance,
    variance_of_mean,
)
from covcal_cli.forecast import enough_errors
from covcal_cli.maths.odds import top_log_odds

DOC_ASSUMPTION = "the confidence is wrong by the same amount on the target as on the source"
CONFIDENCE_ASSUMPTION = "the confidence at the source's temperature is right on the target"
AGREEMENT_ASSUMPTION = (
    "aligned forecasters disagree with the classifier only on rows that the classifier gets wrong"
)
PREDICTED_CLASSES = "predicted classes"
_ASSUMPTION = "the class frequencies are those of the source"
ATC_ASSUMPTION = (
    "on source and target, the share of rows below the same confidence threshold is the error rate"
)


def doc(inputs: EstimatorInputs) -> Estimate:
    """Estimate the target accuracy by the difference of confidences (DoC).

    The estimate is A_v + mean_target c - mean_source c, where A_v is the source accuracy, and c is
    the confidence at T_s. Source: Guillory et al., "Predicting with confidence on unseen
    distributions", ICCV 2021.
    """
    gap = inputs.source_correct - inputs.source_confidence
    accuracy = float(gap.mean() + inputs.target_confidence.mean())
    variance = variance_of_mean(gap) + variance_of_mean(inputs.target_confidence)
    guards = (enough_errors(inputs.source_errors, inputs.n_source),)
    return from_variance("doc", accuracy, variance, DOC_ASSUMPTION, guards)


def mean_confidence(inputs: EstimatorInputs) -> Estimate:
    """Estimate the target accuracy by the mean target confidence at T_s."""
    values = inputs.target_confidence
    return from_variance(
        "confidence", float(values.mean()), variance_of_mean(values), CONFIDENCE_ASSUMPTION
    )


def agreement(inputs: EstimatorInputs) -> Estimate:
    """Estimate the target accuracy by how often classifier and aligned forecaster agree.

    If two calibrated classifiers make independent errors, their agreement rate equals their
    accuracy. Classifier and aligned forecaster use the same features, so they agree too often. The
    estimate is therefore the source accuracy, plus the change of the agreement rate from source to
    target. Source: Jiang et al., "Assessing generalization of SGD via disagreement", ICLR 2022.
    """
    aligned = inputs.aligned
    if aligned is None:
        raise ValueError("agreement needs aligned forecasters")
    on_target = _shared(aligned.target_labels, inputs.target_predictions)
    gap = inputs.source_correct - _shared(aligned.source_labels, inputs.source_predictions)
    accuracy = float(gap.mean() + on_target.mean())
    variance = variance_of_mean(gap) + variance_of_mean(on_target)
    return from_variance("agreement", accuracy, variance, AGREEMENT_ASSUMPTION)


def _shared(members: Labels, labels: Labels) -> Float64s:
    return np.asarray((members == labels).mean(axis=0), dtype=np.float64)


def predicted_classes(
    inputs: EstimatorInputs, source: Float64s | None = None, target: Float64s | None = None
) -> Estimate:
    """Estimate the target accuracy by the change in the frequencies of predicted classes.

    If the true classes are as frequent as on the source, only errors change the frequencies of
    predicted classes. The estimate is the source accuracy minus the total variation distance of the
    predicted classes. Sampling noise is first subtracted from the distance. `source` and `target`,
    (K,), are the frequencies of predicted classes, by default from `inputs`.
    """
    if source is None or target is None:
        source, target = inputs.predicted_shares()
    variances = source * (1 - source) / inputs.n_source + target * (1 - target) / inputs.n_target
    noise = 0.5 * math.sqrt(2 / math.pi) * float(np.sqrt(variances).sum())
    change = max(0.0, 0.5 * float(np.abs(source - target).sum()) - noise)
    variance = variance_of_mean(inputs.source_correct) + 0.25 * float(variances.sum())
    accuracy = float(inputs.source_correct.mean()) - change
    return from_variance(PREDICTED_CLASSES, accuracy, variance, _ASSUMPTION)


def atc(inputs: EstimatorInputs) -> Estimate:
    """Estimate the target accuracy by average thresholded confidence (ATC).

    On source validation rows, the share of rows below the threshold t equals the error rate. The
    estimate is the share of target rows above t. The threshold applies to the log odds of the
    confidence at T_s. Source: Garg et al., "Leveraging unlabeled data to predict
    out-of-distribution performance", ICLR 2022.

    The interval includes two standard errors of the number of source errors.
    """
    scores = inputs.once("log odds", lambda: top_log_odds(inputs.source_logits, inputs.temperature))
    source = np.sort(scores)
    target = np.sort(top_log_odds(inputs.target_logits, inputs.temperature))
    errors, n_v = float(inputs.source_errors), inputs.n_source
    accuracy = _share_above(source, target, errors)
    below = _fraction_below(source, scores, errors)
    spread = Z * n_v * np.sqrt(variance_of_mean(1 - inputs.source_correct - below))
    reach = [
        _share_above(source, target, float(np.clip(errors + sign * spread, 0, n_v)))
        for sign in (-1, 1)
    ]
    of_threshold = (max(abs(reach[0] - accuracy), abs(reach[1] - accuracy)) / Z) ** 2
    of_rows = max(accuracy * (1 - accuracy) / len(target), (0.5 / len(target)) ** 2)
    guards = (enough_errors(inputs.source_errors, n_v), above_chance(accuracy, inputs.n_classes))
    return from_variance("atc", accuracy, of_threshold + of_rows, ATC_ASSUMPTION, guards)


def _share_above(source: Float64s, target: Float64s, errors: float) -> float:
    return 1.0 - float(_fraction_below(source, target, errors).mean())


def _fraction_below(source: Float64s, scores: Float64s, errors: float) -> Float64s:
    """Return 1 for scores below the threshold, 0 for scores above, and a fraction for ties.

    The number of sorted `source` scores below the threshold is `errors`.
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
