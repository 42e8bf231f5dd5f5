"""Open classifiers from elsewhere, prove which layer is the last linear one, and run them.

This module lists the kinds of models, which are recognised by the name of the file. A new kind
needs an entry here, a function in ``open.py`` that opens it, and a module.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

# If a file was not downloaded, Git LFS leaves a small text that begins like this.
LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class Kind:
    """One kind of model."""

    words: str  # the kind in words, for messages
    usual: tuple[str, ...]  # endings of files that help and messages name
    others: tuple[str, ...]  # other endings of files
    exported: str  # the ending of files that export writes


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
    """Return the kind of a model, a file or ``module:function``."""
    if names_a_function(model):
        return TORCH
    ending = Path(model).suffix.lower()
    # Any other file is given to the reader of ONNX. Its error says what kind of file this is.
    return next((kind for kind in KINDS if ending in (*kind.usual, *kind.others)), ONNX)


def is_model(path: str | Path) -> bool:
    """Return whether `model` is ``module:function`` and no existing file."""
    endings = {ending for kind in KINDS for ending in (*kind.usual, *kind.others)}
    return names_a_function(path) or Path(path).suffix.lower() in endings


def names_a_function(model: str | Path) -> bool:
    """Return whether `model` has the form ``module:function`` and is not an existing file."""
    return _FUNCTION.fullmatch(str(model)) is not None and not Path(model).exists()
