"""Open torch files: programs (TorchScript, torch.export), and weights of a user's module.

Opening a torch.export file can run pickled code, and a TorchScript program can write files. covcal
therefore opens a program only if the user trusts it. A file of weights is read without its pickled
objects.
"""

import importlib
import logging
import pickle
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from covcal_cli.arrays import ModelInput, Shape
from covcal_cli.classifiers import LFS_POINTER
from covcal_cli.classifiers.torch.inputs import ROWS, find_inputs
from covcal_cli.classifiers.torch.program import (
    CPU,
    Program,
    cause,
    numpy_type,
    quiet,
    without_tensor_cores,
)
from covcal_cli.errors import OUTPUTS_AS_TABLE, CovcalError
from covcal_cli.files import grows_beyond_belief, require_file, sha256_of

_JIT: Any = torch.jit  # The functions of torch.jit have no types.
_PICKLE = b"\x80"
_SAVE_AGAIN = "copy it again, or save the state_dict again with torch.save"
_EXPORT_AGAIN = "copy it again, or save it again with torch.export.save or torch.jit.save"
# Usual keys of the state_dict in a checkpoint, and usual name prefixes of wrappers.
_PLACES = ("state_dict", "model_state_dict", "model", "net")
_PREFIXES = ("module.", "_orig_mod.", "model.")
_SHOWN = 3  # Maximum number of names in a message.
_ELEMENT_BYTES = {
    **dict.fromkeys(("ByteStorage", "CharStorage", "BoolStorage", "UntypedStorage"), 1),
    **dict.fromkeys(("QInt8Storage", "QUInt8Storage"), 1),
    **dict.fromkeys(("HalfStorage", "BFloat16Storage", "ShortStorage"), 2),
    **dict.fromkeys(("FloatStorage", "IntStorage", "QInt32Storage"), 4),
    **dict.fromkeys(("DoubleStorage", "LongStorage", "ComplexFloatStorage"), 8),
    "ComplexDoubleStorage": 16,
}


def open_file(path: Path, device: torch.device = CPU, *, trusted: bool = False) -> Program:
    """Open a TorchScript or torch.export file that is `trusted`, on `device`."""
    require_file(path, remedy="give a TorchScript or torch.export file, or module:function")
    kind = _kind(path)
    if kind == "weights":
        raise CovcalError(
            f"{path} holds weights or a pickled object, not a program: pass module:function "
            f"with --weights {path}, or {OUTPUTS_AS_TABLE}"
        )
    if not trusted:
        raise CovcalError(
            f"{path} is a {kind} program, which can run any code. If you trust the origin of the "
            "file, pass --trust-model. If you do not, give an ONNX file, or module:function with "
            "--weights FILE.safetensors"
        )
    module = _loaded(path, kind)
    if kind == "torch.export":
        return _exported(path, module, device)
    module.eval()
    inputs, rows, note = find_inputs(module, str(path), holders=())
    if device != CPU:
        without_tensor_cores()
        module = _loaded(path, kind, device).eval()  # `module.to` would not move constants.
    return Program(
        where=str(path),
        name=path.name,
        sha256=sha256_of(path),
        module=module,
        inputs=inputs,
        rows=rows,
        fixed_batch=None,
        notes=(note,),
        device=device,
    )


def _kind(path: Path) -> str:
    """Return "TorchScript", "torch.export" or "weights" for a torch file."""
    if not _is_zip(path):
        with path.open("rb") as handle:
            start = handle.read(len(LFS_POINTER))
        if start == LFS_POINTER:
            raise CovcalError(
                f"{path} is a Git LFS pointer ({path.stat().st_size} bytes), not the model: run "
                "git lfs pull"
            )
        if start.startswith(_PICKLE) or path.suffix.lower() == ".safetensors":
            return "weights"
        cut = " (it is cut short)" if start.startswith(b"PK") else ""
        raise CovcalError(f"{path} is not a readable torch file{cut}: {_EXPORT_AGAIN}")
    members = [name.partition("/")[2] for name in _intact_members(path, _EXPORT_AGAIN)]
    if "archive_format" in members:
        if any(name.endswith((".so", ".wrapper.cpp")) for name in members):
            raise CovcalError(
                f"{path} is a compiled program without visible layers (AOTInductor): save it "
                "with torch.export.save"
            )
        return "torch.export"
    if "constants.pkl" in members and any(name.startswith("code/") for name in members):
        return "TorchScript"
    if "data.pkl" in members:
        return "weights"
    raise CovcalError(f"{path} is a zip file without a torch program: {_EXPORT_AGAIN}")


def _is_zip(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # The archive claims to have several disks.
        return True


def _intact_members(path: Path, remedy: str) -> list[str]:
    """Refuse a damaged torch file or a zip bomb, and return the names of the members.

    torch does not compare checksums, and would unpack a member of any size.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            for member in members:
                if grows_beyond_belief(member.file_size, member.compress_size):
                    raise CovcalError(
                        f"{path}: {member.filename} needs {member.file_size / 1e9:.1f} GB, "
                        f"but the file holds only {member.compress_size} bytes of it: {remedy}"
                    )
            damaged = archive.testzip()
            torn = None if damaged else _torn_storage(archive)
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, RuntimeError) as error:
        raise CovcalError(
            f"{path} is not a readable torch file ({cause(error)}): {remedy}"
        ) from error
    if damaged is not None:
        raise CovcalError(f"{path}: the checksum of {damaged} is wrong: {remedy}")
    if torn is not None:
        raise CovcalError(f"{path} is damaged: {torn}: {remedy}")
    return [member.filename for member in members]


class _Inert:
    """An empty object that replaces the objects of a pickle."""

    def __new__(cls, *_args: Any, **_options: Any) -> "_Inert":
        return object.__new__(cls)

    def __setstate__(self, state: Any) -> None:
        """Ignore attributes."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Ignore an entry."""

    def append(self, value: Any) -> None:
        """Ignore an entry."""


class _StorageReader(pickle.Unpickler):
    """An unpickler that reads only the sizes of torch storages."""

    def __init__(self, content: bytes) -> None:
        super().__init__(BytesIO(content))
        self.sizes: dict[str, int] = {}  # Number of bytes of each member of the zip file.

    def find_class(self, module: str, name: str, /) -> Any:
        return type(name, (_Inert,), {"__module__": module})

    def persistent_load(self, pid: Any, /) -> Any:
        # `pid` is ("storage", type, member, device, number of elements).
        if isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage":
            kind, member, count = getattr(pid[1], "__name__", ""), pid[2], pid[4]
            if kind in _ELEMENT_BYTES and isinstance(count, int):
                self.sizes[str(member)] = count * _ELEMENT_BYTES[kind]
        return _Inert()


def _torn_storage(archive: zipfile.ZipFile) -> str | None:
    """Return a message about a storage of the wrong size, else None.

    With a storage that is too short, TorchScript would read other memory.
    """
    sizes = {member.filename: member.file_size for member in archive.infolist()}
    for name in sizes:
        folder, _, pickled = name.rpartition("/")
        if pickled not in ("data.pkl", "constants.pkl"):
            continue
        reader = _StorageReader(archive.read(name))
        try:
            reader.load()
        except Exception:
            continue
        for key, size in reader.sizes.items():
            member = f"{folder}/{pickled.removesuffix('.pkl')}/{key}"
            if sizes.get(member, size) != size:
                return f"{member} has {sizes[member]} bytes but needs {size}"
    return None


def _loaded(path: Path, kind: str, device: torch.device = CPU) -> Any:
    try:
        # torch would log a traceback before it raises an error.
        with warnings.catch_warnings(), quiet(logging.CRITICAL):
            # torch calls TorchScript deprecated, but still opens the file.
            warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
            if kind == "torch.export":
                return torch.export.load(path)
            return _JIT.load(path, map_location=device)
    except Exception as error:  # torch raises many kinds of errors, mostly RuntimeError.
        raise CovcalError(
            f"{path} is a {kind} file that torch {torch.__version__} cannot load ({cause(error)}): "
            f"{_EXPORT_AGAIN}"
        ) from error


def _exported(path: Path, program: Any, device: torch.device) -> Program:
    declared = _declared(path, program)
    sizes = {shape[0] for _, shape, _ in declared}
    fixed = next(iter(sizes)) if len(sizes) == 1 else None
    return Program(
        where=str(path),
        name=path.name,
        sha256=sha256_of(path),
        module=_on(path, program, device).module(),
        inputs=tuple(ModelInput(name, shape, numpy_type(kind)) for name, shape, kind in declared),
        rows=_rows(program, declared, fixed or ROWS),
        fixed_batch=fixed,
        notes=(),
        device=device,
    )


def _on(path: Path, program: Any, device: torch.device) -> Any:
    constants = [value for value in program.constants.values() if isinstance(value, Tensor)]
    devices = {value.device.type for value in (*program.state_dict.values(), *constants)}
    if devices <= {device.type}:
        return program
    from torch.export.passes import move_to_device_pass  # This import is slow.

    without_tensor_cores()
    try:
        return move_to_device_pass(program, str(device))
    except Exception as error:  # torch raises many kinds of errors
        raise CovcalError(
            f"{path} was exported on {', '.join(sorted(devices))} and cannot run on {device} "
            f"({cause(error)}): move the model to {device} and export it again"
        ) from error


def _declared(path: Path, program: Any) -> list[tuple[str, Shape, torch.dtype]]:
    keywords = program.example_inputs[1] if program.example_inputs else {}
    if keywords:
        raise CovcalError(
            f"{path} takes inputs by keyword ({', '.join(keywords)}): export the model with "
            "positional inputs only"
        )
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    inputs: list[tuple[str, Shape, torch.dtype]] = []
    for name in program.graph_signature.user_inputs:
        value = nodes[name].meta.get("val") if name in nodes else None
        if not isinstance(value, Tensor) or value.ndim == 0:
            raise CovcalError(
                f"{path}: input {name} is not a tensor with one row per example: export the model "
                "with tensor inputs only"
            )
        shape = tuple(size if isinstance(size, int) else None for size in value.shape)
        inputs.append((name, shape, value.dtype))
    if not inputs:
        raise CovcalError(f"{path} has no input: export the model with its inputs as arguments")
    return inputs


def _rows(
    program: Any, declared: list[tuple[str, Shape, torch.dtype]], n: int
) -> tuple[Tensor, ...]:
    examples = program.example_inputs[0] if program.example_inputs else ()
    generator = torch.Generator().manual_seed(0)
    rows = []
    for index, (_, shape, kind) in enumerate(declared):
        example = examples[index] if index < len(examples) else None
        example_sizes = list(example.shape) if isinstance(example, Tensor) else [1] * len(shape)
        sizes = [n, *(size or example_sizes[axis] for axis, size in enumerate(shape) if axis > 0)]
        if kind.is_floating_point:
            rows.append(torch.randn(sizes, generator=generator).to(kind))
        elif isinstance(example, Tensor) and len(example):
            # Random integers may be invalid inputs.
            rows.append(torch.cat([example.cpu()] * n)[:n])
        else:
            rows.append(torch.zeros(sizes, dtype=kind))
    return tuple(rows)


def load_weights(module: nn.Module, path: Path, where: str) -> tuple[str, ...]:
    """Load a file of weights into a module, and return notes.

    The names and shapes of the weights must match the module.

    The file is a ``.safetensors`` file, or a state_dict from ``torch.save``, perhaps inside a dict.
    `where` is the name of the module in messages.
    """
    require_file(path, remedy="give the file that holds the module's state_dict")
    weights = _safetensors(path) if path.suffix.lower() == ".safetensors" else _saved(path)
    expected = module.state_dict()
    weights, stripped = _without_prefix(weights, expected)
    _require_same(weights, expected, path, where)
    for name, _ in module.named_parameters():  # Buffers such as masks may be infinite.
        if name in weights and not weights[name].isfinite().all():
            raise CovcalError(
                f"{path}: {name} holds NaN or infinity, so training may have diverged: give "
                "other weights"
            )
    module.load_state_dict(weights)
    return (
        (f"{path}: covcal removed the prefix {stripped!r} from the name of every weight",)
        if stripped
        else ()
    )


def _saved(path: Path) -> dict[str, Tensor]:
    if _is_zip(path):
        _intact_members(path, _SAVE_AGAIN)
    try:
        loaded = torch.load(path, weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise CovcalError(
            f"{path} holds Python objects, not only weights ({_forbidden(error)}): save the "
            "state_dict with torch.save(model.state_dict(), FILE)"
        ) from error
    except Exception as error:  # Damaged files raise many kinds of errors.
        raise CovcalError(
            f"{path} is not a readable file of weights ({cause(error)}): {_SAVE_AGAIN}"
        ) from error
    for place in _PLACES:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(place), Mapping):
            loaded = loaded[place]
            break
    if not isinstance(loaded, Mapping) or not any(isinstance(v, Tensor) for v in loaded.values()):
        content = f"a dict of {', '.join(map(str, loaded))}" if isinstance(loaded, Mapping) else ""
        raise CovcalError(
            f"{path} holds {content or type(loaded).__name__} instead of a state_dict: save "
            "it with torch.save(model.state_dict(), FILE)"
        )
    return {str(name): value for name, value in loaded.items()}


def _forbidden(error: Exception) -> str:
    text = str(error)
    for mark in ("Unsupported global: GLOBAL ", "GLOBAL "):
        if mark in text:
            return text.partition(mark)[2].split()[0]
    return cause(error)


def _safetensors(path: Path) -> dict[str, Tensor]:
    try:
        safetensors: Any = importlib.import_module("safetensors.torch")
    except ImportError as error:
        raise CovcalError(
            f"{path} needs the safetensors package: run pip install safetensors"
        ) from error
    try:
        loaded: dict[str, Tensor] = safetensors.load_file(path, device="cpu")
    except Exception as error:  # An error class of safetensors, or OSError.
        raise CovcalError(
            f"{path} is not a readable .safetensors file ({cause(error)}): save it again"
        ) from error
    return loaded


def _without_prefix(
    weights: dict[str, Tensor], expected: Mapping[str, Any]
) -> tuple[dict[str, Tensor], str]:
    """Remove the name prefixes of wrappers such as DataParallel."""
    stripped = ""
    for prefix in _PREFIXES:
        everywhere = all(name.startswith(prefix) for name in weights)
        if everywhere and not all(name.startswith(prefix) for name in expected):
            weights = {name.removeprefix(prefix): value for name, value in weights.items()}
            stripped += prefix
    return weights, stripped


def _require_same(
    weights: Mapping[str, Tensor], expected: Mapping[str, Any], path: Path, where: str
) -> None:
    missing = [name for name in expected if name not in weights]
    unexpected = [name for name in weights if name not in expected]
    shapes = [
        f"{name} {list(value.shape)} instead of {list(expected[name].shape)}"
        for name, value in weights.items()
        if isinstance(value, Tensor)
        and isinstance(expected.get(name), Tensor)
        and value.shape != expected[name].shape
    ]
    differences = []
    for verb, names in (("lacks", missing), ("adds", unexpected), ("has", shapes)):
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            differences.append(f"{verb} {', '.join(names[:_SHOWN])}{more}")
    if differences:
        raise CovcalError(
            f"the weights in {path} do not fit {where}: the file "
            f"{', and '.join(differences)}. Give weights that were trained with this module"
        )
