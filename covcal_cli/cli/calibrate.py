"""``covcal calibrate``: fit the temperatures."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from covcal_cli.calibrate.methods import AUTO, AUTO_HELP, METHODS
from covcal_cli.cli.console import Console, file_to_read, usage
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
    from collections.abc import Callable, Sequence

    from covcal_cli.formats.calibration import Calibration, Candidate


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


_NAMED = {AUTO: AUTO_HELP} | {name: method.help for name, method in METHODS.items()}
calibrate.__doc__ = str(calibrate.__doc__).replace(
    "{methods}", "\n    ".join(f"  {name:<12}  {text}" for name, text in _NAMED.items())
)


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

    from covcal_cli.files import check_output
    from covcal_cli.formats.lineage import notes_on_named
    from covcal_cli.records import document_text, write_document

    path = file_to_read(file, console)
    to_stdout = str(output) == "-"
    if not to_stdout:
        check_output(output, force=force, inputs=[path])
    found = fit(path)
    for text in (*notes_on_named(file), *found.notes):
        console.note(text)
    console.warn(found.warnings)
    if to_stdout:
        console.result(document_text(found, Path("cal.json")))
        return
    write_document(found, output, force=force)
    console.result(calibration_summary(found, verbose=console.verbose))
    console.wrote(output, f"covcal evaluate {quote(str(path))} -c {quote(str(output))}")


def calibration_summary(calibration: "Calibration", *, verbose: bool) -> str:
    """Return what ``covcal calibrate`` found, in a few lines."""
    fit, estimates = calibration.fit, calibration.estimates
    temperature = calibration.forecaster_temperature
    whose = "target rows" if calibration.used_target_labels else "source validation rows"
    lines = [
        ("method", calibration.method_used),
        ("reason", calibration.reason),
        ("T_f", f"{temperature:.4f} {_meaning(calibration)}"),
        (
            "fit",
            f"{fit['rows']} {whose}, {fit['errors']} errors, "
            f"{calibration.loss} {fit['loss_before']:.5f} -> {fit['loss']:.5f}",
        ),
    ]
    if calibration.discriminator_temperatures:
        values = ", ".join(f"{value:.4g}" for value in calibration.discriminator_temperatures)
        lines.append(("T_g", f"{values} ({calibration.discriminator} discriminator)"))
    if calibration.weights is not None:
        lines += _weight_lines(calibration.weights)
    if calibration.bound is not None:
        lines.append(("bound", _bound_line(calibration.bound)))
    if estimates["target_confidence"] is not None:
        lines.append(
            (
                "target",
                f"mean confidence {estimates['target_confidence_before']:.2%} -> "
                f"{estimates['target_confidence']:.2%} on {estimates['rows']} validation rows",
            )
        )
    if verbose:
        lines += [
            (f"input ({entry.role})", f"{entry.path} sha256 {entry.sha256}")
            for entry in calibration.inputs
        ]
    width = max(len(name) for name, _ in lines)
    shown = [f"{name:<{width}}  {text}" for name, text in lines]
    if calibration.candidates:
        shown += ["", _candidates(calibration.candidates)]
    return "\n".join(shown)


def _candidates(candidates: "Sequence[Candidate]") -> str:
    """Return auto's candidates as a table that says which was chosen."""
    from covcal_cli.cli import tables
    from covcal_cli.report.tables import Table

    rows = [
        [
            candidate.method,
            f"{candidate.temperature:.4g}",
            *(
                "-" if value is None else f"{value:.2%}"
                for value in (
                    candidate.target_confidence,
                    candidate.estimated_accuracy,
                    candidate.expected_ece,
                )
            ),
            f"chosen: {candidate.why}" if candidate.chosen else candidate.why,
        ]
        for candidate in candidates
    ]
    columns = ("candidate", "T", "confidence", "est. accuracy", "expected ECE", "why")
    return tables.text(Table(columns, rows, texts=(0, 5)))


def _meaning(calibration: "Calibration") -> str:
    temperature = calibration.forecaster_temperature
    learnt = calibration.forecaster == "aligned"
    whose = "the logits that adapt learnt" if learnt else "the classifier's logits"
    if temperature == 1:
        return f"(leaves {whose} as they are)"
    return f"({'softens' if temperature > 1 else 'sharpens'} {whose})"


def _weight_lines(health: Any) -> list[tuple[str, str]]:
    return [
        (
            "weights",
            f"worth {health['ess']:.1f} of {health['n']} rows ({health['ess_share']:.1%}), "
            f"{health['ess_fit']:.1f} in the fit; mean {health['mean_weight']:.3f}, "
            f"{health['clipped_share']:.1%} at the limit, "
            f"largest share {health['largest_share']:.1%}",
        ),
        (
            "domains",
            f"AUC {health['domain_auc']:.3f} (0.5: alike), "
            f"squared error {health['discriminator_error']:.3f} (0.25: chance)",
        ),
    ]


def _bound_line(bound: Any) -> str:
    text = (
        f"weighted error {bound['weighted_error']:.4f} + {bound['factor']:.3g} x "
        f"discriminator error {bound['discriminator_error']:.4f} = {bound['bound']:.4g}"
    )
    return text + (" (1 or more: says nothing)" if bound["vacuous"] else "")
