"""The reliability diagram: as a picture (PNG, SVG, PDF) and as text for a terminal.

A picture has two views of every calibration: accuracy by confidence, and accuracy above a threshold
of confidence. Colours mark over- and under-confidence. The functions `ece` and
`reliability_diagram` take arrays of probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from covcal_cli.array_arguments import (
    class_numbers,
    classes_among,
    columns_like,
    columns_of,
    labels_of,
    numbers_of,
)
from covcal_cli.arrays import AnyArray, Float64s, Labels
from covcal_cli.errors import ArgumentError, CovcalError, percent
from covcal_cli.evaluate.bins import (
    GroupBins,
    ReliabilityBins,
    bin_edges,
    check_bins,
    confidence_block,
    ratio,
)
from covcal_cli.evaluate.metrics import LabelledRows, Metrics, MetricsAccumulator
from covcal_cli.files import atomic_output
from covcal_cli.maths.output_form import OutputEvidence
from covcal_cli.maths.softmax import class_major, softmax

FORMATS = (".png", ".svg", ".pdf")
_OVER, _UNDER, _BAR, _LINE = "#d55e00", "#0072b2", "#c8ced6", "#1f2933"
_OVER_HATCH, _UNDER_HATCH = "//", "\\\\"
_DATES = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}
_MAX_ROWS_OF_TEXT, _WIDTH = 15, 40


def check_diagram(path: Path) -> None:
    """Raise a CovcalError if the file ending is not supported."""
    if path.suffix.lower() not in FORMATS:
        raise CovcalError(f"{path}: a diagram ends in {', '.join(FORMATS)}")


def draw_diagram(metrics: Mapping[str, Metrics], path: Path, *, title: str, force: bool) -> None:
    """Draw the diagrams of all calibrations, and write the picture."""
    check_diagram(path)
    write_figure(lambda: figure_of(metrics, title), path, force=force)


def write_figure(drawn: Callable[[], Any], path: Path, *, force: bool) -> None:
    """Write a Matplotlib figure. The same figure always gives the same file."""
    import matplotlib as mpl

    kind = path.suffix.lower().lstrip(".")
    # Make the ids in SVG files deterministic. Store letters as text, so that files are small.
    settings: dict[Any, str] = {"svg.hashsalt": "covcal", "svg.fonttype": "none"}
    with atomic_output(path, force=force) as partial, mpl.rc_context():
        mpl.rcParams.update({**mpl.rcParamsDefault, **settings})
        drawn().savefig(partial, format=kind, metadata={_DATES[kind]: None}, dpi=110)


def figure_of(metrics: Mapping[str, Metrics], title: str) -> Any:
    """Return a Matplotlib figure with a row of panels for each calibration."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 0.6 + 3.9 * len(metrics)), layout="constrained")
    figure.suptitle(title)
    grid = figure.add_gridspec(
        2 * len(metrics), 2, height_ratios=[3.2, 1.0] * len(metrics), hspace=0.05
    )
    for row, (name, entry) in enumerate(metrics.items()):
        reliability = figure.add_subplot(grid[2 * row, 0])
        counts = figure.add_subplot(grid[2 * row + 1, 0], sharex=reliability)
        threshold = figure.add_subplot(grid[2 * row, 1])
        share = figure.add_subplot(grid[2 * row + 1, 1], sharex=threshold)
        _draw_reliability(reliability, name, entry)
        edges = entry.bins.edges
        counts.bar(edges[:-1], entry.bins.counts, np.diff(edges), align="edge", color=_BAR)
        counts.set(xlabel="confidence", ylabel="rows")
        _draw_threshold(threshold, share, name, entry.bins)
    return figure


def _draw_reliability(axes: Any, name: str, entry: Metrics) -> None:
    from matplotlib.patches import Patch

    bins = entry.bins
    filled = bins.counts > 0
    left, width = bins.edges[:-1][filled], np.diff(bins.edges)[filled]
    accuracy, confidence = bins.accuracy[filled], bins.confidence[filled]
    over = confidence > accuracy
    axes.bar(left, accuracy, width, align="edge", color=_BAR, edgecolor="white")
    legend = [Patch(color=_BAR, label="accuracy")]
    for chosen, colour, hatch, label in (
        (over, _OVER, _OVER_HATCH, f"over-confident ({percent(entry.over_ece)})"),
        (~over, _UNDER, _UNDER_HATCH, f"under-confident ({percent(entry.under_ece)})"),
    ):
        outline: dict[str, Any] = {
            "facecolor": "none",
            "edgecolor": colour,
            "hatch": hatch,
            "linewidth": 0.8,
        }
        axes.bar(
            left[chosen],
            (confidence - accuracy)[chosen],
            width[chosen],
            bottom=accuracy[chosen],
            align="edge",
            **outline,
        )
        legend.append(Patch(label=label, **outline))
    axes.plot([0, 1], [0, 1], color=_LINE, linewidth=1, linestyle="--")
    axes.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
    axes.set_title(f"{name}: ECE {percent(entry.ece)}, n = {entry.n}", fontsize=10)
    axes.legend(handles=legend, loc="best", fontsize=8, framealpha=0.9)
    axes.tick_params(labelbottom=False)


def _draw_threshold(axes: Any, below: Any, name: str, bins: ReliabilityBins) -> None:
    accuracy, share = accuracy_above(bins)
    edges = bins.edges[:-1]
    axes.plot(edges, accuracy, color=_UNDER, marker="o", markersize=3, label="accuracy above")
    axes.plot([0, 1], [0, 1], color=_LINE, linewidth=1, linestyle="--", label="threshold")
    axes.set(xlim=(0, 1), ylim=(0, 1.02), ylabel="accuracy")
    axes.set_title(f"{name}: rows with a confidence above a threshold", fontsize=10)
    axes.legend(loc="lower right", fontsize=8, frameon=False)
    axes.tick_params(labelbottom=False)
    below.step([*edges, 1.0], [*share, share[-1]], where="post", color=_LINE)
    below.set(xlabel="confidence threshold", ylabel="share", ylim=(0, 1.05))


def accuracy_above(bins: ReliabilityBins) -> tuple[Float64s, Float64s]:
    """Return the accuracy and the share of rows above each confidence threshold, (bins,) each.

    Thresholds are the lower edges of bins. The accuracy is NaN if no row is above a threshold.
    """
    counts = np.cumsum(bins.counts[::-1])[::-1]
    hits = np.cumsum(bins.hits[::-1])[::-1]
    return ratio(hits, counts), counts / bins.n


def text_diagram(bins: ReliabilityBins) -> str:
    """Return a reliability diagram as text, one line per non-empty bin.

    An over-confident bin has ``>`` between accuracy and confidence, an under-confident bin ``<``.
    """
    counts, hits, sums = bins.counts, bins.hits, bins.confidence_sums
    step = -(-len(counts) // _MAX_ROWS_OF_TEXT)
    starts = np.arange(0, len(counts), step)
    counts, hits, sums = (np.add.reduceat(part, starts) for part in (counts, hits, sums))
    edges = np.append(bins.edges[starts], 1.0)
    legend = "# is the accuracy; > marks over-confidence, < marks under-confidence"
    lines = [legend, "confidence      rows    conf     acc"]
    for index in np.flatnonzero(counts):
        confidence, accuracy = sums[index] / counts[index], hits[index] / counts[index]
        low, high = sorted((round(confidence * _WIDTH), round(accuracy * _WIDTH)))
        gap = ">" if confidence > accuracy else "<"
        bar = "#" * low + gap * (high - low)
        lines.append(
            f"({edges[index]:.2f}, {edges[index + 1]:.2f}] {counts[index]:>6}"
            f"  {percent(confidence):>7} {percent(accuracy):>7}  {bar}"
        )
    return "\n".join(lines)


_METRICS = ("accuracy", "mean_confidence", "ece", "over_ece", "under_ece")


def ece(
    probabilities: ArrayLike, labels: ArrayLike, *, bins: int = 15, classes: ArrayLike | None = None
) -> float:
    """Return the expected calibration error of the most probable class, from 0 to 1.

    Parameters
    ----------
    probabilities : array, shape (n, K), or (n,) for the second of two classes
    labels : array, shape (n,)
        Class numbers 0 to K-1, or values of `classes`.
    bins : int
        Number of bins of equal width.
    classes : array, shape (K,), optional
        Classes in the order of the columns. The default is the column names of a data frame, or 0
        to K-1.

    Raises
    ------
    CovcalError
        If rows are not probabilities, or a label is not a class.
    """
    check_bins(bins)
    rows, numbers = _checked(probabilities, labels, classes)
    counts, predictions = GroupBins(bins), rows.argmax(axis=1)
    confidence = rows[np.arange(len(rows)), predictions]
    counts.add(confidence_block(confidence, predictions == numbers, bin_edges(bins)))
    return counts.together().ece()


def reliability_diagram(
    probabilities: ArrayLike,
    labels: ArrayLike,
    path: str | Path | None = None,
    *,
    bins: int = 15,
    classes: ArrayLike | None = None,
    title: str = "Reliability",
    force: bool = False,
) -> Any:
    """Draw a reliability diagram, and return the Matplotlib figure.

    `path` is a file to write, which ends in .png, .svg or .pdf. `force` replaces an existing file.
    For other parameters, see `ece`.
    """
    check_bins(bins)
    rows, numbers = _checked(probabilities, labels, classes)
    with np.errstate(divide="ignore"):
        forecast = softmax(class_major(np.log(rows)), 1.0)
    metrics = MetricsAccumulator(bins, rows.shape[1], names=_METRICS)
    metrics.add(forecast, LabelledRows(rows.argmax(axis=1), numbers))
    result = {"probabilities": metrics.result()}
    if path is not None:
        draw_diagram(result, Path(path), title=title, force=force)
    return figure_of(result, title)


def _checked(
    probabilities: ArrayLike, labels: ArrayLike, classes: ArrayLike | None
) -> tuple[Float64s, Labels]:
    rows = numbers_of(probabilities, "probabilities")
    if rows.ndim == 1:
        if len(rows) and not (rows.min() >= 0 and rows.max() <= 1):
            row = int(np.flatnonzero(~((rows >= 0) & (rows <= 1)))[0])
            raise ArgumentError(
                f"probabilities must lie between 0 and 1: row {row} has {rows[row]:.6g}"
            )
        rows = np.stack([1 - rows, rows], axis=1)
    if rows.ndim != 2 or len(rows) == 0:
        raise ArgumentError(
            f"probabilities must have shape (n, K), with n of at least 1, not {rows.shape}"
        )
    evidence = OutputEvidence()
    evidence.add(rows)
    clipped = evidence.form == "clipped" and evidence.low < evidence.high
    if evidence.form == "reversed":
        raise ArgumentError(f"probabilities: {evidence.fact}: {evidence.remedy}")
    if evidence.form != "probabilities" and not clipped:
        off = evidence.first_outside or evidence.first_off or (0, float(rows[0].sum()))
        raise ArgumentError(
            f"probabilities must lie between 0 and 1 and sum to 1 in every row: row {off[0]} has "
            f"{off[1]:.6g}"
        )
    of_rows = labels_of(labels, "labels", len(rows), probabilities)
    if classes is not None:
        names: AnyArray | None = labels_of(classes, "classes", rows.shape[1])
    else:
        names = classes_among(columns_like(of_rows, columns_of(probabilities)), of_rows)
    if names is None:
        names = np.arange(rows.shape[1])
    return rows, class_numbers(of_rows, names, "labels", has_classes=classes is not None)
