"""``covcal label``: add the labels of picked rows to the features or adapted file.

The new file replaces the old file only when it is complete. The new file stores the hash that the
file had before labelling, so earlier calibrations can still be used. Labels of test rows become
target labels, which ``evaluate`` reads. All other labels are stored with the draw.

Several people may label the rows of a batch. Each person gets a sheet: the CSV or page that `covcal
pick` wrote. If two people disagree about a row, the user chooses a rule (``--resolve``).

If rows can have several labels, a sheet has a column for each label.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL, Labels, Rows
from covcal_cli.data.classes import ClassMap, listed, named_classes
from covcal_cli.data.confidences import ANSWERS
from covcal_cli.errors import CovcalError, percent, require_one_of, shown
from covcal_cli.files import atomic_output, check_output, require_file
from covcal_cli.formats.features import REMEDY, FeatureFile, labels_in
from covcal_cli.labels import filled_sheet
from covcal_cli.labels.draws import NO_DRAW, Draw, read_draw, write_copy
from covcal_cli.labels.picked_labels import draw_with_labels
from covcal_cli.labels.score import predicted_names, region_of
from covcal_cli.labels.sheet import LABEL_PREFIX, Sheet, kept_cells, predicted_texts
from covcal_cli.labels.target_labels import target_labels
from covcal_cli.maths.odds import confidences
from covcal_cli.maths.source_accuracy import RIGHT, WRONG
from covcal_cli.multilabel import CLASSES, current_label, for_each_label

RESOLVE = ("first", "last", "drop", "majority")
_JUDGEMENTS = ("right", "correct", "wrong", "incorrect")
_SHOWN = 5  # Maximum number of rows in a message.
# Labels look random if they agree with the predictions at most `_RANDOM` standard errors above
# chance. The test needs a mean confidence above chance by `_RIGHT` standard errors and
# `_LEAST_GAIN`.
_LEAST_DOUBTED, _RANDOM, _RIGHT, _LEAST_GAIN = 20, 1.5, 4, 0.2

Votes = Mapping[int, Mapping[int, int]]  # class numbers by row and sheet


@dataclass(frozen=True)
class Agreement:
    """The agreement of people who labelled the same rows."""

    rows: int
    agreed: int  # number of rows on which all labellers agree
    labellers: int
    kappa: float

    @property
    def kappa_name(self) -> str:
        """The name of the statistic, Cohen's kappa or Fleiss' kappa."""
        return "Cohen's kappa" if self.labellers == 2 else "Fleiss' kappa"


@dataclass(frozen=True)
class Labelling:
    """The result of ``covcal label``.

    If rows can have several labels, all numbers are sums over the labels.
    """

    new: int  # Number of rows with a new label.
    replaced: int  # Number of rows with a changed label.
    labelled: int  # Number of drawn rows with a label.
    empty: int  # Number of drawn rows without a label.
    cells: int  # Number of rows in the sheets.
    empty_cells: int  # Number of unlabelled rows in the sheets.
    batches: int  # Number of batches in which rows were drawn.
    for_decision: bool  # Whether the last batch was drawn with --for.
    for_evaluate: bool  # Whether the labels belong to test rows, which only evaluate reads.
    has_source: bool  # Whether the file has source rows, which calibrate needs.
    agreement: Agreement | None = None  # None if no row was labelled by two people.
    differing: tuple[str, ...] = ()  # A sentence for each row on which labellers disagree.
    doubts: tuple[str, ...] = ()  # Warnings that the labels may be wrong.
    # The result of each label, if rows can have several labels.
    of_label: Mapping[str, "Labelling"] = field(default_factory=dict)


def label(
    path: str | Path,
    sheets: Sequence[str | Path],
    output: str | Path | None = None,
    *,
    partial: bool = False,
    resolve: str | None = None,
    force: bool = False,
) -> Labelling:
    """Add the labels of filled-in sheets to a features or adapted file: all labels, or none.

    Parameters
    ----------
    path : str or Path
        The file from which the rows were picked, or its adapted file.
    sheets : sequence of str or Path
        The filled-in CSV files of `pick`, or exports of annotation tools. Batches must be added in
        the order in which they were drawn. Sheets of the same batch may have rows in common.
    output : str or Path, optional
        The file to write; by default `path` is replaced.
    partial : bool
        Accept rows without a label. The labelled rows are then assumed to be a random sample of the
        batch.
    resolve : str, optional
        Which label is used if sheets disagree: "first", "last", "majority" or "drop" (no label). A
        label that is already in the file counts as the first label. By default, a disagreement is
        an error.
    force : bool
        Replace labels in the file, and an existing output.

    Raises
    ------
    CovcalError
        If a sheet cannot be used, a label is not a class, or labellers disagree. The file then
        stays unchanged.
    """
    path, output = Path(path), Path(path if output is None else output)
    if resolve is not None:
        require_one_of("resolve", resolve, RESOLVE)
    require_file(path, remedy=REMEDY)
    is_replaced = output.exists() and output.samefile(path)
    if not is_replaced:
        check_output(output, force=force, inputs=map(Path, sheets))
    read = [sheet for name in sheets for sheet in filled_sheet.read_sheets(Path(name))]
    for number, name in enumerate(sheets):
        if any(Path(name).samefile(other) for other in sheets[:number]):
            raise CovcalError(f"{name} is given twice: give the CSV of each person once")
    read.sort(key=lambda sheet: sheet.number)
    filled = {sheet.number for sheet in read if sheet.n_labelled}
    for_evaluate = [sheet for sheet in read if sheet.batch.is_for_evaluate]
    if len({sheet.batch for sheet in for_evaluate}) + (len(for_evaluate) < len(read)) > 1:
        raise CovcalError(
            f"{for_evaluate[0].path} has test rows, whose labels are for covcal evaluate: give "
            "each batch of test rows in a separate covcal label command"
        )
    names = labels_in(path)
    with atomic_output(output, force=force or is_replaced) as written, ExitStack() as stack:

        def opened() -> FeatureFile:
            return stack.enter_context(FeatureFile(path))

        files = for_each_label(names, opened)
        file = next(iter(files.values()))
        before = NO_DRAW if for_evaluate else read_draw(file)
        draw, rows = filled_sheet.with_batches(file, before, read), []
        for sheet in read:
            draw, rows_of_sheet = filled_sheet.with_batch(file, draw, sheet)
            if sheet.number not in filled:
                columns = "columns label_NAME" if names else "column label"
                raise CovcalError(f"{sheet.path} has no labels yet: fill in the {columns}")
            rows.append(rows_of_sheet)
        sheets_of = [_sheets_by_label(sheet, names, file) for sheet in read]
        for sheet, by_label, rows_of_sheet in zip(read, sheets_of, rows, strict=True):
            _require_beside_rows(files, sheet, by_label, rows_of_sheet)

        def joined() -> tuple[Draw, Labelling]:
            name = current_label() or ""
            sheets = [by_label[name] for by_label in sheets_of]
            return _joined(files[name], draw, sheets, rows, resolve, force=force)

        results = for_each_label(names, joined)
        labelling = _together({name: result for name, (_, result) in results.items()}, names)
        if labelling.empty_cells and not partial:
            raise CovcalError(_empty(labelling, read))
        draws = [of_label for of_label, _ in results.values()]
        write_copy(written, list(zip(files.values(), draws, strict=True)))
        return labelling


def _sheets_by_label(sheet: Sheet, names: Sequence[str], file: FeatureFile) -> dict[str, Sheet]:
    if not names:
        return {"": _with_class_names(sheet, file)}
    for name in sorted({*sheet.several} ^ {*names}):
        if name in names:
            fault = f"has no column {LABEL_PREFIX}{name}: put the column back"
        else:
            fault = (
                f"has the column {LABEL_PREFIX}{name}, but the file has no such label: remove "
                "the column"
            )
        raise CovcalError(f"{sheet.path} {fault}")
    by_label = {name: sheet.of_label(name) for name in names}
    values = {cell for of_label in by_label.values() for cell in of_label.labels}
    if values == {"", CLASSES[1]}:
        raise CovcalError(
            f"{sheet.path} has the answer 1 but never 0. An empty cell means that the answer "
            "is not known: write 0 where a row does not have the label"
        )
    return by_label


def _with_class_names(sheet: Sheet, file: FeatureFile) -> Sheet:
    """Replace answers such as "correct" or 0 in a sheet by class names.

    The answer "wrong" is allowed if there are two classes, or one confidence per row.
    """
    words = [filled_sheet.plain_number(cell).casefold() for cell in sheet.labels]
    if file.is_forecast_of_right:
        known = {word: RIGHT if is_right else WRONG for word, is_right in ANSWERS.items()}
        return replace(sheet, labels=list(map(known.get, words, sheet.labels)))
    classes = file.classes
    shows_predictions = sheet.predicted and all(sheet.predicted)
    if len(classes) != 2 or not shows_predictions or not {*words} <= {"", *_JUDGEMENTS}:
        return sheet
    if not any(words) or {name.casefold() for name in classes} & {*words}:
        return sheet
    names = [
        classes[classes.index(predicted) ^ (not ANSWERS[word])] if word else ""
        for predicted, word in zip(sheet.predicted, words, strict=True)
    ]
    return replace(sheet, labels=names)


def _require_beside_rows(
    files: Mapping[str, FeatureFile], sheet: Sheet, by_label: Mapping[str, Sheet], rows: Rows
) -> None:
    predicted = {name: predicted_names(file, rows) for name, file in files.items()}
    cells = kept_cells(next(iter(files.values())).require_target(), rows)
    filled_sheet.require_cells_beside_rows(sheet, cells, predicted_texts(predicted))
    columns = {
        f"{LABEL_PREFIX}{name}" if name else "label": (by_label[name].labels, names)
        for name, names in predicted.items()
    }
    filled_sheet.require_labels_beside_rows(sheet, columns)


def _joined(
    file: FeatureFile,
    draw: Draw,
    sheets: Sequence[Sheet],
    rows: Sequence[Rows],
    resolve: str | None,
    *,
    force: bool,
) -> tuple[Draw, Labelling]:
    before = draw_with_labels(file)
    if draw.batches[0].is_for_evaluate:
        known = target_labels(file.require_target(), draw.rows)
        before = replace(draw, labels=known)
    old = dict(zip(before.rows.tolist(), before.labels.tolist(), strict=True))
    votes: dict[int, dict[int, int]] = {}
    for number, (sheet, rows_of_sheet) in enumerate(zip(sheets, rows, strict=True)):
        for row, index in zip(rows_of_sheet.tolist(), _classes_of(file, sheet), strict=True):
            votes_of_row = votes.setdefault(row, {})
            if index != UNKNOWN_LABEL:
                votes_of_row[number] = index
    agreement = _agreement(votes, _labellers(sheets))
    sources = [file.path, *(sheet.path for sheet in sheets)]
    new, differing = _resolved(file, votes, old, sources, resolve, agreement, force=force)
    dropped = sum(bool(votes_of_row) and row not in new for row, votes_of_row in votes.items())
    labels = {row: index for row, index in old.items() if row not in votes} | new
    values = np.array(
        [labels.get(row, UNKNOWN_LABEL) for row in draw.rows.tolist()], dtype=np.int64
    )
    labelled = int(np.count_nonzero(values != UNKNOWN_LABEL))
    labels_before = {row: index for row, index in old.items() if index != UNKNOWN_LABEL}
    labelling = Labelling(
        new=sum(row not in labels_before for row in new),
        replaced=sum(index != labels_before.get(row, index) for row, index in new.items()),
        labelled=labelled,
        empty=len(values) - labelled,
        empty_cells=len(votes) - dropped - len(new),
        cells=len(votes),
        batches=len(draw.batches),
        for_decision=region_of(draw.batches[-1].score) is not None,
        for_evaluate=draw.batches[-1].is_for_evaluate,
        has_source=file.source is not None,
        agreement=agreement,
        differing=differing,
        doubts=_doubts(file, draw.rows, values),
    )
    return replace(draw, labels=values), labelling


def _doubts(file: FeatureFile, rows: Rows, labels: Labels) -> tuple[str, ...]:
    """Return a warning if the labels agree with the predictions no more often than by chance."""
    rows, labels = rows[labels != UNKNOWN_LABEL], labels[labels != UNKNOWN_LABEL]
    n = len(rows)
    if n < _LEAST_DOUBTED or file.is_forecast_of_right:
        return ()
    logits = file.require_target().logits(rows)
    predicted = logits.argmax(axis=1)
    c, r = (np.bincount(classes, minlength=len(file.classes)) for classes in (labels, predicted))
    pairs = (c * r).astype(np.float64)
    spread = float(pairs @ ((n - c) * (n - r)) + pairs.sum() ** 2 - pairs @ pairs)
    error = math.sqrt(spread / (n * n * (n - 1)))
    by_chance = float(pairs.sum()) / n
    agreed, expected = int((labels == predicted).sum()), float(confidences(logits, 1.0).sum())
    is_clear = expected - by_chance > max(_RIGHT * error, _LEAST_GAIN * n)
    if not is_clear or len(np.flatnonzero(r)) == 1 or agreed - by_chance > _RANDOM * error:
        return ()
    return (
        f"only {agreed} of {n} labels agree with the predicted class, but the mean confidence "
        f"of these rows is {percent(expected / n, 0)}. Either many of these labels are wrong, or "
        "the classifier is often wrong although it is sure: check some of the labels",
    )


def _together(of_label: Mapping[str, Labelling], names: Sequence[str]) -> Labelling:
    first = next(iter(of_label.values()))
    if not names:
        return first
    counts = ("new", "replaced", "labelled", "empty", "empty_cells", "cells")
    sums = {name: sum(getattr(result, name) for result in of_label.values()) for name in counts}
    differing = tuple(
        f"{name}: {sentence}" for name, result in of_label.items() for sentence in result.differing
    )
    doubts = tuple(
        f"{name}: {sentence}" for name, result in of_label.items() for sentence in result.doubts
    )
    return replace(
        first, **sums, agreement=None, differing=differing, doubts=doubts, of_label=of_label
    )


def _empty(labelling: Labelling, sheets: Sequence[Sheet]) -> str:
    paths = " and ".join(dict.fromkeys(str(sheet.path) for sheet in sheets))
    empty = {name: part.empty_cells for name, part in labelling.of_label.items()}
    empty = {name: count for name, count in empty.items() if count}
    counts = ", ".join(f"{name} {count}" for name, count in [*empty.items()][:_SHOWN])
    more = ", ..." if len(empty) > _SHOWN else ""
    write = f" ({counts}{more})" if empty else ""
    absent = ", and write 0 if a row does not have the label" if empty else ""
    return (
        f"{paths}: {labelling.empty_cells} of {labelling.cells} labels are empty{write}: fill "
        f"in the rest{absent}. If the filled-in labels are a random sample of their batch, "
        "pass --partial"
    )


def _classes_of(file: FeatureFile, sheet: Sheet) -> list[int]:
    names = file.classes[:2] if file.is_forecast_of_right else file.classes
    classes = named_classes(names)
    if not all(name.endswith(str(number)) for number, name in enumerate(names)):
        # 1 could mean the first class, the second class, or a right prediction.
        classes = replace(classes, by_number=False)
    return [
        _class_of(classes, text, sheet.ids[line], sheet.path) if text else UNKNOWN_LABEL
        for line, text in enumerate(sheet.labels)
    ]


def _class_of(classes: ClassMap, text: str, row_id: str, path: Path) -> int:
    same = [name for name in classes.names if name.casefold() == text.casefold()]
    for name in (text, filled_sheet.plain_number(text), *(same if len(same) == 1 else ())):
        if classes.index(name) is not None:
            return classes.require(path, name, what="label")
    names = {name.casefold(): name for name in classes.names}
    like = get_close_matches(text.casefold(), names, n=1)
    classes_of_file = listed(classes.names)
    nearest = (
        f"did you mean {names[like[0]]}?"
        if like
        else f"use one of {classes_of_file}. Leave an unknown label empty, and pass --partial"
    )
    raise CovcalError(
        f"{path}: the label {shown(text)} of {shown(row_id)} is not a class: {nearest}"
    )


def _labellers(sheets: Sequence[Sheet]) -> list[int]:
    taken: set[tuple[int, int]] = set()
    labellers = []
    for sheet in sheets:
        labeller = 0 if sheet.share is None else sheet.share.labeller
        while (sheet.number, labeller) in taken:  # Two people may fill in copies of one sheet.
            labeller += 1
        taken.add((sheet.number, labeller))
        labellers.append(labeller)
    return labellers


def _agreement(votes: Votes, labellers: Sequence[int]) -> Agreement | None:
    """Return the agreement of labellers; None if no row has two labels.

    The statistic is Cohen's kappa (1960) for two labellers, and Fleiss' kappa (1971) for more.
    `labellers` has the number of each sheet's labeller.
    """
    several = [of_row for of_row in votes.values() if len(of_row) > 1]
    if not several:
        return None
    people = {labellers[number] for of_row in several for number in of_row}
    if len(people) == 2:
        first = min(people)
        pairs = []
        for of_row in several:
            (sheet, label), (_, other) = sorted(
                of_row.items(), key=lambda vote: labellers[vote[0]]
            )[:2]
            pairs.append((label, other) if labellers[sheet] == first else (other, label))
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
    """Return the class number of every labelled row, and a sentence for each disagreement."""
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
                    f"({_said(by_source, file.classes)}): give the CSV of one more person, or pass "
                    "--resolve first, --resolve last or --resolve drop"
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
    beside = (
        ""
        if agreement is None
        else f" of {agreement.rows} ({agreement.kappa_name} {agreement.kappa:.2f})"
    )
    force = ", or pass --force to replace the labels in the file" if with_file else ""
    rows = "1 row" if len(differing) == 1 else f"{len(differing)} rows"
    choices = f"{', '.join(RESOLVE[:-1])} or {RESOLVE[-1]}"
    return (
        f"labellers disagree on {rows}{beside}: {some_of(differing)}. Correct the labels, or "
        f"choose a rule with --resolve ({choices}){force}"
    )


def some_of(differing: Sequence[str]) -> str:
    """Join the first few sentences about rows on which labellers disagree."""
    more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    return f"{'; '.join(differing[:_SHOWN])}{more}"
