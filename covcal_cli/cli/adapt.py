"""``covcal adapt``: learn features on which source and target look alike."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covcal_cli.cli import options, tables
from covcal_cli.cli.console import Console, to_calibrate, usage
from covcal_cli.cli.tables import aligned
from covcal_cli.errors import percent

if TYPE_CHECKING:
    from covcal_cli.adapt.adapt import AdaptReport

_COLUMNS = {
    "member": "",
    "steps": "",
    "stopped by": "",
    "probe": "accuracy of a linear classifier that separates source and target; 0.5 = chance",
    "rows": "effective sample size of the importance weights, as a share of the source rows",
    "mean w": "mean importance weight, which should be near 1",
    "domain error": "squared error of a classifier of source against target; 0.25 = chance",
    "Brier": "importance-weighted Brier score of the forecaster; lower is better",
    "agreement": "share of target rows where the forecaster predicts the classifier's class",
}


def adapt(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A features file.")] = Path(
        "features.h5"
    ),
    output: Annotated[Path, options.output("Adapted file to write.")] = Path("adapted.h5"),
    preset: Annotated[
        options.PresetName,
        typer.Option(help="Use the settings of covcal (default) or of the paper."),
    ] = options.PresetName.default,
    members: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of networks whose outputs are averaged; default: 3, paper: 1."
        ),
    ] = None,
    weight_decay: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Weight decay (L2 penalty), for --preset paper only; default: 5e-4."
        ),
    ] = None,
    seed: options.Seed = 0,
    device: options.Device = options.DeviceName.auto,
    threads: Annotated[
        int, typer.Option(min=1, help="CPU threads; more than one can be slower.")
    ] = 1,
    force: options.Force = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Learn features on which source and target look alike.

    Only methods with "fl" in their name need this step. No target label is read.

    \b
    Examples:
      covcal adapt
      covcal adapt features.h5 -o adapted.h5 --seed 1
      covcal adapt features.h5 --preset paper --weight-decay 5e-3 -o paper.h5
    """
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
    console.screen(_summary(report))
    if verbose:
        console.screen(_details(report))
    console.warn(report.warnings)
    console.wrote(output, to_calibrate(output))


def _summary(report: "AdaptReport") -> str:
    from covcal_cli.adapt.adapt import members_apart

    members, counts = report.members, report.counts
    apart = members_apart(members)
    result = "not aligned: source and target still differ" if apart else "aligned"
    if 0 < apart < len(members):
        result = f"source and target still differ for {apart} of {len(members)} networks"
    shares = _range(100 * member.ess_share for member in members)
    agreement = _range(100 * member.target_agreement for member in members)
    steps = _range((member.steps for member in members), "")
    return aligned(
        {
            "Domains": f"{result} on the adapted features ({shares} effective rows)",
            "Forecaster": f"agrees with the classifier on {agreement} of the target rows",
            "Training": f"{len(members)} networks, {steps} steps, on {counts['source train']:,} "
            f"source and {counts['target train']:,} target rows",
        }
    )


def _range(values: Iterable[float], unit: str = " %") -> str:
    texts = [f"{value:,.0f}" for value in sorted(values)]
    ends = texts[:1] if texts[0] == texts[-1] else [texts[0], texts[-1]]
    return f"{' to '.join(ends)}{unit}"


def _details(report: "AdaptReport") -> str:
    from covcal_cli.report.tables import Table

    counts = report.counts
    rows = [
        [
            str(number),
            str(member.steps),
            member.stop_reason,
            f"{member.probe_accuracy:.3f}",
            percent(member.ess_share),
            f"{member.mean_weight:.3f}",
            f"{member.domain_error:.3f}",
            f"{member.weighted_brier:.4f}",
            percent(member.target_agreement),
        ]
        for number, member in enumerate(report.members)
    ]
    return "\n".join(
        [
            f"preset {report.preset}, seed {report.seed}, {report.device}, {report.n_features} "
            f"features, reduced to {report.n_inputs} principal components",
            f"validation rows: {counts['source validation']} source, "
            f"{counts['target validation']} target",
            tables.text(Table(tuple(_COLUMNS), rows)),
            tables.aligned({name: text for name, text in _COLUMNS.items() if text}),
        ]
    )
