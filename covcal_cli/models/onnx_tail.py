"""From the scores in the graph to one logit per class, and from those to the model's output."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.models import proof
from covcal_cli.models.onnx_head import Head
from covcal_cli.models.onnx_linear import LOGITS_ONLY
from covcal_cli.models.onnx_outputs import ClassOutput
from covcal_cli.models.proof import notes_on_tail

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


@dataclass(frozen=True)
class Tail:
    """What follows the scores of a head: declared by the graph, then seen in the first batch."""

    where: str  # the model, for errors
    head: Head
    n_scores: int  # columns of the scores, 0 if unknown
    outputs: tuple[ClassOutput, ...]  # those that may be compared; one once the kind is known
    kind: str | None = None  # one of `proof.TAILS` or `proof.ARGMAX`; None until it is recognised
    takes_logarithm: bool = False  # whether the scores are probabilities
    is_double: bool = False  # whether they are float64
    notes: tuple[str, ...] = ()  # what the first batch shows

    def __post_init__(self) -> None:
        if self.n_scores == 0 or (self.is_single and self._may_be_probabilities):
            what = "one number per row" if self.is_single else "no number of classes"
            raise CovcalError(
                f"{self.where}: output {self.head.outputs[0].name} declares {what}, and no layer "
                "before it tells what it means: export one probability or logit per class"
            )

    @property
    def is_single(self) -> bool:
        """Whether the model gives one number for two classes."""
        return self.n_scores == 1

    @property
    def n_classes(self) -> int:
        """K."""
        return 2 if self.is_single else self.n_scores

    @property
    def _may_be_probabilities(self) -> bool:
        """Without a layer or a squashing operator the output itself is all there is."""
        head = self.head
        return (
            not head.layer
            and head.follower is None
            and head.logits.tensor == head.outputs[0].tensor
        )

    def seen_in(self, tensor: Array) -> "Tail":
        """Return the tail with what the scores of the first batch show."""
        rows, seen = self._rows(tensor), replace(self, is_double=tensor.dtype == np.float64)
        if not self._may_be_probabilities:
            return seen
        if _are_probabilities(rows):
            return replace(seen, takes_logarithm=True, notes=(_LOGARITHMS,))
        bounded = rows.min() >= 0 and rows.max() <= 1
        return replace(seen, notes=(_BOUNDED,)) if bounded else seen

    def scores(self, tensor: Array) -> Array:
        """Return the scores as one row per row, shape (m, n_scores)."""
        rows = self._rows(tensor)
        if self.takes_logarithm:
            return np.log(np.maximum(rows.astype(np.float64), SMALLEST))
        return rows

    def logits(self, scores: Array) -> Array:
        """Return one logit per class, shape (m, K)."""
        return proof.two_logits(scores) if self.is_single else scores

    def recognised(self, scores: Array, values: dict[str, Array], limit: float) -> "Tail":
        """Return the tail with the kind that makes an output of the scores, and that output."""
        for output in self.outputs:
            for kind in [proof.ARGMAX] if output.is_label else proof.TAILS:
                if self._makes(kind, output, scores, values, limit):
                    notes = notes_on_tail(kind, is_single=self.is_single)
                    return replace(self, kind=kind, outputs=(output,), notes=(*self.notes, *notes))
        raise self._unknown()

    def hold(self, scores: Array, values: dict[str, Array], limit: float) -> None:
        """Hold a later batch to the kind that was recognised."""
        (output,) = self.outputs
        if not self._makes(str(self.kind), output, scores, values, limit):
            raise self._unknown()

    def _makes(
        self, kind: str, output: ClassOutput, scores: Array, values: dict[str, Array], limit: float
    ) -> bool:
        found = values[output.tensor]
        largest = float(np.abs(found).max(initial=0)) or 1.0
        allowed = max(limit, proof.tolerance(found.dtype)) + self.head.tail_step / largest
        rows = found.reshape(len(found), -1)
        return proof.tail_error(kind, self.logits(scores), rows) <= allowed

    def _rows(self, tensor: Array) -> Array:
        rows = tensor.reshape(len(tensor), -1) if tensor.size else tensor
        if rows.shape[1:] != (self.n_scores,):
            head = self.head
            follower = f"{head.follower} follows" if head.follower else "no mean follows"
            raise UnknownTailError(
                f"{self.where}: {head.layer or head.logits.name} gives {list(tensor.shape[1:])} "
                f"values per row and {follower}, so the logits are not affine in a feature "
                f"vector: {LOGITS_ONLY}"
            )
        return rows

    def _unknown(self) -> UnknownTailError:
        head = self.head
        names = ", ".join(output.name for output in self.outputs)
        follows = f" ({head.follower} follows them)" if head.follower else ""
        return UnknownTailError(
            f"{self.where}: output {names} is neither the logits of "
            f"{head.layer or head.logits.name} nor their softmax, log-softmax or sigmoids"
            f"{follows}: pass --phi none to take the output as it is, or --model-output NAME to "
            "choose another"
        )


def _are_probabilities(rows: Array) -> bool:
    """Return whether every row holds probabilities that add up to one."""
    sums = rows.sum(axis=1, dtype=np.float64)
    return bool(rows.min() >= 0 and np.abs(sums - 1).max() <= _SUM_TO_ONE)
