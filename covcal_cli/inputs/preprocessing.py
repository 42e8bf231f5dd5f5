"""From an image to a classifier's input, by Pillow alone, as training code does it.

The order is: colour, size, layout, then ``(pixel * scale - mean) / std`` with pixels from 0 to 255.
What is not given is taken from the input that the model declares; what was used is printed and
recorded, because a wrong constant moves confidence as much as miscalibration does.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from covcal_cli.errors import CovcalError
from covcal_cli.modelinput import Shape

Color = Literal["L", "RGB", "BGR"]
Layout = Literal["NCHW", "NHWC", "NHW"]
Resample = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]
Pixels = NDArray[np.uint8]

_FILTERS: dict[str, Image.Resampling] = {
    name: Image.Resampling[name.upper()] for name in get_args(Resample)
}
_CHANNELS = {"L": 1, "RGB": 3, "BGR": 3}
# Integers of 16 bits, in the byte orders that Pillow tells apart; 65535 / 257 = 255.
_SIXTEEN_BIT_STEP = 257


@dataclass(frozen=True)
class Preprocessing:
    """What the user asked for; None stands for "as the model's input says".

    Attributes
    ----------
    size : tuple of int, optional
        (height, width) in pixels. Both sides are resized on their own, without cropping.
    scale : float, optional
        Factor on pixels from 0 to 255; 1/255 unless the model reads integers.
    mean, std : tuple of float
        One number or one per channel, in scaled units and in the order of `color`; empty for none.
    color : {"L", "RGB", "BGR"}, optional
        Channels and their order.
    layout : {"NCHW", "NHWC", "NHW"}, optional
        Order of the axes.
    resample : str
        Pillow's filter, by name.
    """

    size: tuple[int, int] | None = None
    scale: float | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    color: Color | None = None
    layout: Layout | None = None
    resample: Resample = "bilinear"

    @property
    def is_default(self) -> bool:
        """Whether nothing was asked for."""
        return self == Preprocessing()

    def resolve(self, shape: Shape, dtype: np.dtype[np.generic]) -> "ImagePipeline":
        """Fill in what is not given from the model's declared input.

        Parameters
        ----------
        shape : tuple of (int or None)
            Declared shape, batch first; None where it is free.
        dtype : numpy.dtype
            Declared element type.

        Raises
        ------
        CovcalError
            If the input is no image, contradicts what was asked for, or leaves something open.
        """
        layout = self.layout or _layout(shape)
        if len(layout) != len(shape):
            raise CovcalError(
                f"the model's input {_text(shape)} has {len(shape)} axes, not those of --layout "
                f"{layout}: choose another layout"
            )
        axes = dict(zip(layout, shape, strict=True))
        color = self.color or _color(shape, axes.get("C", 1))
        _require_equal("--color", color, _CHANNELS[color], axes.get("C", 1), shape)
        height, width = self.size or _size(shape, axes["H"], axes["W"])
        _require_equal("--size", f"{height} {width}", height, axes["H"], shape)
        _require_equal("--size", f"{height} {width}", width, axes["W"], shape)
        integers = not np.issubdtype(dtype, np.floating)
        scale = self.scale if self.scale is not None else (1.0 if integers else 1 / 255)
        if integers and (scale != 1 or self.mean or self.std):
            raise CovcalError(
                f"the model reads {dtype} pixels, which are neither scaled nor normalised: "
                "drop --scale, --mean and --std"
            )
        _require_positive("--size", (height, width))
        _require_positive("--scale", (scale,))
        _require_positive("--std", self.std)
        return ImagePipeline(
            size=(height, width),
            scale=scale,
            mean=_per_channel("--mean", self.mean, 0.0, color),
            std=_per_channel("--std", self.std, 1.0, color),
            color=color,
            layout=layout,
            resample=self.resample,
            dtype=dtype.name,
        )


@dataclass(frozen=True)
class ImagePipeline:
    """Preprocessing with nothing left open; the attributes are those of `Preprocessing`.

    Attributes
    ----------
    dtype : str
        Element type that the model reads.
    """

    size: tuple[int, int]
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    color: Color
    layout: Layout
    resample: Resample
    dtype: str

    def describe(self) -> str:
        """Return what is done to an image, in one line."""
        height, width = self.size
        parts = [f"{self.color} {height}x{width} ({self.resample})"]
        if self.scale != 1:
            inverse = 1 / self.scale
            whole = abs(inverse - round(inverse)) < 1e-9 * inverse
            parts.append(f"pixels / {inverse:.0f}" if whole else f"pixels * {self.scale:g}")
        if any(self.mean):
            parts.append(f"mean {_numbers(self.mean)}")
        if any(value != 1 for value in self.std):
            parts.append(f"std {_numbers(self.std)}")
        return ", ".join([*parts, f"{self.layout} {self.dtype}"])

    def to_json(self) -> str:
        """Return the settings as one line of JSON, the same for the same settings."""
        return json.dumps(asdict(self), sort_keys=True)

    def apply(self, image: Image.Image) -> NDArray[Any]:
        """Return one image as a row of the model's input."""
        row: NDArray[Any] = self.normalise(self.pixels(image)[None])[0]
        return row

    def pixels(self, image: Image.Image) -> Pixels:
        """Return the image's pixels in the right colour and size, shape (H, W, C) uint8.

        Raises
        ------
        ValueError
            If the image's pixels have no fixed range (32-bit integers or floats).
        """
        mode = "L" if self.color == "L" else "RGB"
        image = _eight_bit(image)
        if image.mode != mode:
            if image.mode == "P" and "transparency" in image.info:
                # Pillow warns about the direct way; the colours are the same.
                image = image.convert("RGBA")
            image = image.convert(mode)
        height, width = self.size
        if image.size != (width, height):
            image = image.resize((width, height), _FILTERS[self.resample])
        pixels = np.asarray(image, dtype=np.uint8).reshape(height, width, -1)
        return pixels[..., ::-1] if self.color == "BGR" else pixels

    def normalise(self, pixels: Pixels) -> NDArray[Any]:
        """Scale and lay out a batch.

        Parameters
        ----------
        pixels : array of uint8, shape (m, H, W, C)

        Returns
        -------
        array, shape (m, ...)
            In the model's layout and element type.
        """
        dtype = np.dtype(self.dtype)
        if np.issubdtype(dtype, np.floating):
            working = np.result_type(dtype, np.float32)
            batch = np.empty(pixels.shape, dtype=working)
            if self.layout == "NCHW":
                batch = np.empty((len(pixels), pixels.shape[3], *self.size), dtype=working)
                batch = batch.transpose(0, 2, 3, 1)
            # Channel by channel into the final place: no second array of floats.
            for channel, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
                out = batch[..., channel]
                np.multiply(pixels[..., channel], self.scale / std, out=out, dtype=working)
                if mean:
                    out -= mean / std
        else:
            batch = pixels
        if self.layout == "NCHW":
            batch = batch.transpose(0, 3, 1, 2)
        elif self.layout == "NHW":
            batch = batch[..., 0]
        return batch.astype(dtype, copy=False)


def _eight_bit(image: Image.Image) -> Image.Image:
    """Bring 16-bit grey to 8 bits by its range; Pillow's own conversion clips at 255."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        values = np.asarray(image).astype(np.float64) / _SIXTEEN_BIT_STEP
        return Image.fromarray(np.rint(values).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"{image.mode} pixels of 32 bits have no fixed range")
    return image


def _layout(shape: Shape) -> Layout:
    if len(shape) == 3:
        return "NHW"
    if len(shape) != 4:
        raise CovcalError(
            f"the model's input {_text(shape)} is not an image: give its rows as x in an .npz file"
        )
    first, last = shape[1] in (1, 3), shape[3] in (1, 3)
    if first == last:
        raise CovcalError(
            f"the model's input {_text(shape)} does not show which axis holds the channels: "
            "pass --layout NCHW or NHWC"
        )
    return "NCHW" if first else "NHWC"


def _color(shape: Shape, channels: int | None) -> Color:
    if channels not in (1, 3):
        raise CovcalError(
            f"the model's input {_text(shape)} does not show its colours: pass --color L, RGB or "
            "BGR"
        )
    return "L" if channels == 1 else "RGB"


def _size(shape: Shape, height: int | None, width: int | None) -> tuple[int, int]:
    if height is None or width is None:
        raise CovcalError(
            f"the model's input {_text(shape)} leaves the image size open: pass --size"
        )
    return height, width


def _require_equal(option: str, given: str, found: int, expected: int | None, shape: Shape) -> None:
    if expected not in (None, found):
        raise CovcalError(
            f"{option} {given} does not fit the model's input {_text(shape)}: drop it or change it"
        )


def _per_channel(
    option: str, values: tuple[float, ...], default: float, color: Color
) -> tuple[float, ...]:
    channels = _CHANNELS[color]
    if len(values) not in (0, 1, channels):
        raise CovcalError(
            f"{option} has {len(values)} numbers and {color} has {channels} channels: give one "
            "number or one per channel"
        )
    return values if len(values) == channels else (values or (default,)) * channels


def _require_positive(option: str, values: tuple[float, ...]) -> None:
    if not all(0 < value < float("inf") for value in values):
        raise CovcalError(f"{option} {_numbers(values)}: give numbers above 0")


def _numbers(values: tuple[float, ...]) -> str:
    unique = values[:1] if len(set(values)) == 1 else values
    return " ".join(f"{value:g}" for value in unique)


def _text(shape: Shape) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"
