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
    output: Annotated[
        Path, output("CSV to write, for a person to fill in; - prints it.", printed=True)
    ] = Path("to-label.csv"),
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
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="HTML", help="Also write a page on which to label them, by keys or by touch."
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="TARGET",
            help="The target's images, as extract took them: for the page, and their paths.",
        ),
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

    The page works offline and on a phone: open it in any browser, label, save the CSV. It does not
    show what the classifier says unless asked to, since who sees an answer tends to agree with it.

    \b
    Examples:
      covcal pick -n 50
      covcal pick -n 60 --page label.html --images target/
      covcal pick adapted.h5 -n 50 -o to-label.csv --images target/
      covcal pick features.h5 -n 20 -c cal.json --after to-label.csv -o more.csv
    """
    from covcal_cli.files import as_word
    from covcal_cli.formats.features import ALL, SPLITS
    from covcal_cli.labels.sheet import sheet_text
    from covcal_cli.pick.pick import PickSettings
    from covcal_cli.pick.pick import pick as draw

    names = [name.value for name in split or []]
    with usage():
        settings = PickSettings(
            rows=count, seed=seed, splits=SPLITS if ALL in names else tuple(dict.fromkeys(names))
        )
    console = Console(quiet=quiet, verbose=verbose)
    path = file_to_read(file, console)
    to_stdout = str(output) == "-"
    with console.progress() as progress:
        found = draw(
            path,
            None if to_stdout else output,
            settings,
            calibration=calibration,
            networks=networks,
            earlier=after or (),
            images=images,
            page=page,
            force=force,
            progress=progress,
        )
    if to_stdout:
        console.result(sheet_text(found.sheet))
    else:
        console.screen(_summary(found))
    console.warn(
        f"the page cannot show {known}: {reason}" for known, reason in found.unreadable.items()
    )
    if page is not None and images is None:
        console.note("the page names rows by their ids: pass --images TARGET to show images")
    read = f"covcal label {as_word(path)}"
    if not to_stdout:
        following = f"fill in its labels, then {read} {as_word(output)}"
        console.wrote(output, following if page is None else None)
    if page is not None:
        console.wrote(page, f"open it in a browser, then {read} with the CSV that it saves")


def _summary(found: "Picked") -> str:
    """Return what was drawn, and what the labels will buy."""
    from covcal_cli.data.classes import listed
    from covcal_cli.errors import printable

    batch = found.sheet.draw.batch
    before = f", after {found.before} drawn before" if found.before else ""
    rows = "rows" if batch.drawn > 1 else "row"
    lines = [
        f"picked     {batch.drawn} {rows} of {batch.population} ({' and '.join(batch.splits)})"
        f"{before}",
        f"by         {batch.score}",
        f"accuracy   to about +-{100 * found.half_width:.1f} points from these labels at best: "
        "less surely where the confidence is off",
    ]
    if found.before:
        of_all = 100 * found.half_width_of_all
        lines.append(f"           to about +-{of_all:.1f} points from all at best")
    lines += [
        f"ECE        at least about {100 * found.mean_error:.1f} points: what is fitted to them "
        "misses the accuracy by as much",
        f"classes    {printable(listed(found.classes))}",
    ]
    return "\n".join(lines)
