"""``covcal calibrate-labelled``: a temperature for people who have a few target labels."""

from pathlib import Path
from typing import Annotated

import typer

from covcal_cli.cli.calibrate import write_fitted
from covcal_cli.cli.console import Console
from covcal_cli.cli.options import (
    ForceLimit,
    InputFile,
    Loss,
    LossName,
    Quiet,
    Seed,
    Verbose,
    output,
)


def calibrate_labelled(
    rows: Annotated[int, typer.Option(min=1, help="Labelled target rows to fit to.")],
    file: InputFile = None,
    output: Annotated[Path, output("Calibration to write; - prints it.")] = Path("cal.json"),
    loss: Loss = LossName.brier,
    seed: Seed = 0,
    force: ForceLimit = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Fit a temperature to some labelled target rows; evaluate leaves them out.

    The one command besides evaluate that reads target labels.

    \b
    Examples:
      covcal calibrate-labelled adapted.h5 --rows 100 -o labelled.json
      covcal calibrate-labelled features.h5 --rows 50 --seed 1 -f
    """
    from covcal_cli.calibrate.labelled import LabelledSettings
    from covcal_cli.calibrate.labelled import calibrate_labelled as fit

    settings = LabelledSettings(rows=rows, loss=loss.value, seed=seed, allow_limit=force)
    console = Console(quiet=quiet, verbose=verbose)
    write_fitted(lambda path: fit(path, settings), file, output, console, force=force)
