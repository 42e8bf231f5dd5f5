"""The decision of ``covcal decide``, as decide.json holds it."""

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
    """For the rows with the highest scores: their share of all rows, and their expected error."""

    share: Share  # share of the rows
    error: Share
    low: Share  # the error at the high end of the estimated accuracy
    high: Share  # the error at the low end of the estimated accuracy

    def __post_init__(self) -> None:
        require_ascending(low=self.low, error=self.error, high=self.high)


@dataclass(frozen=True)
class GroupPoint:
    """For one group: its rows, and the expected error of its accepted rows."""

    name: str
    rows: Count  # number of the group's rows among the rows from which the curve was computed
    accepted: CurvePoint | None  # None if no row is accepted


@dataclass(frozen=True)
class CostPoint:
    """The share of rows whose acceptance costs least, and the mean cost of a row."""

    share: Share
    cost: float  # mean cost per row: of accepted rows that are wrong, and of reviewed rows
    low: float  # the cost at one end of the estimated accuracy
    high: float  # the cost at the other end
    review: float  # the mean cost if a person reviews every row


@dataclass(frozen=True)
class LabelUse:
    """The labels with which a promise was tested."""

    drawn: Number  # number of rows that all batches for a decision drew
    # number of labelled rows above the accepted threshold, or above the first tested one
    labels: Count
    wrong: Count  # number of wrong rows among these, including drawn rows without a label
    # the largest number of wrong rows with which the test passes; -1 if it cannot pass
    allowed: int
    batches: Number


@dataclass(frozen=True)
class SetRule:
    """A rule that makes sets: the most probable class, and each class that is probable enough."""

    coverage: Share  # the share of rows whose set should contain the right class
    cut: Share  # the smallest probability of a class in a set
    mean_size: float  # mean number of classes in a set
    labels: Count  # number of labels that the cut was chosen by; 0 if it is an estimate
    # The certainty of the coverage. None without labels, or if the coverage is only a mean over
    # repeated draws of the labels.
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

    # the largest share of accepted rows that may be wrong; None if only sets were asked for
    error: Share | None
    certainty: Share  # the certainty of the promise
    covers: Covered
    score: str  # in words, the number by which rows are ranked
    threshold: Share | None  # rows with a higher score are accepted; None if no row is accepted
    share: Share  # the share of rows that is accepted
    rows: Number  # number of target rows of `splits`
    splits: tuple[str, ...]
    is_promise: bool  # whether labels prove the error; if not, it is an estimate
    expected: CurvePoint | None  # the accepted rows, and their expected error
    labels: LabelUse | None
    # a number of labels that probably makes a promise possible; 0 if there is none
    labels_needed: Count
    # the share of rows that a promise with this number of labels would probably accept
    promised_share: Share
    curve: tuple[CurvePoint, ...]  # the expected error for evenly spaced shares of rows, up to 1
    sets: SetRule | None
    notes: tuple[str, ...]
    inputs: tuple[Input, ...]  # the files of data and calibration
    cost: CostPoint | None = None  # only in a decision by costs, which has no `error`
    by: str | None = None  # the column of the groups, or "predicted"
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
        """Whether the user asked for rows to accept, and not only for sets."""
        return self.error is not None or self.cost is not None

    @property
    def accept_above(self) -> float:
        """The score that accepted rows exceed; 1 (which none exceeds) if no row is accepted."""
        return 1.0 if self.threshold is None else self.threshold

    def accepts(self, scores: Floats) -> Booleans:
        """Return which rows are accepted, by their scores."""
        return np.asarray(scores > self.accept_above)

    @property
    def beliefs(self) -> list[Float64s]:
        """The expected number of wrong rows for every share of best rows; see `beliefs_of`."""
        return beliefs_of(self.curve)

    @property
    def calibration(self) -> Input:
        """The calibration whose confidence ranks the rows."""
        return next(entry for entry in self.inputs if entry.role == "calibration")


def beliefs_of(curve: Sequence[CurvePoint]) -> list[Float64s]:
    """Return expected wrong rows by the estimate, and half way to each end of its range."""
    return [belief_of(curve, name, 0.5) for name in ("high", "error", "low")]


def belief_of(curve: Sequence[CurvePoint], end: str, part: float) -> Float64s:
    """Return expected wrong rows as shares of all rows, this `part` of the way to an end."""
    errors = [point.error + part * (getattr(point, end) - point.error) for point in curve]
    return np.concatenate([[0.0], np.multiply([point.share for point in curve], errors)])


def read_decision(path: str | Path, *calibrations: str | Path) -> Decision:
    """Read a decide.json that was made with one of these calibrations.

    Raises `CovcalError` if it cannot be read, or was made with another calibration.
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
    """Return the calibration that a decide.json was made with, in the folder of that file."""
    decision = read_document(Decision, Path(path), remedy="make it with covcal decide")
    entry = decision.calibration
    if leaves_folder_of(entry.path, Path(path)) or not entry.path.is_file():
        raise CovcalError(f"{path} was made with {entry.path}: pass -c with that calibration")
    return entry.path
