"""``covcal estimate``: the target accuracy without target labels."""

from pathlib import Path
from typing import Annotated

import typer

from covcal_cli.cli.console import Console, file_here, usage
from covcal_cli.cli.options import (
    EstimateFormatName,
    Force,
    InputFile,
    MaxWeight,
    Quiet,
    Seed,
    TargetPrior,
    Verbose,
    output,
)


def estimate(
    file: InputFile = None,
    output: Annotated[
        Path | None, output("Write estimate.json there; - prints it instead of the table.")
    ] = None,
    target_prior: TargetPrior = "source",
    max_weight: MaxWeight = 1000.0,
    seed: Seed = 0,
    format: Annotated[
        EstimateFormatName, typer.Option(help="Of the result.")
    ] = EstimateFormatName.table,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Estimate the accuracy on the target; reads no target label.

    The combined estimate is the one to act on. Its interval reaches as far as the others lie, as
    no estimate knows whether its own assumption holds.

    \b
    Examples:
      covcal estimate
      covcal estimate features.h5 --target-prior uniform
      covcal estimate adapted.h5 --format markdown -o estimate.json
      covcal estimate adapted.h5 -o - | jq .estimates[0].accuracy
    """
    from covcal_cli.cli.render_estimate import RENDERERS
    from covcal_cli.estimation import estimate as compute
    from covcal_cli.estimation import write_estimation
    from covcal_cli.files import check_output
    from covcal_cli.problem import EstimateSettings

    with usage():
        settings = EstimateSettings(max_weight=max_weight, target_prior=target_prior, seed=seed)
    console = Console(quiet=quiet, verbose=verbose)
    path = file or file_here(console)
    to_stdout = str(output) == "-"
    if output is not None and not to_stdout:
        check_output(output, force=force, inputs=[path])
    found = compute(path, settings)
    for text in found.notes:
        console.note(text)
    if verbose:
        for one in found.estimates:
            for guard in one.guards:
                state = "passed" if guard.passed else "failed"
                console.detail(f"{one.name}, {guard.name} {state}: {guard.sentence}")
    if output is not None and not to_stdout:
        write_estimation(found, output, force=force)
    console.result(RENDERERS["json" if to_stdout else format.value](found))
    if output is not None and not to_stdout:
        console.wrote(output)
