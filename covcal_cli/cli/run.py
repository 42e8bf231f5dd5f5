"""``covcal run``: every step in one go, each result kept and reused while nothing changed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covcal_cli.classifiers.kinds import MODEL_HELP
from covcal_cli.cli.console import Console, usage
from covcal_cli.cli.extract_options import ExtractOptions, takes_extract_options
from covcal_cli.cli.options import Device, DeviceName, Method, MethodName, Quiet, Verbose, output

if TYPE_CHECKING:
    from covcal_cli.run.run import RunReport, Step


@takes_extract_options("providers", "limit", "shard", "on_error")
def run(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="Data like the classifier's own, labelled.")
    ],
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="The new data; labels are optional.")
    ],
    output: Annotated[Path, output("Folder for the results.")] = Path("covcal-run"),
    method: Method = MethodName.auto,
    device: Device = DeviceName.auto,
    *,
    options: ExtractOptions,
    force: Annotated[bool, typer.Option("--force", "-f", help="Make every result anew.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Extract, adapt, calibrate, evaluate, export and report in one folder.

    A result is made again only when its settings or its inputs changed, so the
    same command goes on where it was cut off. Without target labels there is no
    metrics.json, and the report says what is expected.

    \b
    Examples:
      covcal run model.onnx source/ target/
      covcal run model.onnx source/ target/ -o out/ --preprocess imagenet
      covcal run nets:build source/ target/ --weights best.pth --method temp
    """
    from covcal_cli.run.run import RunSettings
    from covcal_cli.run.run import run as run_steps

    console = Console(quiet=quiet, verbose=verbose)

    def tell(step: "Step") -> None:
        console.warn(step.warnings)
        console.note(f"{step.output} {'stands as it was' if step.reused else 'made'}")

    with usage():
        settings = RunSettings(options.settings(), method=method.value, device=device.value)
    try:
        with console.progress() as progress:
            report = run_steps(
                model, source, target, output, settings, tell=tell, force=force, progress=progress
            )
    except KeyboardInterrupt:
        console.warn([f"what was made in {output} stays; the same command goes on there"])
        raise
    console.result(_summary(report))
    console.wrote(report.model)
    console.wrote(report.page)


def _summary(report: "RunReport") -> str:
    if report.evaluation is None:
        from covcal_cli.cli.calibrate import calibration_summary

        return calibration_summary(report.calibration, verbose=False)
    from covcal_cli.cli.evaluate import rendered_evaluation
    from covcal_cli.evaluate.gates import Judged

    return rendered_evaluation(Judged(report.evaluation), "table")
