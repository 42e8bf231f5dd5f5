"""The numerical proof that the right layer was found: nothing here knows about graphs.

1. phi W^T + b gives the logits.
2. The model's output is the logits, their softmax or their log-softmax.
3. The model with the two tensors exposed gives the same output as the unmodified one.
"""

import numpy as np
from numpy.typing import NDArray

TAILS = ("none", "softmax", "log_softmax")

# Relative to the largest magnitude in the batch. Half precision keeps eleven bits, and sums of
# hundreds of products lose some of them.
_TOLERANCE = {np.dtype(np.float64): 1e-5, np.dtype(np.float32): 1e-5, np.dtype(np.float16): 5e-3}

Array = NDArray[np.floating]


def tolerance(dtype: np.dtype[np.generic]) -> float:
    """Return the relative error that rounding in `dtype` explains: 1e-5, for float16 5e-3."""
    return _TOLERANCE.get(dtype, _TOLERANCE[np.dtype(np.float32)])


def relative_error(found: Array, expected: Array) -> float:
    """Return max ``|found - expected|`` over max ``|expected|``; infinite where shapes differ.

    Parameters
    ----------
    found, expected : array, shape (m, K)
        Compared in float64. Equal infinities (the log of a vanished probability) count as equal.
    """
    if found.shape != expected.shape:
        return float("inf")
    if found.size == 0 or np.array_equal(found, expected):
        return 0.0
    a, b = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.where(a == b, 0.0, np.abs(a - b))
    largest = float(np.abs(b).max())
    worst = float(difference.max())
    return worst / largest if largest > 0 else worst


def affine_error(features: Array, weight: Array, bias: Array, logits: Array) -> float:
    """Return the relative error of phi W^T + b against the logits.

    Parameters
    ----------
    features : array, shape (m, d)
    weight : array, shape (K, d)
    bias : array, shape (K,)
    logits : array, shape (m, K)
    """
    found = features.astype(np.float64) @ weight.astype(np.float64).T + bias
    return relative_error(found, logits)


def recognise_tail(logits: Array, output: Array, limit: float) -> str | None:
    """Return which of `TAILS` makes the model's output of the logits, or None if none does.

    Parameters
    ----------
    logits, output : array, shape (m, K)
    limit : float
        The largest relative error allowed.
    """
    return next((tail for tail in TAILS if tail_error(tail, logits, output) <= limit), None)


def tail_error(tail: str, logits: Array, output: Array) -> float:
    """Return the relative error of the model's output against `tail` of the logits."""
    z = logits.astype(np.float64)
    if tail != "none":
        z -= z.max(axis=1, keepdims=True)
        total = np.exp(z).sum(axis=1, keepdims=True)
        z = np.exp(z) / total if tail == "softmax" else z - np.log(total)
    return relative_error(output, z)
