"""One name for every kind of array that covcal passes about, and for values that they share."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]  # of any width: logits as a file or a model gives them
Float32s = NDArray[np.float32]  # as files keep logits and features
Float64s = NDArray[np.float64]  # in mathematics: class-major logits, weights, losses
Integers = NDArray[np.int64]  # counts; numbers of bins, groups or cells
Labels = NDArray[np.int64]  # classes 0 .. K-1; `UNKNOWN_LABEL` where there is none
Splits = NDArray[np.uint8]  # of rows: 0 train, 1 validation, 2 test
Rows = NDArray[np.int64]  # row numbers of a domain, ascending
Booleans = NDArray[np.bool_]
AnyArray = NDArray[Any]  # of any kind: what a model is fed or gives, what data hold
Inputs = Mapping[str, AnyArray]  # what a model is fed, shape (m, ...), by input name

UNKNOWN_LABEL = -1  # in `Labels`
# The smallest float32 that keeps all its digits; the logarithm of a zero is no number.
SMALLEST_FLOAT32 = float(np.finfo(np.float32).tiny)


# A model's inputs as it declares them: what data must become before it is fed.

Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class ModelInput:
    """One input of a model."""

    name: str
    shape: Shape  # batch first; None where it is free
    dtype: np.dtype[np.generic]
    takes_missing: bool = False  # whether NaN is a value to it, as to decision trees

    def describe(self) -> str:
        """Return dtype and shape of a row, such as ``float32 [N, 1, 28, 28]``."""
        sizes = ["N", *("?" if size is None else str(size) for size in self.shape[1:])]
        return f"{self.dtype} [{', '.join(sizes)}]"
