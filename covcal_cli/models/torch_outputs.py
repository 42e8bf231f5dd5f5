"""Which output of a torch program holds the classes, and its logits where no layer gives them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from covcal_cli.errors import CovcalError
from covcal_cli.models.torch_arrays import to_array

Array = NDArray[np.float64]
_USUAL = "logits"
_SUM = 1e-3
_TINY = float(np.finfo(np.float32).tiny)


def may_hold_classes(
    outputs: Mapping[str, Tensor], wanted: str | None, n: int, where: str
) -> dict[str, Tensor]:
    """Return the outputs that may hold the classes of n rows.

    Parameters
    ----------
    outputs : mapping of str to Tensor
    wanted : str or None
        The user's choice; else an output called logits comes before others.
    n : int
    where : str
        The model, for messages.

    Raises
    ------
    CovcalError
        If `wanted` is missing, or no output has one vector per row.
    """
    described = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in outputs.items())
    if wanted is not None and wanted not in outputs:
        raise CovcalError(f"{where} has no output {wanted!r}: choose one of {described}")
    if wanted is None and _USUAL in outputs and _is_answer(outputs[_USUAL], n):
        wanted = _USUAL
    chosen = {name: value for name, value in outputs.items() if wanted in (None, name)}
    usable = {name: value for name, value in chosen.items() if _is_answer(value, n)}
    # One number per row beside a row of scores is a loss or a by-product.
    wide = {name: value for name, value in usable.items() if value.numel() > n}
    indices = {name: value for name, value in chosen.items() if _is_index(value, n)}
    if usable or indices:
        return wide or usable | indices
    raise CovcalError(
        f"{where} is not a classifier that covcal can use: it gives {described or 'no tensor'} for "
        f"{n} rows, and covcal needs floats of shape [N, classes]: return the logits or "
        "probabilities"
    )


def read_answer(outputs: Mapping[str, Tensor], name: str, n: int, where: str) -> Array:
    """Return one output, shape (n, K), or (n,) for indices.

    Raises
    ------
    CovcalError
        If this run did not give it for every row.
    """
    value = outputs.get(name)
    if value is None or value.numel() == 0 or value.numel() % n:
        found = "nothing" if value is None else list(value.shape)
        raise CovcalError(
            f"{where} gives {found} as {name} for {n} rows: the batch size is fixed inside the "
            "model; pass --batch 1"
        )
    answer = to_array(value)
    return answer.reshape(n, -1) if value.is_floating_point() else answer.reshape(n)


@dataclass(frozen=True)
class Answer:
    """Logits from the output itself, for ``--phi`` with a model that has no linear head.

    Attributes
    ----------
    tail : str
        ``"none"``, or ``"softmax"`` where the output holds probabilities.
    limit : float
        The relative error allowed between the output and what it is said to be.
    """

    tail: str
    limit: float = 1e-3

    @classmethod
    def of(cls, output: Array, where: str) -> "Answer":
        """Tell from a few rows what an output, shape (n, K), holds.

        Raises
        ------
        CovcalError
            If it holds indices, or a single number per row.
        """
        if output.ndim != 2 or output.shape[1] < 2:
            raise CovcalError(
                f"{where} gives one number per row, and no layer before it tells what it means: "
                "return one probability or logit per class"
            )
        sums = np.abs(output.sum(axis=1) - 1)
        return cls("softmax" if (output >= 0).all() and (sums < _SUM).all() else "none")

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know."""
        if self.tail == "none":
            return ("the output is taken as the logits",)
        return (
            "the logits are the logarithms of the output, whose smallest values are rounded off",
        )

    def logits(self, output: Array) -> Array:
        """Return the logits, shape (n, K)."""
        if self.tail == "none":
            return output
        logits: Array = np.log(np.maximum(output, _TINY))
        return logits


def _is_answer(value: Tensor, n: int) -> bool:
    """Return whether `value` is floats with one vector, or one number, per row."""
    if not value.is_floating_point() or value.numel() == 0:
        return False
    if value.ndim == 1:
        return n in (1, len(value))  # some models drop the axis of a single row
    return value.ndim > 1 and len(value) == n and all(size == 1 for size in value.shape[2:])


def _is_index(value: Tensor, n: int) -> bool:
    kind = value.dtype
    return not kind.is_floating_point and not kind.is_complex and value.numel() == n
