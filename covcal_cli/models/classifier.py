"""What extraction needs of a classifier, whatever framework it comes from."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.files import require_file
from covcal_cli.modelinput import ModelInput

Floats = NDArray[np.float32]
Inputs = Mapping[str, NDArray[Any]]

_TORCH_SUFFIXES = {".pt", ".pth", ".pt2", ".ckpt", ".safetensors"}
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_REMEDY = "give the classifier first: an .onnx, .pt or .pt2 file, or module:function"


class Classifier(Protocol):
    """A trained classifier, usually with a linear last layer: logits = phi(x) W^T + b.

    Attributes
    ----------
    name : str
        Base name of the file.
    sha256 : str
        Hexadecimal sha256 of the file and of the weights that it reads from elsewhere.
    inputs : tuple of ModelInput
        What must be fed.
    fixed_batch : int or None
        The number of rows every run is fed, where the model allows no other.
    metadata : mapping of str to str
        What the file says about itself: class names, preprocessing; empty where it says nothing.
    class_names : tuple of str or None
        Names of the K classes, where the model holds them.
    notes : tuple of str
        What a user should know about how the model was read; the first batch may add some.
    n_classes : int
        K.
    features_tensor : str or None
        Name of phi in the model.
    logits_tensor : str
        Name of the logits in the model.
    """

    name: str
    sha256: str
    inputs: tuple[ModelInput, ...]
    fixed_batch: int | None
    metadata: Mapping[str, str]
    class_names: tuple[str, ...] | None
    notes: tuple[str, ...]
    n_classes: int
    features_tensor: str | None
    logits_tensor: str

    @property
    def n_features(self) -> int | None:
        """d; None where features were not asked for, or the first batch must show it."""
        ...

    @property
    def weight(self) -> Floats | None:
        """W, shape (K, d), with any constant scale of the logits folded in.

        None without features, or where the logits are not affine in the tensor that was chosen.
        """
        ...

    @property
    def bias(self) -> Floats | None:
        """The bias b, shape (K,), likewise."""
        ...

    @property
    def tail(self) -> str | None:
        """What turns the logits into the model's output; None before the first batch.

        ``"none"``, ``"softmax"``, ``"log_softmax"``, ``"sigmoid"`` or ``"argmax"``.
        """
        ...

    @property
    def affine_error(self) -> float | None:
        """Ratio of the next two; None without W, or before the first batch."""
        ...

    @property
    def largest_affine_difference(self) -> float:
        """Largest ``|phi W^T + b - logits|`` over all batches so far.

        It and the next can be merged over shards of the rows: the largest of each.
        """
        ...

    @property
    def largest_logit(self) -> float:
        """Largest ``|logit|`` over all batches so far."""
        ...

    def run(self, batch: Inputs) -> tuple[Floats | None, Floats]:
        """Return phi(x), shape (m, d), and the logits, shape (m, K), of arrays by input name."""
        ...

    def describe(self) -> str:
        """Return the head and its proof in one line."""
        ...


def open_classifier(
    model: str | Path,
    *,
    weights: Path | None = None,
    output: str | None = None,
    phi: str | None = None,
    threads: int = 1,
    providers: Sequence[str] = (),
) -> Classifier:
    """Open a classifier by the kind of its file.

    Parameters
    ----------
    model : str or Path
        Path of an ONNX file or a torch file, or ``module:function`` that returns a torch module.
    weights : Path, optional
        Weights to load into the module that ``module:function`` returns.
    output : str, optional
        Name of the output that holds the classes, where the model has several.
    phi : str, optional
        ``"input"``, ``"none"`` or the name of a tensor, instead of the layer that is found.
    threads : int
        Threads within one operation.
    providers : sequence of str
        Where to compute, in order of preference: execution providers of ONNX Runtime, for a torch
        model ``cpu`` or ``cuda``; the CPU when empty.

    Raises
    ------
    CovcalError
        If the file is not a model that covcal can use, with the reason.
    """
    path = Path(model)
    if is_torch(model):
        from covcal_cli.models.torch_classifier import open_torch

        return open_torch(
            model, weights=weights, output=output, phi=phi, threads=threads, providers=providers
        )
    if weights is not None:
        raise CovcalError(
            f"{path} holds its own weights: give --weights only with a torch model as "
            "module:function"
        )
    require_file(path, remedy=_REMEDY)
    from covcal_cli.models.onnx_classifier import OnnxClassifier

    return OnnxClassifier(path, output=output, phi=phi, threads=threads, providers=providers)


def is_torch(model: str | Path) -> bool:
    """Return whether `model` is a torch file by its ending, or ``module:function``."""
    return Path(model).suffix.lower() in _TORCH_SUFFIXES or names_a_function(model)


def names_a_function(model: str | Path) -> bool:
    """Return whether `model` reads ``module:function`` and is no existing file."""
    return _FUNCTION.fullmatch(str(model)) is not None and not Path(model).exists()
