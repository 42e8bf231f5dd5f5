"""``covcal label``: labels of picked rows, put into their file."""

from pathlib import Path
from typing import Annotated

import typer

from covcal_cli.cli.console import Console
from covcal_cli.cli.options import Quiet, Verbose, output


def label(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The features or adapted file that the rows were picked from."
        ),
    ],
    sheets: Annotated[
        list[Path],
        typer.Argument(
            metavar="CSV...", help="What covcal pick wrote, its column label filled in."
        ),
    ],
    output: Annotated[
        Path | None, output("File to write; FILE itself is replaced when left out.")
    ] = None,
    partial: Annotated[
        bool,
        typer.Option(
            "--partial",
            help="Take a CSV with empty labels: until they follow, its other rows stand for them, "
            "as if by chance.",
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", "-f", help="Replace the output if it exists, and labels by others."
        ),
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Put labels of picked rows into their file; no model is run again.

    They are kept apart from those that evaluate reads, and are for calibration alone. All are put
    in or none. A calibration made before, or an adapted file, still belongs to the file.

    \b
    Examples:
      covcal label adapted.h5 to-label.csv
      covcal label features.h5 to-label.csv more.csv -o labelled.h5
      covcal label adapted.h5 to-label.csv --partial
    """
    from covcal_cli.files import as_word
    from covcal_cli.pick.label import label as put_in

    console = Console(quiet=quiet, verbose=verbose)
    found = put_in(file, sheets, output, partial=partial, force=force)
    written = output or file
    replaced = f", {found.replaced} replaced" if found.replaced else ""
    batches = f"{found.batches} batch{'es' if found.batches > 1 else ''}"
    console.screen(
        f"put in    {found.new} labels{replaced}\n"
        f"labelled  {found.labelled} of the {found.labelled + found.empty} rows picked in {batches}"
    )
    if found.empty:
        console.warn(
            [
                f"{found.empty} rows have no label yet: until they have, the others of their batch "
                "stand for them, as if by chance"
            ]
        )
    console.wrote(written, f"covcal calibrate {as_word(written)}, or covcal pick it for more")
