"""A fitted calibration, as cal.json holds it.

The confidence that it makes is of the label which the ORIGINAL classifier predicted, whatever the
forecaster's own would be (MATHEMATICS, section 6).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from covcal_cli.errors import CovcalError
from covcal_cli.maths.scaling import Forecasters, Scaling
from covcal_cli.maths.source_accuracy import SourceAccuracy
from covcal_cli.maths.weights import WeightHealth
from covcal_cli.records import Document, Guard, Input, at, read_document

_SHARES_TOLERANCE = 1e-6
_LARGEST_OFFSET = 100.0  # of log odds: beyond it float32 knows certainty alone
_LEAST_TEMPERATURE = 1e-100  # beyond it, or its inverse, scaled logits would overflow


@dataclass(frozen=True)
class Candidate:
    """A method that ``auto`` looked at."""

    method: str
    temperature: float  # its T_f
    target_confidence: float | None  # mean on target training and validation rows
    estimated_accuracy: float | None  # of the target, the same for all candidates
    expected_ece: float | None  # the distance between the two
    chosen: bool
    why: str  # it was chosen, or was not; a few words
    # What the ECE is at least, if the estimate is right: that distance, but none where it is about
    # 0 because T was matched to the estimate.
    least_ece: float | None = None
    matched: bool = False
    aligned_temperature: float | None = None  # T_a of a blend


@dataclass(frozen=True)
class LabelledRows:
    """The target rows whose labels a calibration was fitted to."""

    n: int
    seed: int
    sha256: str  # of the ids
    ids: tuple[str, ...]  # ascending
    design: str = "random"  # or "marked": drawn by ``pick``, batch by batch
    population: int | None = None  # rows that they were drawn from
    batches: tuple[int, ...] = ()  # how many of each


@dataclass(frozen=True)
class TargetPrior:
    """How frequent the classes are taken to be on the target."""

    name: str  # as asked
    shares: tuple[float, ...] | None  # in the order of the classes; None: as on the source


SOURCE_PRIOR = TargetPrior("source", None)


@dataclass(frozen=True, kw_only=True)
class Calibration(Document):
    """Everything that ``covcal calibrate`` found; fields with a default are younger than others."""

    schema: ClassVar[str] = "covcal.calibration/1"

    method: str  # asked for
    method_used: str  # in force, and why in one sentence
    reason: str
    forecaster: Forecasters  # whose logits are scaled, as `scaling` has it
    # T_f of softmax(z / T_f + b + a 1[k = f]), with b the class offsets and a that of the
    # classifier's label f, where there are any.
    forecaster_temperature: float = field(metadata=at("temperatures.forecaster"))
    aligned_temperature: float | None = field(  # of a blend
        default=None, metadata=at("temperatures.aligned")
    )
    # T_g per member; none where no weights were computed, and then no discriminator either.
    discriminator_temperatures: tuple[float, ...] = field(metadata=at("temperatures.discriminator"))
    discriminator: str | None  # "logistic" or "network"
    max_weight: float  # U
    loss: str  # what T_f minimises, "brier" or "nll"
    fit: Mapping[str, Any]  # of T_f: rows, errors, loss before and after, limit
    weights: Mapping[str, Any] | None  # `WeightHealth` and `BoundTerms` where there are weights
    bound: Mapping[str, Any] | None
    # Mean confidence on target validation rows, before and after: without labels, what the
    # accuracy there is taken to be.
    estimates: Mapping[str, Any]
    guards: tuple[Guard, ...] = ()  # what the method rests on
    candidates: tuple[Candidate, ...] = ()  # what `auto` chose from
    target_prior: TargetPrior = SOURCE_PRIOR
    # b, one per class: log(q_y / p_y) of the methods that correct for a prior, else none.
    class_offsets: tuple[float, ...] = ()
    # a, added to the log odds of the probability of the classifier's label.
    confidence_offset: float = 0.0
    used_target_labels: bool = False  # those that the user marked, or said how many of
    labelled_rows: LabelledRows | None = None
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    seed: int
    classes: tuple[str, ...]
    model: Mapping[str, str]  # name and sha256 of the classifier
    source_accuracy: SourceAccuracy | None = None  # the classifier's; None without labelled rows
    feature_columns: tuple[str, ...] = ()  # of a table, in the order that the model reads them
    # How the model was read: what follows the logits, what was done to images (null for none), and
    # the tensors of phi and the logits; a key that is missing is not known.
    reading: Mapping[str, Any] = field(default_factory=dict)
    networks_sha256: str | None  # of the aligned networks, where the method needs them
    inputs: tuple[Input, ...]

    @property
    def scaling(self) -> Scaling:
        """What it does to logits."""
        return Scaling(
            self.forecaster,
            self.forecaster_temperature,
            self.aligned_temperature,
            offsets=np.array(self.class_offsets) if self.class_offsets else None,
            of_label=self.confidence_offset,
        )


def read_calibration(path: str | Path) -> Calibration:
    """Read a cal.json.

    Raises
    ------
    CovcalError
        If the file is missing, is not JSON, or is not a calibration that this version reads.
    """
    path = Path(path)
    found = read_document(
        Calibration, path, remedy="make it with covcal calibrate", again="calibrate again"
    )
    fault = _fault(found)
    if fault is not None:
        raise CovcalError(f"{path} is damaged ({fault}): calibrate again")
    return found


def _fault(calibration: Calibration) -> str | None:
    """Return what no calibration can be like, though its fields are of the right kind."""
    aligned = calibration.aligned_temperature
    if (aligned is not None) != (calibration.forecaster == "blend"):
        return f"temperatures.aligned is {aligned} of the forecaster {calibration.forecaster}"
    given = {"forecaster": calibration.forecaster_temperature, "aligned": aligned}
    for name, temperature in given.items():
        if temperature is None:
            continue
        if not _LEAST_TEMPERATURE < temperature < 1 / _LEAST_TEMPERATURE:
            return f"temperatures.{name} is {temperature}"
    if aligned is not None and calibration.class_offsets:
        return "class_offsets of a blend"
    if len(calibration.class_offsets) not in (0, len(calibration.classes)):
        return f"class_offsets has {len(calibration.class_offsets)} numbers"
    if not np.isfinite(calibration.class_offsets).all():
        return "class_offsets is not finite"
    if not abs(calibration.confidence_offset) < _LARGEST_OFFSET:
        return f"confidence_offset is {calibration.confidence_offset}"
    if calibration.confidence_offset and calibration.forecaster != "original":
        return "confidence_offset is for the classifier's own logits"
    for name in ("name", "sha256"):
        if name not in calibration.model:
            return f"model.{name} is missing"
    if calibration.weights is not None:
        for name in (entry.name for entry in fields(WeightHealth)):
            value = calibration.weights.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                return f"weights.{name} is no number"
    shares = calibration.target_prior.shares
    if shares is not None:
        if len(shares) != len(calibration.classes):
            return f"target_prior.shares has {len(shares)} entries"
        if min(shares) < 0 or not abs(sum(shares) - 1) < _SHARES_TOLERANCE:
            return "target_prior.shares are no shares"
    return None if calibration.inputs else "inputs is empty"
