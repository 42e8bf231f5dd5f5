"""The head of a torch program: the last linear layers, found in a trace and fitted to its output.

The trace says which layers the output comes from; ``torch_fit.py`` says how. A layer that is run at
every pixel or token counts if the output uses the mean over them, or one of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covcal_cli.errors import CovcalError
from covcal_cli.models import proof
from covcal_cli.models.proof import ONE_NUMBER, notes_on_tail
from covcal_cli.models.torch_arrays import to_array
from covcal_cli.models.torch_fit import Fit, fit
from covcal_cli.models.torch_layers import LayerCall
from covcal_cli.models.torch_program import ONLY_OUTPUT
from covcal_cli.models.torch_trace import Trace

Array = NDArray[np.float64]
_MOST_POSITIONS = 1024
_FOLLOWERS_SHOWN = 3
_ENOUGH_ROWS = 3  # to tell a constant that is added to the logits from the logits
# bfloat16 keeps eight bits, so its sums of products lose more than proof.py's dtypes do.
_BFLOAT16 = 4e-2
OTHER_WAYS = "pass --phi NAME or input to choose the features, or --phi none for the logits alone"


@dataclass(frozen=True)
class Part:
    """One of the linear layers of a head.

    Attributes
    ----------
    name, op : str
        As in `LayerCall`.
    key : tuple
        Tells its calls from others'.
    turn : int
        Which of its calls in a run, counted from the last one (-1).
    position : int or None
        The pixel or token that is used; None for the mean over them.
    """

    name: str
    op: str
    key: tuple[object, ...]
    turn: int
    position: int | None


@dataclass(frozen=True)
class Head:
    """Last linear layers: logits = phi W^T + b.

    Attributes
    ----------
    parts : tuple of Part
        Several for averaged heads; phi is then what they read, side by side.
    output : str
        Name of the output that holds the classes.
    fit : Fit
        How the output follows from the parts' results.
    weight : array, shape (K, d)
        Where a single number stands for two classes, a row of zeros comes before its weights.
    bias : array, shape (K,)
    limit : float
        The relative error that rounding in the layers' precision explains.
    """

    parts: tuple[Part, ...]
    output: str
    fit: Fit
    weight: Array
    bias: Array
    limit: float

    @property
    def layer(self) -> str:
        """The layers' names, with their operator."""
        return " + ".join(_described(part.op, part.name) for part in self.parts)

    @property
    def features(self) -> str:
        """What it reads, as ``--phi`` names it."""
        return " + ".join(f"{part.name}.input" for part in self.parts)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know."""
        single = self.fit.is_single
        return (*([ONE_NUMBER] if single else []), *notes_on_tail(self.tail, is_single=single))

    @property
    def tail(self) -> str:
        """What makes the output of the logits."""
        return self.fit.tail

    def reads(self, features: Array, logits: Array) -> bool:
        """Return whether the logits are W and b applied to `features`, shape (n, d)."""
        if features.shape[1] != self.weight.shape[1]:
            return False
        made = proof.affine(features, self.weight, self.bias)
        return proof.relative_error(made, logits) <= self.limit

    def read(self, calls: Sequence[LayerCall], n: int) -> tuple[Array, Array] | None:
        """Return phi, shape (n, d), and logits, shape (n, K), or None where the run had no such."""
        features, results = [], []
        for part in self.parts:
            own = [call for call in calls if call.key == part.key]
            values = own[part.turn].rows(n) if len(own) >= -part.turn else None
            if values is None:
                return None
            x, z = (_reduced(value, part.position) for value in values)
            features.append(x)
            results.append(z)
        return np.concatenate(features, axis=1), self.fit.logits(results)


@dataclass(frozen=True)
class Probe:
    """A program's run on n made rows: how it went, and what its last layers read and gave.

    Attributes
    ----------
    trace : Trace
        Of one run.
    choices : mapping of str to Tensor
        Those of its outputs that may hold the classes.
    outputs : mapping of str to Tensor
        The outputs of a second run, in which
    calls : sequence of LayerCall
        are the last layers' calls.
    n : int
    where : str
        The model, for messages.
    """

    trace: Trace
    choices: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    calls: Sequence[LayerCall]
    n: int
    where: str


def find_head(probe: Probe) -> Head:
    """Find the head of one of several outputs.

    Raises
    ------
    CovcalError
        If no output, or several, has logits that are affine in what its last layers read.
    """
    heads: dict[str, Head] = {}
    reasons: list[str] = []
    for name, output in probe.choices.items():
        layers, followers = probe.trace.last_layers(output)
        found = _fitted(probe, layers, name)
        if found is None:
            reasons.append(_reason(name, layers, followers))
        else:
            heads[name] = found
    chosen = _one_head(probe, heads)
    if chosen is None:
        few = ", as far as so few rows show" if probe.n < _ENOUGH_ROWS else ""
        other = f"export it with a dynamic batch, or {OTHER_WAYS}" if few else OTHER_WAYS
        raise CovcalError(f"{probe.where}: {reasons[0]}{few}: {other}")
    return chosen


def _reduced(values: Tensor, position: int | None) -> Array:
    if position is None:
        return to_array(values.mean(dim=1, dtype=torch.float64))
    return to_array(values[:, position])


def _fitted(probe: Probe, found_layers: Sequence[LayerCall], name: str) -> Head | None:
    if not found_layers or not all(layer.plain for layer in found_layers):
        return None
    turns = [probe.trace.turn(layer) for layer in found_layers]
    layers = []
    for layer, turn in zip(found_layers, turns, strict=True):
        own = [call for call in probe.calls if call.key == layer.key]
        if len(own) < -turn:
            return None  # the second run went another way
        layers.append(own[turn])
    n, output = probe.n, probe.outputs[name]
    by_row = [layer.rows(n) for layer in layers]
    answer = to_array(output)
    if output.is_floating_point():
        answer = answer.reshape(n, -1)
    limit = max(_tolerance(layer.result.dtype) for layer in layers)
    values = [value for value in by_row if value is not None]
    if len(values) < len(layers):
        return None
    tokens = not any(layer.is_convolution for layer in layers)
    for position in _positions([x.shape[1] for x, _ in values], tokens=tokens):
        results = [_reduced(z, position) for _, z in values]
        found = fit(results, answer, limit)
        if found is None:
            continue
        k = results[0].shape[1]
        blocks, bias = [], found.offset
        for layer, factor in zip(layers, found.factors, strict=True):
            blocks.append(to_array(layer.weight) * np.broadcast_to(factor, k)[:, None])
            if layer.bias is not None:
                bias = bias + factor * to_array(layer.bias).reshape(k)
        parts = tuple(
            Part(layer.name, layer.op, layer.key, turn, position)
            for layer, turn in zip(layers, turns, strict=True)
        )
        weight = np.concatenate(blocks, axis=1)
        if found.is_single:
            weight = np.concatenate([np.zeros_like(weight), weight])
            bias = np.concatenate([np.zeros_like(bias), bias])
        return Head(parts, name, found, weight, bias, limit)
    return None


def _positions(counts: Sequence[int], *, tokens: bool) -> Iterator[int | None]:
    """Yield what may be done with the positions of a row: their mean, or one of the tokens."""
    most = min(counts)
    if most == 1:
        yield 0
        return
    yield None
    if tokens:
        yield from range(min(most, _MOST_POSITIONS))


def _tolerance(dtype: torch.dtype) -> float:
    if dtype == torch.bfloat16:
        return _BFLOAT16
    return proof.tolerance(np.dtype(np.float16 if dtype == torch.float16 else np.float32))


def _one_head(probe: Probe, heads: Mapping[str, Head]) -> Head | None:
    """Return the only head, leaving out outputs from inside the network."""
    inside: dict[str, set[int]] = {}
    own: dict[str, set[int]] = {}
    for name in heads:
        layers, _ = probe.trace.last_layers(probe.choices[name])
        own[name] = {id(layer) for layer in layers}
        inside[name] = {id(before) for layer in layers for before in probe.trace.before(layer)}
    kept = [
        head
        for name, head in heads.items()
        if not any(own[name] <= inside[other] for other in heads if other != name)
    ]
    if not kept:
        return None
    if len({head.parts for head in kept}) > 1:
        described = ", ".join(f"{head.output} (from {head.layer})" for head in kept)
        raise CovcalError(
            f"{probe.where} has {len(kept)} outputs that could hold the classes: {described}: "
            "choose one with --model-output NAME"
        )
    # Logits and their softmax: the logits show more.
    return min(kept, key=lambda head: [*proof.TAILS, proof.ARGMAX].index(head.fit.tail))


def _reason(output: str, layers: Sequence[LayerCall], followers: Sequence[str]) -> str:
    name = "the output" if output == ONLY_OUTPUT else f"output {output}"
    if not layers:
        return f"no linear layer with fixed weights comes before {name}"
    described = ", ".join(dict.fromkeys(_described(layer.op, layer.name) for layer in layers))
    if len(layers) > 1:
        return f"{len(layers)} layers ({described}) feed {name}, which is no sum of them"
    if not layers[0].plain:
        return (
            f"{described}, the last layer with weights before {name}, is not a plain 1x1 "
            "convolution, so the logits are not affine in a feature vector"
        )
    after = list(dict.fromkeys(followers))[:_FOLLOWERS_SHOWN]
    shown = f" ({', '.join(after)} follow{'s' if len(after) == 1 else ''} it)" if after else ""
    return (
        f"{name} is neither the logits of {described} nor their softmax, so it is not "
        f"affine in what that layer reads{shown}"
    )


def _described(op: str, name: str) -> str:
    return op if name == op else f"{op} {name}"
