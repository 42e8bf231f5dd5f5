"""The target accuracy by importance weighting of the source, with a control variate."""

from covcal_cli.estimators.guards import ess_count, ess_share
from covcal_cli.estimators.inputs import (
    Estimate,
    EstimatorInputs,
    from_variance,
    slope,
    variance_of_mean,
)

WEIGHTING_ASSUMPTION = (
    "p(y | x) is shared, the weights are the true density ratio, and the domains overlap"
)


def weighted_accuracy(inputs: EstimatorInputs) -> Estimate:
    """Estimate the target accuracy by importance weighting with a control variate.

    Sugiyama et al., "Covariate shift adaptation by importance weighted cross validation", JMLR
    2007, with the control variate of You et al. (ICML 2019). With w = q/p and r = 1 where the
    classifier is right, E_source[w r] is the target accuracy. E_source[w] = 1 is known, so the
    noise that r shares with w is subtracted: mean(w r) - b (mean w - 1), b = cov(w r, w) / var(w).
    The weights are not normalised, so copying every row changes nothing.
    """
    weights, correct = inputs.source_weights, inputs.source_correct
    if weights is None:
        raise ValueError("importance weighting needs importance weights")
    product = weights * correct
    # Equal weights have no noise to subtract. Only their level can be wrong.
    b = slope(product, weights, constant=float(correct.mean()))
    accuracy = float(product.mean()) - b * (float(weights.mean()) - 1)
    variance = variance_of_mean(product - b * weights)
    guards = (ess_share(weights), ess_count(weights))
    return from_variance("weighting", accuracy, variance, WEIGHTING_ASSUMPTION, guards)
