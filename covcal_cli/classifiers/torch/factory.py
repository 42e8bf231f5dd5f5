"""Call the user's ``module:function``, which returns a torch module."""

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
    """Call ``module:function``, and return its torch module.

    The sha256 of the program is a hash of the state_dict: names, types, shapes and bytes, sorted by
    name.
    """
    with _current_folder_importable(), redirect_stdout(StringIO()):
        make = _imported(reference)
        module = _made(reference, make)
        if isinstance(module, nn.DataParallel):
            module = module.module
        try:
            module = module.cpu().eval()
        except NotImplementedError as error:  # Parameters on torch's meta device have no values.
            raise CovcalError(
                f"{reference}: its parameters have no values ({cause(error)}): create the module "
                "on the CPU"
            ) from error
        notes: tuple[str, ...] = (
            f"covcal uses the weights that {reference} sets. If this function loads no weights, "
            "pass --weights",
        )
        if weights is not None:
            notes = load_weights(module, weights, reference)
        inputs, rows, note = find_inputs(module, reference, holders=(make, module))
    return Program(
        where=reference,
        name=reference,
        sha256=_digest(module),
        module=module,
        inputs=inputs,
        rows=rows,
        fixed_batch=None,
        notes=(note, *notes),
    )


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with suppress(ValueError):  # The user's code may have changed the import path.
            sys.path.remove(folder)


def _imported(reference: str) -> Any:
    module_name, _, attribute = reference.rpartition(":")
    value: Any = _guarded(
        f"{reference}: importing {module_name} fails",
        lambda: importlib.import_module(module_name),
        remedy="correct the module, or run covcal in the folder of the module",
    )
    for part in attribute.split("."):
        if not hasattr(value, part):
            names = sorted(
                name
                for name, item in vars(value).items()
                if callable(item) and getattr(item, "__module__", None) == module_name
            )
            choices = f"it has {', '.join(names)}" if names else "it has no function"
            raise CovcalError(
                f"{reference}: {module_name} has no {part} ({choices}): give the name of a function"
            )
        value = getattr(value, part)
    return value


def _made(reference: str, make: Any) -> nn.Module:
    """Return the module `make`, or the module that the function `make` returns."""
    if isinstance(make, nn.Module):
        return make
    if not callable(make):
        raise CovcalError(
            f"{reference} is not a function ({type(make).__name__}): give a function without "
            "arguments that returns a torch.nn.Module"
        )
    needed = _required_arguments(make)
    if needed:
        raise CovcalError(
            f"{reference} needs arguments ({', '.join(needed)}): name a function without arguments"
        )
    module = _guarded(f"{reference}: calling it fails", make, remedy="correct the function")
    if not isinstance(module, nn.Module):
        raise CovcalError(
            f"{reference} returns {type(module).__name__}, not a torch.nn.Module: return a module"
        )
    lazy = [name for name, value in module.named_parameters() if is_lazy(value)]
    if lazy:
        raise CovcalError(
            f"{reference}: {lazy[0]} is a lazy layer without a shape: run the module once "
            "inside the function"
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


def _guarded(what: str, action: Callable[[], Any], *, remedy: str) -> Any:
    """Run the user's code, and report an exception in one line."""
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
