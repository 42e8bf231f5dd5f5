"""``covcal calibrate``: fit a temperature, by default without target labels."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covcal_cli.calibrate.methods import AUTO, AUTO_HELP, LABELS, METHODS, checks_of
from covcal_cli.cli import options, tables
from covcal_cli.cli.console import Console, checks, file_to_read, to_pick, usage
from covcal_cli.errors import in_percent, in_points, interval, percent, printable
from covcal_cli.files import as_word, check_output

if TYPE_CHECKING:
    from covcal_cli.calibrate.methods import Method as MethodEntry
    from covcal_cli.formats.calibration import Calibration
    from covcal_cli.records import Guard

_NAMES = 18  # Width of the column of names.
_SHOWN_OFFSETS = 5
_CLOSE = 0.01  # Below this difference, confidence and accuracy agree.


def calibrate(
    file: options.InputFile = None,
    output: Annotated[
        Path,
        options.output("File for the calibration. With -o -, JSON is printed.", printed=True),
    ] = Path("cal.json"),
    method: options.Method = options.MethodName.auto,
    loss: options.Loss = options.LossName.brier,
    max_weight: options.MaxWeight = 1000.0,
    target_prior: options.TargetPrior = "source",
    labels: Annotated[
        str,
        typer.Option(
            metavar="N|marked|none|auto",
            help="Target labels to use. N: the labels of N random rows; marked: labels from covcal "
            "label; none: no labels; auto: the same as marked if the method is auto and "
            "the file has labels from covcal label, else none.",
        ),
    ] = "auto",
    seed: options.Seed = 0,
    force: options.ForceLimit = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Fit a temperature, so that the confidence on the target is as high as the accuracy.

    Target labels are read only if you added them with covcal label, or pass --labels N. With
    labels, the fit also adds an offset to the log odds of the confidence. Rows whose labels were
    used are left out by covcal evaluate. If you have labels, --labels 50 gives the best result.

    \b
    Methods for most uses:
    {auto}
    {main}

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
    from covcal_cli.calibrate.calibrate import calibrate as fit_file
    from covcal_cli.calibrate.problem import CalibrateSettings
    from covcal_cli.formats.calibration import Calibration
    from covcal_cli.formats.features import labels_in
    from covcal_cli.formats.lineage import notes_on_named
    from covcal_cli.multilabel import for_each_label, gathered
    from covcal_cli.records import document_text, of_labels, write_document

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

    def fit() -> "Calibration":
        # Only the module `api` may read known target labels.
        return fit_file(path, settings) if count is None else api.fit_file(path, settings)

    written = Path("cal.json") if to_stdout else output
    content: Calibration | dict[str, Any]
    if labels_of_file := labels_in(path):
        from covcal_cli.cli import multilabel

        calibrations = for_each_label(labels_of_file, fit)
        content, screen = of_labels(calibrations, written), multilabel.calibrated(calibrations)
        warnings = gathered({name: c.warnings for name, c in calibrations.items()})
        notes = gathered({name: c.notes for name, c in calibrations.items()})
    else:
        content = calibration = fit()
        calibrations = {"": calibration}
        screen = "" if to_stdout else answer(calibration)
        screen = f"{screen}\n\n{details(calibration, every_check=True)}" if verbose else screen
        warnings, notes = list(calibration.warnings), list(calibration.notes)
        if calibration.source_accuracy is not None and calibration.source_accuracy.imbalance:
            notes.append(calibration.source_accuracy.imbalance)
        if calibration.networks_sha256 is not None:
            notes = [*notes_on_named(file), *notes]
    hint: str | None = following(path, output)
    accuracies = [calibration.source_accuracy for calibration in calibrations.values()]
    if any(a is not None and a.class_order is not None for a in accuracies):
        hint = None  # The verdict already says that the next step is extract.
    elif hint is not None and hint.startswith("covcal apply"):
        before = (_before_apply(calibration, path) for calibration in calibrations.values())
        hint = next(filter(None, before), hint)
    if to_stdout:
        console.result(document_text(content, written))
    else:
        write_document(content, output, force=force)
        console.screen(screen)
    console.note(*notes)
    console.warn(warnings)
    if not to_stdout:
        about = f"covcal inspect {as_word(output)} shows all candidates and checks"
        console.wrote(output, hint, about=about)


def following(path: Path, output: Path) -> str:
    """Return the next command: evaluate if the target has labels, else apply."""
    from covcal_cli.formats.features import FeatureFile, labels_in
    from covcal_cli.multilabel import for_each_label

    def is_labelled() -> bool:
        with FeatureFile(path) as file:
            return file.target is not None and file.target.n_labelled > 0

    names = labels_in(path)
    labelled = any(for_each_label(names, is_labelled).values()) if names else is_labelled()
    return f"covcal {'evaluate' if labelled else 'apply'} {as_word(path)} -c {as_word(output)}"


def _before_apply(calibration: "Calibration", path: Path) -> str:
    """Return a command to run before apply, if the verdict asks for labels, else ""."""
    from covcal_cli.formats.calibration import CONTRADICTED
    from covcal_cli.report.verdict import asks_for_labels, unmeasured_action

    again = f"covcal calibrate {as_word(path)} --labels marked -o labelled.json"
    if any(warning.startswith(CONTRADICTED) for warning in calibration.warnings):
        if any(again in note for note in calibration.notes):
            return again
        return f"{to_pick(path)}  # draws rows to label"
    is_chosen = calibration.method == AUTO or calibration.labelled_rows is not None
    if not is_chosen or not asks_for_labels(unmeasured_action(calibration)[1]):
        return ""
    return f"{to_pick(path)}  # draws rows to label"


def _count(labels: str) -> int | None:
    if labels in LABELS:
        return None
    if not labels.isascii() or not labels.isdigit() or int(labels) < 1:
        raise typer.BadParameter(
            f"{labels!r} must be a number of rows (at least 1), or one of {', '.join(LABELS)}",
            param_hint="--labels",
        )
    return int(labels)


def answer(calibration: "Calibration", verdict: str | None = None) -> str:
    """Return what the command prints first: verdict, accuracy, confidence, temperature and checks.

    `verdict` is a sentence, by default the verdict without target labels.
    """
    from covcal_cli.report.verdict import unmeasured_action

    facts = {
        "Verdict": unmeasured_action(calibration)[1] if verdict is None else verdict,
        "Target accuracy": _accuracy(calibration),
        "Confidence": _confidence(calibration),
        "Temperature": _temperature(calibration),
        "Reason": calibration.reason if calibration.method_used != calibration.method else "",
        "Checks": checks(checks_of(calibration)[0], calibration.warnings),
    }
    lines = (f"{name:<{_NAMES}}{text}" for name, text in facts.items() if text)
    return "\n".join(map(printable, lines))


def details(calibration: "Calibration", *, every_check: bool = False) -> str:
    """Return what --verbose prints: the fit, the importance weights, the candidates and the checks.

    With `every_check`, importance weights are checked even if the method does not use them.
    """
    from covcal_cli.report.tables import candidates_table

    facts = {"Fit": _fit(calibration)}
    if calibration.class_offsets:
        facts["Class offsets"] = _offsets(calibration)
    if calibration.labelled_rows is not None:
        by_labels = calibration.estimates["labelled"]
        ends = interval(by_labels["ece_low"], by_labels["ece_high"])
        facts["ECE"] = (
            f"{100 * by_labels['ece']:.1f} % ({ends}), measured on labelled rows that the fit "
            "did not use"
        )
    if calibration.discriminator_temperatures:
        values = ", ".join(f"{value:.4g}" for value in calibration.discriminator_temperatures)
        many = " (one per ensemble member)" if "," in values else ""
        facts["Domain classifier"] = f"{calibration.discriminator}, temperature {values}{many}"
    if calibration.weights is not None:
        facts |= _weights(calibration.weights)
    if calibration.bound is not None:
        at_temperature = "at the best T" if calibration.loss == "brier" else "at this T"
        error = calibration.bound["weighted_error"]
        facts["Theorem 1"] = (
            f"the weighted error (half of a Brier score) is {error:.4f} {at_temperature}"
        )
    parts = [tables.aligned(facts)]
    if calibration.candidates:
        parts.append(tables.text(candidates_table(calibration)))
    used, unused = checks_of(calibration)
    if used:
        parts.append(_listed("Checks:", used))
    if unused and every_check:
        heading = f"Checks of the importance weights ({calibration.method_used} does not use them):"
        parts.append(_listed(heading, unused))
    return "\n\n".join(parts)


def _listed(heading: str, guards: Sequence["Guard"]) -> str:
    lines = (f"{'passed' if guard.passed else 'failed'}  {guard.sentence}" for guard in guards)
    return "\n".join([heading, *map(printable, lines)])


def _accuracy(calibration: "Calibration") -> str:
    estimates, source = _estimates(calibration), calibration.source_accuracy
    how = "estimated"
    if calibration.labelled_rows is not None:
        how = f"by {calibration.labelled_rows.n} labels"
        if estimates.get("accuracy_without_labels") is not None:
            how = f"{how} and the estimate"
    text = "not estimated (run covcal estimate)"
    if "accuracy" in estimates:
        ends = interval(
            estimates["accuracy_low"], estimates["accuracy_high"], estimates["accuracy"]
        )
        accuracy = in_percent(estimates["accuracy"])
        text = f"{accuracy} % {how} ({ends})"
    elif calibration.candidates:
        text = "not estimated"
    return text if source is None else f"{text}; {in_percent(source.share)} % on the source"


def _estimates(calibration: "Calibration") -> Mapping[str, Any]:
    by_labels: Mapping[str, Any] | None = calibration.estimates.get("labelled")
    return calibration.estimates if by_labels is None else by_labels


def _points_between(first: float, second: float) -> str:
    return in_points(f"{abs(float(in_percent(first)) - float(in_percent(second))):.0f}")


def _confidence(calibration: "Calibration") -> str:
    before, after = calibration.target_confidence
    if before is None or after is None:
        return ""
    text = f"{in_percent(before)} % before, {in_percent(after)} % after calibration"
    estimates = _estimates(calibration)
    accuracy = estimates.get("accuracy")
    if accuracy is None:
        return text
    gap, low, high = before - accuracy, estimates["accuracy_low"], estimates["accuracy_high"]
    if abs(gap) < _CLOSE:
        return f"{text}: the confidence agrees with the accuracy of {interval(low, high)}"
    is_sure = calibration.labelled_rows is not None and not low <= before <= high
    sure = "" if is_sure else "probably "
    points = _points_between(before, accuracy)
    text += f": it was {sure}too {'high' if gap > 0 else 'low'} by about {points}"
    rest = after - accuracy
    if abs(rest) > max(_CLOSE, abs(gap) / 2):
        still = "still " if rest * gap > 0 else ""
        side, points = "high" if rest > 0 else "low", _points_between(after, accuracy)
        text += f". After calibration, the confidence is {sure}{still}too {side} by about {points}"
    return text


def _temperature(calibration: "Calibration") -> str:
    values = [f"{value:.3g}" for value in calibration.scaling.temperatures.values()]
    text = " and ".join(values)
    if calibration.labelled_rows is not None:
        return (
            f"{text}, with the offset {calibration.confidence_offset:+.2f}. Both were fitted to "
            f"{calibration.labelled_rows.n} labels"
        )
    offsets = " with class offsets" if calibration.class_offsets else ""
    chosen = "" if calibration.method == calibration.method_used else " (chosen by auto)"
    return f"{text}{offsets}, method {calibration.method_used}{chosen}"


def _fit(calibration: "Calibration") -> str:
    fit = calibration.fit
    labels = calibration.used_target_labels
    rows = "target rows" if labels else "source validation rows"
    rises = fit["loss"] > fit["loss_before"] and not labels
    why = " (the loss rises because T is not fitted to the source)" if rises else ""
    before, after = (f"{fit[name]:.5f}" for name in ("loss_before", "loss"))
    loss = f"{calibration.loss} loss {before} before and {after} after the fit{why}"
    return f"{fit['rows']} {rows}, {fit['errors']} errors; {loss}"


def _offsets(calibration: "Calibration") -> str:
    pairs = zip(calibration.classes, calibration.class_offsets, strict=True)
    largest = sorted(pairs, key=lambda pair: -abs(pair[1]))
    text = ", ".join(f"{name} {value:+.2f}" for name, value in largest[:_SHOWN_OFFSETS])
    return f"added to log odds: {text}{', ...' if len(largest) > _SHOWN_OFFSETS else ''}"


def _weights(health: Mapping[str, Any]) -> dict[str, str]:
    ess, in_fit, n = health["ess"], health["ess_fit"], health["n"]
    mean, largest, cut = health["mean_weight"], health["largest_share"], health["clipped_share"]
    auc, error = health["domain_auc"], health["discriminator_error"]
    return {
        "Weights": f"the {n} rows have an effective sample size of {ess:.1f}; with the weights of "
        f"the fit, {in_fit:.1f}",
        "Weight sizes": f"mean {mean:.3f}; the largest weight is {percent(largest, 1)} of the "
        f"total; {percent(cut, 1)} of the weights were cut at the limit",
        "Domains": (
            f"a classifier separates source from target with AUC {auc:.3f} (0.5 = chance) and "
            f"squared error {error:.3f} (0.25 = chance)"
        ),
    }


def _listed_methods(methods: Iterable["MethodEntry"]) -> str:
    return "\n    ".join(f"  {method.name:<12}  {method.help}" for method in methods)


calibrate.__doc__ = (
    str(calibrate.__doc__)
    .replace("{auto}", f"  {AUTO:<12}  {AUTO_HELP}")
    .replace("{main}", _listed_methods(method for method in METHODS.values() if method.main))
    .replace("{others}", _listed_methods(method for method in METHODS.values() if not method.main))
)
