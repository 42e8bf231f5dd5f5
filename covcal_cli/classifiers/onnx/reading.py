"""Read phi and the scores from a run of an ONNX model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from covcal_cli.arrays import AnyArray, Floats
from covcal_cli.classifiers import proof
from covcal_cli.classifiers.onnx.graph import OnnxGraph
from covcal_cli.classifiers.onnx.head import Head, with_affine_map
from covcal_cli.classifiers.onnx.layers import LOGITS_ONLY, OVERFLOW, holds_quantised
from covcal_cli.classifiers.onnx.outputs import ClassOutput
from covcal_cli.classifiers.onnx.runner import Runner
from covcal_cli.classifiers.proof import Proof, notes_on_tail
from covcal_cli.errors import CovcalError

Token = int | str
_FEW = 16  # Number of rows on which tokens are compared.
_MEAN = "mean"


def token_of(head: Head, arrays: list[AnyArray], scores: Floats) -> Token | None:
    """Return which token of each row the model uses: an index, or "mean" for the mean of tokens.

    Returns None if a row has only one feature vector, or if neither a token nor the mean gives the
    scores.
    """
    array = arrays[0]
    if len(arrays) > 1 or head.weight is None or head.bias is None:
        return None
    width, whole = head.weight.shape[1], _vectors(array)
    if (whole is not None and whole.shape[1] == width) or array.shape[-1] != width:
        return None
    tokens = _tokens(array, width)
    limit = max(proof.tolerance(array.dtype), proof.tolerance(scores.dtype))
    tried: tuple[Token, ...] = (0, _MEAN, -1, *range(1, tokens.shape[1]))
    for token in tried:
        few, trial = _take(tokens[:_FEW], token), proof.Proof()
        if trial.add(few, head.weight, head.bias, scores[:_FEW], limit, head.step) is None:
            return token
    return None


def _vectors(array: AnyArray) -> Floats | None:
    if sum(size != 1 for size in array.shape[1:]) > 1:
        return None
    return _floats(array.reshape(len(array), -1))


def _tokens(array: AnyArray, width: int) -> Floats:
    return _floats(array.reshape(len(array), -1, width))


def _floats(array: AnyArray) -> Floats:
    kind = array.dtype if np.issubdtype(array.dtype, np.floating) else np.dtype(np.float32)
    floats: Floats = array.astype(kind, copy=False)
    return floats


def _take(tokens: Floats, token: Token) -> Floats:
    if isinstance(token, str):
        return np.asarray(tokens.mean(axis=1, dtype=np.float64), dtype=tokens.dtype)
    return tokens[:, token]


class UnknownTailError(CovcalError):
    """An error about an output that covcal cannot compute from the scores."""


@dataclass(frozen=True)
class Tail:
    """The function from the scores of the last layer to the model's output."""

    where: str  # The name of the model, for messages.
    head: Head
    n_scores: int  # Number of columns of the scores, at least 1.
    outputs: tuple[ClassOutput, ...]  # The outputs that may be functions of the scores.
    # A name in `proof.TAILS`, or `proof.ARGMAX`; None before the first batch.
    kind: str | None = None
    is_double: bool = False  # Whether the scores are float64.
    notes: tuple[str, ...] = ()  # Notes for the user.

    def __post_init__(self) -> None:
        if self.n_scores == 0:
            raise CovcalError(
                f"{self.where}: the shape of output {self.head.outputs[0].name} does not show the "
                "number of classes: export one probability or logit per class"
            )

    @property
    def is_single(self) -> bool:
        """Whether the model has a single output for two classes."""
        return self.n_scores == 1

    @property
    def n_classes(self) -> int:
        """K, the number of classes."""
        return 2 if self.is_single else self.n_scores

    @property
    def is_bare(self) -> bool:
        """Whether the scores are the model's output itself."""
        head = self.head
        return (
            not head.layer
            and head.follower is None
            and head.logits.tensor == head.outputs[0].tensor
        )

    def with_first_batch(self, tensor: AnyArray) -> "Tail":
        """Return this tail with the number of scores and their dtype from the first batch.

        Some boosting models declare one column of probabilities and give two.
        """
        n_scores = self.n_scores
        if self.is_bare and self.is_single and tensor.ndim == 2 and tensor.shape[1]:
            n_scores = tensor.shape[1]
        return replace(self, n_scores=n_scores, is_double=tensor.dtype == np.float64)

    def logits(self, scores: AnyArray) -> AnyArray:
        """Return one logit per class, shape (m, K)."""
        return proof.two_logits(scores) if self.is_single else scores

    def recognised(self, scores: AnyArray, values: dict[str, AnyArray], limit: float) -> "Tail":
        """Return the tail of the first output that is a known function, such as a softmax.

        Raises `UnknownTailError` if no output is a known function of the scores.
        """
        for output in self.outputs:
            for kind in [proof.ARGMAX] if output.is_label else proof.TAILS:
                if self._makes(kind, output, scores, values, limit):
                    notes = notes_on_tail(kind, is_single=self.is_single)
                    return replace(self, kind=kind, outputs=(output,), notes=(*self.notes, *notes))
        raise self._unknown()

    def check(self, scores: AnyArray, values: dict[str, AnyArray], limit: float) -> None:
        """Raise `UnknownTailError` if the output of a batch differs from the known function."""
        (output,) = self.outputs
        if self.kind == "none" and output.tensor == self.head.logits.tensor:
            return  # The output is the logits.
        if not self._makes(str(self.kind), output, scores, values, limit):
            raise self._unknown()

    def _makes(
        self,
        kind: str,
        output: ClassOutput,
        scores: AnyArray,
        values: dict[str, AnyArray],
        limit: float,
    ) -> bool:
        printed = values[output.tensor]
        largest = float(np.abs(printed).max(initial=0)) or 1.0
        logits, rows = self.logits(scores), printed.reshape(len(printed), -1)
        # A rounding error of r in a logit changes the softmax by at most about r.
        step = self.head.tail_step + proof.rounding(logits)
        allowed = max(limit, proof.tolerance(printed.dtype)) + step / largest
        return proof.tail_error(kind, logits, rows) <= allowed

    def scores(self, tensor: AnyArray) -> AnyArray:
        """Return scores of shape (m, n_scores) from a tensor of shape (m, ...)."""
        rows = tensor.reshape(len(tensor), -1) if tensor.size else tensor
        if rows.shape[1:] != (self.n_scores,):
            head = self.head
            follower = f"before {head.follower}" if head.follower else "and does not average them"
            raise UnknownTailError(
                f"{self.where}: {head.layer or head.logits.name} gives "
                f"{list(tensor.shape[1:])} values per row {follower}, not one per class: "
                f"{LOGITS_ONLY}"
            )
        return rows

    def _unknown(self) -> UnknownTailError:
        head = self.head
        names = ", ".join(output.name for output in self.outputs)
        follows = f", which {head.follower} changes" if head.follower else ""
        way = "pass --phi none to use the output directly" if head.features else "export the logits"
        return UnknownTailError(
            f"{self.where}: covcal does not know how output {names} is computed from the "
            f"logits of {head.layer or head.logits.name}{follows}: {way}, or choose another "
            "output with --model-output NAME"
        )


@dataclass(frozen=True)
class Reading:
    """How to compute phi and the scores from the tensors of a run."""

    graph: OnnxGraph
    head: Head
    tail: Tail
    runner: Runner
    width: int | None = None  # Number of features d; None if unknown.
    token: Token | None = None  # See `token_of`.

    @property
    def tensors(self) -> list[str]:
        """The names of all tensors to read."""
        head = self.head
        # If the model does not declare the width of phi, the first tensor is read to measure it.
        to_measure = [head.features[0].name] if head.features and self.width is None else []
        to_read = [value.tensor for value in (*head.features, head.logits)]
        to_compare = [value.tensor for value in self.tail.outputs]
        return [*dict.fromkeys([*to_read, *to_compare, *to_measure])]

    def with_first_batch(self, values: Mapping[str, AnyArray]) -> "Reading":
        """Return this reading, completed with the shapes of the first batch."""
        head, width, tensor = self.head, self.width, values[self.head.logits.tensor]
        tail = self.tail.with_first_batch(tensor)
        if not head.features:
            return replace(self, tail=tail)
        if width is None:
            row = values[head.features[0].name].shape[1:]
            width, head = int(np.prod(row)), with_affine_map(self.graph, head, row)
        token = token_of(head, self._arrays(values), tail.scores(tensor))
        return replace(self, head=head, tail=tail, width=width, token=token)

    def read(self, values: Mapping[str, AnyArray]) -> tuple[Floats | None, AnyArray]:
        """Return phi, shape (m, d), and the scores, shape (m, n_scores)."""
        scores = self.tail.scores(values[self.head.logits.tensor])
        if not self.head.features:
            return None, scores
        return self._features(self._arrays(values), scores), scores

    def _features(self, arrays: list[AnyArray], scores: Floats) -> Floats:
        head, phi = self.head, None
        token = token_of(head, arrays, scores) if self.token is None else self.token
        if token is not None and head.weight is not None:
            phi = _take(_tokens(arrays[0], head.weight.shape[1]), token)
        else:
            vectors = [vector for array in arrays if (vector := _vectors(array)) is not None]
            if len(vectors) == len(arrays):
                phi = vectors[0] if len(vectors) == 1 else np.concatenate(vectors, axis=1)
        if phi is None or (head.weight is not None and phi.shape[1] != head.weight.shape[1]):
            shape = ", ".join(["N", *map(str, arrays[0].shape[1:])])
            raise CovcalError(
                f"{self.where}: the features of {head.layer or head.features[0].name} have "
                f"shape [{shape}] instead of one vector per row: pass --phi NAME to use "
                "another tensor, or --phi none to keep only the logits"
            )
        return phi

    def rounding(self, values: Mapping[str, AnyArray], features: Floats | None) -> float:
        """Return the maximum relative rounding error of phi and of the scores."""
        of_scores = proof.tolerance(values[self.head.logits.tensor].dtype)
        if features is None or self.head.weight is None:
            return of_scores
        return max(of_scores, proof.tolerance(features.dtype))

    def proved_affine(
        self, so_far: Proof, features: Floats | None, scores: AnyArray, limit: float
    ) -> "Reading":
        """Check on a batch that phi W^T + b gives the scores.

        W and b become None if the scores are not linear in the features.
        """
        head = self.head
        if features is None or head.weight is None or head.bias is None:
            return self
        error = so_far.add(features, head.weight, head.bias, scores, limit, head.step)
        if error is None:
            return self
        if not head.layer:
            return replace(self, head=replace(head, weight=None, bias=None))
        remedy = OVERFLOW if holds_quantised(self.graph) else ""
        raise CovcalError(
            f"{self.where}: {head.layer} does not give {head.logits.name} (relative error "
            f"{error:.1g}), so the last layer is not linear: {remedy}pass --phi none to keep "
            "only the logits, or --phi NAME to use another tensor"
        )

    @property
    def where(self) -> str:
        """The name of the model, for messages."""
        return str(self.graph.file.path)

    def _arrays(self, values: Mapping[str, AnyArray]) -> list[AnyArray]:
        return [values[value.tensor] for value in self.head.features]
