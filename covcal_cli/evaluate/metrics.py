"""The table of metrics, and the counts from which they are computed.

The confidence of a row is the probability of the label that the classifier predicted. The row is a
hit if this label is right. Metrics are computed from rows counted in bins (``bins.py``) or ranked
by confidence (``ranked.py``); counts are integers and sums are float64 (ARCHITECTURE, section 3.7).

To add a metric, add an entry to `METRICS` and a property of the same name to `Metrics`. A metric
that needs a sum over all rows is a field of `Metrics` instead, collected by `MetricsAccumulator`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from covcal_cli.arrays import Float64s, Labels
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
from covcal_cli.records import Within

_MAX_CELLS = 1_000_000  # most counts in memory; a metric that needs more has no value
_NEARLY_ONE = 0.9999
_ROUNDING = 1e-6  # relative
_LEAST_HIT = 1e-3  # rows by which rounding may move the number of hits


@dataclass(frozen=True)
class Display:
    """How a table shows a metric."""

    label: str
    order: int = 0  # order of columns or lines; equal numbers keep the order of `METRICS`
    percent: bool = True


@dataclass(frozen=True)
class Metric:
    """One metric: where it is shown, and which gates it can have."""

    name: str  # attribute of `Metrics`, key in metrics.json, and name on the command line
    screen: Display | None  # column of ``covcal evaluate``; None: no column
    report: Display | None  # line of the report's page, in words; None: no line
    better: Literal["lower", "higher", "neither"] = "lower"
    # The kind of metric, which decides its interval: a share of rows, a mean over rows, an order of
    # rows, or gaps of bins. None: no interval.
    interval: Literal["share", "mean", "ranks", "gaps"] | None = None
    bins: Literal["bins", "adaptive", "predicted"] = "bins"  # attribute of `Metrics` with the gaps
    main: bool = False  # whether it is shown without ``--metrics all`` too
    lowest: float = 0.0  # possible value
    highest: float = 1.0


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
        Display("NLL", order=1, percent=False),
        Display("Negative log-likelihood", order=3, percent=False),
        interval="mean",
        main=True,
        highest=np.inf,
    ),
    Metric(
        "brier",
        Display("Brier", order=1, percent=False),
        Display("Brier score", order=2, percent=False),
        interval="mean",
        main=True,
        highest=2.0,
    ),
    Metric("calibration", None, None, highest=2.0),
    Metric("sharpness", None, None, "higher"),
    Metric("agreement", Display("agreement", order=1), None, "higher"),
    Metric(
        "adaptive_ece",
        Display("adaptive ECE"),
        Display("ECE, bins of equal mass"),
        interval="gaps",
        bins="adaptive",
    ),
    Metric("classwise_ece", Display("class-wise ECE"), Display("class-wise ECE", order=1)),
    Metric(
        "debiased_ece",
        Display("debiased ECE"),
        Display("bias-corrected ECE (may be negative)"),
        lowest=-1.0,
    ),
    Metric("smooth_ece", Display("smooth ECE"), Display("ECE without bins (smooth)")),
    Metric("mce", Display("MCE"), Display("Largest gap of a bin")),
    Metric(
        "aurc",
        Display("AURC"),
        Display("Area under the risk-coverage curve", order=4, percent=False),
    ),
    Metric(
        "class_gap",
        Display("class gap"),
        Display("Gap per predicted class", order=1),
        interval="gaps",
        bins="predicted",
    ),
    Metric(
        "correctness_brier",
        Display("hit Brier", order=2, percent=False),
        Display("Brier score of correctness", order=5, percent=False),
        interval="mean",
    ),
    Metric(
        "correctness_nll",
        Display("hit NLL", order=2, percent=False),
        Display("Log loss of correctness", order=5, percent=False),
        interval="mean",
        highest=np.inf,
    ),
    Metric(
        "correctness_auroc",
        Display("hit AUROC", order=2, percent=False),
        Display("AUROC of correctness", order=5, percent=False),
        better="higher",
        interval="ranks",
    ),
)
# The metrics by name, in the order of metrics.json.
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _TABLE}
MAIN = tuple(name for name, metric in METRICS.items() if metric.main)
# Metrics that need more than counts in bins of confidence: the probability of every class, the
# ranked rows, or the confidence as a forecast of correctness.
_CLASSWISE = ("calibration", "sharpness", "classwise_ece")
# Metrics of the whole distribution, which are not known with one confidence per row.
OF_ALL_CLASSES = ("nll", "brier", "agreement", *_CLASSWISE)
_RANKED = ("adaptive_ece", "smooth_ece", "aurc", "correctness_auroc")


def measurable(names: Collection[str], *, has_all_classes: bool) -> tuple[str, ...]:
    """Return the metrics that can be measured, with all classes or with one confidence per row."""
    return tuple(name for name in names if has_all_classes or name not in OF_ALL_CLASSES)


def require_possible(what: str, values: Mapping[str, float | None], n: float) -> None:
    """Raise ValueError if metrics of n rows leave their ranges or contradict each other.

    A digest shows damage, but somebody who edits a document can renew it. These rules then find an
    edited number: the ECE is the sum of its parts, their difference is the mean gap, and accuracy
    is a share of n rows.
    """
    known = {name: value for name, value in values.items() if value is not None}
    for name, value in known.items():
        if name in METRICS:
            Within(METRICS[name].lowest, METRICS[name].highest).require(f"{what}.{name}", value)

    def require(is_right: bool, name: str, reason: str) -> None:
        if not is_right:
            raise ValueError(f"{what}.{name} is {known[name]:.7g}, {reason}")

    hits = known.get("accuracy", 0.0) * n
    whole = abs(hits - round(hits)) <= _LEAST_HIT
    require(whole, "accuracy", f"which is no share of {n:g} rows")
    if {"ece", "over_ece", "under_ece"} <= known.keys():
        total = known["over_ece"] + known["under_ece"]
        require(_near(known["ece"], total), "ece", f"and its parts sum to {total:.7g}")
    if not {"accuracy", "mean_confidence"} <= known.keys():
        return
    gap = known["mean_confidence"] - known["accuracy"]
    if {"over_ece", "under_ece"} <= known.keys():
        confidence = known["accuracy"] + known["over_ece"] - known["under_ece"]
        reason = f"and accuracy plus over_ece less under_ece is {confidence:.7g}"
        require(_near(known["mean_confidence"], confidence), "mean_confidence", reason)
    least = {
        "ece": abs(gap),
        "over_ece": gap,
        "under_ece": -gap,
        "adaptive_ece": abs(gap),
        "class_gap": abs(gap),
        "mce": known.get("ece", abs(gap)),
        "correctness_brier": gap * gap,
        "brier": known.get("correctness_brier", gap * gap),
    }
    for name, low in least.items():
        if name in known:
            is_right = known[name] >= low or _near(known[name], low)
            require(is_right, name, f"and the other metrics allow no less than {low:.7g}")


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= _ROUNDING * max(1.0, abs(b))


def on_screen() -> list[tuple[str, Display, Metric]]:
    """Return the metrics with a column, by name and in the order of the columns."""
    columns = [(name, metric.screen, metric) for name, metric in METRICS.items() if metric.screen]
    return sorted(columns, key=lambda column: column[1].order)


def in_report() -> list[tuple[str, Display]]:
    """Return the metrics with a line on the page, by name and in the order of the lines."""
    lines = [(name, metric.report) for name, metric in METRICS.items() if metric.report]
    return sorted(lines, key=lambda line: line[1].order)


@dataclass(frozen=True)
class Metrics:
    """The metrics of one calibration on labelled rows; fractions, not percent.

    Unless stated otherwise, the confidence is about the label that the classifier predicted. A
    metric that was not asked for has no value.
    """

    names: tuple[str, ...]  # names of the metrics that were asked for, in the order of `METRICS`
    # Log loss of the whole calibrated distribution. A row whose class has probability 0 in float64,
    # such as a masked class, counts 708.
    nll: float
    brier: float  # Brier score of the whole distribution, in [0, 2]
    # E||p - c||^2 and E||c||^2, where c_k is the frequency of class k among rows of about the same
    # probability (`ClasswiseBins.decomposition`). None for more than a million counts.
    calibration: float | None
    sharpness: float | None
    agreement: float  # share of rows where the classifier's label is still the most probable
    classwise_ece: float | None  # uses the whole distribution; None for more than a million counts
    # The confidence c as a forecast of whether the label is right (r = 1) or wrong (r = 0): the
    # means of (c - r)^2 and of -log c or -log(1 - c). If float64 underflows, the log counts 708.
    correctness_brier: float | None
    correctness_nll: float | None
    bins: ReliabilityBins
    rows: RowCollector | None  # None if no metric of ranked rows was asked for
    by_class: GroupBins | None  # bins per predicted label; None for over a million counts
    losses: Mapping[str, ValueCells]  # losses of metrics that are means over rows, for resampling
    # False for one confidence per row: metrics in `OF_ALL_CLASSES` then have no value.
    has_all_classes: bool = True

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
    def ranked(self) -> RankedRows:
        """The rows by ascending confidence; raises ValueError if they were not collected."""
        if self.rows is None:
            raise ValueError("no metric of ranked rows was asked for")
        return self.rows.ranked()

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
        """ECE minus the part that chance adds; may be negative."""
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
        """The ranking of right above wrong rows by confidence; None without both kinds."""
        return auroc(self.ranked)

    @property
    def correctness_auroc(self) -> float | None:
        """Share of pairs of a right and a wrong row in which the right row has more confidence."""
        return None if self.ranking is None else self.ranking.value

    @cached_property
    def predicted(self) -> Bins | None:
        """The rows in a bin per predicted label; None for more than a million counts."""
        return None if self.by_class is None else self.by_class.by_group()

    @property
    def class_gap(self) -> float | None:
        """Sum over predicted labels k of n_k/n |mean confidence - accuracy| of their n_k rows."""
        return None if self.predicted is None else self.predicted.ece()

    def value(self, name: str) -> float | None:
        """Return a metric of the table by name; raise ValueError if it was not asked for."""
        if name in OF_ALL_CLASSES and not self.has_all_classes:
            return None
        if name not in self.names:
            raise ValueError(f"{name} was not asked for")
        value: float | None = getattr(self, name)
        return value

    def to_json(self) -> dict[str, float | int | None]:
        """Return n and every metric that was asked for, under its public name."""
        return {"n": self.n} | {name: self.value(name) for name in self.names}


class MetricsAccumulator:
    """A collector of the metrics of one calibration, block by block.

    Only data for the metrics in `names` are collected, because the rest would take most of the
    time. With `keep_losses`, the distributions of the rows' losses are also collected, for
    resampling.
    """

    def __init__(
        self,
        bins: int,
        n_classes: int,
        *,
        names: Collection[str] = tuple(METRICS),
        keep_losses: bool = False,
        has_all_classes: bool = True,
    ) -> None:
        self._has_all_classes = has_all_classes
        names = measurable(names, has_all_classes=has_all_classes)
        self._names = tuple(name for name in METRICS if name in names)
        self._edges = bin_edges(bins)
        self._few = bins * n_classes <= _MAX_CELLS
        self._counts = GroupBins(bins, n_classes if self._few else 1)
        classwise = self._few and not set(_CLASSWISE).isdisjoint(names)
        self._classwise = ClasswiseBins(bins, n_classes) if classwise else None
        self._rows = None if set(_RANKED).isdisjoint(names) else RowCollector()
        means = [name for name in self._names if METRICS[name].interval == "mean"]
        self._losses = {name: ValueCells() for name in means if keep_losses}
        self._nll = self._brier = 0.0
        self._correctness = {name: 0.0 for name in CORRECTNESS if name in names}
        self._agreeing = 0

    def add(self, forecast: Softmax, predictions: Labels, labels: Labels) -> ConfidenceBlock:
        """Count a block of m rows.

        `predictions` are the labels whose confidence is measured, and `labels` the true labels,
        both of shape (m,) with values 0 .. K-1.
        """
        probabilities = forecast.probabilities
        m = len(labels)
        columns = np.arange(m)
        # The confidence in the predicted label, and its bin.
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
        if self._rows is not None:
            self._rows.add(rows.confidence, rows.correct)
        of_correctness = self._losses_of_correctness(forecast, predictions, logs, rows)
        for name, values in of_correctness.items():
            self._correctness[name] += float(values.sum())
        rows = replace(rows, losses=of_correctness)
        if self._losses:  # losses of every row, for metrics with the interval of a mean
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

    def _losses_of_correctness(
        self, forecast: Softmax, predictions: Labels, logs: Float64s, rows: ConfidenceBlock
    ) -> dict[str, Float64s]:
        """Return, by metric, the losses of the confidence as a forecast of correctness.

        `logs` are the logarithms of the confidence.
        """
        losses: dict[str, Float64s] = {}
        if "correctness_brier" in self._correctness:
            losses["correctness_brier"] = (rows.confidence - rows.correct) ** 2
        if "correctness_nll" in self._correctness:
            surprises = -logs
            wrong = np.flatnonzero(~rows.correct)
            probabilities = forecast.probabilities.take(predictions[wrong] * len(logs) + wrong)
            # Near p = 1, 1 - p loses its digits, so the other classes are summed instead.
            near = probabilities > _NEARLY_ONE
            far = ~near
            surprises[wrong[far]] = -np.log1p(-probabilities[far])
            surprises[wrong[near]] = -forecast.logs_beside(wrong[near], predictions[wrong[near]])
            losses["correctness_nll"] = np.minimum(surprises, MOST_NLL)
        return losses

    def result(self) -> Metrics:
        """Return the metrics of all counted rows; raise ValueError if there are no rows."""
        counts = self._counts
        bins = counts.together()
        n = require_rows(bins.n)
        calibration, sharpness = (
            (None, None) if self._classwise is None else self._classwise.decomposition()
        )
        correctness = {name: loss / n for name, loss in self._correctness.items()}
        return Metrics(
            names=self._names,
            nll=self._nll / n,
            brier=self._brier / n,
            calibration=calibration,
            sharpness=sharpness,
            agreement=self._agreeing / n,
            classwise_ece=None if self._classwise is None else self._classwise.ece(),
            correctness_brier=correctness.get("correctness_brier"),
            correctness_nll=correctness.get("correctness_nll"),
            bins=bins,
            rows=self._rows,
            by_class=counts if self._few else None,
            losses=self._losses,
            has_all_classes=self._has_all_classes,
        )
