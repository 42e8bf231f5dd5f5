"""The terms of the paper's Theorem 1: what the target error is bounded by, in numbers.

In units of L = ||fhat - y||^2 / 2, which lies in [0, 1], for weights q/p <= U and g clipped to
[1/(1+U), 1]:

    E_target[L] <= E_source[(1/g - 1/2) L] + (1+U)^3 E_r[(g* - g)^2],   r = (source + target)/2

The paper states it with (1+U)^4 and proves it from L = ||fhat - y||^2 <= 1, which one-hot labels
violate; the cube suffices: with B = 2 L <= 2 and D = w* - w, B (D - 1/2) <= max(0, 2 D - 1) <= D^2,
and E_source[D^2] <= 2 (1+U)^3 E_r[(g* - g)^2]. The last term is unknown, but
E_r[(g* - g)^2] = E_r[(g - s)^2] - E_r[(g* - s)^2], whose second part is at least 0; leaving it out
gives a bound that holds and is weaker.
"""

from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import Float64s


@dataclass(frozen=True)
class BoundTerms:
    """Theorem 1 in units of L; the bound says nothing when it is 1 or more."""

    weighted_error: float  # mean over source validation rows of (1/g - 1/2) L
    # 1/2 mean_source (1-g)^2 + 1/2 mean_target g^2, the valid stand-in for E_r[(g* - g)^2].
    discriminator_error: float
    max_weight: float  # U
    factor: float  # lambda = (1+U)^3
    bound: float  # weighted_error + factor * discriminator_error
    vacuous: bool  # whether it is 1 or more


def bound_terms(
    fit_weights: Float64s, brier: Float64s, discriminator_error: float, max_weight: float
) -> BoundTerms:
    """Return the terms of Theorem 1.

    `fit_weights`, shape (n,), are a = 1/g - 1/2 of source validation rows, `brier`, shape (n,), is
    ||fhat - y||^2 of the same rows under the calibrated forecaster, in [0, 2]. The squared error of
    g weighs each domain one half; the true q/p is assumed not to exceed U.
    """
    weighted = float(np.mean(fit_weights * brier) / 2)
    factor = (1 + max_weight) ** 3
    bound = weighted + factor * discriminator_error
    return BoundTerms(weighted, discriminator_error, max_weight, factor, bound, bound >= 1)
