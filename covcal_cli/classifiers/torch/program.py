"""Run a torch program, and find the outputs that may be the classes."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, fields, is_dataclass, replace
from io import StringIO
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covcal_cli.arrays import Float64s, ModelInput
from covcal_cli.errors import CovcalError, one_line

CPU = torch.device("cpu")
ONLY_OUTPUT = "output"  # The name of the output if a module returns a single tensor.
_USUAL_OUTPUT = "logits"
_DEVICES = ("cpu", "cuda")
_SUFFIX = "executionprovider"
_SHOWN = 200  # Maximum number of characters from torch's message.
_STORED_SCORES = {
    *(torch.uint8, torch.int8, torch.int16),
    *(torch.quint8, torch.qint8, torch.qint32),
}


@dataclass(frozen=True)
class Program:
    """A torch module with its inputs and its device."""

    where: str  # The name of the program in messages, as the user gave it.
    name: str  # The name of the program's file, or ``module:function``.
    sha256: str  # Hash of the program's file, or of its weights.
    module: torch.nn.Module  # The module, on `device` and in evaluation mode.
    inputs: tuple[ModelInput, ...]  # The inputs, in the order of the module's arguments.
    rows: tuple[Tensor, ...]  # Random rows, (n, ...), on which the program runs.
    fixed_batch: int | None  # Number of rows in every run; None for any number.
    notes: tuple[str, ...]  # Notes for the user.
    device: torch.device = CPU  # The device of the module; the rows may be on any device.

    def on(self, device: torch.device) -> "Program":
        """Return the program on another device."""
        if device == self.device:
            return self
        without_tensor_cores()
        try:
            return replace(self, module=self.module.to(device), device=device)
        except RuntimeError as error:  # Memory may be too small, or `module.to` may fail.
            raise CovcalError(
                f"{self.where} cannot be moved to {device} ({cause(error)}): pass --providers cpu"
            ) from error

    def run(self, rows: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the program's outputs by name."""
        try:
            return run_module(self.module, [row.to(self.device) for row in rows])
        except Exception as error:  # A module may raise any error.
            shapes = " and ".join(str(list(row.shape)) for row in rows)
            size = "pass --size with the image size of training, or " if rows[0].ndim == 4 else ""
            raise CovcalError(
                f"{self.where} cannot run on {shapes} ({cause(error)}): {size}change the "
                "preprocessing or the array. If the model takes only one row at a time, pass "
                "--batch 1"
            ) from error


def run_module(module: torch.nn.Module, rows: Sequence[Tensor]) -> dict[str, Tensor]:
    """Run a module in inference mode, and suppress its print statements."""
    # Copy the rows, because the module may change its input.
    fed = (row.clone() for row in in_precision(module, rows))
    with torch.inference_mode(), redirect_stdout(StringIO()):
        return dict(_named("", module(*fed)))


def in_precision(module: torch.nn.Module, rows: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Convert floats to the type of the module's parameters."""
    kind = floating_type(module)
    return tuple(row.to(kind) if row.is_floating_point() else row for row in rows)


def floating_type(module: torch.nn.Module) -> torch.dtype:
    """Return the type of the first parameter with floats; default: float32."""
    kinds = (value.dtype for value in module.parameters() if value.is_floating_point())
    return next(kinds, torch.float32)


def numpy_type(kind: torch.dtype) -> np.dtype[Any]:
    """Return NumPy's type for a torch type; float32 for half precision."""
    if kind in (torch.float16, torch.bfloat16):
        return np.dtype(np.float32)
    return np.dtype(torch.empty(0, dtype=kind).numpy().dtype)


def _named(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
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


def to_array(tensor: Tensor) -> Float64s:
    """Return a tensor of any type and device as a float64 array."""
    array: Float64s = tensor.detach().cpu().to(torch.float64).numpy()
    return array


@contextmanager
def quiet(level: int) -> Iterator[None]:
    """Switch off logging up to a level."""
    before = logging.root.manager.disable
    logging.disable(level)
    try:
        yield
    finally:
        logging.disable(before)


def cause(error: BaseException) -> str:
    """Return the class and the message of an exception in one line."""
    text = one_line(error) if isinstance(error, OSError) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # The message is the last line of a TorchScript error, and the first line of other errors.
    scripted = lines and lines[0].startswith("The following operation failed in the TorchScript")
    text = lines[-1 if scripted else 0] if lines else ""
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}..."
    kind = type(error).__name__
    # A TorchScript error may lack a message; its failed line is above the mark "<--- HERE".
    failed = [above for above, line in pairwise(lines) if line.endswith("<--- HERE")]
    if scripted and text.rstrip(": ") == kind and failed:
        return f"{kind} in {failed[-1]}"
    return text if text.startswith(kind) else f"{kind}: {text}".rstrip(": ")


def may_hold_classes(
    outputs: Mapping[str, Tensor], wanted: str | None, n: int, where: str
) -> dict[str, Tensor]:
    """Return the outputs that may be the class scores of n rows.

    `wanted` is the output that the user named. If one output is called logits, this output comes
    first. Raises `CovcalError` if `wanted` does not exist, or if no output has one vector per row.
    """
    described = ", ".join(f"{name} {_kind(tensor)}" for name, tensor in outputs.items())
    if wanted is not None and wanted not in outputs:
        raise CovcalError(f"{where} has no output {wanted!r}: choose one of {described}")
    if wanted is None and _USUAL_OUTPUT in outputs and _is_answer(outputs[_USUAL_OUTPUT], n):
        wanted = _USUAL_OUTPUT
    chosen = {name: value for name, value in outputs.items() if wanted in (None, name)}
    usable = {name: value for name, value in chosen.items() if _is_answer(value, n)}
    # If another output has several values per row, an output with one number may be a loss.
    wide = {name: value for name, value in usable.items() if value.numel() > n}
    indices = {
        name: value
        for name, value in chosen.items()
        if not (value.is_floating_point() or value.is_complex()) and value.numel() == n
    }
    if usable or indices:
        return wide or usable | indices
    stored = [name for name, value in chosen.items() if value.dtype in _STORED_SCORES]
    if stored:
        raise CovcalError(
            f"{where} gives {described} for {n} rows, but {stored[0]} holds quantised scores "
            "without their scale: change the model so that it returns floats, for example with "
            "dequantize()"
        )
    raise CovcalError(
        f"{where} gives {described or 'no tensor'} for {n} rows, but covcal needs floats of "
        "shape [N, classes]: return the logits or probabilities"
    )


def read_answer(outputs: Mapping[str, Tensor], name: str, n: int, where: str) -> Float64s:
    """Return an output as an array, (n, K), or class numbers, (n,).

    Refuses an output without values for all n rows.
    """
    value = outputs.get(name)
    if value is None or value.numel() == 0 or value.numel() % n:
        shape = "nothing" if value is None else list(value.shape)
        raise CovcalError(
            f"{where} gives {shape} as {name} for {n} rows, because its batch size is fixed: "
            "pass --batch 1"
        )
    answer = to_array(value)
    return answer.reshape(n, -1) if value.is_floating_point() else answer.reshape(n)


def _is_answer(value: Tensor, n: int) -> bool:
    """Return whether a tensor has one float, or one vector of floats, per row."""
    if not value.is_floating_point() or value.numel() == 0:
        return False
    if value.ndim == 1:
        return n in (1, len(value))  # Some models drop the axis of the rows for a single row.
    # The shape may be [n, K] with more axes of length 1, or [1, n, K].
    shape = value.shape[1:] if value.ndim == 3 and value.shape[:2] == (1, n) else value.shape
    return value.ndim > 1 and shape[0] == n and sum(size != 1 for size in shape[1:]) <= 1


def _kind(value: Tensor) -> str:
    """Describe the shape of a tensor, and its type unless the type is float."""
    kind = "" if value.is_floating_point() else f"{str(value.dtype).removeprefix('torch.')} "
    return f"{kind}{list(value.shape)}"


def device_of(providers: Sequence[str]) -> torch.device:
    """Return the device of the first provider; default: the CPU.

    A provider is ``cpu`` or ``cuda``, in upper or lower case. Raises `CovcalError` if the device is
    missing.
    """
    names = [name.strip().lower().removesuffix(_SUFFIX) for name in providers]
    for asked, name in zip(providers, names, strict=True):
        if name not in _DEVICES:
            raise CovcalError(
                f"--providers {asked} is only for ONNX models: pass cpu or cuda, or export the "
                "model to ONNX"
            )
    if "cuda" in names and not torch.cuda.is_available():
        raise CovcalError(
            f"--providers cuda: torch {torch.__version__} finds no CUDA device: pass "
            "--providers cpu, or install torch with CUDA"
        )
    return torch.device(names[0]) if names else CPU


def without_tensor_cores() -> None:
    """Use full float32 precision for convolutions on a GPU.

    Tensor cores round to ten bits, which gives only three correct digits.
    """
    torch.backends.cudnn.allow_tf32 = False
