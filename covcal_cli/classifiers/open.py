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
    """Open a classifier. The ending of its file name decides the kind.

    See `covcal_cli.extract.settings.ExtractSettings` for the arguments. `output` is the output with
    the classes, and `trusted` allows files that can run code.

    Raises `CovcalError` if covcal cannot use the model.
    """
    open_model: Callable[..., OpenedClassifier]
    if kind_of(model) is TORCH:  # Import only the library of the kind.
        from covcal_cli.classifiers.torch.classifier import open_torch

        open_model = partial(open_torch, trusted=trusted)
    else:
        from covcal_cli.classifiers.onnx.classifier import open_onnx

        open_model = open_onnx
    return open_model(
        model, weights=weights, output=output, phi=phi, threads=threads, providers=providers
    )
