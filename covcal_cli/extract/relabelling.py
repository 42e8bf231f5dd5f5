"""Whether the labels are in another order than the classes, so that a permutation is better.

The permutation is found on every other labelled row and judged on the rest, because with many
classes and few rows some permutation always fits the rows that it was found on. Pairs of classes
are matched greedily, the most frequent first. That is never better than the best one-to-one
matching, so what it reaches can be reached; and it is the best one wherever most rows of a class
go to one and the same other class, which is what a wrong order looks like.
"""

import numpy as np
from numpy.typing import NDArray

_FEW_ROWS = 50
_MIN_GAIN = 0.2
_DEVIATIONS = 4


def better_permutation(
    labels: NDArray[np.int64], predictions: NDArray[np.int64], n_classes: int
) -> float | None:
    """Return the accuracy under another order of the classes, if it is far better.

    Parameters
    ----------
    labels, predictions : array of int64, shape (n,)
        Class indices; every label is known.
    n_classes : int
        K.

    Returns
    -------
    float or None
        Share of held-out rows that the permuted labels get right, at least 0.2 and four standard
        deviations above the accuracy as it is; None where there is no such permutation, or there
        are too few rows to tell.
    """
    held_out = slice(1, None, 2)
    judged = len(labels[held_out])
    if judged < _FEW_ROWS:
        return None
    found = greedy_permutation(labels[::2], predictions[::2], n_classes)
    right = float((labels[held_out] == predictions[held_out]).mean())
    permuted = float((found[labels[held_out]] == predictions[held_out]).mean())
    noise = np.sqrt((permuted * (1 - permuted) + right * (1 - right)) / judged)
    return permuted if permuted - right >= max(_MIN_GAIN, _DEVIATIONS * noise) else None


def greedy_permutation(
    labels: NDArray[np.int64], predictions: NDArray[np.int64], n_classes: int
) -> NDArray[np.int64]:
    """Match each label with a class of its own, the most frequent pair first.

    Returns
    -------
    array of int64, shape (K,)
        The class that each label stands for; a label without rows keeps its own class where that is
        free, and takes the lowest free one where not.
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
