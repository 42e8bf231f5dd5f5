"""A fitted calibration: what cal.json holds.

The confidence of a row is the probability that the calibrated forecaster gives to the label which
the ORIGINAL classifier predicted; that label is never changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from covcal_cli.formats.features import FeatureFile, ForecasterName
from covcal_cli.records import Document, Guard, Input, at, read_document, write_document

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


@dataclass(frozen=True)
class LabelledRows:
    """The target rows whose labels a calibration was fitted to."""

    n: int
    seed: int
    sha256: str  # of the ids
    ids: tuple[str, ...]  # ascending


def _source_prior() -> Mapping[str, Any]:
    return {"name": "source", "shares": None}


@dataclass(frozen=True, kw_only=True)
class Calibration(Document):
    """Everything that ``covcal calibrate`` found; fields with a default are younger than others.

    Raises
    ------
    ValueError
        If no calibration can be like this: on reading, the file is damaged.
    """

    schema: ClassVar[str] = "covcal.calibration/1"

    method: str  # asked for
    method_used: str  # in force, and why in one sentence
    reason: str
    forecaster: ForecasterName  # whose logits T_f scales
    # Probabilities are softmax(z / T_f).
    forecaster_temperature: float = field(metadata=at("temperatures.forecaster"))
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
    # The name as asked, and the shares per class where they are not the source's.
    target_prior: Mapping[str, Any] = field(default_factory=_source_prior)
    used_target_labels: bool = False  # by ``covcal calibrate-labelled`` alone
    labelled_rows: LabelledRows | None = None
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    seed: int
    classes: tuple[str, ...]
    model: Mapping[str, str]  # name and sha256 of the classifier
    feature_columns: tuple[str, ...] = ()  # of a table, in the order that the model reads them
    networks_sha256: str | None  # of the aligned networks, where the method needs them
    inputs: tuple[Input, ...]

    def __post_init__(self) -> None:
        if not _LEAST_TEMPERATURE < self.forecaster_temperature < 1 / _LEAST_TEMPERATURE:
            raise ValueError(f"temperatures.forecaster is {self.forecaster_temperature}")
        for name in ("name", "sha256"):
            if name not in self.model:
                raise ValueError(f"model.{name} is missing")
        if not self.inputs:
            raise ValueError("inputs is empty")


def model_of(file: FeatureFile) -> dict[str, str]:
    """Return name and sha256 of the classifier that a file comes from; empty where unknown."""
    return {name: str(file.attributes.get(f"model_{name}", "")) for name in ("name", "sha256")}


def write_calibration(calibration: Calibration, path: Path, *, force: bool) -> None:
    """Write cal.json, whole or not at all."""
    write_document(calibration, path, force=force)


def read_calibration(path: Path) -> Calibration:
    """Read a cal.json.

    Raises
    ------
    CovcalError
        If the file is missing, is not JSON, or is not a calibration that this version reads.
    """
    return read_document(
        Calibration, path, remedy="make it with covcal calibrate", again="calibrate again"
    )
