"""Evaluations as text: percent with two decimals on screen, fractions in JSON."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from covcal_cli.cli.render import markdown_table, table
from covcal_cli.diagram import text_diagram
from covcal_cli.evaluate.evaluation import Evaluation, metrics_document
from covcal_cli.evaluate.junit import GateCase
from covcal_cli.evaluate.limits import Verdict
from covcal_cli.evaluate.regression import Change
from covcal_cli.metrics.groups import SMALL_GROUP, GroupMetrics
from covcal_cli.records import document_text

_COLUMNS = ("calibration", "T", "n", "accuracy", "confidence", "ECE", "over ECE", "NLL", "Brier")
_FURTHER = {
    "under_ece": "under ECE",
    "adaptive_ece": "adaptive ECE",
    "classwise_ece": "class-wise ECE",
    "debiased_ece": "debiased ECE",
    "smooth_ece": "smooth ECE",
    "mce": "MCE",
    "aurc": "AURC",
    "agreement": "agreement",
}
_INTERVALS = {
    "accuracy": "accuracy",
    "mean_confidence": "confidence",
    "ece": "ECE",
    "over_ece": "over ECE",
    "under_ece": "under ECE",
    "adaptive_ece": "adaptive ECE",
    "nll": "NLL",
    "brier": "Brier",
}
_NOT_PERCENT = {"nll", "brier"}
_GROUP_COLUMNS = ("calibration", "group", "n", "accuracy", "confidence", "ECE", "over ECE")

Drawn = Callable[..., str]


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
    lines = _tables(report, markdown_table, "\n\n")
    cases = gate_cases(report)
    if cases:
        lines += "\n\n" + "\n".join(f"- {case.sentence}" for case in cases)
    return lines


def _tables(report: Report, draw: Drawn, between: str) -> str:
    evaluation = report.evaluation
    parts = [draw(_COLUMNS, _rows(evaluation))]
    if report.every_metric:
        parts.append(draw(("calibration", *_FURTHER.values()), _further_rows(evaluation)))
    if evaluation.intervals:
        title = f"95 % intervals, {evaluation.resamples} resamples, seed {evaluation.seed}"
        drawn = draw(("calibration", *_INTERVALS.values()), _interval_rows(evaluation))
        parts.append(f"{title}{between}{drawn}")
    if evaluation.by is not None:
        drawn = draw(_GROUP_COLUMNS, _group_rows(evaluation), texts=("group",))
        parts.append(f"by {evaluation.by}{between}{drawn}")
        if any(group.small for found in evaluation.groups.values() for group in found):
            parts.append(f"(n): fewer than {SMALL_GROUP} rows, so the ECE is mostly noise")
    return "\n\n".join(parts)


def _rows(evaluation: Evaluation) -> list[list[str]]:
    return [
        [
            name,
            f"{evaluation.temperatures[name]:.4g}",
            str(entry.n),
            f"{entry.accuracy:.2%}",
            f"{entry.mean_confidence:.2%}",
            f"{entry.ece:.2%}",
            f"{entry.over_ece:.2%}",
            f"{entry.nll:.4f}",
            f"{entry.brier:.4f}",
        ]
        for name, entry in evaluation.metrics.items()
    ]


def _further_rows(evaluation: Evaluation) -> list[list[str]]:
    return [
        [name, *(_percent(getattr(entry, metric)) for metric in _FURTHER)]
        for name, entry in evaluation.metrics.items()
    ]


def _interval_rows(evaluation: Evaluation) -> list[list[str]]:
    return [
        [
            name,
            *(
                f"{low:.4f}-{high:.4f}" if metric in _NOT_PERCENT else f"{low:.2%}-{high:.2%}"
                for metric, (low, high) in ((metric, found[metric]) for metric in _INTERVALS)
            ),
        ]
        for name, found in evaluation.intervals.items()
    ]


def _group_rows(evaluation: Evaluation) -> list[list[str]]:
    return [
        [
            name,
            group.name,
            f"(n) {group.n}" if group.small else str(group.n),
            *map(_percent, _of_group(group)),
        ]
        for name, found in evaluation.groups.items()
        for group in found
    ]


def _of_group(group: GroupMetrics) -> tuple[float | None, ...]:
    return group.accuracy, group.mean_confidence, group.ece, group.over_ece


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


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
        _tables(report, table, "\n"),
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
    document = metrics_document(report.evaluation, report.verdicts, report.changes)
    return document_text(document, Path("metrics.json"))


RENDERERS: dict[str, Callable[[Report], str]] = {
    "table": _as_table,
    "json": _as_json,
    "markdown": as_markdown,
    "github": _as_github,
}
