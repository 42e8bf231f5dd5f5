"""Importance weighting: the accuracy of source rows that stand for the target's.

Sugiyama et al., "Covariate shift adaptation by importance weighted cross validation", JMLR 2007,
with the control variate of You et al. (ICML 2019). With w = q/p and r = 1 where the classifier is
right, E_source[w r] is the target accuracy. E_source[w] = 1 is known, so the noise that r shares
with w is subtracted: mean(w r) - b (mean w - 1), b = cov(w r, w) / var(w). The mean of w is not
forced to 1 and no sum of weights is divided by: copying every row changes nothing.
"""

from covcal_cli.labelfree.estimate import Estimate, from_variance, variance_of_mean
from covcal_cli.labelfree.evidence import Evidence
from covcal_cli.labelfree.guards import ess_count, ess_share

ASSUMPTION = "p(y | x) is shared, the weights are the true density ratio, and the domains overlap"


def weighted_accuracy(evidence: Evidence) -> Estimate:
    """Estimate the target accuracy by importance weighting with a control variate.

    Raises
    ------
    ValueError
        If the evidence holds no importance weights.
    """
    weights, correct = evidence.source_weights, evidence.source_correct
    if weights is None:
        raise ValueError("importance weighting needs importance weights")
    product = weights * correct
    centred = weights - weights.mean()
    variance = float(centred @ centred)
    # Equal weights carry no noise to subtract; their level is then the only error they can have.
    slope = float(centred @ product) / variance if variance > 0 else float(correct.mean())
    accuracy = float(product.mean()) - slope * (float(weights.mean()) - 1)
    guards = (ess_share(weights), ess_count(weights))
    return from_variance(
        "weighting", accuracy, variance_of_mean(product - slope * weights), ASSUMPTION, guards
    )
