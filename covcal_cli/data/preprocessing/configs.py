"""Find the preprocessing of images: in ``--preprocess``, in the model, or in files beside it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covcal_cli.data.preprocessing.function import load_function
from covcal_cli.data.preprocessing.hubs import read_config, similar_presets, torchvision_preset
from covcal_cli.data.preprocessing.pixels import LARGEST_SIDE, Resize
from covcal_cli.data.preprocessing.settings import Preprocessing
from covcal_cli.errors import CovcalError, one_line
from covcal_cli.records import json_of, parsed_json

_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_FILES = ("preprocessor_config.json", "processor_config.json", "config.json")
_KINDS = (
    "a preprocessor_config.json, a timm config.json, a torchvision preset such as imagenet or "
    "resnet50.IMAGENET1K_V2, ultralytics, module:function, or none"
)


def load_preprocessing(
    text: str, *, metadata: Mapping[str, str], model: Path | None = None
) -> Preprocessing:
    """Return the preprocessing that ``--preprocess`` names.

    `text` is a file or folder of Hugging Face or timm, a torchvision preset, ``ultralytics``,
    ``module:function`` or ``none``. `metadata` is the metadata of the model.

    Raises `CovcalError` for any other text, and for an unknown kind of preprocessing.
    """
    if text == "none":
        return Preprocessing()
    if text == "ultralytics":
        try:
            return _ultralytics(metadata)
        except CovcalError as error:
            raise CovcalError(f"{model}: {error}" if model else str(error)) from error
    path = Path(text)
    if path.is_dir():
        config = _in_folder(path)
        if config is None:
            raise CovcalError(
                f"{path} has no {' or '.join(_FILES)} that describes preprocessing: pass {_KINDS}"
            )
        return config[0]
    if path.is_file() or path.suffix.lower() == ".json":
        return _from_file(path)
    if _FUNCTION.fullmatch(text):
        return Preprocessing(function=load_function(text))
    preset = torchvision_preset(text)
    if preset is None:
        similar = similar_presets(text)
        hint = f" (did you mean {', '.join(similar)}?)" if similar else ""
        raise CovcalError(
            f"covcal finds no file or preset {text} for --preprocess{hint}: pass {_KINDS}"
        )
    return preset


def found_preprocessing(
    metadata: Mapping[str, str], model: Path | None
) -> tuple[Preprocessing, str] | None:
    """Return the preprocessing that comes with a model, and a description of its origin.

    The preprocessing is in the model's metadata, or in a file beside the model. For a model in a
    folder ``onnx``, the folder above is searched too. A file with unknown settings is refused.
    """
    if _is_ultralytics(metadata):
        return _ultralytics(metadata), "the model's own metadata (Ultralytics)"
    if model is None:
        return None
    folders = [model.parent]
    if model.absolute().parent.name == "onnx":
        folders.append(model.absolute().parent.parent)
    for folder in folders:
        config = _in_folder(folder)
        if config is not None:
            return config[0], f"{config[1]} (beside the model)"
    return None


def _in_folder(folder: Path) -> tuple[Preprocessing, Path] | None:
    for path in (folder / name for name in _FILES):
        settings = read_config(_content(path), str(path)) if path.is_file() else None
        if settings is not None:
            return settings, path
    return None


def _from_file(path: Path) -> Preprocessing:
    if not path.is_file():
        raise CovcalError(f"{path} does not exist: pass {_KINDS}")
    content = _content(path)
    settings = read_config(content, str(path))
    if settings is None:
        kind = (
            "a model's config" if "model_type" in content else "no preprocessing that covcal knows"
        )
        raise CovcalError(f"{path} holds {kind}: pass {_KINDS}")
    return settings


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json_of(path)
    except (OSError, ValueError) as error:
        raise CovcalError(
            f"{path} is not readable JSON ({one_line(error)}): pass another --preprocess, or none"
        ) from error
    if not isinstance(content, dict):
        raise CovcalError(f"{path} is not a JSON object: pass another --preprocess, or none")
    inner = content.get("image_processor")
    return inner if isinstance(inner, dict) else content


# Ultralytics resizes the shorter side, crops the centre and divides pixels by 255. OpenCV, the
# image reader of Ultralytics, turns images upright by their EXIF data.


def _is_ultralytics(metadata: Mapping[str, str]) -> bool:
    return "imgsz" in metadata and metadata.get("task") == "classify"


def _ultralytics(metadata: Mapping[str, str]) -> Preprocessing:
    if not _is_ultralytics(metadata):
        task = metadata.get("task")
        reason = f"its task is {task}" if task else "imgsz or task is missing"
        raise CovcalError(
            f"the model's metadata do not describe an Ultralytics classifier ({reason}): pass "
            "another --preprocess"
        )
    try:
        size = parsed_json(metadata["imgsz"])
        height, width = (size, size) if isinstance(size, int) else map(int, size)
        if not 1 <= min(height, width) <= max(height, width) <= LARGEST_SIDE:
            raise ValueError
    except (ValueError, TypeError) as error:
        raise CovcalError(
            f"the model's metadata have the image size {metadata['imgsz']!r}: pass --size"
        ) from error
    # Ultralytics keeps the aspect ratio only for a square input.
    square = height == width
    return Preprocessing(
        resize=Resize("short", short=height) if square else Resize("squash", size=(height, width)),
        crop=(height, width),
        crop_rule="round",
        resample="bilinear",
        scale=1 / 255,
        exif=True,
    )
