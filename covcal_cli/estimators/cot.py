"""COT: the error as the cost of moving the target's probabilities to its labels' frequencies.

Lu et al., "Characterizing out-of-distribution error via optimal transport", NeurIPS 2023. With
P_j = softmax(z_j / T_s) and one-hot labels e_k, the transport cost ||P_j - e_k||_1 / 2 is
1 - P_jk, and the labels' frequencies pi are the source's, or a prior that the user gives.

Ours is anchored on the source: the estimated error is e_v + (OT_target - OT_source), where e_v =
(errors + 1/2) / (n_v + 1) and OT_source is the same cost on source validation rows. What transport
overlooks on both domains cancels. With a given prior that is true only of a source whose classes
are as frequent: its rows weigh q_y / p_y in e_v and in OT_source, whose labels' frequencies are the
prior too. Then other frequencies alone leave the two costs alike, and e_v is the error they make.

The interval is by the delta method. At the optimum the cost is pi . v + mean_j net_j with
net_j = min_k (c_jk - v_k), and the prices v do not move to first order (envelope theorem). So a
target row contributes net_j, and a source row contributes its error, minus its own net cost and
price in OT_source, plus its label's price in OT_target, as it is part of pi; prices drop out where
pi is given. Per-row transport costs alone would leave out the noise of pi; a bootstrap would agree
and solve hundreds of problems.
"""

import math

import numpy as np

from covcal_cli.arrays import Float64s, Floats
from covcal_cli.estimators.guards import detectable_shift, precise, second_witness
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
    "the target's classes are as frequent as the prior says, and the classifier puts the "
    "probability of its errors on classes that are then predicted too rarely"
)


def cot(inputs: EstimatorInputs, prior: Float64s | None = None) -> Estimate:
    """Estimate the target accuracy by confidence optimal transport.

    `prior` are class frequencies on the target, shape (K,), sum 1; by default the source's.
    """
    labels, n_v, n_t = inputs.source_labels, inputs.n_source, inputs.n_target
    masses = inputs.source_prior if prior is None else prior
    weights = np.full(n_v, 1 / n_v) if prior is None else _as_frequent_as(prior, inputs)
    on_source = _transport(inputs.source_logits, inputs.temperature, masses, weights)
    on_target = _transport(inputs.target_logits, inputs.temperature, masses, None)
    shift = on_target.cost - on_source.cost
    # What a row adds to the costs, by the delta method: the variances of the shift and the error.
    wrong = 1.0 - inputs.source_correct
    transported, borrowed = on_source.net_costs, np.zeros(n_v)
    if prior is None:  # source rows make up pi as well
        transported = transported + on_source.prices[labels]
        borrowed = on_target.prices[labels]
    of_target = variance_of_mean(on_target.net_costs)
    of_shift = variance_of_mean(borrowed - transported, weights) + of_target
    of_error = variance_of_mean(wrong + borrowed - transported, weights) + of_target
    # The error is that of the source and the shift, but at worst just below that of guessing.
    error = (n_v * float(weights @ wrong) + 0.5) / (n_v + 1) + shift
    worst = 1 - 1 / inputs.n_classes - 0.01
    error = float(np.clip(error, 0.5 / (n_t + 1), worst))
    guards = [detectable_shift(shift, math.sqrt(of_shift)), precise(Z * math.sqrt(of_error))]
    if prior is None:  # a prior that is given leaves nothing to mistake for a shift
        guards.append(_second_witness(inputs))
    return from_variance("cot", 1 - error, of_error, ASSUMPTION, tuple(guards))


def _second_witness(inputs: EstimatorInputs) -> Guard:
    source, target = inputs.source_confidence, inputs.target_confidence
    noise = math.sqrt(variance_of_mean(source) + variance_of_mean(target))
    before, after = inputs.predicted_shares()
    drift = 0.5 * float(np.abs(before - after).sum())
    return second_witness(float(source.mean() - target.mean()), noise, drift)


def _as_frequent_as(prior: Float64s, inputs: EstimatorInputs) -> Float64s:
    """Return weights of the source rows, sum 1, that make classes as frequent as in `prior`.

    Classes without a source row are left out; where no other has a share, rows weigh alike.
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
