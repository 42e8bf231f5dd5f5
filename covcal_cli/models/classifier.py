"""What extraction needs of a classifier, whatever framework it comes from."""

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
_REMEDY = "give the classifier as an ONNX file (.onnx)"


class Classifier(Protocol):
    """A trained classifier whose last layer is linear: logits = phi(x) W^T + b.

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
        What a user should know about how the model was read.
    n_classes : int
        K.
    n_features : int or None
        d; None where the features were not asked for (``--phi none``).
    weight : array of float32, shape (K, d), or None
        W, with any constant scale of the logits folded in; None without features, or where the
        logits are not affine in the tensor chosen with ``--phi``.
    bias : array of float32, shape (K,), or None
        b, likewise.
    features_tensor : str or None
        Name of phi in the model.
    logits_tensor : str
        Name of the logits in the model.
    tail : str or None
        What turns the logits into the model's output: ``"none"``, ``"softmax"`` or
        ``"log_softmax"``. None before the first batch has been run.
    affine_error : float or None
        Largest ``|phi W^T + b - logits|`` relative to the largest logit, over all batches so far.
    """

    name: str
    sha256: str
    inputs: tuple[ModelInput, ...]
    fixed_batch: int | None
    metadata: Mapping[str, str]
    class_names: tuple[str, ...] | None
    notes: tuple[str, ...]
    n_classes: int
    n_features: int | None
    weight: Floats | None
    bias: Floats | None
    features_tensor: str | None
    logits_tensor: str
    tail: str | None
    affine_error: float | None

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
        Path of an ONNX file.
    weights : Path, optional
        Weights to load into the module that ``module:function`` returns.
    output : str, optional
        Name of the output that holds the classes, where the model has several.
    phi : str, optional
        ``"input"``, ``"none"`` or the name of a tensor, instead of the layer that is found.
    threads : int
        Threads within one operation.
    providers : sequence of str
        Execution providers of ONNX Runtime in order of preference; the CPU when empty.

    Raises
    ------
    CovcalError
        If the file is not a model that covcal can use, with the reason.
    """
    path = Path(model)
    require_file(path, remedy=_REMEDY)
    if path.suffix.lower() in _TORCH_SUFFIXES:
        raise CovcalError(f"{path} is a torch file, which is not supported yet: {_REMEDY}")
    from covcal_cli.models.onnx_classifier import OnnxClassifier

    return OnnxClassifier(path, output=output, threads=threads)
