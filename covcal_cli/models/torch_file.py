"""Programs in torch files: TorchScript and torch.export. Pickled objects are never opened."""

import logging
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covcal_cli.arrays import ModelInput, Shape
from covcal_cli.errors import CovcalError
from covcal_cli.files import require_file, sha256_of
from covcal_cli.models.torch_device import CPU, without_tensor_cores
from covcal_cli.models.torch_inputs import ROWS, find_inputs
from covcal_cli.models.torch_program import Program, cause, numpy_type

_JIT: Any = torch.jit  # its functions have no types
_LFS_POINTER = b"version https://git-lfs"
_PICKLE = b"\x80"
_EXPORT_AGAIN = "copy it again, or save it again with torch.export.save or torch.jit.save"


def open_file(path: Path, device: torch.device = CPU) -> Program:
    """Open a TorchScript or torch.export file, to compute on `device`.

    Raises
    ------
    CovcalError
        If the file is no program that this torch can run there.
    """
    require_file(path, remedy="give a TorchScript or torch.export file, or module:function")
    kind = _kind(path)
    if kind == "weights":
        raise CovcalError(
            f"{path} holds weights or a pickled object, not a program: pass module:function with "
            f"--weights {path}"
        )
    module = _loaded(path, kind)
    if kind == "torch.export":
        return _exported(path, module, device)
    module.eval()
    fed = find_inputs(module, str(path), holders=())
    if device != CPU:
        without_tensor_cores()
        module = _loaded(path, kind, device).eval()  # `to` leaves the constants where they are
    return Program(
        where=str(path),
        name=path.name,
        sha256=sha256_of(path),
        module=module,
        inputs=fed.inputs,
        rows=fed.rows,
        fixed_batch=None,
        notes=fed.notes,
        device=device,
    )


def _kind(path: Path) -> str:
    """Return what a file holds, by its members and first bytes."""
    if not zipfile.is_zipfile(path):
        with path.open("rb") as handle:
            start = handle.read(len(_LFS_POINTER))
        if start == _LFS_POINTER:
            raise CovcalError(
                f"{path} is a Git LFS pointer ({path.stat().st_size} bytes), not the model: run "
                "git lfs pull"
            )
        if start.startswith(_PICKLE) or path.suffix.lower() == ".safetensors":
            return "weights"
        cut = " (it is cut short)" if start.startswith(b"PK") else ""
        raise CovcalError(f"{path} is not a readable torch file{cut}: {_EXPORT_AGAIN}")
    with zipfile.ZipFile(path) as archive:
        members = [name.partition("/")[2] for name in archive.namelist()]
    if "archive_format" in members:
        if any(name.endswith((".so", ".wrapper.cpp")) for name in members):
            raise CovcalError(
                f"{path} is compiled (AOTInductor), which shows no layers: save the program with "
                "torch.export.save"
            )
        return "torch.export"
    if "constants.pkl" in members and any(name.startswith("code/") for name in members):
        return "TorchScript"
    if "data.pkl" in members:
        return "weights"
    raise CovcalError(f"{path} is a zip file and holds no torch program: {_EXPORT_AGAIN}")


@contextmanager
def _silent_logs() -> Iterator[None]:
    """Keep torch from printing its own tracebacks of what it goes on to raise."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _loaded(path: Path, kind: str, device: torch.device = CPU) -> Any:
    try:
        with warnings.catch_warnings(), _silent_logs():
            # TorchScript is deprecated, which its user knows; the file is as good as ever.
            warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
            if kind == "torch.export":
                return torch.export.load(path)
            return _JIT.load(path, map_location=device)
    except Exception as error:  # torch raises many kinds, RuntimeError for most
        raise CovcalError(
            f"{path} is a {kind} file that torch {torch.__version__} cannot load ({cause(error)}): "
            f"{_EXPORT_AGAIN}"
        ) from error


def _exported(path: Path, program: Any, device: torch.device) -> Program:
    """Return a torch.export program, whose inputs are declared and whose device is built in."""
    shapes = _declared(path, program)
    sizes = {shape[0] for _, shape, _ in shapes}
    fixed = next(iter(sizes)) if len(sizes) == 1 else None
    rows = _rows(program, shapes, fixed or ROWS)
    inputs = tuple(ModelInput(name, shape, numpy_type(kind)) for name, shape, kind in shapes)
    return Program(
        where=str(path),
        name=path.name,
        sha256=sha256_of(path),
        module=_on(path, program, device).module(),
        inputs=inputs,
        rows=rows,
        fixed_batch=fixed,
        notes=(),
        device=device,
    )


def _on(path: Path, program: Any, device: torch.device) -> Any:
    """Return an exported program whose weights, and the devices in its graph, are `device`."""
    found = {value.device.type for value in (*program.state_dict.values(), *_constants(program))}
    if found <= {device.type}:
        return program
    from torch.export.passes import move_to_device_pass  # imports much

    without_tensor_cores()
    try:
        return move_to_device_pass(program, str(device))
    except Exception as error:  # torch raises many kinds
        raise CovcalError(
            f"{path} was exported on {', '.join(sorted(found))} and cannot be moved to {device} "
            f"({cause(error)}): move the model there and export it again"
        ) from error


def _constants(program: Any) -> list[Tensor]:
    return [value for value in program.constants.values() if isinstance(value, Tensor)]


def _declared(path: Path, program: Any) -> list[tuple[str, Shape, torch.dtype]]:
    """Return name, shape and type of every input, from the graph's own record."""
    keywords = program.example_inputs[1] if program.example_inputs else {}
    if keywords:
        raise CovcalError(
            f"{path} takes inputs by keyword ({', '.join(keywords)}): export the model with "
            "positional inputs alone"
        )
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    found: list[tuple[str, Shape, torch.dtype]] = []
    for name in program.graph_signature.user_inputs:
        value = nodes[name].meta.get("val") if name in nodes else None
        if not isinstance(value, Tensor) or value.ndim == 0:
            raise CovcalError(
                f"{path}: input {name} is no tensor with one row per example: export the model "
                "with tensor inputs alone"
            )
        shape = tuple(size if isinstance(size, int) else None for size in value.shape)
        found.append((name, shape, value.dtype))
    if not found:
        raise CovcalError(f"{path} has no input: export the model with its inputs as arguments")
    return found


def _rows(program: Any, shapes: list[tuple[str, Shape, torch.dtype]], n: int) -> tuple[Tensor, ...]:
    """Return made rows of the declared shapes; free sizes are as in the example of the export."""
    examples = program.example_inputs[0] if program.example_inputs else ()
    generator = torch.Generator().manual_seed(0)
    rows = []
    for index, (_, shape, kind) in enumerate(shapes):
        example = examples[index] if index < len(examples) else None
        known = list(example.shape) if isinstance(example, Tensor) else [1] * len(shape)
        sizes = [n, *(size or known[axis] for axis, size in enumerate(shape) if axis > 0)]
        if kind.is_floating_point:
            rows.append(torch.randn(sizes, generator=generator).to(kind))
        elif isinstance(example, Tensor) and len(example):
            rows.append(
                torch.cat([example.cpu()] * n)[:n]
            )  # numbers that the model is known to take
        else:
            rows.append(torch.zeros(sizes, dtype=kind))
    return tuple(rows)
