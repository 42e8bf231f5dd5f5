"""Check that a calibration fits a file.

Both must have the same model, classes, columns of a table, and reading of the model: the tail of
its output and the preprocessing of images.
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
    """Refuse a file that the calibration in `document` does not fit.

    Raises
    ------
    CovcalError
        If its model, classes, columns or the reading of its model differ. Another preprocessing of
        images can be allowed.
    """
    same_model = file.model["sha256"] == calibration.model["sha256"]
    # Compare classes first: a message with class names is clearer than one with two sha256.
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
    classes, expected = file.classes, calibration.classes
    if len(classes) != len(expected):
        raise CovcalError(
            f"{file.path} has {len(classes)} classes, the calibration {len(expected)}: {AGAIN}"
        )
    for index, (name, wanted) in enumerate(zip(classes, expected, strict=True)):
        if name == wanted:
            continue
        differs = f"(class {index} is {name}, not {wanted})"
        names = "other class names than the calibration"
        if same_model and sorted(classes) == sorted(expected):
            names = "the classes of the calibration in another order"
        # The outputs of a model have one order, whatever the names. With a table the model is
        # unknown, so other names mean other classes, unless they are only numbers.
        elif not same_model or (not file.model["sha256"] and not _are_numbers(classes)):
            raise CovcalError(f"{file.path} has {names} {differs}: {AGAIN}")
        raise CovcalError(
            f"{file.path} has {names} {differs}: extract it again with --classes {document}, which "
            "names them in the order of the outputs"
        )


def _are_numbers(names: Sequence[str]) -> bool:
    """Return whether the classes are called 0 .. K-1, as classes without names are."""
    return list(names) == [str(number) for number in range(len(names))]


def _require_same_columns(calibration: Calibration, file: FeatureFile) -> None:
    """Refuse a table with other feature columns, because the model reads them by position."""
    columns, expected = file.feature_columns, calibration.feature_columns
    if not columns or not expected or columns == expected:
        return
    lacking = [name for name in expected if name not in columns]
    extra = [name for name in columns if name not in expected]
    if not lacking and not extra:
        place = next(i for i, (a, b) in enumerate(zip(columns, expected, strict=False)) if a != b)
        raise CovcalError(
            f"{file.path} has its feature columns in another order than the calibration (column "
            f"{place} is {columns[place]}, not {expected[place]}), and the model reads columns by "
            "position: reorder the table's columns, or extract it together with the source"
        )
    has = [f"lacks {lacking[0]}"] if lacking else []
    has += [f"has {extra[0]}"] if extra else []
    raise CovcalError(
        f"{file.path} was extracted with other feature columns than the calibration's (it "
        f"{' and '.join(has)}): give the columns that the model was calibrated on"
    )


def _require_same_reading(calibration: Calibration, document: Path, file: FeatureFile) -> None:
    """Refuse a file whose logits or features are other tensors of the model, or read differently.

    Without features (``--phi none``) the names of the logits need not agree.
    """
    actual, expected = file.reading, calibration.reading
    features = [reading.get("features_tensor") for reading in (actual, expected)]
    names = ["tail"]
    if all(features):
        names.append("logits_tensor")
        if calibration.scaling.reads_aligned:  # its networks read the features
            names.append("features_tensor")
    for name in names:
        if name in actual and name in expected and actual[name] != expected[name]:
            what = {"tail": "output", "logits_tensor": "logits", "features_tensor": "features"}
            raise CovcalError(
                f"{file.path} was extracted with {actual[name]} as the model's {what[name]}, and "
                f"{document} was fitted with {expected[name]}: extract it again as the "
                f"calibration's file was (--model-output, --phi), or {AGAIN}"
            )


def _require_same_preprocessing(
    calibration: Calibration, document: Path, file: FeatureFile
) -> None:
    name = "preprocessing"
    actual, expected = file.reading, calibration.reading
    if name not in actual or name not in expected or actual[name] == expected[name]:
        return
    differs = setting_that_differs(actual[name], expected[name])
    raise CovcalError(
        f"{file.path} was extracted with other preprocessing than {document} was fitted with "
        f"({differs}): extract it again with the same preprocessing, {AGAIN}, or pass "
        "--allow-other-preprocessing"
    )


def setting_that_differs(actual: Any, expected: Any) -> str:
    """Return the first setting of preprocessing that differs, with both values."""
    if not (isinstance(actual, Mapping) and isinstance(expected, Mapping)):
        has, had = (
            "none" if reading is None else "that of images" for reading in (actual, expected)
        )
        return f"{has}, not {had}"
    unsaid = "not given"  # a missing value differs from null
    pairs = (
        (name, actual.get(name, unsaid), expected.get(name, unsaid))
        for name in sorted({*actual, *expected})
    )
    name, reading, other = next(pair for pair in pairs if pair[1] != pair[2])
    if isinstance(reading, Mapping) and isinstance(other, Mapping):
        return f"{name}: {setting_that_differs(reading, other)}"
    return f"{name} {reading}, not {other}"
