"""The file decide.json, which ``covcal decide`` writes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np

from covcal_cli.arrays import Booleans, Float64s, Floats, Rows
from covcal_cli.errors import CovcalError, require_shares
from covcal_cli.files import leaves_folder_of, sha256_of
from covcal_cli.formats.calibration import read_calibration
from covcal_cli.formats.features import SPLITS, Domain
from covcal_cli.formats.groups import values_by_group
from covcal_cli.records import (
    Count,
    Document,
    Input,
    Number,
    Share,
    Within,
    read_document,
    require_ascending,
)

ACCEPT, REVIEW = "accept", "review"
Cost = Annotated[float, Within(0, 1e100)]
Covered = Literal["future rows", "these rows"]
ROLES_OF_ROWS = ("features", "adapted")  # The kinds of input files that contain target rows.


@dataclass(frozen=True)
class CurvePoint:
    """The expected error rate if a share of the rows is accepted."""

    share: Share  # The share of accepted rows.
    error: Share  # The expected error rate of the accepted rows.
    low: Share  # The error rate if the accuracy is at the upper end of its interval.
    high: Share  # The error rate if the accuracy is at the lower end of its interval.

    def __post_init__(self) -> None:
        require_ascending(low=self.low, error=self.error, high=self.high)


@dataclass(frozen=True)
class GroupPoint:
    """A group of rows, and the expected error of its accepted rows."""

    name: str
    rows: Count  # Number of rows of the group.
    accepted: CurvePoint | None  # The expected error; None if no row is accepted.
    # The next fields are only used with `promise_by`.
    threshold: Share | None = None  # Rows above this score are accepted; None accepts no row.
    labels: "LabelUse | None" = None  # The labels that tested the limit on the error rate.
    # Number of labels still needed to prove the limit; 0 if none, or if no number is enough.
    labels_needed: Count = 0


@dataclass(frozen=True)
class PairCost:
    """The cost of one kind of error."""

    true: str
    predicted: str
    cost: Cost


@dataclass(frozen=True)
class Costs:
    """The content of costs.json."""

    wrong: Cost
    review: Cost | None = None
    pairs: tuple[PairCost, ...] = ()


@dataclass(frozen=True)
class CostPoint:
    """The share of rows to accept for the lowest mean cost."""

    share: Share
    cost: float  # Mean cost of a row, for errors and reviews.
    low: float  # The lowest mean cost in the range of the estimated accuracy.
    high: float  # The highest mean cost in the range of the estimated accuracy.
    review: float  # The mean cost if a person reviews every row.


@dataclass(frozen=True)
class LabelUse:
    """The numbers of labels in the test of a limit on the error rate."""

    drawn: Number  # Number of rows that `pick` drew for a decision, in all batches.
    labels: Count  # Number of labelled rows above the threshold.
    # Number of wrong rows among `labels`; rows without a label count as wrong.
    wrong: Count
    allowed: int  # Maximum number of wrong rows for a passed test; -1 if the test cannot pass.
    batches: Number


@dataclass(frozen=True)
class SetRule:
    """A rule for prediction sets: the most probable class, and each class above a probability.

    `certainty` is None without labels, and for a mean over several samples of labels.
    """

    coverage: Share  # Share of rows whose prediction set should contain the true class.
    cut: Share  # Minimum probability of a class in a set.
    mean_size: float  # Mean number of classes in a set.
    labels: Count  # Number of labels that set the threshold; 0 without labels.
    certainty: Share | None

    def members(self, probabilities: Floats) -> Booleans:
        """Return which classes are in each row's prediction set, shape (m, K)."""
        members: Booleans = probabilities >= self.cut
        members[np.arange(len(members)), probabilities.argmax(axis=1)] = True
        return members


@dataclass(frozen=True, kw_only=True)
class Decision(Document):
    """The result of ``covcal decide``."""

    schema: ClassVar[str] = "covcal.decision/1"

    # Limit on the error rate of accepted rows; None if the user asked only for prediction sets.
    error: Share | None
    certainty: Share
    covers: Covered  # Whether the limit is proved for future rows or only for these rows.
    score: Literal["confidence"] = "confidence"  # The score that ranks rows.
    threshold: Share | None  # Rows above this score are accepted; None accepts no row.
    share: Share  # The share of accepted rows.
    rows: Number  # Number of target rows of `splits`.
    splits: tuple[str, ...]
    is_promise: bool  # Whether labels prove the limit on the error rate.
    expected: CurvePoint | None  # The share of accepted rows, and their expected error rate.
    labels: LabelUse | None
    # Number of labels with which the limit can probably be proved; 0 if no number is enough.
    labels_needed: Count
    promised_share: Share  # The share of accepted rows to expect with `labels_needed` labels.
    curve: tuple[CurvePoint, ...]  # The expected error for evenly spaced shares of accepted rows.
    # Like `curve`, but without the errors of source rows. These points decide the order of tests.
    planned: tuple[CurvePoint, ...]
    sets: SetRule | None
    notes: tuple[str, ...]
    inputs: tuple[Input, ...]  # The files of data and calibration.
    cost: CostPoint | None = None  # The share with the lowest cost; None if the user gave no costs.
    costs: Costs | None = None  # The costs that the user gave; None in older files.
    by: str | None = None  # The column of the groups, or "predicted".
    groups: tuple[GroupPoint, ...] = ()
    promise_by: str | None = None  # A column, or "predicted", if each group has its own limit.
    promised_chance: Share = 0.0  # The probability that `labels_needed` labels are enough.
    warnings: tuple[str, ...] = ()
    scaling_sha256: str = ""  # `Calibration.scaling_sha256`; "" in older files.

    def __post_init__(self) -> None:
        require_shares(error=self.error, certainty=self.certainty)
        if not self.splits or not set(self.splits) <= set(SPLITS):
            raise ValueError(f"splits must be some of {', '.join(SPLITS)}")
        shares = [point.share for point in self.planned]
        if not shares or shares != sorted(set(shares)):
            raise ValueError("'planned' is empty, or its shares are not in ascending order")
        if self.is_promise and self.labels is None and self.promise_by is None:
            raise ValueError("is_promise is true, but there are no labels")
        for roles in (("calibration",), ROLES_OF_ROWS):
            if not any(entry.role in roles for entry in self.inputs):
                raise ValueError(f"inputs have no {' or '.join(roles)} file")

    @property
    def accepts_rows(self) -> bool:
        """Whether the user asked for accepted rows, and not only for prediction sets."""
        return self.error is not None or self.cost is not None

    @property
    def counted(self) -> str:
        """A description in words of the rows to which `share` refers."""
        return f"the target {' and '.join(self.splits)} rows"

    @property
    def accept_above(self) -> float:
        """The score above which rows are accepted; 1 accepts no row."""
        return 1.0 if self.threshold is None else self.threshold

    def accepts(self, scores: Floats, domain: Domain, rows: Rows) -> Booleans:
        """Return which rows of a domain are accepted, by their scores.

        Rows of groups that are not in the decision are not accepted. Raises `CovcalError` if the
        file has no column of groups.
        """
        if self.promise_by is None:
            return np.asarray(scores > self.accept_above)
        names = [group.name for group in self.groups]
        above = [1.0 if group.threshold is None else group.threshold for group in self.groups]
        of_rows = values_by_group(domain, self.promise_by, rows, names, above, 1.0)
        return np.asarray(scores > of_rows)

    @property
    def calibration(self) -> Input:
        """The calibration whose confidence ranks the rows."""
        return next(entry for entry in self.inputs if entry.role == "calibration")

    @property
    def rows_file(self) -> Path:
        """The path of the features or adapted file with the rows."""
        return next(entry.path for entry in self.inputs if entry.role in ROLES_OF_ROWS)

    def was_made_with(self, calibration: Path) -> bool:
        """Return whether a cal.json gives every row the same confidence as the decision's cal.json.

        The notes and checks in the cal.json do not matter.
        """
        if self.calibration.sha256 == sha256_of(calibration):
            return True
        return read_calibration(calibration).scaling_sha256 == self.scaling_sha256


def beliefs_of(curve: Sequence[CurvePoint], parts: Sequence[float]) -> list[Float64s]:
    """Return the expected errors at each point of a curve, as a share of all rows.

    In `parts`, 0 stands for the expected error, 1 for the upper end of its range, and -1 for the
    lower end.
    """
    share, error, low, high = np.array([(p.share, p.error, p.low, p.high) for p in curve]).T
    errors = [error + abs(part) * ((high if part > 0 else low) - error) for part in parts]
    return [np.concatenate([[0.0], share * of_part]) for of_part in errors]


def read_decision(path: str | Path, *calibrations: str | Path) -> Decision:
    """Read a decide.json that was made with one of the `calibrations`.

    Raises `CovcalError` if the file cannot be read, or was made with another calibration.
    """
    path, remedy = Path(path), "make it with covcal decide"
    decision = read_document(Decision, path, remedy=remedy, again="decide again")
    if not any(decision.was_made_with(Path(calibration)) for calibration in calibrations):
        raise CovcalError(
            f"{path} was not made with {' or '.join(map(str, calibrations))}: run covcal decide "
            "again, or pass the calibration of this decision with -c"
        )
    return decision


def input_of(path: str | Path, *roles: str) -> Path:
    """Return the path of the first input of a decide.json whose role is in `roles`."""
    decision = read_document(Decision, Path(path), remedy="make it with covcal decide")
    entry = next(entry for entry in decision.inputs if entry.role in roles)
    if leaves_folder_of(entry.path, Path(path)) or not entry.path.is_file():
        remedy = "pass it with -c" if entry.role == "calibration" else "name the file to read"
        raise CovcalError(
            f"{path} was made with {entry.path}, which is missing or outside the folder: {remedy}"
        )
    return entry.path
