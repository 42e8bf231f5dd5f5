"""What a domain's logits say about a run: accuracy, confidence, the proof, and what to doubt."""

import math

import numpy as np
from numpy.typing import NDArray

from covcal_cli.extract.relabelling import better_permutation
from covcal_cli.featurefile import UNKNOWN_LABEL

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]

_SATURATED = 0.999
_FEW_ROWS = 50  # what holds for fewer may be luck


class OutputStatistics:
    """Counts over the rows of one domain, fed in order.

    Parameters
    ----------
    n, n_classes : int
        Rows to come, and K.
    weight, bias : array of float32, shapes (K, d) and (K,), or None
        The last linear layer, where there is one.

    Attributes
    ----------
    predictions : array of int64, shape (n,)
        The classifier's labels of the rows so far.
    affine_difference : float
        Largest ``|phi W^T + b - logits|``; 0 without a linear layer.
    largest_logit : float
        Largest ``|logit|``.
    """

    def __init__(
        self, n: int, n_classes: int, weight: Floats | None = None, bias: Floats | None = None
    ) -> None:
        self.predictions = np.empty(n, dtype=np.int64)
        self.affine_difference = self.largest_logit = 0.0
        self._n_classes = n_classes
        self._seen = 0
        self._least_confident = 1.0
        self._head = None
        if weight is not None and bias is not None:
            self._head = weight.astype(np.float64).T, bias.astype(np.float64)

    def add(self, features: Floats | None, logits: Floats) -> None:
        """Count the next rows."""
        stop = self._seen + len(logits)
        self.predictions[self._seen : stop] = logits.argmax(axis=1)
        self._seen = stop
        exact = logits.astype(np.float64)
        self.largest_logit = max(self.largest_logit, float(np.abs(exact).max(initial=0)))
        if self._head is not None and features is not None:
            weight, bias = self._head
            difference = np.abs(features.astype(np.float64) @ weight + bias - exact)
            self.affine_difference = max(self.affine_difference, float(difference.max(initial=0)))
        exact -= exact.max(axis=1, keepdims=True)
        confidence = 1 / np.exp(exact).sum(axis=1)
        self._least_confident = float(confidence.min(initial=self._least_confident))

    def saturated(self) -> str | None:
        """Return a doubt if no row leaves the classifier in any; None otherwise."""
        if self._seen < _FEW_ROWS or self._least_confident <= _SATURATED:
            return None
        return f"exceeds {_SATURATED}"

    def accuracy(self, labels: Labels) -> float | None:
        """Return the share of the labelled rows that the classifier gets right; None without any.

        Parameters
        ----------
        labels : array of int64, shape (n,)
            -1 where unknown.
        """
        known = labels != UNKNOWN_LABEL
        return float((self.predictions == labels)[known].mean()) if known.any() else None

    def doubt(self, labels: Labels) -> str | None:
        """Return what the labels of the source say against the run, in one line.

        Chance is the share of hits to be expected if the predictions were shuffled, plus two
        standard deviations.
        """
        known = labels != UNKNOWN_LABEL
        right, predicted = labels[known], self.predictions[known]
        n = len(right)
        if n < _FEW_ROWS:
            return None
        accuracy = float((right == predicted).mean())
        permuted = better_permutation(right, predicted, self._n_classes)
        if permuted is not None:
            return (
                f"the classifier gets {accuracy:.1%} of the source right, and a permutation of the "
                f"labels would give {permuted:.0%}: class order? name the classes in the model's "
                "order with --classes"
            )
        counts = [np.bincount(values, minlength=self._n_classes) for values in (right, predicted)]
        expected = float(counts[0] @ counts[1]) / n**2
        if accuracy > expected + 2 * math.sqrt(expected * (1 - expected) / n):
            return None
        return (
            f"the classifier gets {accuracy:.1%} of the source right, no better than guessing: "
            "check the preprocessing and the order of the classes"
        )


def significant(value: float) -> float:
    """Round to three significant digits, which rounding in another order does not reach."""
    return float(f"{value:.2e}")
