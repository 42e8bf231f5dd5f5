"""A few lines on any file that covcal wrote, told apart by their content."""

import json
from pathlib import Path
from typing import Any

from covcal_cli import calibration, estimation
from covcal_cli.apply.rowfiles.hdf5rows import SCHEMA as APPLIED_SCHEMA
from covcal_cli.errors import CovcalError
from covcal_cli.evaluate import evaluated
from covcal_cli.featurechecks import open_hdf5
from covcal_cli.featurefile import SPLITS, Domain, FeatureFile
from covcal_cli.files import require_file
from covcal_cli.jsonfields import DamagedFieldError, Fields
from covcal_cli.run import journal

_SHOWN_CLASSES = 8
_HDF5 = b"\x89HDF"
_AGAIN = {
    evaluated.SCHEMA: "evaluate",
    estimation.SCHEMA: "estimate",
}


def describe(path: Path) -> str:
    """Return what a covcal file holds.

    Raises
    ------
    CovcalError
        If `path` is missing, damaged, or not a file of covcal's.
    """
    require_file(path, remedy="name a file that covcal wrote")
    with path.open("rb") as handle:
        start = handle.read(64).lstrip()
    if start.startswith(b"{"):
        lines = _json_lines(path)
    elif start.startswith(_HDF5):
        lines = _hdf5_lines(path)
    else:
        raise CovcalError(
            f"{path} is not a readable HDF5 file or JSON but {_kind_of(path, start)}: name one of "
            "covcal's .h5 or .json files"
        )
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


def _kind_of(path: Path, start: bytes) -> str:
    """Return what else a file is, such as the tables that apply writes for other programs."""
    if start.startswith(b"PAR1"):
        return "a Parquet table"
    if start.startswith(b"PK"):
        return "a NumPy archive" if path.suffix.lower() == ".npz" else "a zip archive"
    return "a table of text" if path.suffix.lower() in (".csv", ".tsv") else "something else"


def _hdf5_lines(path: Path) -> list[tuple[str, str]]:
    with open_hdf5(path) as applied:
        if applied.attrs.get("schema") == APPLIED_SCHEMA:
            return _applied_lines(path, applied)
    with FeatureFile(path) as file:
        lines = [("schema", file.schema), ("classes", _classes(file.classes))]
        lines += [
            (domain.name, _domain(domain))
            for domain in (file.source, file.target)
            if domain is not None
        ]
        hidden = {"schema", "complete", "training"}
        lines += [
            (name, _text(value))
            for name, value in sorted(file.attributes.items())
            if name not in hidden
        ]
        return lines


def _applied_lines(path: Path, file: Any) -> list[tuple[str, str]]:
    if "complete" not in file.attrs:
        raise CovcalError(f"{path} was never finished: run covcal apply again")
    classes = [bytes(name).decode("utf-8") for name in file["classes"][:]]
    what = "probabilities" if "probabilities" in file else "confidences alone"
    lines = [
        ("schema", APPLIED_SCHEMA),
        ("classes", _classes(classes)),
        ("rows", f"{len(file['id'])}, {what}"),
    ]
    hidden = ("schema", "complete")
    return lines + [
        (name, _text(value)) for name, value in sorted(file.attrs.items()) if name not in hidden
    ]


def _domain(domain: Domain) -> str:
    splits = ", ".join(f"{name} {len(domain.rows(name))}" for name in SPLITS)
    width = "none" if domain.n_features is None else str(domain.n_features)
    members = f"; members {domain.n_members}" if domain.n_members else ""
    return f"{domain.n} rows ({splits}); features {width}, logits {domain.n_classes}{members}"


def _json_lines(path: Path) -> list[tuple[str, str]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CovcalError(f"{path} is not JSON: name a file that covcal wrote") from error
    schema = content.get("schema")  # what starts with a brace is an object
    if schema == calibration.SCHEMA:
        return _calibration_lines(path)
    if schema in _AGAIN:
        try:
            fields = Fields(content)
            if schema == evaluated.SCHEMA:
                return _metrics_lines(fields)
            return _estimation_lines(fields, path)
        except DamagedFieldError as error:
            raise CovcalError(f"{path} is damaged ({error}): {_AGAIN[schema]} again") from error
    if schema == journal.SCHEMA:
        return [("schema", journal.SCHEMA), *journal.Journal(path).describe()]
    raise CovcalError(
        f"{path} has schema {schema!r}; this version knows {calibration.SCHEMA}, "
        f"{', '.join(_AGAIN)} and {journal.SCHEMA}: make it with covcal calibrate, evaluate, "
        "estimate or run"
    )


def _calibration_lines(path: Path) -> list[tuple[str, str]]:
    read = calibration.read_calibration(path)
    lines = [
        ("schema", calibration.SCHEMA),
        ("method", f"{read.method_used} (asked for: {read.method})"),
        ("reason", read.reason),
        ("T_f", f"{read.forecaster_temperature:.6g}"),
        ("T_g", ", ".join(f"{value:.4g}" for value in read.discriminator_temperatures) or "none"),
        ("classes", _classes(list(read.classes))),
        ("model", f"{read.model['name']} {read.model['sha256'][:12]}"),
    ]
    lines += [(entry.role, f"{entry.path} {entry.sha256[:12]}") for entry in read.inputs]
    if read.labelled_rows is not None:
        lines.append(("labels", f"of {read.labelled_rows['n']} target rows were used"))
    lines += [("note", note) for note in read.notes]
    return lines + [("warning", warning) for warning in read.warnings]


def _estimation_lines(content: Fields, path: Path) -> list[tuple[str, str]]:
    rows = content.inside("rows")
    lines = [
        ("schema", estimation.SCHEMA),
        ("rows", f"{rows.integer('source')} of the source, {rows.integer('target')} of the target"),
        ("prior", content.inside("target_prior").text("name")),
    ]
    lines += [
        (
            entry.text("name"),
            f"accuracy {entry.number('accuracy'):.1%} ({entry.number('low'):.1%} to "
            f"{entry.number('high'):.1%})"
            + ("" if entry.truth("trusted") else ", not to be trusted"),
        )
        for entry in content.each("estimates")
    ]
    lines += [
        (entry.text("role"), f"{path.parent / entry.text('path')} {entry.text('sha256')[:12]}")
        for entry in content.each("inputs")
    ]
    return lines + [("note", note) for note in content.texts("notes")]


def _metrics_lines(content: Fields) -> list[tuple[str, str]]:
    metrics = content.inside("metrics")
    entries = [(name, metrics.inside(name)) for name in metrics.names()]
    lines = [
        ("schema", evaluated.SCHEMA),
        ("rows", f"{content.integer('n')} of the target's {content.text('split')} split"),
    ]
    return lines + [
        (
            name,
            f"accuracy {entry.number('accuracy'):.2%}, ECE {entry.number('ece'):.2%}, "
            f"NLL {entry.number('nll'):.4f}",
        )
        for name, entry in entries
    ]


def _classes(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN_CLASSES])
    return f"{len(names)}: {shown}{', ...' if len(names) > _SHOWN_CLASSES else ''}"


def _text(value: Any) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
