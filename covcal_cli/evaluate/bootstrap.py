"""Compute intervals of metrics, by resampling the rows.

Rows are counted in cells first. A resample draws a number of rows for each cell. So ten million
rows take no more time than a thousand.

The mean confidence and mean losses have percentile intervals over the resamples. The accuracy has
Wilson's (1927) interval, because this interval is wider than 0 even if every row is right. The
AUROC is a share of pairs of rows. So the AUROC has Wilson's interval too, with an effective number
of rows (`ranks_interval`).

**The ECE.** Percentiles of resampled ECEs would be wrong. The ECE is a sum of absolute values, so
noise makes it larger. If a forecaster is calibrated, its true ECE is 0, but all resamples are above
0. So the interval contains every true ECE that the data do not reject:

- A hypothesis is a gap d_b = confidence - accuracy for every bin. The true ECE of the hypothesis is
  sum_b n_b/n |d_b|. Resampled rows have the ECE* = sum_b |n*_b/n d_b + e_b|, where n* is
  multinomial and e_b is binomial noise of the accuracy.
- Two hypotheses are tested for every true ECE. `concentrated` scales the gaps that exceed two
  standard errors, and sets all other gaps to 0; then noise adds the most to the ECE. `even` has the
  same gap in every bin, in the observed direction; then noise adds the least to the ECE.
- A hypothesis is rejected if the observed ECE is further from the median of the simulated ECE* than
  95 % of the simulations are. Let m be the median of the ECEs simulated for a
  calibrated forecaster. Before this comparison, every ECE below m is raised to m.

The lower end is above 0 only if one of two tests rejects that the forecaster is calibrated. Each
test may err with half of the error probability, so the two tests together have the stated level:

- The first test draws labels with the confidences as probabilities (the consistency resampling of
  Broecker & Smith 2007). The test rejects if the observed ECE is larger than nearly all ECEs of
  such labels.
- The second test rejects if mean confidence and accuracy differ by more than chance explains. The
  ECE is at least this difference, whatever the bins are (Jensen). The difference is a mean over
  rows, and has less noise than the ECE. So the lower end of the ECE's interval is at least the
  lower end of the difference's interval.

If the observed ECE is above its interval, most of the observed ECE is noise. A test of covcal
checks how often intervals contain the true ECE.

The ECE and its over- and under-confident parts have separate intervals, so a part could seem to be
larger than the ECE. Then intervals are widened until no end of a part's interval is above the same
end of the ECE's interval. Wider intervals contain the truth at least as often.

At a level close to 1, fewer than five resamples are outside the interval. Then the
interval of a lower level is computed: the highest level at which five resamples are outside. This
interval is widened to the wanted level as for a normal distribution.

**Differences.** Two calibrations on the same rows are compared with paired resamples. Comparing the
two intervals is not enough, because chance affects both calibrations in the same way. So rows are
counted in joint cells, with one cell for each pair of confidences. The time of a resample does not
depend on the number of rows.

- Brier score and log loss have percentiles of the mean difference of the rows' losses. These scores
  are proper, so the difference tells which forecast is better.
- The AUROC has a normal interval. The variance is computed from the placements of each row in both
  rankings (DeLong, DeLong & Clarke-Pearson 1988). Placements are computed from cells of confidence
  with equal width in log odds.
- Noise adds to both ECEs, and adds more to the smaller ECE. So the observed difference of ECEs is
  too close to 0, and resampled differences are even closer to 0. The interval therefore contains
  the percentiles of the resampled differences, and their mirror image at the observed difference
  (the basic bootstrap interval, Davison & Hinkley 1997, section 5.2). If the true
  difference is 0, the interval contains 0 at least as often as its level says; a test checks this.
- The class gap is a sum of absolute values, so its interval is computed like the interval of the
  ECE. The computation needs joint cells for every class, so there is no interval if there are more
  than a few hundred classes.
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
RESAMPLES = 1000  # usual number of resamples
Interval = tuple[float, float]
# Maps gaps to numbers that are summed: absolute values, or only over- or under-confident gaps.
Part = Callable[[Float64s], Float64s]
_SIGNIFICANT = 2.0  # a gap is significant if it exceeds this many standard errors
_GRID = 48  # number of true ECEs that are tested
_BEYOND = 5.0  # the tested ECEs are at most this many standard errors from the observed ECE
_LEAST_BEYOND = 5  # at least this many resamples must be outside an interval
_MAX_NOISE = 1 << 21  # at most this many numbers are drawn for the noise of all bins
MAX_DRAWS = 1 << 20  # at most this many numbers are drawn at a time, which limits memory
# Each group has at least 100 resamples, and all groups together have about 20 000.
_FEWEST_OF_GROUP, _OF_ALL_GROUPS = 100, 20_000
GROUP_METRICS = ("accuracy", "ece", "over_ece")  # metrics with intervals for groups of rows
# How the ECE and its parts sum gaps. All other metrics of gaps sum absolute values.
PARTS: dict[str, Part] = {"ece": np.abs, "over_ece": over, "under_ece": under}


def intervals(
    metrics: Metrics,
    *,
    resamples: int,
    seed: int,
    level: float = LEVEL,
    names: Collection[str] | None = None,
) -> dict[str, Interval]:
    """Return the intervals of the metrics in `names`, by default of all metrics.

    Metrics that have no interval are left out. The metrics must have been counted with
    `keep_losses`. A thousand resamples are usual. Equal seeds give equal intervals. `level` is the
    probability that an interval contains the truth.
    """
    if names is None:
        names = metrics.names
    elif not PARTS.keys().isdisjoint(names):
        # The ECE and its parts are always computed together, so that their intervals fit together.
        names = {*names, *(name for name in PARTS if name in metrics.names)}
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
        if bins is not None:  # with too many classes, there are no bins
            part = PARTS.get(name, np.abs)
            gaps[name] = ece_interval(bins, resamples=resamples, seed=seed, part=part, level=level)
    return shares | ranks | means | gaps | _agreeing({n: gaps[n] for n in PARTS if n in gaps})


def group_interval(
    metric: str, bins: Bins, *, resamples: int, seed: int, level: float = LEVEL
) -> Interval:
    """Return the interval of a metric in `GROUP_METRICS` for a group with rows."""
    if metric == "accuracy":
        return wilson(bins.mean_accuracy(), bins.n, level)
    part = PARTS[metric]
    return ece_interval(bins, resamples=resamples, seed=seed, part=part, level=level)


def group_resamples(resamples: int, groups: int) -> int:
    """Return the number of resamples for each group, which is smaller if there are many groups."""
    return min(resamples, max(_FEWEST_OF_GROUP, _OF_ALL_GROUPS // max(1, groups)))


def _of_kind(kind: str, names: Collection[str]) -> list[str]:
    return [name for name in METRICS if name in names and METRICS[name].interval == kind]


def _agreeing(parts: dict[str, Interval]) -> dict[str, Interval]:
    """Widen the intervals of the ECE and its parts until no part exceeds the ECE."""
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
    """Return the lower of `level` and the highest level with five resamples outside an interval."""
    return min(level, max(LEVEL, 1 - _LEAST_BEYOND / resamples))


def ranks_interval(area: Auroc, level: float = LEVEL) -> Interval:
    """Return the interval of an area under the ROC curve.

    Let n be the number of rows for which a share has the same variance as the area. The interval is
    Wilson's for n rows. Let m be the number of right rows or of wrong rows, whichever is smaller.
    No area has a larger variance than a share of m rows (Birnbaum & Klose 1957), so n is at least
    m. So the interval is wider than 0 even if every right row ranks above every wrong row.
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
    """Return the percentile interval of a mean, from each cell's number of rows and value."""
    n = int(counts.sum())
    counts, values = _coarser(counts, values)
    size = max(1, MAX_DRAWS // len(counts))  # number of resamples that are drawn at a time
    means = [
        rng.multinomial(n, counts / n, size=min(size, resamples - start)) @ values / n
        for start in range(0, resamples, size)
    ]
    tried = resampled_level(level, resamples)
    low, high = np.quantile(np.concatenate(means), [(1 - tried) / 2, (1 + tried) / 2])
    return stretched((float(low), float(high)), float(counts @ values) / n, tried, level)


def _coarser(counts: Integers, values: Float64s) -> tuple[Integers, Float64s]:
    """Join cells whose values differ by less than a 32nd of the standard deviation.

    A joined cell has the mean of the joined values. The variance falls by less than a thousandth.
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

    # Resample the size and the noise of each bin: e_b = n*_b/n (acc_b - acc*_b).
    # Half a right and half a wrong row are added, so that a bin of right rows has noise too.
    accuracy = (bins.hits[filled] + 0.5) / (sizes + 1)
    errors = np.sqrt(accuracy * (1 - accuracy) / sizes)
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(n, shares, size=resamples)
    noise = (drawn * accuracy - rng.binomial(drawn, accuracy)) / n
    weights = drawn / n

    # Simulate the ECE* of a calibrated forecaster.
    # Significant gaps in the other direction remain: noise in such bins does not add to this part.
    significant = np.where(np.abs(gaps) > _SIGNIFICANT * errors, gaps, 0.0)
    fixed = significant - _kept(significant, part)
    calibrated = part(noise + weights * fixed).sum(axis=1)
    cut = float(np.median(calibrated))
    observed_part = float(part(gaps) @ shares)
    observed = max(0.0, observed_part - cut)

    # Test true ECEs that are within five standard errors of the observed ECE.
    # The variance of the ECE comes from labels within bins, and from the sizes of the bins.
    between_rows = max(0.0, float(part(gaps) ** 2 @ shares) - observed_part**2) / n
    error = math.sqrt(float((shares * errors) @ (shares * errors)) + between_rows)
    reach = cut + _BEYOND * error
    grid = np.linspace(max(0.0, observed_part - reach), min(1.0, observed_part + reach), _GRID)

    # The interval contains every hypothesis, `concentrated` or `even`, that is not rejected.
    bounds: list[float] = []
    for direction in _directions(gaps, significant, fixed, part):
        unit = direction / float(part(direction) @ shares)  # the gaps if the true ECE is 1
        size = max(1, MAX_DRAWS // noise.size)  # number of hypotheses that are tested at a time
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

    # The lower end is above 0 only if one of the two tests rejects that the ECE is 0.
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
    """Return whether chance explains the observed value.

    It does if more than a share alpha / 2 of the draws give a value at least as large as the
    observed value, where alpha is the allowed probability of an error. If there are too few draws
    for the wanted level, a normal distribution is fitted.
    """
    if wanted == level:
        return bool((drawn >= observed).mean() > (1 - level) / 2)
    return observed <= float(drawn.mean() + quantile(wanted) * drawn.std())


def mean_gap_interval(bins: Bins, level: float = LEVEL) -> tuple[float, Interval]:
    """Return mean confidence minus accuracy, and the normal interval of this difference."""
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

    The variance within bins is at least the variance for a calibrated forecaster. So the interval
    is wider than 0 even if all rows are right.
    """
    mean = float(gaps @ shares)
    accuracy = confidence - gaps
    within = max(float(shares @ (rate * (1 - rate))) for rate in (accuracy, confidence))
    between = max(0.0, float(shares @ gaps**2) - mean**2)
    return mean, quantile(level) * math.sqrt((within + between) / n)


def _kept(gaps: Float64s, part: Part) -> Float64s:
    """Return the gaps that add to this part of the ECE, and 0 for all other gaps."""
    return np.where(part(gaps) > 0, gaps, 0.0)


def _directions(
    gaps: Float64s, significant: Float64s, fixed: Float64s, part: Part
) -> Iterator[Float64s]:
    """Yield the gaps of both hypotheses, up to a factor that depends on the true ECE."""
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
    """Return for each row of resamples how extreme `observed` is, as a share from 0 to 1.

    The share counts the resamples that are at least as far from the row's median as `observed`.
    """
    cut_off = np.maximum(resampled, 0.0)
    medians = np.median(cut_off, axis=1, keepdims=True)
    shares: Float64s = (np.abs(cut_off - medians) >= np.abs(observed - medians)).mean(axis=1)
    return shares


def _crossings(grid: Float64s, shares: Float64s, least: float) -> list[float]:
    """Return the two ends of the part of `grid` where `shares` exceed `least`, interpolated."""
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
# Edges of the cells of confidence, which have equal width in log odds.
_ODDS = 1 / (1 + np.exp(-np.arange(-16, 16.25, 0.25)))
_MAX_CELLS = 1_000_000  # with more joint cells, the ECE has no paired difference
_MAX_CLASS_CELLS = 1 << 17  # with more joint cells, the class gap has no paired difference


@dataclass(frozen=True)
class Difference:
    """The difference of a metric between two calibrations on the same rows, with its interval."""

    calibration: str
    against: str
    metric: str
    value: float
    low: float  # lower end of the interval
    high: float

    @property
    def direction(self) -> int:
        """1 if `calibration` is proved worse, -1 if proved better, 0 if nothing is proved."""
        above = int(self.low > 0) - int(self.high < 0)
        return -above if METRICS[self.metric].better == "higher" else above


class PairedRows:
    """The counts of rows by their confidences in two calibrations.

    `n_classes` is 1 if the two calibrations predict different labels. Only metrics in `names` get a
    difference.
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
        self._confidence = np.zeros((2, classes, cells))  # sums of the confidence
        self._losses = {name: ValueCells() for name in LOSSES if name in names}
        # Each axis is for one calibration. Cells divide rows by confidence, and by right or wrong.
        shape = (2 * len(_ODDS) + 2, 2 * len(_ODDS) + 2)
        self._ranked = np.zeros(shape, dtype=np.int64)

    def add(
        self, first: ConfidenceBlock, second: ConfidenceBlock, predicted: Labels | None = None
    ) -> None:
        """Count a block of m rows.

        If `n_classes` is above 1, `predicted` are the labels that both predict, shape (m,).
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
        """Return the metrics of the second calibration minus those of the first calibration.

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
        first, second = (_influence(self._ranked.sum(axis=1 - axis)) for axis in (0, 1))
        apart = (second - first[:, None]) ** 2
        return math.sqrt(float((self._ranked * apart).sum())) / int(self._ranked.sum())

    def _gaps(self) -> Iterator[tuple[str, Integers, list["_Side"]]]:
        """Yield the name of a metric, the rows in each joint cell, and both calibrations' gaps."""
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

    place: Integers  # the bin or class of the cell, in which gaps are summed
    gaps: Float64s  # mean confidence - r; r is 1 in a cell of right rows, else 0

    def total(self, drawn: Integers) -> Float64s:
        """Return n times the metric of R resamples; `drawn`, (R, cells), are rows per cell."""
        order = np.argsort(self.place, kind="stable")
        starts = np.flatnonzero(np.diff(self.place[order], prepend=-1))
        sums: Float64s = np.add.reduceat((drawn * self.gaps)[:, order], starts, axis=1)
        total: Float64s = np.abs(sums).sum(axis=1)
        return total


def _filled(
    counts: Integers, confidence: Float64s, places: tuple[Integers, Integers]
) -> tuple[Integers, list[_Side]]:
    """Return the number of rows in each cell with rows, and the gaps of both calibrations there."""
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
    """Return the difference between two sums of gaps, and the interval of this difference."""
    first, second = sides
    n = int(counts.sum())

    def difference(drawn: Integers) -> Float64s:
        return (second.total(drawn) - first.total(drawn)) / n

    value = float(difference(counts[None])[0])
    size = max(1, MAX_DRAWS // len(counts))  # number of resamples that are drawn at a time
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
    """Return the contribution of a row in each cell to n times the AUROC, minus the mean.

    `counts` has two numbers for each cell of confidence, from low to high: the number of wrong
    rows, then the number of right rows. The result has the shape of `counts`.
    """
    wrong, right = counts[::2], counts[1::2]
    below, above = np.cumsum(wrong) - wrong / 2, right.sum() - np.cumsum(right) + right / 2
    placed = np.stack([above / right.sum(), below / wrong.sum()], axis=1)
    area = float(right @ placed[:, 1]) / right.sum()
    shares = np.array([wrong.sum(), right.sum()]) / counts.sum()
    influence: Float64s = ((placed - area) / shares).ravel()
    return influence
