"""``covcal label``: labels of drawn rows put into the file that they were drawn from.

A whole new file takes the place of the old one, or none does. What was made from the old one still
belongs to the new: it remembers the sha256 of the file before it had any labels. The labels lie
apart from those that ``evaluate`` reads (`covcal_cli.labels.draws`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL
from covcal_cli.data.classes import ClassMap, listed, named_classes
from covcal_cli.errors import CovcalError, shown
from covcal_cli.files import atomic_output, check_output, require_file
from covcal_cli.formats.features import REMEDY, FeatureFile
from covcal_cli.labels.batches import rows_of, with_batch
from covcal_cli.labels.draws import write_copy
from covcal_cli.labels.picked_labels import draw_with_labels
from covcal_cli.labels.sheet import DrawnRow, Sheet, read_sheet


@dataclass(frozen=True)
class Labelling:
    """What was put in."""

    new: int  # labels that were not there
    replaced: int  # labels that were another class
    labelled: int  # rows that have a label now
    empty: int  # rows that were drawn and have none yet
    batches: int  # that they were drawn in


def label(
    path: str | Path,
    sheets: Sequence[str | Path],
    output: str | Path | None = None,
    *,
    partial: bool = False,
    force: bool = False,
) -> Labelling:
    """Put the labels of filled sheets into a features or adapted file, all of them or none.

    Parameters
    ----------
    path : str or Path
        The file that the rows were picked from, or one of the same rows that adapt made.
    sheets : sequence of str or Path
        The CSV files that `pick` wrote, filled in; batches join in the order they were drawn in.
    output : str or Path, optional
        The file to write; `path` itself is replaced when left out.
    partial : bool
        Take a sheet that still has empty labels. Until those follow, the rows that have a label
        stand for their whole batch, as if chance had chosen them.
    force : bool
        Replace labels that are there by others, and an existing output.

    Raises
    ------
    CovcalError
        If a sheet is of another file or draw, or lacks labels; if an id is unknown or a label no
        class or another than before. The file is as it was.
    """
    path, output = Path(path), Path(path if output is None else output)
    require_file(path, remedy=REMEDY)
    is_replaced = output.exists() and output.samefile(path)
    if not is_replaced:
        check_output(output, force=force, inputs=map(Path, sheets))
    read = sorted((read_sheet(Path(one)) for one in sheets), key=lambda one: one.draw.number)
    with atomic_output(output, force=force or is_replaced) as written, FeatureFile(path) as file:
        target, draw = file.require_target(), draw_with_labels(file)
        labels = dict(zip(draw.rows.tolist(), draw.labels.tolist(), strict=True))
        new = replaced = 0
        for sheet in read:
            draw = with_batch(file, draw, sheet)
            given = _classes_of(file, sheet, partial=partial)
            for row, line, found in zip(rows_of(target, sheet), sheet.rows, given, strict=True):
                old = labels.setdefault(int(row), UNKNOWN_LABEL)
                if found in (UNKNOWN_LABEL, old):
                    continue
                if old != UNKNOWN_LABEL and not force:
                    raise CovcalError(
                        f"{sheet.path}: {shown(line.id)} is {shown(file.classes[found])} there and "
                        f"{shown(file.classes[old])} in {path}: correct it, or pass --force to "
                        "replace what the file holds"
                    )
                new, replaced = new + (old == UNKNOWN_LABEL), replaced + (old != UNKNOWN_LABEL)
                labels[int(row)] = found
        values = np.array([labels[row] for row in draw.rows.tolist()], dtype=np.int64)
        write_copy(written, file, replace(draw, labels=values))
        labelled = int(np.count_nonzero(values != UNKNOWN_LABEL))
        return Labelling(new, replaced, labelled, len(values) - labelled, len(draw.batches))


def _classes_of(file: FeatureFile, sheet: Sheet, *, partial: bool) -> list[int]:
    """Return the class of every line of a sheet, `UNKNOWN_LABEL` where a label is empty."""
    empty = sum(not row.label for row in sheet.rows)
    if empty == len(sheet.rows):
        raise CovcalError(f"{sheet.path} has no labels yet: fill its column label in")
    if empty and not partial:
        raise CovcalError(
            f"{sheet.path}: {empty} of {len(sheet.rows)} labels are empty, and estimates are exact "
            "for whole batches alone: fill them in, or pass --partial to take the others for a "
            "random part of the batch until then"
        )
    classes = named_classes(file.classes)
    return [
        _class_of(classes, row, sheet.path) if row.label else UNKNOWN_LABEL for row in sheet.rows
    ]


def _class_of(classes: ClassMap, row: DrawnRow, path: Path) -> int:
    """Return the class that a label names; for none, the error names the nearest."""
    if classes.index(row.label) is not None:
        return classes.require(path, row.label, what="label")
    names = {name.casefold(): name for name in classes.names}
    like = get_close_matches(row.label.casefold(), names, n=1)
    nearest = f"did you mean {names[like[0]]}?" if like else f"take one of {listed(classes.names)}"
    raise CovcalError(
        f"{path}: the label of {shown(row.id)}, {shown(row.label)}, is no class: {nearest}"
    )
