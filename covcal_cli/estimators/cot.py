"""COT: the error as the cost of moving the target's probabilities to its labels' frequencies.

Lu et al., "Characterizing out-of-distribution error via optimal transport", NeurIPS 2023. With
P_j = softmax(z_j / T_s) and one-hot labels e_k, the transport cost ||P_j - e_k||_1 / 2 is
1 - P_jk. The labels' frequencies pi are the source's, or a prior that the user gives.

covcal compares with the source. The estimated error is e_v + (OT_target - OT_source), where e_v =
(errors + 1/2) / (n_v + 1) and OT_source is the same cost on source validation rows. Errors that
transport misses on both domains cancel. With a given prior they cancel only if the source's classes
are as frequent as the prior says. So source rows then get the weight q_y / p_y in e_v and in
OT_source, and OT_source uses the prior too. If only the class frequencies differ, the two costs are
equal, and e_v is the error under those frequencies.

The interval comes from the delta method. At the optimum the cost is pi . v + mean_j net_j with
net_j = min_k (c_jk - v_k). The prices v do not move to first order (envelope theorem). So a target
row contributes net_j. A source row contributes its error, minus its own net cost and price in
OT_source, plus its label's price in OT_target, because it is part of pi. The prices drop out where
pi is given. Per-row transport costs alone would leave out the noise of pi. A bootstrap would agree,
but it would solve hundreds of problems.
"""

import math

import numpy as np

from covcal_cli.arrays import Float64s, Floats
from covcal_cli.estimators.guards import detectable_shift, fall_in_confidence, precise
from covcal_cli.estimators.inputs import (
    Estimate,
    EstimatorInputs,
    Z,
    from_variance,
    variance_of_mean,
)
from covcal_cli.maths.odds import probabilities
from covcal_cli.maths.transport import Transport, transport
from covcal_cli.records import Guard

ASSUMPTION = (
    "the class frequencies on the target are the assumed ones, and the classifier's errors give "
    "probability to classes that are predicted too rarely"
)


def cot(inputs: EstimatorInputs, prior: Float64s | None = None) -> Estimate:
    """Estimate the target accuracy by confidence optimal transport.

    `prior` holds the class frequencies on the target, shape (K,), sum 1; default the source's.
    """
    labels, n_v, n_t = inputs.source_labels, inputs.n_source, inputs.n_target
    masses = inputs.source_prior if prior is None else prior
    weights = np.full(n_v, 1 / n_v) if prior is None else _prior_weights(prior, inputs)
    on_source = _transport(inputs.source_logits, inputs.temperature, masses, weights)
    on_target = _transport(inputs.target_logits, inputs.temperature, masses, None)
    shift = on_target.cost - on_source.cost
    # The delta method: each row's contribution to the variance of the shift and of the error.
    wrong = 1.0 - inputs.source_correct
    transported, borrowed = on_source.net_costs, np.zeros(n_v)
    if prior is None:  # pi is estimated from the source rows
        transported = transported + on_source.prices[labels]
        borrowed = on_target.prices[labels]
    of_target = variance_of_mean(on_target.net_costs)
    of_shift = variance_of_mean(borrowed - transported, weights) + of_target
    of_error = variance_of_mean(wrong + borrowed - transported, weights) + of_target
    # The error is the source's plus the shift, but stays just below the error of guessing.
    error = (n_v * float(weights @ wrong) + 0.5) / (n_v + 1) + shift
    worst = 1 - 1 / inputs.n_classes - 0.01
    error = float(np.clip(error, 0.5 / (n_t + 1), worst))
    guards = [detectable_shift(shift, math.sqrt(of_shift)), precise(Z * math.sqrt(of_error))]
    if prior is None:  # a given prior cannot be mistaken for a shift
        guards.append(confidence_change(inputs))
    return from_variance("cot", 1 - error, of_error, ASSUMPTION, tuple(guards))


def confidence_change(inputs: EstimatorInputs) -> Guard:
    """Check that the mean confidence falls, or that class frequencies cannot explain the shift."""
    source, target = inputs.source_confidence, inputs.target_confidence
    noise = math.sqrt(variance_of_mean(source) + variance_of_mean(target))
    fall = float(source.mean() - target.mean())
    return fall_in_confidence(fall, noise, inputs.predicted_drift)


def _prior_weights(prior: Float64s, inputs: EstimatorInputs) -> Float64s:
    """Return weights of the source rows, sum 1, that give the classes the frequencies `prior`.

    Classes without a source row are left out. If no other class has a share, all weights are equal.
    """
    counts = np.bincount(inputs.source_labels, minlength=inputs.n_classes)
    weights = (prior / np.maximum(counts, 1))[inputs.source_labels]
    total = weights.sum()
    return np.asarray(weights / total if total > 0 else np.full(len(weights), 1 / len(weights)))


def _transport(
    logits: Floats, temperature: float, prior: Float64s, weights: Float64s | None
) -> Transport:
    costs = (1 - probabilities(logits, temperature)).astype(np.float32)
    return transport(costs, prior, weights)
