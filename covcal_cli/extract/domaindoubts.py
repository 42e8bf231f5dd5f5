"""Whether source and target were mixed up: one given twice, or both in the wrong order.

No label of the target is asked. Whether the classifier is better on the target than on the source
would be the plainer sign, but what target labels say is for ``evaluate`` alone; and the confidence
tells of targets without labels too. On the benchmark's 41 shifts that are not graded the mean
confidence was never higher on the target. With the two swapped it was higher everywhere, and by as
much as `_MIN_GAIN` on 23.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FEW_ROWS = 50
_MIN_GAIN = 0.05
_DEVIATIONS = 5
_ROWS = 4096  # of each domain, evenly spread
_SHOWS_NOTHING = "there is no shift to find, which is right for a check of the tools alone"


def is_one_place(source: Path, target: Path) -> bool:
    """Return whether two paths lead to the same file or folder, through links too."""
    return source.exists() and target.exists() and source.samefile(target)


def warning_on_place(source: Path, target: Path) -> str | None:
    """Return a warning if one place is given as both domains."""
    if not is_one_place(source, target):
        return None
    return f"{target} is the source and the target: {_SHOWS_NOTHING}; else give other data"


def warning_on_rows(file: Any, paths: Mapping[str, Path]) -> str | None:
    """Return what the rows of both domains say against how they were given, in one line.

    Parameters
    ----------
    file : h5py.File
        The features file, with every row written.
    paths : mapping of str to Path
        Where the data of each domain lies.
    """
    source, target = file["source"], file["target"]
    if _are_same(source, target):
        return (
            f"{paths['target']} holds the very rows of {paths['source']} (equal ids, features and "
            f"logits): {_SHOWS_NOTHING}; else give other data"
        )
    ours, theirs = _confidences(source["logits"]), _confidences(target["logits"])
    if min(len(ours), len(theirs)) < _FEW_ROWS:
        return None
    gain = float(theirs.mean() - ours.mean())
    noise = math.sqrt(ours.var() / len(ours) + theirs.var() / len(theirs))
    if gain < _MIN_GAIN or gain <= _DEVIATIONS * noise:
        return None
    return (
        f"the classifier is surer of the target {paths['target']} (mean confidence "
        f"{theirs.mean():.1%}) than of the source {paths['source']} ({ours.mean():.1%}), where a "
        "shift usually makes it less sure: is the order right? SOURCE, then TARGET"
    )


def _are_same(source: Any, target: Any) -> bool:
    """Return whether two domains have the same rows in the same order, by their outputs.

    Ids and labels alone do not tell: corrupted copies of a data set keep both.
    """
    if source["logits"].shape != target["logits"].shape or not len(source["ids"]):
        return False
    if not np.array_equal(source["ids"][...], target["ids"][...]):
        return False
    names = [name for name in ("logits", "features") if name in source]
    return all(np.array_equal(_some(source[name]), _some(target[name])) for name in names)


def _confidences(logits: Any) -> NDArray[np.float64]:
    exact = _some(logits).astype(np.float64)
    exact -= exact.max(axis=1, keepdims=True, initial=-math.inf)
    found: NDArray[np.float64] = 1 / np.exp(exact).sum(axis=1)
    return found


def _some(dataset: Any) -> NDArray[Any]:
    step = max(1, -(-len(dataset) // _ROWS))
    values: NDArray[Any] = dataset[::step]
    return values
