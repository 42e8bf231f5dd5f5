"""The lineage of files: which was made from which, and whether they still belong together.

A file that a command picks by itself must still be what was made from the files beside it: else
a new extraction would be judged by an earlier one's numbers. A file that is named stands for
itself, and where it belongs to something else a note says so.
"""

from collections.abc import Sequence
from pathlib import Path

from covcal_cli.errors import CovcalError
from covcal_cli.files import sha256_of
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import (
    CONTENT,
    FEATURES_CONTENT,
    FEATURES_FILE,
    FEATURES_SHA256,
    REMEDY,
    UNMARKED_SHA256,
    FeatureFile,
)
from covcal_cli.hdf5 import File
from covcal_cli.records import Input

# What a command reads when no file is named, the first that is there.
_ADAPTED, _FEATURES = Path("adapted.h5"), Path("features.h5")


def file_here() -> Path:
    """Return adapted.h5 of this folder if there is one, else features.h5.

    Raises
    ------
    CovcalError
        If there is neither, or adapted.h5 was not made from the features.h5 beside it, or from the
        features file that it names as that is now.
    """
    for path in (_ADAPTED, _FEATURES):
        if path.is_file():
            _require_origin(path, f"name the file to read ({path} or {_FEATURES})")
            return path
    raise CovcalError(f"there is no {_ADAPTED} or {_FEATURES} here: name the file to read")


def file_to_judge(
    path: Path | None,
    calibrations: Sequence[Calibration],
    documents: Sequence[Path],
    *,
    purpose: str,
    picked: bool,
) -> tuple[Path, list[str]]:
    """Return the file to bring calibrations to: `path`, or else what the first was fitted on.

    Notes follow where files that were named do not belong together.

    Parameters
    ----------
    path : Path or None
        The file that was named.
    calibrations, documents : sequences
        The calibrations and their files.
    purpose : str
        What the file is for, such as "evaluate", for messages.
    picked : bool
        Whether the calibration was picked, as cal.json of this folder, and not named.

    Raises
    ------
    CovcalError
        If a file that was picked has changed, or what it was made from has.
    """
    if path is None:
        return _fitted_file(calibrations[0], documents[0], purpose), []
    if picked:
        require_current(calibrations[0], documents[0], purpose=purpose)
    notes = notes_on_named(path)
    for calibration, document in zip(calibrations, documents, strict=True):
        fitted = calibration.inputs[0]
        same = fitted.path.is_file() and path.is_file() and fitted.path.samefile(path)
        if same and not is_unchanged(fitted):
            notes.append(f"{path} has changed since {document} was fitted on it")
    return path, notes


def require_current(calibration: Calibration, document: Path, *, purpose: str) -> None:
    """Refuse a calibration that nobody named where what it was fitted on is there and has changed.

    Messages name the cal.json, `document`, and what it is for: `purpose`, such as "export".
    """
    fitted = calibration.inputs[0]
    if fitted.path.is_file():
        _require_unchanged(fitted, document, f"pass -c {document} to {purpose} with it")


def notes_on_named(path: Path | None) -> list[str]:
    """Return a note on a file that was named, where it is not of what lies beside it, or none."""
    found = None if path is None else _other_origin(path)
    return [] if found is None else [found]


def _fitted_file(calibration: Calibration, document: Path, purpose: str) -> Path:
    path = calibration.inputs[0].path
    if not path.is_file():
        raise CovcalError(
            f"{document} was fitted on {path}, which is gone: name a file to {purpose}"
        )
    _require_unchanged(
        calibration.inputs[0], document, f"pass {path} -c {document} to {purpose} it"
    )
    return path


def _require_unchanged(fitted: Input, document: Path, otherwise: str) -> None:
    """Refuse what a calibration was fitted on if it, or what it was made from, has changed."""
    if not is_unchanged(fitted):
        raise CovcalError(
            f"{fitted.path} has changed since {document} was fitted on it: calibrate again, or "
            f"{otherwise} all the same"
        )
    _require_origin(fitted.path, f"{otherwise} all the same")


def is_unchanged(entry: Input) -> bool:
    """Return whether a file is still there as it was."""
    return entry.path.is_file() and unmarked_sha256(entry.path) == entry.sha256


def unmarked_sha256(path: Path) -> str:
    """Return the sha256 of a file, of one with marks as it was before it had any.

    Labels that were put in later change nothing of what a file was made into, or stands for.
    """
    try:
        with File(path, remedy=REMEDY) as file:
            marked = file.attrs.get(UNMARKED_SHA256)
    except CovcalError:  # no HDF5 file, or a damaged one: then it is its bytes that count
        marked = None
    return sha256_of(path) if marked is None else str(marked)


def was_made_from(adapted: FeatureFile, features: Path) -> bool:
    """Return whether `adapted` was made from the features file; True where it does not say."""
    content = adapted.attributes.get(FEATURES_CONTENT)
    if content is not None:
        with FeatureFile(features) as file:
            if CONTENT in file.attributes:
                return bool(file.attributes[CONTENT] == content)
    return adapted.attributes.get(FEATURES_SHA256) in (None, unmarked_sha256(features))


def _require_origin(path: Path, otherwise: str) -> None:
    found = _other_origin(path)
    if found is not None:
        raise CovcalError(f"{found}: run covcal adapt --force, or {otherwise}")


def _other_origin(path: Path) -> str | None:
    """Return that an adapted file is not of its features file, or None.

    That is the one it names and, where it goes by its usual name, a features.h5 beside it.
    """
    with FeatureFile(path) as file:
        if not file.is_adapted:
            return None
        named = str(file.attributes.get(FEATURES_FILE, ""))
        origins = [path.parent / named] if named else []
        if path.name == _ADAPTED.name:
            origins.append(path.parent / _FEATURES)
        for origin in origins:
            if origin.is_file() and not was_made_from(file, origin):
                return f"{path} was not made from {origin} as it is now"
    return None
