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

import numpy as np
from numpy.typing import NDArray

from covcal_cli.metrics.adaptive_bins import AdaptiveBins, adaptive_bins
from covcal_cli.metrics.binning import bin_edges, bin_index, checked_probabilities
from covcal_cli.metrics.classwise import ClasswiseBins
from covcal_cli.metrics.debiased import debiased_ece
from covcal_cli.metrics.groups import GroupBins, JudgedRows
from covcal_cli.metrics.rankedrows import RowCollector
from covcal_cli.metrics.reliability import ReliabilityBins, ratio
from covcal_cli.metrics.riskcoverage import aurc
from covcal_cli.metrics.smooth_ece import smooth_ece
from covcal_cli.metrics.valuecells import ValueCells
from covcal_cli.softmax import Array, Softmax, exp

__all__ = ["METRICS", "Metrics", "MetricsAccumulator", "ReliabilityBins"]

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
        self._edges = bin_edges(bins)
        self._n_classes = n_classes
        self._few = bins * n_classes <= _MAX_CELLS
        cells = bins * n_classes * n_classes
        self._cells = np.zeros(cells, dtype=np.int64) if cells <= _MAX_CELLS else None
        self._counts = GroupBins(bins, n_classes if self._few else 1)
        self._classwise = ClasswiseBins(bins, n_classes) if self._few else None
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
    ) -> JudgedRows:
        """Count a block of rows.

        Parameters
        ----------
        log_probabilities : array of float64, shape (K, m)
            Classes first, as `softmax.log_softmax` returns them.
        predictions, labels : arrays of int64, shape (m,)
            The label whose confidence is judged, and the true one, both 0 .. K-1.
        """
        highest = log_probabilities.max(axis=0)
        return self.add_softmax(
            Softmax(log_probabilities - highest, 1.0, -highest, exp(log_probabilities)),
            predictions,
            labels,
        )

    def add_softmax(
        self, forecast: Softmax, predictions: NDArray[np.int64], labels: NDArray[np.int64]
    ) -> JudgedRows:
        """Count a block of rows, as `add` does, where the caller has more than the logarithms."""
        probabilities = forecast.probabilities
        m = len(labels)
        columns = np.arange(m)
        logs = forecast.logs_at(predictions * m + columns)
        at_labels = labels * m + columns
        confidence = checked_probabilities(exp(logs))
        rows = JudgedRows(confidence, predictions == labels, bin_index(confidence, self._edges))
        losses = -forecast.logs_at(at_labels)
        of_labels = probabilities.take(at_labels)
        self._nll += float(losses.sum())
        self._brier += float(np.vdot(probabilities, probabilities)) + m - 2 * float(of_labels.sum())
        self._agreeing += int(np.count_nonzero(logs == -forecast.log_sums))
        self._rows.add(confidence, rows.correct)
        if self._losses:
            scores = np.einsum("km,km->m", probabilities, probabilities) - 2 * of_labels + 1
            of_rows = {"mean_confidence": confidence, "nll": losses, "brier": scores}
            for name, cells in self._losses.items():
                cells.add(of_rows[name])
        if self._classwise is not None:
            self._classwise.add(probabilities, labels)
        self._count(rows, predictions, labels)
        return rows

    def _count(
        self, rows: JudgedRows, predictions: NDArray[np.int64], labels: NDArray[np.int64]
    ) -> None:
        """Count rows once, in the finest cells kept; `result` adds the coarser ones up."""
        counts = self._counts
        if self._cells is None:
            counts.add(predictions if self._few else np.zeros_like(predictions), rows)
            return
        cells = predictions * len(self._edges[1:]) + rows.index
        sums = np.bincount(cells, rows.confidence, minlength=counts.confidence_sums.size)
        counts.confidence_sums += sums.reshape(counts.confidence_sums.shape)
        cells *= self._n_classes
        cells += labels
        self._cells += np.bincount(cells, minlength=len(self._cells))

    def result(self) -> Metrics:
        """Return the metrics of all rows counted; raise ValueError when there were none."""
        counts = self._counts
        if self._cells is not None:
            cells = self._cells.reshape(self._n_classes, -1, self._n_classes)
            counts.counts, counts.hits = cells.sum(axis=2), np.einsum("kbk->kb", cells)
        bins = ReliabilityBins.of_groups(counts)
        n = bins.n
        ece = bins.ece()
        brier = self._brier / n
        sharpness = self._sharpness()
        rows = self._rows.ranked()
        adaptive = adaptive_bins(rows, len(bins.counts))
        return Metrics(
            n=n,
            accuracy=int(bins.hits.sum()) / n,
            mean_confidence=float(bins.confidence_sums.sum()) / n,
            ece=ece,
            over_ece=bins.over_ece(),
            under_ece=bins.under_ece(),
            nll=self._nll / n,
            brier=brier,
            calibration=None if sharpness is None else brier - 1 + sharpness,
            sharpness=sharpness,
            agreement=self._agreeing / n,
            adaptive_ece=adaptive.ece(),
            classwise_ece=None if self._classwise is None else self._classwise.ece(),
            debiased_ece=debiased_ece(bins.counts, bins.hits, bins.confidence_sums),
            smooth_ece=smooth_ece(rows),
            mce=bins.mce(),
            aurc=aurc(rows),
            bins=bins,
            adaptive=adaptive,
            by_class=counts if self._few else None,
            losses=self._losses,
        )

    def _sharpness(self) -> float | None:
        if self._cells is None:
            return None
        cells = self._cells.reshape(-1, self._n_classes).astype(np.float64)
        sizes = cells.sum(axis=1)
        return float(ratio((cells**2).sum(axis=1), sizes)[sizes > 0].sum() / sizes.sum())
