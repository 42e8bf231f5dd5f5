"""``covcal calibrate``: fit the temperatures."""

from pathlib import Path
from typing import Annotated

import typer

from covcal_cli.cli.console import Console
from covcal_cli.cli.options import Force, LossName, MethodName, Quiet, Seed, Verbose, output


def calibrate(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="A features or adapted file; adapted.h5, else features.h5, when left out.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[Path, output("Calibration to write; - prints it.")] = Path("cal.json"),
    method: Annotated[MethodName, typer.Option(help="What to fit.")] = MethodName.auto,
    loss: Annotated[LossName, typer.Option(help="What T minimises.")] = LossName.brier,
    max_weight: Annotated[
        float, typer.Option(min=1.0, help="Limit U of the importance weights.")
    ] = 1000.0,
    seed: Seed = 0,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Fit temperatures on source validation rows; reads no target label.

    \b
    Methods:
      temp        one temperature on the classifier's own logits
      iw+temp     the same, source rows weighted to look like the target
      fl+temp     on the logits learnt by adapt
      fl+iw+temp  the same, weighted
      auto        the fullest that the file allows and its weights support

    \b
    Examples:
      covcal calibrate features.h5 -o cal.json
      covcal calibrate adapted.h5 --method fl+iw+temp -o cal.json
      covcal calibrate adapted.h5 -o - | jq .temperatures
    """
    import json
    import math
    from shlex import quote

    from covcal_cli.calibration import write_calibration
    from covcal_cli.cli.render import calibration_summary
    from covcal_cli.files import check_output
    from covcal_cli.fitting import calibrate as fit

    if not math.isfinite(max_weight):
        raise typer.BadParameter("give a finite number", param_hint="--max-weight")
    console = Console(quiet=quiet, verbose=verbose)
    path = file or _here(console)
    to_stdout = str(output) == "-"
    if not to_stdout:
        check_output(output, force=force, inputs=[path])
    calibration = fit(
        path,
        method=method.value,
        loss="nll" if loss is LossName.nll else "brier",
        max_weight=max_weight,
        seed=seed,
    )
    for text in calibration.notes:
        console.note(text)
    console.warn(calibration.warnings)
    if to_stdout:
        console.result(json.dumps(calibration.to_json(Path("cal.json")), indent=2, allow_nan=False))
        return
    write_calibration(calibration, output, force=force)
    console.result(calibration_summary(calibration, verbose=verbose))
    console.wrote(output, f"covcal evaluate {quote(str(path))} -c {quote(str(output))}")


def _here(console: Console) -> Path:
    from covcal_cli.errors import CovcalError

    for path in (Path("adapted.h5"), Path("features.h5")):
        if path.is_file():
            console.note(f"reading {path}")
            return path
    raise CovcalError("there is no adapted.h5 or features.h5 here: name the file to calibrate")
