"""Rows counted in bins of confidence: the ECE, its two parts and the MCE."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.maths.softmax import Array
from covcal_cli.metrics.binning import bin_edges, require_rows


@dataclass(frozen=True)
class Bins:
    """Rows in bins of confidence, however those are cut; each array has shape (bins,)."""

    counts: NDArray[np.int64]  # rows
    hits: NDArray[np.int64]  # right rows
    confidence_sums: Array

    @property
    def n(self) -> int:
        """Rows in all bins."""
        return int(self.counts.sum())

    @property
    def confidence(self) -> Array:
        """Mean confidence per bin; NaN where a bin is empty."""
        return ratio(self.confidence_sums, self.counts)

    @property
    def accuracy(self) -> Array:
        """Share of right rows per bin; NaN where a bin is empty."""
        return ratio(self.hits, self.counts)

    def ece(self) -> float:
        """Return the expected calibration error, sum_b n_b/n |conf_b - acc_b|."""
        return float(np.abs(self.confidence_sums - self.hits).sum() / require_rows(self.n))


class ReliabilityBins(Bins):
    """Rows in equally wide bins."""

    @property
    def edges(self) -> Array:
        """From 0 to 1, shape (bins + 1,)."""
        return bin_edges(len(self.counts))

    def mean_accuracy(self) -> float:
        """Return the share of right rows."""
        return int(self.hits.sum()) / self.n

    def mean_confidence(self) -> float:
        """Return the mean confidence of all rows."""
        return float(self.confidence_sums.sum()) / self.n

    def over_ece(self) -> float:
        """Return the part of the ECE from bins whose confidence exceeds their accuracy."""
        return float(over(self._gaps()).sum())

    def under_ece(self) -> float:
        """Return the part of the ECE from bins whose accuracy exceeds their confidence."""
        return float(under(self._gaps()).sum())

    def ece(self) -> float:
        """Return the expected calibration error, to the last bit the sum of its two parts."""
        return self.over_ece() + self.under_ece()

    def mce(self) -> float:
        """Return the maximum calibration error, the largest |conf_b - acc_b| of a filled bin."""
        require_rows(self.n)
        return float(np.nanmax(np.abs(self.confidence - self.accuracy)))

    def _gaps(self) -> Array:
        """Return n_b/n (conf_b - acc_b); an empty bin has none."""
        return (self.confidence_sums - self.hits) / require_rows(self.n)


def over(gaps: Array) -> Array:
    """Return what of gaps is over-confidence."""
    return np.maximum(gaps, 0.0)


def under(gaps: Array) -> Array:
    """Return what of gaps is under-confidence."""
    return np.maximum(-gaps, 0.0)


def ratio(numerator: NDArray[Any], denominator: NDArray[Any]) -> Array:
    """Divide, giving NaN where the denominator is zero."""
    quotient = np.full(len(numerator), np.nan)
    np.divide(numerator, denominator, out=quotient, where=denominator > 0)
    return quotient
