"""Doubts that an extraction tells: on the order of the classes, and on which domain is which.

No label of the target is asked. Whether the classifier is better on the target than on the source
would be the plainer sign of a mix-up, but what target labels say is for ``evaluate`` alone; and the
confidence tells of targets without labels too. On the benchmark's 41 shifts that are not graded the
mean confidence was never higher on the target. With the two swapped it was higher everywhere, and
by as much as `_SURER` on 23.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.arrays import AnyArray, Float64s, Labels
from covcal_cli.formats.source_accuracy import FEW_ROWS, SourceAccuracy

_SURER, _SURER_DEVIATIONS = 0.05, 5
_BETTER, _BETTER_DEVIATIONS = 0.2, 4
_ROWS = 4096  # of each domain, evenly spread
_SHOWS_NOTHING = "there is no shift to find, which is right for a check of the tools alone"


def once(*texts: str | None) -> tuple[str, ...]:
    """Return what there is to say, each thing once, as both domains may lie in one file."""
    return tuple(dict.fromkeys(text for text in texts if text))


def doubt_on_labels(labels: Labels, predictions: Labels, n_classes: int) -> str | None:
    """Return what the known labels of the source say against the run, in one line."""
    found = SourceAccuracy.of(labels, predictions, n_classes)
    if found is None or found.rows < FEW_ROWS:
        return None
    permuted = better_permutation(labels, predictions, n_classes)
    if permuted is None:
        return found.doubt
    return (
        f"the classifier gets {found.share:.1%} of the source right, and a permutation of the "
        f"labels would give {permuted:.0%}: class order? name the classes in the model's "
        "order with --classes"
    )


def better_permutation(labels: Labels, predictions: Labels, n_classes: int) -> float | None:
    """Return the accuracy under another order of the classes, if it is far better.

    The permutation is found on every other row and judged on the rest, because with many classes
    and few rows some permutation always fits the rows that it was found on. What counts as far
    better is 0.2 and four standard deviations of the two shares.
    """
    held_out = slice(1, None, 2)
    judged = len(labels[held_out])
    if judged < FEW_ROWS:
        return None
    found = greedy_permutation(labels[::2], predictions[::2], n_classes)
    right = float((labels[held_out] == predictions[held_out]).mean())
    permuted = float((found[labels[held_out]] == predictions[held_out]).mean())
    noise = np.sqrt((permuted * (1 - permuted) + right * (1 - right)) / judged)
    return permuted if permuted - right >= max(_BETTER, _BETTER_DEVIATIONS * noise) else None


def greedy_permutation(labels: Labels, predictions: Labels, n_classes: int) -> Labels:
    """Return the class that each label stands for, shape (K,): the most frequent pair first.

    That is never better than the best one-to-one matching, so what it reaches can be reached; and
    it is the best one wherever most rows of a class go to one and the same other class, which is
    what a wrong order looks like. A label without rows keeps its own class where that is free, and
    takes the lowest free one where not.
    """
    pairs, counts = np.unique(labels * n_classes + predictions, return_counts=True)
    matched = np.full(n_classes, -1, dtype=np.int64)
    taken = np.zeros(n_classes, dtype=bool)
    for pair in pairs[np.argsort(-counts, kind="stable")]:
        label, predicted = divmod(int(pair), n_classes)
        if matched[label] < 0 and not taken[predicted]:
            matched[label] = predicted
            taken[predicted] = True
    own = np.flatnonzero((matched < 0) & ~taken)
    matched[own] = own
    taken[own] = True
    matched[matched < 0] = np.flatnonzero(~taken)
    return matched


def is_one_place(source: Path, target: Path) -> bool:
    """Return whether two paths lead to the same file or folder, through links too."""
    return source.exists() and target.exists() and source.samefile(target)


def doubt_on_place(source: Path | None, target: Path | None) -> str | None:
    """Return a warning if one place is given as both domains."""
    if source is None or target is None or not is_one_place(source, target):
        return None
    return f"{target} is the source and the target: {_SHOWS_NOTHING}; else give other data"


def doubt_on_rows(file: Any, paths: Mapping[str, Path]) -> str | None:
    """Return what the rows of both domains say against how they were given, in one line.

    `file` is the features file, with every row written; the data of each domain lie in `paths`.
    """
    source, target = file["source"], file["target"]
    if _are_same(source, target):
        return (
            f"{paths['target']} holds the very rows of {paths['source']} (equal ids, features and "
            f"logits): {_SHOWS_NOTHING}; else give other data"
        )
    ours, theirs = _confidences(source["logits"]), _confidences(target["logits"])
    if min(len(ours), len(theirs)) < FEW_ROWS:
        return None
    gain = float(theirs.mean() - ours.mean())
    noise = math.sqrt(ours.var() / len(ours) + theirs.var() / len(theirs))
    if gain < _SURER or gain <= _SURER_DEVIATIONS * noise:
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


def _confidences(logits: Any) -> Float64s:
    exact = _some(logits).astype(np.float64)
    exact -= exact.max(axis=1, keepdims=True, initial=-math.inf)
    found: Float64s = 1 / np.exp(exact).sum(axis=1)
    return found


def _some(dataset: Any) -> AnyArray:
    step = max(1, -(-len(dataset) // _ROWS))
    values: AnyArray = dataset[::step]
    return values
