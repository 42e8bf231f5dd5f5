"""``covcal adapt``: learn features on which the domains look alike."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from covcal_cli.cli.console import Console, usage
from covcal_cli.cli.options import Device, DeviceName, Force, Quiet, Seed, Verbose, output

PresetName = StrEnum("PresetName", ["default", "paper"])


def adapt(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A features file.")] = Path(
        "features.h5"
    ),
    output: Annotated[Path, output("Adapted file to write.")] = Path("adapted.h5"),
    preset: Annotated[
        PresetName, typer.Option(help="covcal's own setting, or the paper's schedule.")
    ] = PresetName.default,
    members: Annotated[
        int | None,
        typer.Option(min=1, help="Independent members to average; the preset's when left out."),
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(min=0.0, help="For --preset paper; 5e-4 when left out.")
    ] = None,
    seed: Seed = 0,
    device: Device = DeviceName.auto,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads; more can be slower.")] = 1,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Learn psi and its heads from a features file; reads no target label.

    \b
    Examples:
      covcal adapt
      covcal adapt features.h5 -o adapted.h5 --seed 1
      covcal adapt features.h5 --preset paper --weight-decay 5e-3 -o paper.h5
    """
    from shlex import quote

    from covcal_cli.adapt.adapt import adapt
    from covcal_cli.adapt.settings import AdaptSettings
    from covcal_cli.cli.render import adapt_summary

    with usage():
        settings = AdaptSettings(
            preset=preset.value,
            members=members,
            weight_decay=weight_decay,
            seed=seed,
            device=device.value,
            threads=threads,
        )
    console = Console(quiet=quiet, verbose=verbose)
    with console.progress() as progress:
        report = adapt(file, output, settings, force=force, progress=progress)
    console.warn(report.warnings)
    console.result(adapt_summary(report))
    console.wrote(output, f"covcal calibrate {quote(str(output))}")
