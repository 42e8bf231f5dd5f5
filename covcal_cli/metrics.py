"""How honest a confidence is: reliability bins, the ECE family, NLL, Brier, sharpness.

The rules (DESIGN 3.7):

- The confidence of a row is the probability of the label that the classifier predicted; the row is
  a hit when that label is right.
- Bins are (c_{b-1}, c_b], equally wide, the first closed at 0: the values 0, 1 and every edge land
  in exactly one bin. (The paper prints left-closed bins; its code closes them on the right.)
- ECE = sum_b n_b/n |conf_b - acc_b|. The over-confident ECE counts only bins with conf_b > acc_b,
  the under-confident ECE is the rest.
- Counts are integers and sums are float64, in memory that does not grow with the rows.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.softmax import Array, exp

_MAX_CELLS = 1_000_000
_ROUNDING = 1e-6

METRICS = (
    "accuracy",
    "mean_confidence",
    "ece",
    "over_ece",
    "under_ece",
    "nll",
    "brier",
    "calibration",
    "sharpness",
    "agreement",
)
"""The names of `Metrics` that are numbers: the keys of metrics.json and of ``--fail-above``."""


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
        self.edges: Array = np.arange(bins + 1) / bins
        self.counts = np.zeros(bins, dtype=np.int64)
        self.hits = np.zeros(bins, dtype=np.int64)
        self.confidence_sums = np.zeros(bins)

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
        values = np.asarray(confidence, dtype=np.float64)
        if not np.all((values >= -_ROUNDING) & (values <= 1 + _ROUNDING)):
            raise ValueError("a confidence is NaN or outside [0, 1]")
        values = np.clip(values, 0.0, 1.0)
        index = np.clip(np.ceil(values * bins).astype(np.int64) - 1, 0, bins - 1)
        # The product may round across an edge; the edges themselves decide.
        index -= (values <= self.edges[index]) & (index > 0)
        index += (values > self.edges[index + 1]) & (index < bins - 1)
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
        return _ratio(self.confidence_sums, self.counts)

    @property
    def accuracy(self) -> Array:
        """Share of right rows per bin, shape (bins,); NaN where a bin is empty."""
        return _ratio(self.hits.astype(np.float64), self.counts)

    def over_ece(self) -> float:
        """Return the part of the ECE from bins whose confidence exceeds their accuracy."""
        return float(np.maximum(self._gaps(), 0.0).sum())

    def under_ece(self) -> float:
        """Return the part of the ECE from bins whose accuracy exceeds their confidence."""
        return float(np.maximum(-self._gaps(), 0.0).sum())

    def ece(self) -> float:
        """Return the expected calibration error, the sum of its two parts."""
        return self.over_ece() + self.under_ece()

    def _gaps(self) -> Array:
        """Return n_b/n (conf_b - acc_b); an empty bin has none."""
        if self.n == 0:
            raise ValueError("no rows were counted")
        return (self.confidence_sums - self.hits) / self.n


@dataclass(frozen=True)
class Metrics:
    """What one calibration is worth on labelled rows; fractions, not percent.

    Attributes
    ----------
    n : int
        Rows.
    accuracy, mean_confidence, ece, over_ece, under_ece : float
        Of the label that the classifier predicted.
    nll, brier : float
        Of the whole calibrated distribution against the true label; Brier lies in [0, 2].
    calibration, sharpness : float or None
        Brier = calibration + 1 - sharpness (the paper's equation 2), where sharpness is
        E||c||^2 and c the label frequencies in cells of equal predicted label and confidence bin.
        None where there are more than a million counts to keep (many classes).
    agreement : float
        Share of rows where the calibrated distribution's own top label is the classifier's.
    bins : ReliabilityBins
    """

    n: int
    accuracy: float
    mean_confidence: float
    ece: float
    over_ece: float
    under_ece: float
    nll: float
    brier: float
    calibration: float | None
    sharpness: float | None
    agreement: float
    bins: ReliabilityBins

    def to_json(self) -> dict[str, float | int | None]:
        """Return n and every metric under its public name."""
        return {"n": self.n} | {name: getattr(self, name) for name in METRICS}


class MetricsAccumulator:
    """Collects the metrics of one calibration, block by block."""

    def __init__(self, bins: int, n_classes: int) -> None:
        self.bins = ReliabilityBins(bins)
        self._n_classes = n_classes
        cells = bins * n_classes * n_classes
        self._cells = np.zeros(cells, dtype=np.int64) if cells <= _MAX_CELLS else None
        self._nll = self._brier = 0.0
        self._agreeing = 0

    def add(
        self,
        log_probabilities: Array,
        predictions: NDArray[np.int64],
        labels: NDArray[np.int64],
    ) -> None:
        """Count a block of rows.

        Parameters
        ----------
        log_probabilities : array of float64, shape (K, m)
            Classes first, as `softmax.log_softmax` returns them.
        predictions, labels : arrays of int64, shape (m,)
            The label whose confidence is judged, and the true one, both 0 .. K-1.
        """
        columns = np.arange(log_probabilities.shape[1])
        probabilities = exp(log_probabilities)
        index = self.bins.add(probabilities[predictions, columns], predictions == labels)
        self._nll -= float(log_probabilities[labels, columns].sum())
        squares = np.einsum("km,km->m", probabilities, probabilities)
        self._brier += float((squares - 2 * probabilities[labels, columns] + 1).sum())
        self._agreeing += int((log_probabilities.argmax(axis=0) == predictions).sum())
        if self._cells is not None:
            cell = (predictions * len(self.bins.counts) + index) * self._n_classes + labels
            self._cells += np.bincount(cell, minlength=len(self._cells))

    def result(self) -> Metrics:
        """Return the metrics of all rows counted; raise ValueError when there were none."""
        n = self.bins.n
        ece = self.bins.ece()
        brier = self._brier / n
        sharpness = self._sharpness()
        return Metrics(
            n=n,
            accuracy=int(self.bins.hits.sum()) / n,
            mean_confidence=float(self.bins.confidence_sums.sum()) / n,
            ece=ece,
            over_ece=self.bins.over_ece(),
            under_ece=self.bins.under_ece(),
            nll=self._nll / n,
            brier=brier,
            calibration=None if sharpness is None else brier - 1 + sharpness,
            sharpness=sharpness,
            agreement=self._agreeing / n,
            bins=self.bins,
        )

    def _sharpness(self) -> float | None:
        if self._cells is None:
            return None
        cells = self._cells.reshape(-1, self._n_classes).astype(np.float64)
        sizes = cells.sum(axis=1)
        return float(_ratio((cells**2).sum(axis=1), sizes)[sizes > 0].sum() / sizes.sum())


def _ratio(numerator: Array, denominator: NDArray[Any]) -> Array:
    """Divide, giving NaN where the denominator is zero."""
    ratio = np.full(len(numerator), np.nan)
    np.divide(numerator, denominator, out=ratio, where=denominator > 0)
    return ratio
