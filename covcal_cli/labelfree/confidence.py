"""Mean confidence: what a classifier that is calibrated on the target would say of itself."""

from covcal_cli.labelfree.estimate import Estimate, from_variance, variance_of_mean
from covcal_cli.labelfree.evidence import Evidence

ASSUMPTION = "confidence at the source's temperature is calibrated on the target"


def mean_confidence(evidence: Evidence) -> Estimate:
    """Estimate the target accuracy by mean_target of the confidence at T_s."""
    values = evidence.target_confidence
    return from_variance("confidence", float(values.mean()), variance_of_mean(values), ASSUMPTION)
