"""Columns of tables that number the rows, whatever they are called: ids, not features.

Such a column holds another whole number in every row. Where it rises from row to row as well, it is
hardly anything else, although a time may be.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.inputs.store import Store

_FEW_ROWS = 20  # in fewer, ages are different whole numbers too
_FIRST = 1000  # most columns of features show in these that they are none


def numbering_columns(store: Store, names: Sequence[str], *, rising: bool) -> tuple[str, ...]:
    """Return those of the columns that hold another whole number in every row, `rising` or not."""
    entries = store.entries
    candidates = [
        name
        for name in names
        # CSV has no other number than float64; in half or single precision nobody keeps ids.
        if entries[name].dtype.kind in "iu" or entries[name].dtype == np.float64
    ]
    n = entries[names[0]].shape[0] if names else 0
    if n < _FEW_ROWS or not candidates:
        return ()
    rows = np.arange(min(n, _FIRST), dtype=np.int64)
    parts = [arrays for _, arrays in store.pieces(candidates, rows, _FIRST)]
    first = {name: np.concatenate([part[name] for part in parts]) for name in candidates}
    likely = [name for name in candidates if _numbers_rows(first[name], rising)]
    if n <= _FIRST:
        return tuple(likely)
    return tuple(name for name in likely if _numbers_rows(store.whole(name), rising))


def _numbers_rows(values: NDArray[Any], rising: bool) -> bool:
    if values.dtype.kind == "f":
        if not np.isfinite(values).all() or (values != np.floor(values)).any():
            return False
    elif values.dtype.kind not in "iu":
        return False
    ordered = values if rising else np.sort(values)
    return bool((ordered[1:] > ordered[:-1]).all())
