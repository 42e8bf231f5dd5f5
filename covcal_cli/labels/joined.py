"""The marks of several files, joined as their rows are.

Batches that were drawn from each of the files make one batch of all of them: a row keeps the
probability with which it was drawn, and its strata follow those of the files before. Where one
file has a batch and another has none, rows of the other could not have been drawn: refused.
"""

from collections.abc import Sequence

import numpy as np

from covcal_cli.arrays import AnyArray, Labels, Rows
from covcal_cli.errors import CovcalError
from covcal_cli.formats.features import FeatureFile
from covcal_cli.labels.draws import NO_MARKS, Batch, Marks, read_marks
from covcal_cli.labels.picked_labels import marked_labels


def joined_marks(files: Sequence[FeatureFile], rows: Sequence[Rows]) -> tuple[Marks, Labels]:
    """Return the marks of files joined, and the labels of the rows that they mark.

    `rows` are the numbers of each file's target rows in all of it, ascending.
    """
    marks = [read_marks(file) for file in files]
    most = max(marks, key=lambda one: len(one.batches), default=NO_MARKS)
    if not most.batches:
        return NO_MARKS, np.empty(0, dtype=np.int64)
    splits = most.batches[0].splits
    # Files without a row that could be drawn have nothing to say.
    held = [
        (file, found, some)
        for file, found, some in zip(files, marks, rows, strict=True)
        if found.batches or file.require_target().count(*splits)
    ]
    for file, found, _ in held:
        if len(found.batches) != len(most.batches) or found.batches[0].splits != splits:
            whole = files[marks.index(most)].path
            raise CovcalError(
                f"{file.path} holds {len(found.batches)} batches of picked rows, and {whole} "
                f"{len(most.batches)} of its {' and '.join(splits)} rows: pick and label as many "
                "in each, or merge the files first and pick from the result"
            )
    numbers = np.sort(np.concatenate([np.asarray(some) for some in rows]))
    places = [np.searchsorted(numbers, np.asarray(some)[found.rows]) for _, found, some in held]
    order = np.argsort(np.concatenate(places))

    def joined(parts: Sequence[AnyArray]) -> AnyArray:
        return np.concatenate(parts)[order]

    # How many rows of a batch the files before drew.
    drawn = np.cumsum([[0] * len(most.batches), *(_drawn(found) for _, found, _ in held)], axis=0)
    strata = [
        found.stratum + before[found.batch]
        for (_, found, _), before in zip(held, drawn[:-1], strict=True)
    ]
    together = Marks(
        rows=joined(places),
        inclusion=joined([found.inclusion for _, found, _ in held]),
        batch=joined([found.batch for _, found, _ in held]),
        stratum=joined(strata),
        labelled=joined([found.labelled for _, found, _ in held]),
        batches=tuple(
            _together(batches) for batches in zip(*(one.batches for _, one, _ in held), strict=True)
        ),
    )
    return together, joined([marked_labels(file) for file, _, _ in held])


def _drawn(marks: Marks) -> list[int]:
    return [batch.drawn for batch in marks.batches]


def _together(batches: Sequence[Batch]) -> Batch:
    """Return one batch of those that were drawn from parts of the rows."""
    first = batches[0]
    return Batch(
        drawn=sum(batch.drawn for batch in batches),
        population=sum(batch.population for batch in batches),
        seed=first.seed,
        splits=first.splits,
        score="; ".join(dict.fromkeys(batch.score for batch in batches)),
    )
