"""The page on which a person labels the picked rows: one self-contained HTML file.

Texts and pictures are embedded as JSON. The page's script shows texts as text, never as HTML. The
page's security policy forbids all other scripts and all requests. The page saves the CSV that it
was made from, with the column ``label`` filled in.
"""

import base64
import csv
import hashlib
from collections.abc import Collection, Mapping, Sequence
from html import escape
from importlib.resources import files
from io import StringIO
from pathlib import Path
from types import MappingProxyType

from covcal_cli.errors import printable
from covcal_cli.files import write_text
from covcal_cli.labels.sheet import Cells, Sheet, answers_of, fact_columns, sheet_text, unescaped
from covcal_cli.records import document_text

_LEFT_OUT = ("label", "inclusion", "draw")  # columns that do not help to label
_LONG = 60  # characters: a column with a longer text, or with lines, is shown as texts
_FILE = Path("page")  # base of the paths in a document; a page has no paths


def write_page(
    path: Path, sheet: Sheet, classes: Sequence[str], images: str | Path | None, *, force: bool
) -> Mapping[str, str]:
    """Write the page of a sheet; return the reason for each unreadable image, by the row's id.

    `images` are the target's images; without them the page shows the cells of a row.

    Raises
    ------
    CovcalError
        If the images are not those of the rows, or the page cannot be written.
    """
    uris, unreadable = pictures_of(sheet, images)
    facts = fact_columns(sheet)
    text = page(
        sheet_text(sheet),
        classes,
        uris,
        name=sheet.path.name,
        answers=answers_of(sheet),
        texts=[name for name, cells in facts.items() if any(map(_is_long, cells))],
        numbers=[name for name, cells in facts.items() if not any(map(_is_long, cells))],
    )
    write_text(path, text, force=force)
    return unreadable


def pictures_of(
    sheet: Sheet, images: str | Path | None
) -> tuple[Sequence[str | None], Mapping[str, str]]:
    """Return a data URI per row, None without images, and the reason for each unreadable image."""
    if images is None:
        return [None] * len(sheet), {}
    from covcal_cli.labels.pictures import pictures

    thumbnails = pictures(Path(images), sheet.ids)
    return thumbnails.uris, thumbnails.unreadable


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
    """Return the whole page; the same arguments give the same bytes.

    Parameters
    ----------
    table : str
        The CSV of the n rows, with a header that has a column ``label``.
    classes : sequence of str
        The allowed labels, each once.
    pictures : sequence of str or None
        A data URI per row: empty if its image could not be read, None if the row has no image and
        the page shows its cells.
    name : str
        The name of the file that the page saves.
    answers : mapping of str to sequence of str
        The classifier's answers for the rows, which the page shows on demand.
    texts, numbers : collection of str
        The columns to show as texts, which may have lines, and in a table.

    Raises
    ------
    ValueError
        If the number of pictures is not the number of rows.
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
    # The browser stores answers under this name, which differs between tables.
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
    # Only "<" can end a script element, so it is written as an escape in the JSON.
    rest = rest.replace("__SCRIPT__", script, 1).replace(
        "__DATA__", data.replace("<", r"\u003c"), 1
    )
    return f"{before}<style>{style}</style>{rest}"


def _source(text: str) -> str:
    """Return the hash that names an inline script or style in a policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
