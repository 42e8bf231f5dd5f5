"""The one reader of the labels that a person gave to rows that `covcal pick` drew.

They are stored apart from ``/target/labels``. Code that may use the labels of picked rows imports
this module, and so cannot reach the labels that ``evaluate`` uses. A test lists who imports it.
"""

from dataclasses import replace

from covcal_cli.arrays import UNKNOWN_LABEL, Labels
from covcal_cli.errors import CovcalError
from covcal_cli.formats.features import FeatureFile, thinned
from covcal_cli.labels.draws import LABELS, MAX_FRAME, NO_DRAW, Draw, frame_rows, read_draw


def draw_with_labels(file: FeatureFile) -> Draw:
    """Return the draw that a file holds, with the labels it has; `NO_DRAW` where there is none.

    Raises
    ------
    CovcalError
        If the draw is damaged, or a label is no class.
    """
    draw = read_draw(file)
    if draw is NO_DRAW:
        return draw
    labels: Labels = file.handle[LABELS][:].astype(draw.labels.dtype)
    if len(labels) and not (labels.min() >= UNKNOWN_LABEL and labels.max() < len(file.classes)):
        raise CovcalError(
            f"{file.path}: its marks hold a label that is no class: put the labels in again with "
            "covcal label"
        )
    return replace(draw, labels=labels)


def labelled_draw(file: FeatureFile) -> Draw | None:
    """Return the rows that a person labelled, with their frame, or None where there are none.

    Raises
    ------
    CovcalError
        If the draw is damaged.
    """
    draw = draw_with_labels(file)
    if not draw.labelled.any():
        return None
    frame = frame_rows(file.require_target(), draw.batches[0].splits)
    return replace(draw, frame=thinned(frame, MAX_FRAME, 0)).without(~draw.labelled)
