"""``covcal calibrate-labelled``: a temperature for people who have a few target labels."""

from pathlib import Path
from typing import Annotated

import typer

from covcal_cli.cli.console import Console
from covcal_cli.cli.here import file_here
from covcal_cli.cli.options import Force, InputFile, LossName, Quiet, Seed, Verbose, output


def calibrate_labelled(
    rows: Annotated[int, typer.Option(min=1, help="Labelled target rows to fit to.")],
    file: InputFile = None,
    output: Annotated[Path, output("Calibration to write; - prints it.")] = Path("cal.json"),
    loss: Annotated[LossName, typer.Option(help="What T minimises.")] = LossName.brier,
    seed: Seed = 0,
    force: Force = False,
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
    import json
    from shlex import quote

    from covcal_cli.calibration import write_calibration
    from covcal_cli.cli.render import calibration_summary
    from covcal_cli.files import check_output
    from covcal_cli.labelled import LabelledSettings
    from covcal_cli.labelled import calibrate_labelled as fit

    console = Console(quiet=quiet, verbose=verbose)
    path = file or file_here(console)
    to_stdout = str(output) == "-"
    if not to_stdout:
        check_output(output, force=force, inputs=[path])
    settings = LabelledSettings(
        rows=rows, loss="nll" if loss is LossName.nll else "brier", seed=seed
    )
    found = fit(path, settings)
    for text in found.notes:
        console.note(text)
    console.warn(found.warnings)
    if to_stdout:
        console.result(json.dumps(found.to_json(Path("cal.json")), indent=2, allow_nan=False))
        return
    write_calibration(found, output, force=force)
    console.result(calibration_summary(found, verbose=verbose))
    console.wrote(output, f"covcal evaluate {quote(str(path))} -c {quote(str(output))}")
