"""The files that a calibration goes with: what it was fitted on, and what it may be applied to."""

from pathlib import Path

from covcal_cli.alignednetworks import AlignedNetworks, read_aligned_networks
from covcal_cli.calibration import Calibration, model_of
from covcal_cli.errors import CovcalError
from covcal_cli.featurefile import FeatureFile

_AGAIN = "calibrate this file itself"


def require_unchanged(calibration: Calibration, document: Path, *, purpose: str) -> Path:
    """Return the file that a calibration was fitted on, if it is still the same.

    Messages name the cal.json, `document`, and what the file is for: `purpose`, such as "evaluate".

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
    The networks are those of the adapted file `networks`, or of the one that cal.json, the
    `document`, names.

    Raises
    ------
    CovcalError
        If model, classes or networks differ from the calibration's, or the networks are missing.
    """
    _require_same_classifier(calibration, file)
    aligned = calibration.forecaster == "aligned"
    if aligned and not file.is_adapted:
        return fitted_networks(calibration, document, networks)
    if aligned and file.attributes.get("networks_sha256") != calibration.networks_sha256:
        raise CovcalError(
            f"{file.path} holds other aligned networks than the calibration: {_AGAIN}"
        )
    if networks is not None:
        why = "holds" if aligned else "needs no"
        raise CovcalError(f"{file.path} {why} aligned logits: leave --networks out")
    return None


def fitted_networks(
    calibration: Calibration, document: Path, networks: Path | None = None
) -> AlignedNetworks:
    """Return the networks that a calibration of aligned logits was fitted with, as `networks_for`.

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


def _require_same_classifier(calibration: Calibration, file: FeatureFile) -> None:
    """Refuse a file whose model, classes or columns are not those of the calibration."""
    same_model = model_of(file)["sha256"] == calibration.model["sha256"]
    _require_same_classes(calibration, file, same_model=same_model)
    if not same_model:
        raise CovcalError(
            f"{file.path} comes from another model than the calibration "
            f"(made for {calibration.model['name']}): {_AGAIN}"
        )
    _require_same_columns(calibration, file)


def _require_same_classes(calibration: Calibration, file: FeatureFile, *, same_model: bool) -> None:
    found, expected = file.classes, calibration.classes
    if len(found) != len(expected):
        raise CovcalError(
            f"{file.path} has {len(found)} classes, the calibration {len(expected)}: {_AGAIN}"
        )
    for index, (name, wanted) in enumerate(zip(found, expected, strict=True)):
        if name == wanted:
            continue
        differs = f"(class {index} is {name}, not {wanted})"
        # Of one model, or of tables, whose model is not known, another order can be put right.
        if same_model and sorted(found) == sorted(expected):
            raise CovcalError(
                f"{file.path} has the classes of the calibration in another order {differs}: "
                "extract it again with --classes and the calibration's .json, which names them in "
                "order"
            )
        raise CovcalError(
            f"{file.path} has other class names than the calibration {differs}: {_AGAIN}"
        )


def _require_same_columns(calibration: Calibration, file: FeatureFile) -> None:
    """Refuse a table whose columns the model read otherwise: it reads them by position."""
    found, expected = file.feature_columns, calibration.feature_columns
    if not found or not expected or found == expected:
        return
    lacking = [name for name in expected if name not in found]
    extra = [name for name in found if name not in expected]
    if not lacking and not extra:
        place = next(i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b)
        raise CovcalError(
            f"{file.path} was extracted with its feature columns in another order than the "
            f"calibration's (column {place} is {found[place]}, not {expected[place]}), which the "
            "model takes for other features: write the table's columns in that order, or extract "
            "it with the source beside it, which goes by name"
        )
    has = [f"lacks {lacking[0]}"] if lacking else []
    has += [f"has {extra[0]}"] if extra else []
    raise CovcalError(
        f"{file.path} was extracted with other feature columns than the calibration's (it "
        f"{' and '.join(has)}): give the columns that the model was calibrated on"
    )
