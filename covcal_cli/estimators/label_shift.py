"""Estimate the class frequencies on the target, or read them from the user.

Label shift means that only the class frequencies change. The mean prediction on the target is then
a weighted sum of the mean predictions of the classes:

| symbol | meaning |
|---|---|
| p | softmax(z / T_s) |
| C_ck | mean_source 1[y = k] p_c, shape (K, K) |
| mu_c | mean_target p_c |
| w_k | P_target(k) / P_source(k); w solves C w = mu |

Two methods find w:

- BBSE (Lipton et al., ICML 2018): least squares, then normalised to a distribution.
- RLLS (Azizzadenesheli et al., ICLR 2019): least squares with a penalty rho.

RLLS minimises over theta >= -1, with the penalty of the published code (`rlls_penalty`):

    ||C theta - (mu - C 1)|| + rho ||theta||,   w = 1 + theta

Both estimates are badly wrong if anything besides the class frequencies changed. So covcal uses
BBSE and RLLS only on request.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from covcal_cli.arrays import Booleans, Float64s
from covcal_cli.errors import CovcalError, one_line
from covcal_cli.estimators.guards import condition
from covcal_cli.estimators.inputs import EstimatorInputs
from covcal_cli.files import require_file
from covcal_cli.forecast import enough_errors
from covcal_cli.maths.odds import probabilities
from covcal_cli.records import Guard, json_of

Solver = Literal["bbse", "rlls"]
_DELTA = 0.05
_ALPHA = 0.01
_LEAST_RIDGE = 1e-12  # smallest ridge, relative to the trace of C^T C
_BISECTIONS = 60
_PATIENCE = 3


@dataclass(frozen=True)
class LabelShift:
    """The change of class frequencies from source to target."""

    ratios: Float64s  # w_k, (K,); 0 for classes without a source row.
    prior: Float64s  # Class frequencies on the target, (K,).
    moved: float  # Total variation distance.
    # How far mu is from the mean prediction on the source, in standard errors.
    sigmas: float
    guards: tuple[Guard, ...]


def label_shift(inputs: EstimatorInputs, solver: Solver) -> LabelShift:
    """Estimate the class frequencies on the target by BBSE or RLLS."""
    joint, means = confusion(inputs)
    pi = np.bincount(inputs.source_labels, minlength=inputs.n_classes) / inputs.n_source
    present = np.flatnonzero(pi)
    gap = means - joint.sum(axis=1)
    joint = joint[:, present]
    if solver == "bbse":
        solved = np.linalg.lstsq(joint, means, rcond=None)[0]
    else:
        solved = 1 + rlls_theta(joint, gap, rlls_penalty(inputs))
    solved = np.maximum(solved, 0.0)
    total = float(pi[present] @ solved)
    ratios = np.zeros(inputs.n_classes)
    ratios[present] = solved / total if total > 0 else 1.0
    guards = (
        condition(float(np.linalg.cond(joint))),
        enough_errors(inputs.source_errors, inputs.n_source),
    )
    prior = pi * ratios
    moved = 0.5 * float(np.abs(prior - pi).sum())
    return LabelShift(ratios, prior, moved, _sigmas(gap, inputs), guards)


def confusion(inputs: EstimatorInputs) -> tuple[Float64s, Float64s]:
    """Return the matrix C, (K, K), with one column per label, and the vector mu, (K,)."""
    on_source = probabilities(inputs.source_logits, inputs.temperature)
    joint = np.zeros((inputs.n_classes, inputs.n_classes))
    np.add.at(joint.T, inputs.source_labels, on_source.T / inputs.n_source)
    means = probabilities(inputs.target_logits, inputs.temperature).mean(axis=1)
    return joint, means


def _sigmas(gap: Float64s, inputs: EstimatorInputs) -> float:
    noise = sum(
        float(probabilities(logits, inputs.temperature).var(axis=1).sum()) / len(logits)
        for logits in (inputs.source_logits, inputs.target_logits)
    )
    return float(np.linalg.norm(gap)) / math.sqrt(max(noise, sys.float_info.min))


def rlls_penalty(inputs: EstimatorInputs) -> float:
    """Return the penalty rho of RLLS, with the constants of the published code."""
    logs = math.log(2 * inputs.n_classes / _DELTA)
    delta = 2 * logs / (3 * inputs.n_source) + math.sqrt(2 * logs / inputs.n_source)
    return _ALPHA * 3 * delta


def rlls_theta(joint: Float64s, gap: Float64s, penalty: float) -> Float64s:
    """Minimise ||C theta - gap|| + rho ||theta|| over theta >= -1, shape (P,).

    `joint` is C, (K, P), with one column per class that has source rows. The minimum is found by
    ridge regressions, whose penalty is adjusted by bisection.
    """
    gram, slope = joint.T @ joint, joint.T @ gap
    if np.linalg.norm(slope) <= penalty * np.linalg.norm(gap):
        return np.zeros(len(slope))
    scale = float(np.trace(gram))
    low, high = math.log(_LEAST_RIDGE * scale), math.log(scale / _LEAST_RIDGE)
    free = np.ones(len(slope), dtype=bool)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        ridge = math.exp(middle)
        theta, free = _bounded(gram + ridge * np.eye(len(slope)), slope, free)
        residual = float(np.linalg.norm(joint @ theta - gap))
        if ridge * float(np.linalg.norm(theta)) < penalty * residual:
            low = middle
        else:
            high = middle
    return theta


def _bounded(hessian: Float64s, slope: Float64s, free: Booleans) -> tuple[Float64s, Booleans]:
    """Minimise theta H theta / 2 - slope theta for theta >= -1, by block principal pivoting.

    Return theta, and which elements of theta are above -1. Source: Judice and Pires 1994.
    """
    fewest, patience = len(slope) + 1, _PATIENCE
    tolerance = 1e-12 * float(np.abs(hessian).max())
    while True:
        theta = np.full(len(slope), -1.0)
        pull = slope + hessian[:, ~free].sum(axis=1)
        theta[free] = np.linalg.solve(hessian[np.ix_(free, free)], pull[free])
        wrong = np.where(free, theta < -1, slope - hessian @ theta > tolerance)
        count = int(wrong.sum())
        if count == 0:
            return theta, free
        patience = _PATIENCE if count < fewest else patience - 1
        fewest = min(fewest, count)
        if patience < 0:
            wrong[: int(np.flatnonzero(wrong)[-1])] = False
        free = free ^ wrong


BBSE: Final = "bbse"
_TOLERANCE = 1e-3


def target_prior(value: str, inputs: EstimatorInputs, classes: Sequence[str]) -> Float64s | None:
    """Return the class frequencies for a value of ``--target-prior``, (K,), or None for "source".

    `value` is "source", "uniform", "bbse" or the path of a JSON file. Raises `CovcalError` if the
    file is missing or invalid.
    """
    if value == BBSE:
        return label_shift(inputs, BBSE).prior
    return given_prior(value, classes)


def given_prior(value: str, classes: Sequence[str]) -> Float64s | None:
    """Return the class frequencies for every value of ``--target-prior`` except "bbse"."""
    if value == "source":
        return None
    if value == "uniform":
        return np.full(len(classes), 1 / len(classes))
    return _read(Path(value), classes)


def _read(path: Path, classes: Sequence[str]) -> Float64s:
    require_file(path, remedy='give source, uniform, bbse or a JSON file like {"cat": 0.3, ...}')
    try:
        shares = json_of(path)
    except ValueError as error:
        raise CovcalError(
            f'{path} is not JSON ({one_line(error)}): write {{"{classes[0]}": 0.3, ...}}'
        ) from error
    if not isinstance(shares, dict):
        raise CovcalError(f'{path} must give every class a share, like {{"{classes[0]}": 0.3}}')
    for name in classes:
        if name not in shares:
            raise CovcalError(f"{path} has no share for class {name}: give every class a share")
    for name, share in shares.items():
        if name not in classes:
            raise CovcalError(
                f"{path} has a share for {name}, but the model has no such class: remove it"
            )
        if isinstance(share, bool) or not isinstance(share, int | float):
            raise CovcalError(f"{path}: the share of {name} is {share!r}: give a number")
        if not 0 <= share <= sys.float_info.max:
            raise CovcalError(f"{path}: the share of {name} is {str(share)[:20]}: give 0 or more")
    values = np.array([float(shares[name]) for name in classes])
    if abs(values.sum() - 1) > _TOLERANCE:
        raise CovcalError(
            f"{path}: the shares sum to {values.sum():.6g}, not to 1: give each class its share of "
            "the target's rows"
        )
    return np.asarray(values / values.sum())
