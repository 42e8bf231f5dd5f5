"""From an image to a classifier's input by Pillow alone, as training code does it.

The order is: orientation where asked for, colour, size, crop, then ``(pixel * scale - mean) / std``
with pixels from 0 to 255, and the layout. What is behind an alpha channel is kept as it is, since
training code drops alpha in the same way.
"""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from covcal_cli.inputs.pipeline import RowShape
from covcal_cli.inputs.resizing import CropRule, Resample, Resize, Size, centred, resized

Color = Literal["L", "RGB", "BGR"]
Layout = Literal["NCHW", "NHWC", "NHW"]
Pixels = NDArray[np.uint8]

# Integers of 16 bits, in the byte orders that Pillow tells apart; 65535 / 257 = 255.
_SIXTEEN_BIT_STEP = 257


@dataclass(frozen=True)
class PixelPipeline:
    """See `covcal_cli.inputs.pipeline.ImagePipeline`; settings as in `Preprocessing`."""

    size: Size  # (height, width) that the model reads
    resize: Resize  # with every length known
    crop_rule: CropRule  # never where nothing is cropped
    scale: float
    mean: tuple[float, ...]  # one number per channel
    std: tuple[float, ...]
    color: Color
    layout: Layout
    resample: Resample
    exif: bool
    dtype: str

    @property
    def row_shape(self) -> RowShape:
        """Shape of one row of the model's input."""
        channels = len(self.mean)
        shapes = {
            "NCHW": (channels, *self.size),
            "NHWC": (*self.size, channels),
            "NHW": self.size,
        }
        return shapes[self.layout]

    def describe(self) -> str:
        """Return what is done to an image, in one line."""
        parts = ["upright by EXIF"] if self.exif else []
        parts.append(f"{self.color} {self.resize.describe()} ({self.resample})")
        if self.crop_rule != "never" and self.resize.size != self.size:
            parts.append(f"centre {self.size[0]}x{self.size[1]}")
        if self.scale != 1:
            inverse = 1 / self.scale
            whole = abs(inverse - round(inverse)) < 1e-9 * inverse
            parts.append(f"pixels / {inverse:.0f}" if whole else f"pixels * {self.scale:g}")
        if any(self.mean):
            parts.append(f"mean {numbers(self.mean)}")
        if any(value != 1 for value in self.std):
            parts.append(f"std {numbers(self.std)}")
        return ", ".join([*parts, f"{self.layout} {self.dtype}"])

    def to_json(self) -> str:
        """Return the settings as one line of JSON, the same for the same settings."""
        return json.dumps(asdict(self), sort_keys=True)

    def write(self, image: Image.Image, out: NDArray[Any]) -> None:
        """Write one image as a row of the model's input, in place."""
        pixels = self.pixels(image)
        working = self._working
        if working is None:
            for channel in range(len(self.mean)):
                self._plane(out, channel)[...] = pixels[..., channel]
            return
        exact = out if out.dtype == working else np.empty(out.shape, working)
        # Channel by channel into the final place: no second array of floats.
        for channel, (factor, shift) in enumerate(self._steps):
            plane = self._plane(exact, channel)
            np.multiply(pixels[..., channel], factor, out=plane, dtype=working)
            if shift:
                plane -= shift
        if exact is not out:
            out[...] = exact

    def pixels(self, image: Image.Image) -> Pixels:
        """Return the image's pixels in the right colour and size, shape (H, W, C) uint8.

        A ValueError, with which the image is left out, is raised for pixels of no fixed range
        (32-bit integers or floats), and where nothing is resized for another size.
        """
        kind = image.format
        if self.exif:
            image = ImageOps.exif_transpose(image)
        image = _eight_bit(image, kind)
        mode = "L" if self.color == "L" else "RGB"
        if image.mode != mode:
            if image.mode == "P" and "transparency" in image.info:
                # Pillow warns about the direct way; the colours are the same.
                image = image.convert("RGBA")
            image = image.convert(mode)
        image = resized(image, self.resize, self.resample)
        fill = self.resize.fill[::-1] if self.color == "BGR" else self.resize.fill
        image = centred(image, self.size, self.crop_rule, fill)
        pixels = np.asarray(image, dtype=np.uint8).reshape(*self.size, -1)
        return pixels[..., ::-1] if self.color == "BGR" else pixels

    @cached_property
    def _working(self) -> np.dtype[Any] | None:
        """The type to calculate in: at least float32; None where pixels stay integers."""
        dtype = np.dtype(self.dtype)
        floats = np.issubdtype(dtype, np.floating)
        return np.result_type(dtype, np.float32) if floats else None

    @cached_property
    def _steps(self) -> tuple[tuple[float, float], ...]:
        """Factor and then difference of every channel."""
        pairs = zip(self.mean, self.std, strict=True)
        return tuple((self.scale / std, mean / std) for mean, std in pairs)

    def _plane(self, row: NDArray[Any], channel: int) -> NDArray[Any]:
        """Return one channel of a row as a view, shape (H, W)."""
        if self.layout == "NHW":
            return row
        plane: NDArray[Any] = row[channel] if self.layout == "NCHW" else row[..., channel]
        return plane


def numbers(values: tuple[float, ...]) -> str:
    """Return numbers as text, a single one where all are equal."""
    unique = values[:1] if len(set(values)) == 1 else values
    return " ".join(f"{value:g}" for value in unique)


def _eight_bit(image: Image.Image, kind: str | None) -> Image.Image:
    """Bring 16-bit grey to 8 bits by its range; Pillow's own conversion clips at 255."""
    if image.mode.startswith("I;16") or (image.mode == "I" and kind == "PNG"):
        values = np.asarray(image).astype(np.float64) / _SIXTEEN_BIT_STEP
        return Image.fromarray(np.rint(values).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"{image.mode} pixels of 32 bits have no fixed range")
    return image
