"""The difference of two calibrations on the same rows, by paired resampling.

Comparing two intervals is not enough, because chance affects both calibrations in the same way. So
both confidences of a row are resampled together, by resampling counts in joint cells. The cost of a
draw does not depend on the number of rows.

- Brier score and log loss, of the distribution and of correctness: percentiles of the mean
  difference of the rows' losses. They are proper scores, so their difference says which forecast is
  better.
- AUROC: the difference of both areas has the variance of the rows' paired placements (DeLong,
  DeLong & Clarke-Pearson 1988). Here placements are computed between cells of confidence of equal
  width in log odds. The interval is normal.
- ECE: chance adds to both ECEs, and more to the smaller one. So the observed difference is too near
  0, and resampled differences are even nearer. The interval spans the percentiles of the resampled
  differences and their reflection at the observed difference (the basic bootstrap interval, Davison
  & Hinkley 1997, section 5.2), which corrects for this. In doubt it contains 0; that is tested.
- Class gap: a sum of magnitudes like the ECE, with the same interval. It needs the joint cells of
  every class, so it has none with more than some hundred classes.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import Float64s, Integers, Labels
from covcal_cli.evaluate.bins import CORRECTNESS, ConfidenceBlock, ValueCells
from covcal_cli.evaluate.bootstrap import (
    LEVEL,
    MAX_DRAWS,
    Interval,
    mean_interval,
    resampled_level,
    stretched,
)
from covcal_cli.evaluate.metrics import METRICS
from covcal_cli.maths.odds import quantile

LOSSES = ("brier", "nll", *CORRECTNESS)  # metrics that are means of proper scores over rows
_ODDS = 1 / (1 + np.exp(-np.arange(-16, 16.25, 0.25)))  # edges of the cells of confidence
_MAX_CELLS = 1_000_000  # most joint counts; if more are needed, the ECE has no paired difference
_MAX_CLASS_CELLS = 1 << 17  # the same by class, for the class gap


@dataclass(frozen=True)
class Difference:
    """The difference of a metric between two calibrations on the same rows, for metrics.json."""

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
    """Counts of the same rows by the confidence of two calibrations, block by block.

    `n_classes` is the number of predicted classes, or 1 if the two calibrations predict different
    labels. Only the metrics in `names` get a difference.
    """

    def __init__(
        self, bins: int, n_classes: int = 1, names: Collection[str] = tuple(METRICS)
    ) -> None:
        self._names = names
        self._bins = bins
        cells = 4 * bins**2  # a cell per pair of bins and per pair of right or wrong labels
        if cells > _MAX_CELLS:
            cells = 0
        classes = n_classes if 0 < cells * n_classes <= _MAX_CLASS_CELLS else 1
        self._counts = np.zeros((classes, cells), dtype=np.int64)
        self._confidence = np.zeros((2, classes, cells))  # sums
        self._losses = {name: ValueCells() for name in LOSSES if name in names}
        # For each calibration: the cell, and whether the label is right.
        shape = (2 * len(_ODDS) + 2, 2 * len(_ODDS) + 2)
        self._ranked = np.zeros(shape, dtype=np.int64)

    def add(
        self, first: ConfidenceBlock, second: ConfidenceBlock, predicted: Labels | None = None
    ) -> None:
        """Count a block of m rows, with the losses of each row.

        `predicted` are the labels of both calibrations, shape (m,), if `n_classes` is above 1.
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
        """Return the second calibration's metrics minus the first's, each with its interval.

        `areas` are the AUROC of correctness of both calibrations.
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
        """Return the standard deviation of the difference of the AUROCs."""
        first, second = (_influence(self._ranked.sum(axis=1 - axis)) for axis in (0, 1))
        apart = (second - first[:, None]) ** 2
        return math.sqrt(float((self._ranked * apart).sum())) / int(self._ranked.sum())

    def _gaps(self) -> Iterator[tuple[str, Integers, list["_Side"]]]:
        """Yield each metric that is a sum of gaps, with the rows per filled cell and both sides."""
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
    """The gaps of one calibration in every joint cell; both arrays have shape (cells,)."""

    place: Integers  # the bin or class in which gaps are summed before the magnitude is taken
    gaps: Float64s  # mean of confidence - correct

    def total(self, drawn: Integers) -> Float64s:
        """Return n times the metric of every resample; `drawn` are rows per cell, (R, cells)."""
        order = np.argsort(self.place, kind="stable")
        starts = np.flatnonzero(np.diff(self.place[order], prepend=-1))
        sums: Float64s = np.add.reduceat((drawn * self.gaps)[:, order], starts, axis=1)
        total: Float64s = np.abs(sums).sum(axis=1)
        return total


def _filled(
    counts: Integers, confidence: Float64s, places: tuple[Integers, Integers]
) -> tuple[Integers, list[_Side]]:
    """Return the rows of the filled cells, and the gaps of both calibrations there."""
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
    size = max(1, MAX_DRAWS // len(counts))  # resamples at a time, which limits the memory
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
    """Return the influence of a row in each cell on n times the AUROC, with mean 0.

    The result has the shape of `counts`.

    `counts` are numbers of rows by ascending cell, with wrong and right rows alternating.
    """
    wrong, right = counts[::2], counts[1::2]
    below, above = np.cumsum(wrong) - wrong / 2, right.sum() - np.cumsum(right) + right / 2
    placed = np.stack([above / right.sum(), below / wrong.sum()], axis=1)
    area = float(right @ placed[:, 1]) / right.sum()
    shares = np.array([wrong.sum(), right.sum()]) / counts.sum()
    influence: Float64s = ((placed - area) / shares).ravel()
    return influence
