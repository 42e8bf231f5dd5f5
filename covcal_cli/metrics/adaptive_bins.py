"""Bins of equal mass: the adaptive ECE (Nguyen & O'Connor 2015; Nixon et al. 2019)."""

import numpy as np

from covcal_cli.metrics.binning import require_rows
from covcal_cli.metrics.rankedrows import RankedRows
from covcal_cli.metrics.reliability import Bins


def adaptive_bins(rows: RankedRows, bins: int) -> Bins:
    """Cut ranked rows into `bins` bins that hold about as many rows each.

    Bin b starts at the (b-1)/B quantile of the confidences (of NumPy's default, linear kind) and
    ends before the next one; rows of equal confidence are never parted, so that a bin may be
    empty where many rows share a value.
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
