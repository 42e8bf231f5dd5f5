"""Where a torch program computes: ``--providers`` by the same names as for ONNX Runtime."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, fields, is_dataclass, replace
from io import StringIO
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covcal_cli.arrays import ModelInput
from covcal_cli.errors import CovcalError

CPU = torch.device("cpu")
_KINDS = ("cpu", "cuda")
_SUFFIX = "executionprovider"


def device_of(providers: Sequence[str]) -> torch.device:
    """Return the device that the first of `providers` names; the CPU when there is none.

    Parameters
    ----------
    providers : sequence of str
        ``cpu`` or ``cuda`` in any case, in order of preference. One that is asked for and not
        there is an error, as with ONNX Runtime: nothing is computed elsewhere than asked.

    Raises
    ------
    CovcalError
        If torch has no such device, or this machine has none.
    """
    names = [name.strip().lower().removesuffix(_SUFFIX) for name in providers]
    for asked, name in zip(providers, names, strict=True):
        if name not in _KINDS:
            raise CovcalError(
                f"--providers {asked} is for ONNX models: a torch model runs on cpu or cuda, or "
                "export it to ONNX"
            )
    if "cuda" in names and not torch.cuda.is_available():
        raise CovcalError(
            f"--providers cuda: torch {torch.__version__} finds no CUDA device: pass --providers "
            "cpu, or install a torch with CUDA on a machine that has one"
        )
    return torch.device(names[0]) if names else CPU


def without_tensor_cores() -> None:
    """Keep float32 convolutions in float32 on a GPU, as products already are.

    Tensor cores round to ten bits, and features would differ from the CPU's in the third digit.
    """
    torch.backends.cudnn.allow_tf32 = False


# Torch tensors as NumPy arrays.


def to_array(tensor: Tensor) -> NDArray[np.float64]:
    """Return a tensor's values as float64, whatever its precision and device."""
    array: NDArray[np.float64] = tensor.detach().cpu().to(torch.float64).numpy()
    return array


# A torch program that is ready to run: a module, what it is fed, and its outputs by name.

ONLY_OUTPUT = "output"  # what the one tensor of a module without names is called
_SHOWN = 200


@dataclass(frozen=True)
class Program:
    """A module that answers with classes."""

    where: str  # what the user called it, for messages
    name: str  # its base name
    sha256: str  # hexadecimal sha256 of what it computes with
    module: torch.nn.Module  # on `device`, in evaluation mode
    inputs: tuple[ModelInput, ...]  # what it is fed, in the order of its arguments
    # shape (n, ...): made rows that it runs on, to read its structure before there is any data
    rows: tuple[Tensor, ...]
    fixed_batch: int | None  # the only number of rows that it takes
    notes: tuple[str, ...]  # what was assumed about it
    device: torch.device = CPU  # where it computes; rows may lie anywhere

    def on(self, device: torch.device) -> "Program":
        """Return the program on another device; the module itself is moved.

        Raises
        ------
        CovcalError
            If it does not fit there.
        """
        if device == self.device:
            return self
        without_tensor_cores()
        try:
            return replace(self, module=self.module.to(device), device=device)
        except RuntimeError as error:  # out of memory, and whatever a module's own `to` raises
            raise CovcalError(
                f"{self.where} cannot be moved to {device} ({cause(error)}): pass --providers cpu"
            ) from error

    def run(self, rows: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the outputs by name.

        Raises
        ------
        CovcalError
            If the module fails on these rows.
        """
        try:
            return run_module(self.module, [row.to(self.device) for row in rows])
        except Exception as error:  # a module may raise anything
            shapes = " and ".join(f"[{', '.join(map(str, row.shape))}]" for row in rows)
            raise CovcalError(
                f"{self.where} cannot run on {shapes} ({cause(error)}): change the preprocessing "
                "or the array, or pass --batch 1 if only one row at a time works"
            ) from error


def run_module(module: torch.nn.Module, rows: Sequence[Tensor]) -> dict[str, Tensor]:
    """Run a module in inference mode; what it prints is dropped, as stdout carries results."""
    kind = floating_type(module)
    # A copy each: the module may change its input in place.
    fed = [row.to(kind) if row.is_floating_point() and row.dtype != kind else row for row in rows]
    with torch.inference_mode(), redirect_stdout(StringIO()):
        return dict(_named("", module(*(row.clone() for row in fed))))


def floating_type(module: torch.nn.Module) -> torch.dtype:
    """Return the precision of a module's first floating-point parameter; float32 without one."""
    kinds = (value.dtype for value in module.parameters() if value.is_floating_point())
    return next(kinds, torch.float32)


def numpy_type(kind: torch.dtype) -> np.dtype[Any]:
    """Return the dtype in which values for `kind` are prepared: float32 for half precision."""
    if kind in (torch.float16, torch.bfloat16):
        return np.dtype(np.float32)
    return np.dtype(torch.empty(0, dtype=kind).numpy().dtype)


def cause(error: BaseException) -> str:
    """Return an exception's class and message in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # TorchScript's own traceback ends with the message; others begin with it.
    scripted = lines and lines[0].startswith("The following operation failed in the TorchScript")
    text = lines[-1 if scripted else 0] if lines else ""
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}..."
    kind = type(error).__name__
    return text if text.startswith(kind) else f"{kind}: {text}".rstrip(": ")


def _named(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a module's answer: a dict, tuple, dataclass, or object with logits."""
    items: Mapping[str, Any]
    if isinstance(value, Tensor):
        yield name or ONLY_OUTPUT, value
        return
    if isinstance(value, Mapping):
        items = {str(key): item for key, item in value.items()}
    elif hasattr(value, "_fields"):
        items = value._asdict()
    elif isinstance(value, list | tuple):
        items = {str(index): item for index, item in enumerate(value)}
    elif is_dataclass(value):
        items = {field.name: getattr(value, field.name) for field in fields(value)}
    else:
        items = {"logits": value.logits} if hasattr(value, "logits") else {}
    for key, item in items.items():
        yield from _named(f"{name}.{key}" if name else key, item)
