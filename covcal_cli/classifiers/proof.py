"""The numerical proof that the right layer was found: nothing here knows of graphs or frameworks.

1. phi W^T + b gives the logits (`Proof`, which grows with every batch).
2. The model's output is the logits, their softmax, log-softmax or sigmoids, or the largest's index
   (`tail_error`).
3. The model with the two tensors exposed gives the same output as the unmodified one
   (`relative_error`).
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from covcal_cli.arrays import AnyArray, Float64s, Floats
from covcal_cli.maths.masks import masked
from covcal_cli.maths.odds import sigmoid

TAILS = ("none", "softmax", "log_softmax", "sigmoid")
ARGMAX = "argmax"  # its output has another shape, so it is tried where the output holds integers
TAIL_TEXT = {
    "none": "logits",
    "softmax": "softmax(logits)",
    "log_softmax": "log_softmax(logits)",
    "sigmoid": "sigmoid(logits)",
    ARGMAX: "argmax(logits)",
}
# Relative to the largest magnitude in the batch. Half precision keeps eleven bits, and sums of
# hundreds of products lose some of them.
_TOLERANCE = {np.dtype(np.float64): 1e-5, np.dtype(np.float32): 1e-5, np.dtype(np.float16): 5e-3}
ONE_NUMBER = (
    "the model gives one number per row, read as the logit z of the second of two classes: the "
    "logits are 0 and z"
)
_SIGMOIDS = (
    "the model prints a sigmoid per class, so its confidences are not those of method none, which "
    "are the softmax of the same logits"
)
_LABELS_ONLY = "the model prints labels alone; confidences are the softmax of its logits"
Number = TypeVar("Number", bound=np.generic)


def tolerance(dtype: np.dtype[np.generic]) -> float:
    """Return the relative error that rounding in `dtype` explains: 1e-5, for float16 5e-3."""
    return _TOLERANCE.get(dtype, _TOLERANCE[np.dtype(np.float32)])


def rounding(logits: Floats) -> float:
    """Return by how much float32 may have rounded the largest logits, masked classes apart."""
    return float(np.finfo(np.float32).eps) * held(logits, logits)[1]


def largest_difference(found: Floats, expected: Floats) -> float:
    """Return max ``|found - expected|``, compared in float64; infinite where shapes differ.

    Equal infinities (the log of a vanished probability) count as equal.
    """
    if found.shape != expected.shape:
        return float("inf")
    if found.size == 0 or np.array_equal(found, expected):
        return 0.0
    a, b = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return float(np.where(a == b, 0.0, np.abs(a - b)).max())


def relative_error(found: Floats, expected: Floats) -> float:
    """Return max ``|found - expected|`` over max ``|expected|``, masks apart as in `held`.

    Infinite where shapes differ.
    """
    worst, largest = held(found, expected)
    return worst / largest if largest > 0 else worst


def held(found: Floats, expected: Floats) -> tuple[float, float]:
    """Return max ``|found - expected|`` and max ``|expected|``, masked classes apart.

    Beside a mask of 3.4e38 everything would be equal. A mask is held to its own size instead: the
    part that it is off by counts as the same part of the largest other value, and -inf must be
    -inf.
    """
    if found.shape != expected.shape or found.size == 0:
        return largest_difference(found, expected), 0.0
    a, b = (values.reshape(len(values), -1).astype(np.float64) for values in (found, expected))
    out, sizes = masked(b), np.abs(b)
    with np.errstate(invalid="ignore"):
        differences = np.where(a == b, 0.0, np.abs(a - b))
    worst, largest = float(differences[~out].max(initial=0)), float(sizes[~out].max(initial=0))
    if differences[out].any():
        off = differences[out] / np.where(np.isfinite(sizes[out]), sizes[out], 1.0)
        worst = max(worst, float(off.max()) * max(largest, 1.0))
    return worst, largest


def affine(features: Floats, weight: Floats, bias: Floats) -> Float64s:
    """Return phi W^T + b in float64, (m, K), of phi (m, d), W (K, d) and b (K,)."""
    result: Float64s = features.astype(np.float64) @ weight.astype(np.float64).T + bias
    return result


@dataclass
class Proof:
    """What all batches so far have shown of a classifier; it grows with every batch.

    The two numbers are kept apart so that they can be merged over shards of the rows: the largest
    of each, and their ratio afterwards, whatever the batches were.
    """

    # Largest |phi W^T + b - logits|. Three significant digits: the others depend on how many rows
    # were multiplied at once.
    largest_difference: float = 0.0
    largest_logit: float = 0.0  # largest |logit|, masked classes apart
    remarks: tuple[str, ...] = ()  # what a user should know that some batch was the first to show

    @property
    def error(self) -> float:
        """The ratio of the two numbers."""
        if self.largest_logit > 0:
            return self.largest_difference / self.largest_logit
        return self.largest_difference

    def add(
        self,
        features: Floats,
        weight: Floats,
        bias: Floats,
        logits: Floats,
        limit: float,
        step: float,
    ) -> float | None:
        """Hold a batch to phi W^T + b; return the relative error where it is too large.

        The batch is then not counted. `limit` is the largest error allowed, relative to the largest
        logit or bias seen, and `step` what quantised logits may be off beyond that: the distance
        between two of them.
        """
        difference, largest = held(affine(features, weight, bias), logits)
        largest = max(self.largest_logit, largest)
        # Logits near zero may be the difference of large numbers, each rounded.
        offsets = bias[~masked(logits).all(axis=0)]
        scale = max(largest, float(np.abs(offsets).max(initial=0)))
        if not difference <= limit * scale + step:
            return difference / scale if scale > 0 else difference
        self.largest_difference = max(self.largest_difference, float(f"{difference:.2e}"))
        self.largest_logit = largest
        return None


def recognise_tail(logits: Floats, output: Floats, limit: float) -> str | None:
    """Return which of `TAILS` makes the output of the logits, both (m, K); None if none does."""
    return next((tail for tail in TAILS if tail_error(tail, logits, output) <= limit), None)


def tail_error(tail: str, logits: Floats, output: AnyArray) -> float:
    """Return the relative error of the model's output against `tail` of the logits, (m, K).

    The output is (m, K), too; (m, 1) where it holds labels for `ARGMAX`, or z or its sigmoid where
    the logits are those of `two_logits`.
    """
    z = logits.astype(np.float64)
    if tail in ("none", "sigmoid") and output.shape[1:] == (1,) and _has_two_logits(z):
        z = z[:, 1:]
    if tail == ARGMAX:
        return _argmax_error(z, output)
    if tail == "sigmoid":
        z = sigmoid(z)
    elif tail != "none":
        with np.errstate(invalid="ignore"):  # of rows that are no logits
            z -= z.max(axis=1, keepdims=True)
        total = np.exp(z).sum(axis=1, keepdims=True)
        z = np.exp(z) / total if tail == "softmax" else z - np.log(total)
    return relative_error(output.astype(np.float64), z)


def two_logits(scores: NDArray[Number]) -> NDArray[Number]:
    """Return the logits 0 and z of two classes, shape (m, 2), of single numbers z, shape (m, 1).

    The softmax of the two is the sigmoid of z, which makes z the logit of the second class.
    """
    return np.concatenate([np.zeros_like(scores), scores], axis=1)


def notes_on_tail(tail: str, *, is_single: bool) -> tuple[str, ...]:
    """Return what follows from a tail; `is_single`: one number per row stands for two classes."""
    if tail == "sigmoid" and not is_single:
        return (_SIGMOIDS,)
    return (_LABELS_ONLY,) if tail == ARGMAX else ()


def _has_two_logits(z: Float64s) -> bool:
    return z.shape[1:] == (2,) and not z[:, 0].any()


def _argmax_error(z: Float64s, output: AnyArray) -> float:
    """Return by how much the largest logit exceeds the one that the model chose, relatively."""
    chosen = output.reshape(-1).astype(np.int64)
    if len(chosen) != len(z) or (chosen < 0).any() or (chosen >= z.shape[1]).any():
        return float("inf")
    return relative_error(z[np.arange(len(z)), chosen], z.max(axis=1))
