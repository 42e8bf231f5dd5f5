"""``covcal evaluate``: metrics and reliability on labelled target rows, and gates for CI."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covcal_cli.cli.console import Console, usage
from covcal_cli.cli.gates import GatedOutput, parsed
from covcal_cli.cli.options import (
    AllowOtherPreprocessing,
    Force,
    FormatName,
    JudgedFile,
    JudgedSplit,
    NetworksOfFeatures,
    Quiet,
    ResultFormat,
    Seed,
    SplitName,
    Verbose,
    calibrations,
    output,
)

if TYPE_CHECKING:
    from covcal_cli.evaluate.gates import Assessment
    from covcal_cli.evaluate.result import Evaluation
    from covcal_cli.report.tables import Table


PredictionsName = StrEnum("PredictionsName", {"original": "original", "own": "own"})
MetricsName = StrEnum("MetricsName", ["main", "all"])


def evaluate(
    file: JudgedFile = None,
    calibration: Annotated[
        list[Path] | None,
        calibrations(
            "A calibration, and what to call it; repeat to compare several. Without FILE: cal.json."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        output("Write metrics.json there; - prints it instead of the table.", printed=True),
    ] = None,
    split: JudgedSplit = SplitName.test,
    bins: Annotated[int, typer.Option(min=1, max=10_000, help="Bins of confidence.")] = 15,
    predictions: Annotated[
        PredictionsName,
        typer.Option(help="Judge the classifier's labels, or the calibrated forecaster's own."),
    ] = PredictionsName.original,
    metrics: Annotated[
        MetricsName, typer.Option(help="Show the usual metrics, or all; JSON has all.")
    ] = MetricsName.main,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN|class|predicted",
            help="Show groups of rows too: by a column of the file, true or predicted class. "
            "Gates judge all rows together.",
        ),
    ] = None,
    bootstrap: Annotated[
        int,
        typer.Option(
            min=0,
            max=100_000,
            help="Intervals, and differences on the same rows, from so many resamples; 1000 is "
            "usual, and what gates take unless told.",
        ),
    ] = 0,
    confidence: Annotated[
        float,
        typer.Option(
            min=0,
            max=0.9999,
            help="Of the intervals. Gates judge the end that is kindest to the calibration; with 0 "
            "they judge values as found, noise and all.",
        ),
    ] = 0.95,
    seed: Seed = 0,
    diagram: Annotated[
        Path | None, typer.Option(help="Draw reliability diagrams: .png, .svg or .pdf.")
    ] = None,
    fail_above: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC=LIMIT",
            help="Exit with 3 if a metric (a fraction) is greater, as ece=0.05, with the lower end "
            "of its interval (one without needs --confidence 0); repeats.",
        ),
    ] = None,
    fail_below: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC=LIMIT",
            help="The same for what is better for being higher, as accuracy=0.9 or "
            "correctness_auroc=0.8, with the upper end; repeats.",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="METRICS.JSON", help="An earlier -o, for --fail-regression."),
    ] = None,
    fail_regression: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC=CHANGE",
            help="Exit with 3 if a metric is worse than in the baseline by more, beyond chance: "
            "paired where the rows are the same; repeats.",
        ),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(help="Write the gates as a JUnit report there.")
    ] = None,
    networks: NetworksOfFeatures = None,
    allow_other_preprocessing: AllowOtherPreprocessing = False,
    format: ResultFormat = FormatName.table,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Measure how honest the confidence is, where target labels are known.

    --format github also appends the tables to the job's summary (GITHUB_STEP_SUMMARY).

    \b
    Examples:
      covcal evaluate
      covcal evaluate adapted.h5 -c cal.json --diagram reliability.png
      covcal evaluate features.h5 -c a.json -c b.json -o metrics.json
      covcal evaluate adapted.h5 -c cal.json --bootstrap 1000 --by class
      covcal evaluate --split all --confidence 0.95 --fail-above ece=0.05
      covcal evaluate --fail-below accuracy=0.8 --fail-below correctness_auroc=0.7
      covcal evaluate -c a=cal.json --baseline a.json --fail-regression ece=.005
    """
    from covcal_cli.evaluate.bootstrap import LEVEL
    from covcal_cli.evaluate.diagram import check_diagram, draw_diagram
    from covcal_cli.evaluate.evaluate import EvaluateSettings
    from covcal_cli.evaluate.gates import Gates, assess
    from covcal_cli.evaluate.limits import parse_least, parse_limit, parse_regression
    from covcal_cli.evaluate.result import write_metrics
    from covcal_cli.forecast.forecaster import split_names

    console = Console(quiet=quiet, verbose=verbose)
    limits = parsed(fail_above, parse_limit, "--fail-above")
    limits += parsed(fail_below, parse_least, "--fail-below")
    allowed = parsed(fail_regression, parse_regression, "--fail-regression")
    report = GatedOutput(
        command="evaluate",
        output=output,
        format=format,
        junit=junit,
        force=force,
        has_gates=bool(limits or allowed),
        gate_options="--fail-above, --fail-below or --fail-regression",
        more={"--diagram": diagram},
    )
    if allowed and baseline is None:
        raise typer.BadParameter("needs --baseline", param_hint="--fail-regression")
    if baseline is not None and not allowed:
        raise typer.BadParameter("needs --fail-regression", param_hint="--baseline")
    settings = EvaluateSettings(
        split=split.value,
        bins=bins,
        predictions=predictions.value,
        by=by,
        resamples=bootstrap,
        level=confidence or LEVEL,
        seed=seed,
        allow_other_preprocessing=allow_other_preprocessing,
    )
    documents, names = split_names(calibration or [])
    with usage():
        gates = Gates(limits, allowed, baseline, confident=confidence > 0)
    with report.errors_in_report():
        if diagram is not None:
            check_diagram(diagram)
        assessment = assess(
            file,
            documents,
            settings,
            names=names,
            networks=networks,
            gates=gates,
            check=report.check,
            tell=console.note,
        )
    evaluation = assessment.evaluation
    if file is not None and not calibration:
        console.note("no -c given: only the classifier as it is was judged")

    def write() -> None:
        if report.document is not None:
            write_metrics(
                evaluation,
                assessment.verdicts,
                report.document,
                force=force,
                changes=assessment.changes,
            )
        if diagram is not None:
            title = f"{evaluation.inputs[0].path.name}, target {evaluation.split} rows"
            draw_diagram(evaluation.metrics, diagram, title=title, force=force)

    extras = _Extras(every_metric=metrics is MetricsName.all, intervals=bootstrap > 0)
    report.publish(
        console,
        lambda kind: rendered_evaluation(assessment, kind, extras=extras),
        assessment.gates,
        write=write,
    )


@dataclass(frozen=True)
class _Extras:
    """What tables show beside the usual metrics."""

    every_metric: bool = False  # else the main ones
    intervals: bool = True  # those that gates alone asked for stand in their sentences


def rendered_evaluation(assessment: "Assessment", kind: str, *, extras: _Extras = _Extras()) -> str:
    """Return an evaluation as ``table``, ``json``, ``markdown`` or ``github``."""
    from covcal_cli.cli import tables
    from covcal_cli.errors import printable
    from covcal_cli.evaluate.diagram import text_diagram
    from covcal_cli.evaluate.result import metrics_document
    from covcal_cli.records import document_text

    evaluation = assessment.evaluation
    if kind == "json":
        document = metrics_document(evaluation, assessment.verdicts, assessment.changes)
        return document_text(document, Path("metrics.json"))
    if kind != "table":
        return _parts(evaluation, tables.markdown, "\n\n", extras=extras)
    last = list(evaluation.metrics)[-1]
    lines = [
        _parts(evaluation, tables.text, "\n", extras=extras),
        "",
        f"reliability of {printable(last)}, target {evaluation.split} rows",
        text_diagram(evaluation.metrics[last].bins),
    ]
    return "\n".join(lines)


def _parts(
    evaluation: "Evaluation", draw: "Callable[[Table], str]", between: str, *, extras: _Extras
) -> str:
    """Return the tables, each but the first below its title and what is to go `between`."""
    from covcal_cli.errors import printable
    from covcal_cli.evaluate.bins import SMALL_GROUP

    parts = [draw(_metrics(evaluation, main=True))]
    if extras.every_metric:
        parts.append(draw(_metrics(evaluation, main=False)))
    level = f"{100 * evaluation.level:.4g} %"
    if extras.intervals and evaluation.intervals:
        title = f"{level} intervals, {evaluation.resamples} resamples, seed {evaluation.seed}"
        parts.append(f"{title}{between}{draw(_intervals(evaluation, extras))}")
    if extras.intervals and evaluation.differences:
        title = f"differences on the same rows, {level} intervals"
        parts.append(f"{title}{between}{draw(_differences(evaluation, extras))}")
    if evaluation.by is not None:
        parts.append(f"by {printable(evaluation.by)}{between}{draw(_groups(evaluation, extras))}")
        if any(group.small for found in evaluation.groups.values() for group in found):
            parts.append(f"(n): fewer than {SMALL_GROUP} rows, so the ECE is mostly noise")
    return "\n\n".join(parts)


def _metrics(evaluation: "Evaluation", *, main: bool) -> "Table":
    """Return the main metrics, beside temperature and rows, or the further ones alone."""
    from covcal_cli.evaluate.metrics import on_screen
    from covcal_cli.report.tables import Table

    chosen = [(name, shown) for name, shown, metric in on_screen() if metric.main == main]
    rows = [
        [
            name,
            *([evaluation.scalings[name].shown(4), str(entry.n)] if main else []),
            *(_cell(entry.value(metric), shown.percent) for metric, shown in chosen),
        ]
        for name, entry in evaluation.metrics.items()
    ]
    leading = ["calibration", "T", "n"] if main else ["calibration"]
    return Table([*leading, *(shown.label for _, shown in chosen)], rows)


def _intervals(evaluation: "Evaluation", extras: _Extras) -> "Table":
    from covcal_cli.evaluate.metrics import on_screen
    from covcal_cli.report.tables import Table

    chosen = [
        (name, shown)
        for name, shown, metric in on_screen()
        if metric.interval and (metric.main or extras.every_metric)
    ]
    rows = [
        [
            name,
            *(
                "-".join(_cell(end, shown.percent) for end in found.get(metric, (None,)))
                for metric, shown in chosen
            ),
        ]
        for name, found in evaluation.intervals.items()
    ]
    return Table(["calibration", *(shown.label for _, shown in chosen)], rows)


def _differences(evaluation: "Evaluation", extras: _Extras) -> "Table":
    """Return the paired differences, and what each shows."""
    from covcal_cli.evaluate.metrics import METRICS
    from covcal_cli.report.tables import Table

    columns = ("calibration", "against", "metric", "difference", "interval", "shown")
    rows = []
    for one in evaluation.differences:
        if not (METRICS[one.metric].main or extras.every_metric):
            continue
        shown = METRICS[one.metric].screen
        percent = shown is not None and shown.percent
        value, low, high = (_signed(number, percent) for number in (one.value, one.low, one.high))
        rows.append(
            [
                *(one.calibration, one.against, shown.label if shown else one.metric),
                *(value, f"{low} to {high}"),
                {1: "worse", 0: "neither", -1: "better"}[one.direction],
            ]
        )
    return Table(columns, rows, texts=(0, 1, 2, 5))


def _groups(evaluation: "Evaluation", extras: _Extras) -> "Table":
    from covcal_cli.evaluate.metrics import METRICS
    from covcal_cli.report.tables import Table

    of_correctness = [
        (name, metric.screen)
        for name, metric in METRICS.items()
        if name.startswith("correctness") and metric.screen and extras.every_metric
    ]
    columns = (
        *("calibration", "group", "n", "accuracy", "confidence", "ECE", "over ECE"),
        *(shown.label for _, shown in of_correctness),
    )
    rows = [
        [
            name,
            group.name,
            f"(n) {group.n}" if group.small else str(group.n),
            *map(_cell, (group.accuracy, group.mean_confidence, group.ece, group.over_ece)),
            *(_cell(getattr(group, metric), shown.percent) for metric, shown in of_correctness),
        ]
        for name, found in evaluation.groups.items()
        for group in found
    ]
    return Table(columns, rows, texts=(0, 1))


def _signed(value: float, percent: bool) -> str:
    return f"{value:+.2%}" if percent else f"{value:+.4f}"


def _cell(value: float | None, percent: bool = True) -> str:
    if value is None:
        return "-"
    return f"{value:.2%}" if percent else f"{value:.4f}"
