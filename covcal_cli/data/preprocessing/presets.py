"""Look up the preprocessing of torchvision's classifiers by the name of their weights.

The table has the values of the weights' own ``transforms()`` in torchvision 0.28: the length of the
shorter side, the crop, the filter, the name of the weights, and the models with such weights.
"""

import difflib
import re

from covcal_cli.data.preprocessing.pixels import Resample, Resize
from covcal_cli.data.preprocessing.settings import Preprocessing
from covcal_cli.errors import CovcalError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)
_PLAIN = "imagenet"
_OTHER_CONSTANTS = {"efficientnet_v2_l": (HALF, HALF)}
_FILTERS: dict[str, Resample] = {"bilinear": "bilinear", "bicubic": "bicubic"}
_TABLE = """
224 224 bicubic IMAGENET1K_SWAG_LINEAR_V1
    regnet_y_128gf regnet_y_16gf regnet_y_32gf vit_b_16 vit_h_14 vit_l_16
224 224 bicubic IMAGENET1K_V1
    maxvit_t
230 224 bilinear IMAGENET1K_V1
    convnext_small
232 224 bicubic IMAGENET1K_V1
    swin_t
232 224 bilinear IMAGENET1K_V1
    convnext_base convnext_large mnasnet0_75 mnasnet1_3 resnext101_64x4d shufflenet_v2_x1_5
    shufflenet_v2_x2_0
232 224 bilinear IMAGENET1K_V2
    mobilenet_v2 mobilenet_v3_large regnet_x_16gf regnet_x_1_6gf regnet_x_32gf regnet_x_3_2gf
    regnet_x_400mf regnet_x_800mf regnet_x_8gf regnet_y_16gf regnet_y_1_6gf regnet_y_32gf
    regnet_y_3_2gf regnet_y_400mf regnet_y_800mf regnet_y_8gf resnet101 resnet152 resnet50
    resnext101_32x8d resnext50_32x4d wide_resnet101_2 wide_resnet50_2
236 224 bilinear IMAGENET1K_V1
    convnext_tiny
238 224 bicubic IMAGENET1K_V1
    swin_b
242 224 bilinear IMAGENET1K_V1
    vit_l_16
246 224 bicubic IMAGENET1K_V1
    swin_s
255 240 bilinear IMAGENET1K_V2
    efficientnet_b1
256 224 bicubic IMAGENET1K_V1
    efficientnet_b0
256 224 bilinear IMAGENET1K_V1
    alexnet densenet121 densenet161 densenet169 densenet201 googlenet mnasnet0_5 mnasnet1_0
    mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_16gf regnet_x_1_6gf
    regnet_x_32gf regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf regnet_y_16gf
    regnet_y_1_6gf regnet_y_32gf regnet_y_3_2gf regnet_y_400mf regnet_y_800mf regnet_y_8gf
    resnet101 resnet152 resnet18 resnet34 resnet50 resnext101_32x8d resnext50_32x4d
    shufflenet_v2_x0_5 shufflenet_v2_x1_0 squeezenet1_0 squeezenet1_1 vgg11 vgg11_bn vgg13
    vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn vit_b_16 vit_b_32 vit_l_32 wide_resnet101_2
    wide_resnet50_2
256 240 bicubic IMAGENET1K_V1
    efficientnet_b1
260 256 bicubic IMAGENET1K_V1
    swin_v2_s swin_v2_t
272 256 bicubic IMAGENET1K_V1
    swin_v2_b
288 288 bicubic IMAGENET1K_V1
    efficientnet_b2
320 300 bicubic IMAGENET1K_V1
    efficientnet_b3
342 299 bilinear IMAGENET1K_V1
    inception_v3
384 380 bicubic IMAGENET1K_V1
    efficientnet_b4
384 384 bicubic IMAGENET1K_SWAG_E2E_V1
    regnet_y_128gf regnet_y_16gf regnet_y_32gf vit_b_16
384 384 bilinear IMAGENET1K_V1
    efficientnet_v2_s
456 456 bicubic IMAGENET1K_V1
    efficientnet_b5
480 480 bicubic IMAGENET1K_V1
    efficientnet_v2_l
480 480 bilinear IMAGENET1K_V1
    efficientnet_v2_m
512 512 bicubic IMAGENET1K_SWAG_E2E_V1
    vit_l_16
518 518 bicubic IMAGENET1K_SWAG_E2E_V1
    vit_h_14
528 528 bicubic IMAGENET1K_V1
    efficientnet_b6
600 600 bicubic IMAGENET1K_V1
    efficientnet_b7
"""


def torchvision_preset(text: str) -> Preprocessing | None:
    """Return a preset by name; None if torchvision has no such model.

    A name is ``imagenet`` (256, 224, bilinear), ``resnet50.IMAGENET1K_V2``,
    ``ResNet50_Weights.IMAGENET1K_V2``, or a model with only one set of weights.
    """
    if text.lower() == _PLAIN:
        return _preset("", 256, 224, "bilinear")
    presets = _presets()
    model, _, weights = text.partition(".")
    entries = presets.get(_plain(model))
    if entries is None:
        return None
    if not weights and len(entries) == 1:
        return next(iter(entries.values()))
    if weights.upper() not in entries:
        choice = ", ".join(f"{model}.{name}" for name in sorted(entries))
        raise CovcalError(f"--preprocess {text} does not name the weights: pass {choice}")
    return entries[weights.upper()]


def similar_presets(text: str) -> list[str]:
    """Return up to three presets with names similar to `text`."""
    names = [f"{model}.{weights}" for model, entries in _presets().items() for weights in entries]
    model, _, weights = text.partition(".")
    wanted = f"{_plain(model)}.{weights.upper()}"
    return difflib.get_close_matches(wanted, [*names, _PLAIN], cutoff=0.7)


def _presets() -> dict[str, dict[str, Preprocessing]]:
    """Return presets by the plain name of the model and the name of the weights."""
    presets: dict[str, dict[str, Preprocessing]] = {}
    for entry in re.split(r"\n(?=\d)", _TABLE.strip()):  # each entry begins with numbers
        short, crop, resample, weights, *models = entry.split()
        for model in models:
            preset = _preset(model, int(short), int(crop), _FILTERS[resample])
            presets.setdefault(_plain(model), {})[weights] = preset
    return presets


def _preset(model: str, short: int, crop: int, resample: Resample) -> Preprocessing:
    mean, std = _OTHER_CONSTANTS.get(model, (IMAGENET_MEAN, IMAGENET_STD))
    return Preprocessing(
        resize=Resize("short", short=short),
        crop=(crop, crop),
        crop_rule="round",
        resample=resample,
        scale=1 / 255,
        mean=mean,
        std=std,
    )


def _plain(model: str) -> str:
    """Return the name that ``ResNeXt101_32X8D_Weights`` and ``resnext101_32x8d`` share."""
    return re.sub(r"_weights$|_", "", model.lower())
