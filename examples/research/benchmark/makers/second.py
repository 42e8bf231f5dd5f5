"""Train a second classifier of another kind on the rows of the first classifier.

A maker makes the rows of a shift, and trains the first classifier. This module stops the maker
before the first classifier is trained, and trains a second classifier on the same rows.
"""

import warnings
from dataclasses import dataclass
from unittest.mock import patch

import choose_adapt_settings as builders
import numpy as np
from scipy import sparse
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.naive_bayes import MultinomialNB
from sklearn.neural_network import MLPClassifier

from benchmark.makers import classifiers
from benchmark.makers.classifiers import Maker, Values
from benchmark.makers.unsure import FOREST, NEIGHBOURS, TREES

_TEXT_FAMILIES = ("messages", "pets", "many-classes", "many-names")
_MOST_COLUMNS, _MOST_CLASSES = 40, 50  # Maximum numbers of columns and classes for boosted trees.
_SMALLEST = 1e-4  # smallest probability


@dataclass(frozen=True)
class SecondSide:
    """Outputs of the second classifier on one domain, in the row order of the features file."""

    logits: Values  # log probabilities, shape (n, K)
    labels: Values


class _Stopped(Exception):  # noqa: N818 (not an error)
    """Raised instead of training the first classifier. The arguments are the rows of the shift."""


def _stop(*training: object) -> None:
    raise _Stopped(*training)


def second_kind(family: str, inputs: Values, classes: int, classifier: object) -> str:
    """Choose the kind of the second classifier by the inputs and the first classifier.

    | rows or first classifier | second classifier |
    |---|---|
    | counts of texts | naive Bayes |
    | trees, forest or nearest neighbours | network |
    | short rows of tables | boosted trees |
    | pixels and other long rows | forest |
    """
    is_text = sparse.issparse(inputs) or family in _TEXT_FAMILIES
    if is_text and inputs.shape[1] > _MOST_COLUMNS:
        return "bayes"
    if classifier in (TREES, FOREST, NEIGHBOURS):
        return "network"
    few = inputs.shape[1] <= _MOST_COLUMNS and classes <= _MOST_CLASSES
    return "trees" if few else "forest"


def second_sides(make: Maker, seed: int = 0) -> tuple[str, tuple[SecondSide, SecondSide]]:
    """Train the second classifier of a shift. Return the classifier's kind and its outputs."""
    with (
        patch.object(builders, "_from_network", _stop),
        patch.object(classifiers, "_named", _stop),
    ):
        try:
            make(seed)
        except _Stopped as stopped:
            family, _, sides, splits, classifier = stopped.args
        else:
            raise ValueError(
                "this shift has a published classifier, so there are no rows to train a "
                "second classifier on"
            )
    inputs, labels = sides[0]
    known, numbers = np.unique(labels, return_inverse=True)
    kind = second_kind(family, inputs, len(known), classifier)
    model = {
        "bayes": lambda: MultinomialNB(alpha=0.1),
        "network": lambda: MLPClassifier((64,), random_state=0, max_iter=60),
        "trees": lambda: HistGradientBoostingClassifier(max_iter=60, random_state=0),
        "forest": lambda: RandomForestClassifier(200, random_state=0),
    }[kind]()
    train = splits[0] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(inputs[train], numbers[train])
    source, target = (
        SecondSide(
            np.log(np.maximum(model.predict_proba(rows), _SMALLEST)), np.searchsorted(known, truth)
        )
        for rows, truth in sides
    )
    return kind, (source, target)
