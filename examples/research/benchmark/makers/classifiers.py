"""Train the small classifiers of the benchmark on source rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import choose_adapt_settings as builders
import numpy as np

from benchmark.makers.unsure import TREES as TREES
from benchmark.makers.unsure import trained_model

Values = builders.Values
# A tuple has the widths of the hidden layers. The features are the output of the last hidden layer.
# An empty tuple means a linear classifier, whose features are its inputs. A string is the name of a
# classifier in `makers/unsure.py`.
Classifier = tuple[int, ...] | str
Maker = Callable[[int], builders.Shift]  # A function of a seed that makes a shift.
Part = tuple[Any, Values]  # Inputs (n, d), dense or sparse, and labels (n,).


@dataclass(frozen=True)
class Pair:
    """Labelled rows of two domains with their splits: 0 train, 1 validation, 2 test."""

    source: Part
    target: Part
    source_split: Values
    target_split: Values


def split_pair(source: Part, target: Part, *, paired: bool = False) -> Pair:
    """Return both domains with their rows split 60 : 20 : 20 by a fixed draw.

    If the domains are `paired`, row i of both domains shows the same object, and has the same
    split.
    """
    seeds = (0, 0) if paired else (0, 1)
    splits = [
        builders._split(len(y), seed) for (_, y), seed in zip((source, target), seeds, strict=True)
    ]
    return Pair(source, target, *splits)


def classified(family: str, name: str, pair: Pair, classifier: Classifier) -> builders.Shift:
    """Train a classifier on source training rows, and return both domains with the logits.

    Classes without a training row are removed from both domains.
    """
    classes = np.unique(pair.source[1][pair.source_split == 0])
    sides, splits = [], []
    for (inputs, labels), split in (
        (pair.source, pair.source_split),
        (pair.target, pair.target_split),
    ):
        rows = np.flatnonzero(np.isin(labels, classes))
        sides.append((inputs[rows], np.searchsorted(classes, labels[rows])))
        splits.append(split[rows])
    if isinstance(classifier, str):
        return _named(family, name, sides, splits, classifier)
    return builders._from_network(family, name, sides, splits, classifier)


def without_features(shift: builders.Shift) -> builders.Shift:
    """Return a copy of the shift without features."""
    source, target = (replace(side, features=None) for side in (shift.source, shift.target))
    return replace(shift, source=source, target=target)


def _named(
    family: str,
    name: str,
    sides: Sequence[Part],
    splits: Sequence[Values],
    classifier: str,
) -> builders.Shift:
    inputs, labels = sides[0]
    train = splits[0] == 0
    model = trained_model(classifier, inputs[train], labels[train])

    def side(rows: Any, truth: Values, split: Values) -> builders.Side:
        features, logits = model(rows)
        if features is not None:
            features = np.asarray(features, np.float32)
        return builders.Side(features, np.asarray(logits, np.float32), truth, split)

    return builders.Shift(
        family, name, *(side(*rows, split) for rows, split in zip(sides, splits, strict=True))
    )


def fixed(make: Callable[..., builders.Shift], *args: object, **kwargs: object) -> Maker:
    """Return a maker that makes the same rows for every seed."""
    return partial(_without_seed, make, args, kwargs)


def _without_seed(
    make: Callable[..., builders.Shift],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    seed: int,
) -> builders.Shift:
    del seed
    return make(*args, **kwargs)
