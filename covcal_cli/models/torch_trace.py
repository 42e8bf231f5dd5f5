"""What a torch program did on a few rows: which linear layers its output comes from.

The operators are recorded while the program runs, so that control flow, functions without modules,
TorchScript and exported programs are all read alike. Values are told apart by their memory block:
a view or a change in place is the same value.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from covcal_cli.models.torch_layers import (
    DECOMPOSED,
    NAMES,
    LayerCall,
    address,
    detached,
    read_call,
    tensors,
    without_values,
)

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
    """Records every operator that runs inside ``with trace.recording():``, and no values.

    Parameters
    ----------
    inputs : sequence of Tensor
        What the program is fed: everything computed from it depends on the data, and all else is
        constant.
    names : mapping of int to str
        The layers' names by the address of their weights.
    """

    def __init__(self, inputs: Sequence[Tensor], names: dict[int, str]) -> None:
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
    """Keeps what chosen layers read and gave inside ``with reader.listening():``.

    Parameters
    ----------
    keys : set of tuple
        The layers' keys.
    names : mapping of int to str
        The layers' names by the address of their weights.
    """

    def __init__(self, keys: Set[tuple[object, ...]], names: dict[int, str]) -> None:
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
