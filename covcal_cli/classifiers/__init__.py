"""List the kinds of models, and the settings for opening one. The file name decides the kind."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class Kind:
    """A kind of model, such as ONNX."""

    words: str  # The name of the kind in messages.
    usual: tuple[str, ...]  # File name endings that the help text and messages show.
    others: tuple[str, ...]  # Other accepted file name endings.
    exported: str  # The ending of an exported model.


@dataclass(frozen=True)
class ModelSettings:
    """The settings for opening a model."""

    weights: Path | None = None  # Weights of the model that ``module:function`` returns.
    # Name of the output with the class scores, if the model has several outputs.
    model_output: str | None = None
    # "input", "none", or the name of a tensor; default: the input of the last linear layer.
    phi: str | None = None
    providers: Sequence[str] = ()  # Execution providers of ONNX Runtime, in order of preference.
    trust_model: bool = False  # Whether to open a model file that can run code.


ONNX = Kind("an ONNX model", usual=(".onnx",), others=(), exported=".onnx")
TORCH = Kind(
    "a torch model",
    usual=(".pt", ".pt2"),
    others=(".pth", ".ckpt", ".safetensors"),
    exported=".pt2",
)
KINDS = (ONNX, TORCH)
ENDINGS = tuple(ending for kind in KINDS for ending in kind.usual)
REMEDY = (
    f"the first argument must be the classifier: an {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]} "
    "file, or module:function"
)
MODEL_HELP = f"A classifier: {', '.join(ENDINGS)} or module:function."


def kind_of(model: str | Path) -> Kind:
    """Return the kind of a model, which is a file or ``module:function``."""
    if names_a_function(model):
        return TORCH
    ending = Path(model).suffix.lower()
    # For other files, the ONNX reader raises an error that names the kind.
    return next((kind for kind in KINDS if ending in (*kind.usual, *kind.others)), ONNX)


def is_model(path: str | Path) -> bool:
    """Return whether `path` is ``module:function``, or a file with the ending of a model."""
    endings = {ending for kind in KINDS for ending in (*kind.usual, *kind.others)}
    return names_a_function(path) or Path(path).suffix.lower() in endings


def names_a_function(model: str | Path) -> bool:
    """Return whether `model` is ``module:function`` and not an existing file."""
    return _FUNCTION.fullmatch(str(model)) is not None and not Path(model).exists()
