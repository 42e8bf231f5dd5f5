"""Evaluations as text: percent with two decimals on screen, fractions in JSON."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from covcal_cli.cli import tables
from covcal_cli.diagram import text_diagram
from covcal_cli.evaluate.evaluation import Evaluation, metrics_document
from covcal_cli.evaluate.junit import GateCase
from covcal_cli.evaluate.limits import Verdict
from covcal_cli.evaluate.regression import Change
from covcal_cli.metrics.groups import SMALL_GROUP, GroupMetrics
from covcal_cli.metrics.metrics import on_screen
from covcal_cli.tables import Table

_GROUP_COLUMNS = ("calibration", "group", "n", "accuracy", "confidence", "ECE", "over ECE")

Drawn = Callable[[Table], str]


@dataclass(frozen=True)
class Report:
    """What ``covcal evaluate`` shows.

    Attributes
    ----------
    evaluation : Evaluation
    verdicts : sequence of Verdict
        Of ``--fail-above``.
    changes : sequence of Change
        Of ``--fail-regression``.
    every_metric : bool
        Whether the further metrics are shown too.
    """

    evaluation: Evaluation
    verdicts: Sequence[Verdict] = ()
    changes: Sequence[Change] = ()
    every_metric: bool = False


def gate_cases(report: Report) -> list[GateCase]:
    """Return every gate as it is reported, limits first."""
    return [
        GateCase(
            verdict.calibration,
            f"{verdict.limit.metric} <= {verdict.limit.limit:g}",
            _verdict(verdict, report.evaluation.intervals),
            verdict.exceeded,
        )
        for verdict in report.verdicts
    ] + [
        GateCase(
            change.calibration,
            f"{change.limit.metric} worse by <= {change.limit.limit:g}",
            _change(change),
            change.exceeded,
        )
        for change in report.changes
    ]


def github_annotations(report: Report) -> list[str]:
    """Return one line per gate exceeded, which GitHub shows beside the job."""
    return [f"::error::covcal: {case.sentence}" for case in gate_cases(report) if case.failed]


def as_markdown(report: Report) -> str:
    """Return the tables and gates as Markdown."""
    lines = _tables(report, tables.markdown, "\n\n")
    cases = gate_cases(report)
    if cases:
        lines += "\n\n" + "\n".join(f"- {case.sentence}" for case in cases)
    return lines


def _tables(report: Report, draw: Drawn, between: str) -> str:
    evaluation = report.evaluation
    parts = [draw(_main(evaluation))]
    if report.every_metric:
        parts.append(draw(_further(evaluation)))
    if evaluation.intervals:
        title = f"95 % intervals, {evaluation.resamples} resamples, seed {evaluation.seed}"
        parts.append(f"{title}{between}{draw(_intervals(evaluation))}")
    if evaluation.by is not None:
        drawn = draw(Table(_GROUP_COLUMNS, _group_rows(evaluation), texts=(0, 1)))
        parts.append(f"by {evaluation.by}{between}{drawn}")
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


def _group_rows(evaluation: Evaluation) -> list[list[str]]:
    return [
        [
            name,
            group.name,
            f"(n) {group.n}" if group.small else str(group.n),
            *map(_cell, _of_group(group)),
        ]
        for name, found in evaluation.groups.items()
        for group in found
    ]


def _of_group(group: GroupMetrics) -> tuple[float | None, ...]:
    return group.accuracy, group.mean_confidence, group.ece, group.over_ece


def _cell(value: float | None, percent: bool = True) -> str:
    if value is None:
        return "-"
    return f"{value:.2%}" if percent else f"{value:.4f}"


def _verdict(verdict: Verdict, intervals: Mapping[str, Mapping[str, tuple[float, float]]]) -> str:
    state = "EXCEEDED" if verdict.exceeded else "kept"
    text = (
        f"limit {verdict.limit.metric} <= {verdict.limit.limit:g} {state} by "
        f"{verdict.calibration}: {verdict.value:.6g}"
    )
    interval = intervals.get(verdict.calibration, {}).get(verdict.limit.metric)
    if interval is not None and interval[0] <= verdict.limit.limit < interval[1]:
        text += f" (the 95 % interval, {interval[0]:.4g} to {interval[1]:.4g}, holds the limit)"
    return text


def _change(change: Change) -> str:
    state = "EXCEEDED" if change.exceeded else "kept"
    direction = "worse" if change.worse_by > 0 else "better"
    found = "the same" if change.worse_by == 0 else f"{direction} by {abs(change.worse_by):.6g}"
    return (
        f"regression {change.limit.metric} worse by <= {change.limit.limit:g} {state} by "
        f"{change.calibration}: {change.before:.6g} -> {change.now:.6g}, {found}"
    )


def _as_table(report: Report) -> str:
    evaluation = report.evaluation
    shown = list(evaluation.metrics)[-1]
    parts = [
        _tables(report, tables.text, "\n"),
        "",
        f"reliability of {shown}, target {evaluation.split} rows",
        text_diagram(evaluation.metrics[shown].bins),
    ]
    cases = gate_cases(report)
    if cases:
        parts += ["", *(case.sentence for case in cases)]
    return "\n".join(parts)


def _as_github(report: Report) -> str:
    """Return Markdown for a job summary, and an annotation for every gate exceeded."""
    return "\n".join([as_markdown(report), *github_annotations(report)])


def _as_json(report: Report) -> str:
    document = metrics_document(report.evaluation, report.verdicts, None, report.changes)
    return json.dumps(document, indent=2, allow_nan=False)


RENDERERS: dict[str, Callable[[Report], str]] = {
    "table": _as_table,
    "json": _as_json,
    "markdown": as_markdown,
    "github": _as_github,
}
