"""The list of all metrics, and the counts from which they are computed.

The confidence of a row is the probability of its predicted label. If this label is right, the row
is a hit. Rows are counted in bins (``bins.py``), or ranked by confidence (``ranked.py``). Counts
are integers and sums are float64.

To add a metric, add an entry to `METRICS` and a property of the same name to `Metrics`. But if the
metric needs a sum over all rows, make it a field of `Metrics`, which `MetricsAccumulator` computes.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from covcal_cli.arrays import Booleans, Float64s, Labels, Rows
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
    Areas,
    Auroc,
    RankedRows,
    RowCollector,
    adaptive_bins,
    areas,
    smooth_ece,
)
from covcal_cli.maths.softmax import MOST_NLL, Softmax, exp
from covcal_cli.records import Within

_MAX_CELLS = 1_000_000  # a metric that needs more counts in memory than this has no value
_NEARLY_ONE = 0.9999
_ROUNDING = 1e-6  # the largest relative rounding error
_LEAST_HIT = 1e-3  # the largest change of the number of hits that rounding can cause


@dataclass(frozen=True)
class Display:
    """Under which heading a table shows a metric, and where."""

    label: str
    order: int = 0  # metrics are sorted by this number; if it is equal, by the order of `METRICS`
    percent: bool = True


@dataclass(frozen=True)
class Metric:
    """One metric: where it is shown, and which gates it may have."""

    name: str  # the property of `Metrics`, the key in metrics.json, and the name in options
    screen: Display | None  # its column on the screen of ``covcal evaluate``; None if it has none
    report: Display | None  # its line on the report page, in words; None if it has none
    better: Literal["lower", "higher", "neither"] = "lower"
    # The kind of metric, which decides how its interval is computed: a share of rows, a mean over
    # rows, a ranking of rows, or a sum of gaps in bins. None if the metric has no interval.
    interval: Literal["share", "mean", "ranks", "gaps"] | None = None
    # the bins whose gaps are summed: a property of `Metrics`
    bins: Literal["bins", "adaptive", "predicted"] = "bins"
    main: bool = False  # whether the metric is shown even without ``--metrics all``
    lowest: float = 0.0  # the lowest possible value
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
# All metrics by name, in the order of metrics.json.
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _TABLE}
MAIN = tuple(name for name, metric in METRICS.items() if metric.main)
# Metrics for which counts in bins of confidence are not enough: they need the probabilities of all
# classes, the ranked rows, or the loss of the confidence.
_CLASSWISE = ("calibration", "sharpness", "classwise_ece")
# Metrics of all probabilities of a row, which are unknown if the file has one confidence per row.
OF_ALL_CLASSES = ("nll", "brier", "agreement", *_CLASSWISE)
_RANKED = ("adaptive_ece", "smooth_ece", "aurc", "correctness_auroc")


def measurable(names: Collection[str], *, has_all_classes: bool) -> tuple[str, ...]:
    """Return the metrics that can be computed, with all classes or one confidence per row."""
    return tuple(name for name in names if has_all_classes or name not in OF_ALL_CLASSES)


def require_possible(what: str, values: Mapping[str, float | None], n: float) -> None:
    """Raise ValueError if metrics of n rows are impossible or contradict each other.

    The hash of a document shows damage, but somebody who edits a document can renew the hash. An
    edited number is still found, because the ECE is the sum of its parts, their difference is mean
    confidence minus accuracy, and accuracy is a share of n rows.
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
    require(whole, "accuracy", f"which is not a whole number of {n:g} rows")
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
    """Return the metrics that the screen shows, in the order of its columns."""
    columns = [(name, metric.screen, metric) for name, metric in METRICS.items() if metric.screen]
    return sorted(columns, key=lambda column: column[1].order)


def in_report() -> list[tuple[str, Display]]:
    """Return the metrics that the report page shows, in the order of its lines."""
    lines = [(name, metric.report) for name, metric in METRICS.items() if metric.report]
    return sorted(lines, key=lambda line: line[1].order)


@dataclass(frozen=True)
class Metrics:
    """The metrics of one calibration on labelled rows; fractions, not percent.

    Unless stated otherwise, confidence means the probability of the predicted label. A metric that
    the user did not ask for has no value.
    """

    # names of the metrics that the user asked for, in the order of `METRICS`
    names: tuple[str, ...]
    # Log loss of the calibrated probabilities of all classes. If the probability of the right class
    # is 0 in float64, the loss is 708.
    nll: float
    brier: float  # Brier score of the probabilities of all classes, from 0 to 2
    # E||p - c||^2 and E||c||^2, where c_k is the frequency of class k among rows with nearly this
    # probability of class k (`ClasswiseBins.decomposition`). None if this needs over a million
    # counts.
    calibration: float | None
    sharpness: float | None
    # share of rows in which the classifier's label still has the largest probability
    agreement: float
    # ECE of the probabilities of all classes; None if this needs over a million counts
    classwise_ece: float | None
    # How well the confidence c forecasts whether the label is right (r = 1) or wrong (r = 0): the
    # mean of (c - r)^2, and the mean of -log c or -log(1 - c). If c or 1 - c is 0 in float64, its
    # log loss is 708.
    correctness_brier: float | None
    correctness_nll: float | None
    bins: ReliabilityBins
    rows: RowCollector | None  # None if no metric needs ranked rows
    # rows by predicted label and bin; None if this needs over a million counts
    by_class: GroupBins | None
    # for metrics that are means over rows: their losses, for resampling
    losses: Mapping[str, ValueCells]
    # False if the file has one confidence per row; metrics in `OF_ALL_CLASSES` then have no value
    has_all_classes: bool = True

    @property
    def n(self) -> int:
        """Number of rows."""
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
        """The rows in ascending order of confidence. Raises ValueError if they were not stored."""
        if self.rows is None:
            raise ValueError("no metric of ranked rows was asked for")
        return self.rows.ranked()

    @cached_property
    def adaptive(self) -> Bins:
        """The rows in bins with equally many rows."""
        return adaptive_bins(self.ranked, len(self.bins.counts))

    @property
    def adaptive_ece(self) -> float:
        """ECE in bins with equally many rows."""
        return self.adaptive.ece()

    @property
    def debiased_ece(self) -> float:
        """ECE minus what noise adds to it; may be negative."""
        return debiased_ece(self.bins)

    @cached_property
    def smooth_ece(self) -> float:
        """ECE without bins (smooth ECE)."""
        return smooth_ece(self.ranked)

    @property
    def mce(self) -> float:
        """Largest gap of a bin."""
        return self.bins.mce()

    @cached_property
    def areas(self) -> Areas:
        """The AURC and the AUROC."""
        return areas(self.ranked)

    @property
    def aurc(self) -> float:
        """Area under the risk-coverage curve."""
        return self.areas.aurc

    @property
    def ranking(self) -> Auroc | None:
        """How well confidence ranks right rows above wrong rows; None unless there are both."""
        return self.areas.auroc

    @property
    def correctness_auroc(self) -> float | None:
        """Share of pairs of a right and a wrong row in which the right row is more confident."""
        return None if self.ranking is None else self.ranking.value

    @cached_property
    def predicted(self) -> Bins | None:
        """The rows by predicted label; None if this needs over a million counts."""
        return None if self.by_class is None else self.by_class.by_group()

    @property
    def class_gap(self) -> float | None:
        """Sum over predicted labels k of n_k/n |mean confidence - accuracy|, on their n_k rows."""
        return None if self.predicted is None else self.predicted.ece()

    def value(self, name: str) -> float | None:
        """Return a metric by name. Raises ValueError if the user did not ask for it."""
        if name in OF_ALL_CLASSES and not self.has_all_classes:
            return None
        if name not in self.names:
            raise ValueError(f"{name} was not asked for")
        value: float | None = getattr(self, name)
        return value

    def to_json(self) -> dict[str, float | int | None]:
        """Return n and all metrics that the user asked for, by their names in metrics.json."""
        return {"n": self.n} | {name: self.value(name) for name in self.names}


@dataclass(frozen=True)
class LabelledRows:
    """A block of m rows with its labels, 0 .. K-1; every array has shape (m,).

    Several calibrations can share it, so that each array is computed only once.
    """

    predictions: Labels  # labels whose confidence is measured
    labels: Labels  # true labels

    @cached_property
    def at_predictions(self) -> Labels:
        """Places of the predicted labels in a flat block of shape (K, m)."""
        return self._places(self.predictions)

    @cached_property
    def at_labels(self) -> Labels:
        """Places of the true labels."""
        return self._places(self.labels)

    @cached_property
    def correct(self) -> Booleans:
        """Whether the predicted label is right."""
        return np.asarray(self.predictions == self.labels)

    @cached_property
    def wrong(self) -> Rows:
        """Numbers of the rows whose predicted label is wrong."""
        return np.flatnonzero(~self.correct)

    @cached_property
    def at_wrong(self) -> Labels:
        """Places of the wrong predicted labels."""
        return self.at_predictions.take(self.wrong)

    def _places(self, labels: Labels) -> Labels:
        return labels * len(labels) + np.arange(len(labels))


class MetricsAccumulator:
    """Counts the rows of one calibration, block by block, and returns the metrics.

    Only what the metrics in `names` need is counted, because the rest would take most of the time.
    With `keep_losses`, the losses of the rows are counted too, for resampling.
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

    def add(self, forecast: Softmax, labelled: LabelledRows) -> ConfidenceBlock:
        """Count a block of rows."""
        probabilities = forecast.probabilities
        # the confidence in the predicted label, and its bin
        logs = forecast.logs_at(labelled.at_predictions)
        rows = confidence_block(exp(logs), labelled.correct, self._edges)
        # The Brier score of a row is p.p - 2 p_y + 1.
        losses = np.minimum(-forecast.logs_at(labelled.at_labels), MOST_NLL)
        of_labels = probabilities.take(labelled.at_labels)
        squares = float(np.vdot(probabilities, probabilities))
        self._nll += float(losses.sum())
        self._brier += squares + len(losses) - 2 * float(of_labels.sum())
        # The largest log probability of a row is -log_sums, because its largest logit is 0.
        self._agreeing += int(np.count_nonzero(logs == -forecast.log_sums))
        if self._rows is not None:
            self._rows.add(rows.confidence, rows.correct)
        of_correctness = self._losses_of_correctness(forecast, labelled, logs, rows)
        for name, values in of_correctness.items():
            self._correctness[name] += float(values.sum())
        rows = replace(rows, losses=of_correctness)
        if self._losses:  # the losses of each row, for intervals of means
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
            self._classwise.add(probabilities, labelled.at_labels)
        self._counts.add(rows, labelled.predictions if self._few else None)
        return rows

    def _losses_of_correctness(
        self, forecast: Softmax, labelled: LabelledRows, logs: Float64s, rows: ConfidenceBlock
    ) -> dict[str, Float64s]:
        """Return, for each metric, the losses of c as a forecast of whether the label is right.

        `logs` are the logarithms of the confidence.
        """
        losses: dict[str, Float64s] = {}
        if "correctness_brier" in self._correctness:
            losses["correctness_brier"] = (rows.confidence - rows.correct) ** 2
        if "correctness_nll" in self._correctness:
            surprises, wrong = -logs, labelled.wrong
            probabilities = forecast.probabilities.take(labelled.at_wrong)
            near = np.flatnonzero(probabilities > _NEARLY_ONE)
            probabilities[near] = 0.0
            # twice as fast as log1p, and exact enough unless p is near 1
            surprises[wrong] = -np.log(1 - probabilities)
            # Near p = 1, 1 - p loses digits, so the probabilities of the other classes are summed.
            if len(near):
                sure = wrong[near]
                surprises[sure] = -forecast.logs_beside(sure, labelled.predictions[sure])
            losses["correctness_nll"] = np.minimum(surprises, MOST_NLL)
        return losses

    def result(self) -> Metrics:
        """Return the metrics of all rows so far. Raises ValueError if there are none."""
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
