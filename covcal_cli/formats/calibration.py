"""A fitted calibration, as cal.json holds it.

The calibrated confidence is the probability of the label that the ORIGINAL classifier predicted,
even if the forecaster would predict another label (MATHEMATICS, section 6).
"""

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
# The numbers that the maps of a calibration hold, with their ranges; a map may be null.
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
_LARGEST_OFFSET = 100.0  # log odds; beyond this, a float32 probability is 0 or 1
_LEAST_TEMPERATURE = 1e-100  # below this or above its inverse, scaled logits would overflow


@dataclass(frozen=True)
class Candidate:
    """A method that ``auto`` considered."""

    method: str
    temperature: Positive  # its T_f
    target_confidence: Share | None  # mean on target training and validation rows
    # Estimated accuracy on the target, the same for all candidates.
    estimated_accuracy: Share | None
    expected_ece: Share | None  # the distance between confidence and accuracy
    chosen: bool
    why: str  # the reason why it was chosen or not, in a few words
    # The lowest possible ECE if the estimate is right. It is the distance above, or None if T was
    # matched to the estimate, which makes the distance about 0.
    least_ece: Share | None = None
    matched: bool = False
    aligned_temperature: Positive | None = None  # T_a of a blend


@dataclass(frozen=True)
class LabelledRows:
    """The labelled target rows to which a calibration was fitted."""

    n: Number
    seed: int
    sha256: str  # hash of the ids
    ids: tuple[str, ...]  # ascending
    design: str = "random"  # or "marked": rows that ``pick`` drew, batch by batch
    population: Number | None = None  # the number of rows that could be drawn
    batches: tuple[Count, ...] = ()  # the number of rows in each batch


@dataclass(frozen=True)
class TargetPrior:
    """The class frequencies that are assumed for the target."""

    name: str  # the value of --target-prior
    shares: tuple[Share, ...] | None  # one share per class; None: the shares of the source


SOURCE_PRIOR = TargetPrior("source", None)


@dataclass(frozen=True, kw_only=True)
class Calibration(Document):
    """A fitted calibration; a field with a default was added later."""

    schema: ClassVar[str] = "covcal.calibration/1"

    method: str  # the method that the user asked for
    method_used: str  # the method that was used; `reason` explains it in one sentence
    reason: str
    forecaster: Forecasters  # the forecaster whose logits are scaled
    # T_f of softmax(z / T_f + b + a 1[k = f]). The class offsets b and the offset a of the
    # classifier's label f are 0 for most methods.
    forecaster_temperature: Positive = field(metadata=at("temperatures.forecaster"))
    aligned_temperature: Positive | None = field(  # T_a of a blend
        default=None, metadata=at("temperatures.aligned")
    )
    # T_g per member; empty without weights, and then `discriminator` is None.
    discriminator_temperatures: tuple[Positive, ...] = field(
        metadata=at("temperatures.discriminator")
    )
    discriminator: str | None  # "logistic" or "network"
    max_weight: Annotated[float, Within(1)]  # U
    loss: str  # the loss that T_f minimises, "brier" or "nll"
    fit: Mapping[str, Any]  # the fit of T_f: rows, errors, loss before and after, limit
    weights: Mapping[str, Any] | None  # `WeightHealth`, and `bound`, if there are weights
    bound: Mapping[str, Any] | None
    # Mean confidence on target validation rows, before and after. It is also the accuracy that the
    # calibration implies.
    estimates: Mapping[str, Any]
    guards: tuple[Guard, ...] = ()  # checks of the method's assumptions
    candidates: tuple[Candidate, ...] = ()  # the methods that `auto` chose from
    target_prior: TargetPrior = SOURCE_PRIOR
    # b, one per class: log(q_y / p_y) for methods that correct for a prior, else empty.
    class_offsets: tuple[float, ...] = ()
    # a, added to the log odds of the probability of the classifier's label.
    confidence_offset: float = 0.0
    used_target_labels: bool = False  # labels of rows that the user labelled, or of --labels N
    labelled_rows: LabelledRows | None = None
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    seed: int
    classes: tuple[str, ...]
    model: Mapping[str, str]  # name and sha256 of the classifier
    # The classifier's source accuracy; None without labelled rows.
    source_accuracy: SourceAccuracy | None = None
    # Columns of a table, in the order in which the model reads them.
    feature_columns: tuple[str, ...] = ()
    # How the model was read: the function after the logits, the preprocessing of images (null
    # without images), and the tensors of phi and the logits. A missing key is unknown.
    reading: Mapping[str, Any] = field(default_factory=dict)
    networks_sha256: str | None  # hash of the aligned networks, if the method needs them
    inputs: tuple[Input, ...]

    @property
    def target_confidence(self) -> tuple[float | None, float | None]:
        """The mean confidence before and after, on the rows of the estimated accuracy.

        These are training and validation rows if `candidates` hold an estimate, else validation
        rows.
        """
        by_method = {entry.method: entry.target_confidence for entry in self.candidates}
        before = by_method.get("none")
        after = next((entry.target_confidence for entry in self.candidates if entry.chosen), None)
        if before is not None and after is not None:
            return before, after
        estimates = self.estimates
        return estimates.get("target_confidence_before"), estimates.get("target_confidence")

    @property
    def scaling(self) -> Scaling:
        """The scaling of logits."""
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
    return replace(calibration, inputs=tuple(inputs))


def _require_numbers(calibration: Calibration) -> None:
    """Raise ValueError, which names the key, unless the maps hold their numbers."""
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
    for place, content in (("estimates", estimates), ("estimates.labelled", labelled)):
        if content is not None and "accuracy" in content:
            require_fields(place, content, _INTERVAL)
            low, high = content["accuracy_low"], content["accuracy_high"]
            require_ascending(accuracy_low=low, accuracy=content["accuracy"], accuracy_high=high)


def _fault(calibration: Calibration) -> str | None:
    """Return the contradiction between fields that are each valid, or None."""
    aligned = calibration.aligned_temperature
    if (aligned is not None) != (calibration.forecaster == "blend"):
        return f"temperatures.aligned is {aligned} of the forecaster {calibration.forecaster}"
    temperatures = {"forecaster": calibration.forecaster_temperature, "aligned": aligned}
    for name, temperature in temperatures.items():
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
    shares = calibration.target_prior.shares
    if shares is not None:
        if len(shares) != len(calibration.classes):
            return f"target_prior.shares has {len(shares)} entries"
        if min(shares) < 0 or not abs(sum(shares) - 1) < _SHARES_TOLERANCE:
            return "target_prior.shares are not shares that add up to 1"
    rows = calibration.labelled_rows
    if rows is not None and rows.n != len(rows.ids):
        return f"labelled_rows has {len(rows.ids)} ids, not {rows.n}"
    if not calibration.classes:
        return "classes is empty"
    return None if calibration.inputs else "inputs is empty"
