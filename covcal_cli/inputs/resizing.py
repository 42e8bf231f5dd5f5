"""From an image of any size to the size that a model reads: the rules of training code.

Training libraries agree on Pillow's filters and differ by a pixel in how they crop. Which side the
odd pixel goes to is a rule of its own (`CropRule`), since a model notices a shift by one pixel.
"""

import re
from dataclasses import dataclass
from typing import Literal, get_args

from PIL import Image

ResizePolicy = Literal["squash", "short", "letterbox", "none"]
CropRule = Literal["round", "floor", "never"]
Resample = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]
Size = tuple[int, int]

_FILTERS: dict[str, Image.Resampling] = {
    name: Image.Resampling[name.upper()] for name in get_args(Resample)
}
_FORM = re.compile(
    r"(?P<none>none)|(?P<squash>squash)(?::(?P<height>\d+)(?:x(?P<width>\d+))?)?"
    r"|(?P<short>short)(?::(?P<side>\d+))?"
    r"|(?P<letterbox>letterbox)(?::(?P<fill>\d+(?:,\d+)*))?"
)
_WHITE = 255


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


def resized(image: Image.Image, resize: Resize, resample: Resample) -> Image.Image:
    """Resize an image; a ValueError if keeping the ratio would not fit into memory."""
    width, height = image.size
    height, width = resize.target(height, width)
    if image.size == (width, height):
        return image
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and height * width > limit:
        raise ValueError(
            f"{image.height}x{image.width} pixels would become {height}x{width}: too elongated"
        )
    return image.resize((width, height), _FILTERS[resample])


def centred(
    image: Image.Image, size: Size, rule: CropRule, fill: tuple[int, ...] = ()
) -> Image.Image:
    """Crop the centre of (height, width) out of an image, or put it into the centre of a border.

    By `rule`, half a pixel goes to the even side (``round``, torchvision) or to the top left
    (``floor``, transformers); with ``never``, another size is a ValueError. `fill` is the border in
    the image's own channels, black when empty.
    """
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
