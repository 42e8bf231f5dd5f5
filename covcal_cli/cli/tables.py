"""Tables and lines as text for a terminal, and tables as Markdown."""

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it needs NumPy, and --help does not
    from covcal_cli.report.tables import Table


def aligned(facts: Mapping[str, str]) -> str:
    """Return a line per fact: what it is about, and what it says from one column on."""
    width = max(map(len, facts))
    return "\n".join(f"{name:<{width}}  {text}" for name, text in facts.items())


def text(table: "Table") -> str:
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


def markdown(table: "Table") -> str:
    """Return the table as Markdown."""
    rule = "|".join(
        "---" if index in table.texts else "---:" for index in range(len(table.columns))
    )
    lines = ["| " + " | ".join(table.columns) + " |", f"|{rule}|"]
    for row in table.rows:
        cells = (cell.replace("|", "\\|") for cell in row)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
