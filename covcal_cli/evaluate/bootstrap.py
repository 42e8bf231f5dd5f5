"""Intervals for the metrics of a sample, by resampling its rows.

A draw resamples the counts of rows in cells, not the rows one by one. So it costs as much for ten
million rows as for a thousand.

Means (mean confidence and the losses): percentiles of the mean over resampled cells. The accuracy
has Wilson's (1927) interval, which keeps a width when every row is right. The AUROC is a share of
pairs, and has Wilson's interval too, of as many rows as give it its variance (`ranks_interval`).

Errors of calibration: a percentile interval would be wrong. The ECE is a sum of magnitudes, so
chance only adds to it: the resamples of a calibrated forecaster never come near its true value, 0.
The interval therefore holds every true ECE that the data do not contradict:

- A world is a gap d_b = confidence - accuracy for every bin, so its true ECE is sum_b n_b/n |d_b|.
  Resampled rows have the ECE* = sum_b |n*_b/n d_b + e_b|, with n* multinomial and e_b the noise of
  binomial hits.
- Two families of worlds are tried at every true ECE: `concentrated`, the gaps that exceed two
  standard errors, scaled, and every other bin calibrated (chance adds the most); and `even`, the
  same gap in every bin, in the observed direction (chance adds the least).
- A world is contradicted when the observed ECE, cut off at the median of the calibrated world's,
  lies further from the median of ECE* than 95 % of the resamples.

The lower end is above 0 only if one of two tests contradicts a calibrated forecaster. They share
the error rate, half each, so that both together keep the level:

- Labels drawn from the confidences themselves give a smaller ECE (the consistency resampling of
  Broecker & Smith 2007).
- The gap between mean confidence and accuracy is beyond chance. No ECE is below that gap, whatever
  the bins (Jensen), and the gap is a mean over rows, which chance blurs less. So no lower end is
  below that of the gap.

The observed ECE may lie above its interval: then most of it is noise. Coverage is tested.

The ECE and its over- and under-confident parts are tried separately, and a part could come out
larger than the whole. Then the intervals are widened, never cut, until they agree: the ECE's upper
end is at least that of either part, and no part's lower end is above the ECE's. A widened interval
covers the truth at least as often; one that is cut by another would not.

A level close to 1 needs more resamples than there are: fewer than five lie beyond its ends. Then
the interval of the highest level that has five is stretched, as for a normal distribution.
"""

import math
from collections.abc import Callable, Collection, Iterator

import numpy as np

from covcal_cli.arrays import Float64s, Integers
from covcal_cli.evaluate.bins import Bins, over, under
from covcal_cli.evaluate.metrics import METRICS, Metrics
from covcal_cli.evaluate.ranked import Auroc
from covcal_cli.maths.odds import quantile, wilson

LEVEL = 0.95
RESAMPLES = 1000  # usual number of draws
Interval = tuple[float, float]
Part = Callable[[Float64s], Float64s]  # of gaps: the magnitude, `over` or `under`
_SIGNIFICANT = 2.0  # standard errors that a gap must exceed
_GRID = 48  # true ECEs to try
_BEYOND = 5.0  # standard errors around the observed ECE, between which they lie
_LEAST_BEYOND = 5  # resamples beyond the ends of an interval
_MAX_NOISE = 1 << 21  # numbers that resample the noise of bins; with many bins, fewer times
MAX_DRAWS = 1 << 20  # numbers at a time, so that memory stays bounded
_FEWEST_OF_GROUP, _OF_ALL_GROUPS = 100, 20_000  # resamples
GROUP_METRICS = ("accuracy", "ece", "over_ece")  # with intervals for groups of rows
# The parts of the ECE; any other metric of gaps counts their magnitude.
_PARTS: dict[str, Part] = {"ece": np.abs, "over_ece": over, "under_ece": under}


def intervals(
    metrics: Metrics,
    *,
    resamples: int,
    seed: int,
    level: float = LEVEL,
    names: Collection[str] | None = None,
) -> dict[str, Interval]:
    """Return the interval of every metric in `names` that has one; all metrics if left out.

    The distributions of the rows' losses must have been kept. A thousand resamples are usual, and
    equal seeds give equal intervals. `level` is the share of samples whose interval holds the
    truth.
    """
    if names is None:
        names = metrics.names
    elif not _PARTS.keys().isdisjoint(names):
        names = {*names, *(name for name in _PARTS if name in metrics.names)}  # they must agree
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
        if bins is not None:  # None: too many classes
            part = _PARTS.get(name, np.abs)
            gaps[name] = ece_interval(bins, resamples=resamples, seed=seed, part=part, level=level)
    return shares | ranks | means | gaps | _agreeing({n: gaps[n] for n in _PARTS if n in gaps})


def group_interval(
    metric: str, bins: Bins, *, resamples: int, seed: int, level: float = LEVEL
) -> Interval:
    """Return the interval of one of `GROUP_METRICS` on the rows of a group, which has rows."""
    if metric == "accuracy":
        return wilson(bins.mean_accuracy(), bins.n, level)
    part = _PARTS[metric]
    return ece_interval(bins, resamples=resamples, seed=seed, part=part, level=level)


def group_resamples(resamples: int, groups: int) -> int:
    """Return how many resamples each of many groups gets, so that the time stays bounded."""
    return min(resamples, max(_FEWEST_OF_GROUP, _OF_ALL_GROUPS // max(1, groups)))


def _of_kind(kind: str, names: Collection[str]) -> list[str]:
    return [name for name in METRICS if name in names and METRICS[name].interval == kind]


def _agreeing(parts: dict[str, Interval]) -> dict[str, Interval]:
    """Return the intervals of the ECE and its parts, widened until no part exceeds the whole."""
    if "ece" not in parts:
        return parts
    least = parts["ece"][0]
    widened = {name: (min(low, least), high) for name, (low, high) in parts.items()}
    return widened | {"ece": (least, max(high for _, high in parts.values()))}


def stretched(interval: Interval, middle: float, level: float, wanted: float) -> Interval:
    """Return an interval of a `level` brought to the `wanted` one, as for a normal distribution."""
    if wanted == level:
        return interval
    factor = quantile(wanted) / quantile(level)
    low, high = interval
    return middle - factor * (middle - low), middle + factor * (high - middle)


def resampled_level(level: float, resamples: int) -> float:
    """Return the level, or the highest one that leaves five resamples beyond its ends."""
    return min(level, max(LEVEL, 1 - _LEAST_BEYOND / resamples))


def ranks_interval(area: Auroc, level: float = LEVEL) -> Interval:
    """Return the interval of an area under the ROC curve.

    It is Wilson's of as many rows as give a share of that size the area's variance, and of no fewer
    than there are of the rarer kind, right or wrong: no area has a larger variance (Birnbaum &
    Klose 1957). So it keeps a width where every right row is above every wrong one.
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
    """Return the percentile interval of a mean, of cells with `counts` rows of `values` each."""
    n = int(counts.sum())
    counts, values = _coarser(counts, values)
    size = max(1, MAX_DRAWS // len(counts))  # resamples at a time
    means = [
        rng.multinomial(n, counts / n, size=min(size, resamples - start)) @ values / n
        for start in range(0, resamples, size)
    ]
    tried = resampled_level(level, resamples)
    low, high = np.quantile(np.concatenate(means), [(1 - tried) / 2, (1 + tried) / 2])
    return stretched((float(low), float(high)), float(counts @ values) / n, tried, level)


def _coarser(counts: Integers, values: Float64s) -> tuple[Integers, Float64s]:
    """Return cells of about the same distribution, of which fewer have to be drawn.

    Values that lie within a 32nd of their standard deviation count as their mean, which takes less
    than a thousandth from the variance.
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
    """Return the interval of a binned error of calibration, as the module describes it."""
    resamples = min(resamples, max(1, _MAX_NOISE // len(bins.counts)))  # bounds the memory
    wanted, level = level, resampled_level(level, resamples)
    n, filled = int(bins.counts.sum()), bins.counts > 0
    sizes = bins.counts[filled]
    shares = sizes / n
    confidence = np.clip(bins.confidence_sums[filled] / sizes, 0.0, 1.0)
    gaps = confidence - bins.hits[filled] / sizes

    # Resample the sizes of the bins, and in each the noise e_b = n*_b/n (acc_b - acc*_b). Half a
    # hit and half a miss more, so that a bin of three right rows is not free of noise.
    accuracy = (bins.hits[filled] + 0.5) / (sizes + 1)
    errors = np.sqrt(accuracy * (1 - accuracy) / sizes)
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(n, shares, size=resamples)
    noise = (drawn * accuracy - rng.binomial(drawn, accuracy)) / n
    weights = drawn / n

    # What the calibrated world gives. A part is tried while the significant gaps in the other
    # direction stay as they are: they keep their bins' noise from counting.
    significant = np.where(np.abs(gaps) > _SIGNIFICANT * errors, gaps, 0.0)
    fixed = significant - _kept(significant, part)
    calibrated = part(noise + weights * fixed).sum(axis=1)
    cut = float(np.median(calibrated))
    observed_part = float(part(gaps) @ shares)
    observed = max(0.0, observed_part - cut)

    # True ECEs to try: around the observed one, as far as its standard error lets it have strayed,
    # which has a share from within the bins and one from how many rows fall into each.
    between_rows = max(0.0, float(part(gaps) ** 2 @ shares) - observed_part**2) / n
    error = math.sqrt(float((shares * errors) @ (shares * errors)) + between_rows)
    reach = cut + _BEYOND * error
    grid = np.linspace(max(0.0, observed_part - reach), min(1.0, observed_part + reach), _GRID)

    # The interval spans the worlds of both families that do not contradict the observed ECE.
    bounds: list[float] = []
    for direction in _directions(gaps, significant, fixed, part):
        unit = direction / float(part(direction) @ shares)  # a world of true ECE 1
        size = max(1, MAX_DRAWS // noise.size)  # worlds at a time
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

    # Above 0 only if one of two tests, each with half the error rate, says so.
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
    """Return whether drawn values reach the observed one in more than half the error rate.

    Where the `wanted` level is beyond what so many draws show, their normal approximation decides.
    """
    if wanted == level:
        return bool((drawn >= observed).mean() > (1 - level) / 2)
    return observed <= float(drawn.mean() + quantile(wanted) * drawn.std())


def mean_gap_interval(bins: Bins, level: float = LEVEL) -> tuple[float, Interval]:
    """Return mean confidence less accuracy, and its normal interval; both have a sign."""
    filled = bins.counts > 0
    sizes = bins.counts[filled]
    confidence = np.clip(bins.confidence_sums[filled] / sizes, 0.0, 1.0)
    gaps = confidence - bins.hits[filled] / sizes
    mean, reach = _mean_gap(sizes / bins.n, confidence, gaps, bins.n, level)
    return mean, (mean - reach, mean + reach)


def _mean_gap(
    shares: Float64s, confidence: Float64s, gaps: Float64s, n: int, level: float
) -> tuple[float, float]:
    """Return the mean gap, and how far its normal interval reaches to either side.

    The variance of a row within its bin is at least that of a calibrated one, so that a sample
    without an error does not look free of chance.
    """
    mean = float(gaps @ shares)
    accuracy = confidence - gaps
    within = max(float(shares @ (rate * (1 - rate))) for rate in (accuracy, confidence))
    between = max(0.0, float(shares @ gaps**2) - mean**2)
    return mean, quantile(level) * math.sqrt((within + between) / n)


def _kept(gaps: Float64s, part: Part) -> Float64s:
    """Return the gaps that a part counts, 0 elsewhere."""
    return np.where(part(gaps) > 0, gaps, 0.0)


def _directions(
    gaps: Float64s, significant: Float64s, fixed: Float64s, part: Part
) -> Iterator[Float64s]:
    """Yield the gaps of the two families, to any scale."""
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
    """Return, per row, the share at least as far from their median as what was observed."""
    cut_off = np.maximum(resampled, 0.0)
    medians = np.median(cut_off, axis=1, keepdims=True)
    shares: Float64s = (np.abs(cut_off - medians) >= np.abs(observed - medians)).mean(axis=1)
    return shares


def _crossings(grid: Float64s, shares: Float64s, least: float) -> list[float]:
    """Return the ends of the stretch of `grid` where `shares` exceed `least`, interpolated."""
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
