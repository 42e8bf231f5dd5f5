"""Open a classifier of any kind."""

from pathlib import Path

from covcal_cli.classifiers import TORCH, ModelSettings, kind_of
from covcal_cli.classifiers.classifier import OpenedClassifier

_DEFAULTS = ModelSettings()


def open_classifier(
    model: str | Path, settings: ModelSettings = _DEFAULTS, threads: int = 1
) -> OpenedClassifier:
    """Open a classifier. The file name ending of a model decides which library opens the model.

    Raises `CovcalError` if covcal cannot use the model.
    """
    if kind_of(model) is TORCH:  # Import only the library for this kind of model.
        from covcal_cli.classifiers.torch.classifier import open_torch

        return open_torch(model, settings, threads)
    from covcal_cli.classifiers.onnx.classifier import open_onnx

    return open_onnx(model, settings, threads)
