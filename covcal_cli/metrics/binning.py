"""Equally wide bins (c_{b-1}, c_b] of [0, 1], the first closed at 0."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.softmax import Array

_ROUNDING = 1e-6
_NEAR = 1e-9


def bin_edges(bins: int) -> Array:
    """Return the edges b/B, shape (bins + 1,)."""
    edges: Array = np.arange(bins + 1) / bins
    return edges


def checked_probabilities(values: NDArray[np.floating[Any]]) -> Array:
    """Return values as float64 within [0, 1].

    Raises
    ------
    ValueError
        If one is NaN or, beyond rounding, outside [0, 1].
    """
    checked = np.asarray(values, dtype=np.float64)
    if not np.all((checked >= -_ROUNDING) & (checked <= 1 + _ROUNDING)):
        raise ValueError("a confidence is NaN or outside [0, 1]")
    return np.clip(checked, 0.0, 1.0)


def bin_index(values: Array, edges: Array) -> NDArray[np.int64]:
    """Return the bin of each value in [0, 1]: 0, 1 and every edge land in exactly one."""
    bins = len(edges) - 1
    scaled = values * bins
    index = np.clip(np.ceil(scaled).astype(np.int64) - 1, 0, bins - 1)
    # The product may round across an edge; there the edges themselves decide.
    scaled -= np.rint(scaled)
    near = np.flatnonzero(np.abs(scaled) < _NEAR)
    found, exact = index[near], values[near]
    found -= (exact <= edges[found]) & (found > 0)
    found += (exact > edges[found + 1]) & (found < bins - 1)
    index[near] = found
    return index
