"""Temperature and offset by labels and a prior: each counts for what it knows."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, logit

from covcal_cli.arrays import Float64s
from covcal_cli.estimators.inputs import Estimate
from covcal_cli.labels import posterior as grid
from covcal_cli.labels.draws import Draw
from covcal_cli.labels.posterior import (
    OFFSET,
    OFFSET_SPREAD,
    combined,
    posterior,
    representative_rows,
)
from covcal_cli.maths.odds import top_log_odds
from covcal_cli.maths.softmax import Scaling
from covcal_cli.records import Guard
from tests.labels.made_draws import made_draw

GUARD = Guard("estimators disagree", 0.0, 0.1, True, "")
PRIOR = Estimate("combined", 0.7, 0.5, 0.9, "", (GUARD,))
CONTRADICTED = replace(PRIOR, guards=(replace(GUARD, value=0.2, passed=False),))


GRID = grid._TEMPERATURES, grid._OFFSETS


@pytest.fixture(autouse=True)
def whole_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "_TEMPERATURES", GRID[0])
    monkeypatch.setattr(grid, "_OFFSETS", GRID[1])


@pytest.fixture
def logits() -> Float64s:
    return np.random.default_rng(0).normal(size=(1000, 5)) * 2


def first(n: int, logits: Float64s, right: Float64s) -> Draw:
    """Return the draw of the first n rows, with labels that make the classifier right or not."""
    return draw_of(logits[:n], right[:n], max(n, 1) / 1000)


def draw_of(logits: Float64s, right: Float64s, inclusion: Float64s | float) -> Draw:
    labels = logits.argmax(axis=1)
    labels = np.where(right == 1, labels, (labels + 1) % logits.shape[1])
    return made_draw(1000, inclusion, len(logits), labels=labels)


def made(logits: Float64s, temperature: float, offset: float) -> Float64s:
    """Return what is right if a temperature and an offset are."""
    chances = expit(top_log_odds(logits, temperature) + offset)
    return np.asarray(np.random.default_rng(1).random(len(logits)) < chances, dtype=float)


def mean_confidence(logits: Float64s, scaling: Scaling) -> float:
    return float(expit(top_log_odds(logits, scaling.temperature) + scaling.of_label).mean())


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9, 0.964, 0.98, 0.999, 1.0])
@pytest.mark.parametrize("by_labels", [0.0, 0.3, 0.562, 0.95, 0.959, 0.99, 1.0])
@pytest.mark.parametrize("size", [5.0, 50.0, 300.0])
def test_a_combination_is_between_its_inputs(share: float, by_labels: float, size: float) -> None:
    """It is also between the ends of its interval, and many labels decide."""
    low, high = sorted((share, by_labels))
    for prior in (replace(PRIOR, accuracy=share), replace(CONTRADICTED, accuracy=share)):
        mean, least, most = combined(by_labels, size, prior)
        assert min(low, 0.99) - 1e-9 <= mean <= high + 1e-9
        assert least < mean < most
    *_, nearer, nearest = (combined(by_labels, n, PRIOR)[0] for n in (1e2, 1e4, 1e6))
    assert abs(nearest - by_labels) <= abs(nearer - by_labels) + 1e-9
    assert nearest == pytest.approx(by_labels, abs=0.001)


@pytest.mark.parametrize("accuracy", [0.98, 0.7])
@pytest.mark.parametrize("n", [50, 300])
def test_a_combination_has_no_bias_and_its_interval_holds_the_truth(
    accuracy: float, n: int
) -> None:
    """With labels of random rows, and an estimate that errs as on the benchmark."""
    rng = np.random.default_rng(0)
    shares = rng.binomial(n, accuracy, 200) / n
    estimates = expit(logit(accuracy) + 0.03 / 0.21 * rng.normal(size=200))
    results = np.array(
        [
            combined(share, n, replace(PRIOR, accuracy=estimate))
            for share, estimate in zip(shares, estimates, strict=True)
        ]
    )
    means, low, high = results.T
    assert abs(means.mean() - accuracy) < 0.008
    assert np.abs(means - accuracy).mean() < np.abs(shares - accuracy).mean()
    assert ((low <= accuracy) & (accuracy <= high)).mean() >= 0.93


def test_an_estimate_counts_less_where_the_estimators_disagree() -> None:
    close, far = (combined(0.0, 2.0, prior)[0] for prior in (PRIOR, CONTRADICTED))
    assert far < close < 0.7


def test_even_rows_have_the_mean_of_all_rows() -> None:
    scores = np.random.default_rng(0).beta(8, 1, 20_000)
    rows = representative_rows(scores, 1000)
    assert len(np.unique(rows)) == 1000
    assert scores[rows].mean() == pytest.approx(scores.mean(), abs=1e-4)
    assert (representative_rows(scores[:7], 1000) == np.arange(7)).all()


def test_the_offset_fits_the_labels_at_the_given_accuracy(logits: Float64s) -> None:
    """The T and offset that an optimiser finds."""
    right = made(logits, 3.0, -0.3)

    def loss(at: Float64s) -> float:
        odds = top_log_odds(logits, float(np.exp(at[0]))) + at[1]
        of_offset = ((at[1] - OFFSET) / OFFSET_SPREAD) ** 2 / 2
        away = 1e6 * (expit(odds).mean() - right.mean()) ** 2
        return float((np.logaddexp(0, odds) - right * odds).sum() + of_offset + away)

    log_t, offset = minimize(loss, [1.0, 0.0], method="Nelder-Mead").x
    scaling = posterior(logits, logits, first(1000, logits, right), float(right.mean()))
    assert np.log(scaling.temperature) == pytest.approx(log_t, abs=0.05)
    assert scaling.of_label == pytest.approx(offset, abs=0.05)


@pytest.mark.parametrize("accuracy", [0.4, 0.7, 0.95])
def test_the_mean_confidence_is_the_accuracy(logits: Float64s, accuracy: float) -> None:
    draw = first(20, logits, made(logits, 3.0, -0.3))
    scaling = posterior(logits, logits[:20], draw, accuracy)
    assert mean_confidence(logits, scaling) == pytest.approx(accuracy, abs=0.002)


def test_rows_count_by_their_weight(logits: Float64s) -> None:
    """A row that stands for three counts as three."""
    right = made(logits, 3.0, 0.0)
    whole = np.array([0, 1, 2, 2, 2, 3])
    once = np.array([0, 1, 2, 3])
    inclusion = np.array([0.1, 0.1, 0.1 / 3, 0.1])
    # Weights have the mean 1 in both: of 6 rows, and of 4.
    few, many = (
        posterior(logits, logits[rows], draw_of(logits[rows], right[rows], probabilities), 0.7)
        for rows, probabilities in ((once, inclusion), (whole, 0.1))
    )
    assert abs(few.of_label - many.of_label) < 0.06


@pytest.mark.parametrize("factor", [1e-3, 50.0])
def test_scaled_logits_scale_the_temperature(logits: Float64s, factor: float) -> None:
    right = made(logits, 3.0, -0.3)
    one, other = (
        posterior(k * logits[:500], k * logits[:40], first(40, k * logits, right), 0.6)
        for k in (1.0, factor)
    )
    assert other.temperature == pytest.approx(factor * one.temperature, rel=1e-6)
    assert other.of_label == pytest.approx(one.of_label, abs=1e-9)


def test_without_a_label_the_offset_is_that_of_the_prior(logits: Float64s) -> None:
    scaling = posterior(logits, logits[:0], first(0, logits, np.zeros(1000)), 0.7)
    assert scaling.of_label == pytest.approx(OFFSET, abs=0.01)
    assert mean_confidence(logits, scaling) == pytest.approx(0.7, abs=0.002)
