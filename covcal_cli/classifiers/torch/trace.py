"""Linear layers as torch's operators see them, whatever program calls them.

Eager modules, TorchScript and exported programs all end in the same operators, so a call of a
linear layer is read from the operator's own arguments: its input, its weights, its result.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_PRODUCTS = {"linear", "addmm", "mm", "matmul", "bmm"}
_CONVOLUTIONS = {"conv1d", "conv2d", "conv3d", "convolution", "_convolution"}
DECOMPOSED = {"einsum"}  # operators that are products underneath
NAMES = _PRODUCTS | _CONVOLUTIONS


@dataclass(frozen=True)
class LayerCall:
    """One call of a linear layer."""

    op: str  # the operator
    name: str  # path of the layer in the module, or the operator where its weights are no parameter
    key: tuple[object, ...]  # the same for every call of the same layer
    # what it read and gave, as it was then: what follows may change them in place
    features: Tensor
    weight: Tensor  # shape (K, d)
    bias: Tensor | None  # shape (K,)
    result: Tensor
    # whether every result is affine in one vector of features: false for larger kernels
    plain: bool

    @property
    def is_convolution(self) -> bool:
        """Whether its positions are pixels; tokens otherwise."""
        return self.op in _CONVOLUTIONS

    def rows(self, n: int) -> tuple[Tensor, Tensor] | None:
        """Return features, shape (n, P, d), and results, shape (n, P, K), by row and position.

        P counts the positions (pixels or tokens) that one row holds; None where the call does not
        treat the n rows apart.
        """
        x, z = self.features, self.result
        k, d = self.weight.shape
        if self.is_convolution:
            if x.shape[0] != n:
                return None
            z = z.flatten(2).transpose(1, 2)
            if z.shape[1] == 1:  # a kernel as large as the map: all of it is the feature vector
                return x.reshape(n, 1, d), z
            return x.flatten(2).transpose(1, 2), z
        if x.ndim == 3 and x.shape[0] != n and x.shape[1] == n:  # tokens first
            x, z = x.transpose(0, 1), z.transpose(0, 1)
        if x.numel() % (n * d):
            return None
        return x.reshape(n, -1, d), z.reshape(n, -1, k)


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of an operator's arguments or result."""
    if isinstance(value, Tensor):
        if value.layout == torch.strided:
            yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))


def address(tensor: Tensor) -> int:
    """Return what tells one memory block from another; views share it."""
    return tensor.untyped_storage().data_ptr()


def parameter_names(module: torch.nn.Module) -> dict[int, str]:
    """Return the path of each layer by the address of its weights."""
    named = [*module.named_buffers(), *module.named_parameters()]
    return {address(value): name.removesuffix(".weight") for name, value in named if value.numel()}


def read_call(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, names: dict[int, str]
) -> LayerCall | None:
    """Return the call of a linear layer that an operator's call is, or None.

    Parameters
    ----------
    func : torch.ops.OpOverload
    args, kwargs
        Its arguments.
    result
        What it returned.
    names : mapping of int to str
        See `parameter_names`.
    """
    op = func.overloadpacket.__name__
    if op not in NAMES or not isinstance(result, Tensor):
        return None
    given = _bound(func, args, kwargs)
    plain = True
    if op == "linear":
        x, source, bias = given["input"], given["weight"], given["bias"]
        weight = source
    elif op in _CONVOLUTIONS:
        x, source, bias = given["input"], given["weight"], given["bias"]
        plain = _is_affine(given, result)
        weight = source.flatten(1)
    else:
        x, bias = given["mat1" if op == "addmm" else "self"], None
        source = given["other" if op == "matmul" else "mat2"]
        if op == "addmm":
            bias = given["self"]
            plain = given["beta"] == 1 and given["alpha"] == 1
        # One matrix alone in a batch is what einsum makes of a plain product.
        matrix = source[0] if source.ndim == 3 and len(source) == 1 else source
        weight = matrix.T if matrix.ndim == 2 else matrix
    if weight.ndim != 2 or x.ndim < 2 or (bias is not None and bias.numel() != len(weight)):
        return None
    name = names.get(address(source))
    key = (op, tuple(weight.shape), name or "")
    return LayerCall(op, name or op, key, x, weight, bias, result, plain)


def detached(call: LayerCall) -> LayerCall:
    """Return the call with copies of what later operators may change in place."""
    return replace(call, features=call.features.clone(), result=call.result.clone())


def without_values(call: LayerCall) -> LayerCall:
    """Return the call without what it read and gave, so that the memory can be used again."""
    nothing = call.weight.new_empty(0)
    return replace(call, features=nothing, result=nothing)


def _bound(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return an operator's arguments by name, defaults included."""
    given = {}
    for index, argument in enumerate(func._schema.arguments):
        if index < len(args):
            given[argument.name] = args[index]
        else:
            given[argument.name] = kwargs.get(argument.name, argument.default_value)
    return given


def _is_affine(given: dict[str, Any], result: Tensor) -> bool:
    """Return whether a convolution sees one pixel, or the whole map at once."""
    kernel = tuple(given["weight"].shape[2:])
    padding = given["padding"]
    unpadded = padding == "valid" or (isinstance(padding, list) and not any(padding))
    if given["groups"] != 1 or given.get("transposed"):
        return False
    if padding == "same":
        unpadded = set(kernel) == {1}
    whole = kernel == tuple(given["input"].shape[2:]) and set(result.shape[2:]) == {1}
    single = set(kernel) == {1} and set(given["stride"]) == {1}
    return unpadded and (whole or single)


# What a torch program did on a few rows: which linear layers its output comes from.
#
# The operators are recorded while the program runs, so that control flow, functions without
# modules, TorchScript and exported programs are all read alike. Values are told apart by their
# memory block: a view or a change in place is the same value.

Handler = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Any]


def _dispatch(
    mode: Any,
    func: Any,
    _types: Sequence[type],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    if func.overloadpacket.__name__ in DECOMPOSED:
        with mode:
            return func.decompose(*args, **(kwargs or {}))
    return mode.handler(func, args, kwargs or {})


_BASE: Any = TorchDispatchMode
# Torch would import its compiler, which takes seconds, to keep it from compiling the handler.
_MEMBERS = {"__torch_dispatch__": _dispatch, "_should_skip_dynamo": classmethod(lambda _: False)}
_Mode: Any = type("_Mode", (_BASE,), _MEMBERS)


@contextmanager
def operators_sent_to(handler: Handler) -> Iterator[None]:
    """Within this context `handler` is given every operator that torch is to run, and runs it."""
    mode = _Mode()
    mode.handler = handler
    with mode:
        yield


@dataclass(frozen=True)
class Step:
    """One operator's call: the values that it read, wrote and made, and the layer that it is."""

    op: str
    reads: frozenset[int]
    writes: frozenset[int]
    made: frozenset[int]
    call: LayerCall | None


class Trace:
    """Records every operator that runs inside ``with trace.recording():``, and no values."""

    def __init__(
        self,
        # what the program is fed: everything computed from it depends on the data, and all else is
        # constant
        inputs: Sequence[Tensor],
        names: dict[int, str],  # the layers' names by the address of their weights
    ) -> None:
        self._names = names
        self._values: dict[int, int] = {}
        self._count = 0
        self._from_data = {self._value(tensor) for tensor in inputs}
        self.steps: list[Step] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what runs in this context."""
        with operators_sent_to(self._record):
            yield

    def _record(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:
        read = [*tensors(args), *tensors(dict(given))]
        reads = frozenset(map(self._value, read))
        result = func(*args, **given)
        call = read_call(func, args, given, result, self._names)
        blocks = {address(tensor) for tensor in read}
        outputs = list(tensors(result))
        made = frozenset(
            self._new(address(tensor)) for tensor in outputs if address(tensor) not in blocks
        )
        writes = made | frozenset(map(self._value, outputs))
        if func._schema.is_mutable:
            writes |= frozenset(self._value(tensor) for tensor in read[:1])
        if reads & self._from_data:
            self._from_data |= writes
        call = without_values(call) if call is not None and self._is_layer(call) else None
        changes = bool(made) or func._schema.is_mutable
        op = func.overloadpacket.__name__ if changes else ""
        self.steps.append(Step(op, reads & self._from_data, writes, made, call))
        return result

    def last_layers(self, output: Tensor) -> tuple[list[LayerCall], list[str]]:
        """Return the layers that the ways back from `output` meet first.

        Returns
        -------
        layers : list of LayerCall
            In the order of the run.
        followers : list of str
            The operators between them and the output, in the order of the run.
        """
        needed = {self._value(output)}
        layers: list[LayerCall] = []
        followers: list[str] = []
        for step in reversed(self.steps):
            if not needed & step.writes:
                continue
            needed -= step.made
            if step.call is not None:
                layers.append(step.call)
            else:
                needed |= step.reads
                if step.op and step.reads:
                    followers.append(step.op)
        return layers[::-1], followers[::-1]

    def turn(self, layer: LayerCall) -> int:
        """Return which of its layer's calls one is, counted from the last (-1)."""
        own = [call for call in self.calls if call.key == layer.key]
        return next(index - len(own) for index, call in enumerate(own) if call is layer)

    def before(self, layer: LayerCall) -> list[LayerCall]:
        """Return every layer that the input of `layer` comes from."""
        needed: set[int] = set()
        found: list[LayerCall] = []
        for step in reversed(self.steps):
            if step.call is layer:
                needed |= step.reads
            elif needed & step.writes:
                needed = (needed - step.made) | step.reads
                if step.call is not None:
                    found.append(step.call)
        return found

    @property
    def calls(self) -> list[LayerCall]:
        """Every call of a linear layer with constant weights, in order."""
        return [step.call for step in self.steps if step.call is not None]

    def _is_layer(self, call: LayerCall) -> bool:
        constant = [call.weight] if call.bias is None else [call.weight, call.bias]
        return self._value(call.features) in self._from_data and not any(
            self._value(tensor) in self._from_data for tensor in constant
        )

    def _value(self, tensor: Tensor) -> int:
        block = address(tensor)
        return self._values[block] if block in self._values else self._new(block)

    def _new(self, block: int) -> int:
        # A block that was freed may be used again: it holds another value then.
        self._count += 1
        self._values[block] = self._count
        return self._count


class LayerReader:
    """Keeps what chosen layers read and gave inside ``with reader.listening():``."""

    def __init__(
        self,
        keys: Set[tuple[object, ...]],  # the layers' keys
        names: dict[int, str],  # the layers' names by the address of their weights
    ) -> None:
        self._keys, self._names = keys, names
        self.calls: list[LayerCall] = []

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Keep the calls that are made in this context; nothing is slower without layers."""
        if not self._keys:
            yield
            return
        with operators_sent_to(self._keep):
            yield

    def _keep(self, func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:
        result = func(*args, **given)
        if func.overloadpacket.__name__ in NAMES:
            call = read_call(func, args, given, result, self._names)
            if call is not None and call.key in self._keys:
                self.calls.append(detached(call))
        return result
