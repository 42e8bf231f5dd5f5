"""How a model's output follows from its last linear layers, found from a few rows of numbers.

What comes after the layers is not read but fitted: a factor (temperature, cosine scale), a factor
per class (batch norm), an added constant, a weighted sum of several layers (averaged heads), each
before any of the tails of ``proof.py``. Every later batch is held to what was found.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covcal_cli.classifiers import proof
from covcal_cli.classifiers.proof import ONE_NUMBER, notes_on_tail
from covcal_cli.classifiers.torch.program import ONLY_OUTPUT, Program, to_array
from covcal_cli.classifiers.torch.trace import LayerCall, Trace, tensors
from covcal_cli.errors import CovcalError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """logits = sum over layers of factor * result, plus offset; output = tail(logits)."""

    tail: str  # one of `covcal_cli.classifiers.proof.TAILS`, or ``proof.ARGMAX``
    factors: tuple[Array, ...]  # shape () or (K,): one per layer
    # shape (K,): K is the width of the results: 1 where a single number stands for two classes
    offset: Array

    @property
    def is_single(self) -> bool:
        """Whether the layers give one number per row, z, for the logits 0 and z of two classes."""
        return len(self.offset) == 1

    def logits(self, results: Sequence[Array]) -> Array:
        """Return the logits, shape (n, K), or (n, 2) of single numbers, of the layers' results."""
        scores = results[0] if len(results) == 1 and self.is_plain else self._scores(results)
        return proof.two_logits(scores) if self.is_single else scores

    def _scores(self, results: Sequence[Array]) -> Array:
        return sum(
            (factor * result for factor, result in zip(self.factors, results, strict=True)),
            start=self.offset,
        )

    @property
    def is_plain(self) -> bool:
        """Whether the logits are the only layer's result."""
        return (
            len(self.factors) == 1
            and bool((self.factors[0] == 1).all())
            and not (self.offset.any())
        )


def fit(results: Sequence[Array], output: Array, limit: float) -> Fit | None:
    """Return how `output` follows from the layers' results, or None where it does not.

    Parameters
    ----------
    results : sequence of array, shape (n, K)
        What the last layers gave; K = 1 stands for two classes.
    output : array, shape (n, K), or (n, 2) where K = 1, or of integers, shape (n,)
        The model's output.
    limit : float
        Largest relative error allowed.
    """
    k = results[0].shape[1]
    if len(results) == 1:
        for tail in proof.TAILS if output.ndim > 1 else (proof.ARGMAX,):
            plain = Fit(tail, (np.ones(()),), np.zeros(k))
            if proof.tail_error(tail, plain.logits(results), output) <= limit:
                return plain
    if k == 1 and len(output) < len(results) + 2:
        return None  # so few numbers fit whatever follows the layers
    if any(result.shape != output.shape for result in results):
        return None
    for tail, target in _before_tail(output):
        for factors, offset in _affine_maps(results, target, up_to_a_constant=tail != "none"):
            found = Fit(tail, factors, offset)
            if proof.tail_error(tail, found.logits(results), output) <= limit:
                return found
    return None


def _before_tail(output: Array) -> Iterator[tuple[str, Array]]:
    """Yield the tails that `output` may have, and its logits up to a constant per row."""
    yield "none", output
    if not np.isfinite(output).all():
        return
    if (output > 0).all() and np.allclose(output.sum(axis=1), 1, atol=1e-3):
        yield "softmax", np.log(output)
    if (output <= 0).all() and np.allclose(np.exp(output).sum(axis=1), 1, atol=1e-3):
        yield "log_softmax", output


def _affine_maps(
    results: Sequence[Array], target: Array, *, up_to_a_constant: bool
) -> Iterator[tuple[tuple[Array, ...], Array]]:
    """Yield least-squares factors and offsets from results to target, the simplest first."""

    def centred(values: Array, axes: tuple[int, ...]) -> Array:
        for axis in axes:
            values = values - values.mean(axis=axis, keepdims=True)
        return values

    classes = (1,) if up_to_a_constant else ()
    for axes in (classes, (*classes, 0)):  # without and with an offset
        columns = np.stack([centred(result, axes).ravel() for result in results], axis=1)
        factors, _, rank, _ = np.linalg.lstsq(columns, centred(target, axes).ravel(), rcond=1e-9)
        if rank < len(results) or not factors.all():
            continue
        scaled = sum((f * z for f, z in zip(factors, results, strict=True)), start=np.zeros(()))
        offset = centred(target - scaled, classes).mean(axis=0) if 0 in axes else np.zeros(1)
        yield tuple(np.asarray(factor) for factor in factors), offset * np.ones(target.shape[1])
    if len(results) == 1 and not up_to_a_constant and len(target) > 2:
        z, y = centred(results[0], (0,)), centred(target, (0,))
        power = (z * z).sum(axis=0)
        if (power > 0).all():
            factors = (z * y).sum(axis=0) / power
            yield (factors,), (target - factors * results[0]).mean(axis=0)


# The head of a torch program: the last linear layers, found in a trace and fitted to its output.
#
# The trace says which layers the output comes from; ``torch_fit.py`` says how. A layer that is
# run at every pixel or token counts if the output uses the mean over them, or one of them.

_MOST_POSITIONS = 1024
_FOLLOWERS_SHOWN = 3
_ENOUGH_ROWS = 3  # to tell a constant that is added to the logits from the logits
# bfloat16 keeps eight bits, so its sums of products lose more than proof.py's dtypes do.
_BFLOAT16 = 4e-2
OTHER_WAYS = "pass --phi NAME or input to choose the features, or --phi none for the logits alone"


@dataclass(frozen=True)
class Part:
    """One of the linear layers of a head."""

    # as in `LayerCall`
    name: str
    op: str
    key: tuple[object, ...]  # tells its calls from others'
    turn: int  # which of its calls in a run, counted from the last one (-1)
    position: int | None  # the pixel or token that is used; None for the mean over them


@dataclass(frozen=True)
class Head:
    """Last linear layers: logits = phi W^T + b."""

    parts: tuple[Part, ...]  # several for averaged heads; phi is then what they read, side by side
    output: str  # name of the output that holds the classes
    fit: Fit  # how the output follows from the parts' results
    # shape (K, d): where a single number stands for two classes, a row of zeros comes before its
    # weights
    weight: Array
    bias: Array  # shape (K,)
    limit: float  # the relative error that rounding in the layers' precision explains

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
    """A program's run on n made rows: how it went, and what its last layers read and gave."""

    trace: Trace  # of one run
    choices: Mapping[str, Tensor]  # those of its outputs that may hold the classes
    outputs: Mapping[str, Tensor]  # the outputs of a second run, in which
    calls: Sequence[LayerCall]  # are the last layers' calls
    n: int
    where: str  # the model, for messages


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


# Which output of a torch program holds the classes, and its logits where no layer gives them.

_USUAL = "logits"
_SUM = 1e-3
_TINY = float(np.finfo(np.float32).tiny)


def may_hold_classes(
    outputs: Mapping[str, Tensor], wanted: str | None, n: int, where: str
) -> dict[str, Tensor]:
    """Return the outputs that may hold the classes of n rows.

    Parameters
    ----------
    outputs : mapping of str to Tensor
    wanted : str or None
        The user's choice; else an output called logits comes before others.
    n : int
    where : str
        The model, for messages.

    Raises
    ------
    CovcalError
        If `wanted` is missing, or no output has one vector per row.
    """
    described = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in outputs.items())
    if wanted is not None and wanted not in outputs:
        raise CovcalError(f"{where} has no output {wanted!r}: choose one of {described}")
    if wanted is None and _USUAL in outputs and _is_answer(outputs[_USUAL], n):
        wanted = _USUAL
    chosen = {name: value for name, value in outputs.items() if wanted in (None, name)}
    usable = {name: value for name, value in chosen.items() if _is_answer(value, n)}
    # One number per row beside a row of scores is a loss or a by-product.
    wide = {name: value for name, value in usable.items() if value.numel() > n}
    indices = {name: value for name, value in chosen.items() if _is_index(value, n)}
    if usable or indices:
        return wide or usable | indices
    raise CovcalError(
        f"{where} is not a classifier that covcal can use: it gives {described or 'no tensor'} for "
        f"{n} rows, and covcal needs floats of shape [N, classes]: return the logits or "
        "probabilities"
    )


def read_answer(outputs: Mapping[str, Tensor], name: str, n: int, where: str) -> Array:
    """Return one output, shape (n, K), or (n,) for indices.

    Raises
    ------
    CovcalError
        If this run did not give it for every row.
    """
    value = outputs.get(name)
    if value is None or value.numel() == 0 or value.numel() % n:
        found = "nothing" if value is None else list(value.shape)
        raise CovcalError(
            f"{where} gives {found} as {name} for {n} rows: the batch size is fixed inside the "
            "model; pass --batch 1"
        )
    answer = to_array(value)
    return answer.reshape(n, -1) if value.is_floating_point() else answer.reshape(n)


@dataclass(frozen=True)
class Answer:
    """Logits from the output itself, for ``--phi`` with a model that has no linear head."""

    tail: str  # ``"none"``, or ``"softmax"`` where the output holds probabilities
    limit: float = 1e-3  # the relative error allowed between the output and what it is said to be

    @classmethod
    def of(cls, output: Array, where: str) -> "Answer":
        """Tell from a few rows what an output, shape (n, K), holds.

        Raises
        ------
        CovcalError
            If it holds indices, or a single number per row.
        """
        if output.ndim != 2 or output.shape[1] < 2:
            raise CovcalError(
                f"{where} gives one number per row, and no layer before it tells what it means: "
                "return one probability or logit per class"
            )
        sums = np.abs(output.sum(axis=1) - 1)
        return cls("softmax" if (output >= 0).all() and (sums < _SUM).all() else "none")

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know."""
        if self.tail == "none":
            return ("the output is taken as the logits",)
        return (
            "the logits are the logarithms of the output, whose smallest values are rounded off",
        )

    def logits(self, output: Array) -> Array:
        """Return the logits, shape (n, K)."""
        if self.tail == "none":
            return output
        logits: Array = np.log(np.maximum(output, _TINY))
        return logits


def _is_answer(value: Tensor, n: int) -> bool:
    """Return whether `value` is floats with one vector, or one number, per row."""
    if not value.is_floating_point() or value.numel() == 0:
        return False
    if value.ndim == 1:
        return n in (1, len(value))  # some models drop the axis of a single row
    return value.ndim > 1 and len(value) == n and all(size == 1 for size in value.shape[2:])


def _is_index(value: Tensor, n: int) -> bool:
    kind = value.dtype
    return not kind.is_floating_point and not kind.is_complex and value.numel() == n


# Features that the user chose with ``--phi``: the input, or what a named module reads or gives.

_SIDES = (".input", ".output")
_SHOWN = 8


class Tap(Protocol):
    """Where features are read."""

    name: str  # as the user would choose it
    keys: frozenset[tuple[object, ...]]  # layers whose calls it needs
    note: str  # what is done to the values; empty for nothing

    def listen(self) -> Any:
        """Return a context within which the program runs."""
        ...

    def read(self, rows: Sequence[Tensor], _calls: Sequence[LayerCall], /) -> Array:
        """Return the features, shape (n, d), of the run just done."""
        ...


def open_tap(phi: str, program: Program, calls: Sequence[LayerCall]) -> Tap:
    """Find what ``--phi`` names: ``input``, NAME or NAME.output, or NAME.input.

    Parameters
    ----------
    phi : str
    program : Program
    calls : sequence of LayerCall
        The linear layers of a run: of a file's program, those alone can be read.

    Raises
    ------
    CovcalError
        If there is no such module or layer, with those that there are.
    """
    if phi == "input":
        return _InputTap()
    name, side = phi, ".output"
    modules = dict(program.module.named_modules())
    hookable = not isinstance(program.module, torch.jit.ScriptModule | torch.fx.GraphModule)
    layers = {call.name: call for call in calls}
    known = [key for key in modules if key] if hookable else list(layers)
    if name not in known:
        name, side = next(
            ((phi.removesuffix(end), end) for end in _SIDES if phi.endswith(end)), (phi, side)
        )
    if name not in known:
        shown = ", ".join([*known[-_SHOWN:], *(["..."] if len(known) > _SHOWN else [])])
        raise CovcalError(
            f"{program.where} has no {'module' if hookable else 'linear layer'} {phi} for --phi: "
            f"choose input, none, or one of {shown} (its output; add .input for what it reads)"
        )
    if hookable:
        return _ModuleTap(program.where, modules[name], name + side)
    return _LayerTap(program.where, layers[name], name + side)


class _InputTap:
    keys: frozenset[tuple[object, ...]] = frozenset()

    name = "input"
    note = ""

    @contextmanager
    def listen(self) -> Iterator[None]:
        yield

    def read(self, rows: Sequence[Tensor], _calls: Sequence[LayerCall]) -> Array:
        return np.concatenate([to_array(row.flatten(1)) for row in rows], axis=1)


class _ModuleTap:
    keys: frozenset[tuple[object, ...]] = frozenset()

    def __init__(self, where: str, module: torch.nn.Module, name: str) -> None:
        self.name, self._where, self._module = name, where, module
        self.note = ""
        self._value: Tensor | None = None

    @contextmanager
    def listen(self) -> Iterator[None]:
        self._value = None
        register: Callable[..., Any] = self._module.register_forward_hook
        handle = register(self._keep)
        if self.name.endswith(".input"):
            handle.remove()
            handle = self._module.register_forward_pre_hook(self._keep)
        try:
            yield
        finally:
            handle.remove()

    def _keep(self, _module: torch.nn.Module, *values: Any) -> None:
        found = next(tensors(values[-1]), None)
        # What follows may change it in place.
        self._value = None if found is None else found.clone()

    def read(self, rows: Sequence[Tensor], _calls: Sequence[LayerCall]) -> Array:
        if self._value is None:
            raise CovcalError(
                f"{self._where} does not call {self.name} with a tensor: pass another --phi"
            )
        return _vectors(self, self._where, self._value, len(rows[0]))


class _LayerTap:
    def __init__(self, where: str, call: LayerCall, name: str) -> None:
        self.name, self._where, self._key = name, where, call.key
        self.keys: frozenset[tuple[object, ...]] = frozenset({call.key})
        self.note = ""

    @contextmanager
    def listen(self) -> Iterator[None]:
        yield

    def read(self, rows: Sequence[Tensor], calls: Sequence[LayerCall]) -> Array:
        own = [call for call in calls if call.key == self._key]
        if not own:
            raise CovcalError(f"{self._where} did not run {self.name}: pass another --phi")
        value = own[-1].features if self.name.endswith(".input") else own[-1].result
        return _vectors(self, self._where, value, len(rows[0]))


def _vectors(tap: _ModuleTap | _LayerTap, where: str, value: Tensor, n: int) -> Array:
    """Return one vector per row; maps of pixels are averaged, which is noted."""
    shape = list(value.shape)
    if value.ndim >= 4 and shape[0] == n:
        if value.numel() > n * shape[1]:
            tap.note = f"phi is {tap.name}, averaged over its {' x '.join(map(str, shape[2:]))}"
        return to_array(value.flatten(2).mean(dim=2, dtype=torch.float64))
    if value.ndim == 2 and shape[0] == n:
        return to_array(value)
    raise CovcalError(
        f"{where}: {tap.name} has shape {shape} for {n} rows, not one vector per row: pass another "
        "--phi"
    )
