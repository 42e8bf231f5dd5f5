"""Results of the commands as text, in the order of the commands; JSON has fractions."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from covcal_cli.calibrate.estimate import (
    Estimation,
    Expectation,
    ExpectedCalibration,
    expectation_document,
)
from covcal_cli.cli import tables
from covcal_cli.estimators.evidence import Estimate
from covcal_cli.evaluate.bins import SMALL_GROUP
from covcal_cli.evaluate.diagram import text_diagram
from covcal_cli.evaluate.gates import Judged
from covcal_cli.evaluate.metrics import on_screen
from covcal_cli.evaluate.result import Evaluation, metrics_document
from covcal_cli.records import document_text
from covcal_cli.report.tables import Table

if TYPE_CHECKING:  # importing them would load Pillow
    from covcal_cli.extract.domain import DomainReport
    from covcal_cli.extract.dry_run import DryRun
    from covcal_cli.extract.extract import ExtractReport

_UNITS = ("bytes", "kB", "MB", "GB", "TB")
_SHOWN_CLASSES = 8


# ``covcal extract``: what was run and read, or would be.


def extract_summary(report: "ExtractReport") -> str:
    """Return what ``covcal extract`` ran and read."""
    lines = [("model", report.head), ("input", report.preprocessing), *_domains(report.domains)]
    if report.source_accuracy is not None:
        lines.append(("accuracy", f"{report.source_accuracy:.2%} of the labelled source rows"))
    return _aligned(lines)


def dry_run_summary(plan: "DryRun") -> str:
    """Return what ``covcal extract`` would do."""
    shown = ", ".join(plan.classes[:_SHOWN_CLASSES])
    more = len(plan.classes) - _SHOWN_CLASSES
    seconds = "unknown" if plan.seconds is None else _duration(plan.seconds)
    lines = [
        ("model", plan.head),
        ("input", plan.preprocessing),
        ("classes", f"{shown}, and {more} more" if more > 0 else shown),
        *_domains(plan.domains),
        ("batch", f"{plan.batch} rows, threads {plan.threads}"),
        ("size", f"{_size(plan.size)} on disk, twice that while running"),
        ("time", f"{seconds}, from a few batches"),
    ]
    return _aligned(lines)


def _domains(domains: Sequence["DomainReport"]) -> Iterator[tuple[str, str]]:
    for domain in domains:
        rows = ", ".join(f"{name} {count}" for name, count in domain.rows.items())
        total = sum(domain.rows.values())
        skipped = f"; {len(domain.skipped)} files skipped" if domain.skipped else ""
        yield domain.name, f"{total} rows ({rows}), {domain.labelled} labelled{skipped}"


def _aligned(lines: Sequence[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


def _size(count: float) -> str:
    for unit in _UNITS:
        if count < 1000 or unit == _UNITS[-1]:
            break
        count /= 1000
    return f"{count:.3g} {unit}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"about {seconds:.2g} s"
    minutes = seconds / 60
    return f"about {minutes:.0f} min" if minutes < 90 else f"about {minutes / 60:.1f} h"


# ``covcal estimate``: percent with one decimal.


def rendered_estimate(expectation: Expectation, kind: str) -> str:
    """Return estimates as ``table``, ``json`` or ``markdown``."""
    if kind == "json":
        document = expectation_document(expectation, Path("estimate.json"))
        return document_text(document, Path("estimate.json"))
    estimates = _estimates(expectation.estimation)
    calibrations = _calibrations(expectation.calibrations)
    if kind == "table":
        parts = [_estimates_as_text(expectation.estimation, estimates), tables.text(calibrations)]
    else:
        parts = [tables.markdown(estimates), tables.markdown(calibrations)]
    return "\n\n".join(parts if calibrations.rows else parts[:1])


def _estimates_as_text(estimation: Estimation, estimates: Table) -> str:
    """Return the table with the assumptions, its last column, below it, where they have room."""
    narrow = Table(estimates.columns[:-1], [row[:-1] for row in estimates.rows], estimates.texts)
    best = estimation.estimates[0]
    width = max(len(one.name) for one in estimation.estimates)
    return "\n".join(
        [
            f"accuracy on the target: {best.accuracy:.1%} ({best.low:.1%} to {best.high:.1%}), "
            f"from {estimation.source_rows} source and {estimation.target_rows} target rows",
            "",
            tables.text(narrow),
            "",
            "each is right if",
            *(f"{one.name:<{width}}  {one.assumption}" for one in estimation.estimates),
        ]
    )


def _estimates(estimation: Estimation) -> Table:
    rows = [
        [
            one.name,
            f"{one.accuracy:.1%}",
            f"{one.low:.1%} to {one.high:.1%}",
            _trust(one),
            one.assumption,
        ]
        for one in estimation.estimates
    ]
    columns = ("estimate", "accuracy", "interval", "trusted", "assumption")
    return Table(columns, rows, texts=(0, 3, 4))


def _trust(estimate: Estimate) -> str:
    """Return ``yes``, or the guards that failed."""
    failed = [guard.name for guard in estimate.guards if not guard.passed]
    return f"no: {', '.join(failed)}" if failed else "yes"


def _calibrations(calibrations: Sequence[ExpectedCalibration]) -> Table:
    rows = [
        [
            entry.name,
            f"{entry.temperature:.4g}",
            f"{entry.mean_confidence_before:.1%}",
            f"{entry.mean_confidence:.1%}",
            f"{entry.estimated_accuracy:.1%}",
            f"{entry.distance:.1%}",
        ]
        for entry in calibrations
    ]
    columns = ("calibration", "T", "confidence before", "after", "est. accuracy", "distance")
    return Table(columns, rows)


# ``covcal evaluate``: percent with two decimals.


def rendered_evaluation(judged: Judged, kind: str, *, every_metric: bool = False) -> str:
    """Return an evaluation as ``table``, ``json``, ``markdown`` or ``github``."""
    if kind == "json":
        document = metrics_document(judged.evaluation, judged.verdicts, judged.changes)
        return document_text(document, Path("metrics.json"))
    if kind == "table":
        return _as_text(judged, every_metric=every_metric)
    lines = [as_markdown(judged, every_metric=every_metric)]
    if kind == "github":  # which shows these lines beside the job
        lines += [f"::error::covcal: {case.sentence}" for case in judged.cases if case.failed]
    return "\n".join(lines)


def as_markdown(judged: Judged, *, every_metric: bool) -> str:
    """Return the tables and gates as Markdown."""
    text = _parts(judged.evaluation, tables.markdown, "\n\n", every_metric=every_metric)
    cases = "\n".join(f"- {case.sentence}" for case in judged.cases)
    return f"{text}\n\n{cases}" if cases else text


def _as_text(judged: Judged, *, every_metric: bool) -> str:
    evaluation = judged.evaluation
    shown = list(evaluation.metrics)[-1]
    lines = [
        _parts(evaluation, tables.text, "\n", every_metric=every_metric),
        "",
        f"reliability of {shown}, target {evaluation.split} rows",
        text_diagram(evaluation.metrics[shown].bins),
    ]
    sentences = [case.sentence for case in judged.cases]
    return "\n".join([*lines, "", *sentences] if sentences else lines)


def _parts(
    evaluation: Evaluation, draw: Callable[[Table], str], between: str, *, every_metric: bool
) -> str:
    """Return the tables, each but the first below its title and what is to go `between`."""
    parts = [draw(_metrics(evaluation, main=True))]
    if every_metric:
        parts.append(draw(_metrics(evaluation, main=False)))
    if evaluation.intervals:
        title = f"95 % intervals, {evaluation.resamples} resamples, seed {evaluation.seed}"
        parts.append(f"{title}{between}{draw(_intervals(evaluation))}")
    if evaluation.by is not None:
        parts.append(f"by {evaluation.by}{between}{draw(_groups(evaluation))}")
        if any(group.small for found in evaluation.groups.values() for group in found):
            parts.append(f"(n): fewer than {SMALL_GROUP} rows, so the ECE is mostly noise")
    return "\n\n".join(parts)


def _metrics(evaluation: Evaluation, *, main: bool) -> Table:
    """Return the main metrics, beside temperature and rows, or the further ones alone."""
    chosen = [(name, shown) for name, shown, metric in on_screen() if metric.main == main]
    rows = [
        [
            name,
            *([f"{evaluation.temperatures[name]:.4g}", str(entry.n)] if main else []),
            *(_cell(entry.value(metric), shown.percent) for metric, shown in chosen),
        ]
        for name, entry in evaluation.metrics.items()
    ]
    leading = ["calibration", "T", "n"] if main else ["calibration"]
    return Table([*leading, *(shown.label for _, shown in chosen)], rows)


def _intervals(evaluation: Evaluation) -> Table:
    chosen = [(name, shown) for name, shown, metric in on_screen() if metric.interval]
    rows = [
        [
            name,
            *(
                "-".join(_cell(end, shown.percent) for end in found[metric])
                for metric, shown in chosen
            ),
        ]
        for name, found in evaluation.intervals.items()
    ]
    return Table(["calibration", *(shown.label for _, shown in chosen)], rows)


def _groups(evaluation: Evaluation) -> Table:
    columns = ("calibration", "group", "n", "accuracy", "confidence", "ECE", "over ECE")
    rows = [
        [
            name,
            group.name,
            f"(n) {group.n}" if group.small else str(group.n),
            *map(_cell, (group.accuracy, group.mean_confidence, group.ece, group.over_ece)),
        ]
        for name, found in evaluation.groups.items()
        for group in found
    ]
    return Table(columns, rows, texts=(0, 1))


def _cell(value: float | None, percent: bool = True) -> str:
    if value is None:
        return "-"
    return f"{value:.2%}" if percent else f"{value:.4f}"
