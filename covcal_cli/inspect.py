"""Describe a file of covcal in a few lines."""

import json
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from covcal_cli.calibrate.estimate import Estimation
from covcal_cli.calibrate.methods import AUTO
from covcal_cli.data.rows import count_rows
from covcal_cli.data.stores import format_of, open_store
from covcal_cli.errors import CovcalError, percent, printable
from covcal_cli.evaluate.bootstrap import LEVEL
from covcal_cli.evaluate.claims import ClassGaps, MeanGap
from covcal_cli.evaluate.metrics import METRICS
from covcal_cli.evaluate.result import Change, MetricsRecord, Verdict, measured_name
from covcal_cli.files import as_word, require_file, sha256_of
from covcal_cli.forecast import source_accuracy
from covcal_cli.formats.calibration import Calibration, read_calibration
from covcal_cli.formats.decision import Decision
from covcal_cli.formats.features import (
    APPLIED_SCHEMA,
    REMEDY,
    SPLITS,
    Domain,
    FeatureFile,
    labels_in,
)
from covcal_cli.formats.lineage import is_unchanged, notes_on_named
from covcal_cli.hdf5 import File
from covcal_cli.labels.draws import NO_DRAW, Draw, read_draw
from covcal_cli.labels.filled_sheet import read_sheet
from covcal_cli.labels.tasks import SUFFIXES, read_tables
from covcal_cli.multilabel import SCHEMA, one_label
from covcal_cli.records import (
    Input,
    labels_of_document,
    parsed_json,
    read_document,
    read_json,
    require_ascending,
)
from covcal_cli.run.journal import Results
from covcal_cli.watch.history import read_history
from covcal_cli.watch.period import Period, Watched
from covcal_cli.watch.reference import Reference

Lines = list[tuple[str, str]]  # Subject and text of each line.
_REMEDY = "name a file that covcal wrote"
_SHOWN_CLASSES = 8
# HDF5 attributes that the description leaves out.
_HIDDEN = (
    "schema",
    "complete",
    "labels",
    "training",
    "preprocessing",
    "affine_difference",
    "largest_logit",
)


def describe(path: str | Path) -> str:
    """Describe a file by its content.

    Raises `CovcalError` if the file is damaged or not from covcal.
    """
    path = Path(path)
    require_file(path, remedy=_REMEDY)
    with path.open("rb") as handle:
        start = handle.read(64).lstrip()
    text = start.decode(json.detect_encoding(start), "replace").lstrip()
    if text.startswith(f'{{"schema": "{Period.schema}"'):
        history = read_history(path)
        last = history.change_of(history.periods[-1]) if history.periods else ""
        draws = f"covcal watch --history {as_word(path)} --plot trend.html draws all periods"
        lines = [*_period_lines(history.periods, last), ("next", draws), ("schema", Period.schema)]
        lines += [("warning", text) for text in history.damaged]
    elif tasks := _task_lines(path):
        lines = tasks
    elif text.startswith("{"):
        lines = _json_lines(path)
    elif start.startswith(b"\x89HDF"):
        lines = _hdf5_lines(path)
    elif metadata := _exported(path):
        lines = _model_lines(metadata)
    elif format_of(path):
        lines = _table_lines(path)
    else:
        raise CovcalError(f"{path} {_other_kind(start, path.suffix.lower())}")
    lines = [(printable(name), printable(text)) for name, text in lines]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


def _other_kind(start: bytes, suffix: str) -> str:
    if start.lower().startswith(b"<!doctype html"):
        return "is a web page: open it in a browser"
    if start.startswith((b"\x89PNG", b"<svg", b"%PDF")):
        return "is a picture: open it in a viewer"
    if start.startswith(b"<?xml"):
        return "is an XML document: open it in a browser or an editor"
    if suffix in {".onnx", ".pt", ".pt2", ".pth"}:
        return "is not a model from covcal export: give it to covcal extract"
    return f"is not a readable HDF5 file, JSON or table: {_REMEDY}"


# Tables: the CSV of covcal pick, and the rows that covcal apply wrote.


def _table_lines(path: Path) -> Lines:
    store = open_store(path)
    if {"inclusion", "draw"} <= set(store.entries):
        sheet = read_sheet(path)
        batch = sheet.batch
        labelled = sheet.n_labelled
        columns = "columns label_NAME" if sheet.several else "column label"
        fill = "" if labelled == len(sheet) else f"fill in the {columns}, then "
        return [
            ("sheet", f"{len(sheet)} rows that covcal pick drew; {labelled} have a label"),
            ("drawn", f"from {batch.population} {' and '.join(batch.splits)} rows of the target"),
            (
                "to do",
                f"{fill}run covcal label, or send the file back. Do not change the other columns",
            ),
            ("inclusion", "covcal pick drew the row with this probability"),
            ("draw", "a checksum of the line; covcal label needs this column"),
        ]
    of_label = [name.removeprefix("prob_") for name in store.entries if name.startswith("prob_")]
    rest = {*store.entries} - {f"prob_{label}" for label in of_label}
    if of_label and rest <= {"id", *(f"decision_{label}" for label in of_label)}:
        return [
            ("rows", f"{count_rows(store)}, written by covcal apply"),
            ("labels", _classes(of_label)),
        ]
    if {"probabilities", "classes", "input_sha256"} <= set(store.entries) and (
        "label_index" not in store.entries
    ):
        labels = store.texts("classes")
        return [
            ("rows", f"{store.entries['probabilities'].shape[0]}, written by covcal apply"),
            ("labels", _classes(labels)),
        ]
    if not {"label_index", "confidence"} <= set(store.entries):
        raise CovcalError(f"{path} is not a table that covcal wrote: {_REMEDY}")
    names = [name for name, entry in store.entries.items() if entry.shape]
    others = [name for name in names if not name.startswith("prob_")]
    probabilities = len(names) - len(others)
    columns = ", ".join(others)
    columns += f", and {probabilities} of probabilities" if probabilities else ""
    confidence = store.whole("confidence").astype(float)
    return [
        ("rows", f"{len(confidence)}, written by covcal apply"),
        ("confidence", f"{percent(confidence.mean(), 1)} on average"),
        ("columns", columns),
    ]


def _task_lines(path: Path) -> Lines:
    try:
        tables = read_tables(path) if path.suffix.lower() in SUFFIXES else []
    except CovcalError:
        return []
    if not tables or not all({"id", "draw"} <= set(table.columns) for table in tables):
        return []
    labels: dict[str, str] = {}
    for table in tables:
        cells = table.columns.get("label", [""] * len(table.columns["id"]))
        for row_id, label in zip(table.columns["id"], cells, strict=True):
            labels[row_id] = labels.get(row_id) or label
    labelled = sum(map(bool, labels.values()))
    return [
        ("tasks", f"{len(labels)} rows that covcal pick drew; {labelled} have a label"),
        ("to do", "label the rows in the annotation tool, and give the export to covcal label"),
    ]


# HDF5: features, adapted files, and applied rows.


def _hdf5_lines(path: Path) -> Lines:
    with File(path, remedy=REMEDY) as applied:
        if applied.attrs.get("schema") == APPLIED_SCHEMA:
            if "complete" not in applied.attrs:
                raise CovcalError(f"{path} is not complete: run covcal apply again")
            classes = applied["classes"].texts()
            what = "probabilities" if "probabilities" in applied else "confidences alone"
            count = [("rows", f"{len(applied['id'])}, {what}")]
            return _described(APPLIED_SCHEMA, classes, count, applied.attrs)
    if labels := labels_in(path):
        return _labels_lines(path, labels)
    with FeatureFile(path) as file:
        domains: list[Domain] = [
            domain for domain in (file.source, file.target) if domain is not None
        ]
        rows = [_domain(domain) for domain in domains]
        rows += _batches(read_draw(file) if file.target is not None else NO_DRAW)
        accuracy = source_accuracy(file)
        if accuracy is not None:
            rows.append(("accuracy", str(accuracy)))
            if accuracy.doubt is not None:
                rows.append(("warning", accuracy.doubt))
        groups = dict.fromkeys(name for domain in domains for name in domain.columns)
        rows.append(("groups", ", ".join(groups) or "none"))
        rows += [("note", text) for text in notes_on_named(path)]
        rows += _preprocessing(file.attributes.get("preprocessing"))
        return _described(file.schema, file.classes, rows, file.attributes)


def _labels_lines(path: Path, labels: Sequence[str]) -> Lines:
    lines: Lines = []
    for label in labels:
        with one_label(label), FeatureFile(path) as file:
            domains = [domain for domain in (file.source, file.target) if domain is not None]
            if not lines:
                lines = [_domain(domain) for domain in domains]
                lines += _batches(read_draw(file) if file.target is not None else NO_DRAW)
            accuracy = source_accuracy(file)
            counts = [f"{domain.n_labelled} {domain.name} rows" for domain in domains]
            doubt = "" if accuracy is None else accuracy.doubt or str(accuracy)
            accuracy_in_words = f"; accuracy {doubt}" if doubt else ""
            lines.append((label, f"labelled: {', '.join(counts)}{accuracy_in_words}"))
            attributes = file.attributes
    return _described(SCHEMA, labels, lines, attributes)


def _batches(draw: Draw) -> Lines:
    lines = []
    for number, batch in enumerate(draw.batches):
        labelled = int(np.count_nonzero(draw.labelled[draw.batch == number]))
        splits = " and ".join(batch.splits)
        lines.append(
            (
                "picked",
                f"{batch.drawn} of {batch.population} {splits} rows by {batch.score}, seed "
                f"{batch.seed}; {labelled} have a label",
            )
        )
    return lines


def _preprocessing(text: object) -> Lines:
    try:
        settings = parsed_json(str(text))
    except ValueError:
        return []
    if not isinstance(settings, dict):
        return [("images", "none: the rows were used unchanged")]
    return [("images", ", ".join(f"{name} {_plain(value)}" for name, value in settings.items()))]


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        parts = (f"{name} {_plain(part)}" for name, part in value.items() if part not in (None, []))
        return f"({', '.join(parts)})"
    if isinstance(value, list):
        return " ".join(map(_plain, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _described(
    schema: str, classes: Sequence[str], rows: Lines, attributes: Mapping[str, Any]
) -> Lines:
    facts = [
        (name, str(value))
        for name, value in sorted(attributes.items())
        if name not in _HIDDEN and str(value) not in ("", "[]")
    ]
    return [*rows, ("classes", _classes(classes)), *facts, ("schema", schema)]


def _domain(domain: Domain) -> tuple[str, str]:
    splits = ", ".join(f"{name} {domain.count(name)}" for name in SPLITS)
    width = "none" if domain.n_features is None else str(domain.n_features)
    members = f"; members {domain.n_members}" if domain.n_members else ""
    widths = f"features {width}, logits {domain.n_classes}{members}"
    labelled = str(domain.n_labelled) if domain.n_labelled < domain.n else "all"
    use = " for covcal evaluate" if domain.name == "target" else ""
    return domain.name, f"{domain.n} rows ({splits}), {labelled} labelled{use}; {widths}"


# Exported models. covcal reads only the metadata of a model, and does not run the model.

_PREFIX = "covcal."


def _exported(path: Path) -> dict[str, str]:
    if path.suffix.lower() == ".pt2":
        metadata = _of_archive(path)
    elif path.suffix.lower() == ".onnx":
        from covcal_cli.classifiers.onnx.file import metadata_of

        metadata = metadata_of(path)
    else:
        return {}
    return {name: value for name, value in metadata.items() if name.startswith(_PREFIX)}


def _of_archive(path: Path) -> dict[str, str]:
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/covcal.json"))
            content = parsed_json(archive.read(name).decode("utf-8"))
    except (OSError, ValueError, StopIteration, zipfile.BadZipFile):
        return {}
    return {str(name): str(value) for name, value in content.items()}


def _model_lines(metadata: Mapping[str, str]) -> Lines:
    lines = [("model", "exported by covcal")]
    for name, value in sorted(metadata.items()):
        names = parsed_json(value) if name == f"{_PREFIX}classes" else None
        lines.append((name, _classes(names) if isinstance(names, list) else value))
    return lines


# JSON: calibrations, metrics, estimates, decisions, reference data and the journal of a run.


def _json_lines(path: Path) -> Lines:
    content = read_json(path, remedy=_REMEDY)
    schema = content.get("schema")
    if labels := labels_of_document(content):
        lines = [("labels", _classes(labels))]
        for label in labels:
            with one_label(label):
                inner = content["labels"][label].get("schema")
                described = [*_of_schema(path, inner), ("schema", str(inner))]
                lines += [(f"{label}: {name}", text) for name, text in described]
        return [*lines, ("schema", str(schema))]
    return [*_of_schema(path, schema), ("schema", str(schema))]


def _of_schema(path: Path, schema: Any) -> Lines:
    if not isinstance(schema, str) or schema not in _DESCRIBERS:
        raise CovcalError(
            f"{path} has schema {schema!r}, which this version does not know: {_REMEDY}, or update "
            "covcal"
        )
    return _DESCRIBERS[schema](path)


def _model(calibration: Calibration) -> str:
    name, digest = calibration.model["name"], calibration.model["sha256"]
    return (
        f"{name} {digest[:12]}" if digest else (f"not known, because the {name} came from a table")
    )


def _calibration_lines(path: Path) -> Lines:
    read = read_calibration(path)
    aligned, offset = read.aligned_temperature, read.confidence_offset
    logits = "of the classifier" if read.forecaster == "original" else "that covcal adapt learnt"
    lines = [("warning", text) for text in read.warnings]
    lines += [
        ("method", f"{read.method_used} (asked for: {_asked_for(read)})"),
        ("T_f", f"{read.forecaster_temperature:.6g}; the logits {logits} are divided by T_f"),
        *(
            []
            if aligned is None
            else [("T_a", f"{aligned:.6g}; the aligned logits are divided by T_a")]
        ),
        *_offsets(read),
        *(
            [("offset", f"{offset:+.4g} is added to the log odds of the confidence")]
            if offset
            else []
        ),
        ("classes", _classes(read.classes)),
        ("model", _model(read)),
        *_inputs(read.inputs),
    ]
    if read.source_accuracy is not None:
        lines.append(("source", f"accuracy {read.source_accuracy}"))
    if read.labelled_rows is not None:
        by_pick = "by covcal pick, which prefers uncertain rows"
        drawn = "at random" if read.labelled_rows.design == "random" else by_pick
        lines.append(("labels", f"{read.labelled_rows.n} labelled target rows, drawn {drawn}"))
    return lines + [("note", text) for text in read.notes]


def _asked_for(calibration: Calibration) -> str:
    rows = calibration.labelled_rows
    if rows is None or calibration.method == AUTO:
        return calibration.method
    return f"{AUTO} with --labels {rows.n if rows.design == 'random' else rows.design}"


def _offsets(calibration: Calibration) -> Lines:
    if not calibration.class_offsets:
        return []
    low, high = min(calibration.class_offsets), max(calibration.class_offsets)
    return [("prior", f"numbers from {low:.3g} to {high:.3g} are added to the log odds of classes")]


def _metrics_lines(path: Path) -> Lines:
    record = read_document(MetricsRecord, path, remedy=_REMEDY, again="evaluate again")
    lines = [_gate_line(limit) for limit in record.limits]
    lines += [_gate_line(change) for change in record.regressions]
    lines.append(("rows", f"{record.n} target rows ({record.split})"))
    level, text = float((record.bootstrap or {}).get("level", LEVEL)), None
    for name, metrics in record.metrics.items():
        bins = record.bins_of(name)
        gap = None if not record.n or bins is None else MeanGap.of(bins, level)
        off = "" if gap is None else f"{'confidence ' * abs(gap.direction)}{gap.sentence}; "
        shares = ", ".join(
            f"{title} {percent(metrics.get(key))}"
            for key, title in (("accuracy", "accuracy"), ("ece", "ECE"))
        )
        nll = metrics.get("nll")
        lines.append((name, f"{off}{shares}, NLL {'-' if nll is None else f'{nll:.4f}'}"))
        classes = ClassGaps.of(record.classes.get(name, ()), level)
        text = "; ".join(filter(None, (f"with {name}, {classes.count}", classes.worst)))
        text = text if classes.n > 1 else None
    return lines if text is None else [*lines, ("classes", text)]


def _gate_line(gate: Verdict | Change) -> tuple[str, str]:
    if isinstance(gate, Change):
        gate_text = (
            f"{gate.metric} may be worse by up to {gate.limit:g}, and is worse by "
            f"{gate.worse_by:.4g}"
        )
    else:
        least = METRICS[gate.metric].better == "higher"
        groups = f" where {gate.by} is {gate.group}" if gate.by else ""
        sign = ">=" if least else "<="
        gate_text = f"{gate.metric} {sign} {gate.limit:g}{groups}: {gate.value:.4g}"
    outcome = "FAILED" if gate.exceeded else "not proved" if gate.is_open else "passed"
    return "gate", f"{outcome} by {measured_name(gate.calibration)}: {gate_text}"


def _estimation_lines(path: Path) -> Lines:
    read = read_document(Estimation, path, remedy=_REMEDY, again="estimate again")
    for estimate in read.estimates:
        try:
            require_ascending(low=estimate.low, accuracy=estimate.accuracy, high=estimate.high)
        except ValueError as error:
            raise CovcalError(
                f"{path} is damaged ({error}, of {estimate.name}): estimate again"
            ) from error
    lines = [
        ("rows", f"{read.source_rows} source rows, {read.target_rows} target rows"),
        ("prior", read.prior_name),
    ]
    if read.source_accuracy is not None:
        lines.append(("source", str(read.source_accuracy)))
    for estimate in read.estimates:
        doubt = (
            ", not checked"
            if not estimate.checked
            else ""
            if estimate.trusted
            else ", not to be trusted"
        )
        ends = f"{percent(estimate.low, 1)} to {percent(estimate.high, 1)}"
        text = f"accuracy {percent(estimate.accuracy, 1)} ({ends}){doubt}"
        lines.append((estimate.name, text))
    return [*lines, *_inputs(read.inputs), *(("note", text) for text in read.notes)]


def _decision_lines(path: Path) -> Lines:
    read = read_document(Decision, path, remedy=_REMEDY, again="decide again")
    above = [] if read.threshold is None else [("threshold", f"{read.score} {read.threshold:.6g}")]
    rows = ("rows", f"{read.rows} target rows ({' and '.join(read.splits)})")
    costs = []
    if read.costs is not None:
        kinds = [
            f"{read.costs.wrong:g} for a wrong row",
            *(
                f"{pair.cost:g} for {pair.true} predicted as {pair.predicted}"
                for pair in read.costs.pairs
            ),
            f"{read.costs.review or 0:g} for a review",
        ]
        costs = [("costs", ", ".join(kinds))]
    notes = [("note", text) for text in read.notes]
    lines = [*above, *costs, rows, *_inputs(read.inputs), *notes]
    files = [read.rows_file, *filter(None, [_place(read.calibration)])]
    is_there = len(files) > 1 and all(map(Path.is_file, files))
    if is_there and (read.share or read.sets is not None):
        command = f"covcal apply {' -c '.join(map(as_word, files))} --decide {as_word(path)}"
        lines.append(("next", f"{command}  # writes the decision for every row"))
    return lines


def _reference_lines(path: Path) -> Lines:
    read = read_document(Reference, path, remedy=_REMEDY, again="watch again")
    rows = max((signal.rows for signal in read.signals), default=0)
    carried = ", from an earlier calibration" if read.is_carried_over else ""
    columns = [("columns", ", ".join(column.name for column in read.columns))]
    return [
        ("purpose", f"covcal watch compares new rows with these summaries{carried}"),
        ("calibration", f"sha256 {read.calibration_sha256[:12]}"),
        (
            "rows",
            f"summaries of {rows} {read.baseline} rows and {read.n_classes} classes; "
            "single rows are not stored",
        ),
        ("signals", ", ".join(signal.name for signal in read.signals[:_SHOWN_CLASSES])),
        *(columns if read.columns else []),
    ]


def _run_lines(path: Path) -> Lines:
    read = read_document(Results, path, remedy=_REMEDY, again="run again")
    return [
        (name, f"sha256 {entry.sha256[:12]}, warnings: {len(entry.warnings)}")
        for name, entry in sorted(read.results.items())
    ]


def _watch_lines(path: Path) -> Lines:
    read = read_document(Watched, path, remedy=_REMEDY, again="watch again")
    return [*_period_lines(read.periods), *(("note", text) for text in read.notes)]


def _period_lines(periods: Sequence[Period], change: str = "") -> Lines:
    counts = Counter(period.verdict for period in periods)
    calibrations = {period.calibration.sha256 for period in periods}
    several = f", with {len(calibrations)} calibrations" if len(calibrations) > 1 else ""
    lines = [("periods", f"{len(periods)}{several}")]
    lines += [(verdict, str(count)) for verdict, count in sorted(counts.items())]
    for period in periods[-1:]:
        lines += [(period.measured.period, period.answer), ("rows", change or period.change)]
    return lines


_DESCRIBERS: Mapping[str, Callable[[Path], Lines]] = {
    Calibration.schema: _calibration_lines,
    MetricsRecord.schema: _metrics_lines,
    Estimation.schema: _estimation_lines,
    Results.schema: _run_lines,
    Watched.schema: _watch_lines,
    Decision.schema: _decision_lines,
    Reference.schema: _reference_lines,
}


def _classes(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > _SHOWN_CLASSES else ""
    return f"{len(names)}: {', '.join(names[:_SHOWN_CLASSES])}{more}"


def _inputs(inputs: Sequence[Input]) -> Lines:
    return [(entry.role, f"{entry.path} {entry.sha256[:12]}{_state(entry)}") for entry in inputs]


def _state(entry: Input) -> str:
    if entry.is_outside:
        return " (outside the folder of this file, so covcal does not open it)"
    if (place := _place(entry)) is not None:
        return "" if place == entry.path else f" (now called {place.name})"
    return " (changed since then)" if entry.path.is_file() else " (not found)"


def _place(entry: Input) -> Path | None:
    """Return where an unchanged input is now, or None."""
    if entry.is_outside or is_unchanged(entry):
        return entry.path
    # A renamed calibration is found by its hash. Data files may be too large to hash.
    beside = sorted(entry.path.parent.glob("*.json")) if entry.path.suffix == ".json" else []
    unchanged = (path for path in beside if path.is_file() and sha256_of(path) == entry.sha256)
    return next(unchanged, None)
