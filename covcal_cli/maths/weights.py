"""Compute importance weights from the logits of a source discriminator, and check them.

The discriminator estimates the probability g(x) that x is from the source, with equal weights of
both domains. The importance weight is the density ratio q/p = 1/g - 1. The logits of g are divided
by T_g first, and the weights are clipped (MATHEMATICS, sections 2, 3, 8 and 9).

For a features file, the discriminator is a ridge logistic regression, fitted by Newton's method
(MATHEMATICS, section 1).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import Float64s, Floats, one_blas_thread
from covcal_cli.maths.odds import sigmoid
from covcal_cli.maths.temperature import TemperatureFit, fit_temperature

DEFAULT_MAX_WEIGHT = 1000.0
FIT_OFFSET = 0.5  # Theorem 1.
# A function that yields blocks: standardised inputs (m, d), class (1 or 0), and weight of a row.
Blocks = Callable[[], Iterator[tuple[Floats, float, float]]]
RIDGE = 1e-3
_TOLERANCE = 1e-10
_MAX_STEPS = 60


@dataclass(frozen=True)
class WeightHealth:
    """Measures of the quality of importance weights. Shares are fractions of the n rows."""

    n: int
    # Effective sample size of the importance weights, and of the weights for fitting T_f.
    ess: float
    ess_share: float
    ess_fit: float
    ess_fit_share: float
    mean_weight: float  # The mean weight is near 1 if the discriminator is good.
    clipped_share: float
    largest_share: float
    # AUROC of the discriminator; 0.5 if the domains are the same.
    domain_auc: float
    # Squared error of g. Guessing gives 0.25.
    discriminator_error: float


@dataclass(frozen=True)
class ImportanceWeights:
    """Importance weights of source validation rows, with the fitted T_g and quality measures."""

    weights: Float64s
    temperatures: tuple[TemperatureFit, ...]
    health: WeightHealth

    @property
    def fit_weights(self) -> Float64s:
        """The weights for fitting T_f, a = 1/g - 1/2, shape (n,)."""
        return self.weights + FIT_OFFSET


def importance_weights(
    source_logits: Floats, target_logits: Floats, *, max_weight: float = DEFAULT_MAX_WEIGHT
) -> ImportanceWeights:
    """Return the importance weights of source validation rows.

    The arguments are logits of M discriminators on source rows, (M, n), and on target rows, (M,
    n_t), all from validation. `max_weight` is U, at least 1.
    """
    members = list(zip(source_logits, target_logits, strict=True))
    fits = tuple(fit_discriminator_temperature(source, target) for source, target in members)
    tempered = [
        (source / fit.temperature, target / fit.temperature)
        for (source, target), fit in zip(members, fits, strict=True)
    ]
    on_source = np.mean([weights_of(logits, max_weight) for logits, _ in tempered], axis=0)
    on_target = np.mean([weights_of(logits, max_weight) for _, logits in tempered], axis=0)
    health = WeightHealth(
        n=len(on_source),
        ess=effective_sample_size(on_source),
        ess_share=effective_sample_size(on_source) / len(on_source),
        ess_fit=effective_sample_size(on_source + FIT_OFFSET),
        ess_fit_share=effective_sample_size(on_source + FIT_OFFSET) / len(on_source),
        mean_weight=float(on_source.mean()),
        clipped_share=float((on_source >= max_weight).mean()),
        largest_share=float(on_source.max() / max(on_source.sum(), np.finfo(float).tiny)),
        domain_auc=_auc(
            np.mean([logits for logits, _ in tempered], axis=0),
            np.mean([logits for _, logits in tempered], axis=0),
        ),
        discriminator_error=discriminator_error(1 / (1 + on_source), 1 / (1 + on_target)),
    )
    return ImportanceWeights(on_source, fits, health)


def fit_discriminator_temperature(source_logits: Floats, target_logits: Floats) -> TemperatureFit:
    """Fit T_g by the squared error, with equal weights of both domains (MATHEMATICS, section 2).

    The squared error (s - sigmoid(l/T))^2 is half the Brier score of the logits (0, l). The
    arguments are logits of validation rows, (n_s,) and (n_t,).
    """
    sizes = len(source_logits), len(target_logits)
    logits = np.concatenate([source_logits, target_logits]).astype(np.float64)
    is_source = np.repeat([1, 0], sizes)
    weights = np.repeat([0.5 / size for size in sizes], sizes)
    return fit_temperature(np.stack([np.zeros_like(logits), logits], axis=1), is_source, weights)


def weights_of(tempered_logits: Floats, max_weight: float) -> Float64s:
    """Return the importance weights exp(-l/T_g), clipped to [0, U], from the logits l/T_g."""
    logs = -np.asarray(tempered_logits, dtype=np.float64)
    limit = np.log(max_weight)
    return np.where(logs >= limit, max_weight, np.exp(np.minimum(logs, limit)))


def effective_sample_size(weights: Float64s) -> float:
    """Return the effective sample size (sum w)^2 / sum w^2."""
    scale = float(weights.max(initial=0.0))
    if scale == 0:
        return 0.0
    relative = weights / scale
    return float(relative.sum() ** 2 / (relative * relative).sum())


def discriminator_error(on_source: Float64s, on_target: Float64s) -> float:
    """Return the mean squared error of the discriminator, with equal weights of both domains."""
    return float(0.5 * np.mean((1 - on_source) ** 2) + 0.5 * np.mean(on_target**2))


def _auc(source_scores: Float64s, target_scores: Float64s) -> float:
    ordered = np.sort(target_scores)
    below = np.searchsorted(ordered, source_scores, side="left")
    not_above = np.searchsorted(ordered, source_scores, side="right")
    return float((below + not_above).mean() / (2 * len(ordered)))


@dataclass(frozen=True)
class BoundTerms:
    """The terms of the error bound in Theorem 1.

    One term is unknown, so its upper bound is used. An error bound of 1 or more is useless.
    """

    weighted_error: float  # Mean weighted loss of source validation rows.
    discriminator_error: float
    max_weight: float
    factor: float  # lambda = (1+U)^3
    bound: float
    vacuous: bool


def bound_terms(
    fit_weights: Float64s, brier: Float64s, discriminator_error: float, max_weight: float
) -> BoundTerms:
    """Compute the terms of the error bound in Theorem 1.

    `fit_weights`, (n,), are the weights 1/g - 1/2 of source validation rows; g is the output of the
    discriminator. `brier`, (n,), are the Brier scores of the same rows, from 0 to 2. The true q/p
    is assumed to be at most U.
    """
    weighted = float(np.mean(fit_weights * brier) / 2)
    factor = (1 + max_weight) ** 3
    bound = weighted + factor * discriminator_error
    return BoundTerms(weighted, discriminator_error, max_weight, factor, bound, bound >= 1)


@one_blas_thread()
def fit_logistic(blocks: Blocks, width: int) -> Float64s | None:
    """Fit a logistic regression.

    Return d coefficients and the intercept, (d + 1,), or None without convergence.
    """
    return newton(lambda weights: _derivatives(blocks, weights), np.zeros(width + 1))


def newton(
    derivatives: Callable[[Float64s], tuple[float, Float64s, Float64s]], start: Float64s
) -> Float64s | None:
    """Minimise a convex function by Newton's method.

    `derivatives` maps a point to value, gradient and Hessian. Returns None without convergence.
    """
    point = start.copy()
    step = np.zeros_like(point)
    value = np.inf
    for _ in range(_MAX_STEPS):
        trial, slope, hessian = derivatives(point)
        if trial > value:
            step /= 2
            point -= step
            continue
        value = trial
        step = np.linalg.solve(hessian, -slope).astype(np.float64)
        point += step
        if -np.dot(slope, step) < _TOLERANCE:
            return point
    return None


def _derivatives(blocks: Blocks, weights: Float64s) -> tuple[float, Float64s, Float64s]:
    penalty = np.full(len(weights), RIDGE)
    penalty[-1] = 0.0
    value = 0.5 * float(np.dot(penalty, weights**2))
    slope = penalty * weights
    hessian = np.diag(penalty)
    for block, kind, weight in blocks():
        inputs = np.ones((len(block), len(weights)))
        inputs[:, :-1] = block
        logits = inputs @ weights
        value += weight * float(np.logaddexp(0.0, -logits if kind else logits).sum())
        probability = sigmoid(logits)
        slope += weight * (inputs.T @ (probability - kind))
        curvature = np.sqrt(weight * probability * (1 - probability))
        scaled = (inputs * curvature[:, None]).astype(np.float32)
        hessian += scaled.T @ scaled
    return value, slope, hessian
