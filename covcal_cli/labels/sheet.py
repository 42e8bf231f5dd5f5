"""The sheet of rows to label: a CSV that `pick` writes, a person fills and `label` reads.

A line of it says by itself which row of which draw of which data it is, so that a sheet that has
been through a spreadsheet, or lost lines there, is either read rightly or refused.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covcal_cli.data.stores.csv import CSVStore
from covcal_cli.errors import CovcalError, shown
from covcal_cli.files import require_file
from covcal_cli.formats.features import SPLITS, FeatureFile
from covcal_cli.labels.draws import Batch

COLUMNS = ("id", "path", "predicted", "confidence", "label", "inclusion", "draw")
_NEEDED = ("id", "label", "inclusion", "draw")
_REMEDY = "give the CSV file that covcal pick wrote, its column label filled in"
_PROOF_ROWS = 256  # whose logits tell data from others with the same ids
_DIGITS = 16  # of a sha256 that are kept
_ROUNDING = 1e-3  # relative, of an inclusion probability
_SPECIAL = re.compile(r'[",\n\r]')  # what a cell must be quoted for
_SPLIT = f"(?:{'|'.join(SPLITS)})"
_PROBABILITY = r"1\.0|0\.\d+|\d(?:\.\d+)?e-\d+"  # as repr has it
_DRAW = re.compile(
    r"batch ([1-9]\d{0,8}) row ([1-9]\d{0,8}) of ([1-9]\d{0,8}) seed (\d{1,18}) from (\d{1,18}) "
    rf"({_SPLIT}(?:\+{_SPLIT})*) rows of ([0-9a-f]+)(?: at ({_PROBABILITY}))? by (.+)"
)


@dataclass(frozen=True)
class SheetDraw:
    """The draw of a batch: what every line of its sheet says of it."""

    number: int  # of the batch, from 0
    batch: Batch
    fingerprint: str  # of the data

    def text(self, row: "DrawnRow") -> str:
        """Return what the line of a row says of its draw, its inclusion probability included."""
        one, splits = self.batch, "+".join(self.batch.splits)
        return (
            f"batch {self.number + 1} row {row.stratum + 1} of {one.drawn} seed {one.seed} from "
            f"{one.population} {splits} rows of {self.fingerprint} at {row.inclusion!r} "
            f"by {one.score}"
        )


@dataclass(frozen=True)
class DrawnRow:
    """A line of a sheet."""

    id: str
    inclusion: float
    stratum: int
    label: str = ""  # a class by name, empty as long as there is none
    predicted: str = ""
    confidence: float = 0.0
    path: str = ""


@dataclass(frozen=True)
class Sheet:
    """The rows of one draw, all of them."""

    path: Path
    draw: SheetDraw
    rows: Sequence[DrawnRow]


def fingerprint(file: FeatureFile) -> str:
    """Return what tells the target of a file from others; the same in what adapt makes of it."""
    target = file.require_target()
    rows = np.arange(target.n, dtype=np.int64)
    digest = hashlib.sha256(target.id_bytes(rows).tobytes())
    digest.update(target.logits(rows[:: max(1, len(rows) // _PROOF_ROWS)]).tobytes())
    return digest.hexdigest()[:_DIGITS]


def sheet_text(sheet: Sheet) -> str:
    """Return the CSV of a sheet, without the column ``path`` where no row has one."""
    with_paths = any(row.path for row in sheet.rows)
    columns = [name for name in COLUMNS if name != "path" or with_paths]
    lines = [csv_line(columns)]
    for row in sheet.rows:
        numbers = {"confidence": f"{row.confidence:.4f}", "inclusion": repr(row.inclusion)}
        cells = vars(row) | numbers | {"draw": sheet.draw.text(row)}
        lines.append(csv_line([cells[name] for name in columns]))
    return "".join(lines)


def csv_line(cells: Iterable[str]) -> str:
    """Return a line of CSV (RFC 4180, line feeds); Python's own leaves a carriage return bare."""
    return ",".join(map(_quoted, cells)) + "\n"


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if _SPECIAL.search(cell) else cell


def read_sheet(path: Path) -> Sheet:
    """Read a sheet, filled or not.

    Raises
    ------
    CovcalError
        If it is no sheet, lacks rows of its draw, holds one twice, or a number was changed.
    """
    require_file(path, remedy=_REMEDY)
    store = CSVStore(path)
    lacking = [name for name in _NEEDED if name not in store.entries]
    if lacking:
        raise CovcalError(f"{path} has no column {lacking[0]}: {_REMEDY}")
    columns = [store.texts(name) for name in _NEEDED]
    draws, rows = [], []
    for number, (known, label, inclusion, draw) in enumerate(zip(*columns, strict=True)):
        found = _DRAW.fullmatch(draw.strip())
        if found is None:
            raise CovcalError(
                f"{path}: {store.place(number)} says {shown(draw)} of its draw, which covcal pick "
                f"did not write: {_REMEDY}"
            )
        batch, row, drawn, seed, population = map(int, found.groups()[:5])
        splits, data, drawn_with, score = found.groups()[5:]
        one = Batch(drawn, population, seed, tuple(splits.split("+")), score)
        draws.append(SheetDraw(batch - 1, one, data))
        probability = _probability(path, store.place(number), inclusion, drawn_with)
        rows.append(DrawnRow(known, probability, row - 1, label.strip()))
    sheet = Sheet(path, draws[0], rows)
    _require_whole(sheet, draws)
    return sheet


def _probability(path: Path, place: str, text: str, drawn: str | None) -> float:
    """Return the inclusion probability of a row, which its draw says too but in older sheets."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise CovcalError(
            f"{path}: the inclusion probability in {place} is {shown(text)}, no number above 0 and "
            "at most 1: keep that column as covcal pick wrote it, with decimal points"
        )
    if drawn is None:
        return value
    # A spreadsheet may have rounded the column; the text of the draw it leaves alone.
    if not math.isclose(value, float(drawn), rel_tol=_ROUNDING):
        raise CovcalError(
            f"{path}: the inclusion probability in {place} is {shown(text)}, and the row was drawn "
            f"with {float(drawn):.4g}: keep that column as covcal pick wrote it"
        )
    return float(drawn)


def _require_whole(sheet: Sheet, draws: Sequence[SheetDraw]) -> None:
    """Refuse what does not hold every row of one draw, once."""
    path, draw = sheet.path, sheet.draw
    other = next((one for one in draws if one != draw), None)
    if other is not None:
        raise CovcalError(
            f"{path} holds rows of several draws (batch {draw.number + 1} and batch "
            f"{other.number + 1}): give a file for each"
        )
    seen: set[str] = set()
    for row in sheet.rows:
        if row.id in seen:
            raise CovcalError(f"{path}: id {shown(row.id)} is there twice: keep one of the lines")
        seen.add(row.id)
    drawn = draw.batch.drawn
    if missing := drawn - len({row.stratum for row in sheet.rows if row.stratum < drawn}):
        raise CovcalError(
            f"{path}: {missing} of the {drawn} rows that were drawn are missing: put their lines "
            "back, with an empty label where there is none"
        )
    if len(sheet.rows) > drawn:
        raise CovcalError(
            f"{path}: {len(sheet.rows)} lines for the {drawn} rows that were drawn: take out the "
            "lines that covcal pick did not write"
        )
