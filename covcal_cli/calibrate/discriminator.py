"""The logistic source discriminator on features (MATHEMATICS, section 1), solved in NumPy.

It equals scikit-learn's ``LogisticRegression(C=1/ridge)`` with sample weights 1/(2 n_domain) on the
same standardised features. Rows are read in blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import Float32s, Float64s, Rows
from covcal_cli.errors import CovcalError
from covcal_cli.formats.features import Domain
from covcal_cli.maths.logistic import fit_logistic

MAX_ROWS_PER_DOMAIN = 50_000


@dataclass(frozen=True)
class LogisticDiscriminator:
    """P(source | phi) = sigmoid(coefficients . (phi - mean) / scale + intercept)."""

    mean: Float64s  # (d,), as scale and coefficients
    scale: Float64s
    coefficients: Float64s
    intercept: float

    def logits(self, features: Float32s) -> Float64s:
        """Return the logit of "came from the source", shape (m,), of features (m, d)."""
        standardised: Float64s = (features - self.mean) / self.scale
        logits: Float64s = standardised @ self.coefficients + self.intercept
        return logits

    def domain_logits(self, domain: Domain, rows: Rows) -> Float64s:
        """Return the logits of `rows` of a domain, read block by block."""
        return np.concatenate(
            [self.logits(domain.features(block)) for block in domain.blocks(rows)]
        )


def fit_discriminator(source: Domain, target: Domain, *, seed: int = 0) -> LogisticDiscriminator:
    """Fit the discriminator on the training rows of both domains.

    `seed` chooses 50 000 rows of a larger domain.
    """
    rows = []
    for domain in (source, target):
        domain.require_any("train")
        rows.append((domain, domain.drawn(MAX_ROWS_PER_DOMAIN, seed, "train")))
    # Features are standardised, so that the ridge treats all of them alike.
    mean, scale = _moments(rows)
    weights = fit_logistic(
        lambda: (((values - mean) / scale, kind, weight) for values, kind, weight in _blocks(rows)),
        len(mean),
    )
    if weights is None:
        raise CovcalError(
            f"{source.path}: the source discriminator did not converge: look for features of "
            "extreme size"
        )
    return LogisticDiscriminator(mean, scale, weights[:-1], float(weights[-1]))


def _blocks(rows: list[tuple[Domain, Rows]]) -> Iterator[tuple[Float32s, float, float]]:
    """Yield features (m, d), s (1 source, 0 target) and the weight of every row in the block."""
    for is_source, (domain, chosen) in zip((1.0, 0.0), rows, strict=True):
        for block in domain.blocks(chosen):
            yield domain.features(block), is_source, 0.5 / len(chosen)


def _moments(rows: list[tuple[Domain, Rows]]) -> tuple[Float64s, Float64s]:
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
