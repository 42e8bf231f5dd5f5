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
    from collections.abc import Callable, Sequence

    from covcal_cli.formats.calibration import Calibration, Candidate


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
            help="Target labels to fit to: N random ones, those that covcal label marked, or none; "
            "auto: marked ones if there are any and the method is auto.",
        ),
    ] = "auto",
    seed: Seed = 0,
    force: ForceLimit = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Fit a temperature; reads no target label but marked ones.

    With labels it also fits an offset of the confidence, and evaluate leaves their rows out.

    \b
    Methods:
    {methods}

    \b
    Examples:
      covcal calibrate features.h5 -o cal.json
      covcal calibrate adapted.h5 --method fl+iw+temp -o cal.json
      covcal calibrate adapted.h5 --target-prior uniform -o cal.json
      covcal calibrate features.h5 --labels 50 -o labelled.json
      covcal calibrate adapted.h5 -o - | jq .temperatures
    """
    from covcal_cli.calibrate.calibrate import calibrate as fit
    from covcal_cli.calibrate.settings import CalibrateSettings
    from covcal_cli.errors import CovcalError
    from covcal_cli.labels.target_labels import random_labels

    count = _count(labels)
    with usage():
        settings = CalibrateSettings(
            labels=labels if count is None else "none",
            method=method.value,
            loss=loss.value,
            max_weight=max_weight,
            target_prior=target_prior,
            seed=seed,
            allow_limit=force,
        )
        if count is not None and (method != MethodName.auto or target_prior != "source"):
            raise CovcalError("--labels goes with method auto, and without --target-prior")
    console = Console(quiet=quiet, verbose=verbose)
    read = [Path(target_prior)]  # where it is a file

    def fitted(path: Path) -> "Calibration":
        drawn = None if count is None else random_labels(path, count, seed)
        return fit(path, settings, drawn)

    write_fitted(fitted, file, output, console, read, force=force)


def _count(labels: str) -> int | None:
    """Return how many labels are asked for by number; None where they are asked for by word."""
    from covcal_cli.calibrate.methods import LABELS

    if labels in LABELS:
        return None
    if not labels.isascii() or not labels.isdigit() or int(labels) < 1:
        raise typer.BadParameter(
            f"{labels!r} is neither a number of rows, at least 1, nor one of {', '.join(LABELS)}",
            param_hint="--labels",
        )
    return int(labels)


_SHOWN_OFFSETS = 5
_NAMED = {AUTO: AUTO_HELP} | {name: method.help for name, method in METHODS.items()}
calibrate.__doc__ = str(calibrate.__doc__).replace(
    "{methods}", "\n    ".join(f"  {name:<12}  {text}" for name, text in _NAMED.items())
)


def write_fitted(
    fit: "Callable[[Path], Calibration]",
    file: Path | None,
    output: Path,
    console: Console,
    inputs: "Sequence[Path]" = (),
    *,
    force: bool,
) -> None:
    """Fit a calibration on a file, write or print it, and show what was found.

    `inputs` are other files that it reads.
    """
    from covcal_cli.files import as_word, check_output
    from covcal_cli.formats.features import FeatureFile
    from covcal_cli.formats.lineage import notes_on_named
    from covcal_cli.records import document_text, write_document

    path = file_to_read(file, console)
    to_stdout = str(output) == "-"
    if not to_stdout:
        check_output(output, force=force, inputs=[path, *inputs])
    found = fit(path)
    for text in (*notes_on_named(file), *found.notes):
        console.note(text)
    console.warn(found.warnings)
    if to_stdout:
        console.result(document_text(found, Path("cal.json")))
        return
    write_document(found, output, force=force)
    console.screen(calibration_summary(found, verbose=console.verbose))
    with FeatureFile(path) as opened:
        labelled = opened.target is not None and opened.target.n_labelled > 0
    following = "evaluate" if labelled else "apply"
    console.wrote(output, f"covcal {following} {as_word(path)} -c {as_word(output)}")


def calibration_summary(calibration: "Calibration", *, verbose: bool) -> str:
    """Return what ``covcal calibrate`` found, in a few lines."""
    fit, estimates = calibration.fit, calibration.estimates
    whose = "target rows" if calibration.used_target_labels else "source validation rows"
    lines = [
        ("method", calibration.method_used),
        ("reason", calibration.reason),
        *_temperature_lines(calibration),
        (
            "fit",
            f"{fit['rows']} {whose}, {fit['errors']} errors, "
            f"{calibration.loss} {fit['loss_before']:.5f} -> {fit['loss']:.5f}",
        ),
    ]
    if calibration.class_offsets:
        lines.insert(3, ("prior", _offsets_line(calibration)))
    if calibration.labelled_rows is not None:
        lines.insert(3, ("offset", f"{calibration.confidence_offset:+.3f} on its log odds"))
        lines += _label_lines(calibration.estimates["labelled"])
    if calibration.source_accuracy is not None:
        lines.append(("source", f"the classifier gets {calibration.source_accuracy} right"))
    if calibration.discriminator_temperatures:
        values = ", ".join(f"{value:.4g}" for value in calibration.discriminator_temperatures)
        lines.append(("T_g", f"{values} ({calibration.discriminator} discriminator)"))
    if calibration.weights is not None:
        lines += _weight_lines(calibration.weights)
    if calibration.bound is not None:
        minimised = "which T_f minimises" if calibration.loss == "brier" else "at T_f"
        error = calibration.bound["weighted_error"]
        lines.append(
            ("Theorem 1", f"weighted error {error:.4f}, {minimised}, in half Brier scores")
        )
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
    from covcal_cli.maths.scaling import shown_temperatures
    from covcal_cli.report.tables import Table

    rows = [
        [
            candidate.method,
            shown_temperatures(candidate.temperature, candidate.aligned_temperature, 4),
            _percent(candidate.target_confidence),
            _percent(candidate.estimated_accuracy),
            "matched" if candidate.matched else _percent(candidate.expected_ece),
            f"chosen: {candidate.why}" if candidate.chosen else candidate.why,
        ]
        for candidate in candidates
    ]
    columns = ("candidate", "T", "confidence", "est. accuracy", "gap to estimate", "why")
    return tables.text(Table(columns, rows, texts=(0, 5)))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _offsets_line(calibration: "Calibration") -> str:
    """Return the class offsets, of many classes the largest."""
    named = zip(calibration.classes, calibration.class_offsets, strict=True)
    most = sorted(named, key=lambda entry: -abs(entry[1]))
    shown = ", ".join(f"{name} {value:+.2f}" for name, value in most[:_SHOWN_OFFSETS])
    return f"log odds moved by {shown}{', ...' if len(most) > _SHOWN_OFFSETS else ''}"


def _label_lines(found: Any) -> list[tuple[str, str]]:
    """Return what the labels say, on the rows that they were drawn from."""
    low, high, without = (found[f"accuracy_{name}"] for name in ("low", "high", "without_labels"))
    beside = "" if without is None else f", the estimate without them {without:.1%}"
    error = f"{found['ece']:.1%} ({found['ece_low']:.1%} to {found['ece_high']:.1%})"
    return [
        (
            "accuracy",
            f"{found['accuracy']:.1%} ({low:.1%} to {high:.1%}): the labels alone say "
            f"{found['accuracy_by_labels']:.1%}{beside}",
        ),
        ("ECE", f"{error} by labels, each judged by a fit without it"),
    ]


def _temperature_lines(calibration: "Calibration") -> list[tuple[str, str]]:
    """Return a line for T_f, and of a blend one for T_a."""
    whose = {"original": "the classifier's logits", "aligned": "the logits that adapt learnt"}
    temperatures = calibration.scaling.temperatures
    share = ", half of the blend" if len(temperatures) > 1 else ""
    lines = []
    for name, (one, temperature) in zip(("T_f", "T_a"), temperatures.items(), strict=False):
        meaning = f"{'softens' if temperature > 1 else 'sharpens'} {whose[one]}"
        if temperature == 1:
            meaning = f"leaves {whose[one]} as they are"
        lines.append((name, f"{temperature:.4f} ({meaning}{share})"))
    return lines


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
