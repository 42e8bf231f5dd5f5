"""From the tensors that hold phi to one vector per row."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.models import proof
from covcal_cli.models.onnx_head import Head

Array = NDArray[Any]
Features = NDArray[np.floating]
Token = int | str

_FEW = 16  # rows, enough to tell tokens apart
_MEAN = "mean"


def features_of(
    where: str, head: Head, token: Token | None, arrays: list[Array], scores: Features
) -> Features:
    """Return phi, shape (m, d), of the tensors that hold it, shapes (m, ...).

    `where` is the model, for errors; `token` which vector of several, where the first batch showed
    it.
    """
    token = token_of(head, arrays, scores) if token is None else token
    phi = None
    if token is not None and head.weight is not None:
        phi = _take(_tokens(arrays[0], head.weight.shape[1]), token)
    else:
        vectors = [vector for array in arrays if (vector := _vectors(array)) is not None]
        phi = np.concatenate(vectors, axis=1) if len(vectors) == len(arrays) else None
    if phi is None or (head.weight is not None and phi.shape[1] != head.weight.shape[1]):
        raise CovcalError(
            f"{where}: {head.layer or head.features[0].name} "
            f"{'reads' if head.layer else 'holds'} features of shape "
            f"[N, {', '.join(map(str, arrays[0].shape[1:]))}], not one vector per row: pass "
            "--phi NAME with a tensor that is one, or --phi none to keep the logits alone"
        )
    return phi


def token_of(head: Head, arrays: list[Array], scores: Features) -> Token | None:
    """Return which of several vectors of every row the scores come from, or their mean.

    A head may run on every token or position, one of which is then chosen or all averaged. None
    where there is one vector alone, or none of them gives the scores.
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


def _vectors(array: Array) -> Features | None:
    """Return the rows of an array that has one vector in each, else None."""
    if sum(size != 1 for size in array.shape[1:]) > 1:
        return None
    return _floats(array.reshape(len(array), -1))


def _tokens(array: Array, width: int) -> Features:
    return _floats(array.reshape(len(array), -1, width))


def _floats(array: Array) -> Features:
    kind = array.dtype if np.issubdtype(array.dtype, np.floating) else np.dtype(np.float32)
    result: Features = array.astype(kind, copy=False)
    return result


def _take(tokens: Features, token: Token) -> Features:
    if isinstance(token, str):
        return np.asarray(tokens.mean(axis=1, dtype=np.float64), dtype=tokens.dtype)
    return tokens[:, token]
