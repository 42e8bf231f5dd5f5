"""``covcal run``: every step in one go, each result kept and reused while nothing changed."""

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covcal_cli.cli.console import Console, usage
from covcal_cli.cli.extract_options import (
    ExtractOptions,
    Inputs,
    Logits,
    Model,
    Probabilities,
    Source,
    Target,
    takes_extract_options,
)
from covcal_cli.cli.options import (
    Device,
    DeviceName,
    ExpectedAccuracy,
    Method,
    MethodName,
    Quiet,
    Verbose,
    output,
)
from covcal_cli.cli.tables import aligned
from covcal_cli.errors import LimitExceededError
from covcal_cli.progress import Progress

if TYPE_CHECKING:
    from covcal_cli.run.run import RunReport, Step

_STEPS = 6


@takes_extract_options("providers", "limit", "shard", "on_error")
def run(
    model: Model = None,
    source: Source = None,
    target: Target = None,
    output: Annotated[Path, output("Folder for the results.")] = Path("covcal-run"),
    logits: Logits = False,
    probabilities: Probabilities = False,
    method: Method = MethodName.auto,
    device: Device = DeviceName.auto,
    *,
    options: ExtractOptions,
    expect_accuracy: ExpectedAccuracy = None,
    force: Annotated[
        bool,
        typer.Option("--force", "-f", help="Make every result anew, another project's too."),
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Extract, adapt, calibrate, evaluate, export and report in one folder.

    A result is made again only when its settings or its inputs changed, so the
    same command goes on where it was cut off. Without target labels there is no
    metrics.json, and the report says what is expected. Of tables of outputs, which
    have no model to export, probs.csv has the calibrated probabilities.

    \b
    Examples:
      covcal run model.onnx source/ target/
      covcal run model.onnx source/ target/ -o out/ --preprocess imagenet
      covcal run model.onnx source/ target/ --expect-accuracy 0.96
      covcal run nets:build source/ target/ --weights best.pth --method temp
      covcal run --probabilities source.parquet target.parquet
    """
    from covcal_cli.run.run import RunSettings
    from covcal_cli.run.run import run as run_steps

    console = Console(quiet=quiet, verbose=verbose)
    facts: dict[str, str] = {}
    numbers = count(1)

    begun: list[str] = []

    def begin(step: str) -> None:
        begun.append(f"step {next(numbers)} of {_STEPS}: {step}")
        if step != "extract":  # which tells with its first row: what cannot begin is an error alone
            say_begun()

    def say_begun() -> None:
        while begun:
            console.note(begun.pop())

    def tell(step: "Step") -> None:
        say_begun()
        facts.update(step.said.facts)
        for note in step.said.notes:
            console.note(note)
        console.warn(step.said.warnings)
        console.note(f"{step.output} {'stands as it was' if step.reused else 'made'}")

    given = Inputs.read(model, source, target, logits=logits, probabilities=probabilities)
    with usage():
        settings = RunSettings(
            options.settings(given.outputs),
            method=method.value,
            device=device.value,
            expect_accuracy=expect_accuracy,
        )
    try:
        with console.progress() as show:

            def progress(done: Progress) -> None:
                say_begun()
                show(done)

            report = run_steps(
                given.model,
                given.source,
                given.target,
                output,
                settings,
                tell=tell,
                begin=begin,
                force=force,
                progress=progress,
            )
    except KeyboardInterrupt:
        console.warn([f"what was made in {output} stays; the same command goes on there"])
        raise
    except LimitExceededError:
        console.screen(aligned(facts))
        raise
    console.screen(f"{aligned(facts)}\n\n{_summary(report)}")
    console.wrote(report.model)
    console.wrote(report.page)


def _summary(report: "RunReport") -> str:
    """Return what was fitted, and what was measured where there are labels."""
    from covcal_cli.cli.calibrate import calibration_summary

    fitted = calibration_summary(report.calibration, verbose=False)
    if report.evaluation is None:
        return fitted
    from covcal_cli.cli.evaluate import rendered_evaluation
    from covcal_cli.evaluate.gates import Judged

    return f"{fitted}\n\n{rendered_evaluation(Judged(report.evaluation), 'table')}"
