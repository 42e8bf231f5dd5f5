"""Turn an image into a row of a classifier's input, with Pillow.

- Turn the image upright (optional), and convert the colours without an alpha channel.
- Resize and crop. Training libraries round odd sizes in different ways (`CropRule`).
- Compute ``(pixel * scale - mean) / std``, and arrange the axes.
"""

import json
import re
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from covcal_cli.arrays import AnyArray
from covcal_cli.data.domain import RowShape

ResizePolicy = Literal["squash", "short", "letterbox", "none"]
CropRule = Literal["round", "floor", "never"]
if TYPE_CHECKING:
    from PIL import Image

Resample = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]
Size = tuple[int, int]
Color = Literal["L", "RGB", "BGR"]
Layout = Literal["NCHW", "NHWC", "NHW", "flat"]  # "flat" is NCHW as one vector.
Pixels = NDArray[np.uint8]
_FORM = re.compile(
    r"(?P<none>none)|(?P<squash>squash)(?::(?P<height>\d+)(?:x(?P<width>\d+))?)?"
    r"|(?P<short>short)(?::(?P<side>\d+))?"
    r"|(?P<letterbox>letterbox)(?::(?P<fill>\d+(?:,\d+)*))?"
)
_WHITE = 255
LARGEST_SIDE = 65_535  # Longest side of an image, in pixels.
# Divisor from 16-bit to 8-bit values: 65535 / 257 = 255.
_SIXTEEN_BIT_STEP = 257


@dataclass(frozen=True)
class Resize:
    """How an image is resized before the centre crop."""

    # "squash" resizes both sides.
    # "short" resizes the shorter side, and keeps the aspect ratio.
    # "letterbox" adds a border, and keeps the aspect ratio.
    # "none" does not resize.
    policy: ResizePolicy = "squash"
    # The (height, width) for squash and letterbox; default: the model's input.
    size: Size | None = None
    # The length for "short"; default: the longer side of the model's input.
    short: int | None = None
    # The border colour for "letterbox", from 0 to 255 per channel; default: black.
    fill: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Resize":
        """Read ``squash[:N|HxW]``, ``short[:N]``, ``letterbox[:FILL|R,G,B]`` or ``none``.

        Raises ValueError for any other text, or if a number is out of range.
        """
        match = _FORM.fullmatch(text.strip().lower())
        if match is None:
            raise ValueError(
                f"{text!r} is not one of squash[:N|HxW], short[:N], letterbox[:FILL] or none"
            )
        part = match.groupdict()
        fill = tuple(int(value) for value in (part["fill"] or "").split(",") if value)
        if any(value > _WHITE for value in fill):
            raise ValueError(f"{text!r} has a border value outside 0 to 255")
        sides = [int(part[name]) for name in ("height", "width", "side") if part[name]]
        if 0 in sides:
            raise ValueError(f"{text!r} has a side of 0 pixels")
        if part["short"]:
            return cls("short", short=sides[0] if sides else None)
        if part["letterbox"]:
            return cls("letterbox", fill=fill)
        if part["none"]:
            return cls("none")
        return cls("squash", size=(sides[0], sides[-1]) if sides else None)

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        if self.policy == "short":
            lengths = "" if self.short is None else str(self.short)
        elif self.policy == "letterbox":
            lengths = ",".join(map(str, self.fill))
        else:
            lengths = "" if self.size is None else "x".join(map(str, self.size))
        return f"{self.policy}:{lengths}" if lengths else self.policy

    def describe(self) -> str:
        """Return the text for the screen."""
        if self.policy == "short":
            return f"short side {self.short}"
        if self.policy == "none" or self.size is None:
            return "not resized"
        box = f"{self.size[0]}x{self.size[1]}"
        if self.policy == "squash":
            return box
        return f"letterbox {box} on {','.join(map(str, self.fill)) or 0}"

    def target(self, height: int, width: int) -> Size:
        """Return the (height, width) after resizing."""
        if self.policy == "squash" and self.size is not None:
            return self.size
        if self.policy == "short" and self.short is not None:
            # Round down, as torchvision and transformers do.
            long = int(self.short * max(height, width) / min(height, width))
            return (self.short, long) if height <= width else (long, self.short)
        if self.policy == "letterbox" and self.size is not None:
            ratio = max(height / self.size[0], width / self.size[1])
            return max(1, round(height / ratio)), max(1, round(width / ratio))
        return height, width


def resized(image: "Image.Image", resize: Resize, resample: Resample) -> "Image.Image":
    """Return the resized image. Raises ValueError for a size that is too large."""
    width, height = image.size
    height, width = resize.target(height, width)
    if image.size == (width, height):
        return image
    from PIL import Image

    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and height * width > limit:
        raise ValueError(
            f"resizing the image from {image.height}x{image.width} to {height}x{width} pixels "
            "would need too much memory"
        )
    return image.resize((width, height), Image.Resampling[resample.upper()])


def centred(
    image: "Image.Image", size: Size, rule: CropRule, fill: tuple[int, ...] = ()
) -> "Image.Image":
    """Return the centre of an image; a smaller image gets a border.

    `rule` decides about crops that would begin at half a pixel: ``round`` rounds to the even number
    (torchvision), and ``floor`` rounds down (transformers). With ``never``, an image of another
    size raises ValueError. `fill` is the colour of the border, one number per channel (default:
    black).
    """
    height, width = size
    if image.size == (width, height):
        return image
    if rule == "never":
        raise ValueError(
            f"the image has {image.height}x{image.width} pixels instead of {height}x{width}, and "
            "--resize is none"
        )
    top = _offset(image.height - height, rule)
    left = _offset(image.width - width, rule)
    if image.height >= height and image.width >= width:
        return image.crop((left, top, left + width, top + height))
    from PIL import Image

    colour = fill[0] if len(fill) == 1 else fill or 0
    whole = Image.new(image.mode, (width, height), colour)
    whole.paste(image, (-left, -top))
    return whole


def _offset(spare: int, rule: CropRule) -> int:
    """Return the first pixel of the crop, or -n for a border of n pixels."""
    if spare < 0:
        # torchvision puts the odd pixel of a border at the bottom right.
        return -(-spare // 2) if rule == "round" else spare // 2
    return round(spare / 2) if rule == "round" else spare // 2


@dataclass(frozen=True)
class PixelPipeline:
    """`Preprocessing` settings as an `ImagePipeline`; see `covcal_cli.data.domain`."""

    size: Size  # (height, width) of the model's input.
    resize: Resize  # With all lengths.
    crop_rule: CropRule  # "never" refuses images of another size.
    scale: float
    mean: tuple[float, ...]  # One number per channel.
    std: tuple[float, ...]
    color: Color
    layout: Layout
    resample: Resample
    exif: bool
    dtype: str

    @property
    def row_shape(self) -> RowShape:
        """The shape of one row of the model's input."""
        channels = len(self.mean)
        if self.layout == "flat":
            return (channels * self.size[0] * self.size[1],)
        shapes = {"NCHW": (channels, *self.size), "NHWC": (*self.size, channels), "NHW": self.size}
        return shapes[self.layout]

    def describe(self) -> str:
        """Describe the steps in one line."""
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
        """Return the settings as one line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    def write(self, image: "Image.Image", out: AnyArray) -> None:
        """Write one image into a row of the model's input."""
        pixels = self.pixels(image)
        working = self._working
        if working is None:
            for channel in range(len(self.mean)):
                self._plane(out, channel)[...] = pixels[..., channel]
            return
        exact = out if out.dtype == working else np.empty(out.shape, working)
        # Write each channel separately, to save memory.
        for channel, (factor, shift) in enumerate(self._steps):
            plane = self._plane(exact, channel)
            np.multiply(pixels[..., channel], factor, out=plane, dtype=working)
            if shift:
                plane -= shift
        if exact is not out:
            out[...] = exact

    def pixels(self, image: "Image.Image") -> Pixels:
        """Return the pixels of an image in the model's colours and size, (H, W, C) uint8.

        Raises ValueError for pixels of 32 bits, or for an image of another size that cannot be
        resized.
        """
        kind = image.format
        if self.exif:
            from PIL import ImageOps

            image = ImageOps.exif_transpose(image)
        mode = "L" if self.color == "L" else "RGB"
        if image.mode != mode:
            image = eight_bit(image, kind)
            if image.mode == "P" and "transparency" in image.info:
                # Pillow would warn about transparency in a palette.
                image = image.convert("RGBA")
            image = image.convert(mode)
        image = resized(image, self.resize, self.resample)
        fill = self.resize.fill[::-1] if self.color == "BGR" else self.resize.fill
        image = centred(image, self.size, self.crop_rule, fill)
        pixels = np.asarray(image, dtype=np.uint8).reshape(*self.size, -1)
        return pixels[..., ::-1] if self.color == "BGR" else pixels

    @cached_property
    def _working(self) -> np.dtype[Any] | None:
        dtype = np.dtype(self.dtype)
        floats = np.issubdtype(dtype, np.floating)
        return np.result_type(dtype, np.float32) if floats else None

    @cached_property
    def _steps(self) -> tuple[tuple[float, float], ...]:
        """The factor and offset of each channel, in ``pixel * factor - offset``."""
        pairs = zip(self.mean, self.std, strict=True)
        return tuple((self.scale / std, mean / std) for mean, std in pairs)

    def _plane(self, row: AnyArray, channel: int) -> AnyArray:
        if self.layout == "NHW":
            return row
        if self.layout == "flat":
            row = row.reshape(-1, *self.size)
        plane: AnyArray = row[..., channel] if self.layout == "NHWC" else row[channel]
        return plane


def numbers(values: tuple[float, ...]) -> str:
    """Return numbers as text. If all numbers are equal, write the number once."""
    unique = values[:1] if len(set(values)) == 1 else values
    return " ".join(f"{value:g}" for value in unique)


def eight_bit(image: "Image.Image", kind: str | None) -> "Image.Image":
    """Scale 16-bit grey values to 8 bits, because Pillow would clip the values."""
    if image.mode.startswith("I;16") or (image.mode == "I" and kind == "PNG"):
        from PIL import Image

        values = np.asarray(image).astype(np.float64) / _SIXTEEN_BIT_STEP
        return Image.fromarray(np.rint(values).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"{image.mode} pixels of 32 bits have no fixed range")
    return image
