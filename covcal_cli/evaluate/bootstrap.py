"""Compute intervals of metrics, by resampling the rows.

Rows are counted in cells first. A resample draws how many rows each cell has. So ten million rows
take no more time than a thousand.

The mean confidence and mean losses have percentile intervals over the resamples. The accuracy has
Wilson's (1927) interval, because its width is above 0 even if every row is right. The AUROC is a
share of pairs of rows. The AUROC has Wilson's interval too, with an effective number of rows
(`ranks_interval`).

**The ECE.** Percentiles would be wrong here. The ECE is a sum of absolute values, so noise can only
add to it. If a forecaster is calibrated, its true ECE is 0, but all resamples are above 0. So the
interval contains every true ECE that the data do not reject:

- A hypothesis is a gap d_b = confidence - accuracy for every bin. Its true ECE is sum_b n_b/n
  |d_b|. Resampled rows have the ECE* = sum_b |n*_b/n d_b + e_b|, where n* is multinomial and e_b is
  the noise of binomial hits.
- For every true ECE that is tested, there are two hypotheses, which bound how much noise can add.
  `concentrated` scales the gaps that exceed two standard errors, and sets all others to 0; then
  noise adds the most. `even` has the same gap in every bin, in the observed direction; then noise
  adds the least.
- A hypothesis is rejected if the observed ECE is further from the median of the simulated ECE* than
  95 % of the simulations are. A calibrated forecaster has a median simulated ECE. Before the
  comparison, every ECE below that median is raised to it.

The lower end is above 0 only if one of two tests rejects that the forecaster is calibrated. Each
may err with half of the error probability, so both together have the stated level:

- If labels are drawn with the confidences as probabilities, the ECE is smaller than observed (the
  consistency resampling of Broecker & Smith 2007).
- The difference between mean confidence and accuracy is larger than chance explains. The ECE is at
  least this difference, whatever the bins are (Jensen). The difference is a mean over rows, and has
  less noise than the ECE. So the lower end of the ECE's interval is at least the lower end of the
  difference's interval.

The observed ECE may be above its interval. Then most of the observed ECE is noise. A test checks
how often intervals contain the true ECE.

The ECE and its over- and under-confident parts have separate intervals, so a part could seem to be
larger than the whole. Then intervals are widened until both ends of the ECE's interval are at least
the same ends of each part's interval. Wider intervals contain the truth more often.

At a level close to 1, fewer than five resamples are outside the interval. Then the interval is
computed at the highest level with five resamples outside, and widened as for a normal distribution.

**Differences.** Two calibrations on the same rows are compared with paired resamples.

It is not enough to compare their intervals, because chance affects both in the same way. So the two
confidences of a row are kept together: rows are counted in joint cells: one cell for each pair of
confidences. The time of a resample does not depend on the number of rows.

- Brier score and log loss: percentiles of the mean difference of the rows' losses. Both are proper
  scores, so the difference tells which forecast is better.
- AUROC: a normal interval. Its variance is computed from the placements of each row in both
  rankings (DeLong, DeLong & Clarke-Pearson 1988). Placements are computed from cells of confidence
  with equal width in log odds.
- ECE: noise adds to both values, and more to the smaller one. So the observed difference is too
  close to 0, and resampled differences are even closer. The interval therefore contains the
  percentiles of the resampled differences, and their mirror image at the observed difference (the
  basic bootstrap interval, Davison & Hinkley 1997, section 5.2). If an error remains, the interval
  contains 0 too often; a test checks this.
- Class gap: a sum of absolute values, with the same interval as the ECE. This needs joint cells for
  every class, so with more than a few hundred classes there is no interval.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import Float64s, Integers, Labels
from covcal_cli.evaluate.bins import CORRECTNESS, Bins, ConfidenceBlock, ValueCells, over, under
from covcal_cli.evaluate.metrics import METRICS, Metrics
from covcal_cli.evaluate.ranked import Auroc
from covcal_cli.maths.odds import quantile, wilson

LEVEL = 0.95
RESAMPLES = 1000  # usual number of draws
Interval = tuple[float, float]
# Maps gaps to the parts that are summed: absolute values, or only over- or under-confident gaps.
Part = Callable[[Float64s], Float64s]
_SIGNIFICANT = 2.0  # a gap is significant if it exceeds this many standard errors
_GRID = 48  # number of true ECEs that are tested
_BEYOND = 5.0  # the tested ECEs are at most this many standard errors from the observed ECE
_LEAST_BEYOND = 5  # at least this many resamples must be outside an interval
# The most numbers that are drawn for the noise of bins. With many bins there are fewer resamples.
_MAX_NOISE = 1 << 21
MAX_DRAWS = 1 << 20  # the most numbers drawn at a time, which limits memory
_FEWEST_OF_GROUP, _OF_ALL_GROUPS = 100, 20_000  # numbers of resamples
GROUP_METRICS = ("accuracy", "ece", "over_ece")  # metrics with intervals for groups of rows
# The ECE and its parts. All other sums of gaps use absolute values.
_PARTS: dict[str, Part] = {"ece": np.abs, "over_ece": over, "under_ece": under}


def intervals(
    metrics: Metrics,
    *,
    resamples: int,
    seed: int,
    level: float = LEVEL,
    names: Collection[str] | None = None,
) -> dict[str, Interval]:
    """Return the interval of every metric in `names` that has one, by default of all metrics.

    The metrics must have been counted with `keep_losses`. A thousand resamples are usual. Equal
    seeds give equal intervals. `level` is the share of samples whose interval contains the truth.
    """
    if names is None:
        names = metrics.names
    elif not _PARTS.keys().isdisjoint(names):
        # the intervals of the ECE and its parts must fit together, so all of them are needed
        names = {*names, *(name for name in _PARTS if name in metrics.names)}
    shares = {
        name: wilson(getattr(metrics, name), metrics.n, level) for name in _of_kind("share", names)
    }
    ranks = {
        name: ranks_interval(metrics.ranking, level)
        for name in _of_kind("ranks", names)
        if metrics.ranking is not None
    }
    means = {
        name: mean_interval(
            *metrics.losses[name].filled(),
            resamples=resamples,
            rng=np.random.default_rng(seed),
            level=level,
        )
        for name in _of_kind("mean", names)
    }
    gaps = {}
    for name in _of_kind("gaps", names):
        bins: Bins | None = getattr(metrics, METRICS[name].bins)
        if bins is not None:  # None if there are too many classes
            part = _PARTS.get(name, np.abs)
            gaps[name] = ece_interval(bins, resamples=resamples, seed=seed, part=part, level=level)
    return shares | ranks | means | gaps | _agreeing({n: gaps[n] for n in _PARTS if n in gaps})


def group_interval(
    metric: str, bins: Bins, *, resamples: int, seed: int, level: float = LEVEL
) -> Interval:
    """Return the interval of one of `GROUP_METRICS`, for a group that is not empty."""
    if metric == "accuracy":
        return wilson(bins.mean_accuracy(), bins.n, level)
    part = _PARTS[metric]
    return ece_interval(bins, resamples=resamples, seed=seed, part=part, level=level)


def group_resamples(resamples: int, groups: int) -> int:
    """Return the number of resamples per group; fewer for many groups, to limit the time."""
    return min(resamples, max(_FEWEST_OF_GROUP, _OF_ALL_GROUPS // max(1, groups)))


def _of_kind(kind: str, names: Collection[str]) -> list[str]:
    return [name for name in METRICS if name in names and METRICS[name].interval == kind]


def _agreeing(parts: dict[str, Interval]) -> dict[str, Interval]:
    """Return the intervals of the ECE and its parts, widened so that no part exceeds the whole."""
    if "ece" not in parts:
        return parts
    least = parts["ece"][0]
    widened = {name: (min(low, least), high) for name, (low, high) in parts.items()}
    return widened | {"ece": (least, max(high for _, high in parts.values()))}


def stretched(interval: Interval, middle: float, level: float, wanted: float) -> Interval:
    """Widen an interval from `level` to the level `wanted`, as for a normal distribution."""
    if wanted == level:
        return interval
    factor = quantile(wanted) / quantile(level)
    low, high = interval
    return middle - factor * (middle - low), middle + factor * (high - middle)


def resampled_level(level: float, resamples: int) -> float:
    """Return the level, or the highest level that leaves five resamples outside."""
    return min(level, max(LEVEL, 1 - _LEAST_BEYOND / resamples))


def ranks_interval(area: Auroc, level: float = LEVEL) -> Interval:
    """Return the interval of an area under the ROC curve.

    It is Wilson's interval for an effective number of rows n: a share of n rows has the same
    variance as the area. This number is at least the number of right rows or of wrong rows,
    whichever is smaller, because no area has a larger variance than a share of this number of rows
    (Birnbaum & Klose 1957). So the width is above 0 even if every right row ranks above every wrong
    row.
    """
    n: float = min(area.right, area.wrong)
    if area.variance > 0:
        n = max(n, area.value * (1 - area.value) / area.variance)
    return wilson(area.value, n, level)


def mean_interval(
    counts: Integers,
    values: Float64s,
    *,
    resamples: int,
    rng: np.random.Generator,
    level: float = LEVEL,
) -> Interval:
    """Return the percentile interval of a mean. A cell has `counts` rows, all with its value."""
    n = int(counts.sum())
    counts, values = _coarser(counts, values)
    size = max(1, MAX_DRAWS // len(counts))  # how many resamples are drawn at a time
    means = [
        rng.multinomial(n, counts / n, size=min(size, resamples - start)) @ values / n
        for start in range(0, resamples, size)
    ]
    tried = resampled_level(level, resamples)
    low, high = np.quantile(np.concatenate(means), [(1 - tried) / 2, (1 + tried) / 2])
    return stretched((float(low), float(high)), float(counts @ values) / n, tried, level)


def _coarser(counts: Integers, values: Float64s) -> tuple[Integers, Float64s]:
    """Join cells whose values are close, which hardly changes the distribution.

    Values within a 32nd of the standard deviation become their mean. The variance falls by less
    than a thousandth.
    """
    n = counts.sum()
    mean = counts @ values / n
    spread = math.sqrt(counts @ (values - mean) ** 2 / n)
    if spread == 0:
        return counts, values
    _, place = np.unique(np.floor((values - mean) * (32 / spread)), return_inverse=True)
    rows = np.bincount(place, counts).astype(np.int64)
    return rows, np.bincount(place, counts * values) / rows


def ece_interval(
    bins: Bins, *, resamples: int, seed: int, part: Part = np.abs, level: float = LEVEL
) -> Interval:
    """Return the interval of the ECE or one of its parts, as the head of this module explains."""
    resamples = min(resamples, max(1, _MAX_NOISE // len(bins.counts)))  # limits the memory
    wanted, level = level, resampled_level(level, resamples)
    n, filled = int(bins.counts.sum()), bins.counts > 0
    sizes = bins.counts[filled]
    shares = sizes / n
    confidence = np.clip(bins.confidence_sums[filled] / sizes, 0.0, 1.0)
    gaps = confidence - bins.hits[filled] / sizes

    # Resample the sizes of the bins, and the noise of each: e_b = n*_b/n (acc_b - acc*_b). Add half
    # a right and half a wrong row, so that a bin of three right rows has noise too.
    accuracy = (bins.hits[filled] + 0.5) / (sizes + 1)
    errors = np.sqrt(accuracy * (1 - accuracy) / sizes)
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(n, shares, size=resamples)
    noise = (drawn * accuracy - rng.binomial(drawn, accuracy)) / n
    weights = drawn / n

    # The ECE* of a calibrated forecaster. For a part: significant gaps of the other direction
    # remain, because noise in such bins does not add to this part.
    significant = np.where(np.abs(gaps) > _SIGNIFICANT * errors, gaps, 0.0)
    fixed = significant - _kept(significant, part)
    calibrated = part(noise + weights * fixed).sum(axis=1)
    cut = float(np.median(calibrated))
    observed_part = float(part(gaps) @ shares)
    observed = max(0.0, observed_part - cut)

    # Test true ECEs within some standard errors of the observed ECE. Its variance comes from the
    # labels within bins, and from the sizes of the bins.
    between_rows = max(0.0, float(part(gaps) ** 2 @ shares) - observed_part**2) / n
    error = math.sqrt(float((shares * errors) @ (shares * errors)) + between_rows)
    reach = cut + _BEYOND * error
    grid = np.linspace(max(0.0, observed_part - reach), min(1.0, observed_part + reach), _GRID)

    # The interval contains all hypotheses of both kinds that are not rejected.
    bounds: list[float] = []
    for direction in _directions(gaps, significant, fixed, part):
        # the gaps of the hypothesis whose true ECE is 1
        unit = direction / float(part(direction) @ shares)
        size = max(1, MAX_DRAWS // noise.size)  # number of hypotheses at a time
        consistent = np.concatenate(
            [
                _shares_as_far(
                    part(noise + weights * (fixed + worlds * unit)).sum(axis=2) - cut, observed
                )
                for worlds in np.split(grid[:, None, None], range(size, _GRID, size))
            ]
        )
        bounds += _crossings(grid, consistent, 1 - level)
    low, high = (min(bounds), max(bounds)) if bounds else (observed_part, observed_part)

    # The lower end is above 0 only if one of the two tests rejects.
    low, high = stretched((low, high), (low + high) / 2, level, wanted)
    low, high = max(0.0, low), min(1.0, high)
    calibrated_rate = np.where(fixed == 0, confidence, accuracy)
    drawn_errors = (drawn * calibrated_rate - rng.binomial(drawn, calibrated_rate)) / n
    if _is_chance(part(drawn_errors + weights * fixed).sum(axis=1), observed_part, level, wanted):
        low = 0.0
    mean, reach = _mean_gap(shares, confidence, gaps, n, 1 - (1 - wanted) / 2)
    least = np.full((), math.copysign(max(0.0, abs(mean) - reach), mean))
    low = max(low, float(part(least)))
    return low, max(low, high)


def _is_chance(drawn: Float64s, observed: float, level: float, wanted: float) -> bool:
    """Return whether chance explains the observed value: enough draws are at least as large.

    Enough means half of the error probability. If there are too few draws to tell, a normal
    distribution is fitted to the draws.
    """
    if wanted == level:
        return bool((drawn >= observed).mean() > (1 - level) / 2)
    return observed <= float(drawn.mean() + quantile(wanted) * drawn.std())


def mean_gap_interval(bins: Bins, level: float = LEVEL) -> tuple[float, Interval]:
    """Return mean confidence minus accuracy, and its normal interval."""
    filled = bins.counts > 0
    sizes = bins.counts[filled]
    confidence = np.clip(bins.confidence_sums[filled] / sizes, 0.0, 1.0)
    gaps = confidence - bins.hits[filled] / sizes
    mean, reach = _mean_gap(sizes / bins.n, confidence, gaps, bins.n, level)
    return mean, (mean - reach, mean + reach)


def _mean_gap(
    shares: Float64s, confidence: Float64s, gaps: Float64s, n: int, level: float
) -> tuple[float, float]:
    """Return the mean gap, and half the width of its normal interval.

    Within a bin, the variance is at least as large as for a calibrated forecaster. So it is above 0
    even without errors.
    """
    mean = float(gaps @ shares)
    accuracy = confidence - gaps
    within = max(float(shares @ (rate * (1 - rate))) for rate in (accuracy, confidence))
    between = max(0.0, float(shares @ gaps**2) - mean**2)
    return mean, quantile(level) * math.sqrt((within + between) / n)


def _kept(gaps: Float64s, part: Part) -> Float64s:
    """Set gaps to 0 that do not count in this part."""
    return np.where(part(gaps) > 0, gaps, 0.0)


def _directions(
    gaps: Float64s, significant: Float64s, fixed: Float64s, part: Part
) -> Iterator[Float64s]:
    """Yield the gaps of both hypotheses, before they are scaled to a true ECE."""
    concentrated = _kept(significant, part)
    if concentrated.any():
        yield concentrated
    signs = np.where(gaps < 0, -1.0, 1.0)
    if part is over:
        signs = np.ones(len(gaps))
    elif part is under:
        signs = -np.ones(len(gaps))
    even = np.where(fixed == 0, signs, 0.0)
    if even.any():
        yield even


def _shares_as_far(resampled: Float64s, observed: float) -> Float64s:
    """Return the share of each row's draws that are as far from the median as the observation."""
    cut_off = np.maximum(resampled, 0.0)
    medians = np.median(cut_off, axis=1, keepdims=True)
    shares: Float64s = (np.abs(cut_off - medians) >= np.abs(observed - medians)).mean(axis=1)
    return shares


def _crossings(grid: Float64s, shares: Float64s, least: float) -> list[float]:
    """Return the ends of the part of `grid` in which `shares` exceed `least`, interpolated."""
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


LOSSES = ("brier", "nll", *CORRECTNESS)  # metrics that are the mean of a proper score over rows
# edges of the cells of confidence, with equal width in log odds
_ODDS = 1 / (1 + np.exp(-np.arange(-16, 16.25, 0.25)))
_MAX_CELLS = 1_000_000  # with more joint cells than this, the ECE has no paired difference
_MAX_CLASS_CELLS = (
    1 << 17
)  # the limit of joint cells for the class gap, which counts each class separately


@dataclass(frozen=True)
class Difference:
    """The difference of a metric between two calibrations on the same rows, with its interval."""

    calibration: str
    against: str
    metric: str
    value: float
    low: float  # ends of its interval
    high: float

    @property
    def direction(self) -> int:
        """1 if proved worse, -1 if proved better, 0 if the interval contains 0."""
        above = int(self.low > 0) - int(self.high < 0)
        return -above if METRICS[self.metric].better == "higher" else above


class PairedRows:
    """Rows counted by the confidences of two calibrations, block by block.

    `n_classes` is 1 if the two calibrations predict different labels. Only the metrics in `names`
    get a difference.
    """

    def __init__(
        self, bins: int, n_classes: int = 1, names: Collection[str] = tuple(METRICS)
    ) -> None:
        self._names = names
        self._bins = bins
        cells = 4 * bins**2  # one cell per pair of bins, and per pair of right or wrong labels
        if cells > _MAX_CELLS:
            cells = 0
        classes = n_classes if 0 < cells * n_classes <= _MAX_CLASS_CELLS else 1
        self._counts = np.zeros((classes, cells), dtype=np.int64)
        # sums of both confidences, and of right labels
        self._confidence = np.zeros((2, classes, cells))
        self._losses = {name: ValueCells() for name in LOSSES if name in names}
        # For each calibration: the cell of the confidence, and whether the label is right.
        shape = (2 * len(_ODDS) + 2, 2 * len(_ODDS) + 2)
        self._ranked = np.zeros(shape, dtype=np.int64)

    def add(
        self, first: ConfidenceBlock, second: ConfidenceBlock, predicted: Labels | None = None
    ) -> None:
        """Count a block of m rows, with the losses of each row.

        If `n_classes` is above 1, `predicted` are the labels of both calibrations, shape (m,).
        """
        for name, cells in self._losses.items():
            cells.add(second.losses[name] - first.losses[name])
        places = [
            2 * np.searchsorted(_ODDS, rows.confidence) + rows.correct for rows in (first, second)
        ]
        joint = places[0] * len(self._ranked) + places[1]
        self._ranked += np.bincount(joint, minlength=self._ranked.size).reshape(self._ranked.shape)
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
        areas: tuple[float | None, float | None] = (None, None),
        *,
        resamples: int,
        seed: int,
        level: float = LEVEL,
    ) -> list[Difference]:
        """Return the metrics of the second calibration minus the metrics of the first.

        `areas` are the AUROCs of both calibrations.
        """
        differences = []
        for name, rows, sides in self._gaps():
            if name not in self._names:
                continue
            rng = np.random.default_rng(seed)
            value, ends = _of_gaps(rows, sides, resamples=resamples, rng=rng, level=level)
            differences.append(Difference(calibration, against, name, value, *ends))
        for name, cells in self._losses.items():
            counts, values = cells.filled()
            rng = np.random.default_rng(seed)
            ends = mean_interval(counts, values, resamples=resamples, rng=rng, level=level)
            value = float(counts @ values / counts.sum())
            differences.append(Difference(calibration, against, name, value, *ends))
        before, after = areas
        if before is not None and after is not None and "correctness_auroc" in self._names:
            value, reach = after - before, quantile(level) * self._deviation_of_areas()
            ends = (value - reach, value + reach)
            differences.append(Difference(calibration, against, "correctness_auroc", value, *ends))
        return differences

    def _deviation_of_areas(self) -> float:
        """Return the standard deviation of the difference of both AUROCs."""
        first, second = (_influence(self._ranked.sum(axis=1 - axis)) for axis in (0, 1))
        apart = (second - first[:, None]) ** 2
        return math.sqrt(float((self._ranked * apart).sum())) / int(self._ranked.sum())

    def _gaps(self) -> Iterator[tuple[str, Integers, list["_Side"]]]:
        """Yield each sum of gaps: the rows per joint cell, and the gaps of both calibrations."""
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
    """The gaps of one calibration in every joint cell; each array has shape (cells,)."""

    # the bin or class of the cell; gaps are summed in it before the absolute value is taken
    place: Integers
    gaps: Float64s  # mean of confidence minus 1 (right label) or 0 (wrong label)

    def total(self, drawn: Integers) -> Float64s:
        """Return n times the metric of each resample, given its rows per cell, (R, cells)."""
        order = np.argsort(self.place, kind="stable")
        starts = np.flatnonzero(np.diff(self.place[order], prepend=-1))
        sums: Float64s = np.add.reduceat((drawn * self.gaps)[:, order], starts, axis=1)
        total: Float64s = np.abs(sums).sum(axis=1)
        return total


def _filled(
    counts: Integers, confidence: Float64s, places: tuple[Integers, Integers]
) -> tuple[Integers, list[_Side]]:
    """Return the rows of cells that are not empty, and there the gaps of both calibrations."""
    cells = np.flatnonzero(counts)
    rows = counts[cells]
    right = cells // 2 % 2, cells % 2
    return rows, [
        _Side(place[cells], sums[cells] / rows - correct)
        for place, sums, correct in zip(places, confidence, right, strict=True)
    ]


def _of_gaps(
    counts: Integers,
    sides: Sequence[_Side],
    *,
    resamples: int,
    rng: np.random.Generator,
    level: float,
) -> tuple[float, Interval]:
    """Return the difference between two sums of gaps, and its interval."""
    first, second = sides
    n = int(counts.sum())

    def difference(drawn: Integers) -> Float64s:
        return (second.total(drawn) - first.total(drawn)) / n

    value = float(difference(counts[None])[0])
    # how many resamples are drawn at a time, which limits memory
    size = max(1, MAX_DRAWS // len(counts))
    drawn = np.concatenate(
        [
            difference(rng.multinomial(n, counts / n, size=min(size, resamples - start)))
            for start in range(0, resamples, size)
        ]
    )
    tried = resampled_level(level, resamples)
    low, high = np.quantile(drawn, [(1 - tried) / 2, (1 + tried) / 2])
    low, high = min(low, 2 * value - high), max(high, 2 * value - low)
    return value, stretched((float(low), float(high)), value, tried, level)


def _influence(counts: Integers) -> Float64s:
    """Return how much a row in each cell contributes to n times the AUROC, minus the mean.

    The result has the shape of `counts`.

    `counts` has two numbers of rows for each cell of confidence, from low to high: the wrong rows,
    then the right rows.
    """
    wrong, right = counts[::2], counts[1::2]
    below, above = np.cumsum(wrong) - wrong / 2, right.sum() - np.cumsum(right) + right / 2
    placed = np.stack([above / right.sum(), below / wrong.sum()], axis=1)
    area = float(right @ placed[:, 1]) / right.sum()
    shares = np.array([wrong.sum(), right.sum()]) / counts.sum()
    influence: Float64s = ((placed - area) / shares).ravel()
    return influence
