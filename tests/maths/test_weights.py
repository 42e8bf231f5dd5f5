"""Importance weights from domain logits: formulas, limits, health, and T_g."""

import math
from dataclasses import asdict

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import expit

from covcal_cli.maths.weights import (
    ImportanceWeights,
    discriminator_error,
    effective_sample_size,
    fit_discriminator_temperature,
    importance_weights,
    weights_of,
)
from tests.made_files import log_odds

Floats = NDArray[np.float64]


def gaussian_shift(
    shift: float = 1.0, n: int = 4000, n_target: int = 3000, factor: float = 1.0
) -> tuple[Floats, Floats, Floats]:
    """Return `factor` times the exact log odds of N(0,1) and N(shift,1) rows, and true weights."""
    rng = np.random.default_rng(0)
    source, target = rng.normal(size=n), rng.normal(size=n_target) + shift
    odds = log_odds(source, shift)
    return factor * odds, factor * log_odds(target, shift), np.exp(-odds)


def weighted(source: Floats, target: Floats, max_weight: float = 1000.0) -> ImportanceWeights:
    return importance_weights(source[None], target[None], max_weight=max_weight)


def squared_error(log_t: float, source: Floats, target: Floats) -> float:
    """Return 1/2 mean_source (1 - g)^2 + 1/2 mean_target g^2 at g = sigmoid(l/T)."""
    on_source, on_target = expit(source / math.exp(log_t)), expit(target / math.exp(log_t))
    return float(((1 - on_source) ** 2).mean() / 2 + (on_target**2).mean() / 2)


@pytest.mark.parametrize("factor", [0.02, 0.5, 1.0, 3.0, 100.0])
@pytest.mark.parametrize("sizes", [(400, 300), (40, 900), (900, 40)])
def test_t_g_minimises_the_balanced_squared_error(factor: float, sizes: tuple[int, int]) -> None:
    """T_g equals SciPy's minimum of its own formula, each domain one half whatever its size."""
    source, target, _ = gaussian_shift(1.0, *sizes, factor)
    fit = fit_discriminator_temperature(source, target)
    near = math.log(factor)
    best = minimize_scalar(
        squared_error,
        bounds=(near - 2, near + 2),
        args=(source, target),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert fit.temperature == pytest.approx(math.exp(best.x), rel=1e-4)
    assert fit.loss / 2 == pytest.approx(best.fun, rel=1e-6)


def test_float32_logits_are_as_good_as_float64() -> None:
    """Stored float32 logits give the same T_g and the same weights as float64 logits."""
    source, target, _ = gaussian_shift(factor=3.0)
    exact = weighted(source, target)
    stored = importance_weights(
        source.astype(np.float32)[None], target.astype(np.float32)[None], max_weight=1000.0
    )
    assert stored.temperatures[0].temperature == pytest.approx(
        exact.temperatures[0].temperature, rel=1e-5
    )
    assert stored.weights == pytest.approx(exact.weights, rel=1e-4)


@pytest.mark.parametrize("value", [-2.0, 0.0, 2.0])
def test_no_shift_gives_weights_of_one(value: float) -> None:
    """A discriminator that says the same everywhere: weights 1 to 1e-3, and no sharpening."""
    found = weighted(np.full(50, value), np.full(70, value))
    assert found.weights == pytest.approx(np.ones(50), abs=1e-3)
    assert found.health.domain_auc == 0.5
    assert found.temperatures[0].at_limit == ("upper" if value else None)


def test_a_discriminator_that_is_worse_than_chance_counts_as_none() -> None:
    """Logits that lean the wrong way: T_g at its upper limit, all weights 1, nothing inverted."""
    source, target, _ = gaussian_shift()
    found = weighted(-source, -target)
    assert found.temperatures[0].at_limit == "upper"
    assert found.weights == pytest.approx(np.ones(len(source)), abs=1e-2)
    assert found.health.ess_share == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("factor", [0.1, 1.0, 5.0])
def test_the_exact_odds_give_the_true_weights_whatever_their_sharpness(factor: float) -> None:
    """T_g undoes a constant over-confidence: weights near q/p, mean near 1, AUC near 0.760."""
    source, target, truth = gaussian_shift(factor=factor)
    found = weighted(source, target)
    assert found.temperatures[0].temperature == pytest.approx(factor, rel=0.1)
    assert found.weights == pytest.approx(truth, rel=0.3)
    assert np.corrcoef(found.weights, truth)[0, 1] > 0.995
    assert found.health.mean_weight == pytest.approx(1, abs=0.1)
    assert found.health.domain_auc == pytest.approx(0.760, abs=0.02)


def test_weights_are_one_over_g_minus_one() -> None:
    """w = exp(-l): equal to 1/g - 1, in [0, U], and exactly U where it is cut."""
    logits = np.array([-4.0, -1.0, 0.0, 0.5, 20.0])
    assert weights_of(logits, 1000.0) == pytest.approx(1 / expit(logits) - 1, rel=1e-7)
    assert weights_of(logits, 2.0).tolist()[:2] == [2.0, 2.0]
    assert weights_of(logits, 2.0)[2:] == pytest.approx(np.exp(-logits[2:]))


@pytest.mark.parametrize("max_weight", [1.0, 5.0, 1000.0, 1e12])
def test_g_is_clipped_so_that_no_weight_exceeds_the_maximum(max_weight: float) -> None:
    """Weights lie in [0, U], a = w + 1/2 in [1/2, U + 1/2], and the share at U is reported."""
    source, target, _ = gaussian_shift(3.0, factor=8.0)
    found = weighted(source, target, max_weight)
    assert found.weights.min() >= 0
    assert found.weights.max() <= max_weight
    assert found.fit_weights.tolist() == (found.weights + 0.5).tolist()
    assert found.health.clipped_share == (found.weights == max_weight).mean()
    assert (found.health.clipped_share > 0) == (max_weight <= 5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_saturated_logits_give_finite_weights(sign: float, dtype: type[np.float32]) -> None:
    """Logits of +-1e4, all alike, mixed, or perfectly separating, overflow nowhere."""
    mixed = np.where(np.arange(60) % 3 == 0, -1e4, 1e4)
    for source, target in [
        (np.full(60, sign * 1e4), np.full(60, -sign * 1e4)),
        (np.full(60, sign * 1e4), np.full(60, sign * 1e4)),
        (sign * mixed, -sign * mixed),
    ]:
        found = weighted(source.astype(dtype), target.astype(dtype))
        assert np.isfinite(found.weights).all()
        assert 0 <= found.weights.min() <= found.weights.max() <= 1000
        assert all(math.isfinite(value) for value in asdict(found.health).values())


def test_separated_domains_have_no_effective_rows() -> None:
    """A perfect discriminator leaves weights of 0: the health says so, in finite numbers."""
    found = weighted(np.linspace(5, 9, 100), np.linspace(-9, -5, 80))
    assert found.health.mean_weight < 1e-3
    assert found.health.domain_auc == 1
    assert found.health.discriminator_error < 1e-3
    assert found.health.ess_fit_share == pytest.approx(1, abs=1e-3)


def test_members_are_tempered_alone_and_their_weights_averaged() -> None:
    """The weights of two members are the mean of what each gives on its own, with its own T_g."""
    source, target, _ = gaussian_shift(n=300, n_target=200)
    rng = np.random.default_rng(4)
    other = 5 * (source + rng.normal(size=300)), 5 * (target + rng.normal(size=200))
    alone = [weighted(source, target), weighted(*other)]
    together = importance_weights(np.stack([source, other[0]]), np.stack([target, other[1]]))
    assert together.weights == pytest.approx((alone[0].weights + alone[1].weights) / 2, rel=1e-9)
    assert together.temperatures == tuple(one.temperatures[0] for one in alone)


def test_effective_sample_sizes_follow_their_formulas() -> None:
    """ess is (sum w)^2 / sum w^2 of w, ess_fit the same of w + 1/2; shares are of n."""
    source, target, _ = gaussian_shift(1.5, n=500)
    found = weighted(source, target)
    w, health = found.weights, found.health
    a = w + 0.5
    assert health.n == 500
    assert health.ess == pytest.approx(w.sum() ** 2 / (w**2).sum())
    assert health.ess_fit == pytest.approx(a.sum() ** 2 / (a**2).sum())
    assert health.ess_share == pytest.approx(health.ess / 500)
    assert health.ess_fit_share == pytest.approx(health.ess_fit / 500)
    assert health.mean_weight == pytest.approx(w.mean())
    assert health.largest_share == pytest.approx(w.max() / w.sum())
    assert health.ess < health.ess_fit < 500


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0] * 7, 7.0),
        ([0.0, 0.0, 5.0], 1.0),
        ([1e-200, 1e-200], 2.0),
        ([1e200, 1e200, 0.0], 2.0),
        ([0.0, 0.0], 0.0),
        ([1.0, 3.0], 1.6),
    ],
)
def test_effective_sample_size_of_known_weights(values: list[float], expected: float) -> None:
    """n for equal weights of any size, 1 when one row has it all, 0 when there is no weight."""
    assert effective_sample_size(np.array(values)) == pytest.approx(expected)


def test_the_discriminator_error_is_that_of_the_clipped_member_mean() -> None:
    """The squared error in force is of g = 1/(1 + w), the g that the weights came from."""
    source, target, _ = gaussian_shift(2.0, n=200, n_target=100)
    found = weighted(source, target, 5.0)
    tempered = found.temperatures[0].temperature
    on_source = np.maximum(expit(source / tempered), 1 / 6)
    on_target = np.maximum(expit(target / tempered), 1 / 6)
    expected = ((1 - on_source) ** 2).mean() / 2 + (on_target**2).mean() / 2
    assert found.health.discriminator_error == pytest.approx(expected)
    assert discriminator_error(np.full(3, 0.5), np.full(9, 0.5)) == 0.25


@pytest.mark.parametrize("max_weight", [1.0, 2.0, 1e6])
def test_the_auc_is_the_discriminators_whatever_the_maximum(max_weight: float) -> None:
    """How well the domains can be told apart does not depend on where weights are cut."""
    source, target, _ = gaussian_shift(1.5, n=300, n_target=200)
    pairs = (source[:, None] > target).mean()
    assert weighted(source, target, max_weight).health.domain_auc == pytest.approx(pairs)
