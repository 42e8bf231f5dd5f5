"""Warnings that source and target may be the same data, or given in the wrong order.

No target label is read, because target labels are for ``evaluate``. The mean confidence shows a
swap even without labels: on the benchmark's 41 ungraded shifts it was never higher on the target.
With the two domains swapped it was higher on all 41, and by `_SURER` or more on 23.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.arrays import AnyArray, Float64s
from covcal_cli.maths.source_accuracy import FEW_ROWS

_SURER, _SURER_DEVIATIONS = 0.05, 5
_ROWS = 4096  # the most rows to compare per domain, evenly spread
_NO_SHIFT = "there is no shift between them. Give other data, unless you only test the tools"


def once(*texts: str | None) -> tuple[str, ...]:
    """Return the texts that are not empty, each once: one file may hold both domains."""
    return tuple(dict.fromkeys(text for text in texts if text))


def is_one_place(source: Path, target: Path) -> bool:
    """Return whether two paths lead to the same file or folder, through links too."""
    return source.exists() and target.exists() and source.samefile(target)


def doubt_on_place(source: Path | None, target: Path | None) -> str | None:
    """Return a warning if source and target are the same path, else None."""
    if source is None or target is None or not is_one_place(source, target):
        return None
    return f"{target} is both the source and the target, so {_NO_SHIFT}"


def doubt_on_rows(file: Any, paths: Mapping[str, Path]) -> str | None:
    """Return a warning if source and target have the same rows, or seem swapped; else None.

    `file` is the open features file with all rows written. `paths` has the data of each domain.
    """
    source, target = file["source"], file["target"]
    if _are_same(source, target):
        return (
            f"{paths['target']} has the same rows as {paths['source']} (equal ids, features and "
            f"logits), so {_NO_SHIFT}"
        )
    ours, theirs = _confidences(source["logits"]), _confidences(target["logits"])
    if min(len(ours), len(theirs)) < FEW_ROWS:
        return None
    gain = float(theirs.mean() - ours.mean())
    noise = math.sqrt(ours.var() / len(ours) + theirs.var() / len(theirs))
    if gain < _SURER or gain <= _SURER_DEVIATIONS * noise:
        return None
    return (
        f"the classifier is more confident on the target {paths['target']} (mean "
        f"{theirs.mean():.1%}) than on the source {paths['source']} ({ours.mean():.1%}). A shift "
        "usually lowers confidence: check that SOURCE comes before TARGET"
    )


def _are_same(source: Any, target: Any) -> bool:
    """Return whether two domains have the same rows in the same order.

    Outputs are compared too, because a corrupted copy of a data set keeps its ids and labels.
    """
    if source["logits"].shape != target["logits"].shape or not len(source["ids"]):
        return False
    if not np.array_equal(source["ids"][...], target["ids"][...]):
        return False
    names = [name for name in ("logits", "features") if name in source]
    return all(np.array_equal(_some(source[name]), _some(target[name])) for name in names)


def _confidences(logits: Any) -> Float64s:
    exact = _some(logits).astype(np.float64)
    exact -= exact.max(axis=1, keepdims=True, initial=-math.inf)
    confidences: Float64s = 1 / np.exp(exact).sum(axis=1)
    return confidences


def _some(dataset: Any) -> AnyArray:
    step = max(1, -(-len(dataset) // _ROWS))
    values: AnyArray = dataset[::step]
    return values
