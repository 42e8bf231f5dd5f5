"""``covcal compare``: rank methods on several labelled shifts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covcal_cli.cli import options, tables
from covcal_cli.cli.console import Console, usage
from covcal_cli.errors import CovcalError
from covcal_cli.files import check_output

if TYPE_CHECKING:
    from covcal_cli.compare.compare import Comparison


def compare(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Features files with target labels; one per shift."),
    ],
    output: Annotated[
        Path | None, options.output("Also write the table to this file: .csv, .md or .tex.")
    ] = None,
    methods: Annotated[
        str, typer.Option(metavar="all|NAME,NAME", help="Methods of covcal calibrate to compare.")
    ] = "all",
    seeds: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Adapt and calibrate each file with this number of seeds.",
        ),
    ] = 5,
    metric: Annotated[
        str, typer.Option(metavar="NAME", help="Metric that ranks the methods.")
    ] = "ece",
    preset: Annotated[
        options.PresetName,
        typer.Option(help="Run adapt with the settings of covcal or of the paper."),
    ] = options.PresetName.default,
    no_adapt: Annotated[
        bool,
        typer.Option("--no-adapt", help="Skip covcal adapt, which takes most of the time."),
    ] = False,
    jobs: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Number of parallel processes."),
    ] = 1,
    folder: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for adapted files and finished runs.")
    ] = Path("covcal-compare"),
    force: options.Force = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Adapt, calibrate and evaluate several files with several seeds.

    A table shows each method with its mean and standard deviation over the seeds, its mean rank,
    and the number of shifts where the method makes the metric worse. A second table shows the
    method that auto chose, the estimated and the true accuracy, and the failed checks. To continue
    after an interruption, repeat the command. Target labels are used only for the metrics; no
    method reads target labels.

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

    names = ALL if methods == "all" else tuple(name.strip() for name in methods.split(","))
    with usage():
        if no_adapt and preset != options.PresetName.default:
            raise CovcalError(
                "--preset is a setting of adapt, which --no-adapt skips: use only one of them"
            )
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
            comparison = compare(files, folder, settings, progress=progress)
    except KeyboardInterrupt:
        console.warn([f"finished runs stay in {folder}: run the same command to continue"])
        raise
    for shift, records in comparison.records.items():
        for record in records:
            if record.note:
                console.note(f"{shift}, seed {record.seed}: {record.note}")
        for method, reason in records[0].refused.items():
            console.detail(f"{shift}: {method} left out: {reason}")
    if output is not None:
        write_comparison(comparison, output, force=force)
    console.screen(_rendered(comparison))
    if output is not None:
        console.wrote(output)


def _rendered(comparison: "Comparison") -> str:
    from covcal_cli.compare.tables import caption, caption_of_auto, grids, of_auto

    parts = [tables.text(grid) for grid in grids(comparison)]
    parts.append(caption(comparison))
    auto = of_auto(comparison)
    if auto is not None:
        parts += [tables.text(auto), caption_of_auto(comparison)]
    return "\n\n".join(parts)
