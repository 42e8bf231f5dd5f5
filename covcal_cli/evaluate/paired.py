"""How much one calibration differs from another on the same rows, by paired resampling.

Two intervals that overlap show nothing: most of what chance does to one calibration it does to the
other as well. So rows are resampled with what both say of them, through their counts in joint
cells: what a draw costs does not grow with the rows.

- Brier score and log loss, of the distribution and of correctness: percentiles of the mean
  difference of the rows' losses. They are proper scores, so their difference says which forecast is
  the better one.
- AUROC: both areas are means over rows of either kind, so their difference has the variance of the
  rows' paired placements (DeLong, DeLong & Clarke-Pearson 1988), here between cells of confidence,
  even in log odds. The interval is normal.
- ECE: chance adds to either ECE, and more to the smaller one, so that the difference found, and
  even more so a resampled one, lies too near 0. The interval spans the percentiles of the resampled
  differences and their reflection at the difference found (the basic bootstrap interval, Davison &
  Hinkley 1997, section 5.2), which undoes as much as resampling added. What it misses, it misses on
  the side of no difference; that is tested.
- Class gap: a sum of magnitudes as the ECE is, with the same interval. It needs the joint cells of
  every class, so that there is none with more than some hundred.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import Float64s, Integers, Labels
from covcal_cli.evaluate.bins import CORRECTNESS, ConfidenceBlock, ValueCells
from covcal_cli.evaluate.bootstrap import LEVEL, MAX_DRAWS, Interval, mean_interval
from covcal_cli.evaluate.metrics import METRICS
from covcal_cli.maths.odds import quantile

LOSSES = ("brier", "nll", *CORRECTNESS)  # metrics that are means over rows, of proper scores
_ODDS = 1 / (1 + np.exp(-np.arange(-16, 16.25, 0.25)))  # ends of cells of confidence
_MAX_CELLS = 1_000_000  # joint counts to keep; with more, the ECE has no paired difference
_MAX_CLASS_CELLS = 1 << 17  # the same by class; with more, the class gap has none


@dataclass(frozen=True)
class Difference:
    """A metric of one calibration less another's on the same rows, as metrics.json has it."""

    calibration: str
    against: str
    metric: str
    value: float
    low: float  # ends of its interval
    high: float

    @property
    def direction(self) -> int:
        """1 where worse is shown, -1 where better is, 0 where the interval holds no difference."""
        above = int(self.low > 0) - int(self.high < 0)
        return -above if METRICS[self.metric].better == "higher" else above


class PairedRows:
    """Counts of what two calibrations say of the same rows, block by block.

    `n_classes` are those of the labels that both judge; 1 where they judge different labels.
    """

    def __init__(self, bins: int, n_classes: int = 1) -> None:
        self._bins = bins
        cells = 4 * bins**2  # by either bin, and whether either judged label is right
        if cells > _MAX_CELLS:
            cells = 0
        classes = n_classes if 0 < cells * n_classes <= _MAX_CLASS_CELLS else 1
        self._counts = np.zeros((classes, cells), dtype=np.int64)
        self._confidence = np.zeros((2, classes, cells))  # sums
        self._losses = {name: ValueCells() for name in LOSSES}
        shape = (2 * len(_ODDS) + 2, 2 * len(_ODDS) + 2)  # of either, the cell and whether right
        self._ranked = np.zeros(shape, dtype=np.int64)

    def add(
        self, first: ConfidenceBlock, second: ConfidenceBlock, judged: Labels | None = None
    ) -> None:
        """Count a block of m rows, with the losses of each row.

        `judged` are the labels that both judge, shape (m,), where there are several classes.
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
        if judged is not None and shape[0] > 1:
            joint += judged * shape[1]
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
        """Return the second calibration's metrics less the first's, each with its interval.

        `areas` are the AUROC of correctness of the first and of the second.
        """
        found = []
        for name, rows, sides in self._gaps():
            rng = np.random.default_rng(seed)
            value, ends = _of_gaps(rows, sides, resamples=resamples, rng=rng, level=level)
            found.append(Difference(calibration, against, name, value, *ends))
        for name, kept in self._losses.items():
            counts, values = kept.filled()
            rng = np.random.default_rng(seed)
            ends = mean_interval(counts, values, resamples=resamples, rng=rng, level=level)
            value = float(counts @ values / counts.sum())
            found.append(Difference(calibration, against, name, value, *ends))
        before, after = areas
        if before is not None and after is not None:
            value, reach = after - before, quantile(level) * self._deviation_of_areas()
            ends = (value - reach, value + reach)
            found.append(Difference(calibration, against, "correctness_auroc", value, *ends))
        return found

    def _deviation_of_areas(self) -> float:
        """Return the standard deviation of the difference of the AUROCs."""
        first, second = (_influence(self._ranked.sum(axis=1 - axis)) for axis in (0, 1))
        apart = (second - first[:, None]) ** 2
        return math.sqrt(float((self._ranked * apart).sum())) / int(self._ranked.sum())

    def _gaps(self) -> Iterator[tuple[str, Integers, list["_Side"]]]:
        """Yield the metrics that are sums of gaps: rows per filled cell, and both sides of them."""
        classes, size = self._counts.shape
        if size == 0:
            return
        cells = np.arange(classes * size)
        bins, judged = cells[:size] // 4, cells // size
        places = bins // self._bins, bins % self._bins
        yield "ece", *_filled(self._counts.sum(axis=0), self._confidence.sum(axis=1), places)
        if classes > 1:
            confidence = self._confidence.reshape(2, -1)
            yield "class_gap", *_filled(self._counts.ravel(), confidence, (judged, judged))


@dataclass(frozen=True)
class _Side:
    """What one calibration says of cells; both arrays have shape (cells,)."""

    place: Integers  # whose gaps add up before their magnitude counts: a bin, or a class
    gaps: Float64s  # mean of confidence - correct

    def total(self, drawn: Integers) -> Float64s:
        """Return n times the metric of every resample, given rows drawn per cell, (R, cells)."""
        order = np.argsort(self.place, kind="stable")
        starts = np.flatnonzero(np.diff(self.place[order], prepend=-1))
        sums: Float64s = np.add.reduceat((drawn * self.gaps)[:, order], starts, axis=1)
        total: Float64s = np.abs(sums).sum(axis=1)
        return total


def _filled(
    counts: Integers, confidence: Float64s, places: tuple[Integers, Integers]
) -> tuple[Integers, list[_Side]]:
    """Return the rows of the cells that hold any, and what either calibration says of them."""
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
    """Return the difference of two sums of gaps and its interval."""
    first, second = sides
    n = int(counts.sum())

    def difference(drawn: Integers) -> Float64s:
        return (second.total(drawn) - first.total(drawn)) / n

    value = float(difference(counts[None])[0])
    size = max(1, MAX_DRAWS // len(counts))  # resamples at a time, so that memory stays bounded
    drawn = np.concatenate(
        [
            difference(rng.multinomial(n, counts / n, size=min(size, resamples - start)))
            for start in range(0, resamples, size)
        ]
    )
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    low, high = min(low, 2 * value - high), max(high, 2 * value - low)
    return value, (float(low), float(high))


def _influence(counts: Integers) -> Float64s:
    """Return what a row in each cell adds to n times the AUROC, less its mean; shape as `counts`.

    `counts` are rows by ascending cell and, by turns, whether they are wrong or right.
    """
    wrong, right = counts[::2], counts[1::2]
    below, above = np.cumsum(wrong) - wrong / 2, right.sum() - np.cumsum(right) + right / 2
    placed = np.stack([above / right.sum(), below / wrong.sum()], axis=1)
    area = float(right @ placed[:, 1]) / right.sum()
    shares = np.array([wrong.sum(), right.sum()]) / counts.sum()
    influence: Float64s = ((placed - area) / shares).ravel()
    return influence
