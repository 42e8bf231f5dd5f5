"""The fit of T: against brute force, and in every corner where published fitters fail."""

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from covcal_cli.maths.softmax import class_major
from covcal_cli.maths.temperature import Loss, brier_rows, fit_temperature, nll_rows

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
LOSSES: tuple[Loss, ...] = ("brier", "nll")
OPTIMA = (0.05, 0.5, 2.0, 20.0, 100.0)
GRID = 400
LIMIT_CASES = [("brier", 1), ("brier", 50), ("brier", 21_000), ("nll", 1), ("nll", 50)]


def loss_at(logits: Floats, labels: Labels, weights: Floats, log_ts: Floats, loss: Loss) -> Floats:
    """Return the weighted loss at every log T, straight from its definition."""
    found, columns = [], np.arange(len(labels))
    for some in np.array_split(log_ts, max(1, len(log_ts) * logits.size // 400_000)):
        logs = log_softmax(logits / np.exp(some)[:, None, None], axis=2)
        right = logs[:, columns, labels]
        brier = np.exp(2 * logs).sum(axis=2) - 2 * np.exp(right) + 1
        rows = -right if loss == "nll" else brier
        found.append(rows @ weights / weights.sum())
    return np.concatenate(found)


def search_interval(logits: Floats) -> tuple[float, float]:
    """Return the ends in log T: 1e-4 and 1e4 times the root mean square of centred logits."""
    centred = logits - logits.mean(axis=1, keepdims=True)
    scale = math.log(math.sqrt(float((centred**2).mean())))
    return scale - math.log(1e4), scale + math.log(1e4)


def brute_force(
    logits: Floats, labels: Labels, weights: Floats | None = None, loss: Loss = "brier"
) -> float:
    """Return the best T of a grid over the whole interval, and of another around the lowest."""
    row_weights = np.ones(len(labels)) if weights is None else weights
    low, high = search_interval(logits)
    for points in (GRID, 100):
        grid = np.linspace(low, high, points)
        losses = loss_at(logits, labels, row_weights, grid, loss)
        best = int(losses.argmin())
        assert 0 < best < points - 1, "the made case has its optimum at an end"
        low, high = grid[best - 1], grid[best + 1]
    below, here, above = losses[best - 1 : best + 2]
    shift = 0.5 * (below - above) / (below - 2 * here + above)
    return math.exp(grid[best] + shift * (grid[1] - grid[0]))


def made_rows(
    n: int = 300, classes: int = 3, optimum: float = 1.0, seed: int = 0
) -> tuple[Floats, Labels]:
    """Return logits whose best T is about `optimum`, and labels."""
    rng = np.random.default_rng(seed)
    truth = 1.5 * rng.normal(size=(n, classes))
    return optimum * truth, (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)


def two_scales(share: float, n: int = 40) -> tuple[Floats, Labels, Floats]:
    """Return two-class rows with two minima, and weights that give the first kind `share`.

    Rows of margin 1 are right in 95 % and ask for T = 0.34; rows of margin 100 are right in 70 %
    and ask for T = 118; in between both are badly served.
    """
    half = n // 2
    small, large = np.arange(half) >= 0.05 * half, np.arange(half) >= 0.3 * half
    logits = np.zeros((n, 2))
    logits[:half, 1], logits[half:, 1] = 1.0, 100.0
    labels = np.concatenate([small, large]).astype(np.int64)
    return logits, labels, np.repeat([share, 1 - share], half)


def as_blocks(logits: NDArray[Any], size: int) -> Callable[[], Iterator[NDArray[np.floating[Any]]]]:
    return lambda: (logits[start : start + size] for start in range(0, len(logits), size))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("optimum", OPTIMA)
def test_equals_a_search_of_the_whole_interval(optimum: float, weighted: bool) -> None:
    """T is the best of all to 1e-4, from 0.05 to 100, both losses, weighted or not."""
    logits, labels = made_rows(n=50, optimum=optimum, seed=int(10 * optimum))
    weights = np.random.default_rng(5).exponential(size=len(labels)) ** 2 if weighted else None
    for loss in LOSSES:
        fit = fit_temperature(logits, labels, weights, loss=loss)
        assert fit.temperature == pytest.approx(
            brute_force(logits, labels, weights, loss), rel=1e-4
        )
        assert 0.3 * optimum < fit.temperature < 3 * optimum
        assert fit.at_limit is None
        assert not fit.held_at_one


def test_reports_the_loss_at_t_and_at_one() -> None:
    """`loss` and `loss_at_one` are the weighted mean losses at T and at 1."""
    logits, labels = made_rows(optimum=4.0)
    weights = np.random.default_rng(1).exponential(size=len(labels))
    for loss in LOSSES:
        fit = fit_temperature(logits, labels, weights, loss=loss)
        points = np.array([math.log(fit.temperature), 0.0])
        expected = loss_at(logits, labels, weights, points, loss)
        assert [fit.loss, fit.loss_at_one] == pytest.approx(expected.tolist(), rel=1e-6)
        assert fit.loss < fit.loss_at_one


@pytest.mark.parametrize("factor", [1e-3, 0.02, 1.0, 7.0, 1e3])
@pytest.mark.parametrize("loss", LOSSES)
def test_logits_in_other_units_give_t_in_those_units(factor: float, loss: Loss) -> None:
    """fit(k z) = k fit(z) from 1e-3 to 1e3, with two minima too, and at both limits."""
    plain = made_rows(optimum=2.0)
    right = (plain[0], plain[0].argmax(axis=1))
    wrong = (plain[0], plain[0].argmin(axis=1))
    two, labels, weights = two_scales(0.4)
    cases = [(*plain, None), (*right, None), (*wrong, None), (two, labels, weights)]
    for logits, known, row_weights in cases:
        one = fit_temperature(logits, known, row_weights, loss=loss)
        other = fit_temperature(factor * logits, known, row_weights, loss=loss)
        assert other.temperature == pytest.approx(factor * one.temperature, rel=1e-5)
        assert other.loss == pytest.approx(one.loss, rel=1e-6, abs=1e-12)
        assert other.at_limit == one.at_limit
        assert other.local_minima == one.local_minima


def test_the_lower_of_two_minima_wins_in_both_directions() -> None:
    """With two minima the lower one is found, whichever it is; one bounded minimiser is not safe.

    SciPy's bounded minimiser over the same interval in log T is wrong in at least one direction.
    """
    wrong_of_scipy = 0
    for share, expected in [(0.25, "high"), (0.40, "low")]:
        logits, labels, weights = two_scales(share)
        fit = fit_temperature(logits, labels, weights)
        best = brute_force(logits, labels, weights)
        assert fit.local_minima == 2
        assert fit.temperature == pytest.approx(best, rel=1e-4)
        assert (fit.temperature > 10) == (expected == "high")

        def loss(log_t: float, given: tuple[Floats, Labels, Floats]) -> float:
            return float(loss_at(*given, np.array([log_t]), "brier")[0])

        one_search = minimize_scalar(
            loss,
            bounds=search_interval(logits),
            args=((logits, labels, weights),),
            method="bounded",
        )
        wrong_of_scipy += not math.isclose(math.exp(one_search.x), best, rel_tol=0.01)
    assert wrong_of_scipy >= 1


@pytest.mark.parametrize("seed", range(6))
def test_the_lowest_of_many_minima_wins(seed: int) -> None:
    """Rows of four scales with any shares and accuracies: T is the brute-force optimum."""
    rng = np.random.default_rng(seed)
    margins, accuracies = 10.0 ** np.arange(-2, 2), rng.uniform(0.55, 0.999, size=4)
    logits = np.zeros((8, 2))
    logits[:, 1] = np.repeat(margins, 2)
    weights = np.repeat(rng.exponential(size=4), 2) * np.ravel([accuracies, 1 - accuracies], "F")
    labels = np.tile([1, 0], 4)
    fit = fit_temperature(logits, labels, weights)
    best = brute_force(logits, labels, weights)
    lowest = loss_at(logits, labels, weights, np.array([math.log(best)]), "brier")[0]
    assert fit.loss <= lowest + 1e-7
    assert fit.temperature == pytest.approx(best, rel=1e-4)


def test_every_float_type_gives_the_same_t() -> None:
    """float16, float32 and float64 of the same values give one T; rounding to them hardly moves it.

    Netcal 1.4 returns T = 1 for float32 (EFS-OpenSource/calibration-framework#61).
    """
    logits, labels = made_rows(n=1000, optimum=2.0)
    half = logits.astype(np.float16)
    temperatures = [
        fit_temperature(half.astype(dtype), labels).temperature
        for dtype in (np.float16, np.float32, np.float64)
    ]
    assert temperatures[0] == temperatures[1] == temperatures[2]
    exact = fit_temperature(logits, labels).temperature
    assert fit_temperature(logits.astype(np.float32), labels).temperature == pytest.approx(
        exact, rel=1e-5
    )
    assert temperatures[0] == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("loss", LOSSES)
def test_t_is_positive_and_finite_whatever_the_labels(loss: Loss) -> None:
    """Random labels, logits of any size, a single row: T > 0 and finite, and never worse than 1."""
    rng = np.random.default_rng(3)
    for n in (1, 2, 3, 10, 50):
        for _ in range(10):
            logits = rng.normal(size=(n, 3)) * 10.0 ** rng.uniform(-3, 3)
            fit = fit_temperature(logits, rng.integers(3, size=n), loss=loss)
            assert 0 < fit.temperature < math.inf
            assert fit.loss <= fit.loss_at_one + 1e-6 * max(1.0, fit.loss_at_one)


@pytest.mark.parametrize(("loss", "n"), LIMIT_CASES)
def test_rows_that_are_all_right_give_the_lower_limit(loss: Loss, n: int) -> None:
    """Without an error ever sharper is better: T is the lower end and says so."""
    logits, _ = made_rows(n=n, classes=2)
    fit = fit_temperature(logits, logits.argmax(axis=1), loss=loss)
    assert fit.at_limit == "lower"
    assert math.log(fit.temperature) == pytest.approx(search_interval(logits)[0], abs=0.02)


@pytest.mark.parametrize(("loss", "n"), LIMIT_CASES)
def test_logits_against_the_labels_give_the_upper_limit(loss: Loss, n: int) -> None:
    """Where the top class is always wrong, T is the upper end, not negative, and says so."""
    logits, _ = made_rows(n=n, classes=2)
    fit = fit_temperature(logits, logits.argmin(axis=1), loss=loss)
    assert fit.at_limit == "upper"
    assert math.log(fit.temperature) == pytest.approx(search_interval(logits)[1], abs=0.02)


@pytest.mark.parametrize("classes", [2, 4])
def test_logits_that_say_little_or_the_opposite_are_told_apart(classes: int) -> None:
    """With labels drawn regardless of the logits T is the brute-force optimum, or the upper end.

    The loss is flat to 1e-9 near the upper end, and rounding there must not count as a minimum.
    """
    rng = np.random.default_rng(11)
    ends = 0
    for n in (20, 200, 600):
        for _ in range(5):
            logits, labels = rng.normal(size=(n, classes)), rng.integers(classes, size=n)
            fit = fit_temperature(logits, labels)
            grid = np.linspace(*search_interval(logits), 100)
            losses = loss_at(logits, labels, np.ones(n), grid, "brier")
            at_end = losses.argmin() == len(grid) - 1
            ends += at_end
            assert (fit.at_limit == "upper") == at_end
            assert fit.loss <= losses.min() + 1e-6
    assert 2 < ends < 13


def test_logits_tied_in_every_row_give_one() -> None:
    """Where all classes tie in every row T changes nothing: it is 1, at no limit."""
    for value in (0.0, -3.5, 1e6):
        fit = fit_temperature(np.full((20, 4), value), np.arange(20) % 4)
        assert fit.temperature == 1.0
        assert fit.loss == fit.loss_at_one == pytest.approx(0.75)
        assert (fit.at_limit, fit.held_at_one, fit.local_minima) == (None, False, 0)


def test_without_sharpening_a_t_below_one_becomes_one() -> None:
    """T below 1, and the lower limit, are held at 1 and reported as held."""
    for logits, labels in [
        made_rows(optimum=0.3),
        (made_rows()[0], made_rows()[0].argmax(axis=1)),
    ]:
        fit = fit_temperature(logits, labels, allow_sharpening=False)
        assert fit.temperature == 1.0
        assert fit.loss == fit.loss_at_one
        assert fit.held_at_one
        assert fit.at_limit is None


def test_without_sharpening_a_t_above_one_is_untouched() -> None:
    """Softening needs no permission: the same T, not reported as held."""
    logits, labels = made_rows(optimum=3.0)
    free = fit_temperature(logits, labels)
    assert fit_temperature(logits, labels, allow_sharpening=False) == free


def test_without_sharpening_the_best_t_above_one_still_wins() -> None:
    """Where the lowest minimum is below 1, a minimum above 1 that beats T = 1 is taken."""
    logits, labels, weights = two_scales(0.35)
    assert fit_temperature(logits, labels, weights).temperature < 1
    fit = fit_temperature(logits, labels, weights, allow_sharpening=False)
    grid = np.linspace(0, math.log(1000), 5000)
    values = loss_at(logits, labels, weights, grid, "brier")
    assert fit.temperature == pytest.approx(math.exp(grid[values.argmin()]), rel=2e-3)
    assert fit.temperature > 10
    assert fit.held_at_one


@pytest.mark.parametrize(("share", "high"), [(0.25, True), (0.40, False)])
def test_a_few_heavy_rows_among_200_000_are_not_overlooked(share: float, high: bool) -> None:
    """The map of the loss samples rows by weight: 40 heavy rows decide as their weight says.

    Drawn uniformly, 20 000 of 200 000 rows would hold about four of them.
    """
    n, heavy = 200_000, 40
    order = np.random.default_rng(9).permutation(n)
    logits = np.zeros((n, 2), dtype=np.float32)
    logits[: n - heavy, 1], logits[n - heavy :, 1] = 1.0, 100.0
    labels = np.concatenate(
        [np.arange(n - heavy) >= 0.05 * (n - heavy), np.arange(heavy) >= 0.3 * heavy]
    ).astype(np.int64)
    weights = np.repeat([share / (n - heavy), (1 - share) / heavy], [n - heavy, heavy])
    fit = fit_temperature(logits[order], labels[order], weights[order])
    same, same_labels, same_weights = two_scales(share)
    best = brute_force(same, same_labels, same_weights)
    assert (best > 10) == high
    assert fit.temperature == pytest.approx(best, rel=1e-4)


def test_the_scale_of_the_weights_does_not_matter() -> None:
    """Weights times any constant give the same T."""
    logits, labels, weights = two_scales(0.3)
    one = fit_temperature(logits, labels, weights)
    for factor in (1e-12, 1e-3, 1e9):
        other = fit_temperature(logits, labels, factor * weights)
        assert other.temperature == pytest.approx(one.temperature, rel=2e-6)
        assert other.loss == pytest.approx(one.loss)


Labelling = Literal["drawn", "right", "wrong"]


@pytest.mark.parametrize("size", [1.0, 1e6])
@pytest.mark.parametrize("labelling", ["drawn", "right", "wrong"])
def test_rows_of_weight_zero_count_as_absent(labelling: Labelling, size: float) -> None:
    """A row of weight 0 changes nothing, whatever its logits: not T inside, not T at a limit."""
    logits, labels = made_rows(optimum=2.0)
    if labelling != "drawn":
        top, bottom = logits.argmax(axis=1), logits.argmin(axis=1)
        labels = top if labelling == "right" else bottom
    extra = size * np.random.default_rng(2).normal(size=(100, 3))
    both = np.concatenate([logits, extra])
    both_labels = np.concatenate([labels, np.zeros(100, np.int64)])
    weights = np.repeat([1.0, 0.0], [len(labels), 100])
    fit = fit_temperature(both, both_labels, weights)
    alone = fit_temperature(logits, labels)
    assert fit.temperature == pytest.approx(alone.temperature, rel=1e-5)
    assert fit.at_limit == alone.at_limit


@pytest.mark.parametrize("n", [500, 21_000])
def test_blocks_equal_one_array(n: int) -> None:
    """Logits from a callable, in blocks of any size, give the T of the same logits in one array."""
    logits, labels = made_rows(n=n, classes=2, optimum=2.0)
    whole = fit_temperature(logits, labels)
    for size in (7, 333, 10**6) if n < 1000 else (15_001,):
        fit = fit_temperature(as_blocks(logits, size), labels)
        assert fit.temperature == pytest.approx(whole.temperature, rel=2e-6)
        assert fit.loss == pytest.approx(whole.loss, rel=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_class_without_rows_is_no_obstacle(loss: Loss) -> None:
    """K comes from the logits: labels that lack classes give the brute-force T."""
    logits, labels = made_rows(n=300, classes=5, optimum=3.0)
    few = labels < 2
    fit = fit_temperature(logits[few], labels[few], loss=loss)
    assert fit.temperature == pytest.approx(
        brute_force(logits[few], labels[few], None, loss), rel=1e-4
    )


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_labels_of_any_integer_type(dtype: type[Any]) -> None:
    """int32 and uint8 labels are as good as int64 (autogluon#1815)."""
    logits, labels = made_rows()
    assert fit_temperature(logits, labels.astype(dtype)) == fit_temperature(logits, labels)


@pytest.mark.parametrize("n", [300, 21_000])
def test_the_order_of_the_rows_does_not_matter(n: int) -> None:
    """Shuffled rows give the same T, also where only a part of them draws the map of the loss."""
    logits, labels = made_rows(n=n, classes=2, optimum=2.0)
    weights = np.random.default_rng(1).exponential(size=n)
    order = np.random.default_rng(2).permutation(n)
    one = fit_temperature(logits, labels, weights)
    other = fit_temperature(logits[order], labels[order], weights[order])
    assert other.temperature == pytest.approx(one.temperature, rel=3e-6)


def test_the_seed_does_not_move_t() -> None:
    """The seed chooses rows for the map of the loss only; T is solved on all rows."""
    logits, labels = made_rows(n=21_000, classes=2, optimum=2.0)
    found = [fit_temperature(logits, labels, seed=seed).temperature for seed in range(2)]
    assert found[1] == pytest.approx(found[0], rel=3e-6)


@pytest.mark.parametrize("temperature", [0.05, 0.7, 1.0, 3.0, 50.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_derivatives_equal_finite_differences(loss: Loss, temperature: float) -> None:
    """Slope and curvature in log T of every row equal differences of the loss's definition."""
    logits, labels = made_rows(n=40, classes=4)
    rows = brier_rows if loss == "brier" else nll_rows
    found = rows(class_major(logits), labels, temperature, True)
    step = 1e-3
    points: Floats = math.log(temperature) + step * np.arange(-2.0, 3.0)
    for row in range(len(labels)):
        one = slice(row, row + 1)
        f = loss_at(logits[one], labels[one], np.ones(1), points, loss)
        slope = (8 * (f[3] - f[1]) - (f[4] - f[0])) / (12 * step)
        curvature = (16 * (f[1] + f[3]) - (f[0] + f[4]) - 30 * f[2]) / (12 * step**2)
        size = max(1.0, float(np.abs(logits[row]).max()) / temperature)
        assert found[0][row] == pytest.approx(f[2], rel=1e-6, abs=1e-6)
        assert found[1][row] == pytest.approx(slope, rel=1e-5, abs=1e-6 * size)
        assert found[2][row] == pytest.approx(curvature, rel=1e-4, abs=1e-5 * size**2)
    assert [
        values.tolist() for values in rows(class_major(logits), labels, temperature, False)
    ] == [found[0].tolist()]


def test_t_of_one_wins_where_no_point_of_the_interval_is_better() -> None:
    """Large logits put T = 1 below the interval; where its loss is the lowest, it is the T."""
    logits = np.zeros((40, 2))
    logits[:20, 1], logits[20:, 1] = 2e5, 50.0
    fit = fit_temperature(logits, np.ones(40, np.int64))
    assert search_interval(logits)[0] > math.log(5)
    assert (fit.temperature, fit.at_limit) == (1.0, None)
    assert fit.loss == fit.loss_at_one == pytest.approx(0.0, abs=1e-12)


def test_a_capped_log_loss_has_no_slope() -> None:
    """A row whose class has probability 0 in float64 loses the cap at every T near by."""
    logits, labels = np.array([[0.0, -1e5], [0.0, -2.0]]), np.array([1, 1])
    loss, slope, curvature = nll_rows(class_major(logits), labels, 1.5, True)
    assert loss[0] == pytest.approx(-math.log(np.finfo(np.float64).tiny))
    assert (slope[0], curvature[0]) == (0.0, 0.0)
    assert slope[1] != 0
    assert curvature[1] != 0


def test_capped_rows_do_not_move_t() -> None:
    """Rows of one finite loss at every T leave the T of the others."""
    logits, labels = made_rows(n=300, classes=2, optimum=2.0)
    lost = np.array([[0.0, -1e300]] * 20)
    both = fit_temperature(
        np.concatenate([logits, lost]), np.append(labels, np.ones(20, np.int64)), loss="nll"
    )
    alone = fit_temperature(logits, labels, loss="nll")
    assert both.temperature == pytest.approx(alone.temperature, rel=1e-5)
    assert both.ruled_out == 20


@pytest.mark.parametrize(
    "weights",
    [np.zeros(300), np.full(300, -1.0), np.where(np.arange(300) == 7, -1e-9, 1.0)],
    ids=["all zero", "all negative", "one negative"],
)
def test_bad_weights_are_refused(weights: Floats) -> None:
    """Weights that are negative or all zero raise ValueError."""
    logits, labels = made_rows()
    with pytest.raises(ValueError, match="non-negative weights"):
        fit_temperature(logits, labels, weights)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_no_numbers_are_refused(value: float) -> None:
    """A NaN or infinite weight raises ValueError instead of spreading into T."""
    logits, labels = made_rows()
    weights = np.ones(300)
    weights[7] = value
    with pytest.raises(ValueError, match="weights"):
        fit_temperature(logits, labels, weights)


def test_no_rows_are_refused() -> None:
    """Without a row there is no temperature: ValueError."""
    with pytest.raises(ValueError, match="needs rows"):
        fit_temperature(np.empty((0, 3)), np.empty(0, np.int64))


@pytest.mark.parametrize("rows", [299, 301])
def test_logits_and_labels_of_unequal_length_are_refused(rows: int) -> None:
    """Logits with more or fewer rows than there are labels raise ValueError."""
    logits, labels = made_rows(n=301)
    with pytest.raises(ValueError, match=f"{rows} rows of logits, but 300 labels"):
        fit_temperature(logits[:rows], labels[:300])


@pytest.mark.parametrize("count", [299, 301])
def test_weights_and_labels_of_unequal_length_are_refused(count: int) -> None:
    """More or fewer weights than labels raise ValueError, before anything is computed."""
    logits, labels = made_rows()
    with pytest.raises(ValueError, match="weights"):
        fit_temperature(logits, labels, np.ones(count))


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_that_is_no_class_is_refused(label: int) -> None:
    """A label outside 0 .. K-1 raises ValueError; -1 is not the last class."""
    logits, labels = made_rows()
    labels[5] = label
    with pytest.raises(ValueError, match="label"):
        fit_temperature(logits, labels)
