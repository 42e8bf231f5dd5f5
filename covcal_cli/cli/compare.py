"""``covcal compare``: methods against each other on several labelled shifts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covcal_cli.cli.console import Console, usage
from covcal_cli.cli.options import Force, PresetName, Quiet, Verbose, output

if TYPE_CHECKING:
    from covcal_cli.compare.ranking import Comparison


def compare(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Features files with target labels; one per shift."),
    ],
    output: Annotated[
        Path | None, output("Write the table there as well: .csv, .md or .tex.")
    ] = None,
    methods: Annotated[
        str, typer.Option(metavar="all|NAME,NAME", help="Methods of calibrate to compare.")
    ] = "all",
    seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Runs of adapt and calibrate per file.")
    ] = 5,
    metric: Annotated[
        str, typer.Option(metavar="NAME", help="Of evaluate; ranks the methods.")
    ] = "ece",
    preset: Annotated[PresetName, typer.Option(help="Of adapt.")] = PresetName.default,
    no_adapt: Annotated[
        bool, typer.Option("--no-adapt", help="Take features files as they are: seconds.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Processes at a time.")] = 1,
    folder: Annotated[
        Path, typer.Option(metavar="DIR", help="For adapted files and finished runs.")
    ] = Path("covcal-compare"),
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Adapt, calibrate and evaluate several files with several seeds.

    Prints one table: mean and deviation over seeds, mean rank, and the number of
    shifts on which a method does harm; and what auto took, how its estimate of the
    accuracy fared, and which guards failed. The same command goes on where it was
    cut off, and adds to what stands. Target labels only judge.

    \b
    Examples:
      covcal compare mnist-usps.h5 usps-mnist.h5
      covcal compare shifts/*.h5 --methods auto,cot,fl+iw+temp -o table.tex
      covcal compare shifts/*.h5 --seeds 10 --jobs 4 --metric brier -o table.csv
      covcal compare shifts/*.h5 --no-adapt -o without.md
    """
    from covcal_cli.adapt.settings import AdaptSettings
    from covcal_cli.compare.compare import compare
    from covcal_cli.compare.runs import ALL, CompareSettings
    from covcal_cli.compare.tables import require_format, write_comparison
    from covcal_cli.errors import CovcalError
    from covcal_cli.files import check_output

    names = ALL if methods == "all" else tuple(name.strip() for name in methods.split(","))
    with usage():
        if no_adapt and preset != PresetName.default:
            raise CovcalError("--no-adapt has no use for a preset of adapt: leave out one of them")
        settings = CompareSettings(
            methods=names,
            seeds=seeds,
            metric=metric,
            adapt=None if no_adapt else AdaptSettings(preset=preset.value),
            jobs=jobs,
        )
        if output is not None:
            require_format(output)
    if output is not None:
        check_output(output, force=force, inputs=files)
    console = Console(quiet=quiet, verbose=verbose)
    try:
        with console.progress() as progress:
            found = compare(files, folder, settings, progress=progress)
    except KeyboardInterrupt:
        console.warn([f"finished runs stay in {folder}; the same command goes on there"])
        raise
    for shift, records in found.records.items():
        for method, reason in records[0].refused.items():
            console.detail(f"{shift}: {method} left out: {reason}")
    if output is not None:
        write_comparison(found, output, force=force)
    console.screen(_rendered(found))
    if output is not None:
        console.wrote(output)


def _rendered(comparison: "Comparison") -> str:
    from covcal_cli.cli import tables
    from covcal_cli.compare.tables import caption, caption_of_auto, grids, of_auto
    from covcal_cli.report.tables import Table

    parts = [tables.text(Table(one.heads, one.rows, one.texts)) for one in grids(comparison)]
    parts.append(caption(comparison))
    auto = of_auto(comparison)
    if auto is not None:
        shown = tables.text(Table(auto.heads, auto.rows, auto.texts))
        parts += [shown, caption_of_auto(comparison)]
    return "\n\n".join(parts)
