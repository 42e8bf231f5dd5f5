"""Check numerically that covcal found the correct last layer.

Three checks:

- phi W^T + b equals the logits (`Proof`).
- The output is the logits, their softmax, log-softmax or sigmoids, or the index of the highest
  logit (`tail_error`). The function from the logits to the output is called the tail.
- Reading inner tensors does not change the output of the model (`relative_error`).
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from covcal_cli.arrays import AnyArray, Float64s, Floats
from covcal_cli.maths.odds import sigmoid
from covcal_cli.maths.softmax import DEPTH, masked

TAILS = ("none", "softmax", "log_softmax", "sigmoid")
ARGMAX = "argmax"  # The output is class numbers, shape (m,) or (m, 1).
TAIL_TEXT = {
    "none": "logits",
    "softmax": "softmax(logits)",
    "log_softmax": "log_softmax(logits)",
    "sigmoid": "sigmoid(logits)",
    ARGMAX: "argmax(logits)",
}
# Maximum rounding error, relative to the largest number in the batch. float16 has eleven bits, and
# sums of many products are less precise.
_TOLERANCE = {np.dtype(np.float64): 1e-5, np.dtype(np.float32): 1e-5, np.dtype(np.float16): 5e-3}
FAR = 1 << 12  # A larger common offset costs float32 logits half of their digits.
# Largest matrix product in one OpenBLAS thread: rows times features times classes. More threads
# doubled the processor time of `extract`, because waiting threads spin.
_PRODUCT = 1 << 18
_FEWEST_ROWS = 8  # If one thread can take only fewer rows at once, several threads are faster.
ONE_NUMBER = (
    "the model gives one number per row. covcal uses this number as the logit of the second "
    "class, and 0 as the logit of the first class"
)
SIGMOIDS = (
    "the model gives one sigmoid per class, but covcal uses the softmax of the logits. So the "
    "confidences differ from the model's sigmoids, even with the method 'none'"
)
_LABELS_ONLY = (
    "the model returns only a label, so covcal uses the softmax of its logits as confidences"
)
Number = TypeVar("Number", bound=np.generic)


def tolerance(dtype: np.dtype[np.generic]) -> float:
    """Return the maximum relative rounding error of a floating-point type."""
    return _TOLERANCE.get(dtype, _TOLERANCE[np.dtype(np.float32)])


def rounding(logits: Floats) -> float:
    """Return the float32 rounding error of the largest logit, without masked classes."""
    return float(np.finfo(np.float32).eps) * difference(logits, logits)[1]


def relative_error(values: Floats, expected: Floats) -> float:
    """Return the largest difference divided by the largest expected value."""
    worst, largest = difference(values, expected)
    return worst / largest if largest > 0 else worst


def difference(values: Floats, expected: Floats) -> tuple[float, float]:
    """Return max ``|values - expected|`` and max ``|expected|``, without masked classes.

    If shapes differ, the first number is infinity. A logit of -3.4e38 or -inf masks a class.
    """
    if values.shape != expected.shape:
        return float("inf"), 0.0
    if values.size == 0:
        return 0.0, 0.0
    low, high = float(expected.min()), float(expected.max())
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
    """Return phi W^T + b in float64, shape (m, K), for `features` phi, (m, d)."""
    exact = weight.astype(np.float64, copy=False)
    size = _PRODUCT // max(1, weight.size)
    if size < _FEWEST_ROWS:
        size = max(1, len(features))
    # The product is a third faster with the classes on the first axis.
    logits = np.empty((len(weight), len(features)))
    for start in range(0, len(features), size):
        part = slice(start, start + size)
        np.matmul(exact, features[part].astype(np.float64).T, out=logits[:, part])
    rows: Float64s = logits.T
    rows += bias
    return rows


@dataclass
class Proof:
    """The largest error of phi W^T + b, and the largest logit, in all batches so far."""

    # The largest |phi W^T + b - logits|, rounded, because further digits depend on the batch size.
    largest_difference: float = 0.0
    largest_logit: float = 0.0  # The largest |logit|, without masked classes.
    remarks: tuple[str, ...] = ()  # Notes about the checks of single batches.

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
        """Update the largest errors with a batch.

        Returns the relative error if the error is too large, else None. `limit` is the maximum
        error relative to the largest logit or bias so far. `step` is the additional error that
        quantised logits may have.
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
    """Return the relative difference between the output and `tail` of the logits, (m, K).

    `output` has shape (m, K), or (m, 1) for class numbers and for logits from `two_logits`.
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
        with np.errstate(invalid="ignore"):  # Logits may be infinite.
            z -= z.max(axis=1, keepdims=True)
        total = np.exp(z).sum(axis=1, keepdims=True)
        z = np.exp(z) / total if tail == "softmax" else z - np.log(total)
    return relative_error(output.astype(np.float64), z)


def two_logits(scores: NDArray[Number]) -> NDArray[Number]:
    """Return the logits 0 and z, shape (m, 2), for numbers z, shape (m, 1)."""
    return np.concatenate([np.zeros_like(scores), scores], axis=1)


def notes_on_tail(tail: str, *, is_single: bool) -> tuple[str, ...]:
    """Return notes for the user on how the output follows from the logits."""
    if tail == "sigmoid" and not is_single:
        return (SIGMOIDS,)
    return (_LABELS_ONLY,) if tail == ARGMAX else ()
