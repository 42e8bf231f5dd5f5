"""The ECE and the reliability diagram of probabilities in arrays, for the Python API."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from covcal_cli.arrays import Float64s, Labels
from covcal_cli.evaluate.bins import GroupBins, bin_edges, confidence_block
from covcal_cli.evaluate.diagram import draw_diagram, figure_of
from covcal_cli.evaluate.metrics import MetricsAccumulator
from covcal_cli.maths.output_form import OutputEvidence
from covcal_cli.maths.softmax import class_major, softmax

_METRICS = ("accuracy", "mean_confidence", "ece", "over_ece", "under_ece")


def ece(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = 15,
    classes: ArrayLike | None = None,
) -> float:
    """Return the expected calibration error of the most probable class, a fraction.

    Parameters
    ----------
    probabilities : array, shape (n, K), or (n,) for the second of two classes
    labels : array, shape (n,)
        Class numbers 0 to K-1, or members of `classes`.
    bins : int
        Number of bins of equal width; an edge belongs to the bin below it.
    classes : array, shape (K,), optional
        The classes in the order of the columns.

    Raises
    ------
    ValueError
        If the rows are not probabilities, or a label is not among the classes.
    """
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
    """Draw accuracy against confidence; return the Matplotlib figure, and write it to `path`.

    The other parameters are those of `ece`. `force` replaces an existing file. The ending of the
    path decides the format: .png, .svg or .pdf.
    """
    rows, numbers = _checked(probabilities, labels, classes)
    with np.errstate(divide="ignore"):
        forecast = softmax(class_major(np.log(rows)), 1.0)
    metrics = MetricsAccumulator(bins, rows.shape[1], names=_METRICS)
    metrics.add(forecast, rows.argmax(axis=1), numbers)
    result = {"probabilities": metrics.result()}
    if path is not None:
        draw_diagram(result, Path(path), title=title, force=force)
    return figure_of(result, title)


def _checked(
    probabilities: ArrayLike, labels: ArrayLike, classes: ArrayLike | None
) -> tuple[Float64s, Labels]:
    """Return probabilities (n, K) and class numbers (n,)."""
    rows = np.asarray(probabilities, dtype=np.float64)
    if rows.ndim == 1:
        rows = np.stack([1 - rows, rows], axis=1)
    if rows.ndim != 2 or len(rows) == 0:
        raise ValueError(f"probabilities must be of shape (n, K), not {rows.shape}")
    evidence = OutputEvidence()
    evidence.add(rows)
    clipped = evidence.form == "clipped" and evidence.low < evidence.high
    if evidence.form != "probabilities" and not clipped:
        off = evidence.first_outside or evidence.first_off or (0, float(rows[0].sum()))
        raise ValueError(
            f"probabilities must lie between 0 and 1 and sum to 1 in every row: row {off[0]} has "
            f"{off[1]:.6g}"
        )
    values, names = np.asarray(labels), np.arange(rows.shape[1])
    if classes is not None:
        names = np.asarray(classes)
    if values.shape != (len(rows),) or names.shape != (rows.shape[1],):
        raise ValueError(
            f"labels must be of shape ({len(rows)},) and classes of shape ({rows.shape[1]},), not "
            f"{values.shape} and {names.shape}"
        )
    order = np.argsort(names)
    numbers: Labels = order[np.searchsorted(names[order], values).clip(0, len(names) - 1)]
    strange = np.flatnonzero(names[numbers] != values)
    if len(strange):
        raise ValueError(f"labels: row {strange[0]} is {values[strange[0]]}, which is not a class")
    return rows, numbers
