"""How honest a confidence is: reliability bins, the ECE family, NLL, Brier, sharpness.

The rules (DESIGN 3.7):

- The confidence of a row is the probability of the label that the classifier predicted; the row is
  a hit when that label is right.
- Bins are (c_{b-1}, c_b], equally wide, the first closed at 0: the values 0, 1 and every edge land
  in exactly one bin. (The paper prints left-closed bins; its code closes them on the right.)
- ECE = sum_b n_b/n |conf_b - acc_b|. The over-confident ECE counts only bins with conf_b > acc_b,
  the under-confident ECE is the rest.
- Counts are integers and sums are float64; four bytes are kept for each row, see `rankedrows`.
- The further errors of calibration (adaptive, class-wise, debiased, smooth) have a module each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.metrics.adaptive_bins import AdaptiveBins, adaptive_bins
from covcal_cli.metrics.binning import bin_edges, bin_index, checked_probabilities
from covcal_cli.metrics.classwise import ClasswiseBins
from covcal_cli.metrics.debiased import debiased_ece
from covcal_cli.metrics.groups import GroupBins, JudgedRows
from covcal_cli.metrics.rankedrows import RowCollector
from covcal_cli.metrics.riskcoverage import aurc
from covcal_cli.metrics.smooth_ece import smooth_ece
from covcal_cli.metrics.valuecells import ValueCells
from covcal_cli.softmax import Array, exp

_MAX_CELLS = 1_000_000

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
    "adaptive_ece",
    "classwise_ece",
    "debiased_ece",
    "smooth_ece",
    "mce",
    "aurc",
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
        self.edges = bin_edges(bins)
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
        Share of rows where no label has a higher calibrated probability than the classifier's.
    adaptive_ece, debiased_ece, smooth_ece, mce : float
        Of the label that the classifier predicted: the ECE in bins of equal mass
        (`adaptive_bins`), the ECE less what chance adds (`debiased`; may be negative), the ECE
        without bins (`smooth_ece`), and the largest gap of a bin.
    classwise_ece : float or None
        Of the whole distribution (`classwise`); None for more than a million counts.
    aurc : float
        Area under the risk-coverage curve (`riskcoverage`).
    bins : ReliabilityBins
    adaptive : AdaptiveBins
    by_class : GroupBins or None
        Rows by the label whose confidence is judged; None for more than a million counts.
    losses : mapping of str to ValueCells
        Of ``mean_confidence``, ``nll`` and ``brier`` by row, where they were asked for.
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
    adaptive_ece: float
    classwise_ece: float | None
    debiased_ece: float
    smooth_ece: float
    mce: float
    aurc: float
    bins: ReliabilityBins
    adaptive: AdaptiveBins
    by_class: GroupBins | None
    losses: Mapping[str, ValueCells]

    def to_json(self) -> dict[str, float | int | None]:
        """Return n and every metric under its public name."""
        return {"n": self.n} | {name: getattr(self, name) for name in METRICS}


class MetricsAccumulator:
    """Collects the metrics of one calibration, block by block.

    Parameters
    ----------
    bins, n_classes : int
    keep_losses : bool
        Whether the distribution of the rows' losses is kept, for the bootstrap.
    """

    def __init__(self, bins: int, n_classes: int, *, keep_losses: bool = False) -> None:
        self.bins = ReliabilityBins(bins)
        self._n_classes = n_classes
        cells = bins * n_classes * n_classes
        self._cells = np.zeros(cells, dtype=np.int64) if cells <= _MAX_CELLS else None
        few = bins * n_classes <= _MAX_CELLS
        self._classwise = ClasswiseBins(bins, n_classes) if few else None
        self._by_class = GroupBins(bins, n_classes) if few else None
        self._rows = RowCollector()
        names = ("mean_confidence", "nll", "brier") if keep_losses else ()
        self._losses = {name: ValueCells() for name in names}
        self._nll = self._brier = 0.0
        self._agreeing = 0

    def add(
        self,
        log_probabilities: Array,
        predictions: NDArray[np.int64],
        labels: NDArray[np.int64],
        probabilities: Array | None = None,
    ) -> JudgedRows:
        """Count a block of rows.

        Parameters
        ----------
        log_probabilities : array of float64, shape (K, m)
            Classes first, as `softmax.log_softmax` returns them.
        predictions, labels : arrays of int64, shape (m,)
            The label whose confidence is judged, and the true one, both 0 .. K-1.
        probabilities : array of float64, shape (K, m), optional
            Their exponentials, where the caller has them.
        """
        if probabilities is None:
            probabilities = exp(log_probabilities)
        columns = np.arange(log_probabilities.shape[1])
        logs = log_probabilities[predictions, columns]
        confidence = exp(logs)
        correct = predictions == labels
        index = self.bins.add(confidence, correct)
        confidence = np.clip(confidence, 0.0, 1.0)
        losses = -log_probabilities[labels, columns]
        of_labels = probabilities[labels, columns]
        scores = np.einsum("km,km->m", probabilities, probabilities) - 2 * of_labels + 1
        self._nll += float(losses.sum())
        self._brier += float(scores.sum())
        self._agreeing += int((logs == log_probabilities.max(axis=0)).sum())
        rows = JudgedRows(confidence, correct, index)
        self._rows.add(confidence, correct)
        for name, cells in self._losses.items():
            cells.add({"mean_confidence": confidence, "nll": losses, "brier": scores}[name])
        if self._classwise is not None and self._by_class is not None:
            self._classwise.add(probabilities, labels, of_labels)
            self._by_class.add(predictions, rows)
        if self._cells is not None:
            cell = (predictions * len(self.bins.counts) + index) * self._n_classes + labels
            self._cells += np.bincount(cell, minlength=len(self._cells))
        return rows

    def result(self) -> Metrics:
        """Return the metrics of all rows counted; raise ValueError when there were none."""
        n = self.bins.n
        ece = self.bins.ece()
        brier = self._brier / n
        sharpness = self._sharpness()
        rows = self._rows.ranked()
        adaptive = adaptive_bins(rows, len(self.bins.counts))
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
            adaptive_ece=adaptive.ece(),
            classwise_ece=None if self._classwise is None else self._classwise.ece(),
            debiased_ece=debiased_ece(self.bins.counts, self.bins.hits, self.bins.confidence_sums),
            smooth_ece=smooth_ece(rows),
            mce=self.bins.mce(),
            aurc=aurc(rows),
            bins=self.bins,
            adaptive=adaptive,
            by_class=self._by_class,
            losses=self._losses,
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
