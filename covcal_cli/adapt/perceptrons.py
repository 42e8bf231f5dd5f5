"""Train M independent perceptrons together, one for each ensemble member.

Each member has its own random generator on the CPU. A member's random numbers are therefore the
same on every device.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from covcal_cli.adapt.settings import Loss, Schedule
from covcal_cli.arrays import Float32s


def member_generators(seed: int, members: int, purpose: int) -> list[Generator]:
    """Return one seeded generator per ensemble member."""
    generators = []
    for member in range(members):
        state = np.random.SeedSequence([seed, member, purpose]).generate_state(1, np.uint64)[0]
        generators.append(Generator().manual_seed(int(state >> np.uint64(1))))
    return generators


class Dropout:
    """A dropout layer with one random generator per member."""

    def __init__(self, share: float, generators: Sequence[Generator]) -> None:
        self._keep = 1.0 - share
        self._generators = generators

    def __call__(self, values: Tensor) -> Tensor:
        """Return `values`, (M, n, h), after dropout."""
        if self._keep == 1.0:
            return values
        shape = values.shape[1:]
        draws = [torch.rand(shape, generator=generator) for generator in self._generators]
        mask = (torch.stack(draws) < self._keep).to(values.dtype) / self._keep
        return values * mask.to(values.device)


class Perceptrons:
    """M perceptrons of the same shape, one for each ensemble member.

    Weights have shape (M, inputs, outputs), and biases (M, 1, outputs). A ReLU follows each hidden
    layer.
    """

    def __init__(
        self, weights: list[Tensor], biases: list[Tensor], *, output_relu: bool = False
    ) -> None:
        self.weights, self.biases, self.output_relu = weights, biases, output_relu

    @classmethod
    def create(
        cls,
        widths: Sequence[int],
        generators: Sequence[Generator],
        device: torch.device,
        *,
        output_relu: bool = False,
        xavier: bool = False,
    ) -> Self:
        """Draw initial weights.

        `widths`: the number of inputs, then the width of each layer. With `xavier`, weights are
        Xavier-normal and biases are 0, as in the paper's discriminator. By default, weights and
        biases are uniform, as in torch's linear layer.
        """

        def uniform(shape: tuple[int, int], spread: float) -> list[Tensor]:
            return [(torch.rand(shape, generator=g) * 2 - 1) * spread for g in generators]

        weights, biases = [], []
        for inputs, outputs in pairwise(widths):
            if xavier:
                spread = (2.0 / (inputs + outputs)) ** 0.5
                drawn = [torch.randn((inputs, outputs), generator=g) * spread for g in generators]
                bias = [torch.zeros((1, outputs)) for _ in generators]
            else:
                drawn = uniform((inputs, outputs), inputs**-0.5)
                bias = uniform((1, outputs), inputs**-0.5)
            weights.append(torch.stack(drawn).to(device).requires_grad_())
            biases.append(torch.stack(bias).to(device).requires_grad_())
        return cls(weights, biases, output_relu=output_relu)

    def __call__(self, inputs: Tensor, dropout: Dropout | None = None) -> Tensor:
        """Return the outputs, (M, n, outputs), for `inputs`, (M or 1, n, inputs)."""
        return self.forward(inputs, dropout)[0]

    def forward(
        self, inputs: Tensor, dropout: Dropout | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the outputs, (M, n, outputs), and the activations of each hidden layer."""
        members = self.weights[0].shape[0]
        values = inputs.expand(members, -1, -1)
        hidden: list[Tensor] = []
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = torch.baddbmm(bias, values, weight)
            if layer < last or self.output_relu:
                values = torch.relu(values)
            if layer < last:
                if dropout is not None:
                    values = dropout(values)
                hidden.append(values)
        return values, hidden

    def parameters(self) -> list[Tensor]:
        """Return every weight and bias."""
        return [*self.weights, *self.biases]

    def copy(self) -> Self:
        """Return a copy that shares no memory and has no gradients."""
        return type(self)(
            [weight.detach().clone() for weight in self.weights],
            [bias.detach().clone() for bias in self.biases],
            output_relu=self.output_relu,
        )

    def take_members(self, other: Self, members: Sequence[int]) -> None:
        """Copy the weights of `members` from `other`."""
        for own, new in zip(self.parameters(), other.parameters(), strict=True):
            own[list(members)] = new[list(members)].detach()

    def arrays(self) -> dict[str, Float32s]:
        """Return the weights as NumPy arrays, named ``weight_0``, ``bias_0`` and so on."""
        named = {}
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            named[f"weight_{layer}"] = weight.detach().cpu().numpy()
            named[f"bias_{layer}"] = bias.detach().cpu().numpy()[:, 0]
        return named


def input_gradient_penalty(discriminators: Perceptrons, hidden: list[Tensor]) -> Tensor:
    """Return the mean squared norm of the input gradient for each member, shape (M,).

    The discriminators have one output and no dropout. `hidden` has the activations of the hidden
    layers, from `Perceptrons.forward`. The gradient of a ReLU network is a product of weights and
    0/1 masks.
    """
    gradient = discriminators.weights[-1].transpose(1, 2)
    for weight, activation in zip(
        reversed(discriminators.weights[:-1]), reversed(hidden), strict=True
    ):
        masked = gradient * (activation > 0).to(weight.dtype)
        gradient = torch.bmm(masked, weight.transpose(1, 2))
    return gradient.square().sum(dim=2).mean(dim=1)


# Training minimises the sum of the members' losses. Members share no weights, so each member is
# trained independently.
def forecaster_loss(logits: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    """Return each ensemble member's mean loss over labelled rows, shape (M,).

    `logits` has shape (M, n, K), and `labels` has shape (M, n). Rows with the label -1 are ignored.
    The loss "squared" is the Brier score, summed over the classes.
    """
    is_labelled = labels >= 0
    safe = labels.clamp(min=0)
    if loss == "squared":
        truth = functional.one_hot(safe, logits.shape[2]).to(logits.dtype)
        rows = (torch.softmax(logits, dim=2) - truth).square().sum(dim=2)
    else:
        rows = -torch.log_softmax(logits, dim=2).gather(2, safe.unsqueeze(2)).squeeze(2)
    return (rows * is_labelled).sum(dim=1) / is_labelled.sum(dim=1).clamp(min=1)


def domain_loss(source: Tensor, target: Tensor, loss: Loss) -> Tensor:
    """Return the discriminator loss, (M,), as the mean over both domains.

    `source`, (M, n), and `target`, (M, m), are discriminator logits; positive means source.
    """
    if loss == "squared":
        from_source = (1.0 - torch.sigmoid(source)).square()
        from_target = torch.sigmoid(target).square()
    else:
        from_source, from_target = functional.softplus(-source), functional.softplus(target)
    return (from_source.mean(dim=1) + from_target.mean(dim=1)) / 2


_MOMENTUM = 0.9
# With AdamW's usual first beta of 0.9, psi and the discriminator only oscillate.
_BETAS = (0.5, 0.99)
# A function of gradients, learning rate and weight decay that changes weights in place.
Update = Callable[[list[Tensor], float, float], None]


class ScheduledOptimiser:
    """AdamW or SGD with a learning rate factor for each group of tensors."""

    def __init__(
        self, groups: Sequence[tuple[list[Tensor], float]], schedule: Schedule, n_rows: int
    ) -> None:
        self._schedule, self._n_rows = schedule, n_rows
        step = _adamw if schedule.optimiser == "adamw" else _sgd
        self._groups = [(tensors, speed, step(tensors)) for tensors, speed in groups]

    def step(self, loss: Tensor, step: int) -> None:
        """Take one training step that lowers `loss`."""
        rate, decay = self._schedule.rate(step, self._n_rows), self._schedule.weight_decay
        torch.autograd.backward(loss)
        for tensors, speed, update in self._groups:
            gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
            with torch.no_grad():
                update(gradients, rate * speed, decay)
            for tensor in tensors:
                tensor.grad = None


# torch's own optimisers import torch's compiler, which takes two seconds.


def _adamw(tensors: list[Tensor]) -> Update:
    means, squares = ([torch.zeros_like(tensor) for tensor in tensors] for _ in range(2))
    counts = [torch.zeros((), device=tensor.device) for tensor in tensors]
    return lambda gradients, rate, decay: adamw(
        tensors,
        gradients,
        means,
        squares,
        [],
        counts,
        lr=rate,
        weight_decay=decay,
        beta1=_BETAS[0],
        beta2=_BETAS[1],
        eps=1e-8,
        fused=True,
        amsgrad=False,
        maximize=False,
    )


def _sgd(tensors: list[Tensor]) -> Update:
    momenta: list[Tensor | None] = [None for _ in tensors]
    return lambda gradients, rate, decay: sgd(
        tensors,
        gradients,
        momenta,
        lr=rate,
        weight_decay=decay,
        momentum=_MOMENTUM,
        fused=True,
        dampening=0.0,
        nesterov=False,
        maximize=False,
    )


# A gradient reversal layer (Ganin et al., 2016).
class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, coefficient: float) -> Tensor:
        ctx.coefficient = coefficient
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -ctx.coefficient * gradients[0], None


def reverse_gradient(values: Tensor, coefficient: float) -> Tensor:
    """Return `values` unchanged. The backward pass multiplies the gradient by ``-coefficient``."""
    apply: Callable[..., Tensor] = _Reversal.apply  # torch does not annotate `apply`
    return apply(values, coefficient)
