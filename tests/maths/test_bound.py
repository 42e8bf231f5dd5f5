"""Theorem 1: the reported terms bound the target error on finite distributions, with no mercy."""

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from covcal_cli.maths.weights import bound_terms, discriminator_error

Floats = NDArray[np.float64]
TRIALS = 400


@dataclass(frozen=True)
class Finite:
    """Source and target on the same points, as rows of equal mass, so that means are exact.

    The source has one row per point; the target has `copies` rows of each.
    """

    copies: NDArray[np.int64]
    max_weight: float
    ghat: Floats

    @property
    def ratio(self) -> Floats:
        """The true q/p at every point."""
        ratio: Floats = self.copies / self.copies.mean()
        return ratio

    @property
    def true_g(self) -> Floats:
        return 1 / (1 + self.ratio)

    @property
    def fit_weights(self) -> Floats:
        return 1 / self.ghat - 0.5

    def target_mean(self, values: Floats) -> float:
        return float((self.ratio * values).mean())

    def distance(self) -> float:
        """E_r[(g* - ghat)^2] with r = (source + target)/2."""
        squares = (self.true_g - self.ghat) ** 2
        return float((squares.mean() + self.target_mean(squares)) / 2)

    def reported_error(self) -> float:
        """E_r[(ghat - s)^2], from rows as covcal computes it."""
        return discriminator_error(self.ghat, np.repeat(self.ghat, self.copies))


def drawn(rng: np.random.Generator) -> Finite:
    """Draw distributions with q/p <= U and a discriminator that is exact, near, or arbitrary."""
    points = int(rng.integers(1, 9))
    copies = rng.integers(0, int(rng.integers(2, 30)), size=points)
    copies[rng.integers(points)] += 1
    ratio = copies / copies.mean()
    max_weight = float(max(1.0, ratio.max()) * rng.choice([1.0, 1.0, 2.0, 50.0]))
    noise = rng.choice([0.0, 0.02, 0.3, 5.0]) * rng.normal(size=points)
    with np.errstate(over="ignore"):
        ghat = 1 / (1 + np.maximum(ratio, 1e-9) * np.exp(noise))
    return Finite(copies, max_weight, np.clip(ghat, 1 / (1 + max_weight), 1.0))


def forecasts(rng: np.random.Generator, made: Finite) -> list[Floats]:
    """Return B = ||fhat - y||^2 in [0, 2] per point: random, at the ends, and the worst."""
    deficit = made.ratio - (1 / made.ghat - 1)
    zero = np.zeros(len(deficit))
    return [
        rng.uniform(0, 2, size=len(deficit)),
        np.where(rng.random(len(deficit)) < 0.5, 2.0, zero),
        np.where(deficit > 0.5, 2.0, zero),
    ]


def test_the_inequality_holds_on_many_finite_distributions() -> None:
    """E_q[L] <= E_p[(1/g - 1/2) L] + (1+U)^3 E_r[(g* - g)^2], L = B/2, for every draw."""
    rng = np.random.default_rng(0)
    tight = 0
    for _ in range(TRIALS):
        made = drawn(rng)
        assert made.ratio.max() <= made.max_weight
        for brier in forecasts(rng, made):
            terms = bound_terms(made.fit_weights, brier, made.distance(), made.max_weight)
            error = made.target_mean(brier / 2)
            assert error <= terms.bound * (1 + 1e-9) + 1e-12
            tight += error > 0.5 * terms.bound
    assert tight > 5  # the draws do come near the bound


def test_the_reported_bound_holds_and_is_weaker() -> None:
    """With E_r[(g - s)^2] for the unknown E_r[(g* - g)^2] the bound holds, and is larger."""
    rng = np.random.default_rng(1)
    for _ in range(TRIALS):
        made = drawn(rng)
        reported = made.reported_error()
        assert reported >= made.distance() - 1e-12
        noise_floor = float((made.true_g * (1 - made.true_g) * (1 + made.ratio)).mean() / 2)
        assert reported == pytest.approx(made.distance() + noise_floor)
        for brier in forecasts(rng, made):
            terms = bound_terms(made.fit_weights, brier, reported, made.max_weight)
            assert made.target_mean(brier / 2) <= terms.bound


def test_an_exact_discriminator_costs_half_the_source_error_and_no_more() -> None:
    """With g = g* the last term is 0 and the bound is the target error plus half the source's."""
    rng = np.random.default_rng(2)
    for _ in range(60):
        made = drawn(rng)
        exact = Finite(made.copies, made.max_weight, made.true_g)
        brier = rng.uniform(0, 2, size=len(made.copies))
        terms = bound_terms(exact.fit_weights, brier, exact.distance(), exact.max_weight)
        expected = exact.target_mean(brier / 2) + brier.mean() / 4
        assert terms.bound == pytest.approx(expected)


def test_the_terms_follow_their_formulas() -> None:
    """Weighted error in units of L = B/2, lambda = (1+U)^3, and their sum."""
    terms = bound_terms(np.array([0.5, 1.5]), np.array([0.2, 0.4]), 0.01, 1.0)
    assert terms.weighted_error == pytest.approx((0.5 * 0.1 + 1.5 * 0.2) / 2)
    assert terms.factor == 8
    assert terms.bound == pytest.approx(terms.weighted_error + 0.08)
    assert not terms.vacuous
    assert terms.discriminator_error == 0.01
    assert terms.max_weight == 1.0


@pytest.mark.parametrize(("brier", "vacuous"), [(0.99, False), (1.0, True), (2.0, True)])
def test_a_bound_of_one_or_more_is_called_vacuous(brier: float, vacuous: bool) -> None:
    """L is at most 1, so a bound of 1 says nothing: `vacuous` from exactly 1 on."""
    terms = bound_terms(np.array([2.0]), np.array([brier]), 0.0, 1.0)
    assert terms.bound == brier
    assert terms.vacuous is vacuous
