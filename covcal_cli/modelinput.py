"""What a model declares about one of its inputs: what data must become before it is fed."""

from dataclasses import dataclass

import numpy as np

Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class ModelInput:
    """One input of a model.

    Attributes
    ----------
    name : str
        As the model calls it.
    shape : tuple of (int or None)
        Batch first; None where it is free.
    dtype : numpy.dtype
        Element type.
    """

    name: str
    shape: Shape
    dtype: np.dtype[np.generic]

    def describe(self) -> str:
        """Return dtype and shape of a row, such as ``float32 [N, 1, 28, 28]``."""
        sizes = ["N", *("?" if size is None else str(size) for size in self.shape[1:])]
        return f"{self.dtype} [{', '.join(sizes)}]"
