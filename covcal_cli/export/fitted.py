"""What a calibration was fitted on: the networks to merge, and the tensors that were extracted."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covcal_cli.alignednetworks import AlignedNetworks
from covcal_cli.calibration import Calibration, model_of
from covcal_cli.calibrationfiles import fitted_networks
from covcal_cli.errors import CovcalError
from covcal_cli.featurefile import FeatureFile, Floats

_ROWS = 256


@dataclass(frozen=True)
class Tensors:
    """Names of the model's tensors that a features or adapted file was extracted from.

    Attributes
    ----------
    features, logits : str or None
        None where the file is gone or says nothing.
    """

    features: str | None = None
    logits: str | None = None


def extracted_tensors(calibration: Calibration, networks: Path | None) -> Tensors:
    """Return what the calibration's file, or `networks`, says was extracted from this model."""
    path = networks or calibration.inputs[0].path
    if not path.is_file():
        return Tensors()
    with FeatureFile(path) as file:
        if model_of(file)["sha256"] != calibration.model["sha256"]:
            return Tensors()
        names = [file.attributes.get(f"{what}_tensor") for what in ("features", "logits")]
    return Tensors(*(str(name) if name else None for name in names))


def calibrated_networks(
    calibration: Calibration, document: Path, networks: Path | None
) -> AlignedNetworks | None:
    """Return the networks of an fl calibration; None for one of the classifier's own logits.

    Raises
    ------
    CovcalError
        If they are gone or others than those that the calibration was fitted with, or `networks` is
        given and not needed.
    """
    if calibration.forecaster == "original":
        if networks is not None:
            raise CovcalError(
                f"{document} ({calibration.method_used}) scales the model's own logits: leave "
                "--networks out"
            )
        return None
    return fitted_networks(calibration, document, networks)


@dataclass(frozen=True)
class StoredRows:
    """Real rows on which the merged part is checked too.

    Attributes
    ----------
    features : array of float32, shape (n, d), or None
        phi; None for a calibration of the classifier's own logits.
    logits : array of float32, shape (n, K)
        The classifier's.
    """

    features: Floats | None
    logits: Floats


def stored_rows(calibration: Calibration, networks: Path | None) -> StoredRows | None:
    """Return the first rows that the calibration was fitted on; None where they are gone.

    An adapted file holds no phi: it names the features file, which is read if it lies there still.
    """
    path = networks or calibration.inputs[0].path
    if not path.is_file():
        return None
    with FeatureFile(path) as file:
        if calibration.forecaster == "aligned" and file.is_adapted:
            path = path.parent / str(file.attributes.get("features_file", ""))
    if not path.is_file():
        return None
    with FeatureFile(path) as file:
        domain = file.target or file.source
        if domain is None or model_of(file)["sha256"] != calibration.model["sha256"]:
            return None
        rows = np.arange(min(_ROWS, domain.n), dtype=np.int64)
        if calibration.forecaster == "original":
            return StoredRows(None, domain.logits(rows))
        if domain.n_features is None:
            return None
        return StoredRows(domain.features(rows), domain.logits(rows))
