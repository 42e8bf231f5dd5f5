"""Fit the temperature T of softmax(z / T) to labelled rows.

The loss can have several minima in T. A grid search in log T finds the minima on a sample of rows,
and Newton steps refine each minimum on all rows. The result is the T with the lowest loss among the
minima, both ends of the interval, and T = 1 (MATHEMATICS, section 4).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from covcal_cli.arrays import Float32s, Float64s, Floats, Labels, Rows
from covcal_cli.maths.softmax import MOST_NLL, LogitBlocks, blocks_of, mask_depth, masked, spread

Loss = Literal["brier", "nll"]
Limit = Literal["lower", "upper"]
MIN_ERRORS = 5  # Minimum number of wrong rows to allow T below 1.
# Methods that use an estimated accuracy need more wrong rows to allow T below 1.
MIN_ERRORS_OF_FLOOR = 10
_STEPS_PER_HALVING, _HALVINGS = 3, 27
_GRID_STEP = math.log(2) / _STEPS_PER_HALVING
_GRID_ROWS = 20_000
_GRID_VALUES = 1_000_000
_RANGE = 1e4
_BLOCK = 1 << 17
_TOLERANCE = 1e-6
_SHORT, _SHORT_BY_THREE = 2e-4, 1e-3
_APART = 1e-3
_MAX_STEPS = 60
_TIE = 1e-12
_FEW_CLASSES = 32


@dataclass(frozen=True)
class TemperatureFit:
    """A fitted temperature and its loss."""

    temperature: float  # Above 0; a value above 1 lowers confidence.
    loss: float  # Weighted mean loss at `temperature`.
    loss_at_one: float
    at_limit: Limit | None  # Whether T is an end of the search interval.
    held_at_one: bool  # Whether a T below 1 had a lower loss, but was not allowed.
    local_minima: int
    ruled_out: int = 0


def fit_temperature(
    logits: Floats | LogitBlocks,
    labels: Labels,
    weights: Float64s | None = None,
    *,
    loss: Loss = "brier",
    allow_sharpening: bool = True,
    seed: int = 0,
) -> TemperatureFit:
    """Fit T to labelled rows, with an error of at most 1e-6 in log T.

    - `logits`, (n, K): finite or -inf, as an array, or as a function that yields blocks of rows.
    - `labels`, (n,): class numbers from 0 to K-1.
    - `weights`, (n,): weight of each row, not negative. Only ratios matter.
    - `allow_sharpening`: whether T may be below 1.
    - `seed`: random seed of the sample for the grid search.

    Raises `ValueError` if there are no rows, or if weights are negative or sum to 0.
    """
    blocks = logits if callable(logits) else blocks_of(logits)
    row_weights = np.ones(len(labels)) if weights is None else np.asarray(weights, np.float64)
    if len(row_weights) != len(labels):
        raise ValueError(f"there are {len(row_weights)} weights, but {len(labels)} labels")
    if len(labels) == 0 or not 0 < row_weights.sum() < math.inf or row_weights.min() < 0:
        raise ValueError(
            "a temperature needs rows with finite, non-negative weights that are not all zero"
        )
    sample = _Sample.drawn(blocks, labels, row_weights, seed)
    depth = mask_depth(sample.logits, sample.weights)
    scale = spread(sample.logits, masked(sample.logits, depth), sample.weights)
    shift = _Shift.within(depth, max(1.0, _RANGE * scale))
    all_rows = _Objective(
        lambda: map(shift, (part for block in blocks() for part in _cut(block, _BLOCK))),
        labels,
        row_weights,
        loss,
        shift.floor,
    )
    if scale == 0:
        _, (loss_at_one,) = all_rows.at([], [0.0])
        return TemperatureFit(1.0, loss_at_one, loss_at_one, None, False, 0, all_rows.ruled_out)
    shifted = [shift(block) for block in _cut(sample.logits, _BLOCK)]
    few_rows = _Objective(lambda: shifted, sample.labels, sample.weights, loss, shift.floor)
    search = _Search(math.log(scale / _RANGE), math.log(scale * _RANGE))
    minima, at_one = search.minima(few_rows, all_rows)
    best, is_held = _chosen(minima, at_one, allow_sharpening)
    return TemperatureFit(
        math.exp(best.log_t),
        best.loss,
        at_one.loss,
        best.limit,
        is_held,
        sum(point.limit is None for point in minima),
        all_rows.ruled_out,
    )


@dataclass(frozen=True)
class _Point:
    log_t: float
    loss: float
    limit: Limit | None = None


def _chosen(minima: list[_Point], at_one: _Point, allow_sharpening: bool) -> tuple[_Point, bool]:
    candidates, is_held = minima, False
    if not allow_sharpening:
        allowed = [point for point in minima if point.log_t >= 0]
        is_held = _best(minima) not in allowed
        candidates = [*allowed, at_one]
    best = _best(candidates)
    return (at_one if best.loss > at_one.loss else best), is_held


@dataclass(frozen=True)
class _Sample:
    logits: Floats  # (m, K)
    labels: Labels
    weights: Float64s

    @classmethod
    def drawn(cls, blocks: LogitBlocks, labels: Labels, weights: Float64s, seed: int) -> "_Sample":
        """Draw a random sample that fits in memory."""
        n_classes = next(block.shape[1] for block in blocks())
        rows, copies = _sampled_rows(weights, min(_GRID_ROWS, _GRID_VALUES // n_classes), seed)
        start = 0
        chosen: list[Floats] = []
        for block in blocks():
            stop = start + len(block)
            inside = rows[np.searchsorted(rows, start) : np.searchsorted(rows, stop)]
            chosen.append(np.asarray(block)[inside - start])
            start = stop
        if start != len(labels):
            raise ValueError(f"there are {start} rows of logits, but {len(labels)} labels")
        if labels.min() < 0 or labels.max() >= n_classes:
            raise ValueError(f"a label is not a number from 0 to {n_classes - 1}")
        return cls(np.concatenate(chosen), labels[rows], copies)


def _sampled_rows(weights: Float64s, most: int, seed: int) -> tuple[Rows, Float64s]:
    """Draw `most` rows with probabilities given by `weights` (systematic sampling).

    Return the drawn row numbers, and how often each row was drawn.
    """
    if len(weights) <= most:
        return np.arange(len(weights)), weights
    cells = np.arange(most) + np.random.default_rng(seed).random(most)
    cumulated = np.cumsum(weights)
    drawn = np.searchsorted(cumulated, cells * (cumulated[-1] / most), side="right")
    rows, copies = np.unique(np.minimum(drawn, len(weights) - 1), return_counts=True)
    return rows, copies.astype(np.float64)


def _cut(logits: Floats, values: int) -> Iterator[Floats]:
    rows = max(1, values // logits.shape[1])
    for start in range(0, len(logits), rows):
        yield logits[start : start + rows]


@dataclass(frozen=True)
class _Shift:
    """Converts logits, (m, K), to float32, (K, m), and subtracts each row's highest logit."""

    depth: float
    floor: float  # replaces -inf

    @classmethod
    def within(cls, depth: float, highest_t: float) -> "_Shift":
        floor = -float(np.float32(2 * MOST_NLL * highest_t))
        return cls(min(depth, -floor), floor)

    def __call__(self, block: Floats) -> Float32s:
        wide = np.float64 if block.dtype == np.float64 else np.float32
        columns: Floats = block.T
        if len(columns) < _FEW_CLASSES:
            columns = np.array(columns, dtype=wide, order="C")
        values: Floats = np.subtract(columns, columns.max(axis=0), dtype=wide)
        if values.min() < -self.depth:
            values[values < -self.depth] = self.floor
        return values.astype(np.float32, copy=False)


def brier_rows(
    block: Floats, labels: Labels, temperature: float, derivatives: bool
) -> list[Float64s]:
    """Return the Brier score ||p - y||^2 of each row, and two derivatives in s = log T.

    Logits, (K, m), must be finite. The highest logit of each row must be 0.

    | symbol | meaning |
    |---|---|
    | u, d | z/T, u - E_p[u] |
    | dp/ds, dd/ds | -p d, Var_p[u] - d |
    """
    u, e = _exponentials(block, temperature)
    total = _sums(e)
    p_y = e[labels, np.arange(block.shape[1])] / total
    squares = _products(e, e) / total**2
    loss = squares - 2 * p_y + 1
    if not derivatives:
        return [loss]
    weighted = e * u
    mean = _sums(weighted) / total
    variance = _products(weighted, u) / total - mean**2
    first, second = _products(e, weighted) / total**2, _products(weighted, weighted) / total**2
    cross = first - mean * squares
    d_y = _label_logits(block, labels) / temperature - mean
    slope = 2 * (p_y * d_y - cross)
    curvature = (
        4 * (second - 2 * mean * first + mean**2 * squares)
        + 2 * cross
        - 2 * variance * squares
        - 2 * p_y * (d_y * d_y + d_y - variance)
    )
    return [loss, slope, curvature]


def nll_rows(
    block: Floats, labels: Labels, temperature: float, derivatives: bool
) -> list[Float64s]:
    """Return the log loss of each row, at most `MOST_NLL`, and two derivatives in log T."""
    u, e = _exponentials(block, temperature)
    total = _sums(e)
    u_y = _label_logits(block, labels) / temperature
    loss = np.log(total) - u_y
    lost = loss > MOST_NLL
    loss[lost] = MOST_NLL
    if not derivatives:
        return [loss]
    weighted = e * u
    mean = _sums(weighted) / total
    variance = _products(weighted, u) / total - mean**2
    slope = u_y - mean
    curvature = variance - slope
    slope[lost] = curvature[lost] = 0.0
    return [loss, slope, curvature]


def _exponentials(block: Floats, temperature: float) -> tuple[Floats, Floats]:
    with np.errstate(over="ignore"):
        u: Floats = np.multiply(block, 1 / temperature, dtype=np.float32, casting="same_kind")
    e = np.exp(u)
    return (_wide(u), _wide(e)) if len(block) < _FEW_CLASSES else (u, e)


def _sums(values: Floats) -> Float64s:
    return _wide(np.einsum("km->m", values))


def _products(left: Floats, right: Floats) -> Float64s:
    return _wide(np.einsum("km,km->m", left, right))


def _label_logits(block: Floats, labels: Labels) -> Float64s:
    return _wide(block[labels, np.arange(block.shape[1])])


def _wide(values: Floats) -> Float64s:
    return values.astype(np.float64)


ROW_LOSSES: dict[Loss, Callable[[Floats, Labels, float, bool], list[Float64s]]] = {
    "brier": brier_rows,
    "nll": nll_rows,
}
Derivatives = tuple[float, float, float]  # loss and first two derivatives in log T


class _Objective:
    def __init__(
        self,
        blocks: Callable[[], Iterable[Float32s]],
        labels: Labels,
        weights: Float64s,
        loss: Loss,
        floor: float,
    ) -> None:
        self._blocks, self._labels, self._weights = blocks, labels, weights
        self._loss, self._of_rows, self._floor = loss, ROW_LOSSES[loss], floor
        self._total = float(weights.sum())
        self.ruled_out = 0

    def at(
        self, slopes_at: Sequence[float], values_at: Sequence[float]
    ) -> tuple[list[Derivatives], list[float]]:
        """Return losses with derivatives at the log T `slopes_at`, and losses at `values_at`."""
        points = [*((log_t, True) for log_t in slopes_at), *((log_t, False) for log_t in values_at)]
        sums = np.zeros((len(points), 3))
        start = self.ruled_out = 0
        for block in self._blocks():
            stop = start + block.shape[1]
            labels, weights = self._labels[start:stop], self._weights[start:stop]
            for total, (log_t, derivatives) in zip(sums, points, strict=True):
                rows = self._of_rows(block, labels, math.exp(log_t), derivatives)
                total[: len(rows)] += [(weights * row).sum() for row in rows]
            lowest = (_label_logits(block, labels) <= self._floor) & (weights > 0)
            self.ruled_out += int(np.count_nonzero(lowest))
            start = stop
        means = (sums / self._total).tolist()
        of_slopes = [(loss, slope, bend) for loss, slope, bend in means[: len(slopes_at)]]
        return of_slopes, [loss for loss, _, _ in means[len(slopes_at) :]]

    def below(self, highest: float) -> tuple[Float64s, Float64s]:
        """Return a grid of log T up to `highest`, and the loss at each point.

        T is halved by squaring e^(z/T), because exponentials are slow.
        """
        sums = np.zeros((_HALVINGS, _STEPS_PER_HALVING))
        tops = highest - _GRID_STEP * np.arange(_STEPS_PER_HALVING)
        start = 0
        for block in self._blocks():
            labels = self._labels[start : start + block.shape[1]]
            weights = self._weights[start : start + block.shape[1]]
            start += block.shape[1]
            z, z_y = _wide(block), _label_logits(block, labels)
            powers = np.empty_like(z)
            for place, log_t in enumerate(tops):
                temperature = math.exp(log_t)
                np.exp(np.divide(z, temperature, out=powers), out=powers)
                of_label = np.exp(z_y / temperature)
                total = np.einsum("km->m", powers)
                for halving in range(_HALVINGS):
                    p_y = of_label / total
                    of_label *= of_label
                    powers *= powers
                    squares = np.einsum("km->m", powers)
                    if self._loss == "brier":
                        rows = squares / total**2 - 2 * p_y + 1
                    else:
                        rows = np.log(total) - z_y * (2**halving / temperature)
                        rows = np.minimum(rows, MOST_NLL)
                    sums[halving, place] += (weights * rows).sum()
                    total = squares
        values = sums.ravel()[::-1] / self._total
        steps = np.arange(values.size)[::-1]
        return np.asarray(highest - _GRID_STEP * steps, np.float64), values


def _interior_minima(values: Float64s) -> list[int]:
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


@dataclass
class _Descent:
    """The search for a local minimum by Newton and bisection steps."""

    log_t: float
    left: float
    right: float
    third: float = 0.0
    loss: float = math.nan
    done: bool = False
    _last: tuple[float, float] | None = None

    def move(self, derivatives: Derivatives) -> None:
        value, slope, curvature = derivatives
        if slope < 0:
            self.left = self.log_t
        else:
            self.right = self.log_t
        if self._last is not None and abs(self.log_t - self._last[0]) > _APART:
            self.third = (curvature - self._last[1]) / (self.log_t - self._last[0])
        self._last = self.log_t, curvature
        if curvature > 0:
            step = -slope / curvature
            bend = self.third * step / curvature
            step *= 1 - bend / 2 if abs(bend) < 1 else 1
        else:
            step = -math.copysign(_GRID_STEP, slope)
        step = max(-_GRID_STEP, min(_GRID_STEP, step))
        newton = curvature > 0 and self.left <= self.log_t + step <= self.right
        if not self.left <= self.log_t + step <= self.right:
            step = (self.left + self.right) / 2 - self.log_t
        self.log_t += step
        self.loss = value + step * (slope + step * curvature / 2)
        short = _SHORT_BY_THREE if self.third else _SHORT
        self.done = abs(step) < (short if newton else _TOLERANCE)


@dataclass(frozen=True)
class _Search:
    low: float
    high: float

    def minima(self, few_rows: _Objective, all_rows: _Objective) -> tuple[list[_Point], _Point]:
        """Return the local minima and the ends of the interval, and the point T = 1."""
        grid, values = few_rows.below(self.high)
        starts = [_Descent(float(grid[i]), self.low, self.high) for i in _interior_minima(values)]
        self._refine(few_rows, starts, [])
        ends = self._lowest_ends(values)
        descents = [_Descent(near.log_t, self.low, self.high, near.third) for near in starts]
        loss_at_one, *at_ends = self._refine(all_rows, descents, [0.0, *map(self._end, ends)])
        points = [_Point(descent.log_t, descent.loss) for descent in descents]
        points += [
            _Point(self._end(end), value, end) for end, value in zip(ends, at_ends, strict=True)
        ]
        return points, _Point(0.0, loss_at_one)

    def _refine(
        self, objective: _Objective, descents: Sequence[_Descent], values_at: Sequence[float]
    ) -> list[float]:
        derivatives, values = objective.at([descent.log_t for descent in descents], values_at)
        moving = list(descents)
        for _ in range(_MAX_STEPS):
            for descent, at_descent in zip(moving, derivatives, strict=True):
                descent.move(at_descent)
            moving = [descent for descent in moving if not descent.done]
            if not moving:
                break
            derivatives, _ = objective.at([descent.log_t for descent in moving], [])
        return values

    def _end(self, limit: Limit) -> float:
        return self.low if limit == "lower" else self.high

    def _lowest_ends(self, values: Float64s) -> list[Limit]:
        lowest = values.min() + _TIE * max(1.0, float(np.abs(values).max()))
        ends: list[tuple[float, Limit]] = [(values[0], "lower"), (values[-1], "upper")]
        return [limit for value, limit in ends if value <= lowest]


def _best(points: list[_Point]) -> _Point:
    lowest = min(point.loss for point in points)
    tied = [point for point in points if point.loss <= lowest + _TIE * max(1.0, abs(lowest))]
    return min(tied, key=lambda point: (point.limit is not None, abs(point.log_t)))
