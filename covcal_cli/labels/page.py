"""The page on which a person labels the picked rows: one HTML file that needs nothing else.

Texts and pictures go in as JSON. The page's script shows them as text and never as HTML, and the
page's policy forbids every other script and every request. The page saves the CSV that it was made
from, with the column ``label`` filled in.
"""

import base64
import csv
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from io import StringIO
from pathlib import Path

from covcal_cli.errors import printable
from covcal_cli.files import write_text
from covcal_cli.labels.sheet import Sheet, sheet_text
from covcal_cli.records import document_text

_HIDDEN = ("predicted", "confidence")  # columns that influence an answer: shown on demand
_LEFT_OUT = ("label", "inclusion", "draw")  # columns that do not help to label
_FILE = Path("page")  # the base of a document's paths; a page has no paths


def write_page(
    path: Path, sheet: Sheet, classes: Sequence[str], images: str | Path | None, *, force: bool
) -> Mapping[str, str]:
    """Write the page of a sheet, and return why an image could not be read, by the row's id.

    `images` are the target's images; without them the page shows the cells of a row.

    Raises
    ------
    CovcalError
        If the images are not those of the rows, or the page cannot be written.
    """
    uris: Sequence[str | None] = [None] * len(sheet)
    unreadable: Mapping[str, str] = {}
    if images is not None:
        from covcal_cli.labels.pictures import pictures

        shown = pictures(Path(images), sheet.ids)
        uris, unreadable = shown.uris, shown.unreadable
    text = page(sheet_text(sheet), classes, uris, name=sheet.path.name)
    write_text(path, text, force=force)
    return unreadable


def page(table: str, classes: Sequence[str], pictures: Sequence[str | None], *, name: str) -> str:
    """Return the whole page; the same arguments give the same bytes.

    Parameters
    ----------
    table : str
        The CSV of the n rows, with a line of columns, the column ``label`` among them.
    classes : sequence of str
        What may be written in that column, no name twice.
    pictures : sequence of str or None
        A data URI per row: empty where an image could not be read, None where the row has no image
        and the page shows its cells.
    name : str
        The name of the file that the page saves.

    Raises
    ------
    ValueError
        If there are not as many pictures as rows.
    """
    columns, *rows = csv.reader(StringIO(table, newline=""))
    if len(pictures) != len(rows):
        raise ValueError(f"{len(pictures)} pictures for {len(rows)} rows")
    content = {
        "columns": columns,
        "rows": rows,
        "label": columns.index("label"),
        "hidden": [columns.index(column) for column in columns if column in _HIDDEN],
        "left_out": [columns.index(column) for column in columns if column in _LEFT_OUT],
        "classes": classes,
    }
    # The browser stores answers under this name, so that every table has its own.
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
    # Only "<" can end a script element, and JSON may spell it by its code.
    rest = rest.replace("__SCRIPT__", script, 1).replace(
        "__DATA__", data.replace("<", r"\u003c"), 1
    )
    return f"{before}<style>{style}</style>{rest}"


def _source(text: str) -> str:
    """Return an inline script or style as a policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
