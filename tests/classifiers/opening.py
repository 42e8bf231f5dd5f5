"""Open models with the settings as arguments."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from covcal_cli.classifiers import ModelSettings
from covcal_cli.classifiers.classifier import OpenedClassifier
from covcal_cli.classifiers.onnx import classifier as onnx
from covcal_cli.classifiers.open import open_classifier as open_of_any_kind

if TYPE_CHECKING:
    from covcal_cli.classifiers.torch.classifier import OpenedTorch

_NAMES = {"output": "model_output", "trusted": "trust_model"}


def open_classifier(model: str | Path, threads: int = 1, **options: Any) -> OpenedClassifier:
    return open_of_any_kind(model, _settings(options), threads)


def open_onnx(model: str | Path, threads: int = 1, **options: Any) -> onnx.OpenedOnnx:
    return onnx.open_onnx(model, _settings(options), threads)


def open_torch(model: str | Path, threads: int = 1, **options: Any) -> "OpenedTorch":
    from covcal_cli.classifiers.torch import classifier

    return classifier.open_torch(model, _settings(options), threads)


def _settings(options: dict[str, Any]) -> ModelSettings:
    return ModelSettings(**{_NAMES.get(name, name): value for name, value in options.items()})
