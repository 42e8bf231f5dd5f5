"""``covcal calibrate``: fit the temperatures."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covcal_cli.calibrate.methods import AUTO, AUTO_HELP, METHODS
from covcal_cli.cli.console import Console, file_to_read, usage
from covcal_cli.cli.options import (
    ForceLimit,
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
    from collections.abc import Iterable

    from covcal_cli.calibrate.methods import Method as MethodEntry
    from covcal_cli.formats.calibration import Calibration


def calibrate(
    file: InputFile = None,
    output: Annotated[Path, output("Calibration to write; - prints it.", printed=True)] = Path(
        "cal.json"
    ),
    method: Method = MethodName.auto,
    loss: Loss = LossName.brier,
    max_weight: MaxWeight = 1000.0,
    target_prior: TargetPrior = "source",
    labels: Annotated[
        str,
        typer.Option(
            metavar="N|marked|none|auto",
            help="Target labels to fit to: N random rows with known labels, marked (rows you "
            "labelled with covcal label), or none. auto: marked rows if there are any "
            "and the method is auto.",
        ),
    ] = "auto",
    seed: Seed = 0,
    force: ForceLimit = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Fit a temperature so that the confidence fits the target.

    No target label is read, except those of rows you labelled (covcal label) or asked for with
    --labels. With labels, the fit also adds an offset to the confidence. covcal evaluate leaves the
    labelled rows out.

    \b
    Methods for most uses:
    {auto}
    {main}
      --labels 50   fit to labelled target rows: best if you have labels

    \b
    Research methods (calibrate/README.md has their formulas and results):
    {others}

    \b
    Examples:
      covcal calibrate features.h5 -o cal.json
      covcal calibrate adapted.h5 --method fl+iw+temp -o cal.json
      covcal calibrate adapted.h5 --target-prior uniform -o cal.json
      covcal calibrate features.h5 --labels 50 -o labelled.json
      covcal calibrate adapted.h5 -o - | jq .temperatures
    """
    from covcal_cli import api
    from covcal_cli.calibrate.problem import CalibrateSettings
    from covcal_cli.cli.calibration_screen import answer, details
    from covcal_cli.files import as_word, check_output
    from covcal_cli.formats.features import labels_in
    from covcal_cli.records import document_text, write_document

    count = _count(labels)
    with usage():
        settings = CalibrateSettings(
            labels=labels if count is None else count,
            method=method.value,
            loss=loss.value,
            max_weight=max_weight,
            target_prior=target_prior,
            seed=seed,
            allow_limit=force,
        )
    console = Console(quiet=quiet, verbose=verbose)
    path = file_to_read(file, console)
    to_stdout = str(output) == "-"
    if not to_stdout:
        check_output(output, force=force, inputs=[path, Path(target_prior)])
    content: Calibration | dict[str, Any]
    if labels_of_file := labels_in(path):
        from covcal_cli.cli import multilabel
        from covcal_cli.multilabel import for_each_label
        from covcal_cli.records import of_labels

        calibrations = for_each_label(labels_of_file, lambda: api.calibrate(path, settings))
        content = of_labels(calibrations, Path("cal.json") if to_stdout else output)
        screen = multilabel.calibrated(calibrations)
        warnings = multilabel.gathered({name: c.warnings for name, c in calibrations.items()})
        notes = multilabel.gathered({name: c.notes for name, c in calibrations.items()})
    else:
        content = calibration = api.calibrate(path, settings)
        screen = answer(calibration)
        screen = f"{screen}\n\n{details(calibration)}" if verbose else screen
        warnings, notes = list(calibration.warnings), list(calibration.notes)
        # An adapted file must have been made from another file.
        if calibration.networks_sha256 is not None:
            from covcal_cli.formats.lineage import notes_on_named

            notes = [*notes_on_named(file), *notes]
    hint = _next(path, output)  # this reads the file, so it must come before anything is written
    if to_stdout:
        console.result(document_text(content, Path("cal.json")))
    else:
        write_document(content, output, force=force)
        console.screen(screen)
    for text in notes:
        console.note(text)
    console.warn(warnings)
    if not to_stdout:
        about = f"covcal inspect {as_word(output)} shows all candidates and checks"
        console.wrote(output, hint, about=about)


def _next(path: Path, output: Path) -> str:
    """Return the next command: evaluate if the target has labels, else apply."""
    from covcal_cli.files import as_word
    from covcal_cli.formats.features import FeatureFile, labels_in
    from covcal_cli.multilabel import for_each_label

    def is_labelled() -> bool:
        with FeatureFile(path) as file:
            return file.target is not None and file.target.n_labelled > 0

    names = labels_in(path)
    labelled = any(for_each_label(names, is_labelled).values()) if names else is_labelled()
    return f"covcal {'evaluate' if labelled else 'apply'} {as_word(path)} -c {as_word(output)}"


def _count(labels: str) -> int | None:
    """Return the number of labels that --labels asks for; None if its value is a word."""
    from covcal_cli.calibrate.methods import LABELS

    if labels in LABELS:
        return None
    if not labels.isascii() or not labels.isdigit() or int(labels) < 1:
        raise typer.BadParameter(
            f"{labels!r} is neither a number of rows, at least 1, nor one of {', '.join(LABELS)}",
            param_hint="--labels",
        )
    return int(labels)


def _listed(methods: "Iterable[MethodEntry]") -> str:
    return "\n    ".join(f"  {method.name:<12}  {method.help}" for method in methods)


calibrate.__doc__ = (
    str(calibrate.__doc__)
    .replace("{auto}", f"  {AUTO:<12}  {AUTO_HELP}")
    .replace("{main}", _listed(method for method in METHODS.values() if method.main))
    .replace("{others}", _listed(method for method in METHODS.values() if not method.main))
)
