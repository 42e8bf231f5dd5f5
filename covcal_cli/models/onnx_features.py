"""From the tensors that hold phi to one vector per row."""

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.models import proof
from covcal_cli.models.onnx_head import Head

Features = NDArray[np.floating]

_ROWS = 16  # enough to tell tokens apart
_MEAN = "mean"


class FeatureReader:
    """Reads phi of a head.

    A head that runs on every token or position, one of which is then chosen or all averaged, has
    one vector for each; the first batch shows which of them reproduces the logits.

    Parameters
    ----------
    where : str
        Path of the model, for errors.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self.token: int | str | None = None

    def rows(
        self, head: Head, arrays: list[NDArray[np.generic]], logits: NDArray[np.floating]
    ) -> Features:
        """Return phi, shape (m, d).

        Parameters
        ----------
        head : Head
            The head.
        arrays : list of array, shape (m, ...)
            The tensors that hold phi.
        logits : array, shape (m, K)
            What they must reproduce.

        Raises
        ------
        CovcalError
            If a tensor does not hold one vector per row.
        """
        if len(arrays) == 1 and head.weight is not None and head.bias is not None:
            phi = self._vectors(arrays[0], head.weight.shape[1])
            if phi is None:
                phi = self._one_of_many(arrays[0], head.weight, head.bias, logits, head.step)
        else:
            vectors = [self._vectors(array, None) for array in arrays]
            whole = [vector for vector in vectors if vector is not None]
            phi = np.concatenate(whole, axis=1) if len(whole) == len(arrays) else None
        if phi is None or (head.weight is not None and phi.shape[1] != head.weight.shape[1]):
            raise CovcalError(
                f"{self._where}: {head.layer or head.features[0].name} "
                f"{'reads' if head.layer else 'holds'} features of shape "
                f"[N, {', '.join(map(str, arrays[0].shape[1:]))}], not one vector per row: pass "
                "--phi NAME with a tensor that is one, or --phi none to keep the logits alone"
            )
        return phi

    def _vectors(self, array: NDArray[np.generic], width: int | None) -> Features | None:
        """Return the rows of an array that has one vector in each, else None."""
        row = array.shape[1:]
        if sum(size != 1 for size in row) > 1:
            return None
        rows = _floats(array.reshape(len(array), -1))
        return rows if width in (None, rows.shape[1]) else None

    def _one_of_many(
        self,
        array: NDArray[np.generic],
        weight: NDArray[np.float64],
        bias: NDArray[np.float64],
        logits: NDArray[np.floating],
        step: float,
    ) -> Features | None:
        """Return the one vector among those of every row that the logits come from."""
        width = weight.shape[1]
        if array.shape[-1] != width:
            return None
        tokens = _floats(array.reshape(len(array), -1, width))
        if self.token is not None:
            return _take(tokens, self.token)
        limit = max(proof.tolerance(array.dtype), proof.tolerance(logits.dtype))
        for token in (0, _MEAN, -1, *range(1, tokens.shape[1])):
            trial = proof.AffineProof()
            few = _take(tokens[:_ROWS], token)
            if trial.add(few, weight, bias, logits[:_ROWS], limit, step) is None:
                self.token = token
                return _take(tokens, token)
        return None


def _floats(array: NDArray[np.generic]) -> Features:
    kind = array.dtype if np.issubdtype(array.dtype, np.floating) else np.dtype(np.float32)
    result: Features = array.astype(kind, copy=False)
    return result


def _take(tokens: Features, token: int | str) -> Features:
    if isinstance(token, str):
        return np.asarray(tokens.mean(axis=1, dtype=np.float64), dtype=tokens.dtype)
    return tokens[:, token]
