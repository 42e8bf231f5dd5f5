"""``covcal watch``: compare later periods with the reference data of a calibration."""

from collections import Counter
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covcal_cli.cli import options, tables
from covcal_cli.cli.console import Console, usage
from covcal_cli.cli.gates import GatedOutput, metrics_and_limits
from covcal_cli.errors import percent
from covcal_cli.files import check_output

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from covcal_cli.evaluate.gates import GateResult
    from covcal_cli.report.metric_estimates import MetricLimit
    from covcal_cli.report.tables import Table
    from covcal_cli.watch.period import Watched
    from covcal_cli.watch.verdict import FailOn

_OF_LABELS = (
    "An accuracy from labels is the confidence minus the mean error of the confidence in all "
    "periods of these labels. The range is a 95 % interval for all watched periods together, so "
    "the range is wider than the range that covcal evaluate prints for one period."
)
FailOnName = StrEnum(
    "FailOnName", {"off": "off", "unknown": "unknown", "changed": "changed", "promise": "promise"}
)


def watch(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[NAME=]NEW.H5...",
            help="Features files with a target, one per period, in the order of time. With --plot, "
            "no file is needed.",
            show_default=False,
        ),
    ] = None,
    calibration: Annotated[Path, options.calibration("The calibration to watch.")] = Path(
        "cal.json"
    ),
    history: Annotated[
        Path | None,
        typer.Option(
            metavar="WATCH.JSONL",
            help="Append new periods to this file. The alarm and the verdict also use the earlier "
            "periods in this file.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Split each file into periods by a column of dates (2026-11-28)."
        ),
    ] = None,
    every: Annotated[
        str,
        typer.Option(
            metavar="LENGTH",
            help="Length of a period: day, week, month, quarter, year, or a number of rows. Rows "
            "are counted in the order of the file or, with --by, in the order of the dates.",
        ),
    ] = "week",
    segment: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help='Judge the rows separately for each value of this column. With "predicted", '
            "judge the rows separately for each predicted class.",
        ),
    ] = None,
    metrics: options.EstimatedMetrics = None,
    costs: options.RowCosts = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="LABELS.CSV",
            help="CSV with labels that became known later. Columns: id, label (or label_NAME for "
            "each label), and period if ids repeat. Without NEW.H5, the labels are added to the "
            "periods of the history.",
        ),
    ] = None,
    target_labels: Annotated[
        bool, typer.Option("--target-labels", help="Use the target labels that the files hold.")
    ] = False,
    decide: Annotated[
        Path | None,
        options.decision(
            "Also check the promise of this decision (from covcal decide): whether the accepted "
            "rows are wrong more often than promised."
        ),
    ] = None,
    join: Annotated[
        bool,
        typer.Option("--join", help="Add new rows to a period that the history already has."),
    ] = False,
    stable: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="End an alarm after this many periods without a new change. 0: do not end alarms "
            "in this way.",
        ),
    ] = 8,
    acknowledge: Annotated[
        str | None,
        typer.Option(
            metavar="REASON",
            help="End the alarm: the changed rows are normal from now on. The history records the "
            "reason. If the rows changed because of a fault that you repaired, do not acknowledge, "
            "but delete the lines of the bad periods from WATCH.JSONL.",
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            metavar="POINTS",
            min=0.1,
            max=99,
            help="How many points the mean confidence may be above or below the accuracy.",
        ),
    ] = 5,
    false_alarms: Annotated[
        float,
        typer.Option(
            min=1e-6,
            max=1,
            help="Maximum number of false alarms per year. A false alarm says that rows changed, "
            "although they did not.",
        ),
    ] = 0.05,
    fail_on: Annotated[
        list[FailOnName] | None,
        typer.Option(
            help="Exit with 3 if the confidence is wrong, if the verdict is not known, if the rows "
            "changed, or if the promise of --decide is broken. May be repeated."
        ),
    ] = None,
    fail_below: options.LeastGate = None,
    fail_above: options.CostGate = None,
    end: options.End = None,
    junit: options.Junit = None,
    output: Annotated[
        Path | None,
        options.output(
            "File for the results of the periods. With -o -, JSON is printed instead of the table.",
            printed=True,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="TREND.HTML", help="Draw the history as a page (.html) or a picture (.svg)."
        ),
    ] = None,
    networks: options.NetworksOfFeatures = None,
    allow_other_preprocessing: options.AllowOtherPreprocessing = False,
    format: options.ResultFormat = options.FormatName.table,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            "-f",
            help="Replace outputs. If the history already has a period, replace its rows.",
        ),
    ] = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Tell whether the confidence is still right on later rows, even without labels.

    The verdict compares the mean confidence with the accuracy, which is estimated or comes from
    labels. Labels of earlier periods are also used, unless the rows have changed since these
    periods. The verdict is "holds" if confidence and accuracy differ by at most --tolerance points,
    and "off" if they differ by more. The verdict is "not known" if the interval of the accuracy
    allows both verdicts: then label some rows. Without labels, about one verdict in ten is wrong,
    because the interval is only half as wide as the estimated range.

    A separate alarm says whether the rows changed, since when, and what changed most. The
    confidence is still right after most changes. On average there are at most --false-alarms false
    alarms per year, however often you look. You can end an alarm with --acknowledge. An alarm also
    ends after --stable periods without a new change, or if enough later rows are like the rows
    before the change.

    --metrics estimates precision, recall and other metrics for every period, as covcal estimate
    does. If rows of the period have labels, the labels are used.

    If the files contain columns (covcal extract --keep), the command also names the column that
    changed most. The changes are measured by PSI, and by a KS or chi-square test. -v lists all
    columns.

    A file may grow: watch adds only the new periods to the history.

    The first watch needs the features file on which the calibration was fitted. The first watch
    also writes reference data beside the calibration (cal.reference.json). Later runs of covcal
    watch use these data and do not need the features file.

    \b
    Examples:
      covcal watch 2026-W47.h5 2026-W48.h5 -c cal.json
      covcal watch new.h5 --history watch.jsonl --fail-on off --fail-on unknown
      covcal watch year.h5 --by date --every month --format markdown
      covcal watch new.h5 --segment store
      covcal watch new.h5 --metrics f1,recall:fraud --fail-below recall:fraud=0.8
      covcal watch new.h5 --fail-on changed --junit watch.xml
      covcal watch --history watch.jsonl --labels late.csv
      covcal watch new.h5 --decide decide.json --fail-on promise
      covcal watch --history watch.jsonl --acknowledge "a new camera"
      covcal watch --history watch.jsonl --plot trend.html
    """
    from covcal_cli.cli import multilabel
    from covcal_cli.formats.lineage import labels_of
    from covcal_cli.multilabel import for_each_label
    from covcal_cli.report.trend import check_trend, write_trend
    from covcal_cli.watch.history import read_history
    from covcal_cli.watch.period import WatchSettings
    from covcal_cli.watch.watch import acknowledge as accept
    from covcal_cli.watch.watch import watch as compare

    console = Console(quiet=quiet, verbose=verbose)
    report = GatedOutput(
        command="watch",
        output=output,
        format=format,
        junit=junit,
        force=force,
        has_gates=bool(fail_on or fail_below or fail_above),
        gate_options="--fail-on, --fail-below or --fail-above",
        more={"--plot": plot},
        appended={"--history": history},
    )
    if plot is not None:
        check_trend(plot)
        if history is None:
            raise typer.BadParameter("needs --history", param_hint="--plot")
        if not files and labels is None and acknowledge is None:
            check_output(plot, force=force, inputs=[history], option="--plot")
            write_trend(read_history(history), plot, force=force)
            console.wrote(plot)
            return
    names = labels_of(None, [calibration])
    if names and plot is not None:
        raise typer.BadParameter(
            "a plot needs rows with one label each, but this calibration has several labels: leave "
            "out --plot",
            param_hint="--plot",
        )
    if acknowledge is not None:
        if history is None or files:
            raise typer.BadParameter("needs --history, and no files", param_hint="--acknowledge")
        report.check([calibration])
        if names:
            changes = multilabel.acknowledged(
                names, partial(accept, calibration, history, acknowledge)
            )
            console.note(f"accepted: {changes}. Later periods are compared with these rows")
            return
        change = accept(calibration, history, acknowledge)
        console.note(f"accepted: {change}. Later periods are compared with these rows")
        if plot is not None:
            write_trend(read_history(history), plot, force=force)
            console.wrote(plot)
        return
    if decide is None and any(name.value == "promise" for name in fail_on or []):
        raise typer.BadParameter("promise needs --decide", param_hint="--fail-on")
    if target_labels and labels is not None:
        raise typer.BadParameter("use either this option or --labels", param_hint="--target-labels")
    if not files and (labels is None or history is None):
        raise typer.BadParameter("give the files to watch", param_hint="NEW.H5")
    wanted, limits = metrics_and_limits(metrics, fail_below, fail_above, costs, end)
    with usage():
        settings = WatchSettings(
            by=by,
            every=every,
            # all labels share the allowed number of false alarms
            false_alarms=false_alarms / max(1, len(names)),
            tolerance=tolerance / 100,
            stable=stable,
            segment=segment,
            target_labels=target_labels,
            metrics=wanted,
            allow_other_preprocessing=allow_other_preprocessing,
        )
    with report.errors_in_report():
        inputs = [*(files or []), calibration]
        report.check([*inputs, *(path for path in (labels, decide, costs) if path is not None)])
        compare_one = partial(
            compare,
            files or [],
            calibration,
            settings,
            history=history,
            networks=networks,
            labels=labels,
            decide=decide,
            costs=costs,
            join=join,
            force=force,
            wrote=console.wrote,
        )
        fail: Sequence[FailOn] = [name.value for name in fail_on or []]
        gates_of = partial(_gates, fail_on=fail, limits=limits, end=end and end.value)
        if names:
            of_label = for_each_label(names, compare_one)
            results = {name: gates_of(one) for name, one in of_label.items()}
            tables_of = partial(_rendered, verbose=verbose)
            multilabel.publish_watched(of_label, results, report, console, tables_of)
            return
        watched = compare_one()
        gates = gates_of(watched)
    console.note(*watched.notes)
    console.warn(watched.warnings)

    def draw() -> None:
        if plot is not None and history is not None:
            write_trend(read_history(history), plot, force=force)

    report.publish(
        console,
        lambda kind: _rendered(watched, kind, verbose),
        gates,
        content=lambda _: watched,
        write_more=draw,
    )


def _gates(
    watched: "Watched",
    fail_on: "Sequence[FailOn]",
    limits: "Sequence[MetricLimit]",
    end: str | None,
) -> "list[GateResult]":
    from covcal_cli.report.metric_estimates import metric_gate
    from covcal_cli.watch.verdict import gate_results

    of_metrics = [
        metric_gate(limit, period.measured.metrics, watched.classes, end, period.measured.period)
        for period in watched.periods
        for limit in limits
    ]
    return gate_results(watched, fail_on) + of_metrics


def _rendered(watched: "Watched", kind: str, verbose: bool) -> str:
    from covcal_cli.report.metric_estimates import MOST_CLASSES
    from covcal_cli.report.tables import markdown
    from covcal_cli.report.trend import (
        column_table,
        kinds_of_metrics,
        period_metrics,
        segment_table,
    )

    draw: Callable[[Table], str] = tables.text if kind == "table" else markdown
    parts = [_answer(watched), draw(_numbers(watched))]
    if any(period.by_labels is not None for period in watched.periods):
        parts.append(_OF_LABELS)
    if verbose and any(period.measured.columns for period in watched.periods[-1:]):
        parts.append(draw(column_table(watched.periods[-1])))
    last = watched.periods[-1].measured.period if watched.periods else ""
    if segments := [segment for segment in watched.segments if segment.period == last]:
        parts.append(draw(segment_table(segments)))
    most = MOST_CLASSES if kind == "table" and not verbose else len(watched.classes)
    metrics = period_metrics(watched.periods, most)
    if metrics.rows:
        parts += [draw(metrics), " ".join(kinds_of_metrics(watched.periods))]
    return "\n\n".join(parts)


def _answer(watched: "Watched") -> str:
    from covcal_cli.watch.period import VERDICTS

    if not watched.periods:
        return "No new period."
    last = watched.periods[-1]
    lines = {last.measured.period: last.answer, "rows": last.change}
    if last.drifts:
        first, *others = last.drifts
        more = f" (and {len(others)} more: -v)" if others else ""
        lines["columns"] = first.words.removeprefix("column ") + more
    if last.promise is not None:
        lines |= {"accepted": last.accepted, "promise": last.promise_answer}
    if len(watched.periods) > 1:
        counts = Counter(period.verdict for period in watched.periods)
        verdicts = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]]
        changed = sum(period.alarm.raised for period in watched.periods)
        verdict_counts = ", ".join(verdicts)
        lines[f"{len(watched.periods)} periods"] = f"{verdict_counts}; rows changed in {changed}"
    return tables.aligned(lines)


def _numbers(watched: "Watched") -> "Table":
    from covcal_cli.report.tables import Table
    from covcal_cli.report.trend import by_labels_in_words

    rows = []
    for period in watched.periods:
        numbers = period.measured
        by_labels = by_labels_in_words(period)
        rows.append(
            [
                numbers.period,
                str(numbers.rows),
                percent(numbers.confidence, 0) if numbers.rows else "-",
                str(numbers.estimate or "-") if by_labels == "-" else by_labels,
                period.verdict,
                f"since {period.alarm.began}" if period.alarm.raised else "no",
            ]
        )
    columns = ("period", "rows", "confidence", "accuracy", "verdict", "rows changed")
    return Table(columns, rows, texts=(0, 3, 4, 5))
