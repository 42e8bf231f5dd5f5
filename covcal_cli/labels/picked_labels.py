"""The one reader of the labels that were marked for calibration: those that ``label`` put in.

They lie apart from ``/target/labels``, so that who was asked to use marked labels reads these and
cannot read those of ``evaluate``; a test keeps who imports this module.
"""

from dataclasses import dataclass

import numpy as np

from covcal_cli.arrays import Float64s, Integers, Labels, Rows
from covcal_cli.errors import CovcalError
from covcal_cli.formats.features import Domain, FeatureFile, thinned
from covcal_cli.labels.draws import LABELS, Batch, Marks, frame_rows, read_marks
from covcal_cli.labels.labelled_draw import MAX_FRAME, LabelledDraw


@dataclass(frozen=True)
class MarkedRows:
    """Labelled target rows of a known design, m of them; `draws` has the estimator in its head."""

    rows: Rows  # (m,), in the target, ascending
    labels: Labels  # (m,), 0 .. K-1
    # (m,) float64, above 0, at most 1: of being drawn by its batch from the rows that were left,
    # times the share of its batch that has a label, 1 unless the batch is `incomplete`.
    inclusion: Float64s
    batch: Integers  # (m,), index into `batches`
    stratum: Integers  # (m,), 0 .. n_b - 1, along the score: neighbouring strata are alike
    batches: tuple[Batch, ...]  # the designs, in the order in which they were drawn
    # Rows drawn that have no label: with any, those that have one are taken for a random part of
    # their batch, which nothing vouches for.
    incomplete: int
    marks: Marks  # all that was drawn

    def left(self, target: Domain, batch: int) -> Rows:
        """Return the rows that a batch was drawn from, ascending, shape (N_b,) int64."""
        return self.marks.left(target, batch)


def marked_rows(file: FeatureFile) -> MarkedRows | None:
    """Return the labelled rows that ``pick`` drew, or None where there are none.

    Raises
    ------
    CovcalError
        If they are damaged.
    """
    marks = read_marks(file)
    held = marks.labelled
    if not held.any():
        return None
    labels = marked_labels(file)[held]
    drawn = np.bincount(marks.batch, minlength=len(marks.batches))
    labelled = np.bincount(marks.batch[held], minlength=len(marks.batches))
    share = labelled / np.maximum(1, drawn)
    batch = marks.batch[held]
    return MarkedRows(
        rows=marks.rows[held],
        labels=labels,
        inclusion=marks.inclusion[held] * share[batch],
        batch=batch,
        stratum=marks.stratum[held],
        batches=marks.batches,
        incomplete=int(np.count_nonzero(~held)),
        marks=marks,
    )


def marked_draw(file: FeatureFile) -> LabelledDraw | None:
    """Return the labelled rows that ``pick`` drew as a fit uses them, or None where there are none.

    Raises
    ------
    CovcalError
        If they are damaged.
    """
    found = marked_rows(file)
    if found is None:
        return None
    notes: tuple[str, ...] = ()
    if found.incomplete:
        notes = (
            f"{found.incomplete} rows that were picked have no label: those that have one are "
            "taken for a random part of their batch",
        )
    # A batch without any label is as if it had not been drawn.
    kept, batch = np.unique(found.batch, return_inverse=True)
    frame = frame_rows(file.require_target(), found.batches[0].splits)
    return LabelledDraw(
        population=len(frame),
        frame=thinned(frame, MAX_FRAME, 0),
        rows=found.rows,
        labels=found.labels,
        inclusion=found.inclusion,
        batch=batch.astype(np.int64),
        design="marked",
        seed=found.batches[int(kept[0])].seed,
        notes=notes,
    )


def marked_labels(file: FeatureFile) -> Labels:
    """Return the labels of all rows that were drawn, shape (m,) int64; -1 where there is none."""
    if LABELS not in file.handle:
        return np.empty(0, dtype=np.int64)
    labels: Labels = file.handle[LABELS][:].astype(np.int64)
    if len(labels) and not (labels.min() >= -1 and labels.max() < len(file.classes)):
        raise CovcalError(
            f"{file.path}: its marks hold a label that is no class: put the labels in again with "
            "covcal label"
        )
    return labels
