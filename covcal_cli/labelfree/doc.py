"""DoC: the source's accuracy, less what the mean confidence loses on the target.

Guillory et al., "Predicting with confidence on unseen distributions", ICCV 2021: the estimate is
A_v + mean_target c - mean_source c, with c the confidence at T_s.
"""

from covcal_cli.labelfree.estimate import Estimate, from_variance, variance_of_mean
from covcal_cli.labelfree.evidence import Evidence
from covcal_cli.labelfree.guards import enough_errors

ASSUMPTION = "confidence is off by as much on the target as on the source"


def doc(evidence: Evidence) -> Estimate:
    """Estimate the target accuracy by the difference of confidences."""
    gap = evidence.source_correct - evidence.source_confidence
    accuracy = float(gap.mean() + evidence.target_confidence.mean())
    variance = variance_of_mean(gap) + variance_of_mean(evidence.target_confidence)
    guards = (enough_errors(evidence.source_errors, evidence.n_source),)
    return from_variance("doc", accuracy, variance, ASSUMPTION, guards)
