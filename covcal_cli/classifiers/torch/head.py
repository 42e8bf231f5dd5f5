"""Find the last linear layers of a torch program, and the steps from these layers to its output.

The trace of a `RandomRun` shows which layers lead to an output. The logits are a weighted sum of
the layers' results, plus an offset. Least squares finds the weights and the offset. The tail, such
as a softmax, turns logits into the output. Without such layers, an `Answer` replaces the `Head`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from covcal_cli.arrays import Float64s
from covcal_cli.classifiers import proof
from covcal_cli.classifiers.proof import ONE_NUMBER, notes_on_tail
from covcal_cli.classifiers.torch.program import ONLY_OUTPUT, read_answer, to_array
from covcal_cli.classifiers.torch.trace import LayerCall, Trace
from covcal_cli.errors import CovcalError
from covcal_cli.maths.softmax import masked

_OTHER_WAYS = (
    "pass --phi NAME or --phi input to choose the features, or --phi none to keep only the logits"
)
_MOST_POSITIONS = 1024
_FOLLOWERS_SHOWN = 3
_ENOUGH_ROWS = 3  # A factor and an offset fit any two rows, so the fit needs three rows.
_BFLOAT16 = 4e-2  # Relative rounding error of bfloat16, which has eight bits.
_SUM = 1e-3  # Maximum error of a row's sum of probabilities.


@dataclass(frozen=True)
class Fit:
    """An output as a formula of the layers' results, ``tail(offset + sum(factor * result))``."""

    tail: str  # A name in `covcal_cli.classifiers.proof.TAILS`, or ``proof.ARGMAX``.
    factors: tuple[Float64s, ...]  # One factor per layer: a number, or an array (K,).
    offset: Float64s  # Shape (K,); (1,) for a single output of two classes.

    @property
    def is_single(self) -> bool:
        """Whether the model has a single output for two classes."""
        return len(self.offset) == 1

    def logits(self, results: Sequence[Float64s]) -> Float64s:
        """Return the logits, (n, K), from the results of the layers."""
        # Without a factor or offset, the logits are exactly the result of a single layer.
        scores = results[0]
        if len(results) > 1 or self.offset.any() or (self.factors[0] != 1).any():
            pairs = zip(self.factors, results, strict=True)
            scores = sum((factor * result for factor, result in pairs), start=self.offset)
        return proof.two_logits(scores) if self.is_single else scores


@dataclass(frozen=True)
class HeadLayer:
    """A linear layer of a head, with the facts that identify the layer in every run."""

    name: str
    op: str
    key: tuple[object, ...]
    turn: int  # Index of the layer's call in a run; -1 is the last call.
    position: int | None  # The pixel or token that is used; None for the mean over all positions.


@dataclass(frozen=True)
class Head:
    """The last linear layers of a program, whose logits are phi W^T + b."""

    layers: tuple[HeadLayer, ...]  # One layer, or the layers of several averaged heads.
    output: str  # The output with the classes.
    fit: Fit  # The formula from the layers to the output.
    weight: Float64s  # W, (K, d); the first row is 0 for a single output of two classes.
    bias: Float64s  # b, (K,).
    limit: float  # The maximum relative rounding error in the layers.

    @property
    def layer(self) -> str:
        """The operators and names of the layers."""
        return " + ".join(_described(layer.op, layer.name) for layer in self.layers)

    @property
    def features(self) -> str:
        """The names of the inputs of the layers, as for ``--phi``."""
        return " + ".join(f"{layer.name}.input" for layer in self.layers)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user."""
        single = self.is_single
        return (*([ONE_NUMBER] if single else []), *notes_on_tail(self.tail, is_single=single))

    @property
    def tail(self) -> str:
        """The function from the logits to the output."""
        return self.fit.tail

    @property
    def is_single(self) -> bool:
        """Whether the model has a single output for two classes."""
        return self.fit.is_single

    def reads(self, features: Float64s, logits: Float64s) -> bool:
        """Return whether the logits are phi W^T + b for these features, (n, d)."""
        if features.shape[1] != self.weight.shape[1]:
            return False
        computed = proof.affine(features, self.weight, self.bias)
        return proof.relative_error(computed, logits) <= self.limit

    def read(self, calls: Sequence[LayerCall], n: int) -> tuple[Float64s, Float64s] | None:
        """Return phi, (n, d), and logits, (n, K), of a run; None if a layer did not run."""
        features, results = [], []
        for layer in self.layers:
            call = _turn_of(calls, layer.key, layer.turn)
            values = None if call is None else call.rows(n)
            if values is None:
                return None
            x, z = (_reduced(value, layer.position) for value in values)
            features.append(x)
            results.append(z)
        return np.concatenate(features, axis=1), self.fit.logits(results)


@dataclass(frozen=True)
class Answer:
    """The output of a model without a head, used as logits."""

    is_single: bool  # Whether the model has a single output for two classes.
    tail: str = "none"
    limit: float = 1e-3  # Maximum relative difference between two runs.
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, output: Float64s, where: str) -> "Answer":
        """Read an output of shape (n, K) as logits.

        Refuses class numbers, shape (n,). `where` is the name of the model in messages.
        """
        if output.ndim != 2:
            raise CovcalError(
                f"{where} gives only labels: return one probability or logit per class"
            )
        return cls(is_single=output.shape[1] == 1)

    def logits(self, output: Float64s) -> Float64s:
        """Return the output as logits, shape (n, K)."""
        return proof.two_logits(output) if self.is_single else output


@dataclass(frozen=True)
class RandomRun:
    """Two runs of a program on n random rows."""

    trace: Trace  # The trace of the first run.
    choices: Mapping[str, Tensor]  # The outputs of the first run that may be class scores.
    outputs: Mapping[str, Tensor]  # The outputs of the second run.
    # Calls of the last layers in the second run, with inputs and results.
    calls: Sequence[LayerCall]
    n: int
    where: str  # The name of the model in messages.


def find_head(run: RandomRun) -> Head:
    """Return the last linear layers before the output with the class scores."""
    heads: dict[str, Head] = {}
    reasons: list[str] = []
    for name, output in run.choices.items():
        layers, followers = run.trace.last_layers(output)
        head = _fitted(run, layers, name)
        if head is None:
            reasons.append(_reason(name, layers, followers))
        else:
            heads[name] = head
    chosen = _one_head(run, heads)
    if chosen is None:
        rows = "1 random row" if run.n == 1 else f"{run.n} random rows"
        few = f" on {rows}" if run.n < _ENOUGH_ROWS else ""
        other = (
            f"export the model with a dynamic batch size, or {_OTHER_WAYS}" if few else _OTHER_WAYS
        )
        raise CovcalError(f"{run.where}: {reasons[0]}{few}: {other}")
    return chosen


def _fitted(run: RandomRun, layers: Sequence[LayerCall], name: str) -> Head | None:
    if not layers or not all(layer.plain for layer in layers):
        return None
    turns = [run.trace.turn(layer) for layer in layers]
    calls = [
        call
        for layer, turn in zip(layers, turns, strict=True)
        if (call := _turn_of(run.calls, layer.key, turn)) is not None
    ]
    values = [rows for call in calls if (rows := call.rows(run.n)) is not None]
    if len(values) < len(layers):
        return None
    answer = read_answer(run.outputs, name, run.n, run.where)
    limit = max(_tolerance(call.result.dtype) for call in calls)
    # If a layer runs on every pixel or token, the output may come from the mean or from one token.
    tokens = not any(call.is_convolution for call in calls)
    for position in _positions([x.shape[1] for x, _ in values], tokens=tokens):
        fit = fitted([_reduced(z, position) for _, z in values], answer, limit)
        if fit is not None:
            weight, bias = _affine_map(calls, fit)
            parts = tuple(
                HeadLayer(call.name, call.op, call.key, turn, position)
                for call, turn in zip(calls, turns, strict=True)
            )
            return Head(parts, name, fit, weight, bias, limit)
    return None


def _affine_map(calls: Sequence[LayerCall], fit: Fit) -> tuple[Float64s, Float64s]:
    k, bias, blocks = len(fit.offset), fit.offset, []
    for call, factor in zip(calls, fit.factors, strict=True):
        blocks.append(to_array(call.weight) * np.broadcast_to(factor, k)[:, None])
        if call.bias is not None:
            bias = bias + factor * to_array(call.bias).reshape(k)
    weight = np.concatenate(blocks, axis=1)
    if not fit.is_single:
        return weight, bias
    # A single output z stands for the logits 0 and z.
    return np.concatenate([np.zeros_like(weight), weight]), np.array([0.0, *bias])


def _turn_of(calls: Sequence[LayerCall], key: tuple[object, ...], turn: int) -> LayerCall | None:
    own = [call for call in calls if call.key == key]
    return own[turn] if len(own) >= -turn else None


def _positions(counts: Sequence[int], *, tokens: bool) -> Iterator[int | None]:
    """Yield None for the mean over all positions, and then each token position."""
    most = min(counts)
    if most == 1:
        yield 0
        return
    yield None
    if tokens:
        yield from range(min(most, _MOST_POSITIONS))


def _reduced(values: Tensor, position: int | None) -> Float64s:
    if position is None:
        return to_array(values.mean(dim=1, dtype=torch.float64))
    return to_array(values[:, position])


def _tolerance(dtype: torch.dtype) -> float:
    if dtype == torch.bfloat16:
        return _BFLOAT16
    return proof.tolerance(np.dtype(np.float16 if dtype == torch.float16 else np.float32))


def _one_head(run: RandomRun, heads: Mapping[str, Head]) -> Head | None:
    inside: dict[str, set[int]] = {}
    own: dict[str, set[int]] = {}
    for name in heads:
        layers, _ = run.trace.last_layers(run.choices[name])
        own[name] = {id(layer) for layer in layers}
        inside[name] = {id(before) for layer in layers for before in run.trace.before(layer)}
    answers = [
        head
        for name, head in heads.items()
        if not any(own[name] <= inside[other] for other in heads if other != name)
    ]
    if not answers:
        return None
    if len({head.layers for head in answers}) > 1:
        described = ", ".join(f"{head.output} (from {head.layer})" for head in answers)
        raise CovcalError(
            f"{run.where} has {len(answers)} outputs that could hold the classes "
            f"({described}): choose one with --model-output NAME"
        )
    # If one output is logits and another output is their softmax, prefer the logits.
    return min(answers, key=lambda head: [*proof.TAILS, proof.ARGMAX].index(head.tail))


def _reason(output: str, layers: Sequence[LayerCall], followers: Sequence[str]) -> str:
    name = "the output" if output == ONLY_OUTPUT else f"output {output}"
    if not layers:
        return f"no linear layer with fixed weights comes before {name}"
    described = ", ".join(dict.fromkeys(_described(layer.op, layer.name) for layer in layers))
    if len(layers) > 1:
        return f"{name} combines {len(layers)} layers ({described}) in an unknown way"
    if not layers[0].plain:
        return f"{described}, the last layer before {name}, is not a 1x1 convolution"
    after = list(dict.fromkeys(followers))[:_FOLLOWERS_SHOWN]
    verb = "follows" if len(after) == 1 else "follow"
    listed = f" ({', '.join(after)} {verb} it)" if after else ""
    return f"covcal does not know how {name} is computed from the logits of {described}{listed}"


def _described(op: str, name: str) -> str:
    return op if name == op else f"{op} {name}"


def fitted(results: Sequence[Float64s], output: Float64s, limit: float) -> Fit | None:
    """Return the formula of `output` from the results of layers; None if no formula fits.

    The results have shape (n, K); K is 1 for a single output of two classes. `output` has shape (n,
    K), (n, 2) if K is 1, or (n,) for class numbers. `limit` is the maximum relative error.
    """
    k = results[0].shape[1]
    # First, try every known function, such as softmax, on the result of a single layer.
    if len(results) == 1:
        for tail in proof.TAILS if output.ndim > 1 else (proof.ARGMAX,):
            plain = Fit(tail, (np.ones(()),), np.zeros(k))
            if proof.tail_error(tail, plain.logits(results), output) <= limit:
                return plain
    if k == 1 and len(output) < len(results) + 2:
        return None  # There are too few numbers to prove a formula.
    if any(result.shape != output.shape for result in results):
        return None
    # Results may be NaN. The output may be -inf for masked classes.
    if not (all(np.isfinite(z).all() for z in results) and (output < np.inf).all()):
        return None
    # Then fit factors and offsets for every function that has an inverse.
    for tail, target in _before_tail(output):
        for factors, offset in _affine_maps(results, target, up_to_a_constant=tail != "none"):
            fit = Fit(tail, factors, offset)
            if proof.tail_error(tail, fit.logits(results), output) <= limit:
                return fit
    return _fitted_but_masked(results, output, limit)


def _fitted_but_masked(results: Sequence[Float64s], output: Float64s, limit: float) -> Fit | None:
    """Return the formula of `output` if every row masks the same classes, else None.

    A masked class has the factor 0. The offset of a masked class is the masked logit, or -inf if
    the output is not logits.
    """
    same = (output == output[0]).all(axis=0)
    out = same & (masked(output).all(axis=0) | (output[0] == 0))
    if not out.any() or (~out).sum() < 2:
        return None
    inner = fitted([result[:, ~out] for result in results], output[:, ~out], limit)
    if inner is None:
        return None
    offset = np.where(out, output[0] if inner.tail == "none" else -np.inf, 0.0)
    offset[~out] = inner.offset
    factors = []
    for factor in inner.factors:
        factors.append(np.zeros(len(out)))
        factors[-1][~out] = factor
    fit = Fit(inner.tail, tuple(factors), offset)
    matches = proof.tail_error(fit.tail, fit.logits(results), output) <= limit
    return fit if matches else None


def _before_tail(output: Float64s) -> Iterator[tuple[str, Float64s]]:
    """Yield functions that may give `output`, such as "softmax", and the logits for each function.

    The logits are known up to a constant per row.
    """
    if not np.isfinite(output).all():
        return
    yield "none", output
    if (output > 0).all() and np.allclose(output.sum(axis=1), 1, atol=_SUM):
        yield "softmax", np.log(output)
    if (output <= 0).all() and np.allclose(np.exp(output).sum(axis=1), 1, atol=_SUM):
        yield "log_softmax", output


def _affine_maps(
    results: Sequence[Float64s], target: Float64s, *, up_to_a_constant: bool
) -> Iterator[tuple[tuple[Float64s, ...], Float64s]]:
    """Yield factors and offsets from least squares, the simplest first."""

    def centred(values: Float64s, axes: tuple[int, ...]) -> Float64s:
        for axis in axes:
            values = values - values.mean(axis=axis, keepdims=True)
        return values

    # Fit one factor per layer. The first fit has no offsets, the second has an offset per class.
    # Subtracting the mean over the rows removes offsets.
    # Subtracting the mean over the classes removes the unknown constant of each row.
    classes = (1,) if up_to_a_constant else ()
    for axes in (classes, (*classes, 0)):
        columns = np.stack([centred(result, axes).ravel() for result in results], axis=1)
        factors, _, rank, _ = np.linalg.lstsq(columns, centred(target, axes).ravel(), rcond=1e-9)
        if rank < len(results) or not factors.all():
            continue
        scaled = sum((f * z for f, z in zip(factors, results, strict=True)), start=np.zeros(()))
        offset = centred(target - scaled, classes).mean(axis=0) if 0 in axes else np.zeros(1)
        yield tuple(np.asarray(factor) for factor in factors), offset * np.ones(target.shape[1])
    # For a single layer, one factor and one offset per class.
    if len(results) == 1 and not up_to_a_constant and len(target) > 2:
        z, y = centred(results[0], (0,)), centred(target, (0,))
        power = (z * z).sum(axis=0)
        if (power > 0).all():
            factors = (z * y).sum(axis=0) / power
            yield (factors,), (target - factors * results[0]).mean(axis=0)
