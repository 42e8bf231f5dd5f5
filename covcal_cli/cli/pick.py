"""``covcal pick``: target rows for a person to label."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covcal_cli.cli.console import Console, file_to_read, usage
from covcal_cli.cli.options import (
    Force,
    InputFile,
    NetworksOfFeatures,
    Quiet,
    Seed,
    SplitName,
    Verbose,
    calibration,
    output,
)

if TYPE_CHECKING:
    from covcal_cli.pick.pick import Picked


def pick(
    file: InputFile = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Rows to draw.")] = 50,
    output: Annotated[Path, output("CSV to write, for a person to fill in.")] = Path(
        "to-label.csv"
    ),
    calibration: Annotated[
        Path | None,
        calibration("Lean on its confidence; on one fitted to the source when left out."),
    ] = None,
    after: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="CSV", help="An earlier batch whose labels are not in FILE yet; repeats."
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(metavar="TARGET", help="The folder of the target's images, for their paths."),
    ] = None,
    split: Annotated[
        list[SplitName] | None,
        typer.Option(
            help="Rows to draw from; repeats. Train and validation when left out: the test rows "
            "are for evaluate.",
            show_default=False,
        ),
    ] = None,
    networks: NetworksOfFeatures = None,
    seed: Seed = 0,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Pick the target rows whose labels tell most; reads no target label.

    Rows are drawn by chance, doubtful ones more often than sure ones, with probabilities that are
    written beside them: so what is estimated from their labels can be unbiased. Fill in the column
    label and give the CSV to covcal label. Rows that were drawn before are not drawn again.

    \b
    Examples:
      covcal pick -n 50
      covcal pick adapted.h5 -n 50 -o to-label.csv --images target/
      covcal pick features.h5 -n 20 -c cal.json --after to-label.csv -o more.csv
    """
    from covcal_cli.files import as_word
    from covcal_cli.formats.features import ALL, SPLITS
    from covcal_cli.pick.pick import PickSettings
    from covcal_cli.pick.pick import pick as draw

    names = [name.value for name in split or []]
    with usage():
        settings = PickSettings(
            rows=count, seed=seed, splits=SPLITS if ALL in names else tuple(dict.fromkeys(names))
        )
    console = Console(quiet=quiet, verbose=verbose)
    path = file_to_read(file, console)
    with console.progress() as progress:
        found = draw(
            path,
            output,
            settings,
            calibration=calibration,
            networks=networks,
            earlier=after or (),
            images=images,
            force=force,
            progress=progress,
        )
    console.screen(_summary(found))
    console.wrote(
        output, f"fill in its labels, then covcal label {as_word(path)} {as_word(output)}"
    )


def _summary(found: "Picked") -> str:
    """Return what was drawn, and what the labels will buy."""
    from covcal_cli.data.classes import listed

    batch = found.sheet.draw.batch
    before = f", after {found.before} drawn before" if found.before else ""
    rows = "rows" if batch.drawn > 1 else "row"
    lines = [
        f"picked     {batch.drawn} {rows} of {batch.population} ({' and '.join(batch.splits)})"
        f"{before}",
        f"by         {batch.score}",
        f"accuracy   to about +-{100 * found.half_width:.1f} points from these labels",
    ]
    if found.before:
        lines.append(f"           to about +-{100 * found.half_width_of_all:.1f} points from all")
    lines += [
        f"ECE        at least about {100 * found.mean_error:.1f} points: what is fitted to them "
        "misses the accuracy by as much",
        f"classes    {listed(found.classes)}",
    ]
    return "\n".join(lines)
