"""How much one calibration differs from another on the same rows, by paired resampling.

Two intervals that overlap show nothing: most of what chance does to one calibration it does to the
other as well. So rows are resampled with what both say of them, through their counts in joint
cells: what a draw costs does not grow with the rows.

- Brier score and log loss: percentiles of the mean difference of the rows' losses. They are proper
  scores, so their difference says which forecast is the better one.
- ECE: chance adds to either ECE, and more to the smaller one, so that the difference found, and
  even more so a resampled one, lies too near 0. The interval spans the percentiles of the resampled
  differences and their reflection at the difference found (the basic bootstrap interval, Davison &
  Hinkley 1997, section 5.2), which undoes as much as resampling added. What it misses, it misses on
  the side of no difference; that is tested.
"""

from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import Float64s, Integers
from covcal_cli.evaluate.bins import JudgedRows, ValueCells
from covcal_cli.evaluate.bootstrap import LEVEL, MAX_DRAWS, Interval, mean_interval

LOSSES = ("brier", "nll")  # metrics that are means over rows, of proper scores
COMPARED = ("ece", *LOSSES)
_MAX_CELLS = 1_000_000  # joint counts to keep; with more, the ECE has no paired difference


@dataclass(frozen=True)
class Difference:
    """A metric of one calibration less that of another, on the same rows, as metrics.json has it.

    Above 0 where `calibration` is worse.
    """

    calibration: str
    against: str
    metric: str
    value: float
    low: float  # ends of its interval
    high: float

    @property
    def direction(self) -> int:
        """1 where worse is shown, -1 where better is, 0 where the interval holds no difference."""
        return int(self.low > 0) - int(self.high < 0)


class PairedRows:
    """Counts of what two calibrations say of the same rows, block by block."""

    def __init__(self, bins: int) -> None:
        self._bins = bins
        cells = 4 * bins**2  # by either bin, and whether either judged label is right
        self._counts = np.zeros(cells if cells <= _MAX_CELLS else 0, dtype=np.int64)
        self._confidence = np.zeros((2, len(self._counts)))  # sums
        self._losses = {name: ValueCells() for name in LOSSES}

    def add(self, first: JudgedRows, second: JudgedRows) -> None:
        """Count a block of m rows, with the losses of each row."""
        for name, cells in self._losses.items():
            cells.add(second.losses[name] - first.losses[name])
        size = len(self._counts)
        if size == 0:
            return
        joint = (first.index * self._bins + second.index) * 4
        joint += first.correct * 2 + second.correct
        self._counts += np.bincount(joint, minlength=size)
        for sums, rows in zip(self._confidence, (first, second), strict=True):
            sums += np.bincount(joint, rows.confidence, minlength=size)

    def differences(
        self, calibration: str, against: str, *, resamples: int, seed: int, level: float = LEVEL
    ) -> list[Difference]:
        """Return the second calibration's metrics less the first's, each with its interval."""
        found = []
        if self._counts.any():
            value, ends = self._ece(resamples, np.random.default_rng(seed), level)
            found.append(Difference(calibration, against, "ece", value, *ends))
        for name, kept in self._losses.items():
            counts, values = kept.filled()
            rng = np.random.default_rng(seed)
            ends = mean_interval(counts, values, resamples=resamples, rng=rng, level=level)
            value = float(counts @ values / counts.sum())
            found.append(Difference(calibration, against, name, value, *ends))
        return found

    def _ece(
        self, resamples: int, rng: np.random.Generator, level: float
    ) -> tuple[float, Interval]:
        """Return the difference of the ECEs and its interval."""
        cells = np.flatnonzero(self._counts)
        counts = self._counts[cells]
        n = int(counts.sum())
        # Per cell and calibration: the bin, and the mean of confidence - correct.
        sides = []
        for sums, place, correct in zip(
            self._confidence,
            (cells // 4 // self._bins, cells // 4 % self._bins),
            (cells // 2 % 2, cells % 2),
            strict=True,
        ):
            sides.append((place, sums[cells] / counts - correct))

        def difference(drawn: Integers) -> Float64s:
            first, second = (_eces(drawn, place, gaps) for place, gaps in sides)
            return (second - first) / n

        value = float(difference(counts[None])[0])
        size = max(1, MAX_DRAWS // len(cells))  # resamples at a time, so that memory stays bounded
        drawn = np.concatenate(
            [
                difference(rng.multinomial(n, counts / n, size=min(size, resamples - start)))
                for start in range(0, resamples, size)
            ]
        )
        low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
        low, high = min(low, 2 * value - high), max(high, 2 * value - low)
        return value, (float(low), float(high))


def _eces(drawn: Integers, place: Integers, gaps: Float64s) -> Float64s:
    """Return n ECE of every resample, shape (R,), given the rows drawn per cell, shape (R, cells).

    `place` is the bin of each cell and `gaps` its mean of confidence - correct.
    """
    order = np.argsort(place, kind="stable")
    starts = np.flatnonzero(np.diff(place[order], prepend=-1))
    sums: Float64s = np.add.reduceat((drawn * gaps)[:, order], starts, axis=1)
    total: Float64s = np.abs(sums).sum(axis=1)
    return total
