"""COT: estimate the error by the cost of moving target probabilities to class frequencies.

Lu et al., "Characterizing out-of-distribution error via optimal transport", NeurIPS 2023. With P_j
= softmax(z_j / T_s) and one-hot labels e_k, the transport cost ||P_j - e_k||_1 / 2 is 1 - P_jk. The
class frequencies pi are those of the source, or a prior that the user gives.

covcal compares with the source. The estimated error is e_v + (OT_target - OT_source), where e_v =
(errors + 1/2) / (n_v + 1) and OT_source is the same cost on source validation rows. Errors that
transport misses on both domains cancel. With a given prior q they cancel only if both domains have
these class frequencies. So source rows then get the weight q_y / p_y in e_v and in OT_source, and
OT_source uses the prior too. If only the class frequencies differ, the two costs are equal, and e_v
is the error under the given frequencies.

The interval comes from the delta method. At the optimum the cost is pi . v + mean_j net_j with
net_j = min_k (c_jk - v_k). The prices v are constant to first order (envelope theorem). So the
contribution of a target row is net_j. The contribution of a source row is
error - (net cost in OT_source + price of its label in OT_source) + price of its label in OT_target.
It has a part in OT_target because pi comes from source rows. If pi is given, there are no prices in
it. The costs of single rows alone would leave out the noise of pi. A bootstrap gives the same, but
solves hundreds of problems.

`transport` is exact and solves the semi-dual.
Rows j = 1 .. n with mass r_j (by default 1/n) are assigned to classes k with mass pi_k at cost c_jk
in [0, 1]. With prices v of the classes, D(v) = pi . v + sum_j r_j min_k (c_jk - v_k) is concave,
and its maximum is the cost of transport (Peyre and Cuturi, Computational Optimal Transport, section
5.1). The minimum is smoothed to -eps log sum_k exp((v_k - c_jk) / eps), whose gradient is pi -
sum_j r_j q_j and whose Hessian is (sum_j r_j q_j q_j^T - diag(sum_j r_j q_j)) / eps with q_j the
softmax. A damped Newton iteration maximises it for smaller and smaller eps.

The time of a step grows with the cube of the number of prices. Rows and classes are
interchangeable, so the iteration works with the prices of the smaller side. With more classes than
rows these are prices u_j of the rows, and v_k = min_j (c_jk - u_j) gives the others.

The cost has two bounds. D(v) of the unsmoothed problem is a lower bound. The cost of q plus half
the mass that q misplaces is an upper bound. eps is reduced until the gap of the bounds is below
8e-5 (with more than 100 prices, below 8e-7 per price). This is far below the sampling noise of the
cost.
"""

import math
from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import Float32s, Float64s, Floats
from covcal_cli.estimators.guards import detectable_shift, fall_in_confidence, precise
from covcal_cli.estimators.inputs import (
    Estimate,
    EstimatorInputs,
    Z,
    from_variance,
    variance_of_mean,
)
from covcal_cli.maths.odds import probabilities
from covcal_cli.records import Guard

ASSUMPTION = (
    "the class frequencies on the target are the assumed ones, and the classifier's errors give "
    "probability to classes that are predicted too rarely"
)
_SMOOTHINGS = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001, 0.00003)
_GAP = 8e-5
_MANY_PRICES = 100
_MISPLACED = 1e-5  # allowed misplaced mass: a least value, and a multiple of eps
_MISPLACED_PER_SMOOTHING = 0.1
_MAX_STEPS = 60
_MOST_DAMPING = 1e9
_LEAST_GAIN = 1e-3  # a step must reach at least this share of its predicted gain
_PILOT_ROWS = 4000
_PILOT_SMOOTHING = 0.01  # the lowest eps of the pilot, which solves the problem on a few rows
_BLOCK_VALUES = 1 << 16


@dataclass(frozen=True)
class Transport:
    """A solved transport problem."""

    cost: float  # the middle of the two bounds
    gap: float  # upper minus lower bound
    prices: Float64s  # (K,): v, zero on average over the mass; 0 for classes without mass
    # (n,): min_k (c_jk - v_k), the cost of row j minus the price of its class.
    net_costs: Float64s


@dataclass(frozen=True)
class _State:
    """The smoothed problem at prices v of one side's A members; the other side has B members."""

    prices: Float64s  # v, (A,)
    value: float  # the smoothed D(v)
    slope: Float64s
    shares: Float32s  # q, (A, B)


def transport(costs: Float32s, masses: Float64s, row_masses: Float64s | None = None) -> Transport:
    """Solve the transport of n rows to K classes.

    `costs`, shape (K, n), are between 0 and 1. `masses`, shape (K,), sum to 1. `row_masses`, shape
    (n,), sum to 1 and are equal by default.
    """
    used = np.flatnonzero(masses > 0)  # a class without mass gets no row
    some, pi = costs[used], masses[used]
    n = costs.shape[1]
    rows = np.full(n, 1 / n) if row_masses is None else row_masses
    if len(used) <= n:
        prices, upper = _solved(some, pi, rows)
    else:
        # Solve for the prices of the rows; the prices of the classes follow.
        of_rows, upper = _solved(np.ascontiguousarray(some.T), rows, pi)
        prices = _net(some.T, of_rows)
    net = _net(some, prices)
    lower = float(pi @ prices + rows @ net)
    # Only differences of prices matter, so their mean over the mass is set to 0.
    level = float(pi @ prices)
    everywhere = np.zeros(len(masses))
    everywhere[used] = prices - level
    return Transport((lower + upper) / 2, upper - lower, everywhere, net + level)


def _net(costs: Float32s, prices: Float64s) -> Float64s:
    """Return min_k (c_jk - v_k), shape (B,), of costs (A, B) and prices (A,)."""
    net: Float32s = (costs - prices.astype(np.float32)[:, None]).min(axis=0)
    return net.astype(np.float64)


def _solved(costs: Float32s, masses: Float64s, partners: Float64s) -> tuple[Float64s, float]:
    """Return the best prices, shape (A,), and an upper bound of the cost.

    `costs` have shape (A, B). `masses` (A,) and the masses of the `partners` (B,) each sum to 1.
    """
    step = -(-costs.shape[1] // _PILOT_ROWS)
    pilot = np.ascontiguousarray(costs[:, ::step])
    of_pilot = partners[::step] / partners[::step].sum()
    prices, upper = np.zeros(len(masses)), 1.0
    for eps in _SMOOTHINGS:
        if step > 1 and eps > _PILOT_SMOOTHING:  # while eps is large, solve on a few rows first
            prices = _maximised(pilot, masses, of_pilot, prices, eps).prices
            continue
        state = _maximised(costs, masses, partners, prices, eps)
        prices = state.prices
        # The lower bound of the unsmoothed problem, and the upper bound from q.
        lower = float(masses @ prices + partners @ _net(costs, prices))
        cost = float(np.einsum("ab,ab->b", state.shares, costs) @ partners)
        upper = cost + 0.5 * float(np.abs(state.slope).sum())
        if upper - lower <= _GAP * max(1.0, len(masses) / _MANY_PRICES):
            break
    return prices, upper


def _maximised(
    costs: Float32s, masses: Float64s, partners: Float64s, prices: Float64s, eps: float
) -> _State:
    """Maximise the smoothed semi-dual from `prices` by damped Newton steps.

    The damping depends on the share of the predicted gain that a step reaches (Marquardt). Before
    the last eps a rough solution is enough, because only the final gap between the bounds matters.
    """
    state = _at(costs, masses, partners, prices, eps)
    root = np.sqrt(partners).astype(np.float32)
    damping = 1e-3
    # The gradient is the mass that q misplaces, class by class.
    enough = max(_MISPLACED, _MISPLACED_PER_SMOOTHING * eps)
    for _ in range(_MAX_STEPS):
        if np.abs(state.slope).sum() <= enough:
            break
        # eps times minus the Hessian, positive semi-definite: diag(mean q) - mean q q^T.
        q = state.shares * root
        hessian = -(q @ q.T).astype(np.float64)
        hessian[np.diag_indices_from(hessian)] += masses - state.slope  # the mean of q
        # Adding one number to all prices changes nothing, so the matrix is singular without
        # damping. The damping grows until a step reaches a part of the gain that the quadratic
        # model predicts.
        gained = 0.0
        while damping < _MOST_DAMPING:
            damped = hessian + (damping / len(masses)) * np.eye(len(masses))
            move = eps * np.linalg.solve(damped, state.slope)
            trial = _at(costs, masses, partners, state.prices + move, eps)
            promised = 0.5 * float(state.slope @ move)
            gained = (trial.value - state.value) / promised
            if gained > _LEAST_GAIN:
                break
            damping *= 5
        if gained <= _LEAST_GAIN:  # the remaining gain is below rounding
            break
        # Reduce the damping after a good step, and increase it after a bad step.
        if gained > 0.7:
            damping = max(damping / 5, 1e-9)
        elif gained < 0.3:
            damping *= 2
        state = trial
    return state


def _at(
    costs: Float32s, masses: Float64s, partners: Float64s, prices: Float64s, eps: float
) -> _State:
    """Return the smoothed problem at `prices`, summed block by block."""
    shares = np.empty_like(costs)
    soft_minima, placed = 0.0, np.zeros(len(prices))
    width = max(1, _BLOCK_VALUES // len(prices))
    for start in range(0, costs.shape[1], width):
        part = slice(start, start + width)
        scores = (prices[:, None] - costs[:, part]) / eps  # float64: small eps magnifies rounding
        top = scores.max(axis=0)
        scores -= top
        q = np.exp(scores.astype(np.float32))
        total = q.sum(axis=0)
        q /= total
        shares[:, part] = q
        weights = partners[part]
        soft_minima -= float(weights @ top + weights @ np.log(total).astype(np.float64))
        placed += q.astype(np.float64) @ weights
    value = float(masses @ prices) + eps * soft_minima
    return _State(prices, value, masses - placed, shares)


def cot(inputs: EstimatorInputs, prior: Float64s | None = None) -> Estimate:
    """Estimate the target accuracy by confidence optimal transport.

    `prior` holds the class frequencies on the target, shape (K,), sum 1. Default: of the source.
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
    # The error is the source error plus the shift, but always just below the error of guessing.
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
