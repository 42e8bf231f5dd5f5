"""The temperature that makes softmax(z / T) fit labelled rows: one exact, one-dimensional search.

The rules and their reasons are in ARCHITECTURE, section 3.4. The loss is not unimodal in T, so a
grid in log T finds every local minimum on some of the rows, each is refined on all of them, and the
lowest wins; an end of the interval counts only where it is lower than every minimum inside. Nothing
is stochastic but the seeded choice of the grid's rows. T_g (section 3.2 there) is the same fit.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from covcal_cli.arrays import Float64s, Floats, Labels, Rows
from covcal_cli.maths.softmax import LogitBlocks, blocks_of, class_major, exp

Loss = Literal["brier", "nll"]
Limit = Literal["lower", "upper"]
MIN_ERRORS = 5  # with fewer among the labelled rows a command allows no T below 1
_GRID_POINTS = 97
_GRID_ROWS = 20_000
_GRID_VALUES = 4_000_000  # bounds the grid's memory where there are many classes
_RANGE = 1e4
_TOLERANCE = 1e-6
_MAX_STEPS = 60
_TIE = 1e-12


@dataclass(frozen=True)
class TemperatureFit:
    """A fitted temperature."""

    temperature: float  # above 0; above 1 it softens
    loss: float  # weighted mean at `temperature`, and at T = 1, that is, before
    loss_at_one: float
    at_limit: Limit | None  # the end of the search interval that T stands at, if any
    held_at_one: bool  # the best T was below 1, and sharpening was not allowed
    local_minima: int  # interior minima that were compared


def fit_temperature(
    logits: Floats | LogitBlocks,
    labels: Labels,
    weights: Float64s | None = None,
    *,
    loss: Loss = "brier",
    allow_sharpening: bool = True,
    seed: int = 0,
) -> TemperatureFit:
    """Fit T to labelled rows; the lowest of all local minima, to 1e-6 in log T.

    Parameters
    ----------
    logits : array (n, K), or a callable that yields blocks (m, K) in row order
        Finite logits of any float dtype; a callable is read several times and bounds the memory.
    labels : array of int64, shape (n,)
        Classes 0 .. K-1. A class that never occurs is fine.
    weights : array of float64, shape (n,), optional
        Non-negative weight a_i of every row; their scale does not matter.
    loss : {"brier", "nll"}
        What T minimises.
    allow_sharpening : bool
        With False, T below 1 is not considered.
    seed : int
        Chooses the rows of the grid where there are more than 20 000.

    Raises
    ------
    ValueError
        If there are no rows, or the weights are negative or sum to zero.
    """
    blocks = logits if callable(logits) else blocks_of(logits)
    row_weights = np.ones(len(labels)) if weights is None else np.asarray(weights, np.float64)
    if len(row_weights) != len(labels):
        raise ValueError(f"{len(row_weights)} weights for {len(labels)} labels")
    if len(labels) == 0 or not 0 < row_weights.sum() < math.inf or row_weights.min() < 0:
        raise ValueError(
            "a temperature needs rows with finite, non-negative weights that are not all zero"
        )
    n_classes = next(block.shape[1] for block in blocks())
    rows, copies = _sampled_rows(row_weights, min(_GRID_ROWS, _GRID_VALUES // n_classes), seed)
    scale, sample = _scale_and_sample(blocks, labels, row_weights, rows)
    everything = _Objective(
        lambda: map(class_major, _cache_sized(blocks)), labels, row_weights, loss
    )
    loss_at_one = everything.value(0.0)
    if scale == 0:  # every row is a tie between all classes: T changes nothing
        return TemperatureFit(1.0, loss_at_one, loss_at_one, None, False, 0)
    # A grid over the whole interval, on few rows, finds where the local minima are.
    on_grid = _Objective(lambda: sample, labels[rows], copies, loss)
    low, high = math.log(scale / _RANGE), math.log(scale * _RANGE)
    grid = np.linspace(low, high, _GRID_POINTS)
    values = np.array([on_grid.value(log_t) for log_t in grid])
    # Each is refined on the few rows first, so that the passes over all rows start close by.
    step = float(grid[1] - grid[0])
    interior = [
        _refined(everything, _refined(on_grid, grid[index], step, low, high).log_t, step, low, high)
        for index in _interior_minima(values)
    ]
    candidates = [*interior, *_limits(everything, grid, values)]
    held = False  # without sharpening, T = 1 takes the place of every T below it
    if not allow_sharpening:
        allowed = [point for point in candidates if point.log_t >= 0]
        held = _best(candidates) not in allowed
        candidates = [*allowed, _Point(0.0, loss_at_one)]
    best = _best(candidates)
    return TemperatureFit(
        math.exp(best.log_t), best.loss, loss_at_one, best.limit, held, len(interior)
    )


# What is read of the rows: those of the grid, and the scale of the logits.


def _sampled_rows(weights: Float64s, most: int, seed: int) -> tuple[Rows, Float64s]:
    """Choose at most `most` rows with probability proportional to weight, and their multiplicity.

    Importance weights may put most of the mass on a few rows, which a uniform draw would miss; a
    stratified draw along the cumulated weights takes every heavy row, as often as it weighs.
    """
    if len(weights) <= most:
        return np.arange(len(weights)), weights
    cells = np.arange(most) + np.random.default_rng(seed).random(most)
    cumulated = np.cumsum(weights)
    drawn = np.searchsorted(cumulated, cells * (cumulated[-1] / most), side="right")
    rows, copies = np.unique(np.minimum(drawn, len(weights) - 1), return_counts=True)
    return rows, copies.astype(np.float64)


def _scale_and_sample(
    blocks: LogitBlocks, labels: Labels, weights: Float64s, rows: Rows
) -> tuple[float, list[Float64s]]:
    """Return the weighted root mean square of the row-centred logits, and the logits of `rows`.

    Raises ValueError if the labels are too many, too few, or no classes of these logits.
    """
    total, start, classes = 0.0, 0, 0
    chosen: list[Floats] = []
    for block in _cache_sized(blocks):
        stop = start + len(block)
        centred = np.array(block.T, dtype=np.float64, order="C")
        centred -= centred.mean(axis=0)
        classes = len(centred)
        squares = np.einsum("km,km->m", centred, centred)
        total += float((squares * weights[start:stop]).sum()) if stop <= len(weights) else 0.0
        inside = rows[np.searchsorted(rows, start) : np.searchsorted(rows, stop)]
        chosen.append(np.asarray(block)[inside - start].astype(np.float64))
        start = stop
    if start != len(labels):
        raise ValueError(f"{start} rows of logits for {len(labels)} labels")
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"a label is outside 0 .. {classes - 1}")
    sample = [class_major(block) for block in blocks_of(np.concatenate(chosen))()]
    return math.sqrt(total / (weights.sum() * classes)), sample


def _cache_sized(blocks: LogitBlocks) -> Iterator[Floats]:
    for block in blocks():
        yield from blocks_of(block)()


# The losses of rows, and their weighted mean as a function of log T.


def brier_rows(
    block: Float64s, labels: Labels, temperature: float, derivatives: bool
) -> list[Float64s]:
    """Return ||p - y||^2 of every row, and its derivatives with respect to s = log T.

    With u = z/T and d = u - E_p[u]: dp/ds = -p d and dd/ds = Var_p[u] - d.
    """
    columns = np.arange(block.shape[1])
    u, p = _softmax(block, temperature)
    p_y = p[labels, columns]
    squares = _sum_of_products(p, p)
    loss = squares - 2 * p_y + 1
    if not derivatives:
        return [loss]
    u -= _sum_of_products(p, u)  # u is d from here on
    d_y = u[labels, columns]
    q = p * u
    variance = _sum_of_products(q, u)
    cross = _sum_of_products(p, q)
    slope = 2 * (p_y * d_y - cross)
    curvature = (
        4 * _sum_of_products(q, q)
        + 2 * cross
        - 2 * variance * squares
        - 2 * p_y * (d_y * d_y + d_y - variance)
    )
    return [loss, slope, curvature]


def nll_rows(
    block: Float64s, labels: Labels, temperature: float, derivatives: bool
) -> list[Float64s]:
    """Return -log p_y of every row, and its derivatives with respect to s = log T."""
    columns = np.arange(block.shape[1])
    u, p = _softmax(block, temperature)
    loss = np.log(exp(u).sum(axis=0)) - u[labels, columns]
    if not derivatives:
        return [loss]
    u -= _sum_of_products(p, u)
    d_y = u[labels, columns]
    return [loss, d_y, _sum_of_products(p * u, u) - d_y]


def _softmax(block: Float64s, temperature: float) -> tuple[Float64s, Float64s]:
    u = block / temperature
    p = exp(u)
    p /= p.sum(axis=0)
    return u, p


def _sum_of_products(left: Float64s, right: Float64s) -> Float64s:
    products: Float64s = np.einsum("km,km->m", left, right)
    return products


# Of a class-major block, labels and T: each row's loss and, where asked for, its derivatives.
ROW_LOSSES: dict[Loss, Callable[[Float64s, Labels, float, bool], list[Float64s]]] = {
    "brier": brier_rows,
    "nll": nll_rows,
}


class _Objective:
    """The weighted loss of fixed rows, in class-major blocks, as a function of log T."""

    def __init__(
        self,
        blocks: Callable[[], Iterable[Float64s]],
        labels: Labels,
        weights: Float64s,
        loss: Loss,
    ) -> None:
        self._blocks, self._labels, self._weights = blocks, labels, weights
        self._of_rows = ROW_LOSSES[loss]
        self._total = float(weights.sum())

    def value(self, log_t: float) -> float:
        """Return the loss at log T."""
        return self._sum(log_t, derivatives=False)[0]

    def derivatives(self, log_t: float) -> tuple[float, float, float]:
        """Return the loss and its first two derivatives with respect to log T."""
        return self._sum(log_t, derivatives=True)

    def _sum(self, log_t: float, *, derivatives: bool) -> tuple[float, float, float]:
        sums = np.zeros(3)
        start = 0
        for block in self._blocks():
            stop = start + block.shape[1]
            rows = self._of_rows(block, self._labels[start:stop], math.exp(log_t), derivatives)
            weights = self._weights[start:stop]
            # Not np.dot: BLAS would wake its threads for it, which a busy machine pays dearly.
            sums[: len(rows)] += [(weights * row).sum() for row in rows]
            start = stop
        loss, slope, curvature = (sums / self._total).tolist()
        return loss, slope, curvature


# The search over log T.


@dataclass(frozen=True)
class _Point:
    log_t: float
    loss: float
    limit: Limit | None = None


def _interior_minima(values: Float64s) -> list[int]:
    """Return the grid points lower than their surroundings on both sides; of a plateau, the middle.

    A plateau that reaches an end of the grid is not interior.
    """
    tie = _TIE * max(1.0, float(np.abs(values).max()))
    minima, left = [], 0
    for index in range(1, len(values)):
        if values[index] < values[left] - tie:
            left, falling = index, True
        elif values[index] > values[left] + tie:
            if left > 0 and falling:
                minima.append((left + index - 1) // 2)
            left, falling = index, False
    return minima


def _refined(objective: _Objective, start: float, step: float, low: float, high: float) -> _Point:
    """Descend from `start` to the local minimum: Newton inside a bracket, else bisection."""
    log_t, left, right = float(start), low, high
    value = math.nan
    for _ in range(_MAX_STEPS):
        value, slope, curvature = objective.derivatives(log_t)
        if slope < 0:
            left = log_t
        else:
            right = log_t
        # Where the loss is not convex, the slope gives the direction alone; at most a grid step.
        move = -slope / curvature if curvature > 0 else -math.copysign(step, slope)
        move = max(-step, min(step, move))
        if not left <= log_t + move <= right:
            move = (left + right) / 2 - log_t
        log_t += move
        if abs(move) < _TOLERANCE:
            break
    return _Point(log_t, value)


def _limits(objective: _Objective, grid: Float64s, values: Float64s) -> list[_Point]:
    """Return the ends of the grid that are its lowest point, with the loss of all rows there."""
    lowest = values.min() + _TIE * max(1.0, float(np.abs(values).max()))
    ends: list[tuple[int, Limit]] = [(0, "lower"), (len(grid) - 1, "upper")]
    return [
        _Point(float(grid[index]), objective.value(float(grid[index])), name)
        for index, name in ends
        if values[index] <= lowest
    ]


def _best(points: list[_Point]) -> _Point:
    lowest = min(point.loss for point in points)
    tied = [point for point in points if point.loss <= lowest + _TIE * max(1.0, abs(lowest))]
    # A limit wins no tie against a minimum inside the interval.
    return min(tied, key=lambda point: (point.limit is not None, abs(point.log_t)))
