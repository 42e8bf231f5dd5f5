"""The torch module that ``module:function``, a user's own code, makes."""

import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from covcal_cli.classifiers.torch.file import load_weights
from covcal_cli.classifiers.torch.inputs import find_inputs
from covcal_cli.classifiers.torch.program import Program, cause
from covcal_cli.errors import CovcalError


def open_function(reference: str, weights: Path | None) -> Program:
    """Make the module that ``module:function`` returns, with the current folder importable.

    The sha256 is that of the module's state_dict (names, types, shapes and bytes, sorted by name),
    so it follows the weights and not the code.
    """
    with _current_folder_importable(), redirect_stdout(StringIO()):
        make = _imported(reference)
        module = _made(reference, make)
        if isinstance(module, nn.DataParallel):
            module = module.module
        module = _on_cpu(reference, module).eval()
        notes: tuple[str, ...] = (f"{reference} came with its own weights: --weights loads others",)
        if weights is not None:
            notes = load_weights(module, weights, reference)
        fed = find_inputs(module, reference, holders=(make, module))
    return Program(
        where=reference,
        name=reference,
        sha256=_digest(module),
        module=module,
        inputs=fed.inputs,
        rows=fed.rows,
        fixed_batch=None,
        notes=(*fed.notes, *notes),
    )


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    """Let modules be imported as ``python -m`` would; what the function imports later, too."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with suppress(ValueError):  # the user's code may have changed it
            sys.path.remove(folder)


def _imported(reference: str) -> Any:
    """Return what stands behind the colon, with the names that there are where it does not."""
    module_name, _, attribute = reference.rpartition(":")
    found: Any = _guarded(
        f"{reference}: importing {module_name} fails",
        lambda: importlib.import_module(module_name),
        remedy="mend it, or run covcal in the folder that holds it",
    )
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = sorted(
                name
                for name, value in vars(found).items()
                if callable(value) and getattr(value, "__module__", None) == module_name
            )
            known = f"it has {', '.join(names)}" if names else "it has no function"
            raise CovcalError(f"{reference}: {module_name} has no {part} ({known}): name one")
        found = getattr(found, part)
    return found


def _made(reference: str, make: Any) -> nn.Module:
    """Return the module that a function makes, or that stands in the function's place."""
    if isinstance(make, nn.Module):
        return make
    if not callable(make):
        raise CovcalError(
            f"{reference} is no function ({type(make).__name__}): name a function without "
            "arguments that returns a torch.nn.Module"
        )
    needed = _required_arguments(make)
    if needed:
        raise CovcalError(
            f"{reference} needs arguments ({', '.join(needed)}): give a function without "
            "arguments that calls it"
        )
    module = _guarded(f"{reference}: calling it fails", make, remedy="mend the function")
    if not isinstance(module, nn.Module):
        raise CovcalError(
            f"{reference} returns no torch.nn.Module ({type(module).__name__}): return one"
        )
    lazy = [name for name, value in module.named_parameters() if is_lazy(value)]
    if lazy:
        raise CovcalError(
            f"{reference}: {lazy[0]} is lazy and has no shape yet: run the module once inside the "
            "function"
        )
    return module


def _required_arguments(make: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return []
    return [
        value.name
        for value in parameters
        if value.default is value.empty
        and value.kind not in (value.VAR_POSITIONAL, value.VAR_KEYWORD)
    ]


def _on_cpu(reference: str, module: nn.Module) -> nn.Module:
    try:
        return module.cpu()
    except NotImplementedError as error:  # parameters on the meta device have no values
        raise CovcalError(
            f"{reference}: its parameters hold no values ({cause(error)}): make the module on the "
            "CPU"
        ) from error


def _guarded(what: str, action: Callable[[], Any], *, remedy: str) -> Any:
    """Run the user's code; whatever it raises becomes one line that says where."""
    try:
        return action()
    except (Exception, SystemExit) as error:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename != __file__ and "importlib" not in frame.filename
        ]
        place = f" at {Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else ""
        raise CovcalError(f"{what} ({cause(error)}{place}): {remedy}") from error


def _digest(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
            digest.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
