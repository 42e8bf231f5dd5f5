"""Types of arrays, constants, and the number of BLAS threads."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]
Integers = NDArray[np.int64]  # Counts and indexes.
Labels = NDArray[np.int64]  # Class numbers from 0 to K-1, or `UNKNOWN_LABEL`.
Splits = NDArray[np.uint8]  # Split of each row: 0 train, 1 validation, 2 test.
Rows = NDArray[np.int64]  # Ascending row numbers.
Booleans = NDArray[np.bool_]
AnyArray = NDArray[Any]
Inputs = Mapping[str, AnyArray]  # Model inputs of shape (m, ...), by name.

UNKNOWN_LABEL = -1  # Class number of a row without a label.
# Logarithms use this number instead of a probability of 0.
SMALLEST_FLOAT32 = float(np.finfo(np.float32).tiny)


# The meaning of texts such as "yes" and "0", in lower case.
TRUTH = dict.fromkeys(("1", "1.0", "1,0", "true", "yes", "present"), True)
TRUTH |= dict.fromkeys(("0", "0.0", "0,0", "false", "no", "absent"), False)


Shape = tuple[int | None, ...]


def shape_text(shape: Shape) -> str:
    """Return a shape as text, such as ``[?, 3, 28]``; ``?`` stands for any size."""
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


@dataclass(frozen=True)
class ModelInput:
    """An input that a model declares."""

    name: str
    shape: Shape  # None means any size.
    dtype: np.dtype[np.generic]
    takes_missing: bool = False  # whether the model accepts NaN, as decision trees do

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Return whether the input accepts arrays of this shape; the number of rows may differ."""
        return len(shape) == len(self.shape) and all(
            want in (None, have) for want, have in zip(self.shape[1:], shape[1:], strict=True)
        )

    def describe(self) -> str:
        """Return the type and shape as text, such as ``float32 [N, 1, 28, 28]``."""
        sizes = ["N", *("?" if size is None else str(size) for size in self.shape[1:])]
        return f"{self.dtype} [{', '.join(sizes)}]"


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Use one BLAS thread in the block, because waiting threads cost more time than they save.

    The number of threads does not change without threadpoolctl, or if OPENBLAS_NUM_THREADS is set.
    """
    if "OPENBLAS_NUM_THREADS" in os.environ or find_spec("threadpoolctl") is None:
        yield
        return
    with import_module("threadpoolctl").threadpool_limits(1, "blas"):
        yield
