"""A web page on which a person labels the picked rows, in one HTML file.

Texts and pictures are embedded as JSON. The page shows texts as text, never as HTML. A content
security policy forbids all other scripts, and all requests. The user saves the CSV of `covcal pick`
with a filled-in column ``label``.
"""

import base64
import csv
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from io import BytesIO, StringIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from covcal_cli.arrays import AnyArray
from covcal_cli.errors import CovcalError, printable, shown
from covcal_cli.files import write_text
from covcal_cli.labels.sheet import Cells, Sheet, answers_of, fact_columns, sheet_text, unescaped
from covcal_cli.records import document_text

if TYPE_CHECKING:  # Pillow is imported only for images.
    from PIL import Image

    from covcal_cli.data.domain import RowShape

_LEFT_OUT = ("label", "inclusion", "draw")  # Columns that do not help a person to label.
_LONG = 60  # Maximum length of a text in the table.
_FILE = Path("page")
LONGEST_SIDE = 256  # Longest side of a thumbnail in pixels.
_MOST_BYTES = 24_000  # Maximum size of a thumbnail, so that 60 thumbnails take less than 2 MB.
_QUALITIES = (85, 70, 50, 30, 15)  # JPEG qualities that are tried until the image is small enough.
_WHITE = (255, 255, 255)
_BATCH = 64
_THREADS = 4


def write_page(
    path: Path, sheet: Sheet, classes: Sequence[str], images: str | Path | None, *, force: bool
) -> Mapping[str, str]:
    """Write the page of a sheet.

    Return the reason for each unreadable image, by row id. `images` are the images of the target
    rows. Without images, the page shows the columns of each row. Raises `CovcalError` if the images
    belong to other rows, or the page cannot be written.
    """
    pictures = pictures_of(images, sheet.ids)
    facts = fact_columns(sheet)
    text = page(
        sheet_text(sheet),
        classes,
        pictures.uris,
        name=sheet.path.name,
        answers=answers_of(sheet),
        texts=[name for name, cells in facts.items() if any(map(_is_long, cells))],
        numbers=[name for name, cells in facts.items() if not any(map(_is_long, cells))],
    )
    write_text(path, text, force=force)
    return pictures.unreadable


def _is_long(text: str) -> bool:
    return len(text) > _LONG or "\n" in text.strip()


def page(
    table: str,
    classes: Sequence[str],
    pictures: Sequence[str | None],
    *,
    name: str,
    answers: Cells = MappingProxyType({}),
    texts: Collection[str] = (),
    numbers: Collection[str] = (),
) -> str:
    """Return the whole page as HTML. Equal arguments give identical pages.

    - `table`: the CSV of the n rows, with a header that has a column ``label``.
    - `classes`: the allowed labels.
    - `pictures`: the image of each row as a data URI, "" for an unreadable image, None without
      images.
    - `answers`: the classifier's answers, which are hidden until the user asks for them.
    - `texts`: columns with long texts.
    - `numbers`: columns that are shown in a table.
    """
    columns, *rows = csv.reader(StringIO(table, newline=""))
    names = [unescaped(column) for column in columns]
    if len(pictures) != len(rows):
        raise ValueError(f"{len(pictures)} pictures for {len(rows)} rows")
    content = {
        "columns": columns,
        "rows": rows,
        "label": columns.index("label"),
        "left_out": [
            place for place, column in enumerate(names) if column in (*_LEFT_OUT, *answers)
        ],
        "texts": [names.index(column) for column in texts],
        "numbers": [names.index(column) for column in numbers],
        "answers": {column: list(cells) for column, cells in answers.items()},
        "classes": classes,
    }
    # The browser stores the labels under this key, which is different for every table.
    digest = hashlib.sha256(document_text(content, _FILE).encode()).hexdigest()
    data = document_text(content | {"name": name, "digest": digest, "images": pictures}, _FILE)
    here = files(__package__)
    before, _, rest = here.joinpath("page.html").read_text(encoding="utf-8").partition("<style>")
    style, _, rest = rest.partition("</style>")
    script = "\n" + here.joinpath("page.js").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; img-src data:; style-src {_source(style)}; "
        f"script-src {_source(script)}; base-uri 'none'; form-action 'none'"
    )
    title = escape(printable(f"Label {len(rows)} rows: {name}"))
    before = before.replace("__POLICY__", policy).replace("__TITLE__", title)
    # Only "<" can end a script element, so "<" is escaped in the JSON.
    rest = rest.replace("__SCRIPT__", script, 1).replace(
        "__DATA__", data.replace("<", r"\u003c"), 1
    )
    return f"{before}<style>{style}</style>{rest}"


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@dataclass(frozen=True)
class Pictures:
    """The pictures of n rows, small enough to embed in a page."""

    uris: Sequence[str | None]  # Data URIs: "" for an unreadable image, None without images.
    unreadable: Mapping[str, str]  # The reason for each unreadable image, by row id.


def pictures_of(images: str | Path | None, ids: Sequence[str]) -> Pictures:
    """Return thumbnails of the rows with these ids.

    - `images`: a folder, shards or a file with images.
    - `ids`: the ids of the rows in the features file.

    Raises `CovcalError` if the data contain no images, or lack one of the ids.
    """
    if images is None:
        return Pictures([None] * len(ids), {})
    from covcal_cli.data.open import open_images

    data = open_images(Path(images))
    numbers = {row_id: row for row, row_id in enumerate(data.ids)}
    missing = next((row_id for row_id in ids if row_id not in numbers), None)
    if missing is not None:
        raise CovcalError(
            f"{images} has no row {shown(missing)} (its first row is {shown(data.ids[0])}): give "
            "the images of the target rows"
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
    row_shape: "RowShape" = (1,)
    dtype = "object"

    def describe(self) -> str:
        return f"RGB of at most {LONGEST_SIDE} pixels a side"

    def to_json(self) -> str:
        return "{}"

    def write(self, image: "Image.Image", out: AnyArray) -> None:
        out[0] = data_uri(image)


def data_uri(image: "Image.Image") -> str:
    """Return an image as a small data URI, turned upright and on a white background."""
    from PIL import Image, ImageOps

    from covcal_cli.data.preprocessing.pixels import eight_bit

    kind = image.format
    # Read a large JPEG at a smaller scale, which is faster.
    image.draft("RGB", (2 * LONGEST_SIDE, 2 * LONGEST_SIDE))
    image = eight_bit(ImageOps.exif_transpose(image), kind)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        behind = Image.new("RGBA", image.size, _WHITE)
        image = Image.alpha_composite(behind, image)
    image = image.convert("L" if image.mode in ("L", "1") else "RGB")
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
    # PNG is lossless, so use PNG if the file is small enough.
    name, content = "png", _encoded(image, "png", optimize=True)
    for quality in _QUALITIES:
        if len(content) <= _MOST_BYTES:
            break
        name, content = "jpeg", _encoded(image, "jpeg", quality=quality)
    return f"data:image/{name};base64,{base64.b64encode(content).decode()}"


def _encoded(image: "Image.Image", kind: str, **settings: int) -> bytes:
    stream = BytesIO()
    image.save(stream, kind, **settings)
    return stream.getvalue()
