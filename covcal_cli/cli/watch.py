"""``covcal watch``: compare later periods with the reference data of a calibration."""

import math
from collections import Counter
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
            help="Features files with a target, in the order of time, each with one period. May be "
            "left out with --plot.",
            show_default=False,
        ),
    ] = None,
    calibration: Annotated[Path, calibration("The calibration to watch.")] = Path("cal.json"),
    history: Annotated[
        Path | None,
        typer.Option(
            metavar="WATCH.JSONL",
            help="Append the periods to this file. The alarm also uses its earlier periods.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Split each file into periods by a column of dates (2026-11-28)."
        ),
    ] = None,
    every: Annotated[EveryName, typer.Option(help="Length of a period.")] = EveryName.week,
    false_alarms: Annotated[
        float,
        typer.Option(min=1e-6, max=1, help="Maximum number of false alarms per year."),
    ] = 0.05,
    fail_on: Annotated[
        list[FailOnName] | None,
        typer.Option(help="Exit with 3 if the rows have changed, or a new calibration is due."),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(help="Write the gates' results as a JUnit report.")
    ] = None,
    output: Annotated[
        Path | None,
        output("Write the periods as JSON to this file; - prints the JSON instead.", printed=True),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="TREND.HTML", help="Draw the history as a page (.html) or a picture (.svg)."
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
            help="Replace outputs, and let new lines replace periods of the history.",
        ),
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Tell whether a calibration is still good for later rows; needs no labels.

    The alarm tells whether rows have changed since the calibration was made. It follows the
    confidence, the classes' margins and the features, and allows for sampling noise in the
    calibration's own rows. There are at most --false-alarms false alarms per year, however often
    you look. The accuracy then shows whether the confidence is still right. It is estimated, or
    comes from rows you labelled if the file is one period.

    The first watch writes the calibration's reference data beside it (cal.reference.json), from the
    features file that it was fitted on. Later watches do not need the features file.

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
    from covcal_cli.watch.watch import watch as compare

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
        watched = compare(
            files,
            calibration,
            settings,
            history=history,
            networks=networks,
            force=force,
            wrote=console.wrote,
        )
    for text in watched.notes:
        console.note(text)
    console.warn(watched.warnings)
    gates = gate_results(watched, [name.value for name in fail_on or []])

    def write() -> None:
        if report.document is not None:
            write_document(watched, report.document, force=force)
        if plot is not None and history is not None:
            write_trend(read_history(history), plot, force=force)

    report.publish(console, lambda kind: _rendered(watched, kind), gates, write=write)


def _rendered(watched: "Watched", kind: str) -> str:
    """Return the periods as ``table``, ``json``, ``markdown`` or ``github``."""
    from covcal_cli.cli import tables
    from covcal_cli.records import document_text

    if kind == "json":
        return document_text(watched, Path("watch.json"))
    draw: Callable[[Table], str] = tables.text if kind == "table" else tables.markdown
    return "\n\n".join([_answer(watched), draw(_numbers(watched))])


def _answer(watched: "Watched") -> str:
    """Return the verdict on the last period with its reason, and a summary of the other periods."""
    last = watched.periods[-1]
    lines = [f"{last.measured.period}: {last.verdict}: {last.why}"]
    if len(watched.periods) > 1:
        counts = Counter(period.verdict for period in watched.periods)
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        lines.append(f"{len(watched.periods)} periods: {verdicts}")
    if last.alarm.raised:
        odds = (last.alarm.log_evidence - last.alarm.log_threshold) / math.log(10)
        lines.append(
            f"Alarm: raised since {last.alarm.since}"
            + (f"; a false alarm is 10^{odds:.0f} times rarer than allowed" if odds >= 1 else "")
        )
    return "\n".join(lines)


def _numbers(watched: "Watched") -> "Table":
    from covcal_cli.report.tables import Table

    rows = []
    for period in watched.periods:
        numbers = period.measured
        best, accuracy = numbers.measured or numbers.estimate, "-"
        if best is not None:
            accuracy = f"{best.accuracy:.0%} ({best.low:.0%} to {best.high:.0%})"
        evidence = max(0.0, period.alarm.log_evidence / period.alarm.log_threshold)
        rows.append(
            [
                numbers.period,
                str(numbers.rows),
                f"{numbers.confidence:.0%}",
                f"{accuracy}{', labels' if numbers.measured else ''}",
                "ALARM" if period.alarm.raised else f"{evidence:.0%}",
                period.verdict,
            ]
        )
    columns = ("period", "rows", "confidence", "accuracy", "evidence", "verdict")
    return Table(columns, rows, texts=(0, 3, 5))
