"""One name for every kind of array that covcal passes about."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]  # of any width: logits as a file or a model gives them
Float32s = NDArray[np.float32]  # as files keep logits and features
Float64s = NDArray[np.float64]  # in mathematics: class-major logits, weights, losses
Labels = NDArray[np.int64]  # classes 0 .. K-1; -1 where a label is unknown
Rows = NDArray[np.int64]  # row numbers of a domain, ascending
Booleans = NDArray[np.bool_]
