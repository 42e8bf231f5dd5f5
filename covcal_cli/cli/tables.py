"""Tables as text for a terminal, and as Markdown."""

import io
import re

from covcal_cli.errors import printable
from covcal_cli.report.tables import Table

_MARKS = re.compile(r"[\\`*_\[\]|~]")  # that begin markup within a cell
_TAG, _ENTITY = re.compile("<(?=[A-Za-z/!?])"), re.compile("&(?=[A-Za-z#])")


def text(table: Table) -> str:
    """Return the table as text, without a line around it."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as Drawing

    drawing = Drawing(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(table.columns):
        left = index in table.texts
        drawing.add_column(column, justify="left" if left else "right", no_wrap=True)
    for row in table.rows:
        drawing.add_row(*row)
    page = io.StringIO()
    # A name may look like rich's markup; it is shown as it is.
    plain = Console(file=page, width=200, color_system=None, markup=False, emoji=False)
    plain.print(drawing)
    lines = (line.strip() for line in page.getvalue().splitlines())
    return "\n".join(line for line in lines if line)


def markdown(table: Table) -> str:
    """Return the table as Markdown."""
    rule = "|".join(
        "---" if index in table.texts else "---:" for index in range(len(table.columns))
    )
    lines = ["| " + " | ".join(map(in_markdown, table.columns)) + " |", f"|{rule}|"]
    lines += ["| " + " | ".join(map(in_markdown, row)) + " |" for row in table.rows]
    return "\n".join(lines)


def in_markdown(text: str) -> str:
    """Return a text of any origin as Markdown shows it: no markup, no HTML, no other cell."""
    shown = _MARKS.sub(r"\\\g<0>", printable(text))
    return _TAG.sub("&lt;", _ENTITY.sub("&amp;", shown))
