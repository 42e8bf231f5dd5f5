"""Names for the types of arrays that covcal uses, and constants for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]  # any precision, for logits of a file or a model
Float32s = NDArray[np.float32]  # logits and features in files
Float64s = NDArray[np.float64]  # for computations: class-major logits (K, n), weights, losses
Integers = NDArray[np.int64]  # counts, or indexes of bins, groups or cells
Labels = NDArray[np.int64]  # classes 0 .. K-1; `UNKNOWN_LABEL` if there is no label
Splits = NDArray[np.uint8]  # the split of each row: 0 train, 1 validation, 2 test
Rows = NDArray[np.int64]  # row numbers of a domain, ascending
Booleans = NDArray[np.bool_]
AnyArray = NDArray[Any]  # any type: inputs and outputs of a model, or data
Inputs = Mapping[str, AnyArray]  # inputs of a model, shape (m, ...), by input name

UNKNOWN_LABEL = -1  # the class number of a row without a label
# the smallest float32 with full precision, which replaces a probability of 0 in a logarithm
SMALLEST_FLOAT32 = float(np.finfo(np.float32).tiny)


# The inputs that a model declares.

Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class ModelInput:
    """An input that a model declares."""

    name: str
    shape: Shape  # the sizes of the axes, rows first; None if the model allows any size
    dtype: np.dtype[np.generic]
    takes_missing: bool = False  # whether the model accepts NaN, as decision trees do

    def describe(self) -> str:
        """Return the type and shape as text, such as ``float32 [N, 1, 28, 28]``."""
        sizes = ["N", *("?" if size is None else str(size) for size in self.shape[1:])]
        return f"{self.dtype} [{', '.join(sizes)}]"
