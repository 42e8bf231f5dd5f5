"""Masked classes and overflowed rows: T as without them, and never a loss above that at T = 1."""

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import log_softmax

from covcal_cli.maths.softmax import MOST_NLL, mask_depth, masked
from covcal_cli.maths.temperature import Loss, fit_temperature
from covcal_cli.maths.weights import fit_discriminator_temperature

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.int64]
LOSSES: tuple[Loss, ...] = ("brier", "nll")
LOWEST = float(np.finfo(np.float32).min)
MASKS = (-np.inf, LOWEST, -1e9, -1e6, -65504.0, -1e4)


def rows_of(n: int = 400, classes: int = 4, seed: int = 1) -> tuple[Floats, Labels]:
    """Return twice the true logits, and labels."""
    rng = np.random.default_rng(seed)
    truth = 1.5 * rng.normal(size=(n, classes))
    return 2 * truth, (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)


def mean_loss(logits: Floats, labels: Labels, weights: Floats, t: float, loss: Loss) -> float:
    """Return the weighted loss from its definition, rows of a masked class counting 708."""
    logs = log_softmax(logits.astype(np.float64) / t, axis=1)
    right = logs[np.arange(len(labels)), labels]
    brier = np.exp(2 * logs).sum(axis=1) - 2 * np.exp(right) + 1
    rows = np.minimum(-right, MOST_NLL) if loss == "nll" else brier
    return float(rows @ weights / weights.sum())


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("value", MASKS)
def test_a_masked_column_counts_as_left_out(value: float, loss: Loss) -> None:
    """T and both losses are the same as without the class, whatever constant masks it."""
    logits, labels = rows_of()
    alone = fit_temperature(logits, labels, loss=loss)
    both = np.insert(logits, 2, value, axis=1)
    fit = fit_temperature(both, labels + (labels >= 2), loss=loss)
    assert fit.temperature == pytest.approx(alone.temperature, rel=1e-6)
    assert fit.loss == pytest.approx(alone.loss, rel=1e-6)
    assert fit.loss_at_one == pytest.approx(alone.loss_at_one, rel=1e-6)
    assert (fit.at_limit, fit.ruled_out) == (None, 0)


@cache
def masked_by_row() -> tuple[Floats, Labels, NDArray[np.bool_]]:
    """Return logits, labels and other masked classes in other rows, most of ten in some."""
    logits, labels = rows_of(classes=10)
    rng = np.random.default_rng(3)
    out = rng.random(logits.shape) < rng.choice([0.1, 0.9], size=(len(logits), 1))
    out[np.arange(len(labels)), labels] = False
    out[:100] |= np.arange(10) != labels[:100, None]  # and all but the right one in a quarter
    return logits, labels, out


@cache
def temperature_without_masked(loss: Loss) -> float:
    """Return the T for infinite masks, after a check that it is the best of a grid."""
    logits, labels, out = masked_by_row()
    clean = np.where(out, -np.inf, logits)
    reference = fit_temperature(clean, labels, loss=loss)
    grid = np.exp(np.linspace(math.log(0.2), math.log(20), 400))
    losses = [mean_loss(clean, labels, np.ones(len(labels)), t, loss) for t in grid]
    assert reference.temperature == pytest.approx(grid[int(np.argmin(losses))], rel=0.02)
    assert reference.loss == pytest.approx(min(losses), rel=1e-3)
    return reference.temperature


@pytest.mark.parametrize(("loss", "added"), [("brier", False), ("nll", True)])
@pytest.mark.parametrize("value", MASKS)
def test_masks_that_differ_by_row_count_as_left_out(value: float, added: bool, loss: Loss) -> None:
    """T is that of the classes that are not masked."""
    logits, labels, out = masked_by_row()
    filled = np.where(out, value + logits if added else value, logits).astype(np.float32)
    fit = fit_temperature(filled, labels, loss=loss)
    assert fit.temperature == pytest.approx(temperature_without_masked(loss), rel=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("rows", [1, 10])
def test_overflowed_rows_hardly_move_t(rows: int, right: bool, loss: Loss) -> None:
    """Rows with a logit of 1e8, right or wrong, tell nothing of T."""
    logits, labels = rows_of()
    alone = fit_temperature(logits[rows:], labels[rows:], loss=loss)
    chosen = labels[:rows] if right else (labels[:rows] + 1) % 4
    logits[np.arange(rows), chosen] = 1e8
    fit = fit_temperature(logits, labels, loss=loss)
    assert fit.temperature == pytest.approx(alone.temperature, rel=1e-5)
    assert fit.ruled_out == (0 if right else rows)


@pytest.mark.parametrize("value", MASKS)
def test_rows_whose_own_class_is_masked_have_no_say(value: float) -> None:
    """Such a row counts the same at every T, under either loss, and is counted."""
    logits, labels = rows_of(classes=5)
    own = np.random.default_rng(4).choice(len(labels), 60, replace=False)
    kept = np.setdiff1d(np.arange(len(labels)), own)
    logits[own, labels[own]] = value
    nll = fit_temperature(logits, labels, loss="nll")
    alone = fit_temperature(logits[kept], labels[kept], loss="nll")
    assert nll.temperature == pytest.approx(alone.temperature, rel=1e-5)
    expected = (len(kept) * alone.loss + len(own) * MOST_NLL) / len(labels)
    assert nll.loss == pytest.approx(expected, rel=1e-6)
    brier = fit_temperature(logits, labels)
    assert nll.ruled_out == brier.ruled_out == len(own)
    assert brier.temperature == pytest.approx(
        fit_temperature(np.where(logits <= value, -np.inf, logits), labels).temperature, rel=1e-5
    )


def test_a_model_in_large_units_has_no_masks() -> None:
    """Margins of thousands, as naive Bayes has them, are sizes: T is in their units."""
    logits, labels = rows_of(classes=6)
    one = fit_temperature(logits, labels)
    many = fit_temperature(3e4 * logits, labels)
    assert many.temperature == pytest.approx(3e4 * one.temperature, rel=1e-5)
    assert not masked(3e4 * logits).any()
    assert mask_depth(3e4 * logits) > 10 * float(np.ptp(3e4 * logits))


def test_only_one_class_in_every_row_gives_one() -> None:
    """Where every row allows one class alone, T changes nothing."""
    labels = np.arange(20) % 3
    logits = np.where(labels[:, None] == np.arange(3), 1.0, -np.inf)
    fit = fit_temperature(logits, labels)
    assert (fit.temperature, fit.loss, fit.at_limit) == (1.0, 0.0, None)


def test_a_saturated_discriminator_keeps_its_temperature() -> None:
    """A source discriminator that overflows on one row has the T_g of the others."""
    rng = np.random.default_rng(0)
    source, target = rng.normal(1, 2, size=300), rng.normal(-1, 2, size=300)
    alone = fit_discriminator_temperature(source, target)
    source[0] = 1e12
    assert fit_discriminator_temperature(source, target).temperature == pytest.approx(
        alone.temperature, rel=0.02
    )


def adversarial_rows(rng: np.random.Generator) -> tuple[Floats, Labels]:
    """Return logits of any size with masks, overflows, ties and constant rows among them."""
    n, classes = int(rng.integers(1, 80)), int(rng.integers(2, 8))
    logits = rng.normal(size=(n, classes)) * 10.0 ** rng.uniform(-4, 6)
    if rng.random() < 0.5:
        logits *= 10.0 ** rng.uniform(-3, 3, size=(n, 1))
    if rng.random() < 0.4:
        logits = np.round(logits)
    if rng.random() < 0.5:
        out = rng.random(logits.shape) < rng.random()
        out[np.arange(n), logits.argmax(axis=1)] = False
        logits = np.where(out, rng.choice(np.array(MASKS)), logits)
    if rng.random() < 0.3:
        logits[rng.integers(n), rng.integers(classes)] = 10.0 ** rng.uniform(3, 38)
    labels = rng.integers(classes, size=n) if rng.random() < 0.5 else logits.argmax(axis=1)
    return logits.astype(np.float32 if rng.random() < 0.5 else np.float64), labels


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("sharpen", [True, False])
def test_the_fitted_loss_never_exceeds_the_loss_at_one(
    sharpen: bool, is_weighted: bool, loss: Loss
) -> None:
    """Whatever the rows, T is no worse than T = 1, by its own account and by the definition."""
    rng = np.random.default_rng([sharpen, is_weighted, loss == "nll"])
    for _ in range(12):
        logits, labels = adversarial_rows(rng)
        n = len(labels)
        weights = rng.exponential(size=n) ** 3 * (rng.random(n) < 0.8) + 1e-9
        fit = fit_temperature(
            *(logits, labels, weights if is_weighted else None),
            loss=loss,
            allow_sharpening=sharpen,
        )
        assert 0 < fit.temperature < math.inf
        assert fit.loss <= fit.loss_at_one
        assert sharpen or fit.temperature >= 1
        masses = weights if is_weighted else np.ones(n)
        clean = np.where(masked(logits, mask_depth(logits, masses)), -np.inf, logits)
        before = mean_loss(clean, labels, masses, 1.0, loss)
        after = mean_loss(clean, labels, masses, fit.temperature, loss)
        assert after <= before + 1e-5 * max(1.0, before)


@pytest.mark.parametrize("seed", range(20))
def test_the_fitted_discriminator_is_never_worse_than_untempered(seed: int) -> None:
    """The same of T_g, with logits of any size, saturated ones among them."""
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.uniform(-4, 4)
    source, target = (scale * rng.normal(shift, 1, size=50) for shift in (0.5, -0.5))
    source[0], target[0] = rng.choice([1.0, 1e8, -1e8], size=2)
    fit = fit_discriminator_temperature(source, target)
    assert fit.loss <= fit.loss_at_one


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_no_logits_say_nothing_of_masks(bad: float) -> None:
    logits = np.random.default_rng(0).normal(size=(50, 4))
    expected = mask_depth(logits)
    assert mask_depth(np.concatenate([logits, np.full((3, 4), bad)])) == expected


def test_logits_as_far_apart_as_their_type_allows() -> None:
    """Their difference is no number of that type, and deeper than any mask."""
    logits = np.array([[3e38, -3e38, 0], [1, 0, 2]], dtype=np.float32)
    assert masked(logits).tolist() == [[False, True, True], [False, False, False]]
