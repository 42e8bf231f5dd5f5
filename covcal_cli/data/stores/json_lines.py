"""Read ``.jsonl`` files in two passes.

The first pass counts rows and reads texts. The second pass reads numbers in blocks.

Each line is a JSON object with the columns of one row. A list or an object of numbers becomes a row
of an array with two axes. `json_layouts` reads the lines of other tools. A ``.json`` file is a list
of objects.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from covcal_cli.arrays import AnyArray, Float64s, Rows
from covcal_cli.data.labels import IN_CASE, LABEL_NAMES, differing_in_case
from covcal_cli.data.output_columns import MAY_BE_OUTPUT
from covcal_cli.data.rows import PATH_NAMES, is_reserved
from covcal_cli.data.stores.json_layouts import (
    CHOICES,
    PROBABILITIES,
    AnswerCounts,
    Choices,
    beside_answer,
    columns_of,
    find_sampling,
    find_tokens,
)
from covcal_cli.data.stores.store import (
    LONGEST_LINE,
    WINDOW_BYTES,
    Entry,
    Piece,
    Store,
    cut_utf8,
    open_text,
    short_lines,
    windows,
)
from covcal_cli.errors import CovcalError
from covcal_cli.records import unique_keys

_DECODER, _STRICT_DECODER = json.JSONDecoder(), json.JSONDecoder(object_pairs_hook=unique_keys)
_CHUNK = 1 << 16  # Number of characters of a list to read at once.
# Limits for the numbers that stay in memory: rows per block, columns, and bytes.
_BLOCK, _WIDEST_KEPT, _MOST_KEPT = 256, 32, 128 << 20
_VALUE_BYTES = 64  # Memory of a number and its key in Python, in bytes.
# A text is cut to this number of characters, unless it is a label, an id or a path.
_KEPT = 257
_MOST_COLUMNS = 100_000
# Python types of the values in a list of numbers or an object of numbers.
_NUMBERS = frozenset((int, float, type(None)))
_NOUNS = {
    "number": "a number",
    "bool": "true or false",
    "text": "a text",
    "list": "a list of numbers",
    "object": "an object of numbers",
    "other": "values that are not numbers",
}


@dataclass
class _Column:
    kind: str  # One of "number", "bool", "text", "list" and "object".
    is_named: bool  # Whether the column has labels, ids or paths.
    texts: list[str] | None = None  # Texts of the rows that were read.
    width: int = 0  # Length of lists.
    keys: dict[str, None] = field(default_factory=dict)
    fault: str = ""  # Error message for lists of different lengths.
    has_texts: bool = False
    has_fractions: bool = False


class JSONLinesStore(Store):
    """The columns of a file of JSON lines."""

    is_table = True

    def __init__(self, path: Path, choices: Sequence[str] = ()) -> None:
        self.path = path
        self._is_list = path.name.lower().removesuffix(".gz").endswith(".json")
        self._unit = "entry" if self._is_list else "line"
        self.choices = tuple(choices)  # Possible answers in a log of tokens.
        self._read_columns()
        self.has_logprobs = self._answers.lines > 0
        if self.has_logprobs and not self.choices:
            self.choices = self._labels()
            self._read_columns()
        if 0 < self._answers.without == self._answers.lines:
            raise self.error(
                f"no {self._unit} has a probability for any of the answers "
                f"{', '.join(self.choices)}: spell the answers in --choices as the model does"
            )
        if self.has_logprobs:
            self.notes = tuple(self._answers.notes(self.choices))
        self.entries = {name: self._entry(column) for name, column in self._columns.items()}
        self.ignored = tuple(sorted(self._other))

    def _read_columns(self) -> None:
        self._n = 0
        self._columns: dict[str, _Column] = {}
        self._other: set[str] = set()  # ignored columns
        self._answers, self._question = AnswerCounts(), Choices(self.choices)
        self._has_blank_lines = False
        self._kept: list[dict[str, AnyArray]] = []  # The numeric values of the first rows.
        self._kept_bytes = 0
        without: list[int] = []  # lines without tokens
        records: list[Any] = []
        n_characters = 0
        for number, line in self._lines():
            n_answers = self._answers.lines
            record = self._columns_of(line, number, self._answers)
            if self._answers.lines == n_answers:
                without.append(number)
            self._number = number
            self._scan(record)
            self._n += 1
            self._has_blank_lines |= number != self._n
            records.append(record)
            n_characters += len(line)
            if n_characters > WINDOW_BYTES:
                self._kept_bytes = _MOST_KEPT + 1
            if len(records) == _BLOCK or n_characters > WINDOW_BYTES:
                self._keep_numbers(records)
                records, n_characters = [], 0
        self._keep_numbers(records)
        if without and self._answers.lines:
            raise self.error(
                f"{len(without)} of {self._n} rows have no token log-probabilities, for "
                f"example {self._unit} {without[0]}: leave these rows out, or ask for them "
                "again with logprobs"
            )
        if self._n == 0:
            raise self.error(
                "the file has no rows and therefore no column names: give one JSON object per "
                "line. For a period without rows, give a CSV with only its header"
            )
        for column in self._columns.values():
            if column.texts is not None:
                column.texts.extend([""] * (self._n - len(column.texts)))

    def _keep_numbers(self, records: list[Any]) -> None:
        start = len(self._kept) * _BLOCK
        if start + len(records) < self._n or self._kept_bytes > _MOST_KEPT:
            return
        rows = np.arange(start, self._n, dtype=np.int64)
        numbers = {
            name: column
            for name, column in self._columns.items()
            if column.texts is None and not column.fault
        }
        width = sum(max(1, column.width, len(column.keys)) for column in numbers.values())
        if width > _WIDEST_KEPT:
            self._kept_bytes = _MOST_KEPT + 1
            return
        try:
            block = {name: self._reader(name)(records, rows) for name in numbers}
        except CovcalError:  # A later read of the column raises the same error.
            self._kept_bytes = _MOST_KEPT + 1
            return
        self._kept_bytes += sum(values.nbytes for values in block.values())
        self._kept.append(block)

    def _kept_values(self, name: str, rows: Rows, block: Mapping[str, AnyArray]) -> AnyArray:
        shape, values = self.entries[name].shape[1:], block.get(name)
        if values is not None and values.shape[1:] == shape:
            return np.asarray(values[rows])
        full = np.full((len(rows), *shape), self._filler(name))
        if values is not None:
            full[:, : values.shape[1]] = values[rows]
        return full

    def _filler(self, name: str) -> float:
        """Return NaN for a missing number, or -inf for a missing log-likelihood."""
        impossible = name == CHOICES and self._columns[name].kind == "list"
        return -math.inf if impossible else math.nan

    def _columns_of(self, line: str, number: int, answers: AnswerCounts | None = None) -> Any:
        value = self._parsed(line, number)
        try:
            tokens = find_tokens(value) if "logprob" in line else None
        except ValueError as error:
            raise self.error(
                f"{self._unit} {number} {error}: give natural logarithms of probabilities"
            ) from None
        if tokens is None:
            return columns_of(value)
        columns = beside_answer(value) if isinstance(value, dict) else {}
        if not self.choices:
            self._answers.lines += 1
            return columns
        answer = self._question.answer_of(tokens)
        if answers is not None:
            answers.add(answer, find_sampling(value))
        return columns | {PROBABILITIES: answer.probabilities}

    def _labels(self) -> tuple[str, ...]:
        columns = (name for name in self._columns if name.lower() in LABEL_NAMES)
        labels = {text.strip() for name in columns for text in self.texts(name)} - {""}
        if len(labels) < 2:
            raise self.error(
                "the source needs at least two different right answers: give every source "
                "row its right answer in the field label (the fields are "
                f"{', '.join(self._columns) or 'no other field'}). If you give only a target, "
                "pass the possible answers, for example --choices A B C D"
            )
        if double := differing_in_case(labels):
            raise self.error(
                f"the labels {', '.join(double)} {IN_CASE}: use one spelling for each answer"
            )
        return tuple(sorted(labels))

    def whole(self, name: str) -> AnyArray:
        """Return a whole column. A missing value becomes an empty text or NaN."""
        column, dtype = self._columns[name], self.entries[name].dtype
        if column.texts is None:
            return super().whole(name)
        if dtype.kind == "U":
            return np.array(column.texts, dtype=str)
        return np.array([text or "nan" for text in column.texts]).astype(dtype)

    def texts(self, name: str) -> list[str]:
        """Return a whole column as texts, exactly as in the file."""
        if (texts := self._columns[name].texts) is not None:
            return texts
        if self._columns[name].kind == "number":
            numbers = self.whole(name)
            if not (np.abs(numbers) >= 1 << 53).any():  # Integers below 2^53 are exact in float64.
                return [
                    "" if math.isnan(n) else str(n).removesuffix(".0") for n in numbers.tolist()
                ]
        records = (self._columns_of(line, number) for number, line in self._lines())
        return [_text(record.get(name)) for record in records]

    def cut_texts(self, name: str, width: int) -> tuple[NDArray[np.bytes_], int]:
        """Return a column in UTF-8, and the number of cut texts."""
        records = (self._columns_of(line, number) for number, line in self._lines())
        return cut_utf8((_text(record.get(name)) for record in records), self._n, width)

    def pieces(self, names: Sequence[str], rows: Rows, size: int) -> Iterator[Piece]:
        """Yield rows of columns of numbers, as float64. A missing value becomes NaN."""
        width = sum(math.prod(self.entries[name].shape[1:]) for name in names)
        size = max(16, min(size, WINDOW_BYTES // (_VALUE_BYTES * max(width, len(self._columns)))))
        arrays_of = {name: self._reader(name) for name in names}
        n_kept = int(np.searchsorted(rows, len(self._kept) * _BLOCK))
        for first_row, _, chosen in windows(rows[:n_kept], _BLOCK):
            block = self._kept[first_row // _BLOCK]
            yield (
                chosen,
                {name: self._kept_values(name, chosen - first_row, block) for name in names},
            )
        if n_kept == len(rows):
            return
        lines, start = self._lines(), 0
        for first in range(n_kept, len(rows), size):
            chosen = rows[first : first + size]
            numbered, start = self.taken(lines, start, chosen)
            records = [self._columns_of(line, number) for number, line in numbered]
            yield chosen, {name: read(records, chosen) for name, read in arrays_of.items()}

    def place(self, row: int) -> str:
        """Return the line of a row, or the row number in a file with empty lines."""
        return f"row {row}" if self._has_blank_lines else f"{self._unit} {row + 1}"

    def _lines(self) -> Iterator[tuple[int, str]]:
        with self.readable("it is not readable", "copy it again"), open_text(self.path) as file:
            lines = self._items(file) if self._is_list else short_lines(self.path, file)
            for number, line in enumerate(lines, 1):
                if not line.isspace():
                    yield number, line

    def _items(self, file: IO[str]) -> Iterator[str]:
        decoder, text, number = json.JSONDecoder(), file.read(_CHUNK).lstrip(), 1
        if not text.startswith("["):
            raise self.error(
                "the file does not hold a list of rows: save a list, or one object per line"
            )
        text = text[1:].lstrip()
        while not text.startswith("]"):
            try:
                _, end = decoder.raw_decode(text)
            except (ValueError, RecursionError) as error:
                # If the list entry is incomplete, read more of the file.
                more = file.read(max(_CHUNK, len(text)))
                if more and len(text) < LONGEST_LINE:
                    text += more
                    continue
                reason = str(error).split(": line")[0]
                raise self.error(
                    f"entry {number} is not valid JSON ({reason}): save the list again"
                ) from error
            yield text[:end]
            number += 1
            text = text[end:].lstrip() or file.read(_CHUNK).lstrip()
            if not text.startswith((",", "]")):
                raise self.error(
                    f"there is no comma or bracket after entry {number - 1}: save the list again"
                )
            text = text.removeprefix(",").lstrip() or file.read(_CHUNK).lstrip()
        if (text[1:] + file.read(_CHUNK)).strip():
            raise self.error(
                "the file has more text after the end of the list: save one list of rows"
            )

    def _parsed(self, line: str, number: int) -> Any:
        text = line.strip()
        try:
            value, end = _DECODER.raw_decode(text)
            if end < len(text):
                raise ValueError("there is more text after the object")
            # The fast decoder drops duplicate keys, so compare the number of keys with the text.
            has_space = " :" in text or "\t:" in text or "\n:" in text or "\r:" in text
            if has_space or text.count('":') != _key_count(value):
                return _STRICT_DECODER.decode(text)
            return value
        except (ValueError, RecursionError) as error:
            reason = str(error).split(": line")[0]
            raise self.error(
                f"{self._unit} {number} is not valid JSON ({reason}): save one JSON object per line"
            ) from error

    @property
    def _here(self) -> str:
        return f"{self._unit} {self._number}"

    def _scan(self, record: Any) -> None:
        if not isinstance(record, dict):
            raise self.error(f"{self._here} is not a JSON object: save one JSON object per line")
        for name, value in record.items():
            column = self._columns.get(name)
            if column and type(value) is str and column.texts and len(column.texts) == self._n:
                column.texts.append(value if column.is_named else value[:_KEPT])
                column.has_texts = True
                continue
            if value == [] and name.lower() in LABEL_NAMES and (not column or column.texts):
                value = "[]"  # An empty list means no label; null means unknown.
            if value is None or (not value and value in ([], {})) or name in self._other:
                continue
            column = column or self._new(name, value)
            if column is None:
                continue
            if column.texts is not None:
                self._keep(column, name, value)
            elif (kind := _kind(value)) != column.kind:
                raise self.error(
                    f"{name} holds {_NOUNS[kind]} in {self._here}, but {_NOUNS[column.kind]} "
                    "in earlier rows: save values of one kind"
                )
            elif kind == "object" and not value.keys() <= column.keys.keys():
                column.keys.update(dict.fromkeys(value))
                self._require_few(len(column.keys))
            elif kind == "list" and len(value) != column.width:
                if name == CHOICES:
                    column.width = max(column.width, len(value))
                    continue
                column.fault = column.fault or (
                    f"{name} holds {len(value)} values in {self._here}, but {column.width} "
                    "in earlier rows: give every line the same number of values"
                )
                if MAY_BE_OUTPUT.search(name):
                    raise self.error(column.fault)

    def _new(self, name: str, value: Any) -> _Column | None:
        kind = _kind(value)
        is_named = is_reserved(name) or name.lower() in PATH_NAMES
        if is_named:
            kind = "text" if kind in ("number", "bool") else kind
        if kind == "names":  # Several labels of a row are stored as JSON.
            kind = "text" if is_named else "other"
        if kind == "other":
            self._other.add(name)
            return None
        column = _Column(kind, is_named, texts=[] if kind == "text" else None)
        if kind == "list":
            column.width = len(value)
        elif kind == "object":
            column.keys = dict.fromkeys(value)
        self._columns[name] = column
        self._require_few(max(len(self._columns), column.width, len(column.keys)))
        return column

    def _require_few(self, columns: int) -> None:
        if columns > _MOST_COLUMNS:
            raise self.error(
                f"the lines up to {self._here} use more than {_MOST_COLUMNS:,} field names: use "
                "the same names in every line"
            )

    def _keep(self, column: _Column, name: str, value: Any) -> None:
        texts = column.texts
        if type(value) is list and column.is_named and _kind(value) == "names":
            value = json.dumps(value, ensure_ascii=False)
        if texts is None or isinstance(value, (list, dict)):
            raise self.error(
                f"{name} holds a list or an object in {self._here}: give one value per row"
            )
        if len(texts) < self._n:
            texts.extend([""] * (self._n - len(texts)))
        if isinstance(value, str):
            column.has_texts = True
            texts.append(value if column.is_named else value[:_KEPT])
            return
        column.has_texts |= isinstance(value, bool)
        column.has_fractions |= isinstance(value, float)
        texts.append(_text(value))

    def _entry(self, column: _Column) -> Entry:
        if column.texts is not None:
            if column.has_texts:
                return Entry((self._n,), np.dtype(str))
            is_whole = not column.has_fractions and all(map(_is_int64, column.texts))
            return Entry((self._n,), np.dtype(np.int64 if is_whole else float))
        if column.fault:
            return Entry((self._n,), np.dtype("V1"))
        if column.kind == "list":
            return Entry((self._n, column.width), np.dtype(float))
        if column.kind == "object":
            keys = tuple(column.keys)
            names = tuple(map(str.strip, keys))
            names = names if len({*names}) == len(keys) else keys
            return Entry((self._n, len(keys)), np.dtype(float), class_names=names)
        return Entry((self._n,), np.dtype(bool if column.kind == "bool" else float))

    def _reader(self, name: str) -> Callable[[Sequence[Mapping[str, Any]], Rows], AnyArray]:
        column = self._columns[name]
        if column.fault:
            raise self.error(column.fault)
        keys, width = tuple(column.keys), column.width
        filler = self._filler(name)
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
                    f"{name} of {self.place(int(rows[wrong]))} does not fit into 64 bits: write a "
                    "smaller number"
                ) from None
            return array

        return values


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _key_count(value: Any) -> int:
    count = 0
    for inner in (value, *value.values()) if type(value) is dict else ():
        if type(inner) is dict:
            count += len(inner)
    return count


def _kind(value: Any) -> str:
    if type(value) is dict and _NUMBERS.issuperset(map(type, value.values())):
        return "object"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "text"
    values = value.values() if isinstance(value, dict) else value
    if _NUMBERS.issuperset(map(type, values)):
        return "object" if isinstance(value, dict) else "list"
    return "names" if isinstance(value, list) and {*map(type, value)} == {str} else "other"


def _are_numbers(cell: Any) -> bool:
    try:
        np.array(cell, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        return False
    return True


def _is_int64(text: str) -> bool:
    return text != "" and abs(int(text)) < 1 << 63
