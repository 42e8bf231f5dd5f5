"""Check numerically that the right last layer was found, in a model of any library.

Three checks:

- phi W^T + b gives the logits (`Proof`).
- The model's output is the logits, their softmax, log-softmax or sigmoids, or the index of the
  highest logit (`tail_error`). The function from the logits to the output is called the tail.
- Reading phi and the logits does not change the output of the model (`relative_error`).
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from covcal_cli.arrays import AnyArray, Float64s, Floats
from covcal_cli.maths.odds import sigmoid
from covcal_cli.maths.softmax import DEPTH, masked

TAILS = ("none", "softmax", "log_softmax", "sigmoid")
# the tail if the model's output is class numbers, shape (m,) or (m, 1)
ARGMAX = "argmax"
TAIL_TEXT = {
    "none": "logits",
    "softmax": "softmax(logits)",
    "log_softmax": "log_softmax(logits)",
    "sigmoid": "sigmoid(logits)",
    ARGMAX: "argmax(logits)",
}
# The largest error that rounding causes, divided by the largest number in the batch. Half precision
# has eleven bits, and sums of many products are less precise.
_TOLERANCE = {np.dtype(np.float64): 1e-5, np.dtype(np.float32): 1e-5, np.dtype(np.float16): 5e-3}
FAR = 1 << 12  # With this offset, logits keep only half of the digits of float32.
# Largest matrix product that OpenBLAS computes in one thread: rows times features times classes.
# More threads doubled the processor time of `extract`, because they wait actively.
_PRODUCT = 1 << 18
_FEWEST_ROWS = 8  # threads are faster if fewer rows fit
ONE_NUMBER = (
    "the model gives one number per row. covcal uses it as the logit of the second of two "
    "classes; the logit of the first class is 0"
)
SIGMOIDS = (
    "the model's output is one sigmoid per class. covcal uses the softmax of the same logits, so "
    "the confidences of method none differ from the model's"
)
_LABELS_ONLY = (
    "the model returns only a label, so covcal computes the confidences as the softmax "
    "of the model's logits"
)
Number = TypeVar("Number", bound=np.generic)


def tolerance(dtype: np.dtype[np.generic]) -> float:
    """Return the relative error that rounding in a type can cause: 5e-3 for float16, else 1e-5."""
    return _TOLERANCE.get(dtype, _TOLERANCE[np.dtype(np.float32)])


def rounding(logits: Floats) -> float:
    """Return the rounding error of the largest logit in float32; masked classes are left out."""
    return float(np.finfo(np.float32).eps) * difference(logits, logits)[1]


def relative_error(values: Floats, expected: Floats) -> float:
    """Return the largest difference divided by the largest expected value, or infinity."""
    worst, largest = difference(values, expected)
    return worst / largest if largest > 0 else worst


def difference(values: Floats, expected: Floats) -> tuple[float, float]:
    """Return max ``|values - expected|`` and max ``|expected|``, without masked classes.

    If the shapes differ, the first result is infinite. Equal infinities count as equal. A logit of
    -3.4e38 masks a class. The error of a mask is relative to the mask. Other errors are relative to
    the largest unmasked logit. A mask of -inf must be -inf in both arrays.
    """
    if values.shape != expected.shape:
        return float("inf"), 0.0
    if values.size == 0:
        return 0.0, 0.0
    low, high = float(expected.min()), float(expected.max())
    # No logit is a mask, and no logit is infinite.
    if high - low <= DEPTH:
        if values is expected:
            return 0.0, max(high, -low)
        gaps = np.subtract(values, expected, dtype=np.float64)
        return float(np.abs(gaps, out=gaps).max()), max(high, -low)
    b = expected.reshape(len(expected), -1).astype(np.float64, copy=False)
    a = b if values is expected else values.reshape(b.shape).astype(np.float64, copy=False)
    out, sizes = masked(b), np.abs(b)
    with np.errstate(invalid="ignore"):
        differences = np.where(a == b, 0.0, np.abs(a - b))
    worst, largest = float(differences[~out].max(initial=0)), float(sizes[~out].max(initial=0))
    if differences[out].any():
        off = differences[out] / np.where(np.isfinite(sizes[out]), sizes[out], 1.0)
        worst = max(worst, float(off.max()) * max(largest, 1.0))
    return worst, largest


def affine(features: Floats, weight: Floats, bias: Floats) -> Float64s:
    """Return phi W^T + b in float64, shape (m, K); phi is (m, d), W is (K, d) and b is (K,)."""
    exact = weight.astype(np.float64, copy=False)
    size = _PRODUCT // max(1, weight.size)
    if size < _FEWEST_ROWS:
        size = max(1, len(features))
    # With the classes first, the product takes a third less time.
    logits = np.empty((len(weight), len(features)))
    for start in range(0, len(features), size):
        part = slice(start, start + size)
        np.matmul(exact, features[part].astype(np.float64).T, out=logits[:, part])
    rows: Float64s = logits.T
    rows += bias
    return rows


@dataclass
class Proof:
    """The largest error of the last layer, and the largest logit, on all batches so far.

    Both are stored, so that shards can be merged.
    """

    # The largest |phi W^T + b - logits|, with three significant digits. Further digits would depend
    # on the batch size.
    largest_difference: float = 0.0
    largest_logit: float = 0.0  # The largest |logit|, without masked classes.
    remarks: tuple[str, ...] = ()  # Notes about single batches.

    @property
    def error(self) -> float:
        """The largest error divided by the largest logit."""
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
        """Compare phi W^T + b with the logits of a batch, and add the batch.

        Return None, or the relative error if it is too large. `limit` is the largest allowed error,
        relative to the largest logit or bias so far. `step` is an additional allowed error for
        quantised logits.
        """
        worst, largest = difference(affine(features, weight, bias), logits)
        largest = max(self.largest_logit, largest)
        if not worst <= limit * largest + step:
            # Small logits may be the difference of large, rounded numbers.
            offsets = bias[~masked(logits).all(axis=0)]
            scale = max(largest, float(np.abs(offsets).max(initial=0)))
            if not worst <= limit * scale + step:
                return worst / scale if scale > 0 else worst
        self.largest_difference = max(self.largest_difference, float(f"{worst:.2e}"))
        self.largest_logit = largest
        are_stored = (
            features.dtype == logits.dtype == np.float32
            and bool((np.abs(bias) <= FAR).all())
            and all(np.array_equal(part, part.astype(np.float32)) for part in (weight, bias))
        )
        self.latest_difference = worst if are_stored else None
        return None


def tail_error(tail: str, logits: Floats, output: AnyArray) -> float:
    """Return the relative error of the model's output, compared with `tail` of the logits, (m, K).

    The output has shape (m, K), or (m, 1) for class numbers (`ARGMAX`). If the logits come from
    `two_logits`, an output z or sigmoid(z) also has shape (m, 1).
    """
    z = logits.astype(np.float64)
    are_two_logits = z.shape[1:] == (2,) and not z[:, 0].any()
    if tail in ("none", "sigmoid") and output.shape[1:] == (1,) and are_two_logits:
        z = z[:, 1:]
    if tail == ARGMAX:
        chosen = output.reshape(-1).astype(np.int64)
        if len(chosen) != len(z) or (chosen < 0).any() or (chosen >= z.shape[1]).any():
            return float("inf")
        return relative_error(z[np.arange(len(z)), chosen], z.max(axis=1))
    if tail == "sigmoid":
        z = sigmoid(z)
    elif tail != "none":
        with np.errstate(invalid="ignore"):  # a row may hold infinite logits
            z -= z.max(axis=1, keepdims=True)
        total = np.exp(z).sum(axis=1, keepdims=True)
        z = np.exp(z) / total if tail == "softmax" else z - np.log(total)
    return relative_error(output.astype(np.float64), z)


def two_logits(scores: NDArray[Number]) -> NDArray[Number]:
    """Return the logits 0 and z, shape (m, 2), for one number z per row, shape (m, 1)."""
    return np.concatenate([np.zeros_like(scores), scores], axis=1)


def notes_on_tail(tail: str, *, is_single: bool) -> tuple[str, ...]:
    """Return notes on a tail; `is_single` means a single output for two classes."""
    if tail == "sigmoid" and not is_single:
        return (SIGMOIDS,)
    return (_LABELS_ONLY,) if tail == ARGMAX else ()
