"""``covcal export``: write the same model with calibrated probabilities."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covcal_cli.cli import options
from covcal_cli.cli.console import Console
from covcal_cli.cli.tables import aligned

if TYPE_CHECKING:
    from covcal_cli.export.forecaster import Agreement


def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="The classifier that was extracted: an ONNX, TorchScript or torch.export file, or "
            "module:function.",
            show_default=False,
        ),
    ],
    calibration: Annotated[
        Path | None, options.calibration("Calibration to build into the model; default: cal.json.")
    ] = None,
    output: Annotated[
        Path | None,
        options.output("Model to write; default: calibrated.onnx, or calibrated.pt2 for torch."),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Weights for a model given as module:function."),
    ] = None,
    decision: Annotated[
        Path | None,
        options.decision(
            'Add the output "accept", which is true for rows that this decision accepts.'
        ),
    ] = None,
    networks: options.Networks = None,
    model_output: options.ModelOutput = None,
    trust_model: options.TrustModel = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Write the model with three more outputs: probabilities, label and confidence.

    The label is the class that the model predicts. The confidence is the calibrated probability of
    this label. The new model is compared with the original before it is written. If rows can have
    several labels, only one output is added: the calibrated probability of every label.

    \b
    Examples:
      covcal export model.onnx
      covcal export model.onnx -c cal.json -o calibrated.onnx
      covcal export model.onnx -c fl.json --networks adapted.h5
      covcal export model.pt --trust-model -o calibrated.pt2
    """
    from covcal_cli.data.classes import listed
    from covcal_cli.export.export import export as write
    from covcal_cli.formats.calibration import read_calibration
    from covcal_cli.formats.lineage import labels_of, require_current
    from covcal_cli.multilabel import for_each_label, gathered

    console = Console(quiet=quiet, verbose=verbose)
    document = calibration or Path("cal.json")
    labels = labels_of(None, [document])
    calibrations = for_each_label(labels, lambda: read_calibration(document))
    if calibration is None:
        require_current(next(iter(calibrations.values())), purpose="export")
    written, merged = write(
        model,
        document,
        output,
        weights=weights,
        networks=networks,
        decision=decision,
        model_output=model_output,
        trust_model=trust_model,
        force=force,
    )
    agreement = written.agreement
    outputs = "identical" if agreement.output_error == 0 else f"within {agreement.output_error:.0e}"
    inputs = f"{agreement.rows} random inputs"
    if agreement.stored_rows:
        inputs += f" and {agreement.stored_rows} rows of the calibration's file"
    offset = merged.confidence_offset
    built_in = f"{merged.method_used}, T = {merged.scaling.shown(4)}"
    built_in += f", offset {offset:+.3f}" if offset else ""
    same = [] if labels else ["labels identical"]
    if labels:
        temperatures = [f"{label} {c.scaling.shown(3)}" for label, c in calibrations.items()]
        built_in = f"each of the {len(labels)} labels has its own T: {listed(temperatures)}"
    facts = {
        "Outputs": f"{', '.join(written.kept)} (unchanged), {', '.join(written.added)}",
        "Calibration": built_in,
        "Checked": f"on {inputs}: "
        + ", ".join(
            [f"outputs {outputs}", *same, f"probabilities within {agreement.probability_error:.0e}"]
        ),
    }
    console.screen(aligned(facts))
    console.warn(gathered({label: c.warnings for label, c in calibrations.items()}))
    if merged.scaling.can_move_the_top and not labels:
        console.warn(_two_answers(agreement, written.added))
    if written.weights is not None:
        console.wrote(written.weights)
    console.wrote(written.output)


def _two_answers(agreement: "Agreement", added: Sequence[str]) -> list[str]:
    probabilities, label, confidence, *_ = added
    rows = "some rows"
    if agreement.stored_rows:
        if not agreement.label_is_not_top:
            return []
        rows = f"{agreement.label_is_not_top} of {agreement.stored_rows} rows"
    return [
        f"in {rows}, the predicted class is no longer the most probable class: use the outputs "
        f"{label} and {confidence} instead of the largest of {probabilities}, and review these "
        "rows first"
    ]
