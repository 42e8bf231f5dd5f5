"""Bootstrap intervals of metrics, and of differences between two calibrations.

Rows are counted in a histogram, and resamples are drawn from the counts. So the time hardly depends
on the number of rows.

- Mean confidence and mean losses have percentile intervals.
- The accuracy has Wilson's (1927) interval or an exact interval (`odds.interval_of_counts`).
- The AUROC has Wilson's interval with an effective number of rows (`ranks_interval`).

**The ECE.** Percentiles of resampled ECEs are biased, because noise makes an ECE larger. Even a
calibrated forecaster has resampled ECEs above 0. So the interval contains every true ECE that a
test does not reject.

- A hypothesis assumes a gap d_b (confidence minus accuracy) in every bin b.
- Two hypotheses are tested for every possible true ECE. The first hypothesis has gaps only in bins
  with significant gaps. The second hypothesis has gaps in proportion to their standard errors.
  Noise adds most to the ECE of the first hypothesis, and least to the ECE of the second.
- A hypothesis is rejected if the observed ECE is too far from the median of ECE*.

| symbol | meaning |
|---|---|
| sum_b n_b/n abs(d_b) | true ECE of a hypothesis |
| sum_b abs(n*_b/n d_b + e_b) | ECE* of a resample; n* is multinomial, and e_b is binomial noise |

The lower end is 0 if a true ECE of 0 passes two more tests. The two tests share one error
probability:

- Consistency resampling (Broecker & Smith 2007) draws labels from the confidences. The test rejects
  if the observed ECE is larger than nearly all resampled ECEs.
- The second test compares mean confidence with accuracy. The ECE is at least their difference
  (Jensen).

**Rare errors.** If no prediction is wrong, no resample has an error. So if fewer than `FEW`
predictions are wrong, rows are resampled with and without an extra row that has a wrong prediction.
The interval contains both percentile intervals. In the same way, an extra row with a right
prediction is added if fewer than `FEW` predictions are right.

Levels close to 1 would need too many resamples. The interval is then computed at a lower level, and
widened by the ratio of normal quantiles.

**Differences.** Two calibrations on the same rows are compared with paired resamples.

- Brier score and log loss: percentile interval of the mean difference.
- AUROC: Student's t interval with the variance of DeLong, DeLong & Clarke-Pearson (1988). One right
  row and one wrong row are added, because a normal interval is too short with few wrong rows.
- ECE: the percentile interval, joined with the basic bootstrap interval (Davison & Hinkley 1997,
  section 5.2).
- Class gap: the same intervals as for the ECE, for at most 145 classes (with 15 bins).
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from covcal_cli.arrays import Float64s, Integers, Labels
from covcal_cli.evaluate.bins import CORRECTNESS, Bins, ConfidenceBlock, ValueCells, over, under
from covcal_cli.evaluate.metrics import METRICS, Metrics
from covcal_cli.evaluate.ranked import Auroc
from covcal_cli.maths.odds import FEW, interval_of_counts, quantile, wilson

LEVEL = 0.95
RESAMPLES = 1000  # default number of resamples
Interval = tuple[float, float]
# Selects the gaps to add up: all, over-confident or under-confident gaps.
Part = Callable[[Float64s], Float64s]
_SIGNIFICANT = 2.0  # smallest significant gap, in standard errors
_GRID = 48
_BEYOND = 5.0  # Range of tested ECEs around the observed ECE, in standard errors.
_LEAST_BEYOND = 5  # Minimum number of resamples outside an interval.
_MAX_NOISE = 1 << 21
MAX_DRAWS = 1 << 20
# Minimum number of resamples for one group, and maximum number for all groups together.
_FEWEST_OF_GROUP, _OF_ALL_GROUPS = 100, 20_000
GROUP_METRICS = ("accuracy", "ece", "over_ece")
PARTS: dict[str, Part] = {"ece": np.abs, "over_ece": over, "under_ece": under}


@dataclass(frozen=True)
class Resampling:
    """Settings of bootstrap intervals. Equal seeds give equal intervals."""

    resamples: int = RESAMPLES
    seed: int = 0
    level: float = LEVEL  # Confidence level of the intervals.

    @property
    def reached_level(self) -> float:
        """The highest confidence level, up to `level`, for which there are enough resamples."""
        return min(self.level, max(LEVEL, 1 - _LEAST_BEYOND / self.resamples))

    def of_groups(self, groups: int) -> "Resampling":
        """Return the settings for each group, with fewer resamples if there are many groups."""
        most = max(_FEWEST_OF_GROUP, _OF_ALL_GROUPS // max(1, groups))
        return replace(self, resamples=min(self.resamples, most))


def intervals(
    metrics: Metrics, resampling: Resampling, names: Collection[str] | None = None
) -> dict[str, Interval]:
    """Return the intervals of the metrics in `names`, by default of all metrics.

    `metrics` must come from a `MetricsAccumulator` with `keep_losses`. Metrics without an interval
    are left out.
    """
    names, level = metrics.names if names is None else names, resampling.level
    shares = {
        name: interval_of_counts(round(getattr(metrics, name) * metrics.n), metrics.n, level)
        for name in _of_kind("share", names)
    }
    ranks = {
        name: ranks_interval(metrics.ranking, level)
        for name in _of_kind("ranks", names)
        if metrics.ranking is not None
    }
    means = {
        name: mean_interval(
            *metrics.losses[name].filled(),
            resampling,
            hypothetical_losses(name, metrics.bins) if name in LOSSES else (),
        )
        for name in _of_kind("mean", names)
    }
    parts = {}
    if not PARTS.keys().isdisjoint(names):
        parts = ece_intervals(metrics.bins, resampling)
    gaps = {name: parts[name] for name in PARTS if name in names}
    for name in _of_kind("gaps", names):
        bins: Bins | None = getattr(metrics, METRICS[name].bins)
        if name not in PARTS and bins is not None:
            gaps[name] = ece_interval(bins, resampling)
    return shares | ranks | means | gaps


def ece_intervals(bins: Bins, resampling: Resampling) -> dict[str, Interval]:
    """Return the intervals of the ECE, and of its over- and under-confident parts."""
    parts = {name: ece_interval(bins, resampling, part) for name, part in PARTS.items()}
    least, most = parts["ece"][0], max(high for _, high in parts.values())
    return {name: (min(low, least), high) for name, (low, high) in parts.items()} | {
        "ece": (least, most)
    }


def group_interval(metric: str, bins: Bins, resampling: Resampling) -> Interval:
    """Return the interval of a metric in `GROUP_METRICS` for a non-empty group."""
    if metric == "accuracy":
        return interval_of_counts(int(bins.hits.sum()), bins.n, resampling.level)
    return ece_interval(bins, resampling, PARTS[metric])


def _of_kind(kind: str, names: Collection[str]) -> list[str]:
    return [name for name in METRICS if name in names and METRICS[name].interval == kind]


def stretched(interval: Interval, middle: float, level: float, wanted: float) -> Interval:
    """Widen an interval from one level to another, by the ratio of normal quantiles."""
    if wanted == level:
        return interval
    factor = quantile(wanted) / quantile(level)
    low, high = interval
    return middle - factor * (middle - low), middle + factor * (high - middle)


def ranks_interval(area: Auroc, level: float = LEVEL) -> Interval:
    """Return Wilson's interval of an AUROC, with an effective number of rows.

    The effective number of rows is at least min(right rows, wrong rows) (Birnbaum & Klose 1957).
    """
    n: float = min(area.right, area.wrong)
    if area.variance > 0 and n >= FEW:  # with fewer rows, the variance is unreliable
        n = max(n, area.value * (1 - area.value) / area.variance)
    return wilson(area.value, n, level)


def mean_interval(
    counts: Integers, values: Float64s, resampling: Resampling, more: Sequence[float] = ()
) -> Interval:
    """Return the percentile interval of a mean, where `counts[i]` rows have `values[i]`.

    `more` holds the values of extra rows (see "Rare errors" in the module's docstring).
    """
    middle = float(counts @ values) / int(counts.sum())

    def percentiles(counts: Integers, values: Float64s) -> Interval:
        n = int(counts.sum())
        counts, values = _coarser(counts, values)
        return _percentiles(counts, lambda drawn: drawn @ values / n, resampling)

    ends = percentiles(counts, values)
    if more:
        ones = np.ones(len(more), dtype=np.int64)
        ends = _hull(ends, percentiles(np.append(counts, ones), np.append(values, more)))
    return stretched(ends, middle, resampling.reached_level, resampling.level)


def _hull(first: Interval, second: Interval) -> Interval:
    return min(first[0], second[0]), max(first[1], second[1])


def _percentiles(
    counts: Integers | Float64s, statistic: Callable[[Integers], Float64s], resampling: Resampling
) -> Interval:
    rng, resamples = np.random.default_rng(resampling.seed), resampling.resamples
    n, size = round(float(counts.sum())), max(1, MAX_DRAWS // len(counts))
    values = [
        statistic(rng.multinomial(n, counts / n, size=min(size, resamples - start)))
        for start in range(0, resamples, size)
    ]
    reached = resampling.reached_level
    low, high = np.quantile(np.concatenate(values), [(1 - reached) / 2, (1 + reached) / 2])
    return float(low), float(high)


def _rare_outcomes(right: int, n: int) -> list[bool]:
    """Return the rare outcomes (fewer than `FEW` rows): True for right, False for wrong."""
    return [outcome for outcome, count in ((False, n - right), (True, right)) if count < FEW]


def _loss(name: str, confidence: Float64s, correct: bool) -> Float64s:
    p = np.clip(confidence if correct else 1 - confidence, np.finfo(np.float64).tiny, 1.0)
    if name.endswith("nll"):
        return -np.log(p)
    return np.asarray((1 - p) ** 2 * (2 if name == "brier" else 1))


def _cell_probabilities(counts: Integers, confidence: Float64s, correct: bool) -> Float64s:
    weights = counts * np.clip(confidence if correct else 1 - confidence, 1e-12, 1.0)
    return np.asarray(weights / weights.sum())


def hypothetical_losses(name: str, bins: Bins) -> list[float]:
    """Return the mean loss of an extra right or wrong row, for each rare outcome."""
    filled = bins.counts > 0
    confidence = np.clip(bins.confidence[filled], 0.0, 1.0)
    return [
        float(
            _cell_probabilities(bins.counts[filled], confidence, outcome)
            @ _loss(name, confidence, outcome)
        )
        for outcome in _rare_outcomes(int(bins.hits.sum()), bins.n)
    ]


def _coarser(counts: Integers, values: Float64s) -> tuple[Integers, Float64s]:
    """Join cells whose values differ by less than 1/32 standard deviation."""
    n = counts.sum()
    mean = counts @ values / n
    spread = math.sqrt(counts @ (values - mean) ** 2 / n)
    if spread == 0:
        return counts, values
    _, place = np.unique(np.floor((values - mean) * (32 / spread)), return_inverse=True)
    rows = np.bincount(place, counts).astype(np.int64)
    return rows, np.bincount(place, counts * values) / rows


def ece_interval(bins: Bins, resampling: Resampling, part: Part = np.abs) -> Interval:
    """Return the interval of the ECE or of one part (explained in the module's docstring)."""
    resamples = min(resampling.resamples, max(1, _MAX_NOISE // len(bins.counts)))
    wanted, level = resampling.level, replace(resampling, resamples=resamples).reached_level
    n, filled = int(bins.counts.sum()), bins.counts > 0
    sizes = bins.counts[filled]
    shares = sizes / n
    confidence = np.clip(bins.confidence_sums[filled] / sizes, 0.0, 1.0)
    gaps = confidence - bins.hits[filled] / sizes

    # Add half a right row and half a wrong row, so that no bin has zero variance.
    accuracy = (bins.hits[filled] + 0.5) / (sizes + 1)
    errors = np.sqrt(accuracy * (1 - accuracy) / sizes)
    rng = np.random.default_rng(resampling.seed)
    drawn = rng.multinomial(n, shares, size=resamples)
    noise = (drawn * accuracy - rng.binomial(drawn, accuracy)) / n
    weights = drawn / n

    # Resample the ECE, or its part, as if the true value were 0.
    significant = np.where(np.abs(gaps) > _SIGNIFICANT * errors, gaps, 0.0)
    fixed = significant - _kept(significant, part)
    calibrated = part(noise + weights * fixed).sum(axis=1)
    cut = float(np.median(calibrated))
    observed_part = float(part(gaps) @ shares)
    observed = max(0.0, observed_part - cut)

    # Test possible values of the true ECE near the observed ECE. The variance of the ECE comes from
    # the labels within bins and from the bin sizes.
    between_rows = max(0.0, float(part(gaps) ** 2 @ shares) - observed_part**2) / n
    error = math.sqrt(float((shares * errors) @ (shares * errors)) + between_rows)
    reach = cut + _BEYOND * error
    grid = np.linspace(max(0.0, observed_part - reach), min(1.0, observed_part + reach), _GRID)

    bounds: list[float] = []
    for direction in _directions(confidence, errors, significant, fixed, part):
        worlds = _possible(direction, grid, shares, confidence, part)
        size = max(1, MAX_DRAWS // noise.size)
        consistent = np.concatenate(
            [
                _shares_as_far(
                    part(noise + weights * (fixed + gaps_of[:, None])).sum(axis=2) - cut, observed
                )
                for gaps_of in np.split(worlds, range(size, len(worlds), size))
            ]
        )
        bounds += _crossings(grid[: len(worlds)], consistent, 1 - level)
    low, high = (min(bounds), max(bounds)) if bounds else (observed_part, observed_part)

    # Set the lower end to 0 if neither test rejects a true ECE of 0.
    low, high = stretched((low, high), (low + high) / 2, level, wanted)
    low, high = max(0.0, low), min(1.0, high)
    calibrated_rate = np.where(fixed == 0, confidence, accuracy)
    drawn_errors = (drawn * calibrated_rate - rng.binomial(drawn, calibrated_rate)) / n
    if _is_chance(part(drawn_errors + weights * fixed).sum(axis=1), observed_part, level, wanted):
        low = 0.0
    mean, reach = _mean_gap(shares, confidence, gaps, n, 1 - (1 - wanted) / 2)
    least = np.full((), math.copysign(max(0.0, abs(mean) - reach), mean))
    low = max(low, float(part(least)))
    return min(low, observed_part), max(high, observed_part)


def _is_chance(drawn: Float64s, observed: float, level: float, wanted: float) -> bool:
    if wanted == level:
        return bool((drawn >= observed).mean() > (1 - level) / 2)
    return observed <= float(drawn.mean() + quantile(wanted) * drawn.std())


def mean_gap_interval(bins: Bins, level: float = LEVEL) -> tuple[float, Interval]:
    """Return mean confidence minus accuracy, and its interval.

    The interval uses the normal approximation. If few predictions are right or wrong, the interval
    is widened to contain the exact interval.
    """
    filled = bins.counts > 0
    sizes = bins.counts[filled]
    confidence = np.clip(bins.confidence_sums[filled] / sizes, 0.0, 1.0)
    gaps = confidence - bins.hits[filled] / sizes
    shares = sizes / bins.n
    mean, reach = _mean_gap(shares, confidence, gaps, bins.n, level)
    highest = float(confidence @ shares)  # the gap if all rows are wrong
    ends = mean - reach, mean + reach
    right = int(bins.hits.sum())
    if _rare_outcomes(right, bins.n):
        low, high = interval_of_counts(right, bins.n, level)
        ends = _hull(ends, (highest - high, highest - low))
    return mean, (max(ends[0], highest - 1), min(ends[1], highest))


def _mean_gap(
    shares: Float64s, confidence: Float64s, gaps: Float64s, n: int, level: float
) -> tuple[float, float]:
    """Return the mean gap, and half the width of its interval.

    The variance is at least that of a calibrated forecaster, so the width is never 0.
    """
    mean = float(gaps @ shares)
    accuracy = confidence - gaps
    within = max(float(shares @ (rate * (1 - rate))) for rate in (accuracy, confidence))
    between = max(0.0, float(shares @ gaps**2) - mean**2)
    return mean, quantile(level) * math.sqrt((within + between) / n)


def _kept(gaps: Float64s, part: Part) -> Float64s:
    return np.where(part(gaps) > 0, gaps, 0.0)


def _directions(
    confidence: Float64s, errors: Float64s, significant: Float64s, fixed: Float64s, part: Part
) -> Iterator[Float64s]:
    """Yield the gaps of each hypothesis, which are then scaled to a true ECE."""
    concentrated = _kept(significant, part)
    if concentrated.any():
        yield concentrated
    signs = np.where(confidence < 0.5, -1.0, 1.0)
    if part is over:
        signs = np.ones(len(confidence))
    elif part is under:
        signs = -np.ones(len(confidence))
    like_noise = np.where(fixed == 0, signs * errors, 0.0)
    if like_noise.any():
        yield like_noise


def _possible(
    direction: Float64s, grid: Float64s, shares: Float64s, confidence: Float64s, part: Part
) -> Float64s:
    """Scale the gaps `direction` to each ECE in `grid`, shape (ECEs, bins)."""
    moved = direction != 0
    ends = np.where(direction > 0, confidence, confidence - 1)[moved] / direction[moved]
    factors = np.unique(np.append(0.0, ends))

    def gaps(factors: Float64s) -> Float64s:
        return np.clip(factors[:, None] * direction, confidence - 1, confidence)

    # Between two neighbouring `factors`, the ECE is a linear function of the factor.
    totals = part(gaps(factors)) @ shares
    return gaps(np.interp(grid[grid <= totals[-1]], totals, factors))


def _shares_as_far(resampled: Float64s, observed: float) -> Float64s:
    """Return the two-sided p-value of `observed` for each row of `resampled`."""
    cut_off = np.maximum(resampled, 0.0)
    medians = np.median(cut_off, axis=1, keepdims=True)
    shares: Float64s = (np.abs(cut_off - medians) >= np.abs(observed - medians)).mean(axis=1)
    return shares


def _crossings(grid: Float64s, shares: Float64s, least: float) -> list[float]:
    inside = np.flatnonzero(shares > least)
    if len(inside) == 0:
        return []
    first, last = int(inside[0]), int(inside[-1])
    low, high = float(grid[first]), float(grid[last])
    if first > 0:
        low = float(np.interp(least, shares[first - 1 : first + 1], grid[first - 1 : first + 1]))
    if last < len(grid) - 1:
        ends = slice(last, last + 2)
        high = float(np.interp(least, shares[ends][::-1], grid[ends][::-1]))
    return [low, high]


LOSSES = ("brier", "nll", *CORRECTNESS)  # Proper scores, averaged over rows.
# Cells of confidence have equal width in log odds.
_ODDS = 1 / (1 + np.exp(-np.arange(-16, 16.25, 0.25)))
_MAX_CELLS = 1_000_000
_MAX_CLASS_CELLS = 1 << 17


@dataclass(frozen=True)
class Difference:
    """The difference of a metric between two calibrations, with an interval."""

    calibration: str
    against: str
    metric: str
    value: float
    low: float
    high: float

    @property
    def direction(self) -> int:
        """1 if `calibration` is worse, -1 if better, 0 if nothing is proved."""
        above = int(self.low > 0) - int(self.high < 0)
        return -above if METRICS[self.metric].better == "higher" else above


class PairedRows:
    """Joint counts of rows by their confidence in a first and in a second calibration.

    `n_classes` must be 1 if the calibrations predict different labels. `names` are the metrics.
    """

    def __init__(
        self, bins: int, n_classes: int = 1, names: Collection[str] = tuple(METRICS)
    ) -> None:
        self._names = names
        self._bins = bins
        cells = 4 * bins**2
        if cells > _MAX_CELLS:
            cells = 0
        by_class = "class_gap" in names and 0 < cells * n_classes <= _MAX_CLASS_CELLS
        classes = n_classes if by_class else 1
        self._counts = np.zeros((classes, cells), dtype=np.int64)
        self._confidence = np.zeros((2, classes, cells))
        self._losses = {name: ValueCells() for name in LOSSES if name in names}
        # Index on the axis of each calibration: 2 * cell of the confidence + (1 if right).
        shape = (2 * len(_ODDS) + 2, 2 * len(_ODDS) + 2)
        self._ranked = np.zeros(shape, dtype=np.int64)

    def add(
        self, first: ConfidenceBlock, second: ConfidenceBlock, predicted: Labels | None = None
    ) -> None:
        """Add a block of m rows.

        `predicted`, shape (m,), are the labels that both calibrations predict.
        """
        for name, cells in self._losses.items():
            cells.add(second.losses[name] - first.losses[name])
        if "correctness_auroc" in self._names:
            places = [
                2 * np.searchsorted(_ODDS, rows.confidence) + rows.correct
                for rows in (first, second)
            ]
            joint = places[0] * len(self._ranked) + places[1]
            counts = np.bincount(joint, minlength=self._ranked.size)
            self._ranked += counts.reshape(self._ranked.shape)
        size = self._counts.size
        if size == 0:
            return
        joint = (first.index * self._bins + second.index) * 4
        joint += first.correct * 2 + second.correct
        shape = self._counts.shape
        if predicted is not None and shape[0] > 1:
            joint += predicted * shape[1]
        self._counts += np.bincount(joint, minlength=size).reshape(shape)
        for sums, rows in zip(self._confidence, (first, second), strict=True):
            sums += np.bincount(joint, rows.confidence, minlength=size).reshape(shape)

    def differences(
        self,
        calibration: str,
        against: str,
        resampling: Resampling,
        areas: tuple[float | None, float | None] = (None, None),
    ) -> list[Difference]:
        """Return the metrics of the second calibration minus the metrics of the first."""
        differences = []
        for name, rows, sides in self._gaps():
            if name in self._names:
                value, ends = _of_gaps(rows, sides, resampling)
                differences.append(Difference(calibration, against, name, value, *ends))
        for name, cells in self._losses.items():
            counts, values = cells.filled()
            ends = mean_interval(counts, values, resampling, self._hypothetical_differences(name))
            value = float(counts @ values / counts.sum())
            differences.append(Difference(calibration, against, name, value, *ends))
        before, after = areas
        if before is not None and after is not None and "correctness_auroc" in self._names:
            value, reach = after - before, self._reach_of_areas(resampling.level)
            ends = (value - reach, value + reach)
            differences.append(Difference(calibration, against, "correctness_auroc", value, *ends))
        return differences

    def _hypothetical_differences(self, name: str) -> list[float]:
        counts = self._counts.sum(axis=0)
        filled = np.flatnonzero(counts)
        if len(filled) == 0:
            return []
        counts = counts[filled]
        first, second = np.clip(self._confidence.sum(axis=1)[:, filled] / counts, 0.0, 1.0)
        right = int(counts[filled % 4 == 3].sum())
        return [
            float(
                _cell_probabilities(counts, (first + second) / 2, outcome)
                @ (_loss(name, second, outcome) - _loss(name, first, outcome))
            )
            for outcome in _rare_outcomes(right, int(counts.sum()))
        ]

    def _reach_of_areas(self, level: float) -> float:
        """Return half the width of the interval of a difference of AUROCs.

        The variance includes one extra wrong row and one extra right row.
        """
        totals = [self._ranked.sum(axis=1 - axis) for axis in (0, 1)]
        first, second = map(_influence, totals)
        apart = (second - first[:, None]) ** 2
        squares = float((self._ranked * apart).sum())
        cells = len(_ODDS) + 1
        rows = self._ranked.reshape(cells, 2, cells, 2).sum(axis=(1, 3))
        middle = (np.append(0.0, _ODDS) + np.append(_ODDS, 1.0)) / 2
        confidence = (middle + middle[:, None]) / 2
        for outcome in (0, 1):
            weights = _cell_probabilities(rows, confidence, bool(outcome))
            squares += float((weights * apart[outcome::2, outcome::2]).sum())
        rarer = min(int(counts[outcome::2].sum()) for counts in totals for outcome in (0, 1))
        # Approximate quantile of Student's t distribution with `rarer` degrees of freedom.
        z = quantile(level)
        return z * (1 + (z**2 + 1) / (4 * rarer)) * math.sqrt(squares) / int(rows.sum())

    def _gaps(self) -> Iterator[tuple[str, Integers, list["_Side"]]]:
        classes, size = self._counts.shape
        if size == 0:
            return
        cells = np.arange(classes * size)
        bins, predicted = cells[:size] // 4, cells // size
        places = bins // self._bins, bins % self._bins
        yield "ece", *_filled(self._counts.sum(axis=0), self._confidence.sum(axis=1), places)
        if classes > 1:
            confidence = self._confidence.reshape(2, -1)
            yield "class_gap", *_filled(self._counts.ravel(), confidence, (predicted, predicted))


@dataclass(frozen=True)
class _Side:
    place: Integers
    gaps: Float64s

    def total(self, drawn: Integers) -> Float64s:
        order = np.argsort(self.place, kind="stable")
        starts = np.flatnonzero(np.diff(self.place[order], prepend=-1))
        sums: Float64s = np.add.reduceat((drawn * self.gaps)[:, order], starts, axis=1)
        total: Float64s = np.abs(sums).sum(axis=1)
        return total


def _filled(
    counts: Integers, confidence: Float64s, places: tuple[Integers, Integers]
) -> tuple[Integers, list[_Side]]:
    cells = np.flatnonzero(counts)
    rows = counts[cells]
    right = cells // 2 % 2, cells % 2
    return rows, [
        _Side(place[cells], sums[cells] / rows - correct)
        for place, sums, correct in zip(places, confidence, right, strict=True)
    ]


def _of_gaps(
    counts: Integers, sides: Sequence[_Side], resampling: Resampling
) -> tuple[float, Interval]:
    n = int(counts.sum())

    def percentiles(counts: Integers | Float64s, sides: Sequence[_Side]) -> Interval:
        first, second = sides
        return _percentiles(
            counts, lambda drawn: (second.total(drawn) - first.total(drawn)) / n, resampling
        )

    first, second = (float(side.total(counts[None])[0]) / n for side in sides)
    value = second - first
    low, high = percentiles(counts, sides)
    ends = min(low, 2 * value - high), max(high, 2 * value - low)
    more = _with_hypothetical_rows(counts, sides)
    if more is not None:
        ends = _hull(ends, percentiles(*more))
    return value, stretched(ends, value, resampling.reached_level, resampling.level)


def _with_hypothetical_rows(
    counts: Integers, sides: Sequence[_Side]
) -> tuple[Float64s, Sequence[_Side]] | None:
    """Add an extra row for each rare outcome. Return None if no outcome is rare."""
    right = np.all([side.gaps < 0 for side in sides], axis=0)
    rows, places = counts.astype(np.float64), np.arange(len(counts))
    moved = np.zeros(len(counts))
    for outcome in _rare_outcomes(int(counts[right].sum()), int(counts.sum())):
        cells = np.flatnonzero(right != outcome)
        if len(cells) == 0:
            continue
        change = -1.0 if outcome else 1.0
        confidence = np.mean([side.gaps[cells] for side in sides], axis=0) + (not outcome)
        rows = np.append(
            rows, _cell_probabilities(counts[cells], np.clip(confidence, 0, 1), outcome)
        )
        places, moved = np.append(places, cells), np.append(moved, np.full(len(cells), change))
    if len(places) == len(counts):
        return None
    return rows, [_Side(side.place[places], side.gaps[places] + moved) for side in sides]


def _influence(counts: Integers) -> Float64s:
    """For each cell, return how much one row of the cell changes the AUROC."""
    wrong, right = counts[::2], counts[1::2]
    below, above = np.cumsum(wrong) - wrong / 2, right.sum() - np.cumsum(right) + right / 2
    placed = np.stack([above / right.sum(), below / wrong.sum()], axis=1)
    area = float(right @ placed[:, 1]) / right.sum()
    shares = np.array([wrong.sum(), right.sum()]) / counts.sum()
    influence: Float64s = ((placed - area) / shares).ravel()
    return influence
