"""``covcal evaluate``: measure calibrations on labelled target rows, and gate on them."""

from pathlib import Path
from typing import Annotated

import typer

from covcal_cli.cli.console import Console
from covcal_cli.cli.options import (
    Force,
    FormatName,
    PredictionsName,
    Quiet,
    SplitName,
    Verbose,
    output,
)


def evaluate(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="A features or adapted file; what the calibration was fitted on, when left out.",
            show_default=False,
        ),
    ] = None,
    calibration: Annotated[
        list[Path] | None,
        typer.Option(
            "--calibration",
            "-c",
            metavar="CAL.JSON",
            help="A calibration; repeat to compare several. Without FILE: cal.json.",
        ),
    ] = None,
    output: Annotated[
        Path | None, output("Write metrics.json there; - prints it instead of the table.")
    ] = None,
    split: Annotated[SplitName, typer.Option(help="Target rows to judge.")] = SplitName.test,
    bins: Annotated[int, typer.Option(min=1, max=10_000, help="Equal bins of confidence.")] = 15,
    predictions: Annotated[
        PredictionsName,
        typer.Option(help="Judge the classifier's labels, or the calibrated forecaster's own."),
    ] = PredictionsName.original,
    diagram: Annotated[
        Path | None, typer.Option(help="Draw reliability diagrams: .png, .svg or .pdf.")
    ] = None,
    fail_above: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METRIC=LIMIT",
            help="Exit with 3 if a metric (a fraction) is greater, as ece=0.05; repeats.",
        ),
    ] = None,
    format: Annotated[FormatName, typer.Option(help="Of the result.")] = FormatName.table,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Measure how honest the confidence is, where target labels are known.

    \b
    Examples:
      covcal evaluate
      covcal evaluate adapted.h5 -c cal.json --diagram reliability.png
      covcal evaluate features.h5 -c a.json -c b.json -o metrics.json
      covcal evaluate adapted.h5 -c cal.json --fail-above ece=0.05
    """
    from covcal_cli.calibration import read_calibration
    from covcal_cli.cli.render import RENDERERS
    from covcal_cli.diagram import check_diagram, draw_diagram
    from covcal_cli.errors import LimitExceededError
    from covcal_cli.evaluation import (
        evaluate,
        named,
        require_unchanged,
        write_metrics,
    )
    from covcal_cli.files import check_output
    from covcal_cli.limits import judge, parse_limit

    console = Console(quiet=quiet, verbose=verbose)
    try:
        limits = [parse_limit(text) for text in fail_above or []]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--fail-above") from error
    to_stdout = str(output) == "-"
    if to_stdout and format not in (FormatName.table, FormatName.json):
        raise typer.BadParameter("-o - prints JSON: leave it out", param_hint="--format")
    if output is not None and output == diagram:
        raise typer.BadParameter("is the file of -o too", param_hint="--diagram")
    documents = calibration or []
    if file is None and not documents:
        documents = [Path("cal.json")]
    read = [(document, read_calibration(document)) for document in documents]
    if file is None:
        document, first = read[0]
        file = require_unchanged(first, document)
        console.note(f"judging {document} on {file}")
    inputs = [file, *documents]
    if output is not None and not to_stdout:
        check_output(output, force=force, inputs=inputs)
    if diagram is not None:
        check_diagram(diagram)
        check_output(diagram, force=force, inputs=inputs)
    calibrations = named(read)
    evaluation = evaluate(
        file,
        calibrations,
        split=split.value,
        bins=bins,
        predictions="own" if predictions is PredictionsName.own else "original",
        documents=documents,
    )
    verdicts = judge(evaluation.metrics, limits, calibrations)
    if evaluation.unlabelled:
        console.note(f"{evaluation.unlabelled} rows without a label are left out")
    if evaluation.left_out:
        console.note(f"{evaluation.left_out} rows that a temperature was fitted to are left out")
    if output is not None and not to_stdout:
        write_metrics(evaluation, verdicts, output, force=force)
    if diagram is not None:
        title = f"{file.name}, target {split.value} rows"
        draw_diagram(evaluation.metrics, diagram, title=title, force=force)
    console.result(RENDERERS["json" if to_stdout else format.value](evaluation, verdicts))
    if not documents:
        console.note("no -c given: only the classifier as it is was judged")
    for written in (output, diagram):
        if written is not None and str(written) != "-":
            console.wrote(written)
    if any(verdict.exceeded for verdict in verdicts):
        raise LimitExceededError
