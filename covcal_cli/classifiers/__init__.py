"""Classifiers from elsewhere: opened, with a proved last linear layer, and run in batches.

This module has the kinds of models, which are recognised by file names. A new kind needs an entry
here, an opener in ``open.py``, and a module.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

# The start of the small text that Git LFS leaves in place of a file that was not downloaded.
LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class Kind:
    """One kind of model."""

    words: str  # the kinds in words, for messages
    usual: tuple[str, ...]  # endings that help and messages name
    others: tuple[str, ...]  # further endings
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
    # Any other file is read as ONNX, whose reader says what else it is.
    return next((kind for kind in KINDS if ending in (*kind.usual, *kind.others)), ONNX)


def is_model(path: str | Path) -> bool:
    """Return whether a path or text names a model, by its ending or as ``module:function``."""
    endings = {ending for kind in KINDS for ending in (*kind.usual, *kind.others)}
    return names_a_function(path) or Path(path).suffix.lower() in endings


def names_a_function(model: str | Path) -> bool:
    """Return whether `model` has the form ``module:function`` and is not an existing file."""
    return _FUNCTION.fullmatch(str(model)) is not None and not Path(model).exists()
