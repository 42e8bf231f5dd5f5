"""The calibration in a cal.json.

A calibrated confidence is the probability of the classifier's predicted class (MATHEMATICS, section
6).
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from covcal_cli.errors import CovcalError
from covcal_cli.files import leaves_folder_of
from covcal_cli.maths.softmax import Forecasters, Scaling
from covcal_cli.maths.source_accuracy import SourceAccuracy
from covcal_cli.records import (
    NOT_STORED,
    Count,
    Document,
    Guard,
    Input,
    NonNegative,
    Number,
    Positive,
    Share,
    Within,
    at,
    read_document,
    require_ascending,
    require_fields,
)

_SHARES_TOLERANCE = 1e-6
# The required numbers in each JSON object of a calibration, with their ranges. An object may be
# null.
_INTERVAL = {"accuracy": Share, "accuracy_low": Share, "accuracy_high": Share}
_NUMBERS: Mapping[str, Mapping[str, Any]] = {
    "fit": {"rows": Count, "errors": Count, "loss": NonNegative, "loss_before": NonNegative},
    "weights": {
        "n": Count,
        "ess": NonNegative,
        "ess_share": Share,
        "ess_fit": NonNegative,
        "ess_fit_share": Share,
        "mean_weight": NonNegative,
        "clipped_share": Share,
        "largest_share": Share,
        "domain_auc": Share,
        "discriminator_error": Share,
    },
    "bound": {"weighted_error": NonNegative, "discriminator_error": Share},
    "estimates": {"target_confidence_before": Share | None, "target_confidence": Share | None},
    "estimates.labelled": {**_INTERVAL, "ece": Share, "ece_low": Share, "ece_high": Share},
}
_LARGEST_OFFSET = 100.0  # With log odds above 100, a float32 probability is 0 or 1.
_LEAST_TEMPERATURE = 1e-100  # With T below 1e-100 or above 1e100, scaled logits would overflow.


@dataclass(frozen=True)
class Candidate:
    """A method that ``auto`` compares."""

    method: str
    temperature: Positive  # The fitted temperature T_f.
    target_confidence: Share | None  # Mean confidence on target training and validation rows.
    estimated_accuracy: Share | None  # Estimated target accuracy, the same for all candidates.
    expected_ece: Share | None  # Absolute difference of target confidence and estimated accuracy.
    chosen: bool
    why: str  # The reason why auto chose or did not choose the method.
    # A lower limit of the ECE if the accuracy estimate is right. The limit is None if `matched`.
    least_ece: Share | None = None
    # Whether T was chosen so that the mean confidence equals the estimated accuracy.
    matched: bool = False
    # T_a of the aligned logits, if the method uses both kinds of logits.
    aligned_temperature: Positive | None = None


_HASH = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True)
class LabelledRows:
    """The labelled target rows of a fit."""

    n: Number
    seed: int
    sha256: str  # Hash of the ids.
    ids: tuple[str, ...]  # Sorted.
    design: str = "random"  # "random", or "marked" for rows that ``pick`` drew in batches.
    population: Number | None = None  # Number of rows from which the rows were drawn.
    batches: tuple[Count, ...] = ()  # Number of rows in each batch.
    # Hash of the logits of each row, in the order of the ids; empty in older files.
    logits: tuple[str, ...] = ()


@dataclass(frozen=True)
class TargetPrior:
    """The assumed class frequencies on the target."""

    name: str  # The value of --target-prior.
    shares: tuple[Share, ...] | None  # One share per class; None if equal to the source's shares.


SOURCE_PRIOR = TargetPrior("source", None)
# The first words of a warning: labels show that the calibrated confidence is wrong.
CONTRADICTED = "the labels contradict this calibration"


@dataclass(frozen=True, kw_only=True)
class Calibration(Document):
    """A calibration. Fields with a default may be missing in older files."""

    schema: ClassVar[str] = "covcal.calibration/1"

    method: str  # The method that the user asked for.
    method_used: str
    reason: str
    forecaster: Forecasters  # Which logits are scaled: original, aligned, or both (blend).
    # The calibrated probabilities are softmax(z / T_f + b + a 1[k = f]). f is the predicted class.
    # This field is T_f. For most methods, the offsets a and b are 0.
    forecaster_temperature: Positive = field(metadata=at("temperatures.forecaster"))
    # T_a of the aligned logits, if the forecaster is a blend.
    aligned_temperature: Positive | None = field(default=None, metadata=at("temperatures.aligned"))
    # T_g of each discriminator; empty without importance weights.
    discriminator_temperatures: tuple[Positive, ...] = field(
        metadata=at("temperatures.discriminator")
    )
    discriminator: str | None  # "logistic" or "network"; None without importance weights.
    max_weight: Annotated[float, Within(1)]  # U, the limit of importance weights.
    loss: str  # The loss function: "brier" or "nll".
    # The fit of T_f: rows, errors, loss before and after, and the bound that T_f reached, if any.
    fit: Mapping[str, Any]
    weights: Mapping[str, Any] | None  # The fields of `WeightHealth`; None without weights.
    bound: Mapping[str, Any] | None  # The terms of the paper's Theorem 1; None without weights.
    # Mean confidence on target validation rows, before and after calibration.
    estimates: Mapping[str, Any]
    guards: tuple[Guard, ...] = ()  # Checks of the assumptions of the method.
    candidates: tuple[Candidate, ...] = ()  # The methods in the comparison of `auto`.
    target_prior: TargetPrior = SOURCE_PRIOR
    # The offset b of each class, log(q_y / p_y); empty if class frequencies are not corrected.
    class_offsets: tuple[float, ...] = ()
    # The offset a in the log odds of the confidence.
    confidence_offset: float = 0.0
    # Whether T was fitted to target labels from covcal label or from --labels N.
    used_target_labels: bool = False
    labelled_rows: LabelledRows | None = None
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    seed: int
    classes: tuple[str, ...]
    model: Mapping[str, str]  # Name and sha256 of the classifier.
    source_accuracy: SourceAccuracy | None = None  # None if unknown.
    # The columns of a table, in the model's order.
    feature_columns: tuple[str, ...] = ()
    # How the model was read: tail, preprocessing of images, tensors of phi and of the logits.
    # Unknown facts have no key.
    reading: Mapping[str, Any] = field(default_factory=dict)
    networks_sha256: str | None  # Hash of the networks of `adapt`; None without networks.
    inputs: tuple[Input, ...]
    path: Path = field(default=Path("cal.json"), compare=False, metadata=NOT_STORED)

    @property
    def target_confidence(self) -> tuple[float | None, float | None]:
        """Return the mean target confidence before and after calibration.

        The means are over the rows that the accuracy estimate uses.
        """
        estimates = self.estimates
        return estimates.get("target_confidence_before"), estimates.get("target_confidence")

    @property
    def scaling(self) -> Scaling:
        """The temperatures and offsets that scale logits."""
        return Scaling(
            self.forecaster,
            self.forecaster_temperature,
            self.aligned_temperature,
            offsets=np.array(self.class_offsets) if self.class_offsets else None,
            of_label=self.confidence_offset,
        )

    @property
    def scaling_sha256(self) -> str:
        """A hash of everything that decides the confidence of a row.

        Two calibrations with the same hash give every row the same confidence.
        """
        content = [
            self.method_used,
            self.forecaster,
            self.forecaster_temperature,
            self.aligned_temperature,
            self.class_offsets,
            self.confidence_offset,
            self.networks_sha256,
            self.classes,
            [entry.sha256 for entry in self.inputs],
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def read_calibration(path: str | Path) -> Calibration:
    """Read a cal.json.

    Raises
    ------
    CovcalError
        If the file is missing or is not a calibration of this version.
    """
    path = Path(path)
    calibration = read_document(
        Calibration, path, remedy="make it with covcal calibrate", again="calibrate again"
    )
    try:
        _require_numbers(calibration)
        fault = _fault(calibration)
    except ValueError as error:
        fault = str(error)
    if fault is not None:
        raise CovcalError(f"{path} is damaged ({fault}): calibrate again")
    inputs = (
        replace(entry, is_outside=leaves_folder_of(entry.path, path))
        for entry in calibration.inputs
    )
    return replace(calibration, inputs=tuple(inputs), path=path)


def _require_numbers(calibration: Calibration) -> None:
    estimates = calibration.estimates
    labelled = estimates.get("labelled")
    if calibration.labelled_rows is not None and labelled is None:
        raise ValueError("estimates.labelled is missing")
    maps = {
        "fit": calibration.fit,
        "weights": calibration.weights,
        "bound": calibration.bound,
        "estimates": estimates,
        "estimates.labelled": labelled,
    }
    for place, content in maps.items():
        if content is not None:
            require_fields(place, content, _NUMBERS[place])
    if "rows" in calibration.fit:
        require_ascending(errors=calibration.fit["errors"], rows=calibration.fit["rows"])
    for place, content in (("estimates", estimates), ("estimates.labelled", labelled)):
        if content is not None and "accuracy" in content:
            require_fields(place, content, _INTERVAL)
            low, high = content["accuracy_low"], content["accuracy_high"]
            require_ascending(accuracy_low=low, accuracy=content["accuracy"], accuracy_high=high)


def _fault(calibration: Calibration) -> str | None:
    aligned = calibration.aligned_temperature
    if (aligned is not None) != (calibration.forecaster == "blend"):
        return f"temperatures.aligned is {aligned}, but the forecaster is {calibration.forecaster}"
    temperatures = {"forecaster": calibration.forecaster_temperature, "aligned": aligned}
    for name, temperature in temperatures.items():
        if temperature is None:
            continue
        if not _LEAST_TEMPERATURE < temperature < 1 / _LEAST_TEMPERATURE:
            return f"temperatures.{name} is {temperature}"
    if aligned is not None and calibration.class_offsets:
        return "class_offsets must be empty for a blend"
    if len(calibration.class_offsets) not in (0, len(calibration.classes)):
        return f"class_offsets has {len(calibration.class_offsets)} numbers"
    if not (np.abs(calibration.class_offsets) < _LARGEST_OFFSET).all():
        return "class_offsets is too large"
    if not abs(calibration.confidence_offset) < _LARGEST_OFFSET:
        return f"confidence_offset is {calibration.confidence_offset}"
    if calibration.confidence_offset and calibration.forecaster != "original":
        return f"confidence_offset must be 0 if the forecaster is {calibration.forecaster}"
    for name in ("name", "sha256"):
        if name not in calibration.model:
            return f"model.{name} is missing"
    shares = calibration.target_prior.shares
    if shares is not None:
        if len(shares) != len(calibration.classes):
            return f"target_prior.shares has {len(shares)} entries"
        if min(shares) < 0 or not abs(sum(shares) - 1) < _SHARES_TOLERANCE:
            return "the values of target_prior.shares are negative or do not add up to 1"
    rows = calibration.labelled_rows
    if rows is not None and rows.n != len(rows.ids):
        return f"labelled_rows has {len(rows.ids)} ids, not {rows.n}"
    if rows is not None and rows.logits and len(rows.logits) != rows.n:
        return f"labelled_rows has hashes of {len(rows.logits)} rows, not {rows.n}"
    if rows is not None and not all(map(_HASH.fullmatch, rows.logits)):
        return "labelled_rows.logits has a text that is not a hash"
    if not calibration.classes:
        return "classes is empty"
    return None if calibration.inputs else "inputs is empty"
