"""The labels that a user marked for calibration, where a fit or an estimate may use them."""

from covcal_cli.calibrate.methods import MARKED_LABELS
from covcal_cli.calibrate.problem import EstimateSettings
from covcal_cli.errors import CovcalError
from covcal_cli.files import as_word
from covcal_cli.formats.features import FeatureFile
from covcal_cli.labels.labelled_draw import LabelledDraw
from covcal_cli.labels.picked_labels import marked_draw


def marked_for(file: FeatureFile, settings: EstimateSettings) -> LabelledDraw | None:
    """Return the marked rows with their labels; None where there are none or they are not wanted.

    Raises
    ------
    CovcalError
        If they are damaged, or asked for and there are none.
    """
    found = marked_draw(file) if settings.takes_labels and file.target is not None else None
    if found is None and settings.labels == MARKED_LABELS:
        raise CovcalError(
            f"{file.path} has no marked labels: draw rows with covcal pick {as_word(file.path)}, "
            "and put their labels in with covcal label"
        )
    return found
