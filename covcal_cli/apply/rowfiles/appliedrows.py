"""What ``covcal apply`` writes of a row, whatever the format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class AppliedRows:
    """A block of m calibrated rows.

    Attributes
    ----------
    ids : array of bytes, shape (m,)
        UTF-8, of fixed length.
    label_index : array of int64, shape (m,)
        The label that the classifier predicted, which calibration never changes.
    confidence : array of float32, shape (m,)
        Calibrated probability of that label.
    probabilities : array of float32, shape (m, K), or None
        Calibrated, of every class; None where only the confidence is wanted.
    """

    ids: NDArray[np.bytes_]
    label_index: NDArray[np.int64]
    confidence: NDArray[np.float32]
    probabilities: NDArray[np.float32] | None

    def __len__(self) -> int:
        return len(self.label_index)


@dataclass(frozen=True)
class Layout:
    """What is known before the first row.

    Attributes
    ----------
    rows : int
        How many there will be.
    classes : sequence of str
        Names, length K.
    id_dtype : dtype
        Of `AppliedRows.ids`.
    with_probabilities : bool
    provenance : mapping of str to str, int or float
        What the rows were computed from, where a format has a place for it.
    """

    rows: int
    classes: Sequence[str]
    id_dtype: np.dtype[Any]
    with_probabilities: bool
    provenance: Mapping[str, str | int | float]

    def columns(self) -> list[str]:
        """Return the names of a table's columns.

        Probabilities are ``p_CLASS``, or ``p_0``, ``p_1`` and so on where two classes share a name.
        """
        names: Sequence[str] = self.classes if self.with_probabilities else ()
        if len(set(names)) < len(names):
            names = [str(index) for index in range(len(names))]
        return ["id", "label", "label_index", "confidence", *(f"p_{name}" for name in names)]
