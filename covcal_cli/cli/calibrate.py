"""``covcal calibrate``: fit the temperatures."""

from pathlib import Path
from typing import Annotated

import typer

from covcal_cli.cli.console import Console, file_here
from covcal_cli.cli.options import (
    Force,
    InputFile,
    LossName,
    MaxWeight,
    MethodName,
    Quiet,
    Seed,
    TargetPrior,
    Verbose,
    output,
)


def calibrate(
    file: InputFile = None,
    output: Annotated[Path, output("Calibration to write; - prints it.")] = Path("cal.json"),
    method: Annotated[MethodName, typer.Option(help="What to fit.")] = MethodName.auto,
    loss: Annotated[LossName, typer.Option(help="What T minimises.")] = LossName.brier,
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
      temp          one temperature on the classifier's own logits
      cot           whose mean target confidence is the accuracy estimated there
      auto          cot where its guards pass, else temp; shows all candidates
      iw+temp       source rows weighted to look like the target
      fl+temp       on the logits learnt by adapt
      fl+iw+temp    the same, weighted
      fl+cot        cot on the logits learnt by adapt
      weights-only  weighted by 1/g - 1 alone
      label-shift   source rows weighted by their class's frequency
      atc, transcal, utdc, pseudocal  as published

    \b
    Examples:
      covcal calibrate features.h5 -o cal.json
      covcal calibrate adapted.h5 --method fl+iw+temp -o cal.json
      covcal calibrate adapted.h5 --target-prior uniform -o cal.json
      covcal calibrate adapted.h5 -o - | jq .temperatures
    """
    import math
    from shlex import quote

    from covcal_cli.calibration import write_calibration
    from covcal_cli.cli.render import calibration_summary
    from covcal_cli.files import check_output
    from covcal_cli.fitting import calibrate as fit
    from covcal_cli.fitting import takes_prior
    from covcal_cli.records import document_text

    if target_prior != "source" and not takes_prior(method.value):
        raise typer.BadParameter(f"{method.value} has no use for it", param_hint="--target-prior")
    if not math.isfinite(max_weight):
        raise typer.BadParameter("give a finite number", param_hint="--max-weight")
    console = Console(quiet=quiet, verbose=verbose)
    path = file or file_here(console)
    to_stdout = str(output) == "-"
    if not to_stdout:
        check_output(output, force=force, inputs=[path])
    calibration = fit(
        path,
        method=method.value,
        loss="nll" if loss is LossName.nll else "brier",
        max_weight=max_weight,
        seed=seed,
        target_prior=target_prior,
    )
    for text in calibration.notes:
        console.note(text)
    console.warn(calibration.warnings)
    if to_stdout:
        console.result(document_text(calibration, Path("cal.json")))
        return
    write_calibration(calibration, output, force=force)
    console.result(calibration_summary(calibration, verbose=verbose))
    console.wrote(output, f"covcal evaluate {quote(str(path))} -c {quote(str(output))}")
