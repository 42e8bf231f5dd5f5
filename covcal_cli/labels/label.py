"""``covcal label``: add the labels of picked rows to the file of these rows.

Either a complete new file replaces the old one, or nothing changes. The new file stores the sha256
of the file without labels. So calibrations and adapted files of the old file also belong to the new
one. These labels are stored separately from the labels that ``evaluate`` reads
(`covcal_cli.labels.draws`).

Several people may label the rows of one batch, each in a sheet (the CSV or page of pick) of their
own. The labels of all sheets are collected. If two people disagree about a row, the user says which
label counts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL, Rows
from covcal_cli.data.classes import ClassMap, listed, named_classes
from covcal_cli.errors import CovcalError, require_one_of, shown
from covcal_cli.files import atomic_output, check_output, require_file
from covcal_cli.formats.features import REMEDY, FeatureFile
from covcal_cli.labels.draws import write_copy
from covcal_cli.labels.filled_sheet import (
    plain_number,
    read_sheets,
    require_cells_beside_rows,
    require_labels_beside_rows,
    with_batch,
    with_batches,
)
from covcal_cli.labels.picked_labels import draw_with_labels
from covcal_cli.labels.score import region_of
from covcal_cli.labels.sheet import Sheet, kept_cells

RESOLVE = ("first", "last", "drop", "majority")
_SHOWN = 5  # the most rows that a message names

Votes = Mapping[int, Mapping[int, int]]  # for each row: the class that each labeller chose


@dataclass(frozen=True)
class Agreement:
    """How often labellers agree on the rows that several of them labelled."""

    rows: int
    agreed: int  # number of rows with the same label by all their labellers
    labellers: int
    kappa: float

    @property
    def kappa_name(self) -> str:
        """Whose kappa it is: Cohen's for two labellers, Fleiss' for more."""
        return "Cohen's kappa" if self.labellers == 2 else "Fleiss' kappa"


@dataclass(frozen=True)
class Labelling:
    """The result of ``covcal label``: how many labels were added, and how many are missing."""

    new: int  # labels of rows that had no label
    replaced: int  # labels that changed the class of a row
    labelled: int  # rows that have a label now
    empty: int  # drawn rows without a label
    batches: int  # number of batches that drew the rows
    for_decision: bool  # whether the last batch was drawn to prove the promise of a decision
    has_source: bool  # whether the file has source rows, which calibrate needs
    # agreement of several labellers; None if no row has two labels
    agreement: Agreement | None = None
    differing: tuple[str, ...] = ()  # the rows in which labellers disagree, and their labels


def label(
    path: str | Path,
    sheets: Sequence[str | Path],
    output: str | Path | None = None,
    *,
    partial: bool = False,
    resolve: str | None = None,
    force: bool = False,
) -> Labelling:
    """Add the labels of filled sheets to a features or adapted file, all of them or none.

    Parameters
    ----------
    path : str or Path
        The file that the rows were picked from, or a file of the same rows that adapt made.
    sheets : sequence of str or Path
        The CSV files of `pick`, filled in, or exports of annotation tools. Batches must be added in
        the order in which they were drawn. Sheets of one batch may contain different rows, or the
        same rows.
    output : str or Path, optional
        The file to write; by default `path` is replaced.
    partial : bool
        Accept rows without a label. Until their labels follow, the labelled rows are assumed to be
        a random part of their batch.
    resolve : str, optional
        The label to use if two sheets disagree, or the file and a sheet. ``first`` and ``last`` use
        the order of the arguments; the file counts as the first. ``majority`` takes the most
        frequent label. ``drop`` uses no label. Without this argument a disagreement is an error.
    force : bool
        Replace labels in the file by those of the sheets, and replace an existing output.

    Raises
    ------
    CovcalError
        If a sheet belongs to another file or draw, was changed, or lacks labels; if a label is not
        a class; or if labellers disagree. The file is then unchanged.
    """
    path, output = Path(path), Path(path if output is None else output)
    if resolve is not None:
        require_one_of("resolve", resolve, RESOLVE)
    require_file(path, remedy=REMEDY)
    is_replaced = output.exists() and output.samefile(path)
    if not is_replaced:
        check_output(output, force=force, inputs=map(Path, sheets))
    read = [sheet for name in sheets for sheet in read_sheets(Path(name))]
    read.sort(key=lambda sheet: sheet.number)
    filled = {sheet.number for sheet in read if any(sheet.labels)}
    with atomic_output(output, force=force or is_replaced) as written, FeatureFile(path) as file:
        draw = draw_with_labels(file)
        old = dict(zip(draw.rows.tolist(), draw.labels.tolist(), strict=True))
        draw = with_batches(file, draw, read)
        votes: dict[int, dict[int, int]] = {}
        for number, sheet in enumerate(read):
            draw, rows = with_batch(file, draw, sheet)
            if sheet.number not in filled:
                raise CovcalError(f"{sheet.path} has no labels yet: fill in the column label")
            classes_of_lines = _classes_of(file, sheet, rows)
            for row, index in zip(rows.tolist(), classes_of_lines, strict=True):
                votes_of_row = votes.setdefault(row, {})
                if index != UNKNOWN_LABEL:
                    votes_of_row[number] = index
        agreement = _agreement(votes, _labellers(read))
        sources = [path, *(sheet.path for sheet in read)]
        new, differing = _resolved(file, votes, old, sources, resolve, agreement, force=force)
        dropped = sum(bool(votes_of_row) and row not in new for row, votes_of_row in votes.items())
        labels = {row: index for row, index in old.items() if row not in votes} | new
        empty = len(votes) - dropped - len(new)
        if empty and not partial:
            names = " and ".join(dict.fromkeys(str(sheet.path) for sheet in read))
            raise CovcalError(
                f"{names}: {empty} of {len(votes)} labels are empty, and estimates are exact "
                "only for whole batches: fill them in. To use the labels so far as a random "
                "part of their batch, pass --partial"
            )
        values = np.array(
            [labels.get(row, UNKNOWN_LABEL) for row in draw.rows.tolist()], dtype=np.int64
        )
        write_copy(written, file, replace(draw, labels=values))
        labelled = int(np.count_nonzero(values != UNKNOWN_LABEL))
        before = {row: index for row, index in old.items() if index != UNKNOWN_LABEL}
        return Labelling(
            new=sum(row not in before for row in new),
            replaced=sum(index != before.get(row, index) for row, index in new.items()),
            labelled=labelled,
            empty=len(values) - labelled,
            batches=len(draw.batches),
            for_decision=region_of(draw.batches[-1].score) is not None,
            has_source=file.source is not None,
            agreement=agreement,
            differing=differing,
        )


def _classes_of(file: FeatureFile, sheet: Sheet, rows: Rows) -> list[int]:
    """Return the class of every line of a sheet; `UNKNOWN_LABEL` where the label is empty."""
    order = np.argsort(rows)
    predicted = np.empty(len(rows), dtype=np.int64)
    predicted[order] = file.require_target().logits(rows[order]).argmax(axis=1)
    require_labels_beside_rows(sheet, [file.classes[index] for index in predicted])
    require_cells_beside_rows(sheet, kept_cells(file.require_target(), rows))
    classes = named_classes(file.classes)
    return [
        _class_of(classes, text, sheet.ids[line], sheet.path) if text else UNKNOWN_LABEL
        for line, text in enumerate(sheet.labels)
    ]


def _class_of(classes: ClassMap, text: str, row_id: str, path: Path) -> int:
    """Return the class of a label. If there is no such class, the error names the nearest one.

    Upper and lower case count only if classes differ in nothing else.
    """
    same = [name for name in classes.names if name.casefold() == text.casefold()]
    for name in (text, plain_number(text), *(same if len(same) == 1 else ())):
        if classes.index(name) is not None:
            return classes.require(path, name, what="label")
    names = {name.casefold(): name for name in classes.names}
    like = get_close_matches(text.casefold(), names, n=1)
    nearest = f"did you mean {names[like[0]]}?" if like else f"use one of {listed(classes.names)}"
    raise CovcalError(
        f"{path}: the label {shown(text)} of {shown(row_id)} is not a class: {nearest}"
    )


def _labellers(sheets: Sequence[Sheet]) -> list[int]:
    """Return who filled in each sheet: the labeller that it was made for, or its position."""
    taken: set[tuple[int, int]] = set()  # pairs of batch and labeller
    labellers = []
    for sheet in sheets:
        labeller = 0 if sheet.share is None else sheet.share.labeller
        while (sheet.number, labeller) in taken:  # copies of one sheet may come from two people
            labeller += 1
        taken.add((sheet.number, labeller))
        labellers.append(labeller)
    return labellers


def _agreement(votes: Votes, labellers: Sequence[int]) -> Agreement | None:
    """Return how often labellers agree; None if no row has two labels.

    `labellers` says who filled in each sheet.

    Kappa is (a - c) / (1 - c). Here a is the share of pairs of labels that agree, and c is the
    share that would agree by chance. For two people, c is computed from each person's class
    frequencies (Cohen 1960). For more people, it is computed from the class frequencies of all of
    them together (Fleiss 1971).
    """
    several = [of_row for of_row in votes.values() if len(of_row) > 1]
    if not several:
        return None
    people = {labellers[number] for of_row in several for number in of_row}
    if len(people) == 2:
        first = min(people)
        pairs = []
        for of_row in several:
            (a, one), (_, other) = sorted(of_row.items(), key=lambda vote: labellers[vote[0]])[:2]
            pairs.append((one, other) if labellers[a] == first else (other, one))
        kappa = _cohens_kappa(pairs)
    else:
        kappa = _fleiss_kappa([Counter(of_row.values()) for of_row in several])
    agreed = sum(len(set(of_row.values())) == 1 for of_row in several)
    return Agreement(len(several), agreed, len(people), kappa)


def _cohens_kappa(labels: Sequence[tuple[int, int]]) -> float:
    n = len(labels)
    first, second = (Counter(side) for side in zip(*labels, strict=True))
    agreed = sum(first_label == second_label for first_label, second_label in labels) / n
    by_chance = sum(count * second[index] for index, count in first.items()) / n**2
    return _kappa(agreed, by_chance)


def _fleiss_kappa(counts: Sequence[Counter[int]]) -> float:
    """Return Fleiss' kappa of `counts`: for each row with two labels or more, labels by class.

    Rows may have different numbers of labels; every row counts the same.
    """
    sizes = [count.total() for count in counts]
    pairs = [
        (sum(k * k for k in count.values()) - size) / (size * (size - 1))
        for count, size in zip(counts, sizes, strict=True)
    ]
    shares = [k / sum(sizes) for k in sum(counts, Counter[int]()).values()]
    return _kappa(sum(pairs) / len(pairs), sum(share**2 for share in shares))


def _kappa(agreed: float, by_chance: float) -> float:
    return 1.0 if by_chance == 1 else (agreed - by_chance) / (1 - by_chance)


def _resolved(
    file: FeatureFile,
    votes: Votes,
    old: Mapping[int, int],
    sources: Sequence[Path],
    resolve: str | None,
    agreement: Agreement | None,
    *,
    force: bool,
) -> tuple[dict[int, int], tuple[str, ...]]:
    """Return the class of every labelled row, and the rows that have different labels.

    `sources` are the file and the sheets. A label in the file counts as that of the first labeller.
    With `force`, sheets replace it.
    """
    labels: dict[int, int] = {}
    differing: dict[int, list[tuple[Path, int]]] = {}
    for row, of_row in votes.items():
        by_source = [(sources[number + 1], index) for number, index in sorted(of_row.items())]
        if old.get(row, UNKNOWN_LABEL) != UNKNOWN_LABEL and not (by_source and force):
            by_source.insert(0, (sources[0], old[row]))
        counts = Counter(index for _, index in by_source).most_common()
        if len(counts) > 1:
            differing[row] = by_source
        if not counts or (len(counts) > 1 and resolve in (None, "drop")):
            continue
        if resolve == "majority" and len(counts) > 1:
            if counts[0][1] == counts[1][1]:
                ids = file.require_target().ids(np.array([row], dtype=np.int64))
                raise CovcalError(
                    f"no label of {shown(ids[0])} has a majority "
                    f"({_said(by_source, file.classes)}): give one more sheet, or pass --resolve "
                    "first, last or drop"
                )
            labels[row] = counts[0][0]
        else:
            labels[row] = by_source[0 if resolve == "first" else -1][1]
    rows = np.array(sorted(differing), dtype=np.int64)
    sentences = tuple(
        f"{shown(row_id)} is {_said(differing[row], file.classes)}"
        for row, row_id in zip(rows.tolist(), file.require_target().ids(rows), strict=True)
    )
    if differing and resolve is None:
        with_file = any(
            source == sources[0] for by_source in differing.values() for source, _ in by_source
        )
        raise CovcalError(_disagreement(sentences, agreement, with_file=with_file))
    return labels, sentences


def _said(by_source: Sequence[tuple[Path, int]], classes: Sequence[str]) -> str:
    return ", ".join(f"{shown(classes[index])} in {source}" for source, index in by_source)


def _disagreement(differing: Sequence[str], agreement: Agreement | None, *, with_file: bool) -> str:
    """Return the message that names the rows on which labellers disagree."""
    beside = (
        ""
        if agreement is None
        else f" of {agreement.rows} ({agreement.kappa_name} {agreement.kappa:.2f})"
    )
    force = ", or --force to replace the labels in the file" if with_file else ""
    return (
        f"labellers disagree on {len(differing)} row{'s' if len(differing) > 1 else ''}{beside}: "
        f"{some_of(differing)}: correct them, or pass --resolve {', '.join(RESOLVE[:-1])} or "
        f"{RESOLVE[-1]}{force}"
    )


def some_of(differing: Sequence[str]) -> str:
    """Return the first few rows on which labellers disagree."""
    more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    return f"{'; '.join(differing[:_SHOWN])}{more}"
