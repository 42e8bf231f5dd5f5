"""The calibrated forecaster, its merge into a model of any kind, and what it was fitted on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from covcal_cli.arrays import Float32s, Float64s, Floats
from covcal_cli.errors import CovcalError
from covcal_cli.forecast.forecaster import AlignedNetworks, fitted_networks
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import FEATURES_FILE, FeatureFile
from covcal_cli.formats.lineage import is_unchanged, was_made_from
from covcal_cli.maths.networks import Networks, aligned_logits
from covcal_cli.maths.scaling import ForecasterName, Scaling
from covcal_cli.maths.softmax import class_major, log_mean_softmax

# Names of the outputs that are added, where the model does not have them.
ADDED = ("probabilities", "label", "confidence")
_STORED_ROWS = 256


@dataclass(frozen=True)
class Forecaster:
    """The calibrated forecaster, whatever the framework of the model."""

    scaling: Scaling
    # /networks of an adapted file; None scales the classifier's own logits.
    networks: Networks | None

    def probabilities(self, features: Float32s | None, logits: Float32s) -> Float64s:
        """Return calibrated probabilities, shape (n, K), of phi (n, d) and the logits (n, K)."""
        of: dict[ForecasterName, Floats] = {"original": logits}
        if self.networks is not None and features is not None:
            of["aligned"] = log_mean_softmax(aligned_logits(self.networks, features)).T
        blocks = [class_major(of[one]) for one in self.scaling.temperatures]
        probabilities: Float64s = self.scaling.forecast(blocks).probabilities.T
        return probabilities


@dataclass(frozen=True)
class StoredRows:
    """Real rows on which the merged part is checked too."""

    features: Float32s | None  # phi, (n, d); None for a calibration of the classifier's own logits
    logits: Float32s  # the classifier's, (n, K)


@dataclass(frozen=True)
class Merge:
    """What is merged, and where the result goes."""

    forecaster: Forecaster
    stored: StoredRows | None  # real rows for a second proof of the merged part
    metadata: Mapping[str, str]
    output: Path
    force: bool  # replace files that exist
    inputs: Sequence[Path]  # files that must not be replaced


@dataclass(frozen=True)
class Agreement:
    """How an exported model compares with the original on made rows."""

    rows: int
    stored_rows: int  # real rows on which the merged part alone was compared; 0 without them
    output_error: float  # of the original outputs, relative to the largest value; 0: bit-equal
    # Largest absolute difference of the probabilities, and the confidence, to NumPy's.
    probability_error: float


@dataclass(frozen=True)
class Exported:
    """A model that was written."""

    output: Path
    kept: tuple[str, ...]  # the outputs of the original, as they were
    added: tuple[str, ...]  # the names of probabilities, label and confidence
    weights: Path | None  # the file of external weights beside it
    agreement: Agreement


class Original(Protocol):
    """A classifier as extraction opened it, run on made rows."""

    features_tensor: str | None
    logits_tensor: str
    n_features: int | None

    @property
    def tail(self) -> str | None:
        """What follows the logits, as far as it is settled; None where nothing was recognised."""
        ...

    def settle_on(self, tail: str | None) -> None:
        """Take its outputs for what extraction took them for; for what made rows show, if None."""
        ...


OriginalT = TypeVar("OriginalT", bound=Original)


class Exporter(Protocol[OriginalT]):
    """A model on its way to one with a calibrated forecaster in it."""

    sha256: str
    outputs: Sequence[str]  # names

    def original(self, output: str | None, phi: str | None) -> OriginalT:
        """Open the classifier by its output and ``--phi``, as extraction does."""
        ...

    def write(self, original: OriginalT, merge: Merge) -> Exported:
        """Write the merged model, whole and proved, or nothing."""
        ...


def free_name(name: str, taken: set[str]) -> str:
    """Return `name`, or where the model has it already ``calibrated_NAME``, then numbered."""
    if name not in taken:
        return name
    free, number = f"calibrated_{name}", 2
    while free in taken:
        free, number = f"calibrated_{name}_{number}", number + 1
    return free


# What a calibration was fitted on.


_TENSORS = ("features_tensor", "logits_tensor", "tail")


@dataclass(frozen=True)
class Tensors:
    """What a file says of the model's tensors; None where nothing says so."""

    features: str | None = None  # their names
    logits: str | None = None
    tail: str | None = None  # what turns the logits into the output


def extracted_tensors(calibration: Calibration, networks: Path | None) -> Tensors:
    """Return what the calibration, or an older one's file, says was extracted from this model."""
    if calibration.reading:
        names = map(calibration.reading.get, _TENSORS)
        return Tensors(*(str(name) if name else None for name in names))
    path = networks or calibration.inputs[0].path
    if not path.is_file():
        return Tensors()
    with FeatureFile(path) as file:
        if file.model["sha256"] != calibration.model["sha256"]:
            return Tensors()
        names = map(file.attributes.get, _TENSORS)
    return Tensors(*(str(name) if name else None for name in names))


def calibrated_networks(
    calibration: Calibration, document: Path, networks: Path | None
) -> AlignedNetworks | None:
    """Return the networks of an fl calibration; None for one of the classifier's own logits."""
    if not calibration.scaling.reads_aligned:
        if networks is not None:
            raise CovcalError(
                f"{document} ({calibration.method_used}) scales the model's own logits: leave "
                "--networks out"
            )
        return None
    return fitted_networks(calibration, document, networks)


def stored_rows(calibration: Calibration, networks: Path | None) -> StoredRows | None:
    """Return the first rows that the calibration was fitted on; None where they are gone or others.

    An adapted file holds no phi: it names the features file, which is read if it lies there still.
    """
    if networks is None and not is_unchanged(calibration.inputs[0]):
        return None
    path = networks or calibration.inputs[0].path
    if not path.is_file():
        return None
    with FeatureFile(path) as file:
        if calibration.scaling.reads_aligned and file.is_adapted:
            path = path.parent / str(file.attributes.get(FEATURES_FILE, ""))
            if not path.is_file() or not was_made_from(file, path):
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
