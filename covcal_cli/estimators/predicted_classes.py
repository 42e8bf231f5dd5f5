"""The target accuracy by how often each class is predicted."""

import math

import numpy as np

from covcal_cli.arrays import Float64s
from covcal_cli.estimators.inputs import (
    Estimate,
    EstimatorInputs,
    from_variance,
    variance_of_mean,
)

PREDICTED_CLASSES = "predicted classes"
_ASSUMPTION = "the classes are as frequent as on the source, so other predictions are errors"


def predicted_classes(
    inputs: EstimatorInputs, source: Float64s | None = None, target: Float64s | None = None
) -> Estimate:
    """Estimate the target accuracy by the change in the frequencies of predicted classes.

    If the true classes stay as frequent, the predictions of so many rows must be wrong that were
    right on the source: A_v - (d - d_0), with d half of the summed differences of the frequencies
    of predicted classes, and d_0 what sampling noise adds to d. The frequencies on `source` and
    `target`, shape (K,), are those of `inputs` by default.
    """
    if source is None or target is None:
        source, target = inputs.predicted_shares()
    variances = source * (1 - source) / inputs.n_source + target * (1 - target) / inputs.n_target
    noise = 0.5 * math.sqrt(2 / math.pi) * float(np.sqrt(variances).sum())
    change = max(0.0, 0.5 * float(np.abs(source - target).sum()) - noise)
    variance = variance_of_mean(inputs.source_correct) + 0.25 * float(variances.sum())
    accuracy = float(inputs.source_correct.mean()) - change
    return from_variance(PREDICTED_CLASSES, accuracy, variance, _ASSUMPTION)
