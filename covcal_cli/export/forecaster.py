"""Define the calibrated forecaster that export adds to a model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from covcal_cli.arrays import Float32s, Float64s, Floats
from covcal_cli.classifiers.classifier import Outputs
from covcal_cli.errors import CovcalError
from covcal_cli.files import leaves_folder_of
from covcal_cli.forecast import AlignedNetworks, fitted_networks
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import FEATURES_FILE, FeatureFile
from covcal_cli.formats.lineage import is_unchanged, was_made_from
from covcal_cli.maths.networks import Networks, aligned_logits
from covcal_cli.maths.softmax import ForecasterName, Scaling, class_major, log_mean_softmax

# The names of the new outputs; `free_name` replaces a name that the model already has.
ADDED = ("probabilities", "label", "confidence")
ACCEPT = "accept"  # The extra output for --decide.
_STORED_ROWS = 256


@dataclass(frozen=True)
class Forecaster:
    """A calibrated forecaster in NumPy, to check exported models."""

    scaling: Scaling
    networks: Networks | None  # None if the logits of the classifier are scaled.
    accept_above: float | None = None  # Confidence above which rows are accepted.
    of_labels: Sequence[Scaling] = ()  # The scaling of each label, for several labels.

    @property
    def added(self) -> tuple[str, ...]:
        """The names of the new outputs."""
        if self.of_labels:
            return ADDED[:1]
        return ADDED if self.accept_above is None else (*ADDED, ACCEPT)

    def probabilities(self, features: Float32s | None, logits: Float32s) -> Float64s:
        """Return calibrated probabilities, (n, K), from phi, (n, d), and logits, (n, K)."""
        if self.of_labels:
            return np.stack(
                [
                    scaling.forecast([np.stack([np.zeros_like(z), z])]).probabilities[1]
                    for scaling, z in zip(self.of_labels, logits.T.astype(np.float64), strict=True)
                ],
                axis=1,
            )
        sources: dict[ForecasterName, Floats] = {"original": logits}
        if self.networks is not None and features is not None:
            sources["aligned"] = log_mean_softmax(aligned_logits(self.networks, features)).T
        blocks = [class_major(sources[name]) for name in self.scaling.temperatures]
        probabilities: Float64s = self.scaling.forecast(blocks).probabilities.T
        return probabilities


@dataclass(frozen=True)
class StoredRows:
    """Rows of the calibration's features file, for a second check."""

    features: Float32s | None  # phi, (n, d); None if not needed.
    logits: Float32s  # The classifier's logits, (n, K).


@dataclass(frozen=True)
class Merge:
    """A calibrated forecaster to add to a model, and the file to write."""

    forecaster: Forecaster
    stored: StoredRows | None  # Rows for the second check; None without their file.
    metadata: Mapping[str, str]
    output: Path
    force: bool  # Whether to replace existing files.
    inputs: Sequence[Path]  # Files that must not be replaced.


@dataclass(frozen=True)
class Agreement:
    """The differences between an exported model, the original model and NumPy."""

    rows: int  # Number of random inputs.
    stored_rows: int  # Number of checked `StoredRows`.
    output_error: float  # Largest relative change of an original output.
    probability_error: float  # Largest difference from NumPy's probabilities.
    label_is_not_top: int = 0  # Number of stored rows whose label is not the most probable class.


@dataclass(frozen=True)
class ExportReport:
    """An exported model, with its differences from the original model."""

    output: Path
    kept: tuple[str, ...]  # Names of the original outputs.
    added: tuple[str, ...]  # Names of the new outputs.
    weights: Path | None  # The file with large weights beside the model, if there is one.
    agreement: Agreement


class Original(Protocol):
    """A classifier, opened as in `extract`, and run on random inputs."""

    features_tensor: str | None
    logits_tensor: str
    n_features: int | None
    model_outputs: Float32s  # The outputs for the random inputs.
    settled: Outputs  # Converts `model_outputs` to logits.

    def write(self, merge: Merge) -> ExportReport:
        """Write the new model if it passes all checks."""
        ...


@dataclass(frozen=True)
class Exporter:
    """A model to which a calibrated forecaster can be added."""

    sha256: str
    outputs: Sequence[str]  # The names of the model's outputs.
    # Opens the classifier, given the name of an output and the value of ``--phi``.
    original: Callable[[str | None, str | None], Original]


def free_name(name: str, taken: set[str]) -> str:
    """Return `name`, or the first free name of calibrated_NAME, calibrated_NAME_2 and so on."""
    if name not in taken:
        return name
    free, number = f"calibrated_{name}", 2
    while free in taken:
        free, number = f"calibrated_{name}_{number}", number + 1
    return free


_TENSORS = ("features_tensor", "logits_tensor", "tail")


@dataclass(frozen=True)
class Tensors:
    """The names of features and logits in a model, and the function from logits to output."""

    features: str | None  # The names of the feature tensors, joined by " + ".
    logits: str | None
    tail: str | None  # The function from the logits to the output.


def extracted_tensors(calibration: Calibration, networks: Path | None) -> Tensors:
    """Return the names of the tensors, from the calibration or from its features file."""
    reading = calibration.reading
    path = networks or calibration.inputs[0].path
    is_here = path.is_file() and not (networks is None and calibration.inputs[0].is_outside)
    if not reading and is_here:
        with FeatureFile(path) as file:
            if file.model["sha256"] == calibration.model["sha256"]:
                reading = file.attributes
    names = map(reading.get, _TENSORS)
    return Tensors(*(str(name) if name else None for name in names))


def calibrated_networks(calibration: Calibration, networks: Path | None) -> AlignedNetworks | None:
    """Return a calibration's networks; None if the calibration scales the classifier's logits."""
    if not calibration.scaling.reads_aligned:
        if networks is not None:
            raise CovcalError(
                f"{calibration.path} ({calibration.method_used}) scales the model's own logits: "
                "leave out --networks"
            )
        return None
    return fitted_networks(calibration, networks)


def stored_rows(calibration: Calibration, networks: Path | None) -> StoredRows | None:
    """Return rows of the calibration's features file; None if the file is missing or changed."""
    if networks is None and not is_unchanged(calibration.inputs[0]):
        return None
    path = networks or calibration.inputs[0].path
    if not path.is_file():
        return None
    with FeatureFile(path) as file:
        if calibration.scaling.reads_aligned and file.is_adapted:
            path = path.parent / str(file.attributes.get(FEATURES_FILE, ""))
            if leaves_folder_of(path, file.path) or not path.is_file():
                return None
            if not was_made_from(file.attributes, path):
                return None
    with FeatureFile(path) as file:
        domain = file.target or file.source
        if domain is None or file.model["sha256"] != calibration.model["sha256"]:
            return None
        rows = np.arange(min(_STORED_ROWS, domain.n), dtype=np.int64)
        if not calibration.scaling.reads_aligned:
            return StoredRows(None, domain.logits(rows))
        if domain.n_features is None:
            return None
        return StoredRows(domain.features(rows), domain.logits(rows))
