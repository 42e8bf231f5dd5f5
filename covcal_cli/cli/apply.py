"""``covcal apply``: write the calibrated probabilities of every row."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covcal_cli.cli import options
from covcal_cli.cli.console import Console, file_of
from covcal_cli.cli.tables import aligned

if TYPE_CHECKING:
    from covcal_cli.apply.apply import ApplyReport

DomainName = StrEnum("DomainName", {"target": "target", "source": "source"})
_SHOWN = 6
RowsName = StrEnum("RowsName", ["all", "train", "validation", "test"])


def apply(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="A features or adapted file. Default: the file that the calibration was fitted "
            "on.",
            show_default=False,
        ),
    ] = None,
    calibration: Annotated[
        list[Path] | None, options.calibration("Calibration to apply; default: cal.json.")
    ] = None,
    output: Annotated[
        Path,
        options.output(
            "File to write: .csv, .parquet, .npz or .h5. With -o -, CSV is printed.", printed=True
        ),
    ] = Path("probs.csv"),
    domain: Annotated[
        DomainName, typer.Option(help="Domain of the rows to write.")
    ] = DomainName.target,
    split: Annotated[RowsName, typer.Option(help="Split of the rows.")] = RowsName.all,
    confidence_only: Annotated[
        bool, typer.Option("--confidence-only", help="Leave out the columns prob_NAME.")
    ] = False,
    decision: Annotated[
        Path | None,
        options.decision(
            "Add the columns decision (accept or review) and set (the set of classes)."
        ),
    ] = None,
    networks: options.NetworksOfFeatures = None,
    allow_other_preprocessing: options.AllowOtherPreprocessing = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Write the calibrated confidence and probabilities of every row.

    No true label is read. The columns are id, label, label_index, confidence, and prob_NAME for
    each class. The column label holds the predicted class. The column label_index holds the number
    of this class, or 0 for tables of confidences. The column confidence holds the calibrated
    probability of label. Each column prob_NAME holds the calibrated probability of class NAME. To
    add other columns of your table, join the tables by id, which is the column id or the row number
    from 0.

    \b
    Examples:
      covcal apply
      covcal apply features.h5 -c cal.json -o probs.parquet
      covcal apply new.h5 -c cal.json -o probs.csv --confidence-only
      covcal apply --decide decide.json
      covcal apply new.h5 --networks adapted.h5 -o - | head
    """
    import sys

    from covcal_cli.apply.apply import ApplySettings, apply
    from covcal_cli.apply.writers import format_of
    from covcal_cli.errors import in_percent
    from covcal_cli.maths.softmax import shown_temperatures

    console = Console(quiet=quiet, verbose=verbose)
    documents = calibration or [Path("cal.json")]
    if len(documents) > 1:
        raise typer.BadParameter("give only one calibration", param_hint="--calibration")
    document = documents[0]
    to_stdout = str(output) == "-"
    if not to_stdout:
        format_of(output)

    path, notes = file_of(
        documents, file, purpose="apply", is_named=bool(calibration), networks=networks
    )
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
            decision=decision,
            force=force,
            progress=progress,
        )
    console.note(*notes)
    if applied.networks is not None:
        console.note(f"the networks from covcal adapt are read from {applied.networks}")
    split_name = domain.value if split is RowsName.all else f"{domain.value} {split.value}"
    if not to_stdout and applied.labels:
        shares = [f"{label} in {100 * mean:.0f} %" for label, mean in applied.labels.items()]
        more = f" and {len(shares) - _SHOWN} more labels" if len(shares) > _SHOWN else ""
        facts = {
            "Rows": f"{applied.rows:,} {split_name} rows, with the probability of every label",
            "Expected": ", ".join(shares[:_SHOWN]) + more,
        }
        console.screen(aligned(facts))
    elif not to_stdout:
        temperature = shown_temperatures(applied.temperature, applied.aligned_temperature, 4)
        offset = f", offset {applied.offset:+.3f}" if applied.offset else ""
        mean = (
            f"{100 * applied.mean_confidence:.1f} % on average over {applied.rows:,} "
            f"{split_name} rows"
        )
        facts = {
            "Confidence": mean,
            "Calibration": f"{applied.method_used}, T = {temperature}{offset}",
        }
        if applied.accepted is not None:
            share = in_percent(applied.accepted / applied.rows)
            facts["Accept"] = f"{share} % of these rows, {applied.accepted:,} of {applied.rows:,}"
        console.screen(aligned(facts))
    if applied.label_is_not_top and not applied.labels:
        console.warn([_two_answers(applied, confidence_only)])
    if applied.ties and not applied.labels:
        console.warn([_ties(applied)])
    if not to_stdout:
        console.wrote(output)


def _two_answers(applied: "ApplyReport", confidence_only: bool) -> str:
    advice = "use the columns label and confidence instead of the largest prob_NAME"
    if confidence_only:
        advice = "use the column label"
    return (
        f"in {applied.label_is_not_top:,} of {applied.rows:,} rows, the predicted class is no "
        f"longer the most probable class: {advice}, and review these rows first"
    )


def _ties(applied: "ApplyReport") -> str:
    low, high = applied.tie_confidence
    found = f"{low:.9g}" if low == high else f"{low:.9g} to {high:.9g}"
    return (
        f"in {applied.ties:,} of {applied.rows:,} rows, all classes have the same output, "
        f"so the label is arbitrary: find these rows by their confidence of {found}"
    )
