"""Read the preprocessing settings of Hugging Face, timm and torchvision.

Hugging Face's ``preprocessor_config.json`` names a class of image processors. Missing keys get the
defaults of this class. If covcal does not know the class of image processors, the file must contain
all keys. Unknown keys are refused, because they might change pixels. Crops are rounded as in
transformers, not as in torchvision.

timm's ``config.json`` has the settings in ``pretrained_cfg`` or at the top level.

The file ``torchvision.txt`` lists the transforms of torchvision's weights.
"""

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TypeVar, get_args

from covcal_cli.data.preprocessing.pixels import LARGEST_SIDE, Resample, Resize, Size
from covcal_cli.data.preprocessing.settings import Preprocessing
from covcal_cli.errors import CovcalError, shown

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)
_PLAIN = "imagenet"
_OTHER_CONSTANTS = {"efficientnet_v2_l": (HALF, HALF)}
_TORCHVISION_FILTERS: dict[str, Resample] = {"bilinear": "bilinear", "bicubic": "bicubic"}


def torchvision_preset(text: str) -> Preprocessing | None:
    """Return a preset by name; None if torchvision has no such model.

    Examples are ``imagenet``, ``resnet50.IMAGENET1K_V2`` and ``ResNet50_Weights.IMAGENET1K_V2``.
    For a model with a single set of weights, the name of the model is enough.
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
    """Return up to three presets with similar names."""
    names = [f"{model}.{weights}" for model, entries in _presets().items() for weights in entries]
    model, _, weights = text.partition(".")
    wanted = f"{_plain(model)}.{weights.upper()}"
    return difflib.get_close_matches(wanted, [*names, _PLAIN], cutoff=0.7)


def _presets() -> dict[str, dict[str, Preprocessing]]:
    presets: dict[str, dict[str, Preprocessing]] = {}
    table = (files(__package__) / "torchvision.txt").read_text("utf-8")
    for entry in re.split(r"^(?=\d)", table, flags=re.MULTILINE)[1:]:
        short, crop, resample, weights, *models = entry.split()
        for model in models:
            preset = _preset(model, int(short), int(crop), _TORCHVISION_FILTERS[resample])
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
    """Return a model's name in the form ``resnext10132x8d``."""
    return re.sub(r"_weights$|_", "", model.lower())


_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
# The filters of Pillow, in the order of their codes.
_FILTERS: tuple[Resample, ...] = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
_BILINEAR, _BICUBIC = _FILTERS.index("bilinear"), _FILTERS.index("bicubic")


@dataclass(frozen=True)
class _Family:
    short: int | None = None  # Length of the shorter side; None to resize both sides to `side`.
    side: int | None = 224
    crop: int | None = None  # Size of the centre crop.
    resample: int | None = _BICUBIC
    mean: tuple[float, ...] | None = HALF
    std: tuple[float, ...] | None = HALF
    # meaning of ``size``: "plain", or the name of a model family with its own rule.
    rule: str = "plain"
    flipped: bool = False
    normalised: bool = True


_UNKNOWN = _Family(side=None, resample=None, mean=None, std=None)
_CLIP = _Family(short=224, crop=224, mean=_CLIP_MEAN, std=_CLIP_STD)
_MOBILENET = _Family(short=256, crop=224, resample=_BILINEAR)
_FAMILIES = {
    "Beit": _Family(),
    "Bit": _CLIP,
    "Blip": _Family(side=384, mean=_CLIP_MEAN, std=_CLIP_STD),
    "CLIP": _CLIP,
    "ChineseCLIP": _CLIP,
    "ConvNext": _Family(short=384, rule="ConvNext"),
    "DINOv3ViT": _Family(resample=_BILINEAR, mean=IMAGENET_MEAN, std=IMAGENET_STD),
    "DeiT": _Family(side=256, crop=224),
    "EfficientNet": _Family(side=346, rule="EfficientNet"),
    "Levit": _Family(224, crop=224, mean=IMAGENET_MEAN, std=IMAGENET_STD, rule="Levit"),
    "MobileNetV1": _MOBILENET,
    "MobileNetV2": _MOBILENET,
    "MobileViT": _Family(short=224, crop=256, flipped=True, normalised=False),
    "PoolFormer": _Family(224, crop=224, mean=IMAGENET_MEAN, std=IMAGENET_STD, rule="PoolFormer"),
    "Pvt": _Family(mean=IMAGENET_MEAN, std=IMAGENET_STD),
    "Segformer": _Family(side=512, resample=_BILINEAR, mean=IMAGENET_MEAN, std=IMAGENET_STD),
    "Siglip": _Family(),
    "ViT": _Family(resample=_BILINEAR),
}
_PIXEL_KEYS = (
    "crop_size,do_center_crop,do_convert_rgb,do_flip_channel_order,do_normalize,do_rescale,"
    "do_resize,image_mean,image_std,resample,rescale_factor,size"
)
_HARMLESS = (
    "_processor_class,_valid_processor_keys,auto_map,data_format,default_to_square,device,"
    "do_reduce_labels,feature_extractor_type,image_processor_type,input_data_format,"
    "model_input_names,processor_class,reduce_labels,return_tensors,transformers_version,use_fast"
)
_OWN_KEYS = {
    "ConvNext": "crop_pct",
    "PoolFormer": "crop_pct",
    "EfficientNet": "include_top,rescale_offset",
}
_MINE = "pass --preprocess none and options such as --size, or --preprocess module:function"
_WARPED_FROM = 384  # From this size on, ConvNeXT does not crop images.


def read_config(content: Mapping[str, Any], origin: str) -> Preprocessing | None:
    """Return the preprocessing in a JSON file of timm or transformers; None for other files.

    `origin` is the name of the file in messages.
    """
    is_flat = "architecture" in content and "num_classes" in content and "mean" in content
    if isinstance(content.get("pretrained_cfg"), dict) or is_flat:
        return timm_preprocessing(content, origin)
    if {"image_processor_type", "feature_extractor_type", "image_mean"} & set(content):
        return huggingface_preprocessing(content, origin)
    return None


_T = TypeVar("_T", bool, str, float)
_KINDS: Mapping[type, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    str: (str, "a text"),
    float: (int | float, "a number"),
}


class _Values:
    def __init__(self, content: Mapping[str, Any], origin: str) -> None:
        self.content, self.origin = content, origin  # `origin` is the name of the file in messages.

    def get(self, key: str) -> Any:
        return self.content.get(key)

    def value(self, key: str, default: _T) -> _T:
        value = self.get(key)
        if value is None:
            return default
        kind, words = _KINDS[type(default)]
        if not _is(value, kind):
            raise self.wrong(key, words)
        return type(default)(value)

    def share(self, key: str, default: float) -> float:
        """Return the share of each side that a crop keeps."""
        share = self.value(key, default) or default
        if not _LEAST_SHARE <= share <= 1 / _LEAST_SHARE:
            raise self.wrong(key, "a share of the image, above 0")
        return share

    def numbers(self, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
        value = self.get(key)
        if value is None:
            return default
        values = value if isinstance(value, list) else [value]
        if not values or not all(_is(number, int | float) for number in values):
            raise self.wrong(key, "numbers")
        return tuple(float(number) for number in values)

    def integers(self, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
        numbers = self.numbers(key, default)
        if not all(side == int(side) and 0 < side <= LARGEST_SIDE for side in numbers):
            raise self.wrong(key, f"whole numbers from 1 to {LARGEST_SIDE}")
        return tuple(int(side) for side in numbers)

    def integer(self, key: str) -> int:
        numbers = self.integers(key, ())
        if len(numbers) != 1:
            raise self.wrong(key, "one whole number")
        return numbers[0]

    def wrong(self, key: str, wanted: str) -> CovcalError:
        return CovcalError(f"{self.origin}: {key} is {shown(self.get(key))}: it must be {wanted}")


def _is(value: Any, kind: Any) -> bool:
    """Return whether a JSON value has the type `kind`. A boolean is not a number."""
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def huggingface_preprocessing(content: Mapping[str, Any], origin: str) -> Preprocessing:
    """Return the preprocessing of an image processor.

    `origin` is the name of the file in messages. A file with unknown or missing keys is refused.
    """
    reader = _Reader(content, origin)
    allowed = f"{_PIXEL_KEYS},{_HARMLESS},{_OWN_KEYS.get(reader.family.rule, '')}".split(",")
    unknown = sorted(
        key
        for key, value in content.items()
        if key not in allowed and value is not None and value is not False
    )
    if unknown:
        raise CovcalError(
            f"{origin}: covcal does not know the settings {', '.join(unknown)}, which might "
            f"change pixels: {_MINE}"
        )
    return reader.read()


class _Reader(_Values):
    def __init__(self, content: Mapping[str, Any], origin: str) -> None:
        super().__init__(content, origin)
        self._kind = self.value("image_processor_type", self.value("feature_extractor_type", ""))
        name = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", self._kind)
        self.family = _FAMILIES.get(name, _UNKNOWN)

    def read(self) -> Preprocessing:
        family = self.family
        resize, crop = self._geometry()
        scale = 1.0
        if self.value("do_rescale", True):
            scale = self.value("rescale_factor", 1 / 255)
        mean: tuple[float, ...] = ()
        std: tuple[float, ...] = ()
        if self.value("do_normalize", family.normalised):
            mean = self._constants("image_mean", family.mean)
            std = self._constants("image_std", family.std)
        if family.rule == "EfficientNet":
            mean, std = self._efficientnet(mean, std)
        code = self.get("resample")
        if code is None:
            code = self._default("resample", family.resample)
        if not _is(code, int) or code not in range(len(_FILTERS)):
            raise self.wrong("resample", "one of Pillow's codes, 0 to 5")
        return Preprocessing(
            scale=scale,
            mean=mean,
            std=std,
            color="BGR" if self.value("do_flip_channel_order", family.flipped) else None,
            resample=_FILTERS[code],
            resize=resize,
            crop=crop,
            crop_rule="floor",
        )

    def _geometry(self) -> tuple[Resize, Size | None]:
        rule = self.family.rule
        crop = None
        if self.value("do_center_crop", self.family.crop is not None):
            crop = self._crop_size()
        if not self.value("do_resize", True):
            return Resize("none"), crop
        short, size = self._size()
        if rule == "ConvNext" and short is not None:
            if crop not in (None, (short, short)):
                raise self.wrong("crop_size", f"{short}, because ConvNeXT crops to this size")
            return self._convnext(short)
        if rule == "Levit" and short is not None:
            short = int(256 / 224 * short)
        if rule == "PoolFormer":
            share = self.share("crop_pct", 0.9)
            if short is None and size[0] != size[1]:
                raise self.wrong("size", "one number (the shorter side), or two equal numbers")
            short = int((short or size[0]) / share)
        if short is None:
            return Resize("squash", size=size), crop or size
        if crop is None:
            raise CovcalError(
                f"{self.origin}: images keep different sizes, because they are not cropped: {_MINE}"
            )
        return Resize("short", short=short), crop

    def _convnext(self, side: int) -> tuple[Resize, Size]:
        square = side, side
        if side >= _WARPED_FROM:
            return Resize("squash", size=square), square
        share = self.share("crop_pct", 224 / 256)
        return Resize("short", short=int(side / share)), square

    def _efficientnet(
        self, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        if self.value("rescale_offset", False):  # Subtract 1 from the scaled pixels.
            mean = tuple(value + 1 for value in mean) or (1.0,)
        if self.value("include_top", True):  # Divide by std a second time.
            again = self._constants("image_std", HALF)
            std = tuple(value * value for value in again) if std else again
        return mean, std

    def _size(self) -> tuple[int | None, Size]:
        family = self.family
        size = self.get("size")
        if size is None:
            side = self._default("size", family.side)
            return family.short, (side, side)
        if isinstance(size, dict):
            if set(size) == {"shortest_edge"}:
                sides = _Values(size, f"{self.origin}: size")
                return sides.integer("shortest_edge"), (0, 0)
            return None, self._sides("size", "{height, width} or {shortest_edge}")
        sizes = self.integers("size", ())
        if len(sizes) == 2:
            return None, (sizes[0], sizes[1])
        if len(sizes) != 1:
            raise self.wrong("size", "one whole number or two")
        if family is _UNKNOWN:
            raise CovcalError(
                f"{self.origin}: size {size} is ambiguous for {self._kind or 'the class'}: "
                f"write {{'shortest_edge': N}} or {{'height': N, 'width': N}}"
            )
        return (sizes[0] if family.short else None), (sizes[0], sizes[0])

    def _crop_size(self) -> Size:
        default = self.family.crop
        if isinstance(self.get("crop_size"), dict):
            return self._sides("crop_size", "a number or {height, width}")
        sizes = self.integers("crop_size", (default,) if default else ())
        if not sizes:
            raise self._open("crop_size")
        if len(sizes) > 2:
            raise self.wrong("crop_size", "one whole number or two")
        return sizes[0], sizes[-1]

    def _sides(self, key: str, wanted: str) -> Size:
        size = self.get(key)
        if set(size) != {"height", "width"}:
            raise self.wrong(key, wanted)
        sides = _Values(size, f"{self.origin}: {key}")
        return sides.integer("height"), sides.integer("width")

    def _constants(self, key: str, default: tuple[float, ...] | None) -> tuple[float, ...]:
        return self.numbers(key, ()) or self._default(key, default)

    def _default(self, key: str, default: Any) -> Any:
        if default is None:
            raise self._open(key)
        return default

    def _open(self, key: str) -> CovcalError:
        kind = self._kind or "without image_processor_type"
        return CovcalError(
            f"{self.origin}: {key} is missing, and covcal does not know its default for "
            f"{kind}: write the value into the file, or {_MINE}"
        )


_DEFAULT_SIZE = (3, 224, 224)
_DEFAULT_CROP = 0.875
_LEAST_SHARE = 0.01


def timm_preprocessing(content: Mapping[str, Any], origin: str) -> Preprocessing:
    """Return timm's transforms for evaluation. `origin` is the name of the file in messages."""
    values = _Values(content.get("pretrained_cfg") or content, origin)
    size = values.integers("input_size", _DEFAULT_SIZE)
    if len(size) != 3:
        raise values.wrong("input_size", "[channels, height, width]")
    height, width = size[1:]
    share = values.share("crop_pct", _DEFAULT_CROP)
    mean = values.numbers("mean", IMAGENET_MEAN)
    scaled = math.floor(height / share), math.floor(width / share)
    mode = values.value("crop_mode", "center")
    if mode == "squash":
        resize = Resize("squash", size=scaled)
    elif mode == "border":
        fill = tuple(round(255 * value) for value in mean)
        resize = Resize("letterbox", size=scaled, fill=fill)
    elif mode != "center":
        raise values.wrong("crop_mode", "center, squash or border")
    elif height != width:
        raise CovcalError(
            f"{origin}: covcal does not know how timm resizes to {height}x{width} with a "
            f"fixed aspect ratio: {_MINE}"
        )
    else:
        resize = Resize("short", short=scaled[0])
    resample = values.value("interpolation", "bicubic")
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
