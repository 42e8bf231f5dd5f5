"""Read ``.jsonl`` files: the first pass counts rows and keeps texts, the next streams numbers.

Each line is a JSON object with the columns of one row. A list of numbers is an array with two axes.
So is an object of numbers, and its keys name the classes. `columns_of` brings the lines of other
tools into this form.
"""

import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.arrays import AnyArray, Float64s, Rows
from covcal_cli.data.rows import PATH_NAMES, is_reserved
from covcal_cli.data.stores.store import (
    WINDOW_BYTES,
    Entry,
    Piece,
    Store,
    cut_utf8,
    open_text,
    short_lines,
)

_VALUE_BYTES = 64  # the memory that Python needs for a number and its key
_KEPT = 257  # characters of a text that is no label, id or path; longer texts are no groups
_MOST_COLUMNS = 100_000
_PROBABILITIES = "probabilities"
_CHOICES = "logits"  # the log-likelihoods of the choices of a question, which may be few
_NOUNS = {
    "number": "a number",
    "bool": "true or false",
    "text": "a text",
    "list": "a list of numbers",
    "object": "an object of numbers",
    "other": "values that are no numbers",
}


@dataclass
class _Column:
    """What the first pass learns of one column."""

    kind: str  # number, bool, text, list, or object
    texts: list[str] | None = None  # of all rows so far, if they are kept
    width: int = 0  # of lists
    keys: dict[str, None] = field(default_factory=dict)  # of objects, in the order of the file
    has_texts: bool = False  # whether some kept value is a text
    has_fractions: bool = False  # whether some kept value is a number that is no integer


class JSONLinesStore(Store):
    """The columns of a file of JSON lines."""

    is_table = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self._n = 0
        self._has_blank_lines = False
        self._columns: dict[str, _Column] = {}
        self._other: set[str] = set()  # columns of nested values, which are not read
        for number, line in self._lines():
            self._scan(columns_of(self._parsed(line, number)), f"line {number}")
            self._n += 1
            self._has_blank_lines |= number != self._n
        if self._n == 0:
            raise self.error("there are no rows: give one JSON object per line")
        for column in self._columns.values():
            if column.texts is not None:
                column.texts.extend([""] * (self._n - len(column.texts)))
        self.entries = {name: self._entry(column) for name, column in self._columns.items()}

    def whole(self, name: str) -> AnyArray:
        """Return a whole column; a missing value is an empty text or NaN."""
        column, dtype = self._columns[name], self.entries[name].dtype
        if column.texts is None:
            rows = np.arange(self._n, dtype=np.int64)
            return np.concatenate([part[name] for _, part in self.pieces([name], rows, 1 << 14)])
        if dtype.kind == "U":
            return np.array(column.texts, dtype=str)
        return np.array([text or "nan" for text in column.texts]).astype(dtype)

    def texts(self, name: str) -> list[str]:
        """Return a whole column as texts."""
        texts = self._columns[name].texts
        return self.whole(name).astype(str).tolist() if texts is None else texts

    def cut_texts(self, name: str, width: int) -> tuple[NDArray[np.bytes_], int]:
        """Return a column in UTF-8 and the number of cut texts; long texts are read again."""
        records = (columns_of(self._parsed(line, number)) for number, line in self._lines())
        values = (record.get(name) for record in records)
        texts = ("" if value is None else str(value) for value in values)
        return cut_utf8(texts, self._n, width)

    def pieces(self, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        """Yield the chosen rows of columns of numbers, as float64; NaN where a value is missing."""
        width = sum(math.prod(self.entries[name].shape[1:]) for name in names)
        size = max(16, min(size, WINDOW_BYTES // (_VALUE_BYTES * max(width, len(self._columns)))))
        arrays_of = {name: self._reader(name) for name in names}
        lines, start = self._lines(), 0
        for first in range(0, len(rows), size):
            chosen = rows[first : first + size]
            records = []
            for row in chosen.tolist():
                number, line = self._line(lines, row - start)
                records.append(columns_of(self._parsed(line, number)))
                start = row + 1
            yield chosen, {name: read(records, chosen) for name, read in arrays_of.items()}

    def place(self, row: int) -> str:
        """Return the row's line, or its number if the file has empty lines."""
        return f"row {row}" if self._has_blank_lines else f"line {row + 1}"

    def _lines(self) -> Iterator[tuple[int, str]]:
        """Yield the number and the text of each line that is not empty."""
        with self._opened() as lines:
            for number, line in enumerate(lines, 1):
                if not line.isspace():
                    yield number, line

    def _line(self, lines: Iterator[tuple[int, str]], skipped: int) -> tuple[int, str]:
        for _ in range(skipped):
            next(lines, None)
        line = next(lines, None)
        if line is None:
            raise self.error("it was cut short while it was read: copy it again")
        return line

    @contextmanager
    def _opened(self) -> Iterator[Iterator[str]]:
        try:
            with open_text(self.path) as file:
                yield short_lines(self.path, file)
        except UnicodeDecodeError as error:
            raise self.error("it is neither UTF-8 nor UTF-16 text: save it as UTF-8") from error
        except (OSError, EOFError, zlib.error) as error:
            raise self.error(f"it is not readable ({error}): copy it again") from error

    def _parsed(self, line: str, number: int) -> Any:
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = str(error).split(": line")[0]
            raise self.error(
                f"line {number} is no JSON value ({reason}): save one JSON object per line"
            ) from error

    def _scan(self, record: Any, place: str) -> None:
        """Note the columns of one row, and keep the texts."""
        if not isinstance(record, dict):
            raise self.error(f"{place} holds no JSON object: save one JSON object per line")
        for name, value in record.items():
            if value is None or value == [] or value == {} or name in self._other:
                continue
            column = self._columns.get(name) or self._new(name, value, place)
            if column is None:
                continue
            if column.texts is not None:
                self._keep(column, name, value, place)
            elif (kind := _kind(value)) != column.kind:
                raise self.error(
                    f"{name} holds {_NOUNS[kind]} in {place}, but {_NOUNS[column.kind]} before: "
                    "save values of one kind"
                )
            elif kind == "object" and not value.keys() <= column.keys.keys():
                column.keys.update(dict.fromkeys(value))
                self._require_few(len(column.keys), place)
            elif kind == "list" and len(value) != column.width:
                if name != _CHOICES:
                    raise self.error(
                        f"{name} holds {len(value)} values in {place}, but {column.width} before: "
                        "give as many values in every line"
                    )
                column.width = max(column.width, len(value))

    def _new(self, name: str, value: Any, place: str) -> _Column | None:
        """Return a new column for its first value, or None for values that are not read."""
        kind = _kind(value)
        if is_reserved(name) or name.lower() in PATH_NAMES:
            kind = "text" if kind in ("number", "bool") else kind
        if kind == "other":
            self._other.add(name)
            return None
        column = _Column(kind, texts=[] if kind == "text" else None)
        if kind == "list":
            column.width = len(value)
        elif kind == "object":
            column.keys = dict.fromkeys(value)
        self._columns[name] = column
        self._require_few(max(len(self._columns), column.width, len(column.keys)), place)
        return column

    def _require_few(self, columns: int, place: str) -> None:
        if columns > _MOST_COLUMNS:
            raise self.error(
                f"it has more than {_MOST_COLUMNS:,} columns by {place}: give one name to the "
                "values that belong together"
            )

    def _keep(self, column: _Column, name: str, value: Any, place: str) -> None:
        """Keep a text, label, id or group as text."""
        texts = column.texts
        if texts is None or isinstance(value, (list, dict)):
            raise self.error(f"{name} holds a list or an object in {place}: give one value per row")
        texts.extend([""] * (self._n - len(texts)))
        if isinstance(value, str):
            column.has_texts = True
            is_long = not (is_reserved(name) or name.lower() in PATH_NAMES)
            texts.append(value[:_KEPT] if is_long else value)
            return
        column.has_texts |= isinstance(value, bool)
        column.has_fractions |= isinstance(value, float)
        texts.append(str(value).lower() if isinstance(value, bool) else str(value))

    def _entry(self, column: _Column) -> Entry:
        if column.texts is not None:
            if column.has_texts:
                return Entry((self._n,), np.dtype(str))
            is_whole = not column.has_fractions and all(map(_is_int64, column.texts))
            return Entry((self._n,), np.dtype(np.int64 if is_whole else float))
        if column.kind == "list":
            return Entry((self._n, column.width), np.dtype(float))
        if column.kind == "object":
            keys = tuple(column.keys)
            return Entry((self._n, len(keys)), np.dtype(float), class_names=keys)
        return Entry((self._n,), np.dtype(bool if column.kind == "bool" else float))

    def _reader(self, name: str) -> Callable[[Sequence[Mapping[str, Any]], Rows], AnyArray]:
        """Return a function from the records of some rows to the values of a column."""
        column = self._columns[name]
        keys, width = tuple(column.keys), column.width
        # A missing choice is impossible; another missing value is not known.
        filler = -math.inf if name == _CHOICES and column.kind == "list" else math.nan
        pick = itemgetter(*keys) if len(keys) > 1 else None

        def cell_of(value: Any) -> Any:
            if column.kind == "list":
                values = value or []
                return values if len(values) == width else [*values, *[filler] * width][:width]
            if column.kind == "object":
                if pick is not None and value and len(value) == len(keys):
                    return pick(value)
                return [(value or {}).get(key) for key in keys]
            return value

        def values(records: Sequence[Mapping[str, Any]], rows: Rows) -> Float64s:
            cells = [cell_of(record.get(name)) for record in records]
            try:
                array: Float64s = np.array(cells, dtype=np.float64)
            except (ValueError, TypeError, OverflowError):
                wrong = next((i for i, cell in enumerate(cells) if not _are_numbers(cell)), 0)
                raise self.error(
                    f"{name} of {self.place(int(rows[wrong]))} holds a value that is no number of "
                    "64 bits: save it as a number"
                ) from None
            return array

        return values


def columns_of(record: Any) -> Any:
    """Return the columns of one line, whichever tool wrote it.

    Known are the answers of Hugging Face pipelines (``top_k=None``, zero-shot classification) and
    the samples of lm-evaluation-harness, where the log-likelihoods of the choices are logits.
    Another line is returned as it is.
    """
    if isinstance(record, list):
        answers = record[0] if len(record) == 1 and isinstance(record[0], list) else record
        return {_PROBABILITIES: _scores(answers)} if _are_scores(answers) else record
    if not isinstance(record, dict):
        return record
    choices = record.get("filtered_resps")
    if isinstance(choices, list) and choices and all(map(_is_likelihood, choices)):
        return {
            "id": record.get("doc_id"),
            "label": record.get("target"),
            _CHOICES: [float(choice[0]) for choice in choices],
        }
    labels, scores = record.get("labels"), record.get("scores")
    if isinstance(labels, list) and isinstance(scores, list) and len(labels) == len(scores):
        rest = {key: record[key] for key in record if key not in ("labels", "scores")}
        return rest | {_PROBABILITIES: dict(sorted(zip(map(str, labels), scores, strict=True)))}
    lists = [name for name, value in record.items() if _are_scores(value)]
    if len(lists) == 1:
        # The answer of a pipeline in a line of one's own: its name need not be a known one.
        record = {key: value for key, value in record.items() if key != lists[0]} | {
            _PROBABILITIES: _scores(record[lists[0]])
        }
    return record


def _are_scores(value: Any) -> bool:
    """Return whether a value is a list of pairs of a label and its score."""
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(isinstance(pair, dict) and {"label", "score"} <= pair.keys() for pair in value)
    )


def _scores(pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the scores by label; pipelines sort them by score, which is no order of classes."""
    return dict(sorted((str(pair["label"]), pair["score"]) for pair in pairs))


def _is_likelihood(value: Any) -> bool:
    """Return whether a value is a log-likelihood, and whether decoding would give this choice."""
    if not (isinstance(value, list) and len(value) == 2):
        return False
    try:
        return math.isfinite(float(value[0])) and str(value[1]) in ("True", "False")
    except (TypeError, ValueError, OverflowError):
        return False


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "text"
    values = value.values() if isinstance(value, dict) else value
    if all(v is None or (isinstance(v, (int, float)) and not isinstance(v, bool)) for v in values):
        return "object" if isinstance(value, dict) else "list"
    return "other"


def _are_numbers(cell: Any) -> bool:
    try:
        np.array(cell, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        return False
    return True


def _is_int64(text: str) -> bool:
    return text != "" and abs(int(text)) < 1 << 63
