"""The user's settings for preprocessing; the model's input decides about missing settings."""

import json
import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from covcal_cli.arrays import Shape
from covcal_cli.arrays import shape_text as _text
from covcal_cli.data.domain import ImagePipeline
from covcal_cli.data.preprocessing.function import FunctionPipeline, ImageFunction
from covcal_cli.data.preprocessing.pixels import (
    Color,
    CropRule,
    Layout,
    PixelPipeline,
    Resample,
    Resize,
    Size,
    numbers,
)
from covcal_cli.errors import CovcalError

_CHANNELS = {"L": 1, "RGB": 3, "BGR": 3}


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing settings. If a setting is None or empty, the model's input decides."""

    # (height, width) after resizing.
    size: Size | None = None
    # Factor for pixels; default: 1/255 for an input of floats.
    scale: float | None = None
    # Mean and standard deviation of scaled pixels: empty, one number, or one number per channel.
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    color: Color | None = None
    layout: Layout | None = None
    resample: Resample | None = None  # Pillow's filter for resizing; default: bilinear.
    resize: Resize | None = None  # Default: squash.
    crop: Size | None = None  # (height, width) of the centre crop.
    # Rounding of odd sizes; default: round, as in torchvision.
    crop_rule: CropRule | None = None
    exif: bool | None = None  # Whether to turn images upright by their EXIF data; default: no.
    function: ImageFunction | None = None  # A function for the whole preprocessing.

    @property
    def is_default(self) -> bool:
        """Whether all settings have their defaults."""
        return self == Preprocessing()

    def options(self) -> list[str]:
        """Return the settings as options of ``covcal extract``."""
        texts = {
            "size": None if self.size is None else _size_text(self.size),
            "resize": self.resize,
            "crop": None if self.crop is None else _size_text(self.crop),
            "resample": self.resample,
            "color": self.color,
            "layout": self.layout,
            "scale": self.scale,
            "mean": ",".join(map(repr, self.mean)) or None,
            "std": ",".join(map(repr, self.std)) or None,
        }
        # VALUE may begin with a minus sign, so use --NAME=VALUE.
        options = [f"--{name}={text}" for name, text in texts.items() if text is not None]
        if self.exif is not None:
            options.append("--exif" if self.exif else "--no-exif")
        return options

    def to_json(self) -> str:
        """Return the settings as one line of JSON."""
        values = asdict(replace(self, function=None))
        function = None if self.function is None else self.function.origin
        return json.dumps({**values, "function": function}, sort_keys=True)

    def overridden_by(self, flags: "Preprocessing") -> "Preprocessing":
        """Return a copy of these settings, in which the settings of `flags` take precedence.

        If `flags` has a size but neither `crop` nor `resize`, the earlier `crop` and `resize` are
        dropped.
        """
        changes: dict[str, Any] = {
            field.name: getattr(flags, field.name)
            for field in fields(flags)
            if getattr(flags, field.name) != field.default
        }
        if self.function is not None and changes:
            raise CovcalError(
                f"--{min(changes).replace('_', '-')} has no effect, because "
                f"{self.function.name} does all of the preprocessing: leave it out"
            )
        if flags.size is not None and flags.crop is None and flags.resize is None:
            changes = {"resize": None, "crop": None, "crop_rule": None, **changes}
        return replace(self, **changes)

    def resolve(self, shape: Shape, dtype: np.dtype[np.generic]) -> ImagePipeline:
        """Return the pipeline for an input of the model."""
        if self.function is not None:
            return FunctionPipeline.fitting(self.function, shape, dtype)
        sides = self.crop or self.size
        layout: Layout = "flat"
        if self.layout is None and len(shape) == 2 and sides is not None:
            shape = _image_in_vector(shape, sides)
        else:
            layout = self.layout or _layout(shape)
        axes = _axes("NCHW" if layout == "flat" else layout, shape)
        color = self.color or _color(shape, axes.get("C", 1))
        if axes.get("C", 1) not in (None, _CHANNELS[color]):
            raise CovcalError(
                f"--color {color} does not fit the model's input {_text(shape)}: change --color, "
                "or leave it out"
            )
        size = self._size_read(shape, (axes["H"], axes["W"]))
        resize = self._resize(size, color)
        cropped = resize.size != size and not (resize.policy == "none" and self.crop is None)
        # Pixels for integer inputs stay unchanged.
        integers = not np.issubdtype(dtype, np.floating)
        scale = self.scale if self.scale is not None else (1.0 if integers else 1 / 255)
        if integers and (scale != 1 or any(self.mean) or any(value != 1 for value in self.std)):
            raise CovcalError(
                f"the model reads {dtype} pixels, which must not be scaled or normalised: "
                "leave out --scale, --mean and --std, or pass --scale 1 --mean 0 --std 1"
            )
        _require_positive("--scale", (scale,))
        _require_positive("--std", self.std)
        mean = _per_channel("--mean", self.mean, 0.0, color)
        std = _per_channel("--std", self.std, 1.0, color)
        if not integers:
            _require_finite(scale, mean, std, dtype)
            if self.scale is None and max(mean) > 1:
                raise CovcalError(
                    f"--mean {max(mean):g} is above the scaled pixels, which are 0 to 1: "
                    "divide --mean and --std by 255, or pass --scale 1"
                )
        return PixelPipeline(
            size=size,
            resize=resize,
            crop_rule=(self.crop_rule or "round")
            if cropped or resize.policy == "letterbox"
            else "never",
            scale=scale,
            mean=mean,
            std=std,
            color=color,
            layout=layout,
            resample=self.resample or "bilinear",
            exif=bool(self.exif),
            dtype=dtype.name,
        )

    def _size_read(self, shape: Shape, declared: tuple[int | None, int | None]) -> Size:
        option, size = ("--crop", self.crop) if self.crop else ("--size", self.size)
        if self.size is not None:
            _require_positive("--size", self.size)
        if size is None:
            height, width = declared
            if height is None or width is None:
                raise CovcalError(
                    f"the model's input {_text(shape)} has no fixed image size: pass --size"
                )
            return height, width
        _require_positive(option, size)
        wanted = tuple(
            have if want is None else want for have, want in zip(size, declared, strict=True)
        )
        if size != wanted:
            raise CovcalError(
                f"{option} {_size_text(size)} does not fit the model's input {_text(shape)}: pass "
                f"{self._in_proportion(size, wanted) or f'{option} {_size_text(wanted)}'}"
            )
        return size

    def _in_proportion(self, size: tuple[int, ...], wanted: tuple[int, ...]) -> str:
        if self.crop is None or self.resize is None:
            return ""
        share = max(wanted) / max(size)
        if self.resize.short is not None:
            lengths = f"short:{round(self.resize.short * share)}"
        elif self.resize.policy == "squash" and self.resize.size is not None:
            scaled = tuple(round(side * share) for side in self.resize.size)
            lengths = f"squash:{_size_text(scaled)}"
        else:
            return ""
        side = _size_text(wanted)
        centres = f"--crop {side} --resize {lengths} to use their centres"
        return f"--size {side} to use whole images, or {centres}"

    def _resize(self, size: Size, color: Color) -> Resize:
        asked = self.resize or Resize()
        if self.crop is not None and self.size is not None and (asked.size or asked.short):
            raise CovcalError(
                f"--size {_size_text(self.size)} has no effect, because --crop "
                f"{_size_text(self.crop)} and --resize set both sizes: leave out --size or "
                "--crop"
            )
        if asked.policy == "none":
            return Resize("none")
        if asked.policy == "short":
            return Resize("short", short=asked.short or max(self.size or size))
        if asked.policy == "letterbox":
            fill = asked.fill or (0,)
            if len(fill) not in (1, _CHANNELS[color]):
                raise CovcalError(
                    f"--resize letterbox has {len(fill)} numbers for the border, but {color} "
                    f"has {_CHANNELS[color]} channels: give one number or one per channel"
                )
            return Resize("letterbox", size=asked.size or self.size or size, fill=fill)
        return Resize("squash", size=asked.size or (self.size if self.crop else None) or size)


def _axes(layout: Layout, shape: Shape) -> dict[str, int | None]:
    """Return the length of each axis of the model's input. The keys are letters such as H and W."""
    if len(layout) != len(shape):
        raise CovcalError(
            f"--layout {layout} does not fit the model's input {_text(shape)} with "
            f"{len(shape)} axes: choose another layout"
        )
    axes = dict(zip(layout, shape, strict=True))
    other: dict[Layout, Layout] = {"NCHW": "NHWC", "NHWC": "NCHW"}
    if layout in other and axes["C"] not in (None, *_CHANNELS.values()):
        alternative = other[layout]
        channels = dict(zip(alternative, shape, strict=True))["C"]
        if channels in _CHANNELS.values():
            raise CovcalError(
                f"--layout {layout} does not fit the model's input {_text(shape)}: pass --layout "
                f"{alternative}, or leave out --layout"
            )
    return axes


def _image_in_vector(shape: Shape, size: Size) -> Shape:
    n_rows, length = shape
    channels = next((c for c in (1, 3) if length == c * size[0] * size[1]), None)
    if length is not None and channels is None:
        raise CovcalError(
            f"the model's input {_text(shape)} does not fit {size[0]}x{size[1]} images in grey or "
            f"RGB: {_pixels_remedy(shape)}give the input rows as the array x in an "
            ".npz file"
        )
    return n_rows, channels, *size


def _pixels_remedy(shape: Shape) -> str:
    if len(shape) != 2:
        return ""
    length = shape[1] or 0
    sides = [math.isqrt(length // c) for c in (1, 3) if math.isqrt(length // c) ** 2 * c == length]
    side = sides[0] if any(sides) else "HxW"
    return f"pass --size {side} if the input holds pixels, or "


def _layout(shape: Shape) -> Layout:
    if len(shape) == 3:
        return "NHW"
    if len(shape) != 4:
        raise CovcalError(
            f"the model's input {_text(shape)} is not an image: {_pixels_remedy(shape)}give the "
            "input rows as the array x in an .npz file"
        )
    first, last = shape[1] in (1, 3), shape[3] in (1, 3)
    if first == last:
        raise CovcalError(
            f"the model's input {_text(shape)} does not show which axis holds the channels: "
            "pass --layout NCHW or NHWC"
        )
    return "NCHW" if first else "NHWC"


def _color(shape: Shape, channels: int | None) -> Color:
    if channels is None:
        raise CovcalError(
            f"the model's input {_text(shape)} does not show its colours: pass --color L, RGB or "
            "BGR"
        )
    if channels not in _CHANNELS.values():
        raise CovcalError(
            f"the model's input {_text(shape)} has {channels} channels, but images have 1 or "
            "3: pass --layout if another axis holds the channels, or --preprocess "
            "module:function"
        )
    return "L" if channels == 1 else "RGB"


def _per_channel(
    option: str, values: tuple[float, ...], default: float, color: Color
) -> tuple[float, ...]:
    channels = _CHANNELS[color]
    if len(values) not in (0, 1, channels):
        raise CovcalError(
            f"{option} has {len(values)} numbers but {color} has {channels} channels: give one "
            "number or one per channel"
        )
    return values if len(values) == channels else (values or (default,)) * channels


def _require_finite(
    scale: float, mean: tuple[float, ...], std: tuple[float, ...], dtype: np.dtype[np.generic]
) -> None:
    limits = np.finfo(dtype.name)
    largest = max((255 * scale + abs(m)) / s for m, s in zip(mean, std, strict=True))
    if not float(limits.tiny) <= largest <= float(limits.max):
        raise CovcalError(
            f"--scale, --mean and --std give pixels up to {largest:.2g}, which the model's "
            f"{dtype} cannot hold: give the values of training"
        )
    if 255 * scale < float(limits.tiny):
        raise CovcalError(f"--scale {scale:.2g} makes all pixels 0: give the scale of training")


def _require_positive(option: str, values: tuple[float, ...]) -> None:
    if not all(0 < value < float("inf") for value in values):
        raise CovcalError(f"{option} {numbers(values)}: give numbers above 0")


def _size_text(size: tuple[int, ...]) -> str:
    return str(size[0]) if len(set(size)) == 1 else "x".join(map(str, size))
