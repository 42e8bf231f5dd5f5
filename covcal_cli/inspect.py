"""A few lines on any file that covcal wrote, told apart by their content."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from covcal_cli.calibrate.estimate import Estimation
from covcal_cli.errors import CovcalError
from covcal_cli.evaluate.limits import WrittenMetrics
from covcal_cli.files import require_file
from covcal_cli.formats.calibration import Calibration, read_calibration
from covcal_cli.formats.features import APPLIED_SCHEMA, SPLITS, Domain, FeatureFile, open_hdf5
from covcal_cli.formats.lineage import is_unchanged, notes_on_named
from covcal_cli.records import Document, Input, read_document, read_json
from covcal_cli.run.journal import Results

Lines = list[tuple[str, str]]  # what a line is about, and what it says
_REMEDY = "name a file that covcal wrote"
_SHOWN_CLASSES = 8
_HIDDEN = ("schema", "complete", "training")  # attributes that are shown elsewhere, or too long


def describe(path: str | Path) -> str:
    """Return what a covcal file holds; raise `CovcalError` where it is damaged or no such file."""
    path = Path(path)
    require_file(path, remedy=_REMEDY)
    with path.open("rb") as handle:
        start = handle.read(64).lstrip()
    if start.startswith(b"{"):
        lines = _json_lines(path)
    elif start.startswith(b"\x89HDF"):
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


# HDF5: features, adapted files, and applied rows.


def _hdf5_lines(path: Path) -> Lines:
    with open_hdf5(path) as applied:
        if applied.attrs.get("schema") == APPLIED_SCHEMA:
            if "complete" not in applied.attrs:
                raise CovcalError(f"{path} was never finished: run covcal apply again")
            classes = [bytes(name).decode("utf-8") for name in applied["classes"][:]]
            what = "probabilities" if "probabilities" in applied else "confidences alone"
            rows = ("rows", f"{len(applied['id'])}, {what}")
            return _described(APPLIED_SCHEMA, classes, [rows], applied.attrs)
    with FeatureFile(path) as file:
        domains = [_domain(one) for one in (file.source, file.target) if one is not None]
        domains += [("note", text) for text in notes_on_named(path)]
        return _described(file.schema, file.classes, domains, file.attributes)


def _described(
    schema: str, classes: Sequence[str], rows: Lines, attributes: Mapping[str, Any]
) -> Lines:
    shown = [
        (name, value.decode("utf-8") if isinstance(value, bytes) else str(value))
        for name, value in sorted(attributes.items())
        if name not in _HIDDEN
    ]
    return [("schema", schema), ("classes", _classes(classes)), *rows, *shown]


def _domain(domain: Domain) -> tuple[str, str]:
    splits = ", ".join(f"{name} {domain.count(name)}" for name in SPLITS)
    width = "none" if domain.n_features is None else str(domain.n_features)
    members = f"; members {domain.n_members}" if domain.n_members else ""
    widths = f"features {width}, logits {domain.n_classes}{members}"
    return domain.name, f"{domain.n} rows ({splits}); {widths}"


# JSON: calibrations, metrics, estimates, and the journal of a run.


def _json_lines(path: Path) -> Lines:
    schema = read_json(path, remedy=_REMEDY).get("schema")
    if not isinstance(schema, str) or schema not in _DESCRIBERS:
        *names, last = _DESCRIBERS
        raise CovcalError(
            f"{path} has schema {schema!r}; this version knows {', '.join(names)} and {last}: make "
            "it with covcal calibrate, evaluate, estimate or run"
        )
    return [("schema", schema), *_DESCRIBERS[schema](path)]


def _calibration_lines(path: Path) -> Lines:
    read = read_calibration(path)
    lines = [
        ("method", f"{read.method_used} (asked for: {read.method})"),
        ("reason", read.reason),
        ("T_f", f"{read.forecaster_temperature:.6g}"),
        ("T_g", ", ".join(f"{value:.4g}" for value in read.discriminator_temperatures) or "none"),
        ("classes", _classes(read.classes)),
        ("model", f"{read.model['name']} {read.model['sha256'][:12]}"),
        *_inputs(read.inputs),
    ]
    if read.labelled_rows is not None:
        lines.append(("labels", f"of {read.labelled_rows.n} target rows were used"))
    lines += [("note", text) for text in read.notes]
    return lines + [("warning", text) for text in read.warnings]


@dataclass(frozen=True)
class _Main:
    accuracy: float
    ece: float
    nll: float


@dataclass(frozen=True)
class _Metrics(Document):
    schema: ClassVar[str] = WrittenMetrics.schema

    n: int
    split: str
    metrics: Mapping[str, _Main]


def _metrics_lines(path: Path) -> Lines:
    read = read_document(_Metrics, path, remedy=_REMEDY, again="evaluate again")
    lines = [
        (name, f"accuracy {one.accuracy:.2%}, ECE {one.ece:.2%}, NLL {one.nll:.4f}")
        for name, one in read.metrics.items()
    ]
    return [("rows", f"{read.n} of the target's {read.split} split"), *lines]


def _estimation_lines(path: Path) -> Lines:
    read = read_document(Estimation, path, remedy=_REMEDY, again="estimate again")
    lines = [
        ("rows", f"{read.source_rows} of the source, {read.target_rows} of the target"),
        ("prior", read.prior_name),
    ]
    for one in read.estimates:
        doubt = "" if one.trusted else ", not to be trusted"
        text = f"accuracy {one.accuracy:.1%} ({one.low:.1%} to {one.high:.1%}){doubt}"
        lines.append((one.name, text))
    return [*lines, *_inputs(read.inputs), *(("note", text) for text in read.notes)]


def _run_lines(path: Path) -> Lines:
    read = read_document(Results, path, remedy=_REMEDY, again="run again")
    return [
        (name, f"sha256 {entry.sha256[:12]}, warnings: {len(entry.warnings)}")
        for name, entry in sorted(read.results.items())
    ]


_DESCRIBERS: Mapping[str, Callable[[Path], Lines]] = {
    Calibration.schema: _calibration_lines,
    _Metrics.schema: _metrics_lines,
    Estimation.schema: _estimation_lines,
    Results.schema: _run_lines,
}


def _classes(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN_CLASSES])
    return f"{len(names)}: {shown}{', ...' if len(names) > _SHOWN_CLASSES else ''}"


def _inputs(inputs: Sequence[Input]) -> Lines:
    return [(entry.role, f"{entry.path} {entry.sha256[:12]}{_state(entry)}") for entry in inputs]


def _state(entry: Input) -> str:
    if not entry.path.is_file():
        return ", which is gone"
    return "" if is_unchanged(entry) else ", which has changed since"
