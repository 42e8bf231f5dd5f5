"""The worst case: how badly a critic who agrees on the source can disagree on the target.

Rosenfeld and Garg, "(Almost) provable error bounds under distribution shift via disagreement
discrepancy", NeurIPS 2023. A critic h' is trained to have the classifier's label on source rows and
another on target rows. If the true labelling disagrees with the classifier no more than h' does,
then with probability 1 - delta, on rows that h' has not seen,

    error_T <= error_S + [P_T(h' != f) - P_S(h' != f)]
               + sqrt((n_S + 4 n_T) log(1/delta) / (2 n_S n_T)).

h' is linear in the classifier's logits and, where there are any, the aligned forecaster's. Its loss
is cross-entropy to f's label on the source plus softplus(z'_f - mean of the other z') / log 2 on
the target, plus a small ridge: convex, one answer. It starts as f itself. Half of the rows of each
domain train it, the other half measure it.
"""

import math

import numpy as np
from numpy.typing import NDArray

from covcal_cli.labelfree.estimate import Estimate
from covcal_cli.labelfree.evidence import Evidence
from covcal_cli.labelfree.fit_guards import free_critic
from covcal_cli.labelfree.lbfgs import minimise
from covcal_cli.labelfree.scores import Labels
from covcal_cli.softmax import Array

ASSUMPTION = (
    "a worst case: the truth disagrees with the classifier on the target no more than a linear "
    "critic on the logits, trained to disagree there, does"
)
_DELTA = 0.05
_RIDGE = 1e-5
_TOLERANCE = 1e-5
_MAX_STEPS = 200
_MAX_VALUES = 1_000_000


def worst_case(evidence: Evidence, *, seed: int = 0) -> Estimate:
    """Return a lower bound of the target accuracy; `low` is the bound too, and `high` is 1.

    Parameters
    ----------
    evidence : Evidence
    seed : int
        Chooses the halves, and the rows where a domain has more than a million logits.
    """
    rng = np.random.default_rng(seed)
    source = _halves(evidence.n_source, evidence.n_classes, rng)
    target = _halves(evidence.n_target, evidence.n_classes, rng)
    (trained_s, held_s), (trained_t, held_t) = source, target
    inputs, others = _inputs(evidence, trained_s)
    labels, denied = evidence.source_predictions, evidence.target_predictions
    critic = _critic(
        inputs[trained_s],
        labels[trained_s],
        others[trained_t],
        denied[trained_t],
        evidence.n_classes,
    )
    on_source = float((_labels(inputs[held_s], critic) != labels[held_s]).mean())
    on_target = float((_labels(others[held_t], critic) != denied[held_t]).mean())
    error = 1 - float(evidence.source_correct[held_s].mean())
    n_s, n_t = len(held_s), len(held_t)
    noise = math.sqrt((n_s + 4 * n_t) * math.log(1 / _DELTA) / (2 * n_s * n_t))
    bound = float(np.clip(1 - (error + on_target - on_source + noise), 0.0, 1.0))
    guard = free_critic(inputs.shape[1] - 1)
    return Estimate("worst case", bound, bound, 1.0, ASSUMPTION, (guard,))


def _halves(
    n: int, n_classes: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rows = rng.permutation(n)[: max(2, _MAX_VALUES // n_classes)]
    middle = len(rows) // 2
    return rows[:middle], rows[middle:]


def _inputs(evidence: Evidence, rows: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return the critic's inputs of both domains: logits in units of `rows`, and a constant 1."""
    pairs = [(evidence.source_logits, evidence.target_logits)]
    if evidence.aligned is not None:
        pairs.append((evidence.aligned.source_logits, evidence.aligned.target_logits))
    sides: list[list[Array]] = [[], []]
    for pair in pairs:
        level = pair[0][rows].mean(axis=0, dtype=np.float64)
        spread = float(pair[0][rows].std(dtype=np.float64)) or 1.0
        for side, logits in zip(sides, pair, strict=True):
            side.append((logits - level) / spread)
    on_source, on_target = (np.hstack([*side, np.ones((len(side[0]), 1))]) for side in sides)
    return on_source, on_target


def _labels(inputs: Array, critic: Array) -> Labels:
    labels: Labels = (inputs @ critic).argmax(axis=1)
    return labels


def _critic(source: Array, agreed: Labels, target: Array, denied: Labels, K: int) -> Array:
    """Return the critic's weights, shape (inputs, K), that minimise the loss above."""
    n, m = len(source), len(target)
    rows, others = np.arange(n), np.arange(m)

    def loss(weights: Array) -> tuple[float, Array]:
        logits = source @ weights
        logits -= logits.max(axis=1, keepdims=True)
        chances = np.exp(logits)
        total = chances.sum(axis=1)
        value = float((np.log(total) - logits[rows, agreed]).mean())
        chances /= total[:, None]
        chances[rows, agreed] -= 1
        slope = source.T @ chances / n
        logits = target @ weights
        margin = (K * logits[others, denied] - logits.sum(axis=1)) / (K - 1)
        value += float(np.logaddexp(0, margin).mean()) / math.log(2)
        pull = 0.5 * (1 + np.tanh(margin / 2)) / (m * math.log(2))
        each = np.repeat(-pull[:, None] / (K - 1), K, axis=1)
        each[others, denied] = pull
        slope += target.T @ each
        value += 0.5 * _RIDGE * float(np.vdot(weights, weights))
        return value, slope + _RIDGE * weights

    start = np.zeros((source.shape[1], K))
    start[:K] = np.eye(K)
    return minimise(loss, start, tolerance=_TOLERANCE, max_steps=_MAX_STEPS)
