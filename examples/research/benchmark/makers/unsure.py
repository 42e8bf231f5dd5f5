"""Train under-confident classifiers: forests, nearest neighbours, smoothed labels, ridge."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from choose_adapt_settings import Values
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier

TREES = "trees"  # boosted trees, which are not under-confident
FOREST, NEIGHBOURS, SMOOTHED, RIDGE = "forest", "neighbours", "smoothed", "ridge"
UNSURE = (FOREST, NEIGHBOURS, SMOOTHED, RIDGE)
# A function that returns the features of rows (or None) and their logits.
Model = Callable[[Any], tuple[Values | None, Values]]
_SMALLEST = 1e-4  # smallest probability
_COPIES = 5  # Number of copies of each row.


def trained_model(classifier: str, inputs: Any, labels: Values) -> Model:
    """Train a classifier, and return a function that computes features and logits of rows.

    Parameters
    ----------
    classifier : {'trees', 'forest', 'neighbours', 'smoothed', 'ridge'}
    inputs : array (n, d)
    labels : array (n,)
        Classes 0 to K - 1. Every class has at least one row.
    """
    if classifier == SMOOTHED:
        return _smoothed_network(inputs, labels)
    if classifier == RIDGE:
        return _ridge(inputs, labels)
    if classifier == TREES:
        trees = HistGradientBoostingClassifier(max_iter=60, random_state=0)
        trees.fit(inputs, labels)
        return lambda rows: (None, _columns(trees.decision_function(rows)))
    probabilistic = (
        RandomForestClassifier(100, min_samples_leaf=10, random_state=0)
        if classifier == FOREST
        else KNeighborsClassifier(30)
    )
    probabilistic.fit(inputs, labels)
    return lambda rows: (None, np.log(np.maximum(probabilistic.predict_proba(rows), _SMALLEST)))


def _smoothed_network(inputs: Any, labels: Values) -> Model:
    """Train a network with smoothed labels.

    Each row has five copies, of which one has a random label. On average, a fifth of the label's
    probability is spread over all classes.
    """
    rng = np.random.default_rng(0)
    random = rng.integers(labels.max() + 1, size=len(labels))
    network = MLPClassifier((64,), random_state=0, max_iter=30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(
            np.concatenate([inputs] * _COPIES),
            np.concatenate([labels] * (_COPIES - 1) + [random]),
        )
    (first, last), (first_bias, last_bias) = network.coefs_, network.intercepts_

    def outputs(rows: Any) -> tuple[Values, Values]:
        hidden = np.maximum(rows @ first + first_bias, 0)
        return hidden, _columns(hidden @ last + last_bias)

    return outputs


def _ridge(inputs: Any, labels: Values) -> Model:
    linear = LogisticRegression(C=3.0 / len(labels), max_iter=300)
    scale = inputs.std()
    linear.fit(inputs / scale, labels)
    return lambda rows: (rows, _columns(linear.decision_function(rows / scale)))


def _columns(scores: Values) -> Values:
    """Return logits with a column for each class; scikit-learn has one column for two classes."""
    if scores.ndim == 2 and scores.shape[1] > 1:
        return scores
    scores = scores.reshape(-1)
    return np.stack([np.zeros_like(scores), scores], axis=1)
