"""The sheet of rows to label: a CSV that `pick` writes, a person fills in, and `label` reads.

The column ``draw`` proves to which data row a line belongs, because a spreadsheet may sort single
columns, round numbers, or lose lines. A cell of this column holds the line's position, stratum,
inclusion probability and confidence, and a hash of the line. The first cell of the column also
describes how the rows were drawn.

A sheet also shows the columns that ``covcal extract`` kept. The classifier's answers are hidden by
default, because people tend to agree with an answer that they see. A spreadsheet reads a text such
as ``=1+1`` as a formula, so `escaped` puts an apostrophe before the text.

If rows can have several labels, the sheet has a column ``label_NAME`` for each label. In such a
column, a person writes 1, 0 or nothing.
"""

import base64
import hashlib
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL, AnyArray, Float64s, Integers, Rows
from covcal_cli.data.labels import PRESENCE
from covcal_cli.data.rows import GROUP_PREFIX
from covcal_cli.errors import CovcalError, shown
from covcal_cli.formats.features import SPLITS, Domain, FeatureFile
from covcal_cli.formats.writer import utf8
from covcal_cli.labels.draws import Batch
from covcal_cli.labels.score import code_of, in_order
from covcal_cli.labels.tasks import LABEL_STUDIO, doccano_tasks, label_studio_tasks, task_text
from covcal_cli.multilabel import CLASSES

SHEET = Path("to-label.csv")  # the default sheet of pick and label
COLUMNS = ("id", "path", "predicted", "confidence", "label", "inclusion", "draw")
LABEL_PREFIX = "label_"  # Prefix of the label columns, if rows can have several labels.
CHOICE = "choice"  # The column of labels in Label Studio's CSV.
_PROOF_ROWS = 256  # Number of rows from which the hash of the target is computed.
_DIGITS = 16  # Number of hexadecimal digits of a hash.
HASH_BYTES = 6  # Number of bytes of the hash in a line.
NUMBERS = ">IdH"  # `struct` format of stratum, probability and confidence (in steps of 0.0001).
STEPS = 10_000
_SPECIAL = re.compile(r'[",\n\r]')  # A cell with one of these characters must be quoted.
LETTERS = dict(zip(SPLITS, "tve", strict=True))  # A letter for each of train, validation and test.
_CHUNK = 1 << 18
_HIGHEST = np.uint64(48)  # Right shift that leaves the 16 highest bits of a hash.


Cells = Mapping[str, Sequence[str]]  # cells by column
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_ESCAPED = re.compile(r"'+[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+[.,]?\d*|[.,]\d+)(e[+-]?\d+)?%?", re.IGNORECASE | re.ASCII)
# Usual names of columns with the classifier's answer.
_ANSWER = re.compile(
    r"\.?(y_|model_)?(pred(ict(ed|ions?|s)?)?|conf(idence)?|scores?|scored|prob(as?|abilit(y|ies))?"
    r"|logits?)([ _.(].*)?",
    re.IGNORECASE,
)
_TEXT = re.compile(r"([1-9]\d{0,2})of([1-9]\d{0,2})with(\d{1,9})", re.ASCII)


@dataclass(frozen=True)
class Share:
    """The lines that one of several labellers gets.

    Every labeller gets the first lines, so that their agreement can be measured. Every later line
    goes to one labeller.
    """

    labeller: int  # Number of the labeller, from 0.
    labellers: int
    overlap: int  # Number of lines that every labeller gets.

    def places(self, drawn: int) -> Integers:
        """Return the ascending positions of the labeller's lines in a draw."""
        everybody = np.arange(min(self.overlap, drawn))
        own = np.arange(self.overlap + self.labeller, drawn, self.labellers)
        return np.concatenate([everybody, own]).astype(np.int64)

    def __str__(self) -> str:
        """Return a text from which `parse` makes an equal `Share`."""
        return f"{self.labeller + 1}of{self.labellers}with{self.overlap}"

    @classmethod
    def parse(cls, text: str) -> "Share | None":
        """Return the `Share` that a text describes, or None for other texts."""
        parts = _TEXT.fullmatch(text)
        if parts is None or int(parts[1]) > int(parts[2]):
            return None
        return cls(int(parts[1]) - 1, int(parts[2]), int(parts[3]))


@dataclass(frozen=True, eq=False)
class Sheet:
    """The lines of a CSV: the m rows of one batch with their labels."""

    path: Path
    number: int  # number of the batch, from 0
    batch: Batch
    fingerprint: str  # a hash that identifies the target data
    ids: Sequence[str]
    inclusion: Float64s  # (m,).
    stratum: Integers  # (m,).
    predicted: Sequence[str]  # Names of the predicted classes; empty if hidden.
    confidence: Float64s  # (m,); the CSV rounds it to steps of 0.0001.
    labels: Sequence[str]  # Class names, empty until a person fills them in.
    places: Integers  # (m,), original position of each line, from 0.
    paths: Sequence[str] = ()  # Paths of the images, if there are any.
    cells: Cells = field(default_factory=dict)  # The columns that ``covcal extract`` kept.
    answers: Collection[str] = ()  # Columns with the classifier's answer.
    shows_answers: bool = False  # Whether the CSV shows the classifier's answers.
    share: Share | None = None  # The lines of one labeller; None for all lines.
    is_export: bool = False  # Whether an annotation tool wrote the file.
    # The labels by column, if rows can have several labels (`labels` is then empty).
    several: Cells = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def n_labelled(self) -> int:
        """The number of rows that have a label."""
        columns = self.several.values() if self.several else (self.labels,)
        return sum(any(cells) for cells in zip(*columns, strict=True))

    def of_label(self, name: str) -> "Sheet":
        """Return the sheet of one of several labels, with class names instead of 0 and 1.

        Raises `CovcalError` if a cell is not 1, 0 or empty.
        """
        names = {UNKNOWN_LABEL: "", **dict(enumerate(CLASSES))}
        labels = []
        for row_id, cell in zip(self.ids, self.several[name], strict=True):
            if cell.lower() not in PRESENCE:
                raise CovcalError(
                    f"{self.path}: {shown(row_id)} has {shown(cell)} in the column "
                    f"{LABEL_PREFIX}{name}: write 1 if the row has this label, 0 if it does not, "
                    "and nothing if you cannot tell"
                )
            labels.append(names[PRESENCE[cell.lower()]])
        return replace(self, labels=labels, several={})

    def lines(self, lines: Integers) -> "Sheet":
        """Select `lines`, in the given order."""

        def taken(cells: Sequence[str]) -> list[str]:
            return [cells[line] for line in lines] if cells else []

        return replace(
            self,
            ids=taken(self.ids),
            inclusion=self.inclusion[lines],
            stratum=self.stratum[lines],
            predicted=taken(self.predicted),
            confidence=self.confidence[lines],
            labels=taken(self.labels),
            places=np.arange(len(lines)),
            paths=taken(self.paths),
            cells={name: taken(cells) for name, cells in self.cells.items()},
            several={name: taken(cells) for name, cells in self.several.items()},
        )

    def of_labeller(self, share: Share, path: Path) -> "Sheet":
        """Return the sheet of one of several labellers."""
        return replace(self.lines(share.places(len(self))), share=share, path=path)

    @property
    def draw_places(self) -> Integers:
        """The position of each line in the whole draw, from 0, shape (m,)."""
        if self.share is None:
            return self.places
        return np.asarray(self.share.places(self.batch.drawn)[self.places])


def fingerprint(file: FeatureFile) -> str:
    """Return a hash of the target data. A features file and its adapted file have the same hash."""
    target = file.require_target()
    digest = hashlib.sha256()
    for ids in _id_blocks(target):
        digest.update(ids.tobytes())
    rows = np.arange(0, target.n, max(1, target.n // _PROOF_ROWS), dtype=np.int64)
    digest.update(target.logits(rows).tobytes())
    return digest.hexdigest()[:_DIGITS]


def _id_blocks(target: Domain) -> Iterator[AnyArray]:
    for start in range(0, target.n, _CHUNK):
        yield target.id_bytes(np.arange(start, min(start + _CHUNK, target.n), dtype=np.int64))


def sheet_text(sheet: Sheet) -> str:
    """Return the sheet as CSV text."""
    columns = _columns(sheet, fact_columns(sheet))
    lines = [csv_line(map(escaped, columns))]
    lines += [csv_line(map(escaped, cells)) for cells in zip(*columns.values(), strict=True)]
    return "".join(lines)


def tasks_text(sheet: Sheet, images: Sequence[str | None]) -> str:
    """Return the sheet as tasks for an annotation tool.

    `images` has the image of each row as a data URI, or None.
    """
    facts = fact_columns(sheet)
    # Every task says how the rows were drawn, because tools may lose or reorder tasks.
    columns = _columns(sheet, {}) | {
        "draw": [_cell(sheet, line, always=True) for line in range(len(sheet))]
    }
    texts = [task_text(facts or {"id": sheet.ids}, row) for row in range(len(sheet))]
    if sheet.path.suffix.lower() == LABEL_STUDIO:
        return label_studio_tasks(columns, texts, images)
    return doccano_tasks(columns, texts)


def _columns(sheet: Sheet, facts: Cells) -> dict[str, Sequence[str]]:
    columns: dict[str, Sequence[str]] = {"id": sheet.ids}
    if any(sheet.paths):
        columns["path"] = sheet.paths
    columns |= facts
    if sheet.shows_answers:
        columns |= answers_of(sheet)
    if sheet.several:
        columns |= {f"{LABEL_PREFIX}{name}": cells for name, cells in sheet.several.items()}
    else:
        columns["label"] = sheet.labels
    columns |= {
        "inclusion": [repr(value) for value in sheet.inclusion.tolist()],
        "draw": [_cell(sheet, line) for line in range(len(sheet))],
    }
    return columns


def fact_columns(sheet: Sheet) -> dict[str, Sequence[str]]:
    """Return the columns that ``covcal extract`` kept, with unique names."""
    columns: dict[str, Sequence[str]] = {}
    for name, cells in sheet.cells.items():
        if name not in sheet.answers:
            columns[_free_name(name, columns)] = cells
    return columns


def answers_of(sheet: Sheet) -> dict[str, Sequence[str]]:
    """Return the columns with the classifier's answer."""
    columns: dict[str, Sequence[str]] = {}
    for name in sheet.answers:
        columns[_free_name(name, sheet.cells)] = sheet.cells[name]
    return columns | {
        "predicted": sheet.predicted,
        "confidence": [f"{value:.4f}" for value in sheet.confidence],
    }


def _free_name(name: str, others: Collection[str]) -> str:
    free = name.strip() or GROUP_PREFIX
    while free in (*COLUMNS, CHOICE) or (free != name and free in others):
        free = f"{GROUP_PREFIX}{free}"
    return free


def csv_line(cells: Iterable[str]) -> str:
    """Return a line of CSV (RFC 4180)."""
    return ",".join(map(_quoted, cells)) + "\n"


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if _SPECIAL.search(cell) else cell


def _cell(sheet: Sheet, line: int, *, always: bool = False) -> str:
    place, facts = (
        int(sheet.draw_places[line]),
        facts_of(sheet.batch, sheet.fingerprint, sheet.share),
    )
    steps = round(float(sheet.confidence[line]) * STEPS)
    numbers = struct.pack(NUMBERS, int(sheet.stratum[line]), float(sheet.inclusion[line]), steps)
    proof = base64.urlsafe_b64encode(
        numbers + hash_of(sheet.number, place, sheet.ids[line], numbers, facts)
    )
    width = len(str(sheet.batch.drawn))
    cell = f"b{sheet.number + 1}_{place + 1:0{width}d}_{proof.decode().rstrip('=')}"
    return f"{cell}:{facts}" if always or not sheet.places[line] else cell


def facts_of(batch: Batch, data: str, share: Share | None) -> str:
    """Return the text that describes a draw in the first line of a sheet."""
    splits = "".join(LETTERS[name] for name in batch.splits)
    score = code_of(batch.score)
    of_share = "" if share is None else f":{share}"
    return f"{batch.drawn}:{batch.population}:{splits}:{batch.seed}:{score}:{data}{of_share}"


def hash_of(number: int, place: int, row_id: str, numbers: bytes, facts: str) -> bytes:
    """Return the hash of a line."""
    text = f"{number}\0{place}\0{facts}\0{row_id}\0".encode("utf-8", "surrogateescape")
    return hashlib.sha256(text + numbers).digest()[:HASH_BYTES]


def rows_of(target: Domain, sheet: Sheet) -> Rows:
    """Find the target rows of a sheet by id, in the order of the sheet, (m,) int64.

    Raises `CovcalError` if an id belongs to no row, or to several rows.
    """
    wanted = utf8(list(sheet.ids))
    order = np.argsort(wanted, kind="stable")
    rows, counts = np.full(len(wanted), -1, dtype=np.int64), np.zeros(len(wanted), dtype=np.int64)
    hashes, start = id_hashes(wanted), 0
    is_near = np.zeros(1 << 16, dtype=np.bool_)
    is_near[hashes >> _HIGHEST] = True
    for ids in _id_blocks(target):
        # Compare hashes first, because comparing texts is slow.
        keys = id_hashes(ids)
        near = np.flatnonzero(is_near[keys >> _HIGHEST])
        near = near[np.isin(keys[near], hashes)]
        lines = np.searchsorted(wanted, ids[near], sorter=order)
        for row, place in zip(near.tolist(), lines.tolist(), strict=True):
            line = order[min(place, len(order) - 1)]
            if wanted[line] == ids[row]:
                rows[line], counts[line] = start + row, counts[line] + 1
        start += len(ids)
    for line in np.flatnonzero(counts != 1)[:1]:
        row_id = shown(sheet.ids[line])
        if counts[line] == 0:
            example = shown(target.ids(np.zeros(1, dtype=np.int64))[0])
            raise CovcalError(
                f"{sheet.path}: {target.path} has no target row {row_id} (the first row is "
                f"{example}): restore the column 'id' that covcal pick wrote"
            )
        raise CovcalError(
            f"{sheet.path}: several target rows of {target.path} have the id {row_id}: extract "
            "again with unique ids"
        )
    return rows


def id_hashes(ids: AnyArray) -> AnyArray:
    """Return a hash of each id, shape (n,) uint64."""
    width = -(-ids.dtype.itemsize // 8) * 8
    words = ids.astype(f"S{width}").view(np.uint64).reshape(len(ids), width // 8)
    hashes = np.zeros(len(ids), dtype=np.uint64)
    for column in range(words.shape[1]):
        # Padding zeros at the end of an id do not change its hash.
        word = words[:, column] * np.uint64(0x9E3779B97F4A7C15 + 2 * column)
        hashes += word ^ (word >> np.uint64(29))
    return hashes


def escaped(text: str) -> str:
    """Put an apostrophe before a text that a spreadsheet would read as a formula."""
    return f"'{text}" if _FORMULA.match(text) and not is_number(text) else text


def unescaped(cell: str) -> str:
    """Remove the apostrophe that `escaped` put before a text."""
    return cell[1:] if _ESCAPED.match(cell) else cell


def is_number(text: str) -> bool:
    """Return whether a text is a plain number, with a decimal point or comma."""
    return _NUMBER.fullmatch(text) is not None


def kept_cells(target: Domain, rows: Rows) -> dict[str, list[str]]:
    """Return the cells of `rows` in each column that ``covcal extract`` kept, in the same order."""
    return {
        name: [_text(value) for value in in_order(rows, partial(target.column, name))]
        for name in target.columns
    }


def answer_columns(cells: Cells, predicted: Sequence[str]) -> list[str]:
    """Return the columns whose name or values suggest that they hold the classifier's answer."""
    same = list(predicted)
    return [
        name for name, column in cells.items() if _ANSWER.fullmatch(name) or list(column) == same
    ]


def predicted_texts(predicted: Mapping[Any, Sequence[str]]) -> list[str]:
    """Return the predicted class of each row, or its predicted labels, as text.

    `predicted` has the predicted class of each row, for each label.
    """
    if len(predicted) == 1:
        return list(*predicted.values())
    rows = zip(*predicted.values(), strict=True)
    return [
        ", ".join(label for label, name in zip(predicted, row, strict=True) if name == CLASSES[1])
        or "none"
        for row in rows
    ]


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if not isinstance(value, np.floating):
        return str(value)
    if np.isnan(value):
        return ""
    return str(int(value)) if value == np.rint(value) and abs(value) < 1e15 else str(value)
