"""Calibrated rows on their way to a file, whatever its format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.arrays import Float32s, Labels


@dataclass(frozen=True)
class AppliedRows:
    """A block of m calibrated rows."""

    ids: NDArray[np.bytes_]  # UTF-8, of fixed length
    label_index: Labels  # predicted by the classifier; calibration never changes it
    confidence: Float32s  # calibrated probability of that label
    probabilities: Float32s | None  # shape (m, K), unless only confidence is wanted

    def __len__(self) -> int:
        return len(self.label_index)


@dataclass(frozen=True)
class Layout:
    """The columns and size of the output, known before the first row."""

    rows: int  # number of rows
    classes: Sequence[str]  # names, length K
    id_dtype: np.dtype[Any]  # of `AppliedRows.ids`
    with_probabilities: bool
    # Hashes and names of the inputs, for formats that can store them.
    provenance: Mapping[str, str | int | float]
    integer_ids: bool = False  # whether the ids of the input were integers

    def columns(self) -> list[str]:
        """Return the names of a table's columns.

        Probabilities are ``prob_CLASS``, or ``prob_0``, ``prob_1`` and so on where two classes
        share a name.
        """
        names: Sequence[str] = self.classes if self.with_probabilities else ()
        if len(set(names)) < len(names):
            names = [str(index) for index in range(len(names))]
        return ["id", "label", "label_index", "confidence", *(f"prob_{name}" for name in names)]
