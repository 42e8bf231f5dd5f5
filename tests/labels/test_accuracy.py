"""The accuracy by labels of a known design: unbiased, sure of itself as far as it may be."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, logit

from covcal_cli.arrays import Float64s, Integers
from covcal_cli.labels.accuracy import LabelledSample, labelled
from covcal_cli.labels.design import drawn, inclusion_probabilities

N = 600


@pytest.fixture
def rows() -> tuple[Float64s, Float64s]:
    """A forecast that is too sure by half, and what is right."""
    rng = np.random.default_rng(1)
    forecast = rng.beta(4, 1, N)
    right = (rng.random(N) < expit(0.9 * logit(forecast) - 0.3)).astype(float)
    return forecast, right


def sample(
    places: Integers, right: Float64s, inclusion: Float64s | float, batch: Integers | int = 0
) -> LabelledSample:
    n = len(places)
    return LabelledSample(
        N, right[places], np.broadcast_to(inclusion, n), np.broadcast_to(batch, n)
    )


def draws(
    forecast: Float64s, right: Float64s, n: int, how_many: int
) -> list[tuple[LabelledSample, Integers]]:
    """Return samples with their rows in order of the forecast, by ``pick``'s design."""
    order = np.argsort(forecast)
    inclusion = inclusion_probabilities(forecast[order], n)
    rng = np.random.default_rng(0)
    found = (drawn(inclusion, rng) for _ in range(how_many))
    return [(sample(order[places], right, inclusion[places]), order[places]) for places in found]


def test_it_is_the_difference_estimator(rows: tuple[Float64s, Float64s]) -> None:
    """The forecast is fitted as an independent optimiser fits it, and corrected by the rows."""
    forecast, right = rows
    one, places = draws(forecast, right, 40, 1)[0]
    scores, weights = logit(np.clip(forecast, 0.0025, 0.9975)), 1 / one.inclusion
    on, share = scores[places], weights / weights.mean()

    def loss(at: Float64s) -> float:
        odds = at[0] + at[1] * on
        of_rows = share @ (np.logaddexp(0, odds) - one.right * odds)
        return float(of_rows + at[0] ** 2 / 8 + 2 * (at[1] - 1) ** 2)

    offset, slope = minimize(loss, [0.0, 1.0], tol=1e-12).x
    fitted = expit(offset + slope * scores)
    expected = fitted.mean() + weights @ (one.right - fitted[places]) / N
    assert labelled(one, forecast, forecast[places]).accuracy == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("n", [10, 50])
def test_intervals_cover(rows: tuple[Float64s, Float64s], n: int) -> None:
    """Over 400 draws the mean estimate is the truth, which 95 % of the intervals hold."""
    forecast, right = rows
    found = [
        labelled(one, forecast, forecast[places]) for one, places in draws(forecast, right, n, 400)
    ]
    errors = np.array([one.accuracy for one in found]) - right.mean()
    assert abs(errors.mean()) < 3 * errors.std() / 20 + 0.01
    assert np.mean([one.low <= right.mean() <= one.high for one in found]) > 0.92


def test_they_are_shorter_than_those_of_random_rows(rows: tuple[Float64s, Float64s]) -> None:
    """By a tenth of Wilson's interval at least, with a forecast that tells something."""
    forecast, right = rows
    found = (labelled(one, forecast, forecast[at]) for one, at in draws(forecast, right, 50, 40))
    widths = [one.high - one.low for one in found]
    p, size, z = right.mean(), 50, 1.96
    wilson = 2 * z * np.sqrt(p * (1 - p) / size + z**2 / 4 / size**2) / (1 + z**2 / size)
    assert np.mean(widths) < 0.9 * wilson


def test_all_rows_leave_nothing_open(rows: tuple[Float64s, Float64s]) -> None:
    forecast, right = rows
    found = labelled(sample(np.arange(N), right, 1.0), forecast, forecast)
    assert (found.low, found.accuracy, found.high) == pytest.approx([right.mean()] * 3)


@pytest.mark.parametrize(("hits", "low", "high"), [(0, 0.0, 0.35), (20, 0.7, 1.0)])
def test_all_alike_reaches_the_end(hits: int, low: float, high: float) -> None:
    """20 rows that are all right do not rule out that all are, nor that a few are not."""
    right = np.full(N, hits / 20)
    found = labelled(sample(np.arange(20), right, 20 / N), np.full(N, 0.9), np.full(20, 0.9))
    assert found.low == 0.0 if hits == 0 else low < found.low < 1
    assert found.high == 1.0 if hits else 0 < found.high < high


def test_batches_add_up(rows: tuple[Float64s, Float64s]) -> None:
    """Weights of two batches are those of the unbiased estimate of each, by their sizes."""
    inclusion, batch = np.array([0.5, 0.2, 0.1]), np.array([0, 0, 1])
    found = sample(np.array([0, 1, 2]), rows[1], inclusion, batch)
    # A row of the first stands for 1 / pi there, and in the second, drawn from the rest, for 1.
    assert found.weights == pytest.approx([2 / 3 * 2 + 1 / 3, 2 / 3 * 5 + 1 / 3, 1 / 3 * 10])
    assert found.variances == pytest.approx([4 / 9 * 2, 4 / 9 * 20, 1 / 9 * 90])
    kept = found.without(np.array([True, False, False]))
    assert kept.inclusion == pytest.approx([0.1, 0.1])
