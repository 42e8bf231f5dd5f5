"""Exact optimal transport of many rows to K classes, through its K-dimensional semi-dual.

Rows j = 1 .. n with mass 1/n go to classes k with mass pi_k at cost c_jk in [0, 1]. With prices v
of the classes, D(v) = pi . v + mean_j min_k (c_jk - v_k) is concave, and its maximum is the cost of
transport (Peyre and Cuturi, Computational Optimal Transport, section 5.1). The minimum is smoothed
to -eps log sum_k exp((v_k - c_jk) / eps), whose gradient is pi - mean_j q_j and whose Hessian is
(mean_j q_j q_j^T - diag(mean_j q_j)) / eps with q_j the softmax. A damped Newton iteration solves
it for smaller and smaller eps.

No eps is trusted: D(v) of the unsmoothed problem is a lower bound, and the cost of q, plus half the
mass that q misplaces, is an upper bound. Their gap is the accuracy, and eps falls until it is below
8e-5, or 8e-7 K where there are more than 100 classes: far below what sampling moves the cost by.
"""

from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import Float32s, Float64s

_SMOOTHINGS = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001, 0.00003)
_GAP = 8e-5
_MANY_CLASSES = 100
_MISPLACED = 1e-5  # mass that may be misplaced, at least, and as a multiple of eps
_MISPLACED_PER_SMOOTHING = 0.1
_MAX_STEPS = 60
_MOST_DAMPING = 1e9
_LEAST_GAIN = 1e-3  # of what a step promises
_PILOT_ROWS = 4000
_PILOT_SMOOTHING = 0.01  # the least eps of the pilot
_BLOCK_VALUES = 1 << 16


@dataclass(frozen=True)
class Transport:
    """A solved transport problem."""

    cost: float  # the middle of the two bounds
    gap: float  # upper minus lower bound
    prices: Float64s  # (K,): v, zero on average over the mass; 0 for classes without mass
    # (n,): min_k (c_jk - v_k), what row j adds to the cost, net of its class's price.
    net_costs: Float64s


@dataclass(frozen=True)
class _State:
    """The smoothed problem at prices v."""

    prices: Float64s  # v, (K,)
    value: float  # of the smoothed D(v), and its gradient
    slope: Float64s
    shares: Float32s  # q, (K, n)


def transport(costs: Float32s, masses: Float64s) -> Transport:
    """Solve the transport of n rows of equal mass to K classes.

    `costs`, shape (K, n), lie between 0 and 1; `masses`, shape (K,), sum to 1.
    """
    used = np.flatnonzero(masses > 0)  # a class without mass takes no row
    some, pi = costs[used], masses[used]
    n = costs.shape[1]
    step = -(-n // _PILOT_ROWS)
    pilot = np.ascontiguousarray(some[:, ::step])
    prices = np.zeros(len(used))
    for eps in _SMOOTHINGS:
        if step > 1 and eps > _PILOT_SMOOTHING:  # far from the end, a few rows show the way
            prices = _maximised(pilot, pi, prices, eps).prices
            continue
        state = _maximised(some, pi, prices, eps)
        prices = state.prices
        # The unsmoothed problem at these prices, and q as it is with what it misplaces put right.
        net = (some - prices.astype(np.float32)[:, None]).min(axis=0).astype(np.float64)
        lower = float(pi @ prices + net.mean())
        upper = float(np.vdot(state.shares, some)) / n + 0.5 * float(np.abs(state.slope).sum())
        if upper - lower <= _GAP * max(1.0, len(used) / _MANY_CLASSES):
            break
    # Only differences of prices matter: their mean over the mass is made 0.
    level = float(pi @ prices)
    everywhere = np.zeros(len(masses))
    everywhere[used] = prices - level
    return Transport((lower + upper) / 2, upper - lower, everywhere, net + level)


def _maximised(costs: Float32s, masses: Float64s, prices: Float64s, eps: float) -> _State:
    """Climb the smoothed semi-dual from `prices` by Newton steps damped as far as needed.

    Damping follows the share of the promised gain that a step brings (Marquardt). Before the last
    smoothing a rough solution will do: only the gap between the bounds has to be small, at the end.
    """
    state = _at(costs, masses, prices, eps)
    n = costs.shape[1]
    damping = 1e-3
    # The gradient is the mass that q misplaces, class by class.
    enough = max(_MISPLACED, _MISPLACED_PER_SMOOTHING * eps)
    for _ in range(_MAX_STEPS):
        if np.abs(state.slope).sum() <= enough:
            break
        # eps times minus the Hessian, positive semi-definite: diag(mean q) - mean q q^T.
        q = state.shares
        hessian = -(q @ q.T).astype(np.float64) / n
        mean = q.mean(axis=1, dtype=np.float64)
        hessian[np.diag_indices_from(hessian)] += mean
        # Prices that all rise alike change nothing, so it is singular without damping, which grows
        # until a step brings part of what the quadratic model promises.
        gained = 0.0
        while damping < _MOST_DAMPING:
            damped = hessian + (damping / len(masses)) * np.eye(len(masses))
            move = eps * np.linalg.solve(damped, state.slope)
            trial = _at(costs, masses, state.prices + move, eps)
            promised = 0.5 * float(state.slope @ move)
            gained = (trial.value - state.value) / promised
            if gained > _LEAST_GAIN:
                break
            damping *= 5
        if gained <= _LEAST_GAIN:  # what is left to gain is below rounding
            break
        # A step that kept its promise lets the next one be bolder, one that did not holds it back.
        if gained > 0.7:
            damping = max(damping / 5, 1e-9)
        elif gained < 0.3:
            damping *= 2
        state = trial
    return state


def _at(costs: Float32s, masses: Float64s, prices: Float64s, eps: float) -> _State:
    """Return the smoothed problem at `prices`, added up block by block."""
    n = costs.shape[1]
    shares = np.empty_like(costs)
    soft_minima, placed = 0.0, np.zeros(len(prices))
    width = max(1, _BLOCK_VALUES // len(prices))
    for start in range(0, n, width):
        part = slice(start, start + width)
        scores = (prices[:, None] - costs[:, part]) / eps  # float64: small eps magnifies rounding
        top = scores.max(axis=0)
        scores -= top
        q = np.exp(scores.astype(np.float32))
        total = q.sum(axis=0)
        q /= total
        shares[:, part] = q
        soft_minima -= float(top.sum()) + float(np.log(total).sum(dtype=np.float64))
        placed += q.sum(axis=1, dtype=np.float64)
    value = float(masses @ prices) + eps * soft_minima / n
    return _State(prices, value, masses - placed / n, shares)
