"""Whether a calibration fits a file: what it was fitted to must hold there too.

Model, classes, a table's columns, and how the model was read: the tail of its output and what was
done to images.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from covcal_cli.errors import CovcalError
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import FeatureFile

AGAIN = "calibrate this file itself"


def require_fitting(
    calibration: Calibration,
    document: Path,
    file: FeatureFile,
    *,
    allow_other_preprocessing: bool = False,
) -> None:
    """Refuse a file that the calibration in `document` was not made for.

    Raises
    ------
    CovcalError
        If its model, classes, columns or the way that its model was read are others; another
        preprocessing of images can be allowed.
    """
    same_model = file.model["sha256"] == calibration.model["sha256"]
    # Classes first: where they differ too, their names say more than the sha256 of two models.
    _require_same_classes(calibration, document, file, same_model=same_model)
    if not same_model:
        raise CovcalError(
            f"{file.path} comes from another model than the calibration "
            f"(made for {calibration.model['name']}): {AGAIN}"
        )
    _require_same_columns(calibration, file)
    _require_same_reading(calibration, document, file)
    if not allow_other_preprocessing:
        _require_same_preprocessing(calibration, document, file)


def _require_same_classes(
    calibration: Calibration, document: Path, file: FeatureFile, *, same_model: bool
) -> None:
    found, expected = file.classes, calibration.classes
    if len(found) != len(expected):
        raise CovcalError(
            f"{file.path} has {len(found)} classes, the calibration {len(expected)}: {AGAIN}"
        )
    for index, (name, wanted) in enumerate(zip(found, expected, strict=True)):
        if name == wanted:
            continue
        differs = f"(class {index} is {name}, not {wanted})"
        names = "other class names than the calibration"
        if same_model and sorted(found) == sorted(expected):
            names = "the classes of the calibration in another order"
        # One model has its outputs in one order, whatever they are called. Of tables the model is
        # not known: other names are other classes, unless they have none.
        elif not same_model or (not file.model["sha256"] and not _are_numbers(found)):
            raise CovcalError(f"{file.path} has {names} {differs}: {AGAIN}")
        raise CovcalError(
            f"{file.path} has {names} {differs}: extract it again with --classes {document}, which "
            "names them in the order of the outputs"
        )


def _are_numbers(names: Sequence[str]) -> bool:
    """Return whether the classes are called 0 .. K-1, as those without a name are."""
    return list(names) == [str(number) for number in range(len(names))]


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


def _require_same_reading(calibration: Calibration, document: Path, file: FeatureFile) -> None:
    """Refuse a file whose logits, or features, are other tensors of the model, or read otherwise.

    Without features (``--phi none``) the output stands for the logits that made it, by any name.
    """
    found, expected = file.reading, calibration.reading
    features = [reading.get("features_tensor") for reading in (found, expected)]
    names = ["tail"]
    if all(features):
        names.append("logits_tensor")
        if calibration.scaling.reads_aligned:  # whose networks read the features
            names.append("features_tensor")
    for name in names:
        if name in found and name in expected and found[name] != expected[name]:
            what = {"tail": "output", "logits_tensor": "logits", "features_tensor": "features"}
            raise CovcalError(
                f"{file.path} was extracted with {found[name]} as the model's {what[name]}, and "
                f"{document} was fitted with {expected[name]}: extract it again as the "
                f"calibration's file was (--model-output, --phi), or {AGAIN}"
            )


def _require_same_preprocessing(
    calibration: Calibration, document: Path, file: FeatureFile
) -> None:
    name = "preprocessing"
    found, expected = file.reading, calibration.reading
    if name not in found or name not in expected or found[name] == expected[name]:
        return
    differs = setting_that_differs(found[name], expected[name])
    raise CovcalError(
        f"{file.path} was extracted with other preprocessing than {document} was fitted with "
        f"({differs}): extract it again with that, {AGAIN}, or pass --allow-other-preprocessing"
    )


def setting_that_differs(found: Any, expected: Any) -> str:
    """Return the first setting that differs, and both values, of the preprocessing of images."""
    if not (isinstance(found, Mapping) and isinstance(expected, Mapping)):
        has, had = ("none" if one is None else "that of images" for one in (found, expected))
        return f"{has}, not {had}"
    unsaid = "not given"  # which is not null
    pairs = (
        (name, found.get(name, unsaid), expected.get(name, unsaid))
        for name in sorted({*found, *expected})
    )
    name, one, other = next(pair for pair in pairs if pair[1] != pair[2])
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return f"{name}: {setting_that_differs(one, other)}"
    return f"{name} {one}, not {other}"
