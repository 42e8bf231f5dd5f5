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
from numpy.typing import NDArray

from covcal_cli.softmax import Array

_SMOOTHINGS = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001, 0.00003)
_GAP = 8e-5
_MANY_CLASSES = 100
_MISPLACED = 1e-5
_MISPLACED_PER_SMOOTHING = 0.1
_MAX_STEPS = 60
_MOST_DAMPING = 1e9
_LEAST_GAIN = 1e-3
_PILOT_ROWS = 4000
_PILOT_SMOOTHING = 0.01
_BLOCK_VALUES = 1 << 16

Costs = NDArray[np.float32]


@dataclass(frozen=True)
class Transport:
    """A solved transport problem.

    Attributes
    ----------
    cost : float
        The middle of the two bounds.
    gap : float
        Upper minus lower bound.
    prices : array of float64, shape (K,)
        v, zero on average over the mass; 0 for classes without mass.
    net_costs : array of float64, shape (n,)
        min_k (c_jk - v_k): what row j adds to the cost, net of its class's price.
    """

    cost: float
    gap: float
    prices: Array
    net_costs: Array


@dataclass(frozen=True)
class _State:
    """The smoothed problem at prices v; `shares` is q, shape (K, n)."""

    prices: Array
    value: float
    slope: Array
    shares: Costs


def transport(costs: Costs, masses: Array) -> Transport:
    """Solve the transport of n rows of equal mass to K classes.

    Parameters
    ----------
    costs : array of float32, shape (K, n)
        Between 0 and 1.
    masses : array of float64, shape (K,)
        Non-negative, sum 1.
    """
    used = np.flatnonzero(masses > 0)
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
        net = (some - prices.astype(np.float32)[:, None]).min(axis=0).astype(np.float64)
        lower = float(pi @ prices + net.mean())
        upper = float(np.vdot(state.shares, some)) / n + 0.5 * float(np.abs(state.slope).sum())
        if upper - lower <= _GAP * max(1.0, len(used) / _MANY_CLASSES):
            break
    level = float(pi @ prices)
    everywhere = np.zeros(len(masses))
    everywhere[used] = prices - level
    return Transport((lower + upper) / 2, upper - lower, everywhere, net + level)


def _maximised(costs: Costs, masses: Array, prices: Array, eps: float) -> _State:
    """Climb the smoothed semi-dual from `prices` by Newton steps damped as far as needed.

    Damping follows the share of the promised gain that a step brings (Marquardt). Before the last
    smoothing a rough solution will do: only the gap between the bounds has to be small, at the end.
    """
    state = _at(costs, masses, prices, eps)
    n = costs.shape[1]
    damping = 1e-3
    enough = max(_MISPLACED, _MISPLACED_PER_SMOOTHING * eps)
    for _ in range(_MAX_STEPS):
        if np.abs(state.slope).sum() <= enough:
            break
        q = state.shares
        hessian = -(q @ q.T).astype(np.float64) / n
        mean = q.mean(axis=1, dtype=np.float64)
        hessian[np.diag_indices_from(hessian)] += mean
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
        if gained > 0.7:
            damping = max(damping / 5, 1e-9)
        elif gained < 0.3:
            damping *= 2
        state = trial
    return state


def _at(costs: Costs, masses: Array, prices: Array, eps: float) -> _State:
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
