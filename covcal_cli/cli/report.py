"""``covcal report``: write one HTML page about calibrations."""

from pathlib import Path
from typing import Annotated

import typer

from covcal_cli.cli import options
from covcal_cli.cli.console import Console, file_of

_SENTENCES = 5  # maximum number of sentences without --verbose


def report(
    file: options.JudgedFile = None,
    calibration: Annotated[
        list[Path] | None,
        options.calibrations(
            "A calibration; NAME=FILE gives it a name. The verdict is about the first calibration. "
            "Default: cal.json."
        ),
    ] = None,
    output: Annotated[Path, options.output("Page to write.")] = Path("report.html"),
    split: options.JudgedSplit = None,
    bins: Annotated[int, typer.Option(min=1, max=100, help="Bins of confidence.")] = 15,
    bootstrap: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of bootstrap resamples for the intervals; 0: no intervals. The headline "
            "always uses 1000 resamples.",
        ),
    ] = 1000,
    decision: Annotated[
        Path | None,
        options.decision(
            "Draw how the error grows with the share of accepted rows, and mark this decision."
        ),
    ] = None,
    networks: options.Networks = None,
    allow_other_preprocessing: options.AllowOtherPreprocessing = False,
    seed: options.Seed = 0,
    force: options.Force = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Write one HTML page that says whether the confidence can be trusted.

    With target labels, the page shows measurements; without target labels, it shows estimates. The
    page needs no network. If rows can have several labels, the page has one table of all labels,
    and a section for each label.

    \b
    Examples:
      covcal report
      covcal report adapted.h5 -c cal.json -o report.html
      covcal report adapted.h5 -c cal.json -c temp.json --bootstrap 2000
      covcal report --decide decide.json
    """
    from covcal_cli.evaluate.evaluate import EvaluateSettings
    from covcal_cli.forecast import split_names
    from covcal_cli.multilabel import gathered
    from covcal_cli.report.report import report as write
    from covcal_cli.report.verdict import verdict

    console = Console(quiet=quiet, verbose=verbose)
    documents, names = split_names(calibration or [Path("cal.json")])

    path, notes = file_of(
        documents,
        file,
        purpose="report",
        is_named=bool(calibration),
        names=names,
        networks=networks,
    )
    if file is None:
        console.note(f"reporting on {path}")
    content = write(
        path,
        documents,
        output,
        EvaluateSettings(
            split=None if split is None else split.value,
            bins=bins,
            resamples=bootstrap,
            seed=seed,
            allow_other_preprocessing=allow_other_preprocessing,
        ),
        names=names,
        networks=networks,
        decision=decision,
        force=force,
    )
    of_labels = content.labels or {"": content}
    own_notes = gathered({label: entry.notes for label, entry in of_labels.items()})
    console.note(*notes, *own_notes)
    result = verdict(content)
    sentences = result.sentences[: None if verbose else _SENTENCES]
    console.screen("\n".join([f"{result.headline}.", *sentences]))
    doubts = {
        label: [entry.source_accuracy.doubt or ""] if entry.source_accuracy is not None else []
        for label, entry in of_labels.items()
    }
    console.warn(text for text in gathered(doubts) if text)
    console.wrote(output)
