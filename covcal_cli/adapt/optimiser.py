"""AdamW and SGD on a schedule, over all parameters as one vector.

Torch's own optimisers load its compiler at the first use, which costs two seconds: as much as the
whole alignment of a member.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from covcal_cli.adapt.settings import Schedule

_MOMENTUM = 0.9
# A low first beta: momentum makes the game between psi and D-bar circle.
_BETAS = (0.5, 0.99)
_EPSILON = 1e-8


class ScheduledOptimiser:
    """Steps down the gradient of a loss at the schedule's learning rate.

    Parameters
    ----------
    groups : sequence of (list of Tensor, float)
        Leaf tensors, and the multiple of the learning rate that is theirs.
    schedule : Schedule
    n_rows : int
        Training rows of the larger domain, which define an epoch.
    """

    def __init__(
        self, groups: Sequence[tuple[list[Tensor], float]], schedule: Schedule, n_rows: int
    ) -> None:
        self._schedule, self._n_rows = schedule, n_rows
        self._parameters = [tensor for tensors, _ in groups for tensor in tensors]
        self._sizes = [tensor.numel() for tensor in self._parameters]
        self._speed = torch.cat(
            [torch.full_like(t, speed).detach().flatten() for ts, speed in groups for t in ts]
        )
        self._first = torch.zeros_like(self._speed)
        self._second = torch.zeros_like(self._speed)

    def step(self, loss: Tensor, step: int) -> None:
        """Take step number `step` (from 0) down the gradient of `loss`."""
        gradients = torch.autograd.grad(loss, self._parameters)
        with torch.no_grad():
            gradient = torch.cat([part.reshape(-1) for part in gradients])
            values = torch.cat([tensor.reshape(-1) for tensor in self._parameters])
            if self._schedule.optimiser == "adamw":
                move = self._adamw(gradient, values, step)
            else:
                move = self._sgd(gradient, values)
            move *= self._speed * self._schedule.rate(step, self._n_rows)
            for tensor, part in zip(self._parameters, move.split(self._sizes), strict=True):
                tensor -= part.view_as(tensor)

    def _adamw(self, gradient: Tensor, values: Tensor, step: int) -> Tensor:
        """Adam with bias correction and decoupled weight decay (Loshchilov and Hutter 2019)."""
        self._first.lerp_(gradient, 1 - _BETAS[0])
        self._second.lerp_(gradient.square(), 1 - _BETAS[1])
        first = self._first / (1 - _BETAS[0] ** (step + 1))
        second = self._second / (1 - _BETAS[1] ** (step + 1))
        return first / (second.sqrt() + _EPSILON) + self._schedule.weight_decay * values

    def _sgd(self, gradient: Tensor, values: Tensor) -> Tensor:
        self._first.mul_(_MOMENTUM).add_(gradient + self._schedule.weight_decay * values)
        return self._first.clone()
