"""A model's inputs as it declares them: what data must become before it is fed."""

from dataclasses import dataclass

import numpy as np

Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class ModelInput:
    """One input of a model."""

    name: str
    shape: Shape  # batch first; None where it is free
    dtype: np.dtype[np.generic]

    def describe(self) -> str:
        """Return dtype and shape of a row, such as ``float32 [N, 1, 28, 28]``."""
        sizes = ["N", *("?" if size is None else str(size) for size in self.shape[1:])]
        return f"{self.dtype} [{', '.join(sizes)}]"
