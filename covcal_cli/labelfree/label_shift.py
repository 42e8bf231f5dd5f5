"""Label shift: how much rarer or more frequent each class is on the target.

If only P(y) changes, the mean prediction on the target is a mix of the mean predictions per class.
With C_ck = mean_source 1[y = k] p_c (K x K) and mu_c = mean_target p_c, the ratio w_k = P_target(k)
/ P_source(k) solves C w = mu. All three read p = softmax(z / T_s).

- BBSE (Lipton et al., ICML 2018): least squares.
- RLLS (Azizzadenesheli et al., ICLR 2019): w = 1 + theta, theta = argmin ||C theta - (mu - C 1)||
  + Delta ||theta||, where Delta = 2 log(2K/delta) / (3 n_v) + sqrt(2 log(2K/delta) / n_v) is the
  theory's bound on the error of C. In the singular basis of C both norms are sums over directions,
  so that theta is a ridge solution whose ridge is the root of one increasing function.
- EM (Saerens et al., 2002): w_k <- mean_target p'_k / pi_k with p'_k proportional to w_k p_k.

Estimating a prior goes badly wrong where more than P(y) shifts, so nothing here runs unasked.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from covcal_cli.labelfree.estimate import Estimate, from_variance, variance_of_mean
from covcal_cli.labelfree.evidence import Evidence
from covcal_cli.labelfree.fit_guards import condition
from covcal_cli.labelfree.guards import enough_errors
from covcal_cli.labelfree.scores import probabilities
from covcal_cli.records import Guard
from covcal_cli.softmax import Array

Solver = Literal["bbse", "rlls", "em"]
_DELTA = 0.05
_EM_TOLERANCE = 1e-6
_EM_STEPS = 2000
ASSUMPTION = "only the frequencies of the classes change: p(x | y) is shared"


@dataclass(frozen=True)
class LabelShift:
    """How class frequencies change from source to target.

    Attributes
    ----------
    ratios : array of float64, shape (K,)
        w_k >= 0 with sum_k pi_k w_k = 1; 0 for classes without a source row.
    prior : array of float64, shape (K,)
        Target class frequencies pi_k w_k.
    guards : tuple of Guard
    """

    ratios: Array
    prior: Array
    guards: tuple[Guard, ...]

    def row_weights(self, evidence: Evidence) -> Array:
        """Return w_y of every source row, shape (n_v,), to fit a temperature with."""
        return self.ratios[evidence.source_labels]


def label_shift(evidence: Evidence, solver: Solver) -> LabelShift:
    """Estimate the class ratios by BBSE, RLLS or EM."""
    joint, means = confusion(evidence)
    pi = np.bincount(evidence.source_labels, minlength=evidence.n_classes) / evidence.n_source
    solvers: dict[str, Callable[[], Array]] = {
        "bbse": lambda: np.asarray(np.linalg.lstsq(joint, means, rcond=None)[0], dtype=np.float64),
        "rlls": lambda: 1 + rlls_theta(joint, means - joint.sum(axis=1), rlls_delta(evidence)),
        "em": lambda: em_ratios(probabilities(evidence.target_logits, evidence.temperature), pi),
    }
    present = pi > 0
    ratios = np.where(present, np.maximum(solvers[solver](), 0.0), 0.0)
    total = float(pi @ ratios)
    ratios = ratios / total if total > 0 else present.astype(np.float64)
    number = float(np.linalg.cond(joint[:, present]))
    guards = (
        condition(number),
        enough_errors(evidence.source_errors, evidence.n_source),
    )
    return LabelShift(ratios, pi * ratios, guards)


def label_shift_accuracy(evidence: Evidence, shift: LabelShift) -> Estimate:
    """Estimate the target accuracy by the source's, class by class at the target's frequencies."""
    values = shift.row_weights(evidence) * evidence.source_correct
    return from_variance(
        "label-shift", float(values.mean()), variance_of_mean(values), ASSUMPTION, shift.guards
    )


def confusion(evidence: Evidence) -> tuple[Array, Array]:
    """Return C, shape (K, K), columns by label, and mu, shape (K,)."""
    on_source = probabilities(evidence.source_logits, evidence.temperature)
    joint = np.zeros((evidence.n_classes, evidence.n_classes))
    np.add.at(joint.T, evidence.source_labels, on_source.T / evidence.n_source)
    means = probabilities(evidence.target_logits, evidence.temperature).mean(axis=1)
    return joint, means


def rlls_delta(evidence: Evidence) -> float:
    """Return Delta, the bound on the error of C that holds with probability 95 %."""
    logs = math.log(2 * evidence.n_classes / _DELTA)
    return 2 * logs / (3 * evidence.n_source) + math.sqrt(2 * logs / evidence.n_source)


def rlls_theta(joint: Array, gap: Array, delta: float) -> Array:
    """Return argmin ||C theta - gap|| + delta ||theta||, shape (K,).

    With C = U S V^T and b = U^T gap, theta = V diag(s / (s^2 + r)) b, where at the optimum r is
    delta times ||residual|| / ||theta||. So sum (s^2 - delta^2) b^2 / (s^2 + r)^2 = 0; times
    (delta^2 + r)^2 the sum increases with r, so it changes its sign at most once.
    """
    left, s, right = np.linalg.svd(joint)
    b = left.T @ gap
    reached = s > s[0] * len(s) * np.finfo(float).eps if s[0] > 0 else s > 0
    excess = s**2 - delta**2

    def balance(ridge: float) -> float:
        relative = (delta**2 + ridge) / (s**2 + ridge)
        return float((excess * (b * relative) ** 2).sum())

    if float((excess * b**2).sum()) <= 0:
        return np.zeros(len(gap))
    low, high = math.log(1e-16 * s[0] ** 2), math.log(1e16 * s[0] ** 2)
    if balance(math.exp(low)) >= 0:  # the noise allows an exact solution
        return np.asarray(right.T @ np.divide(b, s, out=np.zeros_like(b), where=reached))
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if balance(math.exp(middle)) < 0 else (low, middle)
    return np.asarray(right.T @ (s / (s**2 + math.exp(high)) * b))


def em_ratios(chances: Array, pi: Array) -> Array:
    """Return the ratios that are a fixed point of EM, from probabilities (K, n) and pi (K,)."""
    present = pi > 0
    ratios = present.astype(np.float64)
    some, shares = chances[present], pi[present]
    w = np.ones(len(shares))
    for _ in range(_EM_STEPS):
        posterior = w[:, None] * some
        total = posterior.sum(axis=0)
        # A row that lies in absent classes alone says nothing about the others.
        posterior /= np.where(total > 0, total, 1.0)
        means = posterior.mean(axis=1)
        updated = means / max(float(means.sum()), np.finfo(float).tiny) / shares
        moved = float(np.abs(updated - w).max())
        w = updated
        if moved < _EM_TOLERANCE:
            break
    ratios[present] = w
    return ratios
