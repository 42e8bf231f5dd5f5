"""The classifier's accuracy on the labelled source rows of a file that it has not seen."""

from pathlib import Path

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL
from covcal_cli.errors import CovcalError, LimitExceededError
from covcal_cli.formats.features import FeatureFile
from covcal_cli.maths.source_accuracy import CHECKS, SourceAccuracy

UNSEEN = ("validation", "test")


def source_accuracy(file: FeatureFile) -> SourceAccuracy | None:
    """Return the accuracy on an open file's unseen source rows; None where none is labelled."""
    source = file.source
    if source is None:
        return None
    rows = np.union1d(*(source.rows(split) for split in UNSEEN))
    rows = rows[source.labels(rows) != UNKNOWN_LABEL]
    predictions = [source.logits(block).argmax(axis=1) for block in source.blocks(rows, "logits")]
    if not predictions:
        return None
    return SourceAccuracy.of(
        source.labels(rows),
        np.concatenate(predictions),
        file.classes,
        lambda chosen: source.logits(rows[chosen]),
    )


def require_accuracy(accuracy: SourceAccuracy | None, expected: float, path: Path) -> None:
    """Refuse an accuracy below the expected one, unless noise explains it.

    `path` is the features file, for messages.

    Raises
    ------
    CovcalError
        If no accuracy is known.
    LimitExceededError
        If it is below.
    """
    if accuracy is None:
        raise CovcalError(
            f"{path} has no labelled source rows in its validation and test splits, so it shows no "
            "accuracy: pass other --fractions, or leave out --expect-accuracy"
        )
    if accuracy.is_below(expected):
        raise LimitExceededError(
            f"the classifier gets {accuracy} right, and you expect {expected:.2%}. {CHECKS}"
        )
