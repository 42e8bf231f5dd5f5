"""Weights from a file into a module, without running anything that the file holds."""

import importlib
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from covcal_cli.errors import CovcalError
from covcal_cli.files import require_file
from covcal_cli.models.torch_program import cause

# Where training scripts put the state_dict, and what wrappers write before every name.
_PLACES = ("state_dict", "model_state_dict", "model", "net")
_PREFIXES = ("module.", "_orig_mod.", "model.")
_SHOWN = 3


def load_weights(module: nn.Module, path: Path, where: str) -> tuple[str, ...]:
    """Load a file of weights into a module, every name and shape checked.

    Parameters
    ----------
    module : torch.nn.Module
        Changed in place.
    path : Path
        ``.safetensors``, or what ``torch.save`` made of a state_dict or of a dict that holds one.
    where : str
        What made the module, for messages.

    Returns
    -------
    tuple of str
        What a user should know about how the file was read.

    Raises
    ------
    CovcalError
        If the file holds no weights, or not those of this module.
    """
    require_file(path, remedy="give the file that holds the module's state_dict")
    weights = _safetensors(path) if path.suffix.lower() == ".safetensors" else _saved(path)
    expected = module.state_dict()
    weights, stripped = _without_prefix(weights, expected)
    _require_same(weights, expected, path, where)
    module.load_state_dict(weights)
    return (f"{path}: {stripped!r} dropped before every name",) if stripped else ()


def _saved(path: Path) -> dict[str, Tensor]:
    try:
        loaded = torch.load(path, weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise CovcalError(
            f"{path} holds Python objects and not weights alone ({_forbidden(error)}): save the "
            "state_dict with torch.save(model.state_dict(), FILE)"
        ) from error
    except Exception as error:  # damaged files raise many kinds
        raise CovcalError(
            f"{path} is not a readable file of weights ({cause(error)}): save the state_dict again "
            "with torch.save"
        ) from error
    for place in _PLACES:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(place), Mapping):
            loaded = loaded[place]
            break
    if not isinstance(loaded, Mapping) or not any(isinstance(v, Tensor) for v in loaded.values()):
        found = f"a dict of {', '.join(map(str, loaded))}" if isinstance(loaded, Mapping) else ""
        raise CovcalError(
            f"{path} holds no state_dict but {found or type(loaded).__name__}: save it with "
            "torch.save(model.state_dict(), FILE)"
        )
    return {str(name): value for name, value in loaded.items()}


def _forbidden(error: Exception) -> str:
    """Return the object that torch refused to build, from its long message."""
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
    except Exception as error:  # safetensors' own class, and OSError
        raise CovcalError(
            f"{path} is not a readable .safetensors file ({cause(error)}): save it again"
        ) from error
    return loaded


def _without_prefix(
    weights: dict[str, Tensor], expected: Mapping[str, Any]
) -> tuple[dict[str, Tensor], str]:
    """Drop what wrappers such as DataParallel write before every name."""
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
    found = [
        f"{what} {_listed(names)}"
        for what, names in (("lacks", missing), ("adds", unexpected), ("has", shapes))
        if names
    ]
    if found:
        raise CovcalError(
            f"{path} does not fit the module of {where}: it {'; it '.join(found)}: give the "
            "weights that were trained with this module"
        )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
