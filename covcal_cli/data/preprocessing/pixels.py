"""The way from an image to a classifier's input by Pillow alone, as training code goes it.

The order is: orientation where asked for, colour, size, crop, then ``(pixel * scale - mean) /
std`` with pixels from 0 to 255, and the layout. What is behind an alpha channel is kept as it is,
since training code drops alpha in the same way. Training libraries agree on Pillow's filters and
differ by a pixel in how they crop. Which side the odd pixel goes to is a rule of its own
(`CropRule`), since a model notices a shift by one pixel.
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
Layout = Literal["NCHW", "NHWC", "NHW"]
Pixels = NDArray[np.uint8]
_FORM = re.compile(
    r"(?P<none>none)|(?P<squash>squash)(?::(?P<height>\d+)(?:x(?P<width>\d+))?)?"
    r"|(?P<short>short)(?::(?P<side>\d+))?"
    r"|(?P<letterbox>letterbox)(?::(?P<fill>\d+(?:,\d+)*))?"
)
_WHITE = 255
LARGEST_SIDE = 65_535  # of an image, in pixels
# Integers of 16 bits, in the byte orders that Pillow tells apart; 65535 / 257 = 255.
_SIXTEEN_BIT_STEP = 257


@dataclass(frozen=True)
class Resize:
    """How an image is brought to another size, before the centre is cropped."""

    # Both sides on their own; the shorter side, keeping the ratio; whole into a box, keeping the
    # ratio, with a border; not at all.
    policy: ResizePolicy = "squash"
    # (height, width) to squash to, or the box; the size that the model reads when left out.
    size: Size | None = None
    short: int | None = None  # the shorter side; the longest that the model reads when left out
    # Border of a letterbox from 0 to 255: one number, or one per channel; black when empty.
    fill: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Resize":
        """Read ``squash[:N|HxW]``, ``short[:N]``, ``letterbox[:FILL|R,G,B]`` or ``none``.

        Another form, or a number that makes no sense, is a ValueError.
        """
        found = _FORM.fullmatch(text.strip().lower())
        if found is None:
            raise ValueError(f"{text!r} is not squash[:N|HxW], short[:N], letterbox[:FILL] or none")
        part = found.groupdict()
        fill = tuple(int(value) for value in (part["fill"] or "").split(",") if value)
        if any(value > _WHITE for value in fill):
            raise ValueError(f"{text!r} has a border that is not between 0 and 255")
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
        """Return it in the form that `parse` reads."""
        if self.policy == "short":
            lengths = "" if self.short is None else str(self.short)
        elif self.policy == "letterbox":
            lengths = ",".join(map(str, self.fill))
        else:
            lengths = "" if self.size is None else "x".join(map(str, self.size))
        return f"{self.policy}:{lengths}" if lengths else self.policy

    def describe(self) -> str:
        """Return it in the words of the printed line; every length must be known."""
        if self.policy == "short":
            return f"short side {self.short}"
        if self.policy == "none" or self.size is None:
            return "not resized"
        box = f"{self.size[0]}x{self.size[1]}"
        if self.policy == "squash":
            return box
        return f"letterbox {box} on {','.join(map(str, self.fill)) or 0}"

    def target(self, height: int, width: int) -> Size:
        """Return the (height, width) that an image is resized to; every length must be known."""
        if self.policy == "squash" and self.size is not None:
            return self.size
        if self.policy == "short" and self.short is not None:
            # Truncated, as torchvision and transformers do, not rounded.
            long = int(self.short * max(height, width) / min(height, width))
            return (self.short, long) if height <= width else (long, self.short)
        if self.policy == "letterbox" and self.size is not None:
            ratio = max(height / self.size[0], width / self.size[1])
            return max(1, round(height / ratio)), max(1, round(width / ratio))
        return height, width


def resized(image: "Image.Image", resize: Resize, resample: Resample) -> "Image.Image":
    """Resize an image; a ValueError if keeping the ratio would not fit into memory."""
    from PIL import Image

    width, height = image.size
    height, width = resize.target(height, width)
    if image.size == (width, height):
        return image
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and height * width > limit:
        raise ValueError(
            f"{image.height}x{image.width} pixels would become {height}x{width}: too elongated"
        )
    return image.resize((width, height), Image.Resampling[resample.upper()])


def centred(
    image: "Image.Image", size: Size, rule: CropRule, fill: tuple[int, ...] = ()
) -> "Image.Image":
    """Crop the centre of (height, width) out of an image, or put it into the centre of a border.

    By `rule`, half a pixel goes to the even side (``round``, torchvision) or to the top left
    (``floor``, transformers); with ``never``, another size is a ValueError. `fill` is the border in
    the image's own channels, black when empty.
    """
    from PIL import Image

    height, width = size
    if image.size == (width, height):
        return image
    if rule == "never":
        raise ValueError(
            f"{image.height}x{image.width} pixels, not {height}x{width}, and nothing is resized"
        )
    top = _offset(image.height - height, rule)
    left = _offset(image.width - width, rule)
    if image.height >= height and image.width >= width:
        return image.crop((left, top, left + width, top + height))
    colour = fill[0] if len(fill) == 1 else fill or 0
    whole = Image.new(image.mode, (width, height), colour)
    whole.paste(image, (-left, -top))
    return whole


def _offset(spare: int, rule: CropRule) -> int:
    """Return where the crop begins; negative where a border is needed."""
    if spare < 0:
        # The odd pixel of a border: to the bottom right in torchvision, the top left in
        # transformers.
        return -(-spare // 2) if rule == "round" else spare // 2
    return round(spare / 2) if rule == "round" else spare // 2


@dataclass(frozen=True)
class PixelPipeline:
    """See `covcal_cli.data.domain.ImagePipeline`; settings as in `Preprocessing`."""

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

    def write(self, image: "Image.Image", out: AnyArray) -> None:
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

    def pixels(self, image: "Image.Image") -> Pixels:
        """Return the image's pixels in the right colour and size, shape (H, W, C) uint8.

        A ValueError, with which the image is left out, is raised for pixels of no fixed range
        (32-bit integers or floats), and where nothing is resized for another size.
        """
        from PIL import ImageOps

        kind = image.format
        if self.exif:
            image = ImageOps.exif_transpose(image)
        image = eight_bit(image, kind)
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

    def _plane(self, row: AnyArray, channel: int) -> AnyArray:
        """Return one channel of a row as a view, shape (H, W)."""
        if self.layout == "NHW":
            return row
        plane: AnyArray = row[channel] if self.layout == "NCHW" else row[..., channel]
        return plane


def numbers(values: tuple[float, ...]) -> str:
    """Return numbers as text, a single one where all are equal."""
    unique = values[:1] if len(set(values)) == 1 else values
    return " ".join(f"{value:g}" for value in unique)


def eight_bit(image: "Image.Image", kind: str | None) -> "Image.Image":
    """Bring 16-bit grey to 8 bits by its range; Pillow's own conversion clips at 255."""
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and kind == "PNG"):
        values = np.asarray(image).astype(np.float64) / _SIXTEEN_BIT_STEP
        return Image.fromarray(np.rint(values).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"{image.mode} pixels of 32 bits have no fixed range")
    return image
