"""Open a classifier of any kind."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from covcal_cli.classifiers import TORCH, kind_of
from covcal_cli.classifiers.classifier import OpenedClassifier


def open_classifier(
    model: str | Path,
    *,
    weights: Path | None = None,
    output: str | None = None,
    phi: str | None = None,
    threads: int = 1,
    providers: Sequence[str] = (),
    trusted: bool = False,
) -> OpenedClassifier:
    """Open a classifier. The name of its file decides the kind.

    - `model`: an ONNX file, a torch file, or ``module:function`` that returns a torch module.
    - `weights`: a file of weights to load into the module that ``module:function`` returns.
    - `output`: name of the output with the classes, if the model has several outputs.
    - `phi`: the features: ``"input"``, ``"none"``, or the name of a tensor. Default: the input of
      the last linear layer.
    - `threads`: number of threads that one operation uses.
    - `providers`: where to compute, in order of preference: execution providers of ONNX Runtime, or
      ``cpu`` and ``cuda`` for a torch model. Default: the CPU.
    - `trusted`: whether to open a file that can run code, such as a torch program.

    Raises `CovcalError` with the reason if covcal cannot use the model.
    """
    open_model: Callable[..., OpenedClassifier]
    if kind_of(model) is TORCH:  # a kind must not import the library of another kind
        from covcal_cli.classifiers.torch.classifier import open_torch

        open_model = partial(open_torch, trusted=trusted)
    else:
        from covcal_cli.classifiers.onnx.classifier import open_onnx

        open_model = open_onnx
    return open_model(
        model, weights=weights, output=output, phi=phi, threads=threads, providers=providers
    )
