"""The cells of a row that a person reads before labelling it: the columns that extract kept.

Columns that seem to hold the classifier's answer are told apart, because people tend to agree with
an answer that they see.

A spreadsheet takes a text that begins with a sign such as ``=`` for a formula. `escaped` puts an
apostrophe before it, and `unescaped` takes it away again.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from covcal_cli.arrays import Rows
from covcal_cli.formats.features import Domain

Cells = Mapping[str, Sequence[str]]  # the cells of some rows, by the name of the column
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_ESCAPED = re.compile(r"'+[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+[.,]?\d*|[.,]\d+)(e[+-]?\d+)?%?", re.IGNORECASE | re.ASCII)
# Names that tools give to the classifier's answer, and covcal too.
_ANSWER = re.compile(
    r"\.?(y_|model_)?(pred(ict(ed|ions?|s)?)?|conf(idence)?|scores?|scored|prob(as?|abilit(y|ies))?"
    r"|logits?)([ _.(].*)?",
    re.IGNORECASE,
)


def escaped(text: str) -> str:
    """Return a text as a spreadsheet may read it: a formula begins with an apostrophe."""
    return f"'{text}" if _FORMULA.match(text) and not is_number(text) else text


def unescaped(cell: str) -> str:
    """Return the text that `escaped` wrote."""
    return cell[1:] if _ESCAPED.match(cell) else cell


def is_number(text: str) -> bool:
    """Return whether a text is a plain number, with a decimal point or comma."""
    return _NUMBER.fullmatch(text) is not None


def kept_cells(target: Domain, rows: Rows) -> dict[str, list[str]]:
    """Return the cells of the target's kept columns for `rows`, in any order."""
    order = np.argsort(rows)
    places = np.argsort(order)
    return {
        name: [_text(value) for value in target.column(name, rows[order])[places]]
        for name in target.columns
    }


def answer_columns(cells: Cells, predicted: Sequence[str]) -> list[str]:
    """Return the columns that seem to hold the classifier's answer, by their names or values."""
    same = list(predicted)
    return [
        name for name, column in cells.items() if _ANSWER.fullmatch(name) or list(column) == same
    ]


def _text(value: Any) -> str:
    """Return a value as a person reads it; a missing number is an empty text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if not isinstance(value, np.floating):
        return str(value)
    if np.isnan(value):
        return ""
    return str(int(value)) if value == np.rint(value) and abs(value) < 1e15 else str(value)
