"""How a model's output follows from its last linear layers, found from a few rows of numbers.

What comes after the layers is not read but fitted: a factor (temperature, cosine scale), a factor
per class (batch norm), an added constant, a weighted sum of several layers (averaged heads), each
before any of the tails of ``proof.py``. Every later batch is held to what was found.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covcal_cli.models import proof

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """logits = sum over layers of factor * result, plus offset; output = tail(logits).

    Attributes
    ----------
    tail : str
        One of `covcal_cli.models.proof.TAILS`, or ``proof.ARGMAX``.
    factors : tuple of array, shape () or (K,)
        One per layer.
    offset : array, shape (K,)
        K is the width of the results: 1 where a single number stands for two classes.
    """

    tail: str
    factors: tuple[Array, ...]
    offset: Array

    @property
    def is_single(self) -> bool:
        """Whether the layers give one number per row, z, for the logits 0 and z of two classes."""
        return len(self.offset) == 1

    def logits(self, results: Sequence[Array]) -> Array:
        """Return the logits, shape (n, K), or (n, 2) of single numbers, of the layers' results."""
        scores = results[0] if len(results) == 1 and self.is_plain else self._scores(results)
        return proof.two_logits(scores) if self.is_single else scores

    def _scores(self, results: Sequence[Array]) -> Array:
        return sum(
            (factor * result for factor, result in zip(self.factors, results, strict=True)),
            start=self.offset,
        )

    @property
    def is_plain(self) -> bool:
        """Whether the logits are the only layer's result."""
        return (
            len(self.factors) == 1
            and bool((self.factors[0] == 1).all())
            and not (self.offset.any())
        )


def fit(results: Sequence[Array], output: Array, limit: float) -> Fit | None:
    """Return how `output` follows from the layers' results, or None where it does not.

    Parameters
    ----------
    results : sequence of array, shape (n, K)
        What the last layers gave; K = 1 stands for two classes.
    output : array, shape (n, K), or (n, 2) where K = 1, or of integers, shape (n,)
        The model's output.
    limit : float
        Largest relative error allowed.
    """
    k = results[0].shape[1]
    if len(results) == 1:
        for tail in proof.TAILS if output.ndim > 1 else (proof.ARGMAX,):
            plain = Fit(tail, (np.ones(()),), np.zeros(k))
            if proof.tail_error(tail, plain.logits(results), output) <= limit:
                return plain
    if k == 1 and len(output) < len(results) + 2:
        return None  # so few numbers fit whatever follows the layers
    if any(result.shape != output.shape for result in results):
        return None
    for tail, target in _before_tail(output):
        for factors, offset in _affine_maps(results, target, up_to_a_constant=tail != "none"):
            found = Fit(tail, factors, offset)
            if proof.tail_error(tail, found.logits(results), output) <= limit:
                return found
    return None


def _before_tail(output: Array) -> Iterator[tuple[str, Array]]:
    """Yield the tails that `output` may have, and its logits up to a constant per row."""
    yield "none", output
    if not np.isfinite(output).all():
        return
    if (output > 0).all() and np.allclose(output.sum(axis=1), 1, atol=1e-3):
        yield "softmax", np.log(output)
    if (output <= 0).all() and np.allclose(np.exp(output).sum(axis=1), 1, atol=1e-3):
        yield "log_softmax", output


def _affine_maps(
    results: Sequence[Array], target: Array, *, up_to_a_constant: bool
) -> Iterator[tuple[tuple[Array, ...], Array]]:
    """Yield least-squares factors and offsets from results to target, the simplest first."""

    def centred(values: Array, axes: tuple[int, ...]) -> Array:
        for axis in axes:
            values = values - values.mean(axis=axis, keepdims=True)
        return values

    classes = (1,) if up_to_a_constant else ()
    for axes in (classes, (*classes, 0)):  # without and with an offset
        columns = np.stack([centred(result, axes).ravel() for result in results], axis=1)
        factors, _, rank, _ = np.linalg.lstsq(columns, centred(target, axes).ravel(), rcond=1e-9)
        if rank < len(results) or not factors.all():
            continue
        scaled = sum((f * z for f, z in zip(factors, results, strict=True)), start=np.zeros(()))
        offset = centred(target - scaled, classes).mean(axis=0) if 0 in axes else np.zeros(1)
        yield tuple(np.asarray(factor) for factor in factors), offset * np.ones(target.shape[1])
    if len(results) == 1 and not up_to_a_constant and len(target) > 2:
        z, y = centred(results[0], (0,)), centred(target, (0,))
        power = (z * z).sum(axis=0)
        if (power > 0).all():
            factors = (z * y).sum(axis=0) / power
            yield (factors,), (target - factors * results[0]).mean(axis=0)
