"""Read ``.csv`` files in two passes.

The first pass counts rows and reads texts. The second pass reads numbers in blocks, so a column of
numbers is never in memory as a whole.

The first value of a column shows whether the column has numbers, booleans or texts. With pyarrow,
large files are parsed several times as fast as with NumPy and Python. Python parses lines with
quotes, empty cells or infinite numbers.
"""

import csv
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.arrays import AnyArray, Float64s, Rows
from covcal_cli.data.rows import GROUP_PREFIX, PATH_NAMES, is_reserved
from covcal_cli.data.stores.store import (
    LONGEST_LINE,
    WINDOW_BYTES,
    Entry,
    MixedColumnError,
    Piece,
    Store,
    holds_returns,
    is_compressed,
    open_text,
    short_lines,
)

_DELIMITERS = ",;\t"
_EXCEL = re.compile(rf"sep=([{_DELIMITERS}])\s*", re.IGNORECASE)
_MISSING = {"", "na", "n/a", "nan", "null", "none"}
_BOOLEANS = {"true": 1.0, "false": 0.0}
_WITH_COMMA = re.compile(r"[+-]?\d*,\d+(e[+-]?\d+)?", re.IGNORECASE)
_OUTPUTS = ("prob_", "logit_")  # Columns with these names hold no texts.
_CELL_BYTES = 64  # Memory of a short text in Python, in bytes.
_LARGE = 16 << 20  # Minimum size of files for pyarrow, in bytes.
_LARGEST_BLOCK = 1 << 30  # Largest number of characters that pyarrow parses at once.
csv.field_size_limit(max(LONGEST_LINE, csv.field_size_limit()))


class CSVStore(Store):
    """The columns of a CSV file.

    The first line has the names of the columns. The separator is the first comma, semicolon or tab
    in the first line. In files of Excel, a line such as ``sep=;`` may precede the names.
    """

    is_table = True
    is_typed = False

    def __init__(self, path: Path, *, of_images: bool = True, as_texts: bool = False) -> None:
        self.path = path
        self._as_texts = as_texts
        self._of_images = of_images
        self._texts: dict[str, list[str]] = {}
        self._n, self._one_line_each = 0, True
        self._names_line = 1  # Number of the line with the column names.
        # The line end of all lines, or "" if the line ends differ.
        self._newline: str | None = None
        self._arrow = _arrow_parser(path)
        self.with_commas: dict[str, str] = {}
        with self._reading() as (lines, reader, header):
            self._names = self._checked(header)
            kinds = self._scanned(lines, reader)
        if as_texts:
            self._drop_empty_rows()
        kinds_of = {"text": np.dtype(str), "bool": np.dtype(bool), "number": np.dtype(float)}
        self.entries = {
            name: Entry((self._n,), kinds_of[kinds.get(name, "number")]) for name in self._names
        }

    def _drop_empty_rows(self) -> None:
        columns = self._texts.values()
        has_text = [any(map(str.strip, cells)) for cells in zip(*columns, strict=True)]
        if not all(has_text):
            for name, texts in self._texts.items():
                self._texts[name] = list(compress(texts, has_text))
            self._one_line_each &= all(has_text[: sum(has_text)])
            self._n = sum(has_text)

    def whole(self, name: str) -> AnyArray:
        """Return a whole column as texts or numbers."""
        if name in self._texts:
            return np.array(self._texts[name], dtype=str)
        return super().whole(name)

    def texts(self, name: str) -> list[str]:
        """Return a whole column as texts, exactly as in the file."""
        if name in self._texts:
            return self._texts[name]
        column = self._names.index(name)
        with self._reading() as (_, reader, _):
            return [cells[column] for cells in reader if cells]

    def pieces(self, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        """Yield rows of columns of numbers, as float64. An empty cell becomes NaN."""
        columns = [self._names.index(name) for name in names]
        size = max(64, min(size, WINDOW_BYTES // (_CELL_BYTES * len(self._names))))
        with self._reading() as (file, reader, _):
            # NumPy parses lines twice as fast as Python parses cells.
            records = file if self._one_line_each else (cells for cells in reader if cells)
            start = 0
            for first in range(0, len(rows), size):
                chosen = rows[first : first + size]
                taken, start = self.taken(records, start, chosen)
                values = self._by_arrow(taken, columns, is_text=False)
                if values is None:
                    values = list(self._numbers(taken, columns, chosen).T)
                yield chosen, dict(zip(names, values, strict=True))

    def place(self, row: int) -> str:
        """Return the line of a row, or the row number if rows have several lines."""
        return f"line {row + 1 + self._names_line}" if self._one_line_each else f"row {row}"

    def _by_arrow(
        self, records: Sequence[Any], columns: Sequence[int], *, is_text: bool
    ) -> list[Any] | None:
        """Return columns of texts or numbers, or None if pyarrow cannot parse the lines."""
        others = len(self._names) - 1
        if self._arrow is None or not self._one_line_each or not others:
            return None
        text = "".join(records)
        # pyarrow would drop a byte order mark.
        if '"' in text or text.startswith("\ufeff") or len(text) > _LARGEST_BLOCK:
            return None
        names = list(map(str, range(others + 1)))
        values = self._arrow(text.encode(), self._delimiter, names, columns, is_text)
        # pyarrow skips blank lines.
        return values if values is not None and len(values[0]) == len(records) else None

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
                if len(values) == len(records):  # NumPy skips blank lines.
                    return values
            # NumPy cannot parse empty cells, texts and booleans, so parse cell by cell.
            except ValueError:
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
        name = self._names[column]
        has_booleans = self.entries[name].dtype == np.bool_
        if kind == "bool" and has_booleans:
            return _BOOLEANS[cell.strip().lower()]
        if kind == "number" and (not has_booleans or float(cell) in (0, 1)):
            return float(cell)
        place = self.place(row)
        if self._has_comma(cell):
            raise self.error(_comma_message(name, cell, place))
        usual, remedy = "numbers", "a number"
        if has_booleans:
            usual = remedy = "true or false"
        if not name.startswith(_OUTPUTS):
            remedy += f". If the column holds texts, rename it to {GROUP_PREFIX}{name}"
        raise MixedColumnError(
            f"{self.path}: column {name} holds {cell!r} in {place}, but {usual} in earlier rows: "
            f"write {remedy}"
        )

    def _has_comma(self, cell: str) -> bool:
        return self._delimiter != "," and _WITH_COMMA.fullmatch(cell.strip()) is not None

    def _scanned(self, lines: Iterator[str], reader: Any) -> dict[str, str]:
        """Count the rows, read the texts, and find the type of each column."""
        paths = [name for name in self._names if name.lower() in PATH_NAMES]
        about_images = self._of_images and bool(paths)
        # Labels, ids and groups are texts. In a table of images, all columns are texts.
        kinds = {
            name: "text"
            for name in self._names
            if self._as_texts or about_images or name in paths or is_reserved(name)
        }
        self._texts = {name: [] for name in kinds}
        columns = [(texts, self._names.index(name)) for name, texts in self._texts.items()]
        undecided = [index for index, name in enumerate(self._names) if name not in kinds]
        # Cells such as NA that precede the first value of a column. NA may be the name of a class.
        words: dict[int, dict[int, str]] = {index: {} for index in undecided}
        self._n = 0
        # Read row by row until the type of every column is known.
        for cells in reader:
            if not cells:
                continue
            self._require_width(cells, reader.line_num)
            for index in tuple(undecided):
                name, kind = self._names[index], _kind(cells[index])
                if kind is None:
                    if cells[index].strip():
                        words[index][self._n] = cells[index]
                    continue
                undecided.remove(index)
                kinds[name] = kind
                if kind == "text":
                    if self._has_comma(cells[index]):
                        place = f"line {reader.line_num + self._names_line - 1}"
                        self.with_commas[name] = _comma_message(name, cells[index], place)
                    self._texts[name] = [words[index].get(row, "") for row in range(self._n)]
                    columns.append((self._texts[name], index))
            self._keep([cells], columns)
            if not undecided:
                break
        n_lines = self._scan_rest(lines, reader.line_num, columns)
        # With one column name and no rows, the file is probably not a CSV table.
        if self._n == 0 and len(self._names) == 1:
            raise self.error(
                "there are no rows below the line of column names: give one row per example"
            )
        self._one_line_each = n_lines == self._n + 1
        return kinds

    def _scan_rest(
        self, lines: Iterator[str], line: int, columns: Sequence[tuple[list[str], int]]
    ) -> int:
        size = max(64, WINDOW_BYTES // (_CELL_BYTES * len(self._names)))
        # For an empty list, pyarrow would read all columns.
        places = [index for _, index in columns] or [0]
        while block := list(islice(lines, size)):
            cells = self._by_arrow(block, places, is_text=True)
            if cells is None:
                if not self._are_plain(block):
                    break
                cells = [self._cells(block, index) for index in places]
            for (texts, _), more in zip(columns, cells, strict=False):
                texts.extend(more)
            self._n += len(block)
            line += len(block)
        # Only the CSV reader parses quotes.
        reader = csv.reader(chain(block, lines), delimiter=self._delimiter, strict=True)
        before = 0
        while rows := list(islice(reader, size)):
            for cells in rows:
                before += 1 + sum(cell.count("\n") for cell in cells)
                if cells:
                    self._require_width(cells, line + before)
            before = reader.line_num
            self._keep([cells for cells in rows if cells], columns)
        return line + before

    def _are_plain(self, lines: Sequence[str]) -> bool:
        others, delimiter = len(self._names) - 1, self._delimiter
        counts = {line.count(delimiter) for line in lines}
        return counts == {others} and others > 0 and not any('"' in line for line in lines)

    def _cells(self, lines: Sequence[str], index: int) -> list[str]:
        behind, delimiter = len(self._names) - index, self._delimiter
        if index < behind:
            return [line.split(delimiter, index + 1)[index].rstrip("\r\n") for line in lines]
        return [line.rsplit(delimiter, behind)[-behind].rstrip("\r\n") for line in lines]

    def _keep(
        self, rows: Sequence[Sequence[str]], columns: Sequence[tuple[list[str], int]]
    ) -> None:
        for texts, index in columns:
            texts.extend([cells[index] for cells in rows])
        self._n += len(rows)

    def _require_width(self, cells: Sequence[str], line: int) -> None:
        if len(cells) != len(self._names):
            remedy = "correct the line, or put quotes around cells with commas"
            if len(self._names) == 1:
                remedy = "remove the lines above the names of the columns"
            raise self.error(
                f"line {line + self._names_line - 1} has {len(cells)} cells, but the first line "
                f"names {len(self._names)} columns: {remedy}"
            )

    def _checked(self, header: list[str]) -> list[str]:
        names = [name.strip() for name in header]
        if not names:
            raise self.error("the first line is empty: name the columns there")
        for index, name in enumerate(names):
            if self._as_texts and not name:  # Spreadsheets write empty columns.
                names[index] = f"column {index + 1}"
            elif name in names[:index]:
                raise self.error(f"two columns are called {name!r}: rename one of them")
        if all(_kind(name) == "number" for name in names) and not self._are_classes(names):
            example = "a,b,label"
            if names == ["0", "1"]:
                example = "prob_0,prob_1 for the probabilities of the classes 0 and 1"
            raise self.error(
                "the first line holds numbers, not names: add a first line with the names of "
                f"the columns, such as {example}"
            )
        return names

    def _are_classes(self, names: Sequence[str]) -> bool:
        """Return whether a first line such as 0,1,2 names classes. A line 0,1 may be a row."""
        with self._reading() as (_, reader, _):
            row: list[str] = next(reader, [])
        has_fraction = any("." in cell and _kind(cell) == "number" for cell in row)
        return len(names) > 2 and [*names] == list(map(str, range(len(names)))) and has_fraction

    @contextmanager
    def _reading(self) -> Iterator[tuple[Iterator[str], Any, list[str]]]:
        with self.readable("it is not a readable CSV file", "check its quotes", csv.Error):
            if self._newline is None:
                is_simple = not is_compressed(self.path) and not holds_returns(self.path)
                self._newline = "\n" if is_simple else ""
            with open_text(self.path, self._newline) as file:
                first = file.readline(LONGEST_LINE)
                excel = _EXCEL.fullmatch(first)
                if excel is None:
                    file.seek(0)
                    self._delimiter = next((char for char in first if char in _DELIMITERS), ",")
                else:
                    self._names_line, self._delimiter = 2, excel[1]
                lines = short_lines(self.path, file) if is_compressed(self.path) else file
                reader = csv.reader(lines, delimiter=self._delimiter, strict=True)
                yield lines, reader, next(reader, [])


def _arrow_parser(path: Path) -> Callable[..., list[Any] | None] | None:
    """Return a function that parses lines with pyarrow; None without pyarrow or for small files."""
    try:
        if path.stat().st_size < _LARGE:
            return None
        import pyarrow
        from pyarrow import csv as arrow_csv
    except (ImportError, OSError):  # The caller reports an unreadable file.
        return None

    def parsed(
        lines: bytes, delimiter: str, names: list[str], columns: Sequence[int], is_text: bool
    ) -> list[Any] | None:
        kind = pyarrow.string() if is_text else pyarrow.float64()
        chosen = [names[index] for index in columns]
        try:
            table = arrow_csv.read_csv(
                pyarrow.BufferReader(lines),
                arrow_csv.ReadOptions(
                    use_threads=False, block_size=len(lines) + 1, column_names=names
                ),
                arrow_csv.ParseOptions(delimiter=delimiter, quote_char=False),
                arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(chosen, kind), include_columns=chosen, null_values=[]
                ),
            )
        except pyarrow.ArrowException:
            return None
        if is_text:
            return [column.to_pylist() for column in table.columns]
        numbers = [np.from_dlpack(column.combine_chunks()) for column in table.columns]
        return numbers if all(np.isfinite(values).all() for values in numbers) else None

    return parsed


def _comma_message(name: str, cell: str, place: str) -> str:
    return (
        f"column {name} holds {cell!r} in {place}, with a decimal comma: write a decimal "
        f"point. If the column holds texts, rename it to {GROUP_PREFIX}{name}"
    )


def _kind(cell: str) -> str | None:
    text = cell.strip().lower()
    if text in _MISSING:
        return None
    if text in _BOOLEANS:
        return "bool"
    try:
        float(text)
    except ValueError:
        return "text"
    # Python would accept 12_3, and digits of other scripts.
    return "text" if "_" in text or not text.isascii() else "number"
