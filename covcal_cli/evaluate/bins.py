"""Count rows in bins, block by block, and compute calibration errors from the counts.

Unless stated otherwise, bins are equally wide intervals (c_{b-1}, c_b]. The first bin includes 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from covcal_cli.arrays import AnyArray, Booleans, Float64s, Floats, Integers, Labels
from covcal_cli.errors import ArgumentError
from covcal_cli.records import Count, NonNegative, Share, at

# Mean losses of the confidence as a forecast of r: r is 1 if the predicted label is right, else 0.
CORRECTNESS = ("correctness_brier", "correctness_nll")
MAX_BINS = 10_000
SMALL_GROUP = 100  # in a group of fewer rows, the ECE is mostly noise
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
    """Return the number of rows. Raises ValueError if there are no rows."""
    if n == 0:
        raise ValueError("there are no rows to measure")
    return n


@dataclass(frozen=True)
class ConfidenceBlock:
    """A block of m rows with the bin of each row; every array has shape (m,)."""

    confidence: Float64s  # within [0, 1]
    correct: Booleans
    index: Integers  # the number of the row's bin
    losses: Mapping[str, Float64s] = field(
        default_factory=dict
    )  # for each metric, the rows' losses


def confidence_block(confidence: Floats, correct: Booleans, edges: Float64s) -> ConfidenceBlock:
    """Return rows, each with the number of its bin. Bins are between neighbouring `edges`.

    Raises ValueError if a confidence is NaN, or outside [0, 1] by more than rounding.
    """
    values = _within_bounds(np.asarray(confidence, dtype=np.float64))
    # Rounding may move a confidence on an edge into the bin above.
    # So the confidence is also compared with the edge.
    index = (values * ((len(edges) - 1) * (1 + _FEW_ULPS))).astype(np.int64)
    lower = edges.copy()
    lower[0] = -1.0  # 0 belongs to the first bin
    index -= lower.take(index) >= values
    return ConfidenceBlock(values, correct, index)


def _within_bounds(values: Float64s) -> Float64s:
    if len(values) == 0:
        return values
    lowest, highest = values.min(), values.max()  # both are NaN if any value is NaN
    if not (lowest >= -_ROUNDING and highest <= 1 + _ROUNDING):
        raise ValueError("a confidence is NaN or outside [0, 1]")
    return values if lowest >= 0 and highest <= 1 else np.clip(values, 0.0, 1.0)


# Counts in bins: the ECE, its two parts, and the MCE.


@dataclass(frozen=True)
class Bins:
    """The counts of rows in bins; every array has shape (bins,)."""

    counts: Integers  # number of rows
    hits: Integers  # number of right rows
    confidence_sums: Float64s

    @property
    def n(self) -> int:
        """Number of rows in all bins together."""
        return int(self.counts.sum())

    @property
    def confidence(self) -> Float64s:
        """Mean confidence per bin; NaN where a bin is empty."""
        return ratio(self.confidence_sums, self.counts)

    @property
    def accuracy(self) -> Float64s:
        """Share of right rows per bin; NaN where a bin is empty."""
        return ratio(self.hits, self.counts)

    def mean_accuracy(self) -> float:
        """Return the share of right rows."""
        return int(self.hits.sum()) / self.n

    def mean_confidence(self) -> float:
        """Return the mean confidence of all rows."""
        return float(self.confidence_sums.sum()) / self.n

    def ece(self) -> float:
        """Return the expected calibration error, sum_b n_b/n |conf_b - acc_b|."""
        return float(np.abs(self.confidence_sums - self.hits).sum() / require_rows(self.n))

    def over_ece(self) -> float:
        """Return the part of the ECE from bins whose confidence exceeds their accuracy."""
        return float(over(self._gaps()).sum())

    def under_ece(self) -> float:
        """Return the part of the ECE from bins whose accuracy exceeds their confidence."""
        return float(under(self._gaps()).sum())

    def mce(self) -> float:
        """Return the largest |conf_b - acc_b| of a bin (maximum calibration error)."""
        require_rows(self.n)
        return float(np.nanmax(np.abs(self.confidence - self.accuracy)))

    def _gaps(self) -> Float64s:
        """Return n_b/n (conf_b - acc_b) for each bin."""
        return (self.confidence_sums - self.hits) / require_rows(self.n)


class ReliabilityBins(Bins):
    """Rows in equally wide bins."""

    @property
    def edges(self) -> Float64s:
        """The edges of the bins from 0 to 1, shape (bins + 1,)."""
        return bin_edges(len(self.counts))

    def ece(self) -> float:
        """Return the expected calibration error, as the sum of its two parts."""
        return self.over_ece() + self.under_ece()


def over(gaps: Float64s) -> Float64s:
    """Return the positive gaps, where confidence exceeds accuracy; 0 for other gaps."""
    return np.maximum(gaps, 0.0)


def under(gaps: Float64s) -> Float64s:
    """Return the sizes of negative gaps, where accuracy exceeds confidence; 0 for other gaps."""
    return np.maximum(-gaps, 0.0)


def ratio(numerator: AnyArray, denominator: AnyArray) -> Float64s:
    """Return the quotients of two arrays. A quotient is NaN if its denominator is 0."""
    quotient = np.full(len(numerator), np.nan)
    np.divide(numerator, denominator, out=quotient, where=denominator > 0)
    return quotient


# A group of rows is a class, a predicted label, a value of a column, or all rows.


@dataclass(frozen=True)
class GroupMetrics:
    """The metrics of one group of rows, as fractions; None for a group without rows."""

    name: str = field(metadata=at("group"))
    n: Count
    accuracy: Share | None
    mean_confidence: Share | None
    ece: Share | None
    over_ece: Share | None
    small: bool  # whether the group has so few rows that its ECE is mostly noise
    correctness_brier: Share | None = None  # None if the user did not ask for this metric
    correctness_nll: NonNegative | None = None
    correctness_auroc: Share | None = None  # None if all rows are right or all are wrong
    # For each metric, its interval at the level of the evaluation. Empty without resamples.
    intervals: Mapping[str, tuple[Share, Share]] = field(default_factory=dict)


class GroupBins:
    """The counts of rows in every bin of every group, and the sums of losses in every group."""

    def __init__(self, bins: int, n_groups: int = 1) -> None:
        self.counts = np.zeros((n_groups, bins), dtype=np.int64)
        self.hits = np.zeros((n_groups, bins), dtype=np.int64)
        self.confidence_sums = np.zeros((n_groups, bins))
        self.losses: dict[str, Float64s] = {}  # for each metric, the sum of losses per group

    def add(self, rows: ConfidenceBlock, groups: Integers | None = None) -> None:
        """Count a block of rows. `groups` has the group of each row; None if there is one group."""
        shape, size = self.counts.shape, self.counts.size
        cells = rows.index if groups is None else groups * shape[1] + rows.index
        self.counts += np.bincount(cells, minlength=size).reshape(shape)
        # Summing zeros and ones is exact, and faster than choosing the right rows.
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
        """Return the metrics of every group, in the order of `names`."""
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


# Most probabilities are in the lowest bin, and adding to the same number many times is slow.
# So each bin has several copies, and neighbouring rows use different copies.
_LANES = 4
_PART = 1 << 15  # this many probabilities are counted at a time, in the processor's cache


class ClasswiseBins:
    """The counts of every class's probabilities in bins, for class-wise ECE and sharpness.

    Because of rounding errors, a probability less than 1e-15 above an edge counts as equal to this
    edge. 0, 1 and every edge belong to the same bins as in `confidence_block`.
    """

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
        """Count a block of m rows. `probabilities` have shape (K, m) and are within [0, 1].

        `labels`, (m,), are the true labels, and `of_labels`, (m,), are their probabilities.
        `squares` is the sum of all squared probabilities.
        """
        m = len(labels)
        classes = min(self._classes, max(1, _PART // max(1, m)))  # number of classes in a part
        if self._first.shape != (classes, m):
            self._first = self._first_cells(classes, m)
        scale = self._bins * (1 - _FEW_ULPS)
        # For each probability p, c + p is added to a cell. The total of a cell is c count + sum.
        # The sum is less than c, so the total gives both the count and the sum.
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
        """Return the ECE of the probability of each class over all rows, shape (K,)."""
        n = require_rows(self._n)
        hits = self._hits.reshape(self._classes, self._bins)
        errors: Float64s = np.abs(self._by_bin(self._sums) - hits).sum(axis=1) / n
        return errors

    def ece(self) -> float:
        """Return the mean over classes of sum_b n_kb/n |mean p_k - share of class k|.

        This is the class-wise ECE of Kull et al. 2019, and the static calibration error of Nixon
        et al. 2019.
        """
        return float(self.ece_by_class().mean())

    def decomposition(self) -> tuple[float, float]:
        """Return calibration E||p - c||^2 and sharpness E||c||^2 (the paper's equation 2).

        For each row, c_k is the frequency of class k among the rows whose probability of class k is
        in the same bin. Then Brier = calibration + 1 - sharpness, except for the covariance of
        probabilities and labels within bins.
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
        """Return for each class and row: the first index of the row's copy of the bins."""
        lanes = np.arange(classes)[:, None] * _LANES + np.arange(m) % _LANES
        return (lanes * self._bins).astype(np.int32)


def debiased_ece(bins: Bins) -> float:
    """Return the ECE minus the part that noise adds on average, which is 2 ECE - E[ECE*].

    ECE* is the ECE if the accuracy of each bin is drawn from a normal distribution with the
    observed mean and the variance acc (1 - acc) / n_b (Kumar, Liang & Ma 2019). The mean of ECE* is
    computed by a formula, not by simulation. If the result is below 0, chance explains the ECE.
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
    """Return E|X| of a normally distributed X."""
    if deviation == 0:
        return abs(mean)
    z = mean / deviation
    spread = deviation * math.sqrt(2 / math.pi) * math.exp(-(z**2) / 2)
    return spread + mean * math.erf(z / math.sqrt(2))


_SHIFT = np.uint32(18)
_CELLS = 1 << 14


class ValueCells:
    """The distribution of a number per row, counted in narrow cells, from which rows are resampled.

    Numbers are in one cell if they have the same sign, the same exponent and the same first five
    bits of the fraction in float32. So a cell is at most 3 % wide. The mean of a cell is exact,
    because the sum of its numbers is stored too.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(_CELLS, dtype=np.int64)
        self._sums = np.zeros(_CELLS)

    def add(self, values: Floats) -> None:
        """Count a block of values, shape (m,)."""
        cells = values.astype(np.float32).view(np.uint32) >> _SHIFT
        self._counts += np.bincount(cells, minlength=_CELLS)
        self._sums += np.bincount(cells, values, minlength=_CELLS)

    def filled(self) -> tuple[Integers, Float64s]:
        """Return the count and the mean of every cell that has values."""
        filled = self._counts > 0
        counts = self._counts[filled]
        return counts, self._sums[filled] / counts
