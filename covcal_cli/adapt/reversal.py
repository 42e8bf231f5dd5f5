"""The gradient reversal layer of Ganin et al. (2016)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, coefficient: float) -> Tensor:
        ctx.coefficient = coefficient
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -ctx.coefficient * gradients[0], None


def reverse_gradient(values: Tensor, coefficient: float) -> Tensor:
    """Return `values` unchanged; the gradient that flows back is multiplied by ``-coefficient``."""
    apply: Callable[..., Tensor] = _Reversal.apply  # torch leaves it without a type
    return apply(values, coefficient)
