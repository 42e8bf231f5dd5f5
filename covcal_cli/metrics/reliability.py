"""Reliability bins: the ECE, its two parts and the MCE, from counts in equally wide bins."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from covcal_cli.metrics.binning import bin_edges, bin_index, checked_probabilities
from covcal_cli.metrics.groups import GroupBins
from covcal_cli.softmax import Array


class ReliabilityBins:
    """Counts of rows, hits and confidence in equally wide bins, filled block by block.

    Attributes
    ----------
    edges : array of float64, shape (bins + 1,)
        From 0 to 1.
    counts, hits : arrays of int64, shape (bins,)
        Rows, and right rows, per bin.
    confidence_sums : array of float64, shape (bins,)
    """

    def __init__(self, bins: int = 15) -> None:
        self.edges = bin_edges(bins)
        self.counts = np.zeros(bins, dtype=np.int64)
        self.hits = np.zeros(bins, dtype=np.int64)
        self.confidence_sums = np.zeros(bins)

    @classmethod
    def of_groups(cls, groups: GroupBins) -> Self:
        """Return the counts of all groups together."""
        bins = cls(groups.counts.shape[1])
        bins.counts, bins.hits = groups.counts.sum(axis=0), groups.hits.sum(axis=0)
        bins.confidence_sums = groups.confidence_sums.sum(axis=0)
        return bins

    def add(
        self, confidence: NDArray[np.floating[Any]], correct: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Count a block of rows, and return the bin of each.

        Parameters
        ----------
        confidence : float array, shape (m,)
            Between 0 and 1, up to rounding.
        correct : bool array, shape (m,)

        Raises
        ------
        ValueError
            If a confidence is NaN or outside [0, 1].
        """
        bins = len(self.counts)
        values = checked_probabilities(confidence)
        index = bin_index(values, self.edges)
        self.counts += np.bincount(index, minlength=bins)
        self.hits += np.bincount(index[np.asarray(correct, dtype=bool)], minlength=bins)
        self.confidence_sums += np.bincount(index, weights=values, minlength=bins)
        return index

    @property
    def n(self) -> int:
        """Rows counted so far."""
        return int(self.counts.sum())

    @property
    def confidence(self) -> Array:
        """Mean confidence per bin, shape (bins,); NaN where a bin is empty."""
        return ratio(self.confidence_sums, self.counts)

    @property
    def accuracy(self) -> Array:
        """Share of right rows per bin, shape (bins,); NaN where a bin is empty."""
        return ratio(self.hits.astype(np.float64), self.counts)

    def over_ece(self) -> float:
        """Return the part of the ECE from bins whose confidence exceeds their accuracy."""
        return float(np.maximum(self._gaps(), 0.0).sum())

    def under_ece(self) -> float:
        """Return the part of the ECE from bins whose accuracy exceeds their confidence."""
        return float(np.maximum(-self._gaps(), 0.0).sum())

    def ece(self) -> float:
        """Return the expected calibration error, the sum of its two parts."""
        return self.over_ece() + self.under_ece()

    def mce(self) -> float:
        """Return the maximum calibration error, the largest |conf_b - acc_b| of a filled bin."""
        if self.n == 0:
            raise ValueError("no rows were counted")
        return float(np.nanmax(np.abs(self.confidence - self.accuracy)))

    def _gaps(self) -> Array:
        """Return n_b/n (conf_b - acc_b); an empty bin has none."""
        if self.n == 0:
            raise ValueError("no rows were counted")
        return (self.confidence_sums - self.hits) / self.n


def ratio(numerator: Array, denominator: NDArray[Any]) -> Array:
    """Divide, giving NaN where the denominator is zero."""
    quotient = np.full(len(numerator), np.nan)
    np.divide(numerator, denominator, out=quotient, where=denominator > 0)
    return quotient
