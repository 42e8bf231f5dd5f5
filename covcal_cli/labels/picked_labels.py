"""Read the labels that a person gave to the rows of `covcal pick`.

A test lists the modules that import this module. The labels for ``evaluate`` are stored elsewhere.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL, Labels, Rows
from covcal_cli.errors import CovcalError
from covcal_cli.formats.features import FeatureFile, thinned
from covcal_cli.labels.draws import LABELS, MAX_FRAME, NO_DRAW, Batch, Draw, frame_rows, read_draw


def draw_with_labels(file: FeatureFile) -> Draw:
    """Return the draw in a file with its labels, or `NO_DRAW`.

    Raises `CovcalError` if the draw is damaged, or a label is not a class.
    """
    draw = read_draw(file)
    if draw is NO_DRAW:
        return draw
    labels: Labels = file.handle[LABELS][:].astype(draw.labels.dtype)
    if len(labels) and not (labels.min() >= UNKNOWN_LABEL and labels.max() < len(file.classes)):
        raise CovcalError(
            f"{file.path}: a stored label is not a class: add the labels again with covcal label"
        )
    return replace(draw, labels=labels)


def labelled_draw(file: FeatureFile) -> Draw | None:
    """Return the labelled rows of the draw in a file, or None without labels.

    Raises `CovcalError` if the draw is damaged.
    """
    return labelled_part(file, draw_with_labels(file))


def labelled_part(file: FeatureFile, draw: Draw) -> Draw | None:
    """Return the labelled rows of a draw, or None without labels."""
    if not draw.labelled.any():
        return None
    frame = frame_rows(file.require_target(), draw.batches[0].splits)
    return replace(draw, frame=thinned(frame, MAX_FRAME, 0)).without(~draw.labelled)


def joined_draw(files: Sequence[FeatureFile], rows: Sequence[Rows]) -> Draw:
    """Join the picked rows of several files, for a new file with all rows of these files.

    Batches with the same number are joined, and inclusion probabilities do not change. Raises
    `CovcalError` if a file lacks a batch.

    For each file, `rows` has the ascending positions of its target rows in the joined file.
    """
    draws = [draw_with_labels(file) for file in files]
    fullest = max(draws, key=lambda draw: len(draw.batches), default=NO_DRAW)
    if not fullest.batches:
        return NO_DRAW
    splits = fullest.batches[0].splits
    parts = [
        (file, draw, np.asarray(numbers))
        for file, draw, numbers in zip(files, draws, rows, strict=True)
        if draw.batches or file.require_target().count(*splits)
    ]
    for file, draw, _ in parts:
        if len(draw.batches) != len(fullest.batches) or draw.batches[0].splits != splits:
            whole = next(file.path for file, draw, _ in parts if draw is fullest)
            raise CovcalError(
                f"{file.path} has {len(draw.batches)} batches of picked rows, but {whole} has "
                f"{len(fullest.batches)}: in each file, pick and label the same number of batches "
                f"from the {' and '.join(splits)} rows"
            )
    everything = np.sort(np.concatenate([np.asarray(numbers) for numbers in rows]))
    draws_of_files = [draw for _, draw, _ in parts]
    sizes = [[batch.drawn for batch in draw.batches] for draw in draws_of_files]
    before = np.cumsum([[0] * len(fullest.batches), *sizes], axis=0)[:-1]
    moved = [
        replace(
            draw,
            rows=np.searchsorted(everything, numbers[draw.rows]),
            stratum=draw.stratum + first[draw.batch],
        )
        for (_, draw, numbers), first in zip(parts, before, strict=True)
    ]
    of_batches = zip(*(draw.batches for draw in draws_of_files), strict=True)
    return Draw.joined(moved, tuple(map(_joined_batch, of_batches)))


def _joined_batch(batches: Sequence[Batch]) -> Batch:
    first = batches[0]
    return Batch(
        drawn=sum(batch.drawn for batch in batches),
        population=sum(batch.population for batch in batches),
        seed=first.seed,
        splits=first.splits,
        score="; ".join(dict.fromkeys(batch.score for batch in batches)),
    )
