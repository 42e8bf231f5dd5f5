"""``covcal adapt``: learn features on which the domains look alike."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covcal_cli.cli.console import Console, usage
from covcal_cli.cli.options import Device, DeviceName, Force, Quiet, Seed, Verbose, output

if TYPE_CHECKING:
    from covcal_cli.adapt.adapt import AdaptReport

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
    console.screen(_summary(report))
    console.wrote(output, f"covcal calibrate {quote(str(output))}")


def _summary(report: "AdaptReport") -> str:
    """Return what was trained: one line per member."""
    from covcal_cli.cli import tables
    from covcal_cli.report.tables import Table

    counts = report.counts
    rows = [
        [
            str(number),
            str(member.steps),
            member.stop_reason,
            f"{member.probe_accuracy:.3f}",
            f"{member.ess_share:.1%}",
            f"{member.mean_weight:.3f}",
            f"{member.domain_error:.3f}",
            f"{member.weighted_brier:.4f}",
            f"{member.target_agreement:.1%}",
        ]
        for number, member in enumerate(report.members)
    ]
    columns = (
        "member",
        "steps",
        "stopped by",
        "probe acc.",
        "ess",
        "mean w",
        "domain err.",
        "IW Brier",
        "agreement",
    )
    return "\n".join(
        [
            f"preset {report.preset}, seed {report.seed}, {report.device}, "
            f"{report.n_features} features -> {report.n_inputs} inputs of psi",
            f"train {counts['source train']} source + {counts['target train']} target rows, "
            f"validation {counts['source validation']} + {counts['target validation']}",
            tables.text(Table(columns, rows)),
        ]
    )
