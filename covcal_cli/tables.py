"""A table of text, before it is drawn as text, Markdown or HTML."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Columns, and rows of as many cells."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: Collection[int] = (0,)  # columns of text, to the left; the others are numbers
