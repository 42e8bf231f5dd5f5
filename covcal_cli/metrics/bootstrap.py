"""Intervals of 95 % for the metrics of a sample, by resampling its rows.

Rows are resampled through their counts in cells, not one by one: a draw costs as much for ten
million rows as for a thousand.

Means (mean confidence, NLL, Brier): percentiles of the mean over resampled cells. The accuracy has
Wilson's (1927) interval, which keeps a width when every row is right.

Errors of calibration: a percentile interval would be wrong. The ECE is a sum of magnitudes, so
chance only adds to it: the resamples of a calibrated forecaster never come near its true value, 0.
So the interval holds every true ECE that the data do not contradict:

- A world is a gap d_b = confidence - accuracy for every bin, so its true ECE is sum_b n_b/n |d_b|.
  Resampled rows have the ECE* = sum_b |n*_b/n d_b + e_b|, with n* multinomial and e_b the noise of
  binomial hits.
- Two families of worlds are tried at every true ECE: `concentrated`, the gaps that exceed two
  standard errors, scaled, and every other bin calibrated (chance adds the most); and `even`, the
  same gap in every bin, in the direction found (chance adds the least).
- A world is contradicted when the ECE found, cut off at the median of the calibrated world's, lies
  further from the median of ECE* than 95 % of the resamples.

The cut makes 0 part of the interval for 95 % of the samples of a calibrated forecaster. An ECE as
found may lie above its interval: then most of it is noise. Coverage is tested.

The ECE and its over- and under-confident parts are tried separately, and could come out so that a
part exceeds the whole. Then the intervals are widened, never cut, until they agree: the ECE's upper
end is at least that of either part, and no part's lower end is above the ECE's. An interval that is
widened covers the truth at least as often; one that is cut by another would not.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from covcal_cli.metrics.metrics import Metrics
from covcal_cli.softmax import Array

LEVEL = 0.95
Interval = tuple[float, float]

_Z = 1.959963984540054
_SIGNIFICANT = 2.0
_GRID = 48
_BEYOND = 5.0  # standard errors around the ECE found, between which true ECEs are tried
_MAX_DRAWS = 1 << 20


def intervals(metrics: Metrics, *, resamples: int, seed: int) -> dict[str, Interval]:
    """Return the interval of every metric that has one, by name.

    Parameters
    ----------
    metrics : Metrics
        With the distributions of the rows' losses kept.
    resamples : int
        At least 1; a thousand is usual.
    seed : int
        Equal seeds give equal intervals.
    """
    found = {"accuracy": wilson(int(metrics.bins.hits.sum()), metrics.n)}
    for name, cells in metrics.losses.items():
        found[name] = mean_interval(
            *cells.filled(), resamples=resamples, rng=np.random.default_rng(seed)
        )
    bins, adaptive = metrics.bins, metrics.adaptive
    for name, part in _PARTS.items():
        found[name] = ece_interval(
            bins.counts, bins.hits, bins.confidence_sums, resamples=resamples, seed=seed, part=part
        )
    found |= _agreeing({name: found[name] for name in _PARTS})
    found["adaptive_ece"] = ece_interval(
        adaptive.counts, adaptive.hits, adaptive.confidence_sums, resamples=resamples, seed=seed
    )
    return found


def _agreeing(found: dict[str, Interval]) -> dict[str, Interval]:
    """Return the intervals of the ECE and its parts, widened until no part exceeds the whole."""
    least = found["ece"][0]
    widened = {name: (min(low, least), high) for name, (low, high) in found.items()}
    return widened | {"ece": (least, max(high for _, high in found.values()))}


def wilson(hits: int, n: int) -> Interval:
    """Return Wilson's interval of a share."""
    share, pull = hits / n, _Z**2 / n
    centre = (share + pull / 2) / (1 + pull)
    half = _Z * math.sqrt(share * (1 - share) / n + pull / (4 * n)) / (1 + pull)
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(
    counts: NDArray[np.int64], values: Array, *, resamples: int, rng: np.random.Generator
) -> Interval:
    """Return the percentile interval of a mean, of cells with `counts` rows of `values` each."""
    n = int(counts.sum())
    size = max(1, _MAX_DRAWS // len(counts))
    means = [
        rng.multinomial(n, counts / n, size=min(size, resamples - start)) @ values / n
        for start in range(0, resamples, size)
    ]
    low, high = np.quantile(np.concatenate(means), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def ece_interval(
    counts: NDArray[np.int64],
    hits: NDArray[np.int64],
    confidence_sums: Array,
    *,
    resamples: int,
    seed: int,
    part: Callable[[Array], Array] = np.abs,
) -> Interval:
    """Return the interval of a binned error of calibration, as the module describes it.

    Parameters
    ----------
    counts, hits, confidence_sums : arrays, shape (bins,)
    resamples, seed : int
    part : function
        What counts of a gap: its magnitude for the ECE, ``over`` or ``under`` for its parts.
    """
    n, filled = int(counts.sum()), counts > 0
    sizes = counts[filled]
    shares = sizes / n
    gaps = (confidence_sums[filled] - hits[filled]) / sizes
    # Half a hit and half a miss more, so that a bin of three right rows is not free of noise.
    accuracy = (hits[filled] + 0.5) / (sizes + 1)
    errors = np.sqrt(accuracy * (1 - accuracy) / sizes)
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(n, shares, size=resamples)
    noise = (drawn * accuracy - rng.binomial(drawn, accuracy)) / n
    weights = drawn / n

    significant = np.where(np.abs(gaps) > _SIGNIFICANT * errors, gaps, 0.0)
    fixed = significant - _kept(significant, part)
    calibrated = part(noise + weights * fixed).sum(axis=1)
    cut = float(np.median(calibrated))
    found = float(part(gaps) @ shares)
    observed = max(0.0, found - cut)
    between_rows = max(0.0, float(part(gaps) ** 2 @ shares) - found**2) / n
    error = math.sqrt(float((shares * errors) @ (shares * errors)) + between_rows)
    reach = cut + _BEYOND * error
    grid = np.linspace(max(0.0, found - reach), min(1.0, found + reach), _GRID)

    bounds: list[float] = []
    for direction in _directions(gaps, significant, fixed, part):
        unit = direction / float(part(direction) @ shares)
        size = max(1, _MAX_DRAWS // noise.size)
        consistent = np.concatenate(
            [
                _shares_as_far(
                    part(noise + weights * (fixed + worlds * unit)).sum(axis=2) - cut, observed
                )
                for worlds in _runs(grid[:, None, None], size)
            ]
        )
        bounds += _crossings(grid, consistent, 1 - LEVEL)
    return (min(bounds), max(bounds)) if bounds else (found, found)


def over(gaps: Array) -> Array:
    """Return what of gaps is over-confidence."""
    return np.maximum(gaps, 0.0)


def under(gaps: Array) -> Array:
    """Return what of gaps is under-confidence."""
    return np.maximum(-gaps, 0.0)


_PARTS: dict[str, Callable[[Array], Array]] = {"ece": np.abs, "over_ece": over, "under_ece": under}


def _kept(gaps: Array, part: Callable[[Array], Array]) -> Array:
    """Return the gaps that a part counts, 0 elsewhere."""
    return np.where(part(gaps) > 0, gaps, 0.0)


def _directions(
    gaps: Array, significant: Array, fixed: Array, part: Callable[[Array], Array]
) -> Iterator[Array]:
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


def _shares_as_far(resampled: Array, observed: float) -> Array:
    """Return, per row, the share at least as far from their median as what was observed."""
    cut_off = np.maximum(resampled, 0.0)
    medians = np.median(cut_off, axis=1, keepdims=True)
    shares: Array = (np.abs(cut_off - medians) >= np.abs(observed - medians)).mean(axis=1)
    return shares


def _runs(values: Array, size: int) -> Iterator[Array]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _crossings(grid: Array, shares: Array, least: float) -> list[float]:
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
