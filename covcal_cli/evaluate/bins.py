"""Count rows in bins, and compute calibration errors from the counts.

By default, bins have equal width. A bin includes its upper edge, and the first bin includes 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from covcal_cli.arrays import AnyArray, Booleans, Float64s, Floats, Integers, Labels
from covcal_cli.errors import ArgumentError
from covcal_cli.records import Count, NonNegative, Share, at

CORRECTNESS = ("correctness_brier", "correctness_nll")
MAX_BINS = 10_000
SMALL_GROUP = 100
_ROUNDING = 1e-6
_FEW_ULPS = 2.0**-50


def check_bins(bins: int) -> None:
    """Raise an ArgumentError if the number of bins is too small or too large."""
    if not 1 <= bins <= MAX_BINS:
        raise ArgumentError(f"bins must be from 1 to {MAX_BINS}, not {bins}")


def bin_edges(bins: int) -> Float64s:
    """Return the edges of equally wide bins from 0 to 1, shape (bins + 1,)."""
    edges: Float64s = np.arange(bins + 1) / bins
    return edges


def require_rows(n: int) -> int:
    """Return `n`, or raise ValueError if `n` is 0."""
    if n == 0:
        raise ValueError("there are no rows to measure")
    return n


@dataclass(frozen=True)
class ConfidenceBlock:
    """The confidences of m rows; every array has shape (m,)."""

    confidence: Float64s  # within [0, 1]
    correct: Booleans
    index: Integers
    losses: Mapping[str, Float64s] = field(default_factory=dict)


def confidence_block(confidence: Floats, correct: Booleans, edges: Float64s) -> ConfidenceBlock:
    """Assign rows to bins of confidence. Bins lie between neighbouring `edges`.

    Raises ValueError if a confidence is NaN or outside [0, 1].
    """
    values = _within_bounds(np.asarray(confidence, dtype=np.float64))
    # Rounding can make `index` too large by 1. In this case, 1 is subtracted below.
    index = (values * ((len(edges) - 1) * (1 + _FEW_ULPS))).astype(np.int64)
    lower = edges.copy()
    lower[0] = -1.0
    index -= lower.take(index) >= values
    return ConfidenceBlock(values, correct, index)


def _within_bounds(values: Float64s) -> Float64s:
    if len(values) == 0:
        return values
    lowest, highest = values.min(), values.max()
    if not (lowest >= -_ROUNDING and highest <= 1 + _ROUNDING):
        raise ValueError("a confidence is NaN or outside [0, 1]")
    return values if lowest >= 0 and highest <= 1 else np.clip(values, 0.0, 1.0)


@dataclass(frozen=True)
class Bins:
    """Counts of rows per bin of confidence; each array has shape (bins,)."""

    counts: Integers
    hits: Integers
    confidence_sums: Float64s

    @property
    def n(self) -> int:
        """Number of rows in all bins."""
        return int(self.counts.sum())

    @property
    def confidence(self) -> Float64s:
        """Mean confidence per bin; NaN in an empty bin."""
        return ratio(self.confidence_sums, self.counts)

    @property
    def accuracy(self) -> Float64s:
        """Accuracy per bin; NaN in an empty bin."""
        return ratio(self.hits, self.counts)

    def mean_accuracy(self) -> float:
        """Return the accuracy of all rows."""
        return int(self.hits.sum()) / self.n

    def mean_confidence(self) -> float:
        """Return the mean confidence of all rows."""
        return float(self.confidence_sums.sum()) / self.n

    def ece(self) -> float:
        """Return the expected calibration error, sum_b n_b/n |conf_b - acc_b|."""
        return float(np.abs(self.confidence_sums - self.hits).sum() / require_rows(self.n))

    def over_ece(self) -> float:
        """Return the over-confident part of the ECE."""
        return float(over(self._gaps()).sum())

    def under_ece(self) -> float:
        """Return the under-confident part of the ECE."""
        return float(under(self._gaps()).sum())

    def mce(self) -> float:
        """Return the maximum calibration error, max_b |conf_b - acc_b|."""
        require_rows(self.n)
        return float(np.nanmax(np.abs(self.confidence - self.accuracy)))

    def _gaps(self) -> Float64s:
        return (self.confidence_sums - self.hits) / require_rows(self.n)


class ReliabilityBins(Bins):
    """Rows in equally wide bins."""

    @property
    def edges(self) -> Float64s:
        """The edges of the bins from 0 to 1, shape (bins + 1,)."""
        return bin_edges(len(self.counts))

    def ece(self) -> float:
        """Return the ECE: its over-confident part plus its under-confident part."""
        return self.over_ece() + self.under_ece()


def over(gaps: Float64s) -> Float64s:
    """Return the gaps of over-confident bins, and 0 for other bins."""
    return np.maximum(gaps, 0.0)


def under(gaps: Float64s) -> Float64s:
    """Return the absolute gaps of under-confident bins, and 0 for other bins."""
    return np.maximum(-gaps, 0.0)


def ratio(numerator: AnyArray, denominator: AnyArray) -> Float64s:
    """Divide two arrays; a division by 0 gives NaN."""
    quotient = np.full(len(numerator), np.nan)
    np.divide(numerator, denominator, out=quotient, where=denominator > 0)
    return quotient


@dataclass(frozen=True)
class GroupMetrics:
    """Metrics of a group of rows, as fractions; None if the group is empty."""

    name: str = field(metadata=at("group"))
    n: Count
    accuracy: Share | None
    mean_confidence: Share | None
    ece: Share | None
    over_ece: Share | None
    small: bool  # whether the ECE is mostly noise; true for few rows
    correctness_brier: Share | None = None
    correctness_nll: NonNegative | None = None
    correctness_auroc: Share | None = None  # None if all rows are right or all are wrong.
    # The interval of each metric; empty without resampling.
    intervals: Mapping[str, tuple[Share, Share]] = field(default_factory=dict)


class GroupBins:
    """Counts of rows for each group and bin, and the sum of losses of each group."""

    def __init__(self, bins: int, n_groups: int = 1) -> None:
        self.counts = np.zeros((n_groups, bins), dtype=np.int64)
        self.hits = np.zeros((n_groups, bins), dtype=np.int64)
        self.confidence_sums = np.zeros((n_groups, bins))
        self.losses: dict[str, Float64s] = {}

    def add(self, rows: ConfidenceBlock, groups: Integers | None = None) -> None:
        """Add a block of rows. `groups` are the group numbers (default: 0)."""
        shape, size = self.counts.shape, self.counts.size
        cells = rows.index if groups is None else groups * shape[1] + rows.index
        self.counts += np.bincount(cells, minlength=size).reshape(shape)
        hits = np.bincount(cells, rows.correct, minlength=size).reshape(shape)
        self.hits += hits.astype(np.int64)
        self.confidence_sums += np.bincount(cells, rows.confidence, minlength=size).reshape(shape)
        places = np.zeros_like(rows.index) if groups is None else groups
        for name, values in rows.losses.items():
            if name in CORRECTNESS:
                sums = self.losses.setdefault(name, np.zeros(shape[0]))
                sums += np.bincount(places, values, minlength=shape[0])

    def together(self) -> ReliabilityBins:
        """Return the counts in each bin, summed over groups."""
        arrays = (self.counts, self.hits, self.confidence_sums)
        return ReliabilityBins(*(array.sum(axis=0) for array in arrays))

    def by_group(self) -> Bins:
        """Return the counts in each group, summed over bins."""
        arrays = (self.counts, self.hits, self.confidence_sums)
        return Bins(*(array.sum(axis=1) for array in arrays))

    def bins_of(self, group: int) -> ReliabilityBins:
        """Return the counts in each bin of one group."""
        return ReliabilityBins(self.counts[group], self.hits[group], self.confidence_sums[group])

    def result(self, names: Sequence[str]) -> tuple[GroupMetrics, ...]:
        """Return the metrics of each group. `names` are the names of the groups."""
        return tuple(
            _of_group(
                name,
                self.bins_of(number),
                {key: float(losses[number]) for key, losses in self.losses.items()},
            )
            for number, name in enumerate(names)
        )


def _mean(losses: Mapping[str, float], name: str, n: int) -> float | None:
    return losses[name] / n if name in losses else None


def _of_group(name: str, bins: ReliabilityBins, losses: Mapping[str, float]) -> GroupMetrics:
    if bins.n == 0:
        return GroupMetrics(name, 0, None, None, None, None, small=True)
    return GroupMetrics(
        name=name,
        n=bins.n,
        accuracy=bins.mean_accuracy(),
        mean_confidence=bins.mean_confidence(),
        ece=bins.ece(),
        over_ece=bins.over_ece(),
        small=bins.n < SMALL_GROUP,
        correctness_brier=_mean(losses, "correctness_brier", bins.n),
        correctness_nll=_mean(losses, "correctness_nll", bins.n),
    )


# Each counter has several copies, because repeated additions to one counter are slow.
_LANES = 4
_PART = 1 << 15  # number of probabilities that fit in the processor's cache


class ClasswiseBins:
    """Histograms of each class's probability, for the class-wise ECE and the sharpness."""

    def __init__(self, bins: int, n_classes: int) -> None:
        self._bins, self._classes = bins, n_classes
        self._n, self._squares = 0, 0.0
        self._counts = np.zeros((n_classes, _LANES * bins), dtype=np.int64)
        self._sums = np.zeros((n_classes, _LANES * bins))
        self._hits = np.zeros(n_classes * bins, dtype=np.int64)
        self._first = np.zeros((0, 0), dtype=np.int32)

    def add(
        self, probabilities: Float64s, labels: Labels, of_labels: Float64s, squares: float
    ) -> None:
        """Add a block of m rows.

        `probabilities` has shape (K, m). `labels`, (m,), are the true classes, and `of_labels`,
        (m,), the probabilities of these classes. `squares` is the sum of all squared probabilities.
        """
        m = len(labels)
        classes = min(self._classes, max(1, _PART // max(1, m)))
        if self._first.shape != (classes, m):
            self._first = self._first_cells(classes, m)
        scale = self._bins * (1 - _FEW_ULPS)
        # A cell with n rows has the total n c + sum(p). Rounding (total / c) down gives n.
        c = 2.0 ** (m // _LANES + 1).bit_length()
        for start in range(0, self._classes, classes):
            part = slice(start, start + classes)
            scaled = probabilities[part] * scale
            cells = scaled.astype(np.int32)
            cells += self._first[: len(cells)]
            np.add(probabilities[part], c, out=scaled)
            counts, sums = self._counts[part], self._sums[part]
            totals = np.bincount(cells.reshape(-1), scaled.reshape(-1), counts.size)
            totals = totals.reshape(counts.shape)
            new = np.floor(totals / c)
            counts += new.astype(np.int64)
            sums += totals - new * c
        self._n += m
        self._squares += squares
        cells_of_labels = labels * self._bins + (of_labels * scale).astype(np.int64)
        self._hits += np.bincount(cells_of_labels, minlength=len(self._hits))

    def ece_by_class(self) -> Float64s:
        """Return the ECE of the probability of each class, shape (K,)."""
        n = require_rows(self._n)
        hits = self._hits.reshape(self._classes, self._bins)
        errors: Float64s = np.abs(self._by_bin(self._sums) - hits).sum(axis=1) / n
        return errors

    def ece(self) -> float:
        """Return the class-wise ECE: the mean of `ece_by_class`.

        Kull et al. 2019 define the class-wise ECE. Nixon et al. 2019 call it static calibration
        error.
        """
        return float(self.ece_by_class().mean())

    def decomposition(self) -> tuple[float, float]:
        """Return the calibration error E||p - c||^2 and the sharpness E||c||^2.

        c_k is the frequency of class k among the rows in the same bin of p_k.
        """
        n = require_rows(self._n)
        hits, sums = self._hits.reshape(self._classes, self._bins), self._by_bin(self._sums)
        frequencies = hits / np.maximum(self._by_bin(self._counts), 1)
        sharpness = float((frequencies * hits).sum())
        calibration = self._squares - 2 * float((frequencies * sums).sum()) + sharpness
        return max(0.0, calibration) / n, sharpness / n

    def _by_bin(self, values: AnyArray) -> AnyArray:
        added: AnyArray = values.reshape(self._classes, _LANES, self._bins).sum(axis=1)
        return added

    def _first_cells(self, classes: int, m: int) -> NDArray[np.int32]:
        lanes = np.arange(classes)[:, None] * _LANES + np.arange(m) % _LANES
        return (lanes * self._bins).astype(np.int32)


def debiased_ece(bins: Bins) -> float:
    """Return the debiased ECE, 2 ECE - E[ECE*] (Kumar, Liang & Ma 2019).

    E[ECE*] is the mean ECE if normal noise with variance acc (1 - acc) / n_b is added to the
    accuracy of each bin. The debiased ECE may be negative.
    """
    n = require_rows(bins.n)
    filled = bins.counts > 0
    sizes = bins.counts[filled]
    accuracy = bins.hits[filled] / sizes
    gaps = bins.confidence_sums[filled] / sizes - accuracy
    deviations = np.sqrt(accuracy * (1 - accuracy) / sizes)
    expected = [
        _mean_of_magnitude(gap, deviation)
        for gap, deviation in zip(gaps.tolist(), deviations.tolist(), strict=True)
    ]
    return float((sizes / n * (2 * np.abs(gaps) - expected)).sum())


def _mean_of_magnitude(mean: float, deviation: float) -> float:
    if deviation == 0:
        return abs(mean)
    z = mean / deviation
    spread = deviation * math.sqrt(2 / math.pi) * math.exp(-(z**2) / 2)
    return spread + mean * math.erf(z / math.sqrt(2))


_SHIFT = np.uint32(18)
_CELLS = 1 << 14


class ValueCells:
    """A histogram of one number per row, for bootstrap resampling.

    Values in the same cell differ by at most 3 %. The mean of each cell is exact.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(_CELLS, dtype=np.int64)
        self._sums = np.zeros(_CELLS)

    def add(self, values: Floats) -> None:
        """Add a block of values, shape (m,)."""
        cells = values.astype(np.float32).view(np.uint32) >> _SHIFT
        self._counts += np.bincount(cells, minlength=_CELLS)
        self._sums += np.bincount(cells, values, minlength=_CELLS)

    def filled(self) -> tuple[Integers, Float64s]:
        """Return the count and the mean of every non-empty cell."""
        filled = self._counts > 0
        counts = self._counts[filled]
        return counts, self._sums[filled] / counts
