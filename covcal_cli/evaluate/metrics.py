"""The one table of metrics of how honest a confidence is, and what each is made of.

The confidence of a row is the probability of the label that the classifier predicted; the row is a
hit when that label is right. Metrics are read off rows counted in bins (``bins.py``) or ranked by
confidence (``ranked.py``); counts are integers and sums float64 (MATHEMATICS,
section 7).

To add a metric, give it an entry in `METRICS` and a property of `Metrics` of the same name, or a
field of it where sums over all rows are needed, which `MetricsAccumulator` then collects.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from covcal_cli.arrays import Labels
from covcal_cli.evaluate.bins import (
    CORRECTNESS,
    Bins,
    ClasswiseBins,
    ConfidenceBlock,
    GroupBins,
    ReliabilityBins,
    ValueCells,
    bin_edges,
    confidence_block,
    debiased_ece,
    require_rows,
)
from covcal_cli.evaluate.ranked import (
    Auroc,
    RankedRows,
    RowCollector,
    adaptive_bins,
    aurc,
    auroc,
    smooth_ece,
)
from covcal_cli.maths.softmax import MOST_NLL, Softmax, exp

_MAX_CELLS = 1_000_000  # counts to keep; with more, what rests on them has no value


@dataclass(frozen=True)
class Display:
    """How a table shows a metric."""

    label: str
    late: int = 0  # the higher, the further behind; equal ones stand in the order of `METRICS`
    percent: bool = True


@dataclass(frozen=True)
class Metric:
    """An entry of the table: where a metric is shown, and what a gate may ask of it."""

    name: str  # of the attribute of `Metrics`, in metrics.json and on the command line
    screen: Display | None  # as the head of a column of ``covcal evaluate``; None: not there
    report: Display | None  # in words, as a line of the page; None: not there
    better: Literal["lower", "higher", "neither"] = "lower"
    # How chance enters: a share of rows, a mean over rows, the order of rows, or gaps of bins;
    # None: no interval.
    interval: Literal["share", "mean", "ranks", "gaps"] | None = None
    bins: Literal["bins", "adaptive", "predicted"] = "bins"  # whose gaps; an attribute of `Metrics`
    main: bool = False  # on screen without ``--metrics all`` too
    highest: float = 1.0  # that a limit may be


_TABLE = (
    Metric("accuracy", Display("accuracy"), Display("Accuracy"), "higher", "share", main=True),
    Metric(
        "mean_confidence",
        Display("confidence"),
        Display("Mean confidence"),
        better="neither",
        interval="mean",
        main=True,
    ),
    Metric("ece", Display("ECE"), Display("ECE"), interval="gaps", main=True),
    Metric(
        "over_ece", Display("over ECE"), Display("over-confident ECE"), interval="gaps", main=True
    ),
    Metric("under_ece", Display("under ECE"), Display("under-confident ECE"), interval="gaps"),
    Metric(
        "nll",
        Display("NLL", late=1, percent=False),
        Display("Negative log-likelihood", late=3, percent=False),
        interval="mean",
        main=True,
        highest=np.inf,
    ),
    Metric(
        "brier",
        Display("Brier", late=1, percent=False),
        Display("Brier score", late=2, percent=False),
        interval="mean",
        main=True,
        highest=2.0,
    ),
    Metric("calibration", None, None),
    Metric("sharpness", None, None, "higher"),
    Metric("agreement", Display("agreement", late=1), None, "higher"),
    Metric(
        "adaptive_ece",
        Display("adaptive ECE"),
        Display("ECE, bins of equal mass"),
        interval="gaps",
        bins="adaptive",
    ),
    Metric("classwise_ece", Display("class-wise ECE"), Display("class-wise ECE", late=1)),
    Metric(
        "debiased_ece", Display("debiased ECE"), Display("bias-corrected ECE (may be negative)")
    ),
    Metric("smooth_ece", Display("smooth ECE"), Display("ECE without bins (smooth)")),
    Metric("mce", Display("MCE"), Display("Largest gap of a bin")),
    Metric(
        "aurc",
        Display("AURC"),
        Display("Area under the risk-coverage curve", late=4, percent=False),
    ),
    Metric(
        "class_gap",
        Display("class gap"),
        Display("Gap per predicted class", late=1),
        interval="gaps",
        bins="predicted",
    ),
    Metric(
        "correctness_brier",
        Display("hit Brier", late=2, percent=False),
        Display("Brier score of correctness", late=5, percent=False),
        interval="mean",
    ),
    Metric(
        "correctness_nll",
        Display("hit NLL", late=2, percent=False),
        Display("Log loss of correctness", late=5, percent=False),
        interval="mean",
        highest=np.inf,
    ),
    Metric(
        "correctness_auroc",
        Display("hit AUROC", late=2, percent=False),
        Display("AUROC of correctness", late=5, percent=False),
        better="higher",
        interval="ranks",
    ),
)
# By name, in the order of metrics.json.
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _TABLE}


def on_screen() -> list[tuple[str, Display, Metric]]:
    """Return the metrics with a column, by name and in the order of the columns."""
    found = [(name, metric.screen, metric) for name, metric in METRICS.items() if metric.screen]
    return sorted(found, key=lambda entry: entry[1].late)


def in_report() -> list[tuple[str, Display]]:
    """Return the metrics with a line on the page, by name and in the order of the lines."""
    found = [(name, metric.report) for name, metric in METRICS.items() if metric.report]
    return sorted(found, key=lambda entry: entry[1].late)


@dataclass(frozen=True)
class Metrics:
    """What one calibration is worth on labelled rows; fractions, not percent.

    The confidence is that in the label which the classifier predicted, unless said otherwise.
    """

    # Of the whole calibrated distribution against the true label; a row that float64 holds no
    # probability of, such as one of a masked class, counts 708.
    nll: float
    brier: float  # of the whole distribution, in [0, 2]
    # E||p - c||^2 and E||c||^2, with c_k the frequency of class k where its probability is about as
    # high (`ClasswiseBins.decomposition`); None for more than a million counts (many classes).
    calibration: float | None
    sharpness: float | None
    agreement: float  # share of rows where no label is more probable than the classifier's
    classwise_ece: float | None  # of the whole distribution; None for more than a million counts
    # Of the confidence c as a forecast of whether the label is right (r = 1) or wrong (r = 0): the
    # means of (c - r)^2 and of -log c or -log(1 - c), with 708 for what float64 does not hold.
    correctness_brier: float
    correctness_nll: float
    bins: ReliabilityBins
    ranked: RankedRows
    by_class: GroupBins | None  # by the label that is judged; None for more than a million counts
    losses: Mapping[str, ValueCells]  # of metrics that are means over rows, where asked for

    @property
    def n(self) -> int:
        """Rows."""
        return self.bins.n

    @property
    def accuracy(self) -> float:
        """Share of right labels."""
        return self.bins.mean_accuracy()

    @property
    def mean_confidence(self) -> float:
        """Mean confidence."""
        return self.bins.mean_confidence()

    @property
    def ece(self) -> float:
        """Expected calibration error."""
        return self.bins.ece()

    @property
    def over_ece(self) -> float:
        """Over-confident part of the ECE."""
        return self.bins.over_ece()

    @property
    def under_ece(self) -> float:
        """Under-confident part of the ECE."""
        return self.bins.under_ece()

    @cached_property
    def adaptive(self) -> Bins:
        """The rows in bins of equal mass."""
        return adaptive_bins(self.ranked, len(self.bins.counts))

    @property
    def adaptive_ece(self) -> float:
        """ECE in bins of equal mass."""
        return self.adaptive.ece()

    @property
    def debiased_ece(self) -> float:
        """ECE less what chance adds; may be negative."""
        return debiased_ece(self.bins)

    @cached_property
    def smooth_ece(self) -> float:
        """ECE without bins."""
        return smooth_ece(self.ranked)

    @property
    def mce(self) -> float:
        """Largest gap of a bin."""
        return self.bins.mce()

    @cached_property
    def aurc(self) -> float:
        """Area under the risk-coverage curve."""
        return aurc(self.ranked)

    @cached_property
    def ranking(self) -> Auroc | None:
        """How well confidence tells right rows from wrong ones; None without rows of both."""
        return auroc(self.ranked)

    @property
    def correctness_auroc(self) -> float | None:
        """Share of the pairs of a right and a wrong row where the right one is more confident."""
        return None if self.ranking is None else self.ranking.value

    @cached_property
    def predicted(self) -> Bins | None:
        """The rows in a bin per label that is judged; None for more than a million counts."""
        return None if self.by_class is None else self.by_class.by_group()

    @property
    def class_gap(self) -> float | None:
        """Sum over judged labels k of n_k/n |mean confidence - accuracy| of their n_k rows."""
        return None if self.predicted is None else self.predicted.ece()

    def value(self, name: str) -> float | None:
        """Return a metric of the table by name."""
        found: float | None = getattr(self, name)
        return found

    def to_json(self) -> dict[str, float | int | None]:
        """Return n and every metric under its public name."""
        return {"n": self.n} | {name: self.value(name) for name in METRICS}


class MetricsAccumulator:
    """Collects the metrics of one calibration, block by block.

    With `keep_losses` the distribution of the rows' losses is kept too, for the bootstrap.
    """

    def __init__(self, bins: int, n_classes: int, *, keep_losses: bool = False) -> None:
        self._edges = bin_edges(bins)
        self._n_classes = n_classes
        self._few = bins * n_classes <= _MAX_CELLS
        self._counts = GroupBins(bins, n_classes if self._few else 1)
        self._classwise = ClasswiseBins(bins, n_classes) if self._few else None
        self._rows = RowCollector()
        means = [name for name, metric in METRICS.items() if metric.interval == "mean"]
        self._losses = {name: ValueCells() for name in means if keep_losses}
        self._nll = self._brier = 0.0
        self._correctness = dict.fromkeys(CORRECTNESS, 0.0)
        self._agreeing = 0

    def add(self, forecast: Softmax, predictions: Labels, labels: Labels) -> ConfidenceBlock:
        """Count a block of m rows.

        `predictions` are the labels whose confidence is judged, `labels` the true ones, both of
        shape (m,) and 0 .. K-1.
        """
        probabilities = forecast.probabilities
        m = len(labels)
        columns = np.arange(m)
        # The confidence in the label that is judged, and its bin.
        logs = forecast.logs_at(predictions * m + columns)
        rows = confidence_block(exp(logs), predictions == labels, self._edges)
        # Sums of the proper scores: the Brier score is p.p - 2 p_y + 1 of every row.
        at_labels = labels * m + columns
        losses = np.minimum(-forecast.logs_at(at_labels), MOST_NLL)
        of_labels = probabilities.take(at_labels)
        self._nll += float(losses.sum())
        self._brier += float(np.vdot(probabilities, probabilities)) + m - 2 * float(of_labels.sum())
        # The highest log probability of a row is minus its log sum.
        self._agreeing += int(np.count_nonzero(logs == -forecast.log_sums))
        self._rows.add(rows.confidence, rows.correct)
        # The same scores of the confidence alone, as a forecast of whether the label is right.
        surprises = -logs
        wrong = np.flatnonzero(~rows.correct)
        surprises[wrong] = -forecast.logs_beside(wrong, predictions[wrong])
        of_correctness = {
            "correctness_brier": (rows.confidence - rows.correct) ** 2,
            "correctness_nll": np.minimum(surprises, MOST_NLL),
        }
        rows = replace(rows, losses=of_correctness)
        for name, values in of_correctness.items():
            self._correctness[name] += float(values.sum())
        if self._losses:  # of every row, for metrics whose interval is that of a mean
            scores = np.einsum("km,km->m", probabilities, probabilities) - 2 * of_labels + 1
            of_rows = {
                "mean_confidence": rows.confidence,
                "nll": losses,
                "brier": scores,
                **of_correctness,
            }
            for name, cells in self._losses.items():
                cells.add(of_rows[name])
            rows = replace(rows, losses=of_rows)
        if self._classwise is not None:
            self._classwise.add(probabilities, labels)
        self._counts.add(rows, predictions if self._few else None)
        return rows

    def result(self) -> Metrics:
        """Return the metrics of all rows counted; raise ValueError when there were none."""
        counts = self._counts
        bins = counts.together()
        n = require_rows(bins.n)
        calibration, sharpness = (
            (None, None) if self._classwise is None else self._classwise.decomposition()
        )
        return Metrics(
            nll=self._nll / n,
            brier=self._brier / n,
            calibration=calibration,
            sharpness=sharpness,
            agreement=self._agreeing / n,
            classwise_ece=None if self._classwise is None else self._classwise.ece(),
            correctness_brier=self._correctness["correctness_brier"] / n,
            correctness_nll=self._correctness["correctness_nll"] / n,
            bins=bins,
            ranked=self._rows.ranked(),
            by_class=counts if self._few else None,
            losses=self._losses,
        )
