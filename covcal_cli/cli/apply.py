"""``covcal apply``: calibrated probabilities of every row, to a file or to stdout."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from covcal_cli.cli.console import Console
from covcal_cli.cli.options import (
    AllowOtherPreprocessing,
    Force,
    NetworksOfFeatures,
    Quiet,
    Verbose,
    calibration,
    output,
)

DomainName = StrEnum("DomainName", {"target": "target", "source": "source"})
RowsName = StrEnum("RowsName", ["all", "train", "validation", "test"])


def apply(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="A features or adapted file, of new data too; what the calibration was fitted on, "
            "when left out.",
            show_default=False,
        ),
    ] = None,
    calibration: Annotated[
        list[Path] | None, calibration("The calibration; cal.json when left out.")
    ] = None,
    output: Annotated[
        Path, output("File to write: .csv, .parquet, .npz or .h5; - prints CSV.", printed=True)
    ] = Path("probs.csv"),
    domain: Annotated[DomainName, typer.Option(help="Rows to apply it to.")] = DomainName.target,
    split: Annotated[RowsName, typer.Option(help="Rows to apply it to.")] = RowsName.all,
    confidence_only: Annotated[
        bool, typer.Option("--confidence-only", help="Leave out the classes' probabilities.")
    ] = False,
    networks: NetworksOfFeatures = None,
    allow_other_preprocessing: AllowOtherPreprocessing = False,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Write calibrated probabilities of every row; reads no labels.

    Per row: id, the label that the classifier predicted (calibration never changes it), its
    recalibrated confidence, and the calibrated probability of every class.

    \b
    Examples:
      covcal apply
      covcal apply features.h5 -c cal.json -o probs.parquet
      covcal apply new.h5 -c cal.json -o probs.csv --confidence-only
      covcal apply new.h5 --networks adapted.h5 -o - | head
    """
    import sys

    from covcal_cli.apply.apply import ApplySettings, apply
    from covcal_cli.apply.writers import format_of
    from covcal_cli.errors import UnusedOptionError
    from covcal_cli.formats.calibration import read_calibration
    from covcal_cli.formats.lineage import file_to_judge
    from covcal_cli.maths.scaling import shown_temperatures

    console = Console(quiet=quiet, verbose=verbose)
    documents = calibration or [Path("cal.json")]
    if len(documents) > 1:
        raise typer.BadParameter("give one calibration", param_hint="--calibration")
    document = documents[0]
    to_stdout = str(output) == "-"
    if not to_stdout:
        format_of(output)
    read = read_calibration(document)
    if networks is not None and not read.scaling.reads_aligned:
        raise UnusedOptionError("--networks", f"{read.method_used} has no use for it")
    path, notes = file_to_judge(file, [read], documents, purpose="apply", picked=not calibration)
    if file is None:
        console.note(f"applying {document} to {path}")
    with console.progress() as progress:
        applied = apply(
            path,
            document,
            sys.stdout.buffer if to_stdout else output,
            ApplySettings(
                domain=domain.value,
                split=split.value,
                confidence_only=confidence_only,
                allow_other_preprocessing=allow_other_preprocessing,
            ),
            networks=networks,
            force=force,
            progress=progress,
        )
    for text in notes:
        console.note(text)
    if applied.networks is not None:
        console.note(f"aligned logits come from the networks in {applied.networks}")
    if to_stdout:
        return
    which = domain.value if split is RowsName.all else f"{domain.value} {split.value}"
    shown = shown_temperatures(applied.temperature, applied.aligned_temperature, 4)
    console.screen(
        f"{applied.method_used} (T = {shown}) on {applied.rows} {which} rows: "
        f"mean confidence {applied.mean_confidence:.2%}"
    )
    console.wrote(output)
