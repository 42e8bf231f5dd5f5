"""The draws of several files, joined as the rows of the files are.

Batches that were drawn from each of the files make one batch of the joined file. A row keeps the
probability with which it was drawn, and its strata follow those of the files before. If one file
has a batch and another has none, rows of the other file could not have been drawn: that is refused.
"""

from collections.abc import Sequence

import numpy as np

from covcal_cli.arrays import AnyArray, Rows
from covcal_cli.errors import CovcalError
from covcal_cli.formats.features import FeatureFile
from covcal_cli.labels.draws import NO_DRAW, Batch, Draw
from covcal_cli.labels.picked_labels import draw_with_labels


def joined_draw(files: Sequence[FeatureFile], rows: Sequence[Rows]) -> Draw:
    """Return the draws of files joined, with their labels.

    `rows` are the numbers of each file's target rows in the joined file, ascending.
    """
    draws = [draw_with_labels(file) for file in files]
    fullest = max(draws, key=lambda draw: len(draw.batches), default=NO_DRAW)
    if not fullest.batches:
        return NO_DRAW
    splits = fullest.batches[0].splits
    # A file without a row that could be drawn has nothing to add.
    parts = [
        (file, draw, np.asarray(numbers))
        for file, draw, numbers in zip(files, draws, rows, strict=True)
        if draw.batches or file.require_target().count(*splits)
    ]
    for file, draw, _ in parts:
        if len(draw.batches) != len(fullest.batches) or draw.batches[0].splits != splits:
            whole = next(file.path for file, draw, _ in parts if draw is fullest)
            raise CovcalError(
                f"{file.path} holds {len(draw.batches)} batches of picked rows, and {whole} "
                f"{len(fullest.batches)} of its {' and '.join(splits)} rows: pick and label as "
                "many in each, or merge the files first and pick from the result"
            )
    everything = np.sort(np.concatenate([np.asarray(numbers) for numbers in rows]))
    places = [np.searchsorted(everything, numbers[draw.rows]) for _, draw, numbers in parts]
    order = np.argsort(np.concatenate(places))

    def joined(columns: Sequence[AnyArray]) -> AnyArray:
        return np.concatenate(columns)[order]

    held = [draw for _, draw, _ in parts]
    # How many rows of each batch the files before drew.
    sizes = [[batch.drawn for batch in draw.batches] for draw in held]
    before = np.cumsum([[0] * len(fullest.batches), *sizes], axis=0)[:-1]
    return Draw(
        rows=joined(places),
        inclusion=joined([draw.inclusion for draw in held]),
        batch=joined([draw.batch for draw in held]),
        stratum=joined(
            [draw.stratum + first[draw.batch] for draw, first in zip(held, before, strict=True)]
        ),
        labels=joined([draw.labels for draw in held]),
        batches=tuple(map(_joined_batch, zip(*(draw.batches for draw in held), strict=True))),
    )


def _joined_batch(batches: Sequence[Batch]) -> Batch:
    """Return one batch for batches that were drawn from parts of the rows."""
    first = batches[0]
    return Batch(
        drawn=sum(batch.drawn for batch in batches),
        population=sum(batch.population for batch in batches),
        seed=first.seed,
        splits=first.splits,
        score="; ".join(dict.fromkeys(batch.score for batch in batches)),
    )
