"""Agreement with forecasters that were trained otherwise, anchored on the source.

Jiang et al., "Assessing generalization of SGD via disagreement", ICLR 2022 (GDE): where two
classifiers err independently and their ensemble is calibrated, they agree as often as each is
right. The second classifiers here are the members of the aligned forecaster, which share the
classifier's features and part of its errors, so the level of their agreement is too high. Its fall
from source to target is not: the estimate is A_v + (agreement on the target - on the source).
"""

import numpy as np

from covcal_cli.arrays import Float64s, Labels
from covcal_cli.labelfree.estimate import Estimate, from_variance, variance_of_mean
from covcal_cli.labelfree.evidence import Evidence

ASSUMPTION = (
    "a row that the shift makes the classifier get wrong is one where the aligned forecasters no "
    "longer agree with it"
)


def agreement(evidence: Evidence) -> Estimate:
    """Estimate the target accuracy by how much less the aligned forecasters agree there.

    Raises
    ------
    ValueError
        If the evidence holds no aligned forecasters.
    """
    aligned = evidence.aligned
    if aligned is None:
        raise ValueError("agreement needs aligned forecasters")
    on_target = _shared(aligned.target_labels, evidence.target_predictions)
    gap = evidence.source_correct - _shared(aligned.source_labels, evidence.source_predictions)
    accuracy = float(gap.mean() + on_target.mean())
    variance = variance_of_mean(gap) + variance_of_mean(on_target)
    return from_variance("agreement", accuracy, variance, ASSUMPTION)


def _shared(members: Labels, labels: Labels) -> Float64s:
    """Return the share of members (M, n) that have the given label (n,), row by row."""
    return np.asarray((members == labels).mean(axis=0), dtype=np.float64)
