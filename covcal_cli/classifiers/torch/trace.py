"""Record a run of a torch program: linear layers, their order, and the features of ``--phi``.

Eager modules, TorchScript and exported programs run the same operators. A `LayerCall` is therefore
identified by its operator and arguments.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from covcal_cli.arrays import Float64s
from covcal_cli.classifiers.torch.program import Program, to_array
from covcal_cli.errors import CovcalError

_PRODUCTS = {"linear", "addmm", "mm", "matmul", "bmm"}
_CONVOLUTIONS = {"conv1d", "conv2d", "conv3d", "convolution", "_convolution"}
_DECOMPOSED = {"einsum"}  # Operators that torch replaces by matrix products.
NAMES = _PRODUCTS | _CONVOLUTIONS


@dataclass(frozen=True)
class LayerCall:
    """A call of a linear layer."""

    op: str  # The name of the operator.
    # The path of the layer, or the operator if the weights are not parameters of the module.
    name: str
    key: tuple[object, ...]  # Identifies the layer.
    features: Tensor  # The input of the layer; later operators may change the tensor.
    weight: Tensor  # Shape (K, d).
    bias: Tensor | None  # Shape (K,).
    result: Tensor  # The result of the layer; later operators may change the tensor.
    plain: bool  # Whether each result depends on a single vector of features.

    @property
    def is_convolution(self) -> bool:
        """Whether the positions in a row are pixels, and not tokens."""
        return self.op in _CONVOLUTIONS

    def rows(self, n: int) -> tuple[Tensor, Tensor] | None:
        """Return features, (n, P, d), and results, (n, P, K), for P positions per row, or None."""
        x, z = self.features, self.result
        k, d = self.weight.shape
        if self.is_convolution:
            if x.shape[0] != n:
                return None
            z = z.flatten(2).transpose(1, 2)
            if z.shape[1] == 1:  # The kernel covers the whole image, so all pixels are one vector.
                return x.reshape(n, 1, d), z
            return x.flatten(2).transpose(1, 2), z
        if x.ndim == 3 and x.shape[0] != n and x.shape[1] == n:  # The first axis is the tokens.
            x, z = x.transpose(0, 1), z.transpose(0, 1)
        if x.numel() % (n * d):
            return None
        return x.reshape(n, -1, d), z.reshape(n, -1, k)


def parameter_names(module: torch.nn.Module) -> dict[int, str]:
    """Return the path of each layer, by the memory address of its weights."""
    named = [*module.named_buffers(), *module.named_parameters()]
    return {address(value): name.removesuffix(".weight") for name, value in named if value.numel()}


def read_call(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, names: dict[int, str]
) -> LayerCall | None:
    """Return the `LayerCall` of a linear layer; None for other operators."""
    op = func.overloadpacket.__name__
    if op not in NAMES or not isinstance(result, Tensor):
        return None
    declared = func._schema.arguments
    arguments = {value.name: kwargs.get(value.name, value.default_value) for value in declared}
    arguments |= {value.name: item for value, item in zip(declared, args, strict=False)}
    plain, bias = True, None
    if op == "linear" or op in _CONVOLUTIONS:
        x, source, bias = arguments["input"], arguments["weight"], arguments["bias"]
        weight = source
        if op in _CONVOLUTIONS:
            weight, plain = source.flatten(1), _is_affine(arguments, result)
    else:
        x, source = arguments["self"], arguments["other" if op == "matmul" else "mat2"]
        if op == "addmm":
            x, bias = arguments["mat1"], arguments["self"]
            plain = arguments["beta"] == 1 and arguments["alpha"] == 1
        # einsum computes a matrix product as a batch of one product.
        matrix = source[0] if source.ndim == 3 and len(source) == 1 else source
        weight = matrix.T if matrix.ndim == 2 else matrix
    if weight.ndim != 2 or x.ndim < 2 or (bias is not None and bias.numel() != len(weight)):
        return None
    name = names.get(address(source))
    key = (op, tuple(weight.shape), name or "")
    return LayerCall(op, name or op, key, x, weight, bias, result, plain)


def _is_affine(arguments: dict[str, Any], result: Tensor) -> bool:
    """Return whether the kernel of a convolution is 1x1, or as large as the image."""
    kernel = tuple(arguments["weight"].shape[2:])
    padding = arguments["padding"]
    unpadded = padding == "valid" or (isinstance(padding, list) and not any(padding))
    if arguments["groups"] != 1 or arguments.get("transposed"):
        return False
    if padding == "same":
        unpadded = set(kernel) == {1}
    whole = kernel == tuple(arguments["input"].shape[2:]) and set(result.shape[2:]) == {1}
    single = set(kernel) == {1} and set(arguments["stride"]) == {1}
    return unpadded and (whole or single)


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in the arguments or the result of an operator."""
    if isinstance(value, Tensor):
        if value.layout == torch.strided:
            yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))


def address(tensor: Tensor) -> int:
    """Return the address of a tensor's memory block, which all views of the tensor share."""
    return tensor.untyped_storage().data_ptr()


# Recording a run. Recording works while the operators run, so a program may have branches and
# loops. A memory block identifies a value, so a view counts as the same value.

Handler = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Any]


def _dispatch(
    mode: Any,
    func: Any,
    _types: Sequence[type],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    if func.overloadpacket.__name__ in _DECOMPOSED:
        with mode:
            return func.decompose(*args, **(kwargs or {}))
    return mode.handler(func, args, kwargs or {})


_BASE: Any = TorchDispatchMode
# Without `_should_skip_dynamo`, torch would import its compiler, which takes seconds.
_MEMBERS = {"__torch_dispatch__": _dispatch, "_should_skip_dynamo": classmethod(lambda _: False)}
_Mode: Any = type("_Mode", (_BASE,), _MEMBERS)


@contextmanager
def operators_sent_to(handler: Handler) -> Iterator[None]:
    """Let `handler` run every torch operator in this block."""
    mode = _Mode()
    mode.handler = handler
    with mode:
        yield


@dataclass(frozen=True)
class Step:
    """A call of an operator, with the values that it read and wrote."""

    op: str
    reads: frozenset[int]
    writes: frozenset[int]
    created: frozenset[int]  # New values: results in memory that the call did not read.
    call: LayerCall | None  # The call of a linear layer; None for other operators.


class Trace:
    """Records every operator that runs inside ``with trace.recording():``, without its tensors."""

    def __init__(self, inputs: Sequence[Tensor], names: dict[int, str]) -> None:
        self._names = names
        self._values: dict[int, int] = {}
        self._count = 0
        self._from_data = {self._value(tensor) for tensor in inputs}
        self.steps: list[Step] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the operators in this block."""
        with operators_sent_to(self._record):
            yield

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        read = [*tensors(args), *tensors(dict(kwargs))]
        reads = frozenset(map(self._value, read))
        result = func(*args, **kwargs)
        # A result is a new value, unless the operator also read the result's memory block.
        blocks = {address(tensor) for tensor in read}
        outputs = list(tensors(result))
        created = frozenset(
            self._new(address(tensor)) for tensor in outputs if address(tensor) not in blocks
        )
        writes = created | frozenset(map(self._value, outputs))
        if func._schema.is_mutable:
            writes |= frozenset(self._value(tensor) for tensor in read[:1])
        if reads & self._from_data:
            self._from_data |= writes
        # Record the layer without its input and result, which would fill the memory.
        call = read_call(func, args, kwargs, result, self._names)
        if call is not None:
            nothing = call.weight.new_empty(0)
            is_layer = self._is_layer(call)
            call = replace(call, features=nothing, result=nothing) if is_layer else None
        changes = bool(created) or func._schema.is_mutable
        op = func.overloadpacket.__name__ if changes else ""
        self.steps.append(Step(op, reads & self._from_data, writes, created, call))
        return result

    def last_layers(self, output: Tensor) -> tuple[list[LayerCall], list[str]]:
        """Return the layers nearest to `output`, and the later operators."""
        needed = {self._value(output)}
        layers: list[LayerCall] = []
        followers: list[str] = []
        for step in reversed(self.steps):
            if not needed & step.writes:
                continue
            needed -= step.created
            if step.call is not None:
                layers.append(step.call)
            else:
                needed |= step.reads
                if step.op and step.reads:
                    followers.append(step.op)
        return layers[::-1], followers[::-1]

    def turn(self, layer: LayerCall) -> int:
        """Return the index of a call among the calls of its layer; -1 is the last call."""
        own = [call for call in self.calls if call.key == layer.key]
        return next(index - len(own) for index, call in enumerate(own) if call is layer)

    def before(self, layer: LayerCall) -> list[LayerCall]:
        """Return the layers on which the input of `layer` depends."""
        needed: set[int] = set()
        layers: list[LayerCall] = []
        for step in reversed(self.steps):
            if step.call is layer:
                needed |= step.reads
            elif needed & step.writes:
                needed = (needed - step.created) | step.reads
                if step.call is not None:
                    layers.append(step.call)
        return layers

    @property
    def calls(self) -> list[LayerCall]:
        """All calls of linear layers with constant weights, in the order of the run."""
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
        # Freed memory can be reused for another value.
        self._count += 1
        self._values[block] = self._count
        return self._count


class LayerReader:
    """Records the inputs and results of chosen layers inside ``with reader.listening():``."""

    def __init__(self, keys: Set[tuple[object, ...]], names: dict[int, str]) -> None:
        self._keys, self._names = keys, names
        self.calls: list[LayerCall] = []

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Record the calls of the chosen layers in this block."""
        if not self._keys:
            yield
            return
        with operators_sent_to(self._keep):
            yield

    def _keep(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if func.overloadpacket.__name__ in NAMES:
            call = read_call(func, args, kwargs, result, self._names)
            if call is not None and call.key in self._keys:
                # Copy the values, because later operators may change them.
                copies = replace(call, features=call.features.clone(), result=call.result.clone())
                self.calls.append(copies)
        return result


_SIDES = (".input", ".output")
_SHOWN = 8


class Tap:
    """A reader of the features of ``--phi input``, and the base class of other readers."""

    keys: frozenset[tuple[object, ...]] = frozenset()  # The layers to record.
    note = ""  # A note if the features are averaged; else empty.

    def __init__(self, where: str, name: str) -> None:
        self.where = where  # The name of the model in messages.
        self.name = name  # The value of ``--phi``.

    def listen(self) -> AbstractContextManager[None]:
        """Return a context manager that records the features during a run."""
        return nullcontext()

    def read(self, rows: Sequence[Tensor], _calls: Sequence[LayerCall], /) -> Float64s:
        """Return the features of the last run, shape (n, d)."""
        return np.concatenate([to_array(row.flatten(1)) for row in rows], axis=1)

    def _vectors(self, value: Tensor, n: int) -> Float64s:
        """Return one vector per row, as the mean over pixels."""
        shape = list(value.shape)
        if value.ndim >= 4 and shape[0] == n:
            if value.numel() > n * shape[1]:
                sizes = " x ".join(map(str, shape[2:]))
                self.note = f"the features are {self.name}, averaged over {sizes} positions"
            return to_array(value.flatten(2).mean(dim=2, dtype=torch.float64))
        if value.ndim == 2 and shape[0] == n:
            return to_array(value)
        raise CovcalError(
            f"{self.where}: {self.name} has shape {shape} for {n} rows, but features need one "
            "vector per row: pass another --phi"
        )


class _ModuleTap(Tap):
    def __init__(self, where: str, name: str, module: torch.nn.Module) -> None:
        super().__init__(where, name)
        self._module = module
        self._value: Tensor | None = None

    @contextmanager
    def listen(self) -> Iterator[None]:
        self._value = None
        register: Callable[..., Any] = self._module.register_forward_hook
        if self.name.endswith(".input"):
            register = self._module.register_forward_pre_hook
        handle = register(self._keep)
        try:
            yield
        finally:
            handle.remove()

    def _keep(self, _module: torch.nn.Module, *values: Any) -> None:
        value = next(tensors(values[-1]), None)
        # Copy the value, because later operators may change it.
        self._value = None if value is None else value.clone()

    def read(self, rows: Sequence[Tensor], _calls: Sequence[LayerCall], /) -> Float64s:
        if self._value is None:
            raise CovcalError(
                f"{self.where}: {self.name} gets no tensor as its input: pass another --phi"
            )
        return self._vectors(self._value, len(rows[0]))


class _LayerTap(Tap):
    def __init__(self, where: str, name: str, call: LayerCall) -> None:
        super().__init__(where, name)
        self.keys = frozenset({call.key})

    def read(self, rows: Sequence[Tensor], calls: Sequence[LayerCall], /) -> Float64s:
        own = [call for call in calls if call.key in self.keys]
        if not own:
            raise CovcalError(f"{self.where} did not use {self.name}: pass another --phi")
        value = own[-1].features if self.name.endswith(".input") else own[-1].result
        return self._vectors(value, len(rows[0]))


def open_tap(phi: str, program: Program, calls: Sequence[LayerCall]) -> Tap:
    """Return the reader of the features for ``--phi``, such as ``input``, NAME or NAME.output.

    `calls` are the calls of linear layers in a run. In a program from a file, NAME must be a linear
    layer.
    """
    if phi == "input":
        return Tap(program.where, phi)
    name, side = phi, ".output"
    modules = dict(program.module.named_modules())
    hookable = not isinstance(program.module, torch.jit.ScriptModule | torch.fx.GraphModule)
    layers = {call.name: call for call in calls}
    names = [key for key in modules if key] if hookable else list(layers)
    # The name of a module may itself end in ".input" or ".output".
    if name not in names:
        name, side = next(
            ((phi.removesuffix(end), end) for end in _SIDES if phi.endswith(end)), (phi, side)
        )
    if name not in names:
        listed = ", ".join([*names[-_SHOWN:], *(["..."] if len(names) > _SHOWN else [])])
        raise CovcalError(
            f"{program.where} has no {'module' if hookable else 'linear layer'} {phi} for "
            f"--phi: choose input, none, or one of {listed}. To select the input of a module, "
            "add .input to the name"
        )
    if hookable:
        return _ModuleTap(program.where, name + side, modules[name])
    return _LayerTap(program.where, name + side, layers[name])
