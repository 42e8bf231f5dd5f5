"""The preprocessing of timm's ``config.json``: ``pretrained_cfg``, or the same keys at the top.

timm itself reads the six keys below for its evaluation transforms and nothing else of the file.
"""

import math
from collections.abc import Mapping
from typing import Any, get_args

from covcal_cli.errors import CovcalError
from covcal_cli.inputs.configvalues import ConfigValues
from covcal_cli.inputs.preprocessing import Preprocessing
from covcal_cli.inputs.presets import IMAGENET_MEAN, IMAGENET_STD
from covcal_cli.inputs.resizing import Resample, Resize

_DEFAULT_SIZE = (3, 224, 224)
_DEFAULT_CROP = 0.875


def is_timm(content: Mapping[str, Any]) -> bool:
    """Return whether a JSON file is timm's."""
    flat = "architecture" in content and "num_classes" in content and "mean" in content
    return isinstance(content.get("pretrained_cfg"), dict) or flat


def timm_preprocessing(content: Mapping[str, Any], origin: str) -> Preprocessing:
    """Return what timm's evaluation transforms do; `origin` is the file, for messages.

    Raises
    ------
    CovcalError
        If a value is none of those that timm knows.
    """
    values = ConfigValues(content.get("pretrained_cfg") or content, origin)
    size = values.integers("input_size", _DEFAULT_SIZE)
    if len(size) != 3:
        raise values.wrong("input_size", "[channels, height, width]")
    height, width = size[1:]
    share = values.number("crop_pct", _DEFAULT_CROP) or _DEFAULT_CROP
    mean = values.numbers("mean", IMAGENET_MEAN)
    scaled = math.floor(height / share), math.floor(width / share)
    mode = values.text("crop_mode", "center")
    if mode == "squash":
        resize = Resize("squash", size=scaled)
    elif mode == "border":
        fill = tuple(round(255 * value) for value in mean)
        resize = Resize("letterbox", size=scaled, fill=fill)
    elif mode != "center":
        raise values.wrong("crop_mode", "center, squash or border")
    elif height != width:
        raise CovcalError(
            f"{origin}: images of {height}x{width} that keep their ratio follow a rule that covcal "
            "does not have: pass --preprocess none and the flags, or --preprocess module:function"
        )
    else:
        resize = Resize("short", short=scaled[0])
    resample = values.text("interpolation", "bicubic")
    filters: dict[str, Resample] = {name: name for name in get_args(Resample)}
    if resample not in filters:
        raise values.wrong("interpolation", ", ".join(filters))
    return Preprocessing(
        resize=resize,
        crop=(height, width),
        crop_rule="round",
        resample=filters[resample],
        scale=1 / 255,
        mean=mean,
        std=values.numbers("std", IMAGENET_STD),
    )
