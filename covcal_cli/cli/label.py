"""``covcal label``: add the labels of picked rows to the features file."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covcal_cli.cli import tables
from covcal_cli.cli.console import Console, file_to_read, to_calibrate, to_decide
from covcal_cli.cli.options import InputFile, Quiet, Verbose, output
from covcal_cli.files import as_word

if TYPE_CHECKING:
    from covcal_cli.labels.label import Labelling

ResolveName = StrEnum("ResolveName", ["first", "last", "drop", "majority"])
_TABLES = (".csv", ".tsv", ".txt", ".gz", ".json", ".jsonl")


def label(
    file: InputFile = None,
    sheets: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="CSV...",
            help='The CSV from covcal pick with the column "label" filled in, or the labelled '
            "tasks that Label Studio (JSON, CSV) or doccano (.jsonl) exports. Default: "
            "to-label.csv.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[Path | None, output("File to write. Default: FILE is replaced.")] = None,
    partial: Annotated[
        bool,
        typer.Option(
            "--partial",
            help="Accept rows without a label. covcal then assumes that the labelled rows are a "
            "random sample of all drawn rows.",
        ),
    ] = False,
    resolve: Annotated[
        ResolveName | None,
        typer.Option(
            help="The label to use if people disagree about a row; drop: use no label of the row. "
            "Without this option, a disagreement is an error.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", "-f", help="Replace an existing output, and labels that are already in FILE."
        ),
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Add the labels of picked rows to the features file. The model is not run again.

    If an error occurs, no label is added. The labels are used by covcal calibrate, estimate, decide
    and watch, but not by covcal evaluate. If the rows come from covcal pick --split test, only
    covcal evaluate uses the labels. Earlier adapted files and calibrations stay valid.

    Several CSV files may hold labels of different rows, or of the same rows by different people.
    The command prints how far people agree: Cohen's kappa for two people, Fleiss' kappa for more.
    If two people give a row different labels, the command names the row. --resolve says which label
    to use. If rows can have several labels, the kappa is computed for each label.

    \b
    Examples:
      covcal label
      covcal label adapted.h5 to-label.csv
      covcal label features.h5 to-label.csv more.csv -o labelled.h5
      covcal label ann.csv bob.csv --resolve drop
      covcal label features.h5 project-1-export.json
    """
    from covcal_cli.labels.label import label as put_in
    from covcal_cli.labels.sheet import SHEET

    console = Console(quiet=quiet, verbose=verbose)
    tables = list(sheets or [])
    if file is not None and file.suffix.lower() in _TABLES:
        tables.insert(0, file)
        file = None
    path = file_to_read(file, console)
    if not tables:
        tables = [SHEET]
        console.note(f"reading the labels in {SHEET}")
    labelling = put_in(
        path,
        tables,
        output,
        partial=partial,
        resolve=None if resolve is None else resolve.value,
        force=force,
    )
    console.screen(_summary(labelling))
    console.warn(labelling.doubts)
    if labelling.empty:
        missing = f"{labelling.empty} rows have no label"
        if labelling.of_label:
            missing = f"{labelling.empty} labels have no value"
        if labelling.empty == 1:
            missing = "1 label has no value" if labelling.of_label else "1 row has no label"
        dropped = ""
        if resolve == "drop" and labelling.differing:
            dropped = (
                ". People often disagree about hard rows, so without these rows the accuracy may "
                "seem too high"
            )
        console.warn(
            [
                f"{missing} yet. covcal assumes that the labelled rows are a random sample of "
                f"their batch, but cannot check this{dropped}"
            ]
        )
    written = output or path
    following = to_calibrate(written)
    document = "cal.json" if Path("cal.json").exists() else "CALIBRATION"
    if not labelling.has_source:  # files of covcal watch have no source
        word = as_word(written)
        history = f"PERIOD={word} -c {document} --history FILE"
        if Path("watch.jsonl").exists():
            history = f"{word} -c {document} --history watch.jsonl"
        following = f"covcal watch {history}  # repeats your earlier covcal watch with these labels"
    # covcal calibrate does not use labels that were picked for a decision.
    if labelling.for_decision:
        following = to_decide(written)
    if labelling.for_evaluate:
        following = f"covcal evaluate {as_word(written)} -c {document}"
    console.wrote(written, following)


def _summary(labelling: "Labelling") -> str:
    from covcal_cli.data.classes import listed
    from covcal_cli.labels.label import some_of

    rows = labelling.labelled + labelling.empty
    replaced = f", {labelling.replaced} replaced" if labelling.replaced else ""
    batches = f" in {labelling.batches} batches" if labelling.batches > 1 else ""
    all_rows = f"the {rows} picked rows{batches} now have a label"
    if labelling.of_label:
        counts = [f"{name} {entry.labelled}" for name, entry in labelling.of_label.items()]
        all_rows = (
            f"the {rows} labels of the picked rows{batches} now have a value: {listed(counts)}"
        )
    facts = {"Labels": f"{labelling.new} added{replaced}; {labelling.labelled} of {all_rows}"}
    agreements = {
        f"lowest for {name}: " if name else "": entry.agreement
        for name, entry in (labelling.of_label or {"": labelling}).items()
        if entry.agreement is not None
    }
    for lowest_for, agreement in sorted(agreements.items(), key=lambda item: item[1].kappa)[:1]:
        people = "two" if agreement.labellers == 2 else f"at least two of {agreement.labellers}"
        facts["Agreement"] = (
            f"{lowest_for}the labels agree on {agreement.agreed} of {agreement.rows} rows that "
            f"{people} people labelled; {agreement.kappa_name} {agreement.kappa:.2f}"
        )
    if labelling.differing:
        facts["Differ"] = some_of(labelling.differing)
    return tables.aligned(facts)
