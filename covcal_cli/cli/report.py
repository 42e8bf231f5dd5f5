"""``covcal report``: a page to show a colleague."""

from pathlib import Path
from typing import Annotated

import typer

from covcal_cli.cli.console import Console
from covcal_cli.cli.options import (
    AllowOtherPreprocessing,
    Force,
    JudgedFile,
    JudgedSplit,
    Networks,
    Quiet,
    Seed,
    SplitName,
    Verbose,
    calibrations,
    output,
)


def report(
    file: JudgedFile = None,
    calibration: Annotated[
        list[Path] | None,
        calibrations(
            "A calibration, and what to call it; the verdict is about the first. Without it: "
            "cal.json."
        ),
    ] = None,
    output: Annotated[Path, output("Page to write.")] = Path("report.html"),
    split: JudgedSplit = SplitName.test,
    bins: Annotated[int, typer.Option(min=1, max=100, help="Bins of confidence.")] = 15,
    bootstrap: Annotated[
        int, typer.Option(min=0, help="Resamples behind the intervals; 0 for none.")
    ] = 1000,
    networks: Networks = None,
    allow_other_preprocessing: AllowOtherPreprocessing = False,
    seed: Seed = 0,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Write one self-contained HTML page: verdict, diagrams, metrics, guards, provenance.

    Without target labels it shows what is expected instead, and says so.

    \b
    Examples:
      covcal report
      covcal report adapted.h5 -c cal.json -o report.html
      covcal report adapted.h5 -c cal.json -c temp.json --bootstrap 2000
    """
    from covcal_cli.evaluate.evaluate import EvaluateSettings
    from covcal_cli.forecast.forecaster import split_names
    from covcal_cli.formats.calibration import read_calibration
    from covcal_cli.formats.lineage import file_to_judge
    from covcal_cli.report.report import report as write
    from covcal_cli.report.verdict import verdict

    console = Console(quiet=quiet, verbose=verbose)
    documents, names = split_names(calibration or [Path("cal.json")])
    path, notes = file_to_judge(
        file,
        [read_calibration(document) for document in documents],
        documents,
        purpose="report",
        picked=not calibration,
    )
    if file is None:
        console.note(f"reporting on {path}")
    content = write(
        path,
        documents,
        output,
        EvaluateSettings(
            split=split.value,
            bins=bins,
            resamples=bootstrap,
            seed=seed,
            allow_other_preprocessing=allow_other_preprocessing,
        ),
        names=names,
        networks=networks,
        force=force,
    )
    for text in (*notes, *content.notes):
        console.note(text)
    found = verdict(content)
    reading = [] if content.reading is None else [content.reading]
    console.screen("\n".join([found.headline, *found.sentences, *reading]))
    console.wrote(output)
