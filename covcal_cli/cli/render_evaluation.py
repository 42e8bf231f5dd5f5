"""Evaluations as text: percent with two decimals on screen, fractions in JSON."""

from collections.abc import Callable
from pathlib import Path

from covcal_cli.cli import tables
from covcal_cli.evaluate.bins import SMALL_GROUP
from covcal_cli.evaluate.diagram import text_diagram
from covcal_cli.evaluate.gates import Judged
from covcal_cli.evaluate.metrics import on_screen
from covcal_cli.evaluate.result import Evaluation, metrics_document
from covcal_cli.records import document_text
from covcal_cli.report.tables import Table


def rendered(judged: Judged, kind: str, *, every_metric: bool = False) -> str:
    """Return an evaluation as ``table``, ``json``, ``markdown`` or ``github``."""
    if kind == "json":
        document = metrics_document(judged.evaluation, judged.verdicts, judged.changes)
        return document_text(document, Path("metrics.json"))
    if kind == "table":
        return _as_text(judged, every_metric=every_metric)
    text = as_markdown(judged, every_metric=every_metric)
    if kind == "markdown":
        return text
    # GitHub shows these lines beside the job.
    failed = [f"::error::covcal: {case.sentence}" for case in judged.cases if case.failed]
    return "\n".join([text, *failed])


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
    parts = [draw(_main(evaluation))]
    if every_metric:
        parts.append(draw(_further(evaluation)))
    if evaluation.intervals:
        title = f"95 % intervals, {evaluation.resamples} resamples, seed {evaluation.seed}"
        parts.append(f"{title}{between}{draw(_intervals(evaluation))}")
    if evaluation.by is not None:
        parts.append(f"by {evaluation.by}{between}{draw(_groups(evaluation))}")
        if any(group.small for found in evaluation.groups.values() for group in found):
            parts.append(f"(n): fewer than {SMALL_GROUP} rows, so the ECE is mostly noise")
    return "\n\n".join(parts)


def _main(evaluation: Evaluation) -> Table:
    chosen = [(name, shown) for name, shown, metric in on_screen() if metric.main]
    rows = [
        [
            name,
            f"{evaluation.temperatures[name]:.4g}",
            str(entry.n),
            *(_cell(entry.value(metric), shown.percent) for metric, shown in chosen),
        ]
        for name, entry in evaluation.metrics.items()
    ]
    return Table(["calibration", "T", "n", *(shown.label for _, shown in chosen)], rows)


def _further(evaluation: Evaluation) -> Table:
    chosen = [(name, shown) for name, shown, metric in on_screen() if not metric.main]
    rows = [
        [name, *(_cell(entry.value(metric), shown.percent) for metric, shown in chosen)]
        for name, entry in evaluation.metrics.items()
    ]
    return Table(["calibration", *(shown.label for _, shown in chosen)], rows)


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
