"""What extraction needs of a classifier, whatever framework it comes from."""

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from covcal_cli.errors import CovcalError
from covcal_cli.files import require_file

Floats = NDArray[np.float32]
Shape = tuple[int | None, ...]

_TORCH_SUFFIXES = {".pt", ".pth", ".pt2", ".ckpt", ".safetensors"}
_REMEDY = "give the classifier as an ONNX file (.onnx)"


class Classifier(Protocol):
    """A trained classifier whose last layer is linear: logits = phi(x) W^T + b.

    Attributes
    ----------
    name : str
        Base name of the file.
    sha256 : str
        Hexadecimal sha256 of the file.
    input_name : str
        Name of the only input.
    input_shape : tuple of (int or None)
        Declared shape with the batch first; None where it is free.
    input_dtype : numpy.dtype
        Element type of the input.
    fixed_batch : int or None
        The number of rows every run is fed, where the model allows no other.
    n_classes, n_features : int
        K and d.
    weight : array of float32, shape (K, d)
        W, with any constant scale of the logits folded in.
    bias : array of float32, shape (K,)
        b, likewise.
    features_tensor, logits_tensor : str
        Names of the two tensors in the model.
    tail : str or None
        What turns the logits into the model's output: ``"none"``, ``"softmax"`` or
        ``"log_softmax"``. None before the first batch has been run.
    affine_error : float or None
        Largest ``|phi W^T + b - logits|`` relative to the largest logit, over all batches so far.
    """

    name: str
    sha256: str
    input_name: str
    input_shape: Shape
    input_dtype: np.dtype[np.generic]
    fixed_batch: int | None
    n_classes: int
    n_features: int
    weight: Floats
    bias: Floats
    features_tensor: str
    logits_tensor: str
    tail: str | None
    affine_error: float | None

    def run(self, batch: NDArray[np.generic]) -> tuple[Floats, Floats]:
        """Return phi(x), shape (m, d), and the logits, shape (m, K), of `batch`."""
        ...

    def describe(self) -> str:
        """Return the head and its proof in one line."""
        ...


def open_classifier(path: Path, *, output: str | None = None, threads: int = 1) -> Classifier:
    """Open a classifier by the kind of its file.

    Parameters
    ----------
    path : Path
        An ONNX file.
    output : str, optional
        Name of the output that holds the classes, where the model has several.
    threads : int
        Threads within one operation.

    Raises
    ------
    CovcalError
        If the file is not a model that covcal can use, with the reason.
    """
    require_file(path, remedy=_REMEDY)
    if path.suffix.lower() in _TORCH_SUFFIXES:
        raise CovcalError(f"{path} is a torch file, which is not supported yet: {_REMEDY}")
    from covcal_cli.models.onnx_classifier import OnnxClassifier

    return OnnxClassifier(path, output=output, threads=threads)
