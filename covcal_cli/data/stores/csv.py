"""``.csv`` tables: one pass finds rows, kinds and texts; another streams the numbers.

A column's kind is that of its first value: a number, true or false, or a text. Columns of numbers
are never in memory as a whole.
"""

import csv
import gzip
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from covcal_cli.arrays import AnyArray, Float64s, Rows
from covcal_cli.data.rows import GROUP_PREFIX, PATH_NAMES, is_reserved
from covcal_cli.data.stores.store import WINDOW_BYTES, Entry, Piece, Store

_DELIMITERS = ",;\t"
_MISSING = {"", "na", "n/a", "nan", "null", "none"}
_BOOLEANS = {"true": 1.0, "false": 0.0}
_WITH_COMMA = re.compile(r"[+-]?\d*,\d+(e[+-]?\d+)?", re.IGNORECASE)
_CELL_BYTES = 64  # what Python takes for a short text


class CSVStore(Store):
    """The columns of a CSV file.

    The first line names the columns. Comma, semicolon or tab separates them, whichever comes first
    in it.
    """

    is_table = True
    is_typed = False

    def __init__(self, path: Path, *, of_images: bool = True) -> None:
        self.path = path
        self._of_images = of_images  # where paths are there, the rest are texts about them
        self._texts: dict[str, list[str]] = {}
        with self._reading() as (_, reader, header):
            self._names = self._checked(header)
            kinds = self._scanned(reader)
        kinds_of = {"text": np.dtype(str), "bool": np.dtype(bool), "number": np.dtype(float)}
        self.entries = {
            name: Entry((self._n,), kinds_of[kinds.get(name, "number")]) for name in self._names
        }

    def whole(self, name: str) -> AnyArray:
        """Return a whole column: as text where it is text or says something of the rows."""
        if name in self._texts:
            return np.array(self._texts[name], dtype=str)
        rows = np.arange(self._n, dtype=np.int64)
        parts = [part[name] for _, part in self.pieces([name], rows, 1 << 16)]
        return np.concatenate(parts)

    def texts(self, name: str) -> list[str]:
        """Return a whole column as texts."""
        return self._texts[name] if name in self._texts else self.whole(name).astype(str).tolist()

    def pieces(self, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        """Yield the chosen rows of columns of numbers, as float64; NaN where a cell is empty."""
        columns = [self._names.index(name) for name in names]
        size = max(64, min(size, WINDOW_BYTES // (_CELL_BYTES * len(self._names))))
        with self._reading() as (file, reader, _):
            # Whole lines go to NumPy's parser, twice as fast as cells through Python's floats.
            records = file if self._one_line_each else (cells for cells in reader if cells)
            start = 0
            for first in range(0, len(rows), size):
                chosen = rows[first : first + size]
                taken, start = self._taken(records, start, chosen)
                values = self._numbers(taken, columns, chosen)
                yield chosen, {name: values[:, i] for i, name in enumerate(names)}

    def place(self, row: int) -> str:
        """Return the row's line where it is known, else its number."""
        return f"line {row + 2}" if self._one_line_each else f"row {row}"

    def _taken(self, records: Iterator[Any], start: int, rows: Rows) -> tuple[list[Any], int]:
        """Return the records of `rows`, and the number of the next; the first now is `start`."""
        taken: list[Any] = []
        stop = int(rows[-1]) + 1
        if len(rows) == stop - int(rows[0]):
            taken.extend(islice(records, int(rows[0]) - start, stop - start))
        else:
            for row in rows.tolist():
                taken.extend(islice(records, row - start, row - start + 1))
                start = row + 1
        if len(taken) < len(rows):
            raise self.error("it was cut short while it was read: copy it again")
        return taken, stop

    def _numbers(self, records: list[Any], columns: list[int], rows: Rows) -> Float64s:
        if self._one_line_each:
            try:
                values: Float64s = np.loadtxt(
                    records,
                    delimiter=self._delimiter,
                    quotechar='"',
                    comments=None,
                    usecols=columns,
                    ndmin=2,
                )
                if len(values) == len(records):  # it passes over lines of blanks
                    return values
            except ValueError:  # an empty cell, a text, a boolean: told apart below
                pass
            records = list(csv.reader(records, delimiter=self._delimiter, strict=True))
        numbers = [
            [self._number(cells[column], column, row) for column in columns]
            for cells, row in zip(records, rows.tolist(), strict=True)
        ]
        return np.array(numbers, dtype=np.float64)

    def _number(self, cell: str, column: int, row: int) -> float:
        kind = _kind(cell)
        if kind is None:
            return math.nan
        if kind == "bool":
            return _BOOLEANS[cell.strip().lower()]
        if kind == "number":
            return float(cell)
        self._require_points(cell, self._names[column], self.place(row))
        raise self.error(
            f"column {self._names[column]} holds {cell!r} in {self.place(row)}, where numbers "
            "stand before: encode it as a number, or leave the column out"
        )

    def _require_points(self, cell: str, name: str, place: str) -> None:
        """Refuse a number with a decimal comma, which would pass for a text."""
        if self._delimiter != "," and _WITH_COMMA.fullmatch(cell.strip()):
            raise self.error(
                f"column {name} holds {cell!r} in {place}, with a decimal comma: save numbers with "
                f"a decimal point, or call a column of texts {GROUP_PREFIX}{name}"
            )

    def _scanned(self, reader: Any) -> dict[str, str]:
        """Count the rows, keep the texts, and return the kind of every column with a value."""
        width = len(self._names)
        paths = [name for name in self._names if name.lower() in PATH_NAMES]
        about_images = self._of_images and bool(paths)
        # Whatever says something of the rows is kept as text; beside images, that is all.
        kinds = {
            name: "text"
            for name in self._names
            if about_images or name in paths or is_reserved(name)
        }
        self._texts = {name: [] for name in kinds}
        kept = [(texts, self._names.index(name)) for name, texts in self._texts.items()]
        undecided = [index for index, name in enumerate(self._names) if name not in kinds]
        n = 0
        for cells in reader:
            if len(cells) != width:
                if not cells:
                    continue
                raise self.error(
                    f"line {reader.line_num} has {len(cells)} cells and the first line names "
                    f"{width} columns: correct or quote it"
                )
            # Of the other columns the first value tells the kind; up to a text there was none.
            for index in tuple(undecided):
                name, kind = self._names[index], _kind(cells[index])
                if kind is None:
                    continue
                undecided.remove(index)
                kinds[name] = kind
                if kind == "text":
                    self._require_points(cells[index], name, f"line {reader.line_num}")
                    self._texts[name] = [""] * n
                    kept.append((self._texts[name], index))
            for texts, index in kept:
                texts.append(cells[index])
            n += 1
        if n == 0:
            raise self.error("there are no rows below the first line: give one row per example")
        self._n = n
        self._one_line_each = reader.line_num == n + 1
        return kinds

    def _checked(self, header: list[str]) -> list[str]:
        names = [name.strip() for name in header]
        if not names:
            raise self.error("the first line is empty: name the columns there")
        for index, name in enumerate(names):
            if name in names[:index]:
                raise self.error(f"two columns are called {name!r}: rename one of them")
        if all(_kind(name) == "number" for name in names):
            raise self.error(
                "the first line holds numbers, not names: add a line that names the columns, such "
                "as a,b,label"
            )
        return names

    @contextmanager
    def _reading(self) -> Iterator[tuple[IO[str], Any, list[str]]]:
        """Yield the file and a CSV reader below the first line, and the cells of that line."""
        try:
            with self._opened() as file:
                first = file.readline()
                file.seek(0)
                self._delimiter = next((char for char in first if char in _DELIMITERS), ",")
                reader = csv.reader(file, delimiter=self._delimiter, strict=True)
                yield file, reader, next(reader, [])
        except UnicodeDecodeError as error:
            raise self.error("it is not UTF-8 text: save it as UTF-8") from error
        except (csv.Error, OSError, EOFError, zlib.error) as error:
            raise self.error(f"it is not a readable CSV file ({error}): save it again") from error

    def _opened(self) -> IO[str]:
        if self.path.suffix.lower() == ".gz":
            return gzip.open(self.path, "rt", encoding="utf-8-sig", newline="")
        return self.path.open(encoding="utf-8-sig", newline="")


def _kind(cell: str) -> str | None:
    """Return what a cell holds: a number, a bool or a text; None where it is empty."""
    text = cell.strip().lower()
    if text in _MISSING:
        return None
    if text in _BOOLEANS:
        return "bool"
    try:
        float(text)
    except ValueError:
        return "text"
    return "text" if "_" in text else "number"  # Python reads 12_3 as 123
