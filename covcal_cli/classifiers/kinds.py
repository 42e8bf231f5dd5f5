"""The kinds of models, told apart by their names alone.

A new kind is an entry here, its opener in ``open.py`` and a module of its own.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

# What Git LFS leaves in the place of a file that was not downloaded starts so.
LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class Kind:
    """One kind of model."""

    words: str  # for messages
    usual: tuple[str, ...]  # the endings that help and messages name
    others: tuple[str, ...]
    exported: str  # the ending of what export writes


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
    f"give the classifier first: an {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]} file, or "
    "module:function"
)
MODEL_HELP = f"A classifier: {', '.join(ENDINGS)} or module:function."


def kind_of(model: str | Path) -> Kind:
    """Return the kind of a model; ``module:function`` returns a torch module."""
    if names_a_function(model):
        return TORCH
    ending = Path(model).suffix.lower()
    # A file by any other name may hold ONNX, or its reader says what it holds.
    return next((kind for kind in KINDS if ending in (*kind.usual, *kind.others)), ONNX)


def names_a_function(model: str | Path) -> bool:
    """Return whether `model` reads ``module:function`` and is no existing file."""
    return _FUNCTION.fullmatch(str(model)) is not None and not Path(model).exists()
