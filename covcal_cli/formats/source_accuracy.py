"""The classifier's accuracy on source rows that it has not seen: whether it is read rightly at all.

A wrong preprocessing, order of classes or output shows here before anywhere else, and everything
that is fitted rests on these rows. Unseen are the labelled rows of validation and test; training
rows may be those that the classifier was trained on.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covcal_cli.arrays import UNKNOWN_LABEL, Labels
from covcal_cli.errors import CovcalError, LimitExceededError
from covcal_cli.formats.features import FeatureFile

UNSEEN = ("validation", "test")
FEW_ROWS = 50  # what holds for fewer may be luck
# Cohen's kappa below which Landis and Koch (1977) call an agreement slight.
_SLIGHT = 0.2
_NOISE = 0.01  # how rarely chance alone may put an accuracy this far below what is expected


@dataclass(frozen=True)
class SourceAccuracy:
    """How many unseen labelled source rows the classifier gets right."""

    rows: int  # at least 1
    right: int
    chance: float  # the share that would be right if the predictions were shuffled

    @classmethod
    def of(cls, labels: Labels, predictions: Labels, n_classes: int) -> "SourceAccuracy | None":
        """Compare labels and predictions, shape (n,); None where no label is known."""
        known = labels != UNKNOWN_LABEL
        labels, predictions = labels[known], predictions[known]
        if not len(labels):
            return None
        counts = [np.bincount(values, minlength=n_classes) for values in (labels, predictions)]
        right = int((labels == predictions).sum())
        return cls(len(labels), right, float(counts[0] @ counts[1]) / len(labels) ** 2)

    @property
    def share(self) -> float:
        """The accuracy, from 0 to 1."""
        return self.right / self.rows

    def __str__(self) -> str:
        """Return the accuracy in words."""
        return f"{self.share:.2%} of {self.rows} unseen labelled source rows"

    @property
    def doubt(self) -> str | None:
        """What an accuracy near chance says against the way the model is read; None elsewhere."""
        if self.rows < FEW_ROWS:
            return None
        noise = 2 * math.sqrt(self.chance * (1 - self.chance) / self.rows)
        if self.share > self.chance + noise and self.share >= self.chance + _SLIGHT * (
            1 - self.chance
        ):
            return None
        worth = "no better than" if self.share <= self.chance + noise else "little better than"
        return (
            f"the classifier gets {self.share:.1%} of the source right, {worth} guessing "
            f"({self.chance:.1%}): check the preprocessing, the order of the classes and which "
            "output is read"
        )

    def is_below(self, expected: float) -> bool:
        """Return whether chance would explain such a low accuracy in under 1 of 100 samples.

        That is the exact tail P(X <= right) of a binomial distribution.
        """
        if not 0 < expected < 1:
            return self.right < expected * self.rows
        if self.right >= expected * self.rows:
            return False
        # The terms fall from `right` on downwards, at least as fast as a geometric series.
        term = math.exp(
            math.lgamma(self.rows + 1)
            - math.lgamma(self.right + 1)
            - math.lgamma(self.rows - self.right + 1)
            + self.right * math.log(expected)
            + (self.rows - self.right) * math.log1p(-expected)
        )
        tail, odds = term, (1 - expected) / expected
        for right in range(self.right, 0, -1):
            term *= odds * right / (self.rows - right + 1)
            tail += term
            if tail >= _NOISE or term < 1e-12 * tail:
                break
        return tail < _NOISE


def source_accuracy(file: FeatureFile) -> SourceAccuracy | None:
    """Return the accuracy on an open file's unseen source rows; None where none is labelled."""
    source = file.source
    if source is None:
        return None
    rows = np.union1d(*(source.rows(split) for split in UNSEEN))
    labels = source.labels(rows)
    rows = rows[labels != UNKNOWN_LABEL]
    predictions = [source.logits(block).argmax(axis=1) for block in source.blocks(rows, "logits")]
    if not predictions:
        return None
    return SourceAccuracy.of(source.labels(rows), np.concatenate(predictions), len(file.classes))


def require_accuracy(found: SourceAccuracy | None, expected: float, path: Path) -> None:
    """Refuse an accuracy below the one expected, if noise does not explain it.

    `path` is the features file, for messages.

    Raises
    ------
    CovcalError
        If there is none.
    LimitExceededError
        If it is below.
    """
    if found is None:
        raise CovcalError(
            f"{path} has no labelled source rows of validation or test to expect an accuracy of: "
            "pass other --fractions, or leave --expect-accuracy out"
        )
    if found.is_below(expected):
        raise LimitExceededError(
            f"the classifier gets {found} right, and {expected:.2%} are expected: check the "
            "preprocessing, the order of the classes and which output is read"
        )
