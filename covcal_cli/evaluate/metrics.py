"""Define and compute all metrics of calibration and accuracy.

The confidence is the probability of the predicted label. Rows are counted in bins (``bins.py``), or
ranked by confidence (``ranked.py``).

To add a metric, add an entry to `METRICS`, and a property of the same name to `Metrics`. Sums over
rows are computed in `MetricsAccumulator`.
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

_MAX_CELLS = 1_000_000
_NEARLY_ONE = 0.9999
_ROUNDING = 1e-6  # Accepted relative rounding error.
_LEAST_HIT = 1e-3  # accuracy * n may differ from a whole number by this much.


@dataclass(frozen=True)
class Display:
    """How a table shows a metric."""

    label: str
    order: int = 0  # sort key; ties keep the order of `METRICS`
    percent: bool = True


_SHARE = Within(0, 1)


@dataclass(frozen=True)
class Metric:
    """The properties of one metric."""

    name: str  # the name in `Metrics`, metrics.json and options
    screen: Display | None
    report: Display | None  # label on the report page, or None
    better: Literal["lower", "higher", "neither"] = "lower"
    # Kind of the metric, which determines its interval: a share, a mean over rows, an AUROC, or a
    # sum of gaps.
    interval: Literal["share", "mean", "ranks", "gaps"] | None = None
    # Bins of a metric that is a sum of gaps.
    bins: Literal["bins", "adaptive", "predicted"] = "bins"
    main: bool = False  # shown by default
    limits: Within = _SHARE


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
        limits=Within(0),
    ),
    Metric(
        "brier",
        Display("Brier", order=1, percent=False),
        Display("Brier score", order=2, percent=False),
        interval="mean",
        main=True,
        limits=Within(0, 2),
    ),
    Metric("calibration", None, None, limits=Within(0, 2)),
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
        limits=Within(-1, 1),
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
        limits=Within(0),
    ),
    Metric(
        "correctness_auroc",
        Display("hit AUROC", order=2, percent=False),
        Display("AUROC of correctness", order=5, percent=False),
        better="higher",
        interval="ranks",
    ),
)
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _TABLE}
MAIN = tuple(name for name, metric in METRICS.items() if metric.main)
_CLASSWISE = ("calibration", "sharpness", "classwise_ece")
# Metrics that need the probabilities of all classes.
OF_ALL_CLASSES = ("nll", "brier", "agreement", *_CLASSWISE)
_RANKED = ("adaptive_ece", "smooth_ece", "aurc", "correctness_auroc")


def measurable(names: Collection[str], *, has_all_classes: bool) -> tuple[str, ...]:
    """Return the metrics that can be computed."""
    return tuple(name for name in names if has_all_classes or name not in OF_ALL_CLASSES)


def require_possible(what: str, values: Mapping[str, float | None], n: float) -> None:
    """Raise ValueError if metrics of n rows contradict each other.

    The check finds edited numbers in a document. For example, the accuracy times n must be a whole
    number, and the ECE must be the sum of its two parts.
    """
    present = {name: value for name, value in values.items() if value is not None}
    for name, value in present.items():
        if name in METRICS:
            METRICS[name].limits.require(f"{what}.{name}", value)

    def require(is_right: bool, name: str, reason: str) -> None:
        if not is_right:
            raise ValueError(f"{what}.{name} is {present[name]:.7g}, {reason}")

    hits = present.get("accuracy", 0.0) * n
    whole = abs(hits - round(hits)) <= _LEAST_HIT
    require(whole, "accuracy", f"which is not a whole number of rows out of {n:g}")
    if {"ece", "over_ece", "under_ece"} <= present.keys():
        total = present["over_ece"] + present["under_ece"]
        require(_near(present["ece"], total), "ece", f"but its parts sum to {total:.7g}")
    if not {"accuracy", "mean_confidence"} <= present.keys():
        return
    gap = present["mean_confidence"] - present["accuracy"]
    if {"over_ece", "under_ece"} <= present.keys():
        confidence = present["accuracy"] + present["over_ece"] - present["under_ece"]
        reason = f"but accuracy plus over_ece minus under_ece is {confidence:.7g}"
        require(_near(present["mean_confidence"], confidence), "mean_confidence", reason)
    least = {
        "ece": abs(gap),
        "over_ece": gap,
        "under_ece": -gap,
        "adaptive_ece": abs(gap),
        "class_gap": abs(gap),
        "mce": present.get("ece", abs(gap)),
        "correctness_brier": gap * gap,
        "brier": present.get("correctness_brier", gap * gap),
    }
    for name, low in least.items():
        if name in present:
            is_right = present[name] >= low or _near(present[name], low)
            require(is_right, name, f"but the other metrics imply at least {low:.7g}")


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= _ROUNDING * max(1.0, abs(b))


def on_screen() -> list[tuple[str, Display, Metric]]:
    """Return the metrics on the screen, in the order of the columns."""
    columns = [(name, metric.screen, metric) for name, metric in METRICS.items() if metric.screen]
    return sorted(columns, key=lambda column: column[1].order)


def in_report() -> list[tuple[str, Display]]:
    """Return the metrics on the report page, in the order of the lines."""
    lines = [(name, metric.report) for name, metric in METRICS.items() if metric.report]
    return sorted(lines, key=lambda line: line[1].order)


@dataclass(frozen=True)
class Metrics:
    """The metrics of one calibration on labelled rows; fractions, not percent.

    The confidence is the probability of the predicted label. Metrics that were not requested have
    no value. With very many classes, class-wise metrics are None. The log loss of a row is at most
    708.
    """

    names: tuple[str, ...]  # requested metrics, in the order of `METRICS`
    nll: float
    brier: float  # Brier score of the probabilities of all classes, from 0 to 2
    calibration: float | None
    sharpness: float | None
    agreement: float  # share of rows whose predicted label is the most probable
    classwise_ece: float | None
    # c is the confidence; r is 1 if the label is right, else 0.
    correctness_brier: float | None  # Mean of (c - r)^2.
    correctness_nll: float | None  # Log loss.
    bins: ReliabilityBins
    rows: RowCollector | None
    by_class: GroupBins | None
    losses: Mapping[str, ValueCells]
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
        """The rows sorted by confidence. Raises ValueError if no metric uses this order."""
        if self.rows is None:
            raise ValueError("no requested metric needs the order of the rows")
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
        """Debiased ECE; may be negative."""
        return debiased_ece(self.bins)

    @cached_property
    def smooth_ece(self) -> float:
        """ECE without bins (smooth ECE)."""
        return smooth_ece(self.ranked)

    @property
    def mce(self) -> float:
        """Maximum calibration error (MCE)."""
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
        """The AUROC; None if all rows are right or all are wrong."""
        return self.areas.auroc

    @property
    def correctness_auroc(self) -> float | None:
        """AUROC of the confidence, with right rows as positives."""
        return None if self.ranking is None else self.ranking.value

    @cached_property
    def predicted(self) -> Bins | None:
        """Counts of rows by predicted label; None if there are too many classes."""
        return None if self.by_class is None else self.by_class.by_group()

    @property
    def class_gap(self) -> float | None:
        """The ECE with the predicted classes as bins."""
        return None if self.predicted is None else self.predicted.ece()

    def value(self, name: str) -> float | None:
        """Return a metric by name. Raises ValueError for a metric that was not requested."""
        if name in OF_ALL_CLASSES and not self.has_all_classes:
            return None
        if name not in self.names:
            raise ValueError(f"{name} was not asked for")
        value: float | None = getattr(self, name)
        return value

    def to_json(self) -> dict[str, float | int | None]:
        """Return n and the requested metrics, by name."""
        return {"n": self.n} | {name: self.value(name) for name in self.names}


@dataclass(frozen=True)
class LabelledRows:
    """A block of m rows with their labels, from 0 to K-1; every array has shape (m,)."""

    predictions: Labels
    labels: Labels
    logits: Float64s | None = None  # (K, m), the classifier's logits

    @cached_property
    def at_predictions(self) -> Labels:
        """Indexes of the predicted labels in a flattened block of shape (K, m)."""
        return self._places(self.predictions)

    @cached_property
    def at_labels(self) -> Labels:
        """Indexes of the true labels in a flattened block of shape (K, m)."""
        return self._places(self.labels)

    @cached_property
    def logits_of_labels(self) -> Float64s:
        """The logits of the true labels."""
        return np.asarray(self.logits).take(self.at_labels)

    @cached_property
    def correct(self) -> Booleans:
        """Whether the predicted label is right."""
        return np.asarray(self.predictions == self.labels)

    @cached_property
    def wrong(self) -> Rows:
        """Indexes of the wrong rows."""
        return np.flatnonzero(~self.correct)

    @cached_property
    def at_wrong(self) -> Labels:
        """Flat indexes of the predicted labels of wrong rows."""
        return self.at_predictions.take(self.wrong)

    def _places(self, labels: Labels) -> Labels:
        return labels * len(labels) + np.arange(len(labels))


class MetricsAccumulator:
    """Computes the metrics of one calibration from blocks of rows.

    `names` are the requested metrics. With `keep_losses`, losses are kept for bootstrap resampling.
    With `return_losses`, the blocks that `add` returns contain the loss of each row.
    """

    def __init__(
        self,
        bins: int,
        n_classes: int,
        *,
        names: Collection[str] = tuple(METRICS),
        keep_losses: bool = False,
        return_losses: bool = False,
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
        self._return_losses = keep_losses or return_losses
        self._nll = self._brier = 0.0
        self._of_correctness = {name for name in CORRECTNESS if name in names}
        self._agreeing = 0

    def add(self, forecast: Softmax, labelled: LabelledRows) -> ConfidenceBlock:
        """Add a block of rows, and return their confidences."""
        probabilities = forecast.probabilities
        # -log_sums is the largest log probability, because the largest logit is 0.
        largest = -forecast.log_sums
        if forecast.logits is labelled.logits:
            logs, at_labels = largest, forecast.logs_of(labelled.logits_of_labels)
            agreeing = len(logs)
        else:
            logs = forecast.logs_at(labelled.at_predictions)
            at_labels = forecast.logs_at(labelled.at_labels)
            agreeing = int(np.count_nonzero(logs == largest))
        rows = confidence_block(exp(logs), labelled.correct, self._edges)
        # The Brier score of a row is p.p - 2 p_y + 1.
        losses = np.minimum(-at_labels, MOST_NLL)
        of_labels = probabilities.take(labelled.at_labels)
        squares = float(np.vdot(probabilities, probabilities))
        self._nll += float(losses.sum())
        self._brier += squares + len(losses) - 2 * float(of_labels.sum())
        self._agreeing += agreeing
        if self._rows is not None:
            self._rows.add(rows.confidence, rows.correct)
        of_correctness = self._losses_of_correctness(forecast, labelled, logs, rows)
        rows = replace(rows, losses=of_correctness)
        if self._return_losses:
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
            self._classwise.add(probabilities, labelled.labels, of_labels, squares)
        self._counts.add(rows, labelled.predictions if self._few else None)
        return rows

    def _losses_of_correctness(
        self, forecast: Softmax, labelled: LabelledRows, logs: Float64s, rows: ConfidenceBlock
    ) -> dict[str, Float64s]:
        losses: dict[str, Float64s] = {}
        if "correctness_brier" in self._of_correctness:
            losses["correctness_brier"] = (rows.confidence - rows.correct) ** 2
        if "correctness_nll" in self._of_correctness:
            surprises, wrong = -logs, labelled.wrong
            others = 1 - forecast.probabilities.take(labelled.at_wrong)
            near = np.flatnonzero(others < 1 - _NEARLY_ONE)
            others[near] = 1.0
            surprises[wrong] = np.negative(np.log(others, out=others), out=others)
            # Near p = 1, 1 - p is inexact: sum the probabilities of the other classes instead.
            if len(near):
                sure = wrong[near]
                surprises[sure] = -forecast.logs_beside(sure, labelled.predictions[sure])
            losses["correctness_nll"] = np.minimum(surprises, MOST_NLL, out=surprises)
        return losses

    def result(self) -> Metrics:
        """Return the metrics of all rows. Raises ValueError without rows."""
        counts = self._counts
        bins = counts.together()
        n = require_rows(bins.n)
        calibration, sharpness = (
            (None, None) if self._classwise is None else self._classwise.decomposition()
        )
        correctness = {name: float(sums.sum()) / n for name, sums in counts.losses.items()}
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
