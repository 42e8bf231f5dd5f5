"""Bins of equal mass: the adaptive ECE (Nguyen & O'Connor 2015; Nixon et al. 2019)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covcal_cli.metrics.rankedrows import RankedRows
from covcal_cli.softmax import Array


@dataclass(frozen=True)
class AdaptiveBins:
    """Counts, hits and sums of confidence in bins that hold about as many rows each.

    Bin b starts at the (b-1)/B quantile of the confidences (of NumPy's default, linear kind) and
    ends before the next one; rows of equal confidence are never parted, so that a bin may be
    empty where many rows share a value.

    Attributes
    ----------
    counts, hits : arrays of int64, shape (bins,)
    confidence_sums : array of float64, shape (bins,)
    """

    counts: NDArray[np.int64]
    hits: NDArray[np.int64]
    confidence_sums: Array

    def ece(self) -> float:
        """Return sum_b n_b/n |conf_b - acc_b|."""
        return float(np.abs(self.confidence_sums - self.hits).sum() / self.counts.sum())


def adaptive_bins(rows: RankedRows, bins: int) -> AdaptiveBins:
    """Cut ranked rows into `bins` bins of equal mass; ValueError without rows."""
    n = len(rows)
    if n == 0:
        raise ValueError("no rows were counted")
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
    return AdaptiveBins(counts, hits, confidence_sums)
