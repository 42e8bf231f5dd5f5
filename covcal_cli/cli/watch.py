"""``covcal watch``: later periods against what a calibration was made on."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covcal_cli.cli.console import Console, usage
from covcal_cli.cli.gates import GatedOutput
from covcal_cli.cli.options import (
    AllowOtherPreprocessing,
    FormatName,
    NetworksOfFeatures,
    Quiet,
    ResultFormat,
    Verbose,
    calibration,
    output,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from covcal_cli.report.tables import Table
    from covcal_cli.watch.period import Watched

EveryName = StrEnum("EveryName", {"day": "day", "week": "week", "month": "month"})
FailOnName = StrEnum("FailOnName", {"shift": "shift", "recalibrate": "recalibrate"})


def watch(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[NAME=]NEW.H5...",
            help="Features files with a target, each of one period, in the order of time; may be "
            "left out with --plot.",
            show_default=False,
        ),
    ] = None,
    calibration: Annotated[Path, calibration("What the rows are held against.")] = Path("cal.json"),
    history: Annotated[
        Path | None,
        typer.Option(
            metavar="WATCH.JSONL", help="Append the periods there; earlier ones count too."
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Cut each file by the dates of a column (2026-11-28)."),
    ] = None,
    every: Annotated[EveryName, typer.Option(help="How long a period is.")] = EveryName.week,
    false_alarms: Annotated[
        float,
        typer.Option(min=1e-6, max=1, help="How many alarms a year may be false, at most."),
    ] = 0.05,
    fail_on: Annotated[
        list[FailOnName] | None,
        typer.Option(help="Exit with 3 if a period is shifted, or calls for recalibration."),
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the gates as a JUnit report.")] = None,
    output: Annotated[
        Path | None, output("Write the periods as JSON there; - prints it instead.", printed=True)
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="TREND.HTML", help="Draw the history as a page, or as .png, .svg or .pdf."
        ),
    ] = None,
    networks: NetworksOfFeatures = None,
    allow_other_preprocessing: AllowOtherPreprocessing = False,
    format: ResultFormat = FormatName.table,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            "-f",
            help="Replace outputs; supersede periods of the history by another line.",
        ),
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Say of later periods whether a calibration still holds; reads no label but marked ones.

    An alarm says that rows have changed since the calibration was made. It looks at confidence,
    at the classes' margins and at what tells source from target, counts what chance does to the
    calibration's own rows, and is false no more often than --false-alarms a year, however often
    it is looked at. Whether the calibration holds all the same is what the accuracy says,
    estimated or by the labels that covcal label marked in a file of one period.

    \b
    Examples:
      covcal watch 2026-W47.h5 2026-W48.h5 -c cal.json
      covcal watch 2026-W48=new.h5 --history watch.jsonl --fail-on recalibrate
      covcal watch year.h5 --by date --every month --format markdown
      covcal watch new.h5 --fail-on shift --junit watch.xml
      covcal watch --history watch.jsonl --plot trend.html
    """
    from covcal_cli.records import write_document
    from covcal_cli.report.trend import check_trend, write_trend
    from covcal_cli.watch.history import read_history
    from covcal_cli.watch.watch import WatchSettings, gate_results
    from covcal_cli.watch.watch import watch as hold

    console = Console(quiet=quiet, verbose=verbose)
    report = GatedOutput(
        command="watch",
        output=output,
        format=format,
        junit=junit,
        force=force,
        has_gates=bool(fail_on),
        gate_options="--fail-on",
        more={"--plot": plot},
        appended={"--history": history},
    )
    if plot is not None:
        check_trend(plot)
        if history is None:
            raise typer.BadParameter("needs --history", param_hint="--plot")
        if not files:
            write_trend(read_history(history), plot, force=force)
            console.wrote(plot)
            return
    if not files:
        raise typer.BadParameter("give the files to watch", param_hint="NEW.H5")
    with usage():
        settings = WatchSettings(
            by=by,
            every=every.value,
            false_alarms=false_alarms,
            allow_other_preprocessing=allow_other_preprocessing,
        )
    with report.errors_in_report():
        report.check([*files, calibration])
        found = hold(
            files,
            calibration,
            settings,
            history=history,
            networks=networks,
            force=force,
            wrote=console.wrote,
        )
    for text in found.notes:
        console.note(text)
    console.warn(found.warnings)
    gates = gate_results(found, [name.value for name in fail_on or []])

    def write() -> None:
        if report.document is not None:
            write_document(found, report.document, force=force)
        if plot is not None and history is not None:
            write_trend(read_history(history), plot, force=force)

    report.publish(console, lambda kind: _rendered(found, kind), gates, write=write)


def _rendered(watched: "Watched", kind: str) -> str:
    """Return the periods as ``table``, ``json``, ``markdown`` or ``github``."""
    from covcal_cli.cli import tables
    from covcal_cli.records import document_text

    if kind == "json":
        return document_text(watched, Path("watch.json"))
    draw: Callable[[Table], str] = tables.text if kind == "table" else tables.markdown
    parts = [draw(_numbers(watched)), draw(_verdicts(watched))]
    return "\n\n".join(parts)


def _numbers(watched: "Watched") -> "Table":
    from covcal_cli.report.tables import Table

    rows = []
    for one in (period.measured for period in watched.periods):
        known = one.measured or one.estimate
        rows.append(
            [
                one.period,
                str(one.rows),
                f"{one.confidence_before:.1%}",
                f"{one.confidence:.1%}",
                "-" if known is None else f"{known.accuracy:.1%}",
                "-" if known is None else "labels" if one.measured else "estimate",
                "-" if known is None else f"{known.low:.1%} to {known.high:.1%}",
                "-" if one.distance is None else f"{100 * one.distance:+.1f}",
                *(_decimal(auc, 3) for auc in (one.auc_target, one.auc_source)),
                _decimal(one.effective_rows, 0),
            ]
        )
    columns = (
        *("period", "rows", "conf. before", "after", "accuracy", "by", "interval", "gap"),
        *("AUC, target", "AUC, source", "eff. rows"),
    )
    return Table(columns, rows)


def _verdicts(watched: "Watched") -> "Table":
    from covcal_cli.report.tables import Table

    rows = [
        [
            one.measured.period,
            f"{one.alarm.log_evidence:.1f} of {one.alarm.log_threshold:.1f}",
            f"{one.verdict}: {one.why}",
        ]
        for one in watched.periods
    ]
    return Table(("period", "evidence", "verdict"), rows, texts=(0, 2))


def _decimal(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
