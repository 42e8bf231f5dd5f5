"""The files that a calibration names: what it was fitted on, and its aligned networks."""

from pathlib import Path

from covcal_cli.alignednetworks import AlignedNetworks, read_aligned_networks
from covcal_cli.calibration import Calibration
from covcal_cli.errors import CovcalError
from covcal_cli.featurefile import FeatureFile


def require_unchanged(calibration: Calibration, document: Path, *, purpose: str) -> Path:
    """Return the file that a calibration was fitted on, if it is still the same.

    Parameters
    ----------
    calibration : Calibration
    document : Path
        Its cal.json, for messages.
    purpose : str
        What the file is for, as ``"evaluate"``: a verb, for messages.

    Raises
    ------
    CovcalError
        If it is gone, or its sha256 is another.
    """
    entry = calibration.inputs[0]
    if not entry.path.is_file():
        raise CovcalError(
            f"{document} was fitted on {entry.path}, which is gone: name a file to {purpose}"
        )
    with FeatureFile(entry.path) as file:
        if file.sha256() != entry.sha256:
            raise CovcalError(
                f"{entry.path} has changed since {document} was fitted on it: calibrate again, or "
                f"pass {entry.path} -c {document} to {purpose} it all the same"
            )
    return entry.path


def networks_for(
    calibration: Calibration, document: Path, file: FeatureFile, networks: Path | None = None
) -> AlignedNetworks | None:
    """Return the networks that compute the aligned logits of `file`, or None if it needs none.

    None is for a calibration of the classifier's own logits, and for an adapted file, which holds
    its aligned logits. Everything that makes the calibration unfit for the file is refused here.

    Parameters
    ----------
    calibration : Calibration
    document : Path
        Its cal.json, for messages.
    file : FeatureFile
    networks : Path, optional
        An adapted file to take the networks from; None: the one that the calibration names.

    Raises
    ------
    CovcalError
        If model, classes or networks differ from the calibration's, or the networks are missing.
    """
    if calibration.forecaster == "original" or file.is_adapted:
        calibration.require_same_classifier(file)
        calibration.require_same_networks(file)
        if networks is not None:
            why = "holds" if calibration.forecaster == "aligned" else "needs no"
            raise CovcalError(f"{file.path} {why} aligned logits: leave --networks out")
        return None
    # Aligned logits need not be stored in the file: model and classes are all that must agree.
    calibration.require_same_classifier(file)
    return fitted_networks(calibration, document, networks)


def fitted_networks(
    calibration: Calibration, document: Path, networks: Path | None = None
) -> AlignedNetworks:
    """Return the networks that a calibration of aligned logits was fitted with.

    Parameters
    ----------
    calibration : Calibration
    document : Path
        Its cal.json, for messages.
    networks : Path, optional
        An adapted file to take them from; None: the one that the calibration names.

    Raises
    ------
    CovcalError
        If they are gone, or others than those of the calibration.
    """
    path = networks or calibration.inputs[0].path
    if networks is None and not path.is_file():
        raise CovcalError(
            f"{document} was fitted with the networks of {path}, which is gone: pass --networks "
            "with the adapted file"
        )
    found = read_aligned_networks(path)
    if found.sha256 != calibration.networks_sha256:
        raise CovcalError(
            f"{path} holds other aligned networks than {document} was fitted with: pass --networks "
            "with that adapted file, or calibrate again"
        )
    return found
