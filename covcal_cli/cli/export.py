"""``covcal export``: the same model with calibrated probabilities inside."""

from pathlib import Path
from typing import Annotated

import typer

from covcal_cli.cli.console import Console
from covcal_cli.cli.options import (
    Force,
    ModelOutput,
    Networks,
    Quiet,
    TrustModel,
    Verbose,
    calibration,
    output,
)


def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="The classifier that was extracted: ONNX, TorchScript, torch.export, or "
            "module:function.",
            show_default=False,
        ),
    ],
    calibration: Annotated[
        Path | None, calibration("The calibration to merge; cal.json when left out.")
    ] = None,
    output: Annotated[
        Path | None,
        output("Model to write; calibrated.onnx, for torch calibrated.pt2, when left out."),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Weights of the module that module:function returns."),
    ] = None,
    networks: Networks = None,
    model_output: ModelOutput = None,
    trust_model: TrustModel = False,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Write the model with probabilities, label and confidence beside its outputs.

    The label is the model's own; the confidence is the calibrated probability of
    that label. The file appears after it agreed with the model and with covcal.

    \b
    Examples:
      covcal export model.onnx
      covcal export model.onnx -c cal.json -o calibrated.onnx
      covcal export model.onnx -c fl.json --networks adapted.h5
      covcal export model.pt --trust-model -o calibrated.pt2
    """
    from covcal_cli.export.export import export as write
    from covcal_cli.formats.calibration import read_calibration
    from covcal_cli.formats.lineage import require_current

    console = Console(quiet=quiet, verbose=verbose)
    document = calibration or Path("cal.json")
    if calibration is None:
        require_current(read_calibration(document), document, purpose="export")
    written, merged = write(
        model,
        document,
        output,
        weights=weights,
        networks=networks,
        model_output=model_output,
        trust_model=trust_model,
        force=force,
    )
    console.warn(merged.warnings)
    agreement = written.agreement
    same = "identical" if agreement.output_error == 0 else f"within {agreement.output_error:.0e}"
    rows = f"{agreement.rows} made rows"
    if agreement.stored_rows:
        rows += f" and {agreement.stored_rows} that the calibration was fitted on"
    moved = merged.confidence_offset
    offset = f", offset {moved:+.3f}" if moved else ""
    lines = (
        f"merged: {merged.method_used}, T = {merged.scaling.shown(4)}{offset}",
        f"outputs: {', '.join(written.kept)} (as before), {', '.join(written.added)}",
        f"checked on {rows}: outputs {same}, labels identical, probabilities within "
        f"{agreement.probability_error:.0e}",
    )
    console.screen("\n".join(lines))
    if written.weights is not None:
        console.wrote(written.weights)
    console.wrote(written.output)
