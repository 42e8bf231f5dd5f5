"""A decision on rows to accept and on sets of classes, as decide.json holds it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from covcal_cli.arrays import Booleans, Float64s, Floats
from covcal_cli.errors import CovcalError
from covcal_cli.files import leaves_folder_of, sha256_of
from covcal_cli.records import (
    Count,
    Document,
    Input,
    Number,
    Share,
    read_document,
    require_ascending,
)

ACCEPT, REVIEW = "accept", "review"
Covered = Literal["future rows", "these rows"]


@dataclass(frozen=True)
class CurvePoint:
    """The rows with the highest scores, and the share of them that is expected to be wrong."""

    share: Share  # share of the rows
    error: Share
    low: Share  # the error at the high end of the estimated accuracy
    high: Share  # the error at the low end of the estimated accuracy

    def __post_init__(self) -> None:
        require_ascending(low=self.low, error=self.error, high=self.high)


@dataclass(frozen=True)
class GroupPoint:
    """The rows of one group, and the expected error of its accepted rows."""

    name: str
    rows: Count  # number of the group's rows in the sample behind the curve
    accepted: CurvePoint | None  # None: no row is accepted


@dataclass(frozen=True)
class CostPoint:
    """The share of rows that is cheapest to accept, and the mean cost of a row."""

    share: Share
    cost: float  # mean cost per row, of wrong accepted rows and of reviews
    low: float  # the cost at one end of the estimated accuracy
    high: float  # the cost at the other end
    review: float  # the mean cost if a person reviews every row


@dataclass(frozen=True)
class LabelUse:
    """The labels that a promise was tested with."""

    drawn: Number  # drawn rows of all batches for a decision
    labels: Count  # labelled rows among the accepted rows, or above the first tested threshold
    wrong: Count  # wrong rows among these; a drawn row without a label counts as wrong
    allowed: int  # the most wrong rows with which the threshold is accepted; -1: none
    batches: Number


@dataclass(frozen=True)
class SetRule:
    """A rule for sets: the most probable class, and all classes with at least a probability."""

    coverage: Share  # the share of rows whose set should contain the right class
    cut: Share  # the least probability
    mean_size: float  # classes in a set
    labels: Count  # number of labels that chose the cut; 0: an estimate
    # The certainty of the coverage. None with labels: coverage holds on average over draws.
    certainty: Share | None

    def members(self, probabilities: Floats) -> Booleans:
        """Return which classes are in the set of every row, shape (m, K)."""
        members: Booleans = probabilities >= self.cut
        members[np.arange(len(members)), probabilities.argmax(axis=1)] = True
        return members


@dataclass(frozen=True, kw_only=True)
class Decision(Document):
    """The result of ``covcal decide``."""

    schema: ClassVar[str] = "covcal.decision/1"

    error: Share | None  # the largest share of accepted rows that may be wrong; None: only sets
    certainty: Share  # of the promise
    covers: Covered
    score: str  # the number by which rows are ranked
    threshold: Share | None  # rows with a larger score are accepted; None: no row is accepted
    share: Share  # accepted share of the rows
    rows: Number  # target rows of `splits`
    splits: tuple[str, ...]
    is_promise: bool  # whether labels prove the error; else it is an estimate
    expected: CurvePoint | None  # expected error of the accepted rows
    labels: LabelUse | None
    labels_needed: Count  # number that makes a promise likely; 0 if no number does
    promised_share: Share  # accepted share to expect in a promise with these labels
    curve: tuple[CurvePoint, ...]  # evenly spaced shares up to 1
    sets: SetRule | None
    notes: tuple[str, ...]
    inputs: tuple[Input, ...]  # the data and the calibration
    cost: CostPoint | None = None  # only for a decision by costs, which has no `error`
    by: str | None = None  # the column of `groups`
    groups: tuple[GroupPoint, ...] = ()

    def __post_init__(self) -> None:
        if self.error is not None and not 0 < self.error < 1:
            raise ValueError(f"error is {self.error}, not between 0 and 1")
        if self.is_promise and self.labels is None:
            raise ValueError("a promise without labels")
        if not any(entry.role == "calibration" for entry in self.inputs):
            raise ValueError("inputs have no calibration")

    @property
    def accepts_rows(self) -> bool:
        """Whether the decision is about rows to accept, and not only about sets."""
        return self.error is not None or self.cost is not None

    @property
    def accept_above(self) -> float:
        """The threshold of the score; 1 if no row is accepted, because no score exceeds 1."""
        return 1.0 if self.threshold is None else self.threshold

    def accepts(self, scores: Floats) -> Booleans:
        """Return which rows are accepted, by their scores."""
        return np.asarray(scores > self.accept_above)

    @property
    def beliefs(self) -> list[Float64s]:
        """The expected wrong rows among the best rows of every share; see `beliefs_of`."""
        return beliefs_of(self.curve)

    @property
    def calibration(self) -> Input:
        """The calibration whose confidence is the score."""
        return next(entry for entry in self.inputs if entry.role == "calibration")


def beliefs_of(curve: Sequence[CurvePoint]) -> list[Float64s]:
    """Return the wrong rows by share of best rows: low end, middle twice, and high end."""
    shares = np.array([point.share for point in curve])
    return [
        np.concatenate([[0.0], shares * [getattr(point, name) for point in curve]])
        for name in ("high", "error", "error", "low")
    ]


def read_decision(path: str | Path, *calibrations: str | Path) -> Decision:
    """Read a decide.json that was made with one of these calibrations.

    Raises `CovcalError` if it cannot be read, or was made with another calibration or score.
    """
    path, remedy = Path(path), "make it with covcal decide"
    decision = read_document(Decision, path, remedy=remedy, again="decide again")
    if decision.score != "confidence":
        raise CovcalError(
            f"{path} ranks rows by {decision.score}, but this version does not know that score: "
            "decide again"
        )
    digests = [sha256_of(Path(calibration)) for calibration in calibrations]
    if decision.calibration.sha256 not in digests:
        raise CovcalError(
            f"{path} was made with another calibration than "
            f"{' or '.join(map(str, calibrations))}: decide again, or pass its calibration with "
            "-c"
        )
    return decision


def calibration_of(path: str | Path) -> Path:
    """Return the calibration that a decide.json was made with, in its own folder."""
    decision = read_document(Decision, Path(path), remedy="make it with covcal decide")
    entry = decision.calibration
    if leaves_folder_of(entry.path, Path(path)) or not entry.path.is_file():
        raise CovcalError(f"{path} was made with {entry.path}: pass -c with that calibration")
    return entry.path
