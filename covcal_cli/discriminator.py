"""The logistic source discriminator on features (paper Section 5.1), solved exactly in NumPy.

Class-balanced cross-entropy (each domain weighs one half) plus a small ridge on standardised
features, intercept unpenalised: convex, one answer, no seed. It equals scikit-learn's
``LogisticRegression(C=1/ridge)`` with sample weights 1/(2 n_domain) on the same standardised
features. Rows are read in blocks; the Hessian alone is accumulated from float32 products, which
changes the path of Newton's method but not where it ends.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.featurefile import Domain, Rows
from covcal_cli.softmax import Array

RIDGE = 1e-3
MAX_ROWS_PER_DOMAIN = 50_000
_TOLERANCE = 1e-10
_MAX_STEPS = 60


@dataclass(frozen=True)
class LogisticDiscriminator:
    """P(source | phi) = sigmoid(coefficients . (phi - mean) / scale + intercept).

    Attributes
    ----------
    mean, scale, coefficients : arrays of float64, shape (d,)
    intercept : float
    """

    mean: Array
    scale: Array
    coefficients: Array
    intercept: float

    def logits(self, features: NDArray[np.float32]) -> Array:
        """Return the logit of "came from the source", shape (m,), of features (m, d)."""
        standardised: Array = (features - self.mean) / self.scale
        logits: Array = standardised @ self.coefficients + self.intercept
        return logits

    def domain_logits(self, domain: Domain, rows: Rows) -> Array:
        """Return the logits of `rows` of a domain, read block by block."""
        return np.concatenate(
            [self.logits(domain.features(block)) for block in domain.blocks(rows)]
        )


def fit_discriminator(
    source: Domain, target: Domain, *, ridge: float = RIDGE, seed: int = 0
) -> LogisticDiscriminator:
    """Fit the discriminator on the training rows of both domains.

    Parameters
    ----------
    source, target : Domain
        With features; at most 50 000 seeded training rows of each are used.
    ridge : float
        Weight of ||coefficients||^2 / 2 beside the balanced mean cross-entropy.
    seed : int
        Chooses the rows where there are more.

    Raises
    ------
    CovcalError
        If a domain has no features or no training rows, or the fit does not converge.
    """
    rows = [(domain, _training_rows(domain, seed)) for domain in (source, target)]
    mean, scale = _moments(rows)
    weights: Array = np.zeros(len(mean) + 1)
    value = np.inf
    step = np.zeros_like(weights)
    for _ in range(_MAX_STEPS):
        trial, slope, hessian = _derivatives(rows, mean, scale, weights, ridge)
        if trial > value:  # overshot: go half of the last step back
            step /= 2
            weights -= step
            continue
        value = trial
        step = np.linalg.solve(hessian, -slope).astype(np.float64)
        weights += step
        if -np.dot(slope, step) < _TOLERANCE:
            return LogisticDiscriminator(mean, scale, weights[:-1], float(weights[-1]))
    raise CovcalError(
        f"{source.path}: the source discriminator did not converge: look for features of "
        "extreme size"
    )


def _training_rows(domain: Domain, seed: int) -> Rows:
    rows = domain.require_rows("train")
    if len(rows) <= MAX_ROWS_PER_DOMAIN:
        return rows
    chosen = np.random.default_rng(seed).choice(rows, MAX_ROWS_PER_DOMAIN, replace=False)
    return np.sort(chosen)


def _blocks(
    rows: list[tuple[Domain, Rows]],
) -> Iterator[tuple[NDArray[np.float32], float, float]]:
    """Yield features (m, d), s (1 source, 0 target) and the weight of every row in the block."""
    for is_source, (domain, chosen) in zip((1.0, 0.0), rows, strict=True):
        for block in domain.blocks(chosen):
            yield domain.features(block), is_source, 0.5 / len(chosen)


def _moments(rows: list[tuple[Domain, Rows]]) -> tuple[Array, Array]:
    """Return mean and standard deviation of the features, each domain weighing one half.

    Squares are taken around the first row, so that a large common offset costs no digits.
    """
    domain, chosen = rows[0]
    origin = domain.features(chosen[:1])[0].astype(np.float64)
    first, second = np.zeros_like(origin), np.zeros_like(origin)
    for features, _, weight in _blocks(rows):
        values = features - origin
        first += weight * values.sum(axis=0)
        second += weight * np.einsum("md,md->d", values, values)
    deviation = np.sqrt(np.maximum(second - first**2, 0.0))
    constant = deviation <= 1e-7 * np.abs(origin + first)
    return origin + first, np.where(constant, 1.0, deviation)


def _derivatives(
    rows: list[tuple[Domain, Rows]], mean: Array, scale: Array, weights: Array, ridge: float
) -> tuple[float, Array, Array]:
    """Return the objective, its gradient and its Hessian at `weights` (coefficients, intercept)."""
    penalty = np.full(len(weights), ridge)
    penalty[-1] = 0.0
    value = 0.5 * float(np.dot(penalty, weights**2))
    slope = penalty * weights
    hessian = np.diag(penalty)
    for features, is_source, weight in _blocks(rows):
        inputs = np.ones((len(features), len(weights)))
        inputs[:, :-1] = (features - mean) / scale
        logits = inputs @ weights
        signed = -logits if is_source else logits
        value += weight * float(np.logaddexp(0.0, signed).sum())
        probability = 0.5 * (1 + np.tanh(0.5 * logits))
        slope += weight * (inputs.T @ (probability - is_source))
        curvature = np.sqrt(weight * probability * (1 - probability))
        scaled = (inputs * curvature[:, None]).astype(np.float32)
        hessian += scaled.T @ scaled
    return value, slope, hessian
