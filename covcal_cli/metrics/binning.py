"""Equally wide bins (c_{b-1}, c_b] of [0, 1], the first closed at 0."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.maths.softmax import Array

_ROUNDING = 1e-6
_FEW_ULPS = 2.0**-50


def bin_edges(bins: int) -> Array:
    """Return the edges b/B, shape (bins + 1,)."""
    edges: Array = np.arange(bins + 1) / bins
    return edges


def require_rows(n: int) -> int:
    """Return the number of rows; raise ValueError where there are none to measure."""
    if n == 0:
        raise ValueError("no rows were counted")
    return n


def checked_probabilities(values: NDArray[np.floating[Any]]) -> Array:
    """Return values as float64 within [0, 1].

    Raises ValueError if one is NaN or, beyond rounding, outside [0, 1].
    """
    checked = np.asarray(values, dtype=np.float64)
    if len(checked) == 0:
        return checked
    lowest, highest = checked.min(), checked.max()  # NaN where any value is
    if not (lowest >= -_ROUNDING and highest <= 1 + _ROUNDING):
        raise ValueError("a confidence is NaN or outside [0, 1]")
    return checked if lowest >= 0 and highest <= 1 else np.clip(checked, 0.0, 1.0)


def bin_index(values: Array, edges: Array) -> NDArray[np.int64]:
    """Return the bin of each value in [0, 1]: 0, 1 and every edge land in exactly one."""
    # The product never rounds below the bin; where it lands above, the edges themselves decide.
    index = (values * ((len(edges) - 1) * (1 + _FEW_ULPS))).astype(np.int64)
    lower = edges.copy()
    lower[0] = -1.0  # the first bin is closed
    index -= lower.take(index) >= values
    return index


def approximate_bin_index(values: Array, bins: int) -> NDArray[np.int32]:
    """Return the bin of each value in [0, 1], where less than 1e-15 above an edge is on the edge.

    Faster than `bin_index`, and exact for the edges themselves, 0 and 1.
    """
    index: NDArray[np.int32] = (values * (bins * (1 - _FEW_ULPS))).astype(np.int32)
    return index
