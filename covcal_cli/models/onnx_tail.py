"""From the scores in the graph to one logit per class, and from those to the model's output."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.models import proof
from covcal_cli.models.onnx_head import Head
from covcal_cli.models.onnx_linear import LOGITS_ONLY
from covcal_cli.models.onnx_outputs import ClassOutput
from covcal_cli.models.tail_notes import ONE_NUMBER, notes_on_tail

Array = NDArray[Any]

# The smallest float32 that keeps all its digits; the logarithm of a zero is no number.
SMALLEST = float(np.finfo(np.float32).tiny)
_SUM_TO_ONE = 5e-3  # half precision

_LOGARITHMS = (
    "the model prints probabilities alone, so logits are their logarithms: float32 holds nothing "
    "below 1e-38, and what was smaller counts as that"
)
_BOUNDED = (
    "all outputs of the first batch lie between 0 and 1 and do not add up to 1 in a row; they are "
    "read as logits"
)


class UnknownTailError(CovcalError):
    """The output is not made of the scores in a way that is known."""


class Tail:
    """What follows the scores of a head, recognised on the first batch and held on all others.

    Parameters
    ----------
    where : str
        Path of the model, for errors.
    head : Head
        The head.
    n_scores : int
        Columns of the scores, 0 if unknown.

    Attributes
    ----------
    kind : str or None
        One of `proof.TAILS` or `proof.ARGMAX`; None before the first batch.
    n_classes : int
        K.
    is_single : bool
        Whether the model gives one number for two classes.
    outputs : tuple of ClassOutput
        The outputs that may be compared; one after the first batch.
    notes, notes_of_batch : tuple of str
        What a user should know, from the graph and from the first batch.
    """

    def __init__(self, where: str, head: Head, n_scores: int) -> None:
        self._where, self._head, self._n_scores = where, head, n_scores
        self.kind: str | None = None
        self.outputs: tuple[ClassOutput, ...] = head.outputs
        self.is_single = n_scores == 1
        self.n_classes = 2 if self.is_single else n_scores
        self.notes: tuple[str, ...] = (ONE_NUMBER,) if self.is_single else ()
        self.notes_of_batch: tuple[str, ...] = ()
        self.takes_logarithm: bool | None = None
        self.is_double = False
        # Without a layer or a squashing operator the output itself is all there is.
        self._may_be_probabilities = (
            not head.layer
            and head.follower is None
            and head.logits.tensor == head.outputs[0].tensor
        )
        if n_scores == 0 or (self.is_single and self._may_be_probabilities):
            what = "one number per row" if n_scores == 1 else "no number of classes"
            raise CovcalError(
                f"{where}: output {head.outputs[0].name} declares {what}, and no layer before it "
                "tells what it means: export one probability or logit per class"
            )

    def scores(self, tensor: Array) -> Array:
        """Return the scores as one row per row, shape (m, n_scores).

        Raises
        ------
        UnknownTailError
            If the tensor holds more or fewer per row.
        """
        self.is_double = tensor.dtype == np.float64
        rows = tensor.reshape(len(tensor), -1) if tensor.size else tensor
        if rows.shape[1:] != (self._n_scores,):
            head = self._head
            follower = f"{head.follower} follows" if head.follower else "no mean follows"
            raise UnknownTailError(
                f"{self._where}: {head.layer or head.logits.name} gives {list(tensor.shape[1:])} "
                f"values per row and {follower}, so the logits are not affine in a feature "
                f"vector: {LOGITS_ONLY}"
            )
        if not self._may_be_probabilities:
            return rows
        if self.takes_logarithm is None:
            self.takes_logarithm = _are_probabilities(rows)
            if self.takes_logarithm:
                self.notes_of_batch += (_LOGARITHMS,)
            elif rows.min() >= 0 and rows.max() <= 1:
                self.notes_of_batch += (_BOUNDED,)
        if self.takes_logarithm:
            return np.log(np.maximum(rows.astype(np.float64), SMALLEST))
        return rows

    def logits(self, scores: Array) -> Array:
        """Return one logit per class, shape (m, K)."""
        return proof.two_logits(scores) if self.is_single else scores

    def hold(self, scores: Array, values: dict[str, Array], limit: float) -> None:
        """Recognise what makes the output of the scores, or hold a later batch to it.

        Raises
        ------
        UnknownTailError
            If nothing known does.
        """
        for output in self.outputs:
            found = values[output.tensor]
            kinds = [self.kind] if self.kind else [proof.ARGMAX] if output.is_label else proof.TAILS
            for kind in kinds:
                if self._error(kind, scores, found) <= self._limit(found, limit):
                    if self.kind is None:
                        self._decide(kind, output)
                    return
        raise self._unknown()

    def _error(self, kind: str, scores: Array, found: Array) -> float:
        return proof.tail_error(kind, self.logits(scores), found.reshape(len(found), -1))

    def _limit(self, found: Array, limit: float) -> float:
        largest = float(np.abs(found).max(initial=0)) or 1.0
        return max(limit, proof.tolerance(found.dtype)) + self._head.tail_step / largest

    def _decide(self, kind: str, output: ClassOutput) -> None:
        self.kind, self.outputs = kind, (output,)
        self.notes_of_batch += notes_on_tail(kind, is_single=self.is_single)

    def _unknown(self) -> UnknownTailError:
        head = self._head
        names = ", ".join(output.name for output in self.outputs)
        follows = f" ({head.follower} follows them)" if head.follower else ""
        return UnknownTailError(
            f"{self._where}: output {names} is neither the logits of "
            f"{head.layer or head.logits.name} nor their softmax, log-softmax or sigmoids"
            f"{follows}: pass --phi none to take the output as it is, or --model-output NAME to "
            "choose another"
        )


def _are_probabilities(rows: Array) -> bool:
    """Return whether every row holds probabilities that add up to one."""
    sums = rows.sum(axis=1, dtype=np.float64)
    return bool(rows.min() >= 0 and np.abs(sums - 1).max() <= _SUM_TO_ONE)
