"""Check the origin of files, and whether files still belong together.

By default, a command reads files of the current folder, and refuses files from different runs of
extract. A file that the user names is always used; a note warns about a mismatch.

JSON documents are not trusted. covcal opens a path in a document only if the file is in the
document's folder, or if the user names the file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from covcal_cli.errors import CovcalError, shown
from covcal_cli.files import leaves_folder_of, sha256_of
from covcal_cli.formats.calibration import Calibration
from covcal_cli.formats.features import (
    ADAPTED_SCHEMA,
    CONTENT,
    FEATURES_CONTENT,
    FEATURES_FILE,
    FEATURES_SHA256,
    REMEDY,
    UNMARKED_SHA256,
    labels_in,
)
from covcal_cli.hdf5 import root_attributes
from covcal_cli.records import Input, labels_of_document, read_json

_ADAPTED, _FEATURES = Path("adapted.h5"), Path("features.h5")
_ORIGIN = ("schema", FEATURES_FILE, FEATURES_CONTENT, FEATURES_SHA256)


def file_here() -> Path:
    """Return adapted.h5 in this folder; if there is none, features.h5.

    Raises `CovcalError` if neither file exists, or if adapted.h5 does not belong to its features
    file.
    """
    for path in (_ADAPTED, _FEATURES):
        if path.is_file():
            _require_origin(path, f"name the file to read ({path} or {_FEATURES})")
            return path
    raise CovcalError(
        f"there is no {_ADAPTED} or {_FEATURES} here: name the file to read, or make one with "
        "covcal extract"
    )


def labels_of(
    file: Path | None, documents: Sequence[Path], *, remedy: str = "make it with covcal calibrate"
) -> tuple[str, ...]:
    """Return the label names if rows can have several labels, else an empty tuple.

    The names come from `file`, else from the first document, else from cal.json in this folder. For
    a document that is not JSON, the message ends with `remedy`.

    Raises `CovcalError` if a document has a label that the file does not have.
    """
    if file is None:
        document = documents[0] if documents else Path("cal.json")
        return labels_of_document(read_json(document, remedy=remedy)) if document.is_file() else ()
    labels = labels_in(file)
    for document in documents if labels else ():
        needed = labels_of_document(read_json(document, remedy=remedy))
        if lacking := [name for name in needed if name not in labels]:
            raise CovcalError(
                f"{file} does not have the label {shown(lacking[0])} of {document}: extract the "
                "file again with all labels, or make a calibration of fewer labels"
            )
    return labels


def file_to_judge(
    path: Path | None, calibrations: Sequence[Calibration], *, purpose: str, picked: bool
) -> tuple[Path, list[str]]:
    """Return `path`, or by default the file on which the first calibration was fitted.

    The list has notes about files that do not belong together. `purpose` is the name of the
    command. If `picked` is true, covcal chose cal.json, because the user named no calibration.

    Raises `CovcalError` if a file that the user did not name has changed, or is outside the
    calibration's folder.
    """
    if path is None:
        return _fitted_file(calibrations[0], purpose), []
    if picked:
        require_current(calibrations[0], purpose=purpose, named=path)
    notes = notes_on_named(path)
    for calibration in calibrations:
        fitted = calibration.inputs[0]
        if _is_same(fitted.path, path) and unmarked_sha256(path) != fitted.sha256:
            notes.append(f"{path} has changed since {calibration.path} was fitted on it")
    return path, notes


def require_current(calibration: Calibration, *, purpose: str, named: Path | None = None) -> None:
    """Refuse a calibration that the user did not name, if its features file has changed.

    A missing features file is allowed. `named` is the file that the user named, if any.
    """
    fitted, document = calibration.inputs[0], calibration.path
    otherwise = f"pass -c {document} to {purpose} with this calibration"
    if named is not None and _is_same(fitted.path, named):
        fitted = replace(fitted, is_outside=False)
    if fitted.is_outside:
        raise CovcalError(
            f"covcal cannot check {fitted.path}, because it is outside the folder of "
            f"{document}: {otherwise}"
        )
    if fitted.path.is_file():
        _require_unchanged(fitted, document, otherwise)


def notes_on_named(path: Path | None) -> list[str]:
    """Return a note if an adapted file was not made from its features file."""
    text = None if path is None else _other_origin(path)[0]
    return [] if text is None else [text]


def _is_same(first: Path, second: Path) -> bool:
    return first.is_file() and second.is_file() and first.samefile(second)


def _fitted_file(calibration: Calibration, purpose: str) -> Path:
    fitted, document = calibration.inputs[0], calibration.path
    path = fitted.path
    if fitted.is_outside:
        raise CovcalError(
            f"{document} was fitted on {path}, which is outside the folder of the "
            f"calibration: pass {path} -c {document} to {purpose} this file"
        )
    if not path.is_file():
        raise CovcalError(
            f"{document} was fitted on {path}, which is missing: give a file to {purpose}"
        )
    _require_unchanged(fitted, document, f"pass {path} -c {document} to {purpose} this file")
    return path


def _require_unchanged(fitted: Input, document: Path, otherwise: str) -> None:
    if not is_unchanged(fitted):
        raise CovcalError(
            f"{fitted.path} has changed since {document} was fitted on it: calibrate again, or "
            f"{otherwise} anyway"
        )
    _require_origin(fitted.path, f"{otherwise} anyway")


def is_unchanged(entry: Input) -> bool:
    """Return whether a file is in the document's folder, exists and is unchanged."""
    if entry.is_outside or not entry.path.is_file():
        return False
    return unmarked_sha256(entry.path) == entry.sha256


def unmarked_sha256(path: Path) -> str:
    """Return the sha256 that a file had before labels were added."""
    try:
        marked = root_attributes(path, UNMARKED_SHA256, remedy=REMEDY).get(UNMARKED_SHA256)
    except CovcalError:  # The file is damaged or not HDF5.
        marked = None
    return sha256_of(path) if marked is None else str(marked)


def was_made_from(adapted: Mapping[str, Any], features: Path) -> bool:
    """Return whether an adapted file can come from a features file, by its attributes."""
    content = adapted.get(FEATURES_CONTENT)
    if content is not None:
        attributes = root_attributes(features, CONTENT, remedy=REMEDY)
        if CONTENT in attributes:
            return bool(attributes[CONTENT] == content)
    return adapted.get(FEATURES_SHA256) in (None, unmarked_sha256(features))


def _require_origin(path: Path, otherwise: str) -> None:
    text, outside = _other_origin(path)
    if text is not None:
        raise CovcalError(f"{text}: run covcal adapt --force, or {otherwise}")
    if outside:
        raise CovcalError(
            f"covcal cannot check {outside[0]}, because it is outside the folder of "
            f"{path}: {otherwise}"
        )


def _other_origin(path: Path) -> tuple[str | None, list[Path]]:
    """Return a message if the adapted file was not made from its features file, else None.

    Also return the features files outside the folder, which covcal does not open. For adapted.h5,
    the features.h5 in the same folder is also checked.
    """
    attributes = root_attributes(path, *_ORIGIN, remedy=REMEDY)
    if attributes.get("schema") != ADAPTED_SCHEMA:
        return None, []
    named = str(attributes.get(FEATURES_FILE, ""))
    origins = [path.parent / named] if named else []
    if path.name == _ADAPTED.name:
        origins.append(path.parent / _FEATURES)
    outside = [origin for origin in origins if leaves_folder_of(origin, path)]
    for origin in origins:
        if origin not in outside and origin.is_file() and not was_made_from(attributes, origin):
            return f"{path} was not made from the current {origin}", outside
    return None, outside
