"""Label shift: how much rarer or more frequent each class is on the target, estimated or given.

If only P(y) changes, the mean prediction on the target is a mix of the mean predictions per class.
With C_ck = mean_source 1[y = k] p_c (K x K) and mu_c = mean_target p_c, the ratio w_k = P_target(k)
/ P_source(k) solves C w = mu. All three read p = softmax(z / T_s).

- BBSE (Lipton et al., ICML 2018): least squares.
- RLLS (Azizzadenesheli et al., ICLR 2019): w = 1 + theta, theta = argmin ||C theta - (mu - C 1)||
  + Delta ||theta||, where Delta = 2 log(2K/delta) / (3 n_v) + sqrt(2 log(2K/delta) / n_v) is the
  theory's bound on the error of C. In the singular basis of C both norms are sums over directions,
  so that theta is a ridge solution whose ridge is the root of one increasing function.

Estimating a prior goes badly wrong where more than P(y) shifts, so nothing here runs unasked.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from covcal_cli.arrays import Float64s
from covcal_cli.errors import CovcalError
from covcal_cli.estimators.evidence import Evidence, probabilities
from covcal_cli.estimators.guards import condition, enough_errors
from covcal_cli.files import require_file
from covcal_cli.records import Guard, parsed_json

Solver = Literal["bbse", "rlls"]
_DELTA = 0.05


@dataclass(frozen=True)
class LabelShift:
    """How class frequencies change from source to target."""

    ratios: Float64s  # (K,): w_k >= 0 with sum_k pi_k w_k = 1; 0 for classes without a source row
    prior: Float64s  # (K,): target class frequencies pi_k w_k
    guards: tuple[Guard, ...]


def label_shift(evidence: Evidence, solver: Solver) -> LabelShift:
    """Estimate the class ratios by BBSE or RLLS."""
    joint, means = confusion(evidence)
    pi = np.bincount(evidence.source_labels, minlength=evidence.n_classes) / evidence.n_source
    if solver == "bbse":
        solved = np.linalg.lstsq(joint, means, rcond=None)[0]
    else:
        solved = 1 + rlls_theta(joint, means - joint.sum(axis=1), rlls_delta(evidence))
    # A solution is no distribution yet: frequencies are not negative, and they sum to 1.
    present = pi > 0
    ratios = np.where(present, np.maximum(solved, 0.0), 0.0)
    total = float(pi @ ratios)
    ratios = ratios / total if total > 0 else present.astype(np.float64)
    guards = (
        condition(float(np.linalg.cond(joint[:, present]))),
        enough_errors(evidence.source_errors, evidence.n_source),
    )
    return LabelShift(ratios, pi * ratios, guards)


def confusion(evidence: Evidence) -> tuple[Float64s, Float64s]:
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


def rlls_theta(joint: Float64s, gap: Float64s, delta: float) -> Float64s:
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
    # The root of the balance, by bisection of log r.
    low, high = math.log(1e-16 * s[0] ** 2), math.log(1e16 * s[0] ** 2)
    if balance(math.exp(low)) >= 0:  # the noise allows an exact solution
        return np.asarray(right.T @ np.divide(b, s, out=np.zeros_like(b), where=reached))
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if balance(math.exp(middle)) < 0 else (low, middle)
    return np.asarray(right.T @ (s / (s**2 + math.exp(high)) * b))


# ``--target-prior``: how often each class occurs on the target, as the user says.
#
# ``source`` (as often as on the source), ``uniform``, ``bbse`` (estimated, because it was asked
# for) or a JSON file that gives every class name a share; the shares sum to 1.

BBSE: Final = "bbse"
_TOLERANCE = 1e-3


def target_prior(value: str, evidence: Evidence, classes: Sequence[str]) -> Float64s | None:
    """Return the prior that `value` names, shape (K,), sum 1; None stands for the source's.

    Raises
    ------
    CovcalError
        If a file is missing, is not JSON, does not give every class one non-negative number, or
        its shares do not sum to 1 (within 0.001, for shares are often rounded).
    """
    if value == BBSE:
        return label_shift(evidence, BBSE).prior
    return given_prior(value, classes)


def given_prior(value: str, classes: Sequence[str]) -> Float64s | None:
    """Return the prior that `value` names, as `target_prior` does, without an estimate."""
    if value == "source":
        return None
    if value == "uniform":
        return np.full(len(classes), 1 / len(classes))
    return _read(Path(value), classes)


def _read(path: Path, classes: Sequence[str]) -> Float64s:
    require_file(path, remedy='give source, uniform, bbse or a JSON file like {"cat": 0.3, ...}')
    try:
        shares = parsed_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CovcalError(f'{path} is not JSON: write {{"{classes[0]}": 0.3, ...}}') from error
    if not isinstance(shares, dict):
        raise CovcalError(f'{path} must give every class a share, like {{"{classes[0]}": 0.3}}')
    for name in classes:
        if name not in shares:
            raise CovcalError(f"{path} has no share for class {name}: give every class one")
    for name, share in shares.items():
        if name not in classes:
            raise CovcalError(f"{path} has a share for {name}, which is no class of the model")
        if isinstance(share, bool) or not isinstance(share, int | float):
            raise CovcalError(f"{path}: the share of {name} is {share!r}: give a number")
        if not 0 <= share <= sys.float_info.max:  # an integer may be larger than any float
            raise CovcalError(f"{path}: the share of {name} is {str(share)[:20]}: give 0 or more")
    values = np.array([float(shares[name]) for name in classes])
    if abs(values.sum() - 1) > _TOLERANCE:
        raise CovcalError(
            f"{path}: the shares sum to {values.sum():.6g}, not to 1: give each class its share of "
            "the target's rows"
        )
    return np.asarray(values / values.sum())
