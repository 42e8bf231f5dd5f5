"""Draw the reliability diagrams and the box plot of importance weights of the paper."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.calibrate.calibrate import calibrate
from covcal_cli.calibrate.problem import CalibrateSettings
from covcal_cli.evaluate.diagram import draw_diagram
from covcal_cli.evaluate.evaluate import evaluate
from covcal_cli.files import atomic_output
from covcal_cli.formats.features import FeatureFile
from covcal_cli.maths.weights import importance_weights
from reproduction.shifts import METHODS

HEAVIEST = 15
_WIDE = 100.0
_WIDTH, _COLOURS = 900, 64


def draw_reliability(adapted: Path, path: Path, *, title: str) -> None:
    """Draw the paper's two kinds of reliability diagrams, for every method on an adapted file."""
    fitted = {
        method: calibrate(adapted, CalibrateSettings(method=method, allow_limit=True))
        for method in METHODS[1:]
    }
    metrics = evaluate(adapted, fitted).metrics
    draw_diagram({name: metrics[name] for name in METHODS}, path, title=title, force=True)
    shrink(path)


def source_weights(adapted: Path) -> NDArray[np.float64]:
    """Return the importance weights of source validation rows for fl+iw+temp, shape (n,)."""
    with FeatureFile(adapted) as file:
        source, target = file.require_source(), file.require_target()
        found = importance_weights(
            source.aligned_domain_logits(source.rows("validation")),
            target.aligned_domain_logits(target.rows("validation")),
        )
    return found.weights


def heaviest(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the 15 rows with the largest mean weight over seeds, in descending order.

    Parameters
    ----------
    weights : array, shape (seeds, rows)
    """
    return np.argsort(-weights.mean(axis=0), kind="stable")[:HEAVIEST].astype(np.int64)


def draw_weights(by_seed: Mapping[int, NDArray[np.float64]], path: Path, *, title: str) -> None:
    """Draw a box plot of the weights of the 15 rows with the largest mean weight.

    Parameters
    ----------
    by_seed : mapping of int to array, shape (rows,)
        Importance weights of the source validation rows, by seed.
    path : Path
        The .png file to write. An existing file is replaced.
    title : str
    """
    from matplotlib.figure import Figure

    weights = np.stack(list(by_seed.values()))
    rows = heaviest(weights)
    shown = weights[:, rows]
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes: Any = figure.add_subplot()
    line = {"linewidth": 1.6}
    # As in the paper, the whiskers reach the smallest and the largest value.
    axes.boxplot(
        list(shown.T), whis=(0, 100), boxprops=line, medianprops=line | {"color": "#d55e00"}
    )
    for column, values in enumerate(shown.T, start=1):
        axes.plot([column] * len(values), values, ".", color="#0072b2", markersize=4, alpha=0.6)
    if shown.max() > _WIDE * max(float(np.median(shown)), 1.0):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.axhline(1, color="#1f2933", linewidth=0.8, linestyle="--")
    axes.set_xticklabels([str(row) for row in rows], rotation=60, fontsize=8)
    axes.set(xlabel="source validation rows, sorted by mean weight", ylabel="importance weight w")
    axes.set_title(f"{title} ({len(weights)} seed{'s' * (len(weights) != 1)})", fontsize=10)
    axes.grid(axis="y", linewidth=0.4)
    with atomic_output(path, force=True) as partial:
        figure.savefig(partial, format="png", dpi=110, metadata={"Software": None})


def shrink(path: Path) -> None:
    """Make a .png file about five times smaller, with less width and fewer colours."""
    from PIL import Image

    with Image.open(path) as image:
        height = round(image.height * _WIDTH / image.width)
        small = image.convert("RGB").resize((_WIDTH, height), Image.Resampling.LANCZOS)
    with atomic_output(path, force=True) as partial:
        small.quantize(_COLOURS).save(partial, format="png", optimize=True)
