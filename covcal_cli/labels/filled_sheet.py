"""Read a sheet with filled-in labels, and join it to a draw.

A spreadsheet or an annotation tool may have changed the sheet. Such a sheet is either read
correctly, or causes an error.
"""

import base64
import math
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL, Integers, Rows
from covcal_cli.data.classes import is_plain_number
from covcal_cli.data.rows import GROUP_PREFIX
from covcal_cli.errors import CovcalError, shown
from covcal_cli.formats.features import SPLITS, FeatureFile
from covcal_cli.labels.draws import Batch, Draw, is_possible
from covcal_cli.labels.score import region_of, words_of
from covcal_cli.labels.sheet import (
    CHOICE,
    COLUMNS,
    HASH_BYTES,
    LABEL_PREFIX,
    LETTERS,
    NUMBERS,
    STEPS,
    Cells,
    Share,
    Sheet,
    facts_of,
    fingerprint,
    hash_of,
    is_number,
    rows_of,
    unescaped,
)
from covcal_cli.labels.tasks import LabelTable, read_tables

_REMEDY = "give the CSV file that covcal pick wrote, with the column 'label' filled in"
_AGAIN = "sort whole lines, never a single column; or fill in the CSV of covcal pick again"
_NEEDED = ("id", "inclusion", "draw")  # Columns that every sheet has, besides the labels.
_RELATIVE = 1e-3  # Largest relative error from rounding in a spreadsheet.
_LINE = re.compile(r"b([1-9]\d{0,8})_(\d{1,9})_([\w-]{27})(?::(.+))?", re.ASCII)
_FACTS = re.compile(
    r"([1-9]\d{0,8}):([1-9]\d{0,17}):([tve]{1,3}):(\d{1,18}):(.+):([0-9a-f]{16})(?::(\w+))?"
)
# Pandas writes class numbers as 2.0 if a column has empty cells.
_WHOLE = re.compile(r"(\d+)[.,]0*")
_WIDEST = 20  # Leading zeros of an id are restored up to this number of digits.
# Significance level of the test for sorted labels.
_LEAST_CHANCE = 1e-3
_RAREST = 1e-4  # Significance level of the test for labels that were moved up or down.
_MOST_STEPS = 5  # Labels may have moved up or down by at most this many lines.


def read_sheet(path: Path) -> Sheet:
    """Read a sheet that one person filled in."""
    return read_sheets(path)[0]


def read_sheets(path: Path) -> list[Sheet]:
    """Read a sheet or exported tasks.

    Return one sheet per labeller. Raises `CovcalError` if the file is not a sheet, a row is missing
    or repeated, or a cell was changed.
    """
    return [_sheet(table) for table in read_tables(path)]


def _sheet(table: LabelTable) -> Sheet:
    table = _with_our_names(table)
    path, columns = table.path, table.columns
    several = {
        name.removeprefix(LABEL_PREFIX): [cell.strip() for cell in cells]
        for name, cells in columns.items()
        if name.startswith(LABEL_PREFIX) and not {"label", CHOICE} & set(columns)
    }
    _require_columns(table, has_labels=bool(several) or bool({"label", CHOICE} & set(columns)))
    ids = list(columns["id"])
    twice = [row_id for row_id, count in Counter(ids).items() if count > 1]
    if twice:
        raise CovcalError(f"{path}: id {shown(twice[0])} occurs twice: keep one of the lines")

    # Step 1: read the column ``draw``.
    lines = _draw_cells(table)
    number = _batch_number(path, lines)
    of_draw = [line.facts for line in lines if line.facts is not None]
    batch, data, share = _batch(path, list(dict.fromkeys(of_draw)) if table.is_export else of_draw)
    places = np.array([line.place for line in lines], dtype=np.int64)
    if not table.is_export:
        _require_whole(path, places, batch, share)

    # Step 2: check each id with the hash in its line.
    strata, probabilities, confidences = [], [], []
    facts = facts_of(batch, data, share)
    for line, cell in enumerate(lines):
        for row_id in _written_ids(ids[line]):
            if cell.check == hash_of(number, cell.place, row_id, cell.numbers, facts):
                ids[line] = row_id
                break
        else:
            raise CovcalError(
                f"{path}: the cells 'id' and 'draw' in {table.place(line)} belong to different "
                f"rows: {_AGAIN}"
            )
        stratum, probability, steps = struct.unpack(NUMBERS, cell.numbers)
        strata.append(stratum)
        probabilities.append(probability)
        confidences.append(steps / STEPS)
    _require_unmoved(table, ids, probabilities, confidences)

    sheet = Sheet(
        path,
        number,
        batch,
        data,
        ids,
        np.array(probabilities),
        np.array(strata, dtype=np.int64),
        [unescaped(cell.strip()) for cell in columns.get("predicted", ())],
        np.array(confidences),
        [""] * len(ids) if several else _labels(table),
        places if share is None else np.searchsorted(share.places(batch.drawn), places),
        cells={
            name: column
            for name, column in columns.items()
            if name not in COLUMNS and name.removeprefix(LABEL_PREFIX) not in several
        },
        share=share,
        is_export=table.is_export,
        several=several,
    )
    if share is None and len(sheet) == batch.drawn:
        _require_possible(sheet)
    return sheet


def _with_our_names(table: LabelTable) -> LabelTable:
    ours = {name.lower() for name in table.columns if name.lower() in (*_NEEDED, "label")}
    ours -= set(table.columns)
    columns = {n.lower() if n.lower() in ours else n: c for n, c in table.columns.items()}
    return replace(table, columns=columns)


def _require_columns(table: LabelTable, *, has_labels: bool) -> None:
    lacking = [name for name in _NEEDED if name not in table.columns]
    if not has_labels:
        lacking.append("label")
    if lacking:
        raise CovcalError(f"{table.path} has no column {lacking[0]}: {_REMEDY}")


@dataclass(frozen=True)
class _DrawCell:
    batch: int  # Number of the batch, from 0.
    place: int  # Position of the row in the draw, from 0.
    numbers: bytes  # Stratum, inclusion probability and confidence.
    check: bytes  # Hash of the line.
    facts: str | None  # Description of the draw; None except in one line of the sheet.


def _draw_cells(table: LabelTable) -> list[_DrawCell]:
    cells = []
    for line, cell in enumerate(table.columns["draw"]):
        parts = _LINE.fullmatch(cell.strip())
        if parts is None:
            raise CovcalError(
                f"{table.path}: covcal pick did not write {shown(cell)} into the column 'draw' of "
                f"{table.place(line)}: {_REMEDY}"
            )
        batch, place, proof, facts = parts.groups()
        raw = base64.urlsafe_b64decode(proof + "=" * (-len(proof) % 4))
        numbers, check = raw[:-HASH_BYTES], raw[-HASH_BYTES:]
        cells.append(_DrawCell(int(batch) - 1, int(place) - 1, numbers, check, facts))
    return cells


def _batch_number(path: Path, lines: Sequence[_DrawCell]) -> int:
    number = lines[0].batch
    for other in (line.batch for line in lines):
        if other != number:
            raise CovcalError(
                f"{path} holds rows of several batches ({number + 1} and {other + 1}): "
                "give one file per batch"
            )
    return number


def _require_unmoved(
    table: LabelTable,
    ids: Sequence[str],
    probabilities: Sequence[float],
    confidences: Sequence[float],
) -> None:
    for line, cell in enumerate(table.columns["inclusion"]):
        _require_near(table, line, "inclusion", cell, probabilities[line])
    for line, cell in enumerate(table.columns.get("confidence", ())):
        _require_near(table, line, "confidence", cell, confidences[line])
    for line, cell in enumerate(table.columns.get("path", ())):
        if cell.strip() and not unescaped(cell.strip()).replace("\\", "/").endswith(
            ids[line].replace("\\", "/")
        ):
            raise _moved(table.path, table.place(line), "path")


def _written_ids(cell: str) -> Iterator[str]:
    """Yield possible ids of a cell, because some programs turn ids into numbers."""
    yield cell
    yield unescaped(cell)
    text = plain_number(cell.strip())
    for width in range(len(text), _WIDEST + 1) if is_plain_number(text) else ():
        yield text.zfill(width)


def _labels(table: LabelTable) -> list[str]:
    columns = [
        [unescaped(cell.strip()) for cell in table.columns[name]]
        for name in ("label", CHOICE)
        if name in table.columns
    ]
    filled = [column for column in columns if any(column)]
    if len(filled) > 1 and filled[0] != filled[1]:
        raise CovcalError(
            f"{table.path}: the columns 'label' and '{CHOICE}' differ: empty one of these columns"
        )
    return (filled or columns)[0]


def _batch(path: Path, facts: Sequence[str]) -> tuple[Batch, str, Share | None]:
    if len(facts) != 1:
        fault = "the first line, which says how rows were drawn, is missing"
        if facts:
            fault = "several lines say how rows were drawn"
        raise CovcalError(f"{path}: {fault}: put back the lines that covcal pick wrote")
    parts = _FACTS.fullmatch(facts[0])
    splits = () if parts is None else tuple(_split(letter) for letter in parts[3])
    score = None if parts is None else words_of(parts[5])
    share = None if parts is None or parts[7] is None else Share.parse(parts[7])
    is_unknown = parts is not None and (parts[7] is None) != (share is None)
    if parts is None or score is None or is_unknown or len(set(splits)) < len(splits):
        raise CovcalError(
            f"{path}: covcal pick did not write {shown(facts[0])} into the column 'draw': {_REMEDY}"
        )
    return Batch(int(parts[1]), int(parts[2]), int(parts[4]), splits, score), parts[6], share


def _split(letter: str) -> str:
    return next(name for name, code in LETTERS.items() if code == letter)


def _require_whole(path: Path, places: Integers, batch: Batch, share: Share | None) -> None:
    own = np.arange(batch.drawn) if share is None else share.places(batch.drawn)
    if missing := len(np.setdiff1d(own, places)):
        raise CovcalError(
            f"{path}: {missing} of the {len(own)} picked rows are missing: put their lines back. "
            "Leave a label empty if you do not know it"
        )
    if len(places) > len(own):
        raise CovcalError(
            f"{path} has {len(places)} lines for {len(own)} picked rows: remove the lines that "
            "covcal pick did not write"
        )


def joined_sheets(sheets: Sequence[Sheet]) -> Sheet:
    """Join the sheets of several labellers into one sheet with all lines, but without labels."""
    first = sheets[0]
    for sheet in sheets:
        if sheet.share is None and len(sheet) == sheet.batch.drawn:
            return sheet
    line_of: dict[int, tuple[Sheet, int]] = {}
    for sheet in sheets:
        if (sheet.batch, sheet.fingerprint) == (first.batch, first.fingerprint):
            for line, place in enumerate(sheet.draw_places.tolist()):
                line_of.setdefault(place, (sheet, line))
    parts = [line_of[place] for place in sorted(line_of)]
    joined = replace(
        first,
        ids=[sheet.ids[line] for sheet, line in parts],
        inclusion=np.array([sheet.inclusion[line] for sheet, line in parts]),
        stratum=np.array([sheet.stratum[line] for sheet, line in parts], dtype=np.int64),
        predicted=[],
        confidence=np.array([sheet.confidence[line] for sheet, line in parts]),
        labels=[""] * len(parts),
        places=np.arange(len(parts)),
        cells={},
        several={},
    )
    if len(joined) == joined.batch.drawn:
        _require_possible(joined)
    return joined


def _require_near(table: LabelTable, line: int, name: str, cell: str, expected: float) -> None:
    """Raise a CovcalError if a cell differs from `expected` by more than rounding."""
    text = cell.strip().replace(",", ".")
    digits = len(text.rstrip("% ").partition(".")[2])
    if text.endswith("%"):
        text, digits = f"{text.rstrip('% ')}e-2", digits + 2
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    # A spreadsheet may round a number to the decimals on the screen, at least two.
    half = 0.5001 * 10.0**-digits if digits >= 2 else 0.0
    near = abs(value - expected) <= half or math.isclose(value, expected, rel_tol=_RELATIVE)
    if not near:
        raise CovcalError(
            f"{table.path}: {name} in {table.place(line)} is {shown(cell)}, but covcal pick "
            f"wrote {expected:.4g} for this row: {_AGAIN}"
        )


def _moved(path: Path, place: str, name: str) -> CovcalError:
    return CovcalError(f"{path}: the cell {name} in {place} belongs to another row: {_AGAIN}")


def _require_possible(sheet: Sheet) -> None:
    n, population = sheet.batch.drawn, sheet.batch.population
    for_decision = region_of(sheet.batch.score) is not None
    if not is_possible(sheet.inclusion, population, for_decision=for_decision):
        raise CovcalError(
            f"{sheet.path}: the column 'inclusion' cannot come from a draw of {n} of {population} "
            "rows: use the file that covcal pick wrote"
        )


def require_labels_beside_rows(
    sheet: Sheet, columns: Mapping[str, tuple[Sequence[str], Sequence[str]]]
) -> None:
    """Raise a CovcalError if the labels seem to be beside the wrong rows.

    `columns` has the labels and the predicted classes of each label column. Three mistakes are
    found:

    - The label column was sorted alone. Then labels are in alphabetical order, but lines are not.
    - The other columns were sorted without the labels. Then labels agree better with the
      predictions in the original order.
    - Cells were inserted or deleted. Then labels agree better with the predictions some lines above
      or below.
    """
    if sheet.is_export:
        return
    now = before = 0
    for column, (labels, predicted) in columns.items():
        labelled = [line for line in range(len(sheet)) if labels[line]]
        if np.array_equal(sheet.places, np.arange(len(sheet))):
            cells = [labels[line] for line in labelled]
            chance = 2 / _arrangements(cells) * len(columns)
            if _is_sorted(cells) and chance < _LEAST_CHANCE:
                raise CovcalError(
                    f"{sheet.path}: the column {column} was sorted without the other columns: "
                    "undo the sorting, or fill in the labels again"
                )
            for step in (*range(-_MOST_STEPS, 0), *range(1, _MOST_STEPS + 1)):
                if _is_shifted(labels, predicted, step, _RAREST / len(columns) / _MOST_STEPS):
                    side = "low" if step < 0 else "high"
                    lines = "one line" if abs(step) == 1 else f"{abs(step)} lines"
                    raise CovcalError(
                        f"{sheet.path}: the labels in the column {column} seem to be {lines} too "
                        f"{side}: move the labels back"
                    )
            continue
        for line in labelled:
            stayed = _is_same_class(labels[int(sheet.places[line])], predicted[line])
            moved = _is_same_class(labels[line], predicted[line])
            now, before = now + (moved and not stayed), before + (stayed and not moved)
    if np.array_equal(sheet.places, np.arange(len(sheet))):
        return
    if _sign_test(now, now + before) > 0.01:
        raise CovcalError(
            f"{sheet.path}: the lines are not in the order of covcal pick, so the labels may "
            "belong to other lines: sort whole lines by the column 'draw'"
        )


def _is_shifted(
    labels: Sequence[str], predicted: Sequence[str], step: int, least_chance: float
) -> bool:
    """Return whether labels agree far better with the predictions `step` lines below."""
    moves = stays = 0
    for line, label in enumerate(labels):
        other = line + step
        here = _is_same_class(label, predicted[line])
        there = 0 <= other < len(labels) and _is_same_class(label, predicted[other])
        moves, stays = moves + (there and not here), stays + (here and not there)
    return _sign_test(moves, moves + stays) < least_chance


def require_cells_beside_rows(sheet: Sheet, cells: Cells, predicted: Sequence[str]) -> None:
    """Raise a CovcalError if a kept column seems to be beside the wrong rows.

    `cells` and `predicted` have the columns and the predicted classes of the features file. Numbers
    are not compared, because a spreadsheet may have rounded them.
    """
    for line, cell in enumerate(sheet.predicted):
        if cell and not _is_same_class(cell, predicted[line]):
            raise _moved(sheet.path, f"the row {shown(sheet.ids[line])}", "predicted")
    for name, column in sheet.cells.items():
        own = cells.get(name) or cells.get(name.removeprefix(GROUP_PREFIX)) or ()
        expected = [" ".join(text.split()) for text in own]
        others = set(expected)
        for line, text in enumerate(expected):
            cell = " ".join(unescaped(column[line]).split())
            if cell != text and cell in others and not is_number(cell):
                raise _moved(sheet.path, f"the row {shown(sheet.ids[line])}", name)


def _is_same_class(label: str, name: str) -> bool:
    return label == name or plain_number(label) == name


def plain_number(label: str) -> str:
    """Remove the decimals of a whole number such as 2.0, which some programs add."""
    whole = _WHOLE.fullmatch(label)
    return whole[1] if whole else label


def _is_sorted(labels: Sequence[str]) -> bool:
    try:
        keys = [(float(label.replace(",", ".")), "") for label in labels]
    except ValueError:
        keys = [(0.0, label.casefold()) for label in labels]
    return keys in (sorted(keys), sorted(keys, reverse=True))


def _arrangements(labels: Sequence[str]) -> float:
    logs = math.lgamma(len(labels) + 1)
    logs -= sum(math.lgamma(count + 1) for count in Counter(labels).values())
    return math.exp(min(logs, 700.0))


def _sign_test(hits: int, n: int) -> float:
    """Return the probability of at least `hits` heads in n tosses of a coin."""
    return float(sum(math.comb(n, k) for k in range(hits, n + 1)) / 2**n)


def with_batches(file: FeatureFile, before: Draw, sheets: Iterable[Sheet]) -> Draw:
    """Add the picked rows of several sheets to a draw, but not their labels."""
    by_number: dict[int, list[Sheet]] = {}
    for sheet in sheets:
        by_number.setdefault(sheet.number, []).append(sheet)
    for number in sorted(by_number):
        before, _ = with_batch(file, before, joined_sheets(by_number[number]))
    return before


def with_batch(file: FeatureFile, before: Draw, sheet: Sheet) -> tuple[Draw, Rows]:
    """Add the picked rows of a sheet to a draw, but not their labels.

    Return the new draw, and the target rows of the sheet. Raises `CovcalError` if the sheet belongs
    to other data, an earlier batch is missing, or a later batch is already in the file.
    """
    batch, target = sheet.batch, file.require_target()
    if sheet.fingerprint != fingerprint(file):
        raise CovcalError(
            f"{sheet.path} was picked from other data than {file.path}: give the original data "
            f"file, or pick again from {file.path}"
        )
    rows = rows_of(target, sheet)
    outside = rows[~np.isin(target.split[rows], [SPLITS.index(name) for name in batch.splits])]
    if len(outside):
        row = outside[:1]
        raise CovcalError(
            f"{sheet.path}: {shown(target.ids(row)[0])} is a {SPLITS[target.split[row[0]]]} "
            f"row of {file.path}, but rows were picked only from "
            f"{' and '.join(batch.splits)}: do not change the splits"
        )
    there = len(before.batches)
    if sheet.number > there:
        raise CovcalError(
            f"{sheet.path} is batch {sheet.number + 1}, but {file.path} does not have batch "
            f"{there + 1} yet: give the sheet of batch {there + 1} first"
        )
    if sheet.number < there:
        same = before.batches[sheet.number] == batch
        if not same or not set(rows) <= set(before.rows[before.batch == sheet.number]):
            raise CovcalError(
                f"{sheet.path} differs from batch {sheet.number + 1} of {file.path}: pick a new "
                "batch from this file"
            )
        return before, rows
    if len(rows) < batch.drawn:
        others = "the tasks that covcal pick wrote"
        if sheet.share is not None:
            others = f"the sheets of all {sheet.share.labellers} labellers"
        raise CovcalError(
            f"{sheet.path} holds only {len(rows)} of the {batch.drawn} picked rows: give "
            f"{others} in the same command"
        )
    left = target.count(*batch.splits) - len(before.rows)
    is_new = not np.isin(rows, before.rows).any()
    # For evaluate, all rows are equally likely, so batches may be drawn and added in any order.
    is_stale = batch.population > left if batch.is_for_evaluate else batch.population != left
    if is_stale or not is_new or (there and before.batches[0].splits != batch.splits):
        raise CovcalError(
            f"{sheet.path} was picked before other rows of {file.path} were labelled: run covcal "
            f"pick again ({left} rows are left)"
        )
    added = Draw(
        rows=rows,
        inclusion=sheet.inclusion,
        batch=np.full(len(rows), there),
        stratum=sheet.stratum,
        labels=np.full(len(rows), UNKNOWN_LABEL),
        batches=(batch,),
    )
    return Draw.joined([before, added], (*before.batches, batch)), rows
