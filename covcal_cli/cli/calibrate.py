"""``covcal calibrate``: fit the temperatures."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from covcal_cli.calibrate.methods import AUTO, AUTO_HELP, METHODS
from covcal_cli.cli.console import Console, file_here, usage
from covcal_cli.cli.options import (
    Force,
    InputFile,
    Loss,
    LossName,
    MaxWeight,
    Method,
    MethodName,
    Quiet,
    Seed,
    TargetPrior,
    Verbose,
    output,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from covcal_cli.formats.calibration import Calibration


def calibrate(
    file: InputFile = None,
    output: Annotated[Path, output("Calibration to write; - prints it.")] = Path("cal.json"),
    method: Method = MethodName.auto,
    loss: Loss = LossName.brier,
    max_weight: MaxWeight = 1000.0,
    target_prior: TargetPrior = "source",
    seed: Seed = 0,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Fit a temperature; reads no target label.

    \b
    Methods:
    {methods}

    \b
    Examples:
      covcal calibrate features.h5 -o cal.json
      covcal calibrate adapted.h5 --method fl+iw+temp -o cal.json
      covcal calibrate adapted.h5 --target-prior uniform -o cal.json
      covcal calibrate adapted.h5 -o - | jq .temperatures
    """
    from covcal_cli.calibrate.calibrate import CalibrateSettings
    from covcal_cli.calibrate.calibrate import calibrate as fit

    with usage():
        settings = CalibrateSettings(
            method=method.value,
            loss=loss.value,
            max_weight=max_weight,
            target_prior=target_prior,
            seed=seed,
        )
    console = Console(quiet=quiet, verbose=verbose)
    write_fitted(lambda path: fit(path, settings), file, output, console, force=force)


def write_fitted(
    fit: "Callable[[Path], Calibration]",
    file: Path | None,
    output: Path,
    console: Console,
    *,
    force: bool,
) -> None:
    """Fit a calibration on a file, write or print it, and show what was found."""
    from shlex import quote

    from covcal_cli.cli.render import calibration_summary
    from covcal_cli.files import check_output
    from covcal_cli.formats.calibration import write_calibration
    from covcal_cli.records import document_text

    path = file or file_here(console)
    to_stdout = str(output) == "-"
    if not to_stdout:
        check_output(output, force=force, inputs=[path])
    found = fit(path)
    for text in found.notes:
        console.note(text)
    console.warn(found.warnings)
    if to_stdout:
        console.result(document_text(found, Path("cal.json")))
        return
    write_calibration(found, output, force=force)
    console.result(calibration_summary(found, verbose=console.verbose))
    console.wrote(output, f"covcal evaluate {quote(str(path))} -c {quote(str(output))}")


_NAMED = {AUTO: AUTO_HELP} | {name: method.help for name, method in METHODS.items()}
calibrate.__doc__ = str(calibrate.__doc__).replace(
    "{methods}", "\n    ".join(f"  {name:<12}  {text}" for name, text in _NAMED.items())
)
