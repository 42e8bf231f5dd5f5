"""Torch's AdamW or SGD on a schedule."""

from collections.abc import Sequence

import torch
from torch import Tensor

from covcal_cli.adapt.settings import Schedule

_MOMENTUM = 0.9
# A low first beta: momentum makes the game between psi and D-bar circle.
_BETAS = (0.5, 0.99)


class ScheduledOptimiser:
    """Steps down the gradient of a loss at the schedule's learning rate.

    Each group has leaf tensors, and the multiple of the learning rate that is theirs; `n_rows`, the
    training rows of the larger domain, define an epoch.
    """

    def __init__(
        self, groups: Sequence[tuple[list[Tensor], float]], schedule: Schedule, n_rows: int
    ) -> None:
        self._schedule, self._n_rows = schedule, n_rows
        parameters = [{"params": tensors, "speed": speed} for tensors, speed in groups]
        decay = schedule.weight_decay
        self._optimiser: torch.optim.Optimizer
        if schedule.optimiser == "adamw":
            self._optimiser = torch.optim.AdamW(
                parameters, betas=_BETAS, weight_decay=decay, fused=True
            )
        else:
            self._optimiser = torch.optim.SGD(
                parameters, momentum=_MOMENTUM, weight_decay=decay, fused=True
            )

    def step(self, loss: Tensor, step: int) -> None:
        """Take step number `step` (from 0) down the gradient of `loss`."""
        for group in self._optimiser.param_groups:
            group["lr"] = self._schedule.rate(step, self._n_rows) * group["speed"]
        self._optimiser.zero_grad()
        torch.autograd.backward(loss)
        self._optimiser.step()
