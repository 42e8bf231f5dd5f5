"""The accuracy by labels of a known design: unbiased, sure of itself as far as it may be."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, logit
from scipy.stats import chi2

from covcal_cli.arrays import Float64s, Integers
from covcal_cli.labels.draws import Draw, drawn, inclusion_probabilities
from covcal_cli.labels.metrics import difference_estimate
from covcal_cli.labels.score import words_of_region
from covcal_cli.maths.odds import wilson
from tests.labels.made_draws import made_draw

N = 600


@pytest.fixture
def rows() -> tuple[Float64s, Float64s]:
    """A forecast that is too sure by half, and what is right."""
    rng = np.random.default_rng(1)
    forecast = rng.beta(4, 1, N)
    right = (rng.random(N) < expit(0.9 * logit(forecast) - 0.3)).astype(float)
    return forecast, right


def draws(forecast: Float64s, n: int, how_many: int) -> list[tuple[Draw, Integers]]:
    """Return draws with their places in the frame, by ``pick``'s design."""
    order = np.argsort(forecast)
    inclusion = inclusion_probabilities(forecast[order], n)
    rng = np.random.default_rng(0)
    drawn_places = (drawn(inclusion, rng) for _ in range(how_many))
    return [(made_draw(N, inclusion[places], n), order[places]) for places in drawn_places]


def test_it_is_the_difference_estimator(rows: tuple[Float64s, Float64s]) -> None:
    """The forecast is fitted as an independent optimiser fits it, and corrected by the rows."""
    forecast, right = rows
    draw, places = draws(forecast, 40, 1)[0]
    scores, weights = logit(np.clip(forecast, 0.0025, 0.9975)), 1 / draw.inclusion
    on, share = scores[places], weights / weights.mean()

    def loss(at: Float64s) -> float:
        odds = at[0] + at[1] * on
        of_rows = share @ (np.logaddexp(0, odds) - right[places] * odds)
        return float(of_rows + at[0] ** 2 / 8 + 2 * (at[1] - 1) ** 2)

    offset, slope = minimize(loss, [0.0, 1.0], tol=1e-12).x
    fitted = expit(offset + slope * scores)
    expected = fitted.mean() + weights @ (right[places] - fitted[places]) / N
    estimate = difference_estimate(draw, right[places], forecast, forecast[places])
    assert estimate.accuracy == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("n", "level", "least"), [(10, 0.95, 0.92), (50, 0.95, 0.92), (50, 0.8, 0.76)]
)
def test_intervals_cover(
    rows: tuple[Float64s, Float64s], n: int, level: float, least: float
) -> None:
    """Over 150 draws the mean estimate is the truth, and as many intervals hold it as they say."""
    forecast, right = rows
    found = [
        difference_estimate(draw, right[places], forecast, forecast[places], level=level)
        for draw, places in draws(forecast, n, 150)
    ]
    errors = np.array([one.accuracy for one in found]) - right.mean()
    assert abs(errors.mean()) < 3 * errors.std() / np.sqrt(150) + 0.01
    assert np.mean([one.low <= right.mean() <= one.high for one in found]) > least


@pytest.mark.parametrize("n", [60, 150])
def test_rows_for_a_decision_say_little_about_other_rows(n: int) -> None:
    """The region has 80 % of the rows and nearly all labels. Some draws miss all other rows."""
    hits = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        score = np.sort(expit(3.6 + 1.6 * rng.normal(size=3000)))
        right = rng.random(3000) < expit(logit(score) - 1)
        inclusion = np.where(np.arange(3000) < 600, n * 0.005 / 600, n * 0.995 / 2400)
        places = drawn(inclusion, rng)
        draw = made_draw(3000, inclusion[places], len(places))
        batch = replace(draw.batches[0], score=words_of_region(0.9))
        draw = replace(draw, batches=(batch,))
        one = difference_estimate(draw, right[places].astype(float), score, score[places])
        hits += one.low <= right.mean() <= one.high
        assert one.high - one.low < 0.5
    assert hits >= 55


def test_they_are_shorter_than_those_of_random_rows(rows: tuple[Float64s, Float64s]) -> None:
    """By a tenth of Wilson's interval at least, with a forecast that tells something."""
    forecast, right = rows
    found = (
        difference_estimate(draw, right[at], forecast, forecast[at])
        for draw, at in draws(forecast, 50, 40)
    )
    widths = [estimate.high - estimate.low for estimate in found]
    p, size, z = right.mean(), 50, 1.96
    wilson = 2 * z * np.sqrt(p * (1 - p) / size + z**2 / 4 / size**2) / (1 + z**2 / size)
    assert np.mean(widths) < 0.9 * wilson


def test_all_rows_leave_nothing_open(rows: tuple[Float64s, Float64s]) -> None:
    forecast, right = rows
    found = difference_estimate(made_draw(N, 1.0, N), right, forecast, forecast)
    assert (found.low, found.accuracy, found.high) == pytest.approx([right.mean()] * 3)


@pytest.mark.parametrize(("hits", "low", "high"), [(0, 0.0, 0.35), (20, 0.7, 1.0)])
def test_all_alike_reaches_the_end(hits: int, low: float, high: float) -> None:
    """20 rows that are all right do not rule out that all are, nor that a few are not."""
    right, frame = np.full(20, hits / 20), np.full(N, 0.9)
    found = difference_estimate(made_draw(N, 20 / N, 20), right, frame, frame[:20])
    assert found.low == 0.0 if hits == 0 else low < found.low < 1
    assert found.high == 1.0 if hits else 0 < found.high < high


def test_batches_add_up() -> None:
    """Rows of two batches have the weights of each batch's unbiased estimate, times its share."""
    found = made_draw(N, np.array([0.5, 0.2, 0.1]), 3, batch=np.array([0, 0, 1]))
    # A row of the first batch stands for 1 / pi rows there. The second batch is drawn from the
    # rest, and there the row stands for itself.
    assert found.weights == pytest.approx([2 / 3 * 2 + 1 / 3, 2 / 3 * 5 + 1 / 3, 1 / 3 * 10])
    assert found.variances == pytest.approx([4 / 9 * 2, 4 / 9 * 20, 1 / 9 * 90])
    kept = found.without(np.array([True, False, False]))
    assert kept.inclusion == pytest.approx([0.1, 0.1])


def test_rows_for_a_decision_are_only_known_rows_of_other_batches() -> None:
    """They count once: the other batch estimates the rest. If they come last, they are left out."""
    draw = made_draw(N, np.array([0.5, 0.2, 0.1]), 3, batch=np.array([0, 0, 1]))
    first, second = draw.batches
    decision, other = (
        replace(batch, score=score)
        for batch, score in ((first, words_of_region(0.9)), (second, "score"))
    )
    known = replace(draw, batches=(decision, other)).for_all_rows()
    assert known.weights == pytest.approx([1, 1, 10])
    assert known.variances == pytest.approx([0, 0, 90])
    assert known.without(np.array([False, False, True])).weights.all()  # nothing else is there
    last = replace(draw, batches=(other, decision), batch=np.array([0, 1, 1])).for_all_rows()
    assert (last.rows.tolist(), last.weights.tolist(), last.left_out) == ([0], [2.0], 2)
    assert any("2 labels were picked for a decision" in note for note in last.notes)
    assert draw.for_all_rows() is draw


def test_two_batches_are_one_estimate() -> None:
    """The estimate is also unbiased if the second batch is drawn from the other rows."""
    rng = np.random.default_rng(1)
    forecast = rng.uniform(0.4, 0.95, size=120)
    right = (rng.random(120) < forecast).astype(np.float64)
    draw = made_draw(
        120, np.repeat([20 / 120, 30 / 100], [20, 30]), 50, batch=np.repeat([0, 1], [20, 30])
    )
    accuracies = []
    for _ in range(150):
        first = np.sort(rng.choice(120, 20, replace=False))
        second = np.sort(rng.choice(np.setdiff1d(np.arange(120), first), 30, replace=False))
        rows = np.concatenate([first, second])
        estimate = difference_estimate(draw, right[rows], forecast, forecast[rows])
        accuracies.append(estimate.accuracy)
    error = np.mean(accuracies) - right.mean()
    assert abs(error) < 3 * np.std(accuracies) / np.sqrt(150) + 0.003


@pytest.mark.parametrize("events", [1, 2, 3])
@pytest.mark.parametrize("level", [0.95, 0.999])
def test_few_errors_reach_as_far_as_the_poisson_distribution(events: int, level: float) -> None:
    """An accuracy above the upper end would show so many errors in 1 - level of all samples."""
    n = 400
    right = np.ones(n)
    right[:events] = 0
    frame = np.full(100 * n, 0.99)
    draw = made_draw(100 * n, 0.01, n)
    errors, hits = (
        difference_estimate(draw, values, frame, frame[:n], level=level)
        for values in (right, 1 - right)
    )
    # The sample size at which labels alone would be as precise is about n.
    assert n * (1 - errors.high) == pytest.approx(chi2.ppf(1 - level, 2 * events) / 2, rel=0.05)
    assert n * hits.low == pytest.approx(chi2.ppf(1 - level, 2 * events) / 2, rel=0.05)
    assert 1 - errors.high < 1 - wilson(1 - events / n, n, level)[1]


def test_an_estimate_names_its_level(rows: tuple[Float64s, Float64s]) -> None:
    """The accuracy is the same at every level, and a higher level gives a wider interval."""
    forecast, right = rows
    ((draw, places),) = draws(forecast, 40, 1)
    low, high = (
        difference_estimate(draw, right[places], forecast, forecast[places], level=level)
        for level in (0.95, 0.999)
    )
    assert low.accuracy == high.accuracy
    assert high.low < low.low < low.high < high.high
    assert low.interval.startswith("95 % interval from the labels alone")
    assert high.interval.startswith("99.9 % interval from the labels alone")
