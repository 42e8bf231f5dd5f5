"""COT: estimate the error by optimal transport from target probabilities to class frequencies.

Lu et al., "Characterizing out-of-distribution error via optimal transport", NeurIPS 2023.

| symbol | meaning |
|---|---|
| P_j = softmax(z_j / T_s) | probabilities of row j |
| c_jk = 1 - P_jk | cost of moving P_j to class k |
| pi | class frequencies of the source, or from the user |
| e_v = (errors + 1/2) / (n_v + 1) | source error |
| e_v + (OT_target - OT_source) | estimated error |

The optimal transport cost OT is lower than the error rate. The difference OT_target - OT_source
cancels this bias if both domains have the same bias. If the user gives class frequencies, source
rows are weighted to have the same class frequencies.

The interval is computed by the delta method, from the solution of the transport problem:

| symbol | meaning |
|---|---|
| v | prices of the classes |
| net_j = min_k (c_jk - v_k) | net cost of row j |
| pi . v + mean_j net_j | optimal cost |

**Solver.** `transport` solves the semi-dual problem (Peyre and Cuturi, Computational Optimal
Transport, section 5.1). `transport` moves the masses r_j of rows to the masses pi_k of classes at
the lowest cost. The cost is the maximum of a concave function D.

| symbol | meaning |
|---|---|
| D(v) | pi . v + sum_j r_j min_k (c_jk - v_k) |
| smooth D | D with -eps log sum_k exp((v_k - c_jk) / eps) instead of min_k |
| q_j | softmax_k((v_k - c_jk) / eps) |
| pi - sum_j r_j q_j | gradient of the smooth D |

A damped Newton method maximises the smooth D, and reduces eps step by step. The run time grows with
the cube of the number of prices. With fewer rows than classes, the solver finds prices u_j of the
rows instead, and computes v_k = min_j (c_jk - u_j).

The method stops when a lower and an upper bound of the cost differ by less than 8e-5, far below the
sampling noise. The lower bound is D(v). The upper bound is the cost of q, plus half the mass that q
moves to a wrong class.
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
    "the assumed class frequencies are right, and no row gives its true class the probability 0"
)
_SMOOTHINGS = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001, 0.00003)
_GAP = 8e-5
_MANY_PRICES = 100
_MISPLACED = 1e-5
_MISPLACED_PER_SMOOTHING = 0.1
_MAX_STEPS = 60
_MOST_DAMPING = 1e9
_LEAST_GAIN = 1e-3
_PILOT_ROWS = 4000
_PILOT_SMOOTHING = 0.01  # for larger eps, a sample of the rows is enough
_BLOCK_VALUES = 1 << 16


@dataclass(frozen=True)
class Transport:
    """The solution of a transport problem."""

    cost: float  # Mean of the lower and the upper bound.
    gap: float  # Upper bound minus lower bound.
    prices: Float64s  # v, (K,). A class without mass has the price 0.
    net_costs: Float64s  # min_k (c_jk - v_k), (n,).


@dataclass(frozen=True)
class _State:
    prices: Float64s  # v, (A,)
    value: float
    slope: Float64s
    shares: Float32s  # q, (A, B)


def transport(costs: Float32s, masses: Float64s, row_masses: Float64s | None = None) -> Transport:
    """Find the cheapest way to move the masses of n rows to K classes.

    `costs`, (K, n), are between 0 and 1. `masses`, (K,), are the masses of the classes, and
    `row_masses`, (n,), are the masses of the rows (default: equal masses). `masses` and
    `row_masses` each sum to 1.
    """
    used = np.flatnonzero(masses > 0)
    some, pi = costs[used], masses[used]
    n = costs.shape[1]
    rows = np.full(n, 1 / n) if row_masses is None else row_masses
    if len(used) <= n:
        prices, upper = _solved(some, pi, rows)
    else:
        # With fewer rows than classes, it is faster to compute one price per row.
        of_rows, upper = _solved(np.ascontiguousarray(some.T), rows, pi)
        prices = _net(some.T, of_rows)
    net = _net(some, prices)
    lower = float(pi @ prices + rows @ net)
    level = float(pi @ prices)
    everywhere = np.zeros(len(masses))
    everywhere[used] = prices - level
    return Transport((lower + upper) / 2, upper - lower, everywhere, net + level)


def _net(costs: Float32s, prices: Float64s) -> Float64s:
    """Return min_k (c_jk - v_k), shape (B,), for costs (A, B) and prices (A,)."""
    net: Float32s = (costs - prices.astype(np.float32)[:, None]).min(axis=0)
    return net.astype(np.float64)


def _solved(costs: Float32s, masses: Float64s, partners: Float64s) -> tuple[Float64s, float]:
    """Return the optimal prices, (A,), and an upper bound of the cost, for `costs`, (A, B)."""
    step = -(-costs.shape[1] // _PILOT_ROWS)
    pilot = np.ascontiguousarray(costs[:, ::step])
    of_pilot = partners[::step] / partners[::step].sum()
    prices, upper = np.zeros(len(masses)), 1.0
    for eps in _SMOOTHINGS:
        if step > 1 and eps > _PILOT_SMOOTHING:
            prices = _maximised(pilot, masses, of_pilot, prices, eps).prices
            continue
        state = _maximised(costs, masses, partners, prices, eps)
        prices = state.prices
        lower = float(masses @ prices + partners @ _net(costs, prices))
        cost = float(np.einsum("ab,ab->b", state.shares, costs) @ partners)
        upper = cost + 0.5 * float(np.abs(state.slope).sum())
        if upper - lower <= _GAP * max(1.0, len(masses) / _MANY_PRICES):
            break
    return prices, upper


def _maximised(
    costs: Float32s, masses: Float64s, partners: Float64s, prices: Float64s, eps: float
) -> _State:
    """Maximise the smooth semi-dual from `prices` by damped Newton steps."""
    state = _at(costs, masses, partners, prices, eps)
    root = np.sqrt(partners).astype(np.float32)
    damping = 1e-3
    enough = max(_MISPLACED, _MISPLACED_PER_SMOOTHING * eps)
    for _ in range(_MAX_STEPS):
        if np.abs(state.slope).sum() <= enough:
            break
        q = state.shares * root
        hessian = -(q @ q.T).astype(np.float64)
        hessian[np.diag_indices_from(hessian)] += masses - state.slope
        # Without damping, the matrix is singular, because only price differences matter.
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
        if gained <= _LEAST_GAIN:  # only rounding errors remain
            break
        if gained > 0.7:
            damping = max(damping / 5, 1e-9)
        elif gained < 0.3:
            damping *= 2
        state = trial
    return state


def _at(
    costs: Float32s, masses: Float64s, partners: Float64s, prices: Float64s, eps: float
) -> _State:
    shares = np.empty_like(costs)
    soft_minima, placed = 0.0, np.zeros(len(prices))
    width = max(1, _BLOCK_VALUES // len(prices))
    for start in range(0, costs.shape[1], width):
        part = slice(start, start + width)
        # Use float64, because dividing by a small eps magnifies rounding errors.
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

    `prior`, (K,), are the class frequencies on the target, by default those of the source.
    """
    labels, n_v, n_t = inputs.source_labels, inputs.n_source, inputs.n_target
    masses = inputs.source_prior if prior is None else prior
    weights = np.full(n_v, 1 / n_v) if prior is None else _prior_weights(prior, inputs)
    on_source = _transport(inputs.source_logits, inputs.temperature, masses, weights)
    on_target = _transport(inputs.target_logits, inputs.temperature, masses, None)
    shift = on_target.cost - on_source.cost
    wrong = 1.0 - inputs.source_correct
    transported, borrowed = on_source.net_costs, np.zeros(n_v)
    if prior is None:
        transported = transported + on_source.prices[labels]
        borrowed = on_target.prices[labels]
    of_target = variance_of_mean(on_target.net_costs)
    of_shift = variance_of_mean(borrowed - transported, weights) + of_target
    of_error = variance_of_mean(wrong + borrowed - transported, weights) + of_target
    # The error must stay below the error of guessing.
    error = (n_v * float(weights @ wrong) + 0.5) / (n_v + 1) + shift
    worst = 1 - 1 / inputs.n_classes - 0.01
    error = float(np.clip(error, 0.5 / (n_t + 1), worst))
    guards = [detectable_shift(shift, math.sqrt(of_shift)), precise(Z * math.sqrt(of_error))]
    if prior is None:
        guards.append(confidence_change(inputs))
    return from_variance("cot", 1 - error, of_error, ASSUMPTION, tuple(guards))


def confidence_change(inputs: EstimatorInputs) -> Guard:
    """Return the check `fall in confidence` of the inputs."""
    source, target = inputs.source_confidence, inputs.target_confidence
    noise = math.sqrt(variance_of_mean(source) + variance_of_mean(target))
    fall = float(source.mean() - target.mean())
    return fall_in_confidence(fall, noise, inputs.predicted_drift)


def _prior_weights(prior: Float64s, inputs: EstimatorInputs) -> Float64s:
    """Return weights of source rows, so that the weighted class frequencies are `prior`."""
    counts = np.bincount(inputs.source_labels, minlength=inputs.n_classes)
    weights = (prior / np.maximum(counts, 1))[inputs.source_labels]
    total = weights.sum()
    return np.asarray(weights / total if total > 0 else np.full(len(weights), 1 / len(weights)))


def _transport(
    logits: Floats, temperature: float, prior: Float64s, weights: Float64s | None
) -> Transport:
    costs = (1 - probabilities(logits, temperature)).astype(np.float32)
    return transport(costs, prior, weights)
