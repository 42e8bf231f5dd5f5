"""The batches of a file: those that its marks hold, and those of sheets that join them.

A batch is drawn from what the earlier ones left, and what it says holds only after those; so they
join in the order in which they were drawn, and one that did not know of another is refused.
"""

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL, AnyArray, Rows
from covcal_cli.errors import CovcalError, shown
from covcal_cli.formats.features import SPLITS, Domain, FeatureFile
from covcal_cli.formats.writer import utf8
from covcal_cli.labels.draws import Draw
from covcal_cli.labels.sheet import Sheet, fingerprint


def rows_of(target: Domain, sheet: Sheet) -> Rows:
    """Return the target rows of a sheet's ids, in its order, shape (m,) int64.

    Raises
    ------
    CovcalError
        If an id is that of no row, or of several.
    """
    ids = target.id_bytes(np.arange(target.n, dtype=np.int64))
    wanted = utf8([row.id for row in sheet.rows])
    order = np.argsort(ids, kind="stable")
    first, last = (np.searchsorted(ids, wanted, side, sorter=order) for side in ("left", "right"))
    for place in np.flatnonzero(last - first != 1)[:1]:
        known = shown(sheet.rows[place].id)
        if last[place] == first[place]:
            example = shown(target.ids(np.zeros(1, dtype=np.int64))[0])
            raise CovcalError(
                f"{sheet.path}: {target.path} has no target row {known}, its first is {example}: "
                "keep the column id as covcal pick wrote it"
            )
        raise CovcalError(
            f"{sheet.path}: several target rows of {target.path} have the id {known}, and a label "
            "is put in by id: extract again with ids that are unique"
        )
    return np.asarray(order[first], dtype=np.int64)


def with_batch(file: FeatureFile, before: Draw, sheet: Sheet) -> Draw:
    """Return the draw with the batch of a sheet, without labels, unless it has that batch already.

    Raises
    ------
    CovcalError
        If the sheet is of other data, or of a draw that did not know the batches that are there.
    """
    draw, target = sheet.draw, file.require_target()
    if draw.fingerprint != fingerprint(file):
        raise CovcalError(
            f"{sheet.path} was picked from other data than {file.path} holds: name the file that "
            "it was picked from, or pick from this one"
        )
    rows = rows_of(target, sheet)
    outside = rows[~np.isin(target.split[rows], [SPLITS.index(name) for name in draw.batch.splits])]
    if len(outside):
        row = outside[:1]
        raise CovcalError(
            f"{sheet.path}: {shown(target.ids(row)[0])} is a {SPLITS[target.split[row[0]]]} row of "
            f"{file.path}, and rows were picked from {' and '.join(draw.batch.splits)} alone: a "
            "calibration must not be fitted to rows that evaluate judges"
        )
    known = len(before.batches)
    if draw.number > known:
        raise CovcalError(
            f"{sheet.path} is batch {draw.number + 1}, and batch {known + 1} is not in {file.path} "
            "yet: give the sheet of that one first"
        )
    if draw.number < known:
        same = before.batches[draw.number] == draw.batch
        if not same or set(before.rows[before.batch == draw.number]) != set(rows):
            raise CovcalError(
                f"{sheet.path} is another batch {draw.number + 1} than the one that {file.path} "
                "holds, and did not know of it: pick again, which goes on after that one"
            )
        return before
    left = target.count(*draw.batch.splits) - len(before.rows)
    is_new = not np.isin(rows, before.rows).any()
    if (
        draw.batch.population != left
        or not is_new
        or (known and before.batches[0].splits != draw.batch.splits)
    ):
        raise CovcalError(
            f"{sheet.path} was drawn from {draw.batch.population} rows that other batches had left "
            f"than {file.path} holds, which leave {left}: pick again, which goes on after those"
        )
    m = len(rows)
    order = np.argsort(np.concatenate([before.rows, rows]))

    def joined(old: AnyArray, new: AnyArray) -> AnyArray:
        return np.concatenate([old, new])[order]

    return Draw(
        rows=joined(before.rows, rows),
        inclusion=joined(before.inclusion, np.array([row.inclusion for row in sheet.rows])),
        batch=joined(before.batch, np.full(m, known)),
        stratum=joined(before.stratum, np.array([row.stratum for row in sheet.rows])),
        labels=joined(before.labels, np.full(m, UNKNOWN_LABEL)),
        batches=(*before.batches, draw.batch),
    )
