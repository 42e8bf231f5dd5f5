"""Draw tables for a terminal or as Markdown."""

import textwrap
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from covcal_cli.cli.console import WIDTH
from covcal_cli.errors import percent, printable

if TYPE_CHECKING:
    from covcal_cli.report.tables import Table

_GAP = "  "
_LONGEST_NAME, _LEAST_TEXT = 30, 20  # widths in columns of the terminal


def aligned(facts: Mapping[str, str]) -> str:
    """Return lines with names and texts in two aligned columns."""
    lines = [(printable(name), printable(text)) for name, text in facts.items()]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


def listed(facts: Mapping[str, str], kind: str) -> str:
    """Return names and texts as aligned lines for the format ``table``, else as a Markdown list."""
    from covcal_cli.report.tables import in_markdown

    if kind == "table":
        return aligned(facts)
    return "\n".join(
        f"- **{in_markdown(name)}**: {in_markdown(text)}" for name, text in facts.items()
    )


def titled(parts: Iterable[tuple[str, "Table"]], kind: str) -> str:
    """Return titled tables in one of three formats: text (``table``), LaTeX or Markdown."""
    from covcal_cli.report.tables import latex, markdown

    if kind == "latex":
        return "\n".join((f"% {title}\n" if title else "") + latex(part) for title, part in parts)
    draw, gap = (text, "\n") if kind == "table" else (markdown, "\n\n")
    return "\n\n".join(
        f"{title}{gap}{draw(part)}" if title else draw(part) for title, part in parts
    )


def cell(value: float | None, as_percent: bool = True) -> str:
    """Return a metric as the text of a table cell; ``-`` if it is None."""
    return percent(value) if as_percent or value is None else f"{value:.4f}"


def text(table: "Table") -> str:
    """Return the table as text of at most `WIDTH` columns.

    To make a table narrower, headings are wrapped first, then the longest column of text. A table
    that is still too wide is split into several tables, which all begin with the first columns.
    """
    lines = [[*map(printable, line)] for line in (table.columns, *table.rows)]
    columns = [list(column) for column in zip(*lines, strict=True)]
    leading = next((i for i in range(len(columns)) if i not in table.texts), len(columns))
    for index in range(leading):
        columns[index] = [_filled(cell, _LONGEST_NAME, break_words=True) for cell in columns[index]]
    if _total(columns) > WIDTH:
        narrow = _narrowed(columns, [i for i in table.texts if leading <= i < len(columns)])
        columns = narrow if _total(narrow) <= WIDTH else columns
    rest, parts = range(leading, len(columns)), [list(range(leading))]
    for count in range(1, len(rest) + 1):
        size = -(-len(rest) // count)
        parts = [[*range(leading), *rest[start:][:size]] for start in range(0, len(rest), size)]
        if all(_total([columns[index] for index in part]) <= WIDTH for part in parts):
            break
    return "\n\n".join(
        _drawn([columns[index] for index in part], [index in table.texts for index in part])
        for part in parts
    )


def _narrowed(columns: Sequence[Sequence[str]], texts: Sequence[int]) -> list[list[str]]:
    narrowed = []
    for heading, *cells in columns:
        widest = max(map(len, [*heading.split(), *cells]))
        narrowed.append([_filled(heading, widest), *cells])
    if texts and _total(narrowed) > WIDTH:
        longest = max(texts, key=lambda index: _width(narrowed[index]))
        room = max(WIDTH - _total(narrowed) + _width(narrowed[longest]), _LEAST_TEXT)
        narrowed[longest] = [_filled(cell, room, break_words=True) for cell in narrowed[longest]]
    return narrowed


def _drawn(columns: Sequence[Sequence[str]], left: Sequence[bool]) -> str:
    widths = [_width(column) for column in columns]
    rows = []
    for cells in zip(*columns, strict=True):
        lines = zip_longest(*(cell.split("\n") for cell in cells), fillvalue="")
        rows.append("\n".join(_line(line, widths, left) for line in lines))
    rule = "─" * (sum(widths) + len(_GAP) * (len(widths) - 1))
    return "\n".join([rows[0], rule, *rows[1:]])


def _line(cells: Iterable[str], widths: Sequence[int], left: Sequence[bool]) -> str:
    padded = []
    for cell, width, is_text in zip(cells, widths, left, strict=True):
        blank = " " * (width - _cells(cell))
        padded.append(cell + blank if is_text else blank + cell)
    return _GAP.join(padded).rstrip()


def _cells(text: str) -> int:
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))


def _width(column: Iterable[str]) -> int:
    return max(_cells(line) for cell in column for line in cell.split("\n"))


def _total(columns: Sequence[Sequence[str]]) -> int:
    return sum(map(_width, columns)) + len(_GAP) * (len(columns) - 1)


def _filled(cell: str, width: int, *, break_words: bool = False) -> str:
    return textwrap.fill(cell, max(1, width), break_long_words=break_words, break_on_hyphens=False)
