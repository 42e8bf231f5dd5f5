"""COT: estimate the error by the cost of moving target probabilities to the class frequencies.

Lu et al., "Characterizing out-of-distribution error via optimal transport", NeurIPS 2023. Let P_j =
softmax(z_j / T_s) be the probabilities of row j. Moving P_j to class k costs ||P_j - e_k||_1 / 2 =
1 - P_jk, where e_k is 1 for class k and 0 for the other classes. The class frequencies pi come from
the source, or from the user.

covcal also computes this cost on the source, and subtracts it. The estimated error is e_v +
(OT_target - OT_source). Here e_v = (errors + 1/2) / (n_v + 1), and OT_source is the cost on source
validation rows. Errors that the cost misses on both domains then cancel. If the user gives
frequencies q, the errors cancel only if both domains have these frequencies. So source rows get
the weights q_y / p_y in e_v and in OT_source, and OT_source uses q too. If only the class
frequencies differ, both costs are then equal, and the estimate is the error under q.

The interval is computed by the delta method, from what each row contributes to the estimate. At the
optimum the cost is pi . v + mean_j net_j, with prices v of the classes and net_j = min_k (c_jk -
v_k). If a row is drawn more often, the prices do not change to first order (envelope theorem). So a
target row contributes net_j. A source row contributes error - (net cost in OT_source + price of its
label in OT_source) + price of its label in OT_target. A source row contributes to OT_target because
pi is computed from source rows: the prices contain the noise of pi. If the user gives pi, both
prices are left out. A bootstrap gives the same interval, but solves hundreds of transport problems.

**Solving it.** `transport` finds the exact cost from the semi-dual problem. Rows j = 1 .. n with
mass r_j (by default 1/n) are assigned to classes k with mass pi_k at cost c_jk in [0, 1]. For
prices v of the classes, D(v) = pi . v + sum_j r_j min_k (c_jk - v_k) is concave, and its maximum
over v is the cost (Peyre and Cuturi, Computational Optimal Transport, section 5.1). The minimum is
replaced by the smooth function -eps log sum_k exp((v_k - c_jk) / eps). Let q_j be the softmax over
k of (v_k - c_jk) / eps. Then the gradient is pi - sum_j r_j q_j, and the Hessian is (sum_j r_j q_j
q_j^T - diag(sum_j r_j q_j)) / eps. A damped Newton iteration maximises the smooth D, for smaller
and smaller eps.

The time of a step grows with the cube of the number of prices. So if there are fewer rows than
classes, the rows have prices u_j, and the prices of the classes are v_k = min_j (c_jk - u_j).

The true cost is between two bounds. The lower bound is D(v) of the problem that is not smoothed.
The upper bound is the cost of q plus half the mass that q misplaces. eps is reduced until the
bounds are less than 8e-5 apart (with more than 100 prices, 8e-7 per price). The distance between
the bounds is then far below the sampling noise of the cost.
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
    "the class frequencies on the target are as assumed, and where the classifier is wrong, it "
    "gives some probability to classes that it predicts too rarely"
)
_SMOOTHINGS = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001, 0.00003)
_GAP = 8e-5
_MANY_PRICES = 100
# the mass that q may misplace: the first number, or eps times the second number if that is larger
_MISPLACED = 1e-5
_MISPLACED_PER_SMOOTHING = 0.1
_MAX_STEPS = 60
_MOST_DAMPING = 1e9
_LEAST_GAIN = 1e-3  # a good step reaches at least this share of the predicted gain
_PILOT_ROWS = 4000
_PILOT_SMOOTHING = 0.01  # if eps is larger than this, the problem is first solved on a few rows
_BLOCK_VALUES = 1 << 16


@dataclass(frozen=True)
class Transport:
    """A transport problem and its solution."""

    cost: float  # the middle of both bounds
    gap: float  # upper bound minus lower bound
    prices: Float64s  # (K,): v, with mean 0 over the mass; 0 for classes without mass
    # (n,): min_k (c_jk - v_k), the cost of row j minus the price of its best class
    net_costs: Float64s


@dataclass(frozen=True)
class _State:
    """The smooth problem at the prices of A classes for B rows, or of A rows for B classes."""

    prices: Float64s  # v, (A,)
    value: float  # the smooth D(v)
    slope: Float64s
    shares: Float32s  # q, (A, B)


def transport(costs: Float32s, masses: Float64s, row_masses: Float64s | None = None) -> Transport:
    """Find the cheapest way to assign n rows to K classes.

    `costs`, (K, n), are between 0 and 1. `masses`, (K,), are the shares of all mass that the
    classes must get; their sum is 1. `row_masses`, (n,), are the shares of the rows; their sum is
    1, and they are equal by default.
    """
    used = np.flatnonzero(masses > 0)  # a class without mass gets no row
    some, pi = costs[used], masses[used]
    n = costs.shape[1]
    rows = np.full(n, 1 / n) if row_masses is None else row_masses
    if len(used) <= n:
        prices, upper = _solved(some, pi, rows)
    else:
        # With fewer rows than classes, rows have prices.
        # The prices of classes are computed from the prices of rows.
        of_rows, upper = _solved(np.ascontiguousarray(some.T), rows, pi)
        prices = _net(some.T, of_rows)
    net = _net(some, prices)
    lower = float(pi @ prices + rows @ net)
    # only differences of prices matter, so their mean over the mass is set to 0
    level = float(pi @ prices)
    everywhere = np.zeros(len(masses))
    everywhere[used] = prices - level
    return Transport((lower + upper) / 2, upper - lower, everywhere, net + level)


def _net(costs: Float32s, prices: Float64s) -> Float64s:
    """Return min_k (c_jk - v_k), shape (B,), for costs (A, B) and prices (A,)."""
    net: Float32s = (costs - prices.astype(np.float32)[:, None]).min(axis=0)
    return net.astype(np.float64)


def _solved(costs: Float32s, masses: Float64s, partners: Float64s) -> tuple[Float64s, float]:
    """Return the best prices, (A,), and an upper bound of the cost.

    `costs` has shape (A, B). `masses`, (A,), and `partners`, (B,), are the masses of both sides.
    The sum of each array is 1.
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
        # the bounds of the exact cost: the lower bound from the prices, and the upper bound from q
        lower = float(masses @ prices + partners @ _net(costs, prices))
        cost = float(np.einsum("ab,ab->b", state.shares, costs) @ partners)
        upper = cost + 0.5 * float(np.abs(state.slope).sum())
        if upper - lower <= _GAP * max(1.0, len(masses) / _MANY_PRICES):
            break
    return prices, upper


def _maximised(
    costs: Float32s, masses: Float64s, partners: Float64s, prices: Float64s, eps: float
) -> _State:
    """Maximise the smooth semi-dual, beginning at `prices`, by damped Newton steps.

    The damping depends on how much of the predicted gain a step reaches (Marquardt). A rough
    solution is enough for every eps except the last, because only the last bounds are returned.
    """
    state = _at(costs, masses, partners, prices, eps)
    root = np.sqrt(partners).astype(np.float32)
    damping = 1e-3
    # the gradient is the mass that q misplaces in each class
    enough = max(_MISPLACED, _MISPLACED_PER_SMOOTHING * eps)
    for _ in range(_MAX_STEPS):
        if np.abs(state.slope).sum() <= enough:
            break
        # -eps times the Hessian: diag(mean q) - mean q q^T, which is positive semi-definite
        q = state.shares * root
        hessian = -(q @ q.T).astype(np.float64)
        # the mean of q over the partners
        hessian[np.diag_indices_from(hessian)] += masses - state.slope
        # If the same number is added to all prices, nothing changes. So the matrix is singular
        # without damping. The damping grows until a step reaches enough of the gain that the
        # quadratic model predicts.
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
        if gained <= _LEAST_GAIN:  # the gain that remains is smaller than rounding errors
            break
        # less damping after a good step, more after a bad one
        if gained > 0.7:
            damping = max(damping / 5, 1e-9)
        elif gained < 0.3:
            damping *= 2
        state = trial
    return state


def _at(
    costs: Float32s, masses: Float64s, partners: Float64s, prices: Float64s, eps: float
) -> _State:
    """Return the smooth problem at `prices`, computed block by block."""
    shares = np.empty_like(costs)
    soft_minima, placed = 0.0, np.zeros(len(prices))
    width = max(1, _BLOCK_VALUES // len(prices))
    for start in range(0, costs.shape[1], width):
        part = slice(start, start + width)
        # compute in float64, because a small eps magnifies rounding errors
        scores = (prices[:, None] - costs[:, part]) / eps
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
    """Estimate the target accuracy by confidence optimal transport (COT).

    `prior` are the class frequencies on the target, shape (K,), with sum 1. Default: the
    frequencies of the source.
    """
    labels, n_v, n_t = inputs.source_labels, inputs.n_source, inputs.n_target
    masses = inputs.source_prior if prior is None else prior
    weights = np.full(n_v, 1 / n_v) if prior is None else _prior_weights(prior, inputs)
    on_source = _transport(inputs.source_logits, inputs.temperature, masses, weights)
    on_target = _transport(inputs.target_logits, inputs.temperature, masses, None)
    shift = on_target.cost - on_source.cost
    # The next values are what each row contributes to the rise of the cost and to the source error.
    wrong = 1.0 - inputs.source_correct
    transported, borrowed = on_source.net_costs, np.zeros(n_v)
    if prior is None:  # pi comes from the source rows, so the prices of their labels count
        transported = transported + on_source.prices[labels]
        borrowed = on_target.prices[labels]
    of_target = variance_of_mean(on_target.net_costs)
    of_shift = variance_of_mean(borrowed - transported, weights) + of_target
    of_error = variance_of_mean(wrong + borrowed - transported, weights) + of_target
    # the source error plus the rise of the cost; at most slightly below the error of guessing
    error = (n_v * float(weights @ wrong) + 0.5) / (n_v + 1) + shift
    worst = 1 - 1 / inputs.n_classes - 0.01
    error = float(np.clip(error, 0.5 / (n_t + 1), worst))
    guards = [detectable_shift(shift, math.sqrt(of_shift)), precise(Z * math.sqrt(of_error))]
    if prior is None:  # if the user gives the frequencies, the check of confidence is not needed
        guards.append(confidence_change(inputs))
    return from_variance("cot", 1 - error, of_error, ASSUMPTION, tuple(guards))


def confidence_change(inputs: EstimatorInputs) -> Guard:
    """Check whether the confidence falls, or class frequencies alone cannot explain the shift."""
    source, target = inputs.source_confidence, inputs.target_confidence
    noise = math.sqrt(variance_of_mean(source) + variance_of_mean(target))
    fall = float(source.mean() - target.mean())
    return fall_in_confidence(fall, noise, inputs.predicted_drift)


def _prior_weights(prior: Float64s, inputs: EstimatorInputs) -> Float64s:
    """Return weights of source rows, with sum 1, that give the classes the frequencies `prior`.

    Classes without a source row are left out. If no class with source rows has a share in `prior`,
    all weights are equal.
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
