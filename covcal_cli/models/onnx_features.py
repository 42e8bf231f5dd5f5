"""From the tensors that hold phi to one vector per row."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.models import proof
from covcal_cli.models.onnx_head import Head

Features = NDArray[np.floating]
Token = int | str

_FEW = 16  # rows, enough to tell tokens apart
_MEAN = "mean"


@dataclass(frozen=True)
class FeatureReader:
    """Reads phi of a head.

    A head that runs on every token or position, one of which is then chosen or all averaged, has
    one vector for each; the logits of the first batch show which of them makes them.
    """

    where: str  # the model, for errors
    head: Head
    token: Token | None = None  # which vector of several, or "mean"; None where there is one

    def rows(self, arrays: list[NDArray[np.generic]], scores: NDArray[np.floating]) -> Features:
        """Return phi, shape (m, d), of the tensors that hold it, shapes (m, ...).

        Raises
        ------
        CovcalError
            If a tensor does not hold one vector per row.
        """
        head, phi = self.head, None
        token = self.token_of(arrays, scores) if self.token is None else self.token
        vectors = [_vectors(array) for array in arrays]
        if token is not None and head.weight is not None:
            phi = _take(_tokens(arrays[0], head.weight.shape[1]), token)
        elif whole := [vector for vector in vectors if vector is not None]:
            phi = np.concatenate(whole, axis=1) if len(whole) == len(arrays) else None
        if phi is None or (head.weight is not None and phi.shape[1] != head.weight.shape[1]):
            raise CovcalError(
                f"{self.where}: {head.layer or head.features[0].name} "
                f"{'reads' if head.layer else 'holds'} features of shape "
                f"[N, {', '.join(map(str, arrays[0].shape[1:]))}], not one vector per row: pass "
                "--phi NAME with a tensor that is one, or --phi none to keep the logits alone"
            )
        return phi

    def token_of(
        self, arrays: list[NDArray[np.generic]], scores: NDArray[np.floating]
    ) -> Token | None:
        """Return which of several vectors of every row the scores come from, if one does.

        None also where there is one vector alone.
        """
        head, array = self.head, arrays[0]
        if len(arrays) > 1 or head.weight is None or head.bias is None:
            return None
        width, whole = head.weight.shape[1], _vectors(array)
        if (whole is not None and whole.shape[1] == width) or array.shape[-1] != width:
            return None
        tokens = _tokens(array, width)
        limit = max(proof.tolerance(array.dtype), proof.tolerance(scores.dtype))
        tried: tuple[Token, ...] = (0, _MEAN, -1, *range(1, tokens.shape[1]))
        for token in tried:
            few = _take(tokens[:_FEW], token)
            trial = proof.Proof()
            error = trial.add(few, head.weight, head.bias, scores[:_FEW], limit, head.step)
            if error is None:
                return token
        return None


def _vectors(array: NDArray[np.generic]) -> Features | None:
    """Return the rows of an array that has one vector in each, else None."""
    if sum(size != 1 for size in array.shape[1:]) > 1:
        return None
    return _floats(array.reshape(len(array), -1))


def _tokens(array: NDArray[np.generic], width: int) -> Features:
    return _floats(array.reshape(len(array), -1, width))


def _floats(array: NDArray[np.generic]) -> Features:
    kind = array.dtype if np.issubdtype(array.dtype, np.floating) else np.dtype(np.float32)
    result: Features = array.astype(kind, copy=False)
    return result


def _take(tokens: Features, token: Token) -> Features:
    if isinstance(token, str):
        return np.asarray(tokens.mean(axis=1, dtype=np.float64), dtype=tokens.dtype)
    return tokens[:, token]
