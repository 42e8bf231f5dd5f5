"""Pictures of rows for a person, small enough to embed in a page.

They are made from any images that `covcal_cli.data` reads. The code implements the same protocol as
a model's preprocessing, but makes thumbnails.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from covcal_cli.arrays import AnyArray
from covcal_cli.data.domain import RowShape
from covcal_cli.data.open import open_images
from covcal_cli.data.preprocessing.pixels import eight_bit
from covcal_cli.errors import CovcalError, shown

LONGEST_SIDE = 256  # longest side of a thumbnail in pixels
_MOST_BYTES = 24_000  # largest size of a thumbnail: 60 thumbnails in base 64 take less than 2 MB
_QUALITIES = (85, 70, 50, 30, 15)  # JPEG qualities, tried in turn until it is small enough
_WHITE = (255, 255, 255)
_BATCH = 64
_THREADS = 4


@dataclass(frozen=True)
class Pictures:
    """The pictures of n rows."""

    uris: list[str]  # a data URI per row, empty if the image could not be read
    unreadable: Mapping[str, str]  # the reason, by id


def pictures(path: Path, ids: Sequence[str]) -> Pictures:
    """Return thumbnails of the rows with these ids, in this order.

    Parameters
    ----------
    path : Path
        The data of the rows: a folder of images, shards, or a file that holds images.
    ids : sequence of str
        The ids of the rows, as in the features file.

    Raises
    ------
    CovcalError
        If the data hold no images, or lack an id.
    """
    data = open_images(path)
    numbers = {row_id: row for row, row_id in enumerate(data.ids)}
    missing = next((row_id for row_id in ids if row_id not in numbers), None)
    if missing is not None:
        raise CovcalError(
            f"{path} has no row {shown(missing)}, its first is {shown(data.ids[0])}: give the "
            "images that the target rows come from"
        )
    rows = np.array(sorted({numbers[row_id] for row_id in ids}), dtype=np.int64)
    thumbnails: dict[int, str] = {}
    unreadable: dict[str, str] = {}
    for batch in data.batches(_Thumbnails(), rows, size=_BATCH, threads=_THREADS):
        (uris,) = batch.inputs.values()
        thumbnails |= dict(zip(batch.rows.tolist(), uris[:, 0].tolist(), strict=True))
        unreadable |= {data.ids[row]: reason for row, reason in batch.skipped}
    return Pictures([thumbnails.get(numbers[row_id], "") for row_id in ids], unreadable)


class _Thumbnails:
    """An `ImagePipeline` that writes the data URI of an image as the one value of its row."""

    row_shape: RowShape = (1,)
    dtype = "object"

    def describe(self) -> str:
        """Describe the pipeline in one line."""
        return f"RGB of at most {LONGEST_SIDE} pixels a side"

    def to_json(self) -> str:
        """Return its settings: it has none."""
        return "{}"

    def write(self, image: Image.Image, out: AnyArray) -> None:
        """Write the thumbnail of an image."""
        out[0] = data_uri(image)


def data_uri(image: Image.Image) -> str:
    """Return any image as a small data URI, turned upright and on a white background."""
    kind = image.format
    image.draft("RGB", (2 * LONGEST_SIDE, 2 * LONGEST_SIDE))  # read a large JPEG at a smaller scale
    image = eight_bit(ImageOps.exif_transpose(image), kind)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        behind = Image.new("RGBA", image.size, _WHITE)
        image = Image.alpha_composite(behind, image)
    image = image.convert("L" if image.mode in ("L", "1") else "RGB")
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
    # PNG is exact, and small for simple images.
    name, content = "png", _encoded(image, "png", optimize=True)
    for quality in _QUALITIES:
        if len(content) <= _MOST_BYTES:
            break
        name, content = "jpeg", _encoded(image, "jpeg", quality=quality)
    return f"data:image/{name};base64,{base64.b64encode(content).decode()}"


def _encoded(image: Image.Image, kind: str, **settings: int) -> bytes:
    stream = BytesIO()
    image.save(stream, kind, **settings)
    return stream.getvalue()
