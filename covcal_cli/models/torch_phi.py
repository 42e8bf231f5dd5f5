"""Features that the user chose with ``--phi``: the input, or what a named module reads or gives."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covcal_cli.errors import CovcalError
from covcal_cli.models.torch_arrays import to_array
from covcal_cli.models.torch_layers import LayerCall, tensors
from covcal_cli.models.torch_program import Program

Array = NDArray[np.float64]
_SIDES = (".input", ".output")
_SHOWN = 8


class Tap(Protocol):
    """Where features are read.

    Attributes
    ----------
    name : str
        As the user would choose it.
    keys : frozenset of tuple
        Layers whose calls it needs.
    note : str
        What is done to the values; empty for nothing.
    """

    name: str
    keys: frozenset[tuple[object, ...]]
    note: str

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
