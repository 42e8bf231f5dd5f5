"""The small classifiers of the benchmark, trained on a source's training rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import choose_adapt_settings as made
import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

Values = made.Values
TREES = "trees"
# The widths of hidden layers, the last of which is phi; none for a linear classifier, whose phi is
# its input; or trees, which have logits and no phi.
Classifier = tuple[int, ...] | str
Maker = Callable[[int], made.Shift]  # of a seed, which most do not need
Part = tuple[Any, Values]  # inputs (n, d), dense or sparse, and labels (n,)


@dataclass(frozen=True)
class Pair:
    """Labelled rows of two domains, and how they are split: 0 train, 1 validation, 2 test."""

    source: Part
    target: Part
    source_split: Values
    target_split: Values


def split_pair(source: Part, target: Part, *, paired: bool = False) -> Pair:
    """Split the rows of both domains 60 : 20 : 20 by a fixed draw.

    `paired` rows are the same in another form, so that a row's split is the same in both.
    """
    seeds = (0, 0) if paired else (0, 1)
    splits = [
        made._split(len(y), seed) for (_, y), seed in zip((source, target), seeds, strict=True)
    ]
    return Pair(source, target, *splits)


def classified(family: str, name: str, pair: Pair, classifier: Classifier) -> made.Shift:
    """Return a shift as a classifier sees it that was trained on the source's training rows.

    Classes without a training row are left out of both domains.
    """
    known = np.unique(pair.source[1][pair.source_split == 0])
    sides, splits = [], []
    for (inputs, labels), split in (
        (pair.source, pair.source_split),
        (pair.target, pair.target_split),
    ):
        kept = np.flatnonzero(np.isin(labels, known))
        sides.append((inputs[kept], np.searchsorted(known, labels[kept])))
        splits.append(split[kept])
    if isinstance(classifier, str):
        return _from_trees(family, name, sides, splits)
    return made._from_network(family, name, sides, splits, classifier)


def without_features(shift: made.Shift) -> made.Shift:
    """Return a shift of which only the logits are known."""
    source, target = (replace(side, features=None) for side in (shift.source, shift.target))
    return replace(shift, source=source, target=target)


def _from_trees(
    family: str, name: str, sides: Sequence[Part], splits: Sequence[Values]
) -> made.Shift:
    inputs, labels = sides[0]
    trained = splits[0] == 0
    trees = HistGradientBoostingClassifier(max_iter=60, random_state=0)
    trees.fit(inputs[trained], labels[trained])

    def side(rows: Any, truth: Values, split: Values) -> made.Side:
        logits = trees.decision_function(rows)
        if logits.ndim == 1:
            logits = np.stack([np.zeros_like(logits), logits], axis=1)
        return made.Side(None, logits.astype(np.float32), truth, split)

    return made.Shift(
        family, name, *(side(*rows, split) for rows, split in zip(sides, splits, strict=True))
    )


def fixed(make: Callable[..., made.Shift], *given: object, **named: object) -> Maker:
    """Return a maker that gives the same rows for every seed."""
    return partial(_made, make, given, named)


def _made(
    make: Callable[..., made.Shift],
    given: tuple[object, ...],
    named: Mapping[str, object],
    seed: int,
) -> made.Shift:
    del seed
    return make(*given, **named)
