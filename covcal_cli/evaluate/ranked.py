"""Metrics of rows that are sorted by confidence: AUROC, AURC, adaptive ECE and smooth ECE.

A row is stored as a 32-bit key: the float32 bits of its confidence, and one bit for right or wrong.
Sorting the keys sorts the rows by confidence.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from covcal_cli.arrays import Booleans, Float64s, Floats, Integers
from covcal_cli.evaluate.bins import Bins, require_rows

Keys = NDArray[np.uint32]  # Confidence and correctness in one integer per row.
_CHUNK = 1 << 15  # Number of rows that fit in the processor's cache.


@dataclass(frozen=True)
class RankedRows:
    """Rows in ascending order of confidence."""

    keys: Keys  # shape (n,), ascending

    def __len__(self) -> int:
        return len(self.keys)

    def starts_of(self, values: Float64s) -> Integers:
        """Return how many rows have a confidence below each of the ascending `values`."""
        lowest = values.astype(np.float32)
        lowest = np.where(lowest < values, np.nextafter(lowest, np.float32(2)), lowest)
        return np.searchsorted(self.keys, lowest.view(np.uint32) << np.uint32(1)).astype(np.int64)

    def sums_from(self, starts: Integers) -> tuple[Float64s, Integers]:
        """Return sum of confidences and number of right rows between the ascending `starts`."""
        sums, hits = np.zeros(len(starts)), np.zeros(len(starts), dtype=np.int64)
        for start in range(0, len(self.keys), _CHUNK):
            keys = self.keys[start : start + _CHUNK]
            first = int(np.searchsorted(starts, start, side="right")) - 1
            runs = slice(first, int(np.searchsorted(starts, start + len(keys))))
            local = np.maximum(starts[runs] - start, 0)
            sums[runs] += np.add.reduceat(confidence_of(keys), local)
            hits[runs] += np.add.reduceat(keys & np.uint32(1), local, dtype=np.int64)
        return sums, hits

    def first_of_its_value(self, row: int) -> int:
        """Return the first row with the same confidence as `row`."""
        return int(np.searchsorted(self.keys, self.keys[row] & np.uint32(0xFFFFFFFE), side="left"))


class RowCollector:
    """Collects the confidences of rows, block by block."""

    def __init__(self) -> None:
        self._blocks: list[Keys] = []

    def add(self, confidence: Floats, correct: Booleans) -> None:
        """Add a block of rows. Confidences are stored as float32."""
        self._blocks.append(_keys(confidence, correct))

    def ranked(self) -> RankedRows:
        """Return all rows, sorted by confidence."""
        keys = np.concatenate(self._blocks) if self._blocks else np.empty(0, np.uint32)
        self._blocks = [keys]
        keys.sort()
        return RankedRows(keys)


class GroupCollector:
    """Collects the confidences and group numbers of rows (eight bytes per row)."""

    def __init__(self, n_groups: int) -> None:
        self._blocks = [np.empty(0, dtype=np.uint64)]
        self._starts = np.arange(n_groups + 1, dtype=np.uint64) << np.uint64(32)

    def add(self, confidence: Floats, correct: Booleans, groups: Integers) -> None:
        """Add a block of rows with their group numbers."""
        numbers = groups.astype(np.uint64) << np.uint64(32)
        self._blocks.append(numbers | _keys(confidence, correct))

    def ranked(self) -> Iterator[RankedRows]:
        """Yield the ranked rows of every group."""
        rows = np.concatenate(self._blocks)
        rows.sort()
        self._blocks = [rows]
        ends = np.searchsorted(rows, self._starts)
        for start, stop in pairwise(ends.tolist()):
            # The lower four bytes are the key, the upper four bytes the group.
            yield RankedRows(rows[start:stop].astype(np.uint32))


def _keys(confidence: Floats, correct: Booleans) -> Keys:
    bits = (np.asarray(confidence).astype(np.float32) + np.float32(0)).view(np.uint32)
    keys: Keys = (bits << np.uint32(1)) | np.asarray(correct, dtype=np.uint32)
    return keys


def confidence_of(keys: Keys) -> Float64s:
    """Return the confidences that are stored in row keys."""
    return (keys >> np.uint32(1)).view(np.float32).astype(np.float64)


def correct_of(keys: Keys) -> Booleans:
    """Return whether each prediction is right, as stored in row keys."""
    return (keys & np.uint32(1)).astype(bool)


def adaptive_bins(rows: RankedRows, bins: int) -> Bins:
    """Divide rows into bins with equal numbers of rows, for the adaptive ECE.

    Bin edges are quantiles of the confidence (Nguyen & O'Connor 2015; Nixon et al. 2019). Rows with
    the same confidence are in the same bin.
    """
    n = require_rows(len(rows))
    starts = np.array(
        [
            rows.first_of_its_value(-(-(n - 1) * number // bins)) if number else 0
            for number in range(bins)
        ]
    )
    counts = np.diff(starts, append=n)
    filled = counts > 0
    confidence_sums, hits = np.zeros(bins), np.zeros(bins, dtype=np.int64)
    confidence_sums[filled], hits[filled] = rows.sums_from(starts[filled])
    return Bins(counts, hits, confidence_sums)


@dataclass(frozen=True)
class Auroc:
    """The AUROC of the confidence, with right rows as positives."""

    value: float
    right: int
    wrong: int
    rows: RankedRows = field(repr=False)

    @cached_property
    def variance(self) -> float:
        """The variance of the AUROC (DeLong, DeLong & Clarke-Pearson 1988)."""
        squares_of_right = squares_of_wrong = 0.0
        for run in _runs(self.rows):
            # All counts are doubled, because a tie counts half.
            below, above = 2.0 * self.wrong - run.errors_around, run.right_around
            squares_of_right += float((run.sizes - run.errors) @ (below * below))
            squares_of_wrong += float(run.errors @ (above * above))
        return sum(
            max(0.0, squares / count / (2 * others) ** 2 - self.value**2) / max(1, count - 1)
            for squares, count, others in (
                (squares_of_right, self.right, self.wrong),
                (squares_of_wrong, self.wrong, self.right),
            )
        )


class Areas(NamedTuple):
    """AURC and AUROC of the confidence.

    `aurc` is the area under the risk-coverage curve (Geifman & El-Yaniv 2017; Geifman, Uziel &
    El-Yaniv 2019): the error rate among the k most confident rows, averaged over all k. Lower is
    better.
    """

    aurc: float
    auroc: Auroc | None  # None if all rows are right or all are wrong


def areas(rows: RankedRows) -> Areas:
    """Return AURC and AUROC of the confidence.

    The AUROC is the Mann-Whitney U, divided by the number of pairs of a right and a wrong row.
    """
    n = require_rows(len(rows))
    parts = (rows.keys[start : start + _CHUNK] for start in range(0, n, _CHUNK))
    right = sum(int(np.count_nonzero(correct_of(part))) for part in parts)
    wrong = n - right
    area = pairs = 0.0
    for run in _runs(rows):
        area += run.risk()
        pairs += float(run.errors @ run.right_around)
    if not right or not wrong:
        return Areas(area / n, None)
    return Areas(area / n, Auroc(pairs / (2 * right * wrong), right, wrong, rows))


@dataclass(frozen=True)
class _Runs:
    """Groups (runs) of rows with equal confidence, the most confident group first."""

    ends: Float64s  # (runs + 1,).
    errors_at_ends: Float64s  # (runs + 1,).
    last: Integers

    @cached_property
    def sizes(self) -> Float64s:
        return np.diff(self.ends)

    @cached_property
    def errors(self) -> Float64s:
        return np.diff(self.errors_at_ends)

    @property
    def errors_around(self) -> Float64s:
        """Wrong rows before each run, counted twice, plus the run's wrong rows, shape (runs,)."""
        return self.errors_at_ends[:-1] + self.errors_at_ends[1:]

    @property
    def right_around(self) -> Float64s:
        """Right rows before each run, counted twice, plus the run's right rows, shape (runs,)."""
        right = self.ends - self.errors_at_ends
        return right[:-1] + right[1:]

    def risk(self) -> float:
        """Return the sum, over all k, of the error rate among the k most confident rows."""
        inverse = np.arange(self.ends[0] + 1, self.ends[-1] + 1)
        np.divide(1, inverse, out=inverse)
        sums = np.cumsum(inverse, out=inverse).take(self.last)
        # Assume that wrong rows are evenly spread among rows with equal confidence.
        constant = self.errors_at_ends[:-1] - self.ends[:-1] * (self.errors / self.sizes)
        return float(constant @ np.diff(sums, prepend=0.0)) + float(self.errors.sum())


def _runs(rows: RankedRows) -> Iterator[_Runs]:
    stop, errors = len(rows), 0
    while stop > 0:
        start = rows.first_of_its_value(max(0, stop - _CHUNK))
        keys = rows.keys[start:stop][::-1].copy()
        # A new run begins where the confidence (all bits except the lowest) changes.
        last = np.append(np.flatnonzero((keys[1:] ^ keys[:-1]) > 1), len(keys) - 1)
        right = np.cumsum(keys & np.uint32(1), dtype=np.uint32).take(last)
        wrong = last + 1 - right
        ends = np.concatenate([[len(rows) - stop], last + (len(rows) - stop + 1)], dtype=float)
        errors_at_ends = np.concatenate([[errors], wrong + errors], dtype=float)
        yield _Runs(ends, errors_at_ends, last)
        stop, errors = start, errors + int(wrong[-1])


_MAX_ATOMS = 1 << 16  # with more rows, rows with similar confidence are joined
_FINE = 128_000
_HALVINGS = 10
_LEAST_BANDWIDTH = 0.001
_EVALUATIONS = 200
_DENSITY_OFFSET = 1e-4  # prevents division by 0


def smooth_ece(rows: RankedRows) -> float:
    """Return the smooth ECE, which needs no bins (Blasiok & Nakkiran 2023).

    The smooth ECE at bandwidth s is the integral of |r(t)| over t in [0, 1]. Here r(t) is the mean
    of (confidence - correct) K_s(confidence, t) over rows. The Gaussian kernel K_s is mirrored at 0
    and 1. The bandwidth s is chosen so that the smooth ECE is also s, to within 1/1024.

    The results agree with the authors' package relplot to 1e-6, except very near 0 and 1.

    With more than 65 536 rows, rows with similar confidence are joined.
    """
    require_rows(len(rows))
    mass = _mass_of(rows)
    if _is_too_small(1.0, mass):
        return smooth_ece_at(1.0, mass)
    # The smooth ECE falls as the bandwidth grows: use bisection.
    bandwidth, too_small = 1.0, 0.0
    for _ in range(_HALVINGS):
        middle = (bandwidth + too_small) / 2
        if _is_too_small(middle, mass):
            too_small = middle
        else:
            bandwidth = middle
    return smooth_ece_at(bandwidth, mass)


@dataclass(frozen=True)
class Mass:
    """Groups of rows with similar confidence; each array has shape (m,)."""

    positions: Float64s
    residuals: Float64s  # sum of (confidence - correct) in a group
    rows: Float64s
    on_grids: dict[int, tuple[Float64s, Float64s]] = field(default_factory=dict)


def smooth_ece_at(bandwidth: float, mass: Mass) -> float:
    """Return the smooth ECE at a given bandwidth, above 0."""
    nodes = max(2000, round(20 / bandwidth)) // 2 + 1
    points = np.linspace(0, 1, max(round(10 / bandwidth), _EVALUATIONS))
    grid = np.linspace(0, 1, nodes)
    if nodes not in mass.on_grids:
        mass.on_grids[nodes] = _on_grid(mass, nodes)
    kernel = np.exp(-((grid - 0.5) ** 2) / (2 * bandwidth**2)) / (np.sqrt(2 * np.pi) * bandwidth)
    residuals, density = (
        np.interp(points, grid, _reflected(values, kernel)) for values in mass.on_grids[nodes]
    )
    return float(np.abs(residuals).sum() / (density + _DENSITY_OFFSET).sum())


def _is_too_small(bandwidth: float, mass: Mass) -> bool:
    return bandwidth < _LEAST_BANDWIDTH or bandwidth < smooth_ece_at(bandwidth, mass)


def _mass_of(rows: RankedRows) -> Mass:
    if len(rows) <= _MAX_ATOMS:
        confidence, correct = confidence_of(rows.keys), correct_of(rows.keys)
        return Mass(confidence, confidence - correct, np.ones(len(rows)))
    starts = rows.starts_of(np.arange(_FINE) / _FINE)
    starts = starts[np.diff(starts, append=len(rows)) > 0]
    counts = np.diff(starts, append=len(rows)).astype(np.float64)
    sums, hits = rows.sums_from(starts)
    return Mass(sums / counts, sums - hits, counts)


def _on_grid(mass: Mass, nodes: int) -> tuple[Float64s, Float64s]:
    """Share the residuals and counts of rows between the two nearest points of a grid."""
    scaled = mass.positions * (nodes - 1)
    left = np.minimum(scaled.astype(np.int64), nodes - 2)
    right_share = scaled - left
    left_share = 1 - right_share

    def split(values: Float64s) -> Float64s:
        shares: Float64s = np.bincount(left, left_share * values, minlength=nodes).astype(float)
        shares += np.bincount(left + 1, right_share * values, minlength=nodes)
        return shares

    return split(mass.residuals), split(mass.rows)


def _reflected(values: Float64s, kernel: Float64s) -> Float64s:
    nodes = len(values)
    mirrored = np.concatenate([values, values[-2:0:-1]])
    mirrored[[0, nodes - 1]] *= 2  # Values at both ends count twice.
    centred = np.zeros(len(mirrored))
    centred[: len(kernel)] = kernel
    centred = np.roll(centred, -(nodes // 2))
    spectrum = np.fft.rfft(mirrored) * np.fft.rfft(centred)
    return np.fft.irfft(spectrum, n=len(mirrored))[:nodes]
