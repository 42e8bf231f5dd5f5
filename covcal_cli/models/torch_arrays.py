"""Torch tensors as NumPy arrays."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_array(tensor: Tensor) -> NDArray[np.float64]:
    """Return a tensor's values as float64, whatever its precision and device."""
    array: NDArray[np.float64] = tensor.detach().cpu().to(torch.float64).numpy()
    return array
