"""The calibrated forecaster, its merge into a model, and the rows and tensors of its fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from covcal_cli.arrays import Float32s, Float64s, Floats
from covcal_cli.errors import CovcalError
from covcal_cli.files import leaves_folder_of
from covcal_cli.forecast import AlignedNetworks, fitted_networks
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import FEATURES_FILE, FeatureFile
from covcal_cli.formats.lineage import is_unchanged, was_made_from
from covcal_cli.maths.networks import Networks, aligned_logits
from covcal_cli.maths.softmax import ForecasterName, Scaling, class_major, log_mean_softmax

# Names of the added outputs; `free_name` changes a name that the model already uses.
ADDED = ("probabilities", "label", "confidence")
ACCEPT = "accept"  # added by a decision
_STORED_ROWS = 256


@dataclass(frozen=True)
class Forecaster:
    """A calibrated forecaster in NumPy, the reference for every framework."""

    scaling: Scaling
    # /networks of an adapted file; None if the classifier's own logits are scaled.
    networks: Networks | None
    # A decision accepts rows with a larger confidence; None without a decision.
    accept_above: float | None = None

    @property
    def added(self) -> tuple[str, ...]:
        """Names of the outputs that are added."""
        return ADDED if self.accept_above is None else (*ADDED, ACCEPT)

    def probabilities(self, features: Float32s | None, logits: Float32s) -> Float64s:
        """Return calibrated probabilities, shape (n, K), of phi (n, d) and the logits (n, K)."""
        sources: dict[ForecasterName, Floats] = {"original": logits}
        if self.networks is not None and features is not None:
            sources["aligned"] = log_mean_softmax(aligned_logits(self.networks, features)).T
        blocks = [class_major(sources[name]) for name in self.scaling.temperatures]
        probabilities: Float64s = self.scaling.forecast(blocks).probabilities.T
        return probabilities


@dataclass(frozen=True)
class StoredRows:
    """Rows of the calibration's own file, on which the merged part is checked."""

    features: Float32s | None  # phi, (n, d); None for a calibration of the classifier's own logits
    logits: Float32s  # the classifier's, (n, K)


@dataclass(frozen=True)
class Merge:
    """A calibration to merge, and the file to write."""

    forecaster: Forecaster
    stored: StoredRows | None  # rows of the file, for a second check of the merged part
    metadata: Mapping[str, str]
    output: Path
    force: bool  # replace files that exist
    inputs: Sequence[Path]  # files that must never be replaced


@dataclass(frozen=True)
class Agreement:
    """The differences of an exported model from the original and from NumPy."""

    rows: int  # random inputs
    # Rows of the calibration's file with which the merged part was checked; 0 if there are none.
    stored_rows: int
    # Change of the original outputs, relative to the largest value; 0: bit-equal.
    output_error: float
    probability_error: float  # largest absolute difference from NumPy's probabilities
    label_is_not_top: int = 0  # stored rows in which another class is more probable than the label


@dataclass(frozen=True)
class ExportReport:
    """A written model."""

    output: Path
    kept: tuple[str, ...]  # names of the original outputs, which did not change
    added: tuple[str, ...]  # the names of probabilities, label and confidence
    weights: Path | None  # the file of external weights beside it
    agreement: Agreement


class Original(Protocol):
    """A classifier as extraction opened it, run on random inputs."""

    features_tensor: str | None
    logits_tensor: str
    n_features: int | None

    @property
    def tail(self) -> str | None:
        """The function that turns the logits into the output; None if it was not recognised."""
        ...

    def settle_on(self, tail: str | None) -> None:
        """Read the outputs as extraction did; if `tail` is None, the random inputs decide."""
        ...


OriginalT = TypeVar("OriginalT", bound=Original)


class Exporter(Protocol[OriginalT]):
    """A model into which a calibrated forecaster can be merged."""

    sha256: str
    outputs: Sequence[str]  # names

    def original(self, output: str | None, phi: str | None) -> OriginalT:
        """Open the classifier by the name of its output and ``--phi``, as extraction does."""
        ...

    def write(self, original: OriginalT, merge: Merge) -> ExportReport:
        """Write the merged model after it passed all checks, else write nothing."""
        ...


def free_name(name: str, taken: set[str]) -> str:
    """Return `name`, or ``calibrated_NAME`` if the model uses it, numbered if needed."""
    if name not in taken:
        return name
    free, number = f"calibrated_{name}", 2
    while free in taken:
        free, number = f"calibrated_{name}_{number}", number + 1
    return free


# The tensors, networks and rows of a calibration's fit.


_TENSORS = ("features_tensor", "logits_tensor", "tail")


@dataclass(frozen=True)
class Tensors:
    """The names of a model's tensors in a file of covcal; None if the file lacks them."""

    features: str | None = None  # names of phi's tensors
    logits: str | None = None
    tail: str | None = None  # the function that turns the logits into the output


def extracted_tensors(calibration: Calibration, networks: Path | None) -> Tensors:
    """Return the extracted tensors that the calibration names, or else its features file."""
    if calibration.reading:
        names = map(calibration.reading.get, _TENSORS)
        return Tensors(*(str(name) if name else None for name in names))
    path = networks or calibration.inputs[0].path
    if not path.is_file() or (networks is None and calibration.inputs[0].is_outside):
        return Tensors()
    with FeatureFile(path) as file:
        if file.model["sha256"] != calibration.model["sha256"]:
            return Tensors()
        names = map(file.attributes.get, _TENSORS)
    return Tensors(*(str(name) if name else None for name in names))


def calibrated_networks(
    calibration: Calibration, document: Path, networks: Path | None
) -> AlignedNetworks | None:
    """Return the networks of an fl calibration; None if it scales the classifier's own logits."""
    if not calibration.scaling.reads_aligned:
        if networks is not None:
            raise CovcalError(
                f"{document} ({calibration.method_used}) scales the model's own logits: leave "
                "out --networks"
            )
        return None
    return fitted_networks(calibration, document, networks)


def stored_rows(calibration: Calibration, networks: Path | None) -> StoredRows | None:
    """Return the first rows of the calibration's file; None if it is gone or has changed.

    An adapted file holds no phi, so phi is read from the features file that it names.
    """
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
