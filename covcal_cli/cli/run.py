"""``covcal run``: run every step in one command. Results that are still valid are kept."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covcal_cli.cli import extract_options
from covcal_cli.cli.calibrate import answer, details
from covcal_cli.cli.console import Console, is_given, usage
from covcal_cli.cli.options import (
    Device,
    DeviceName,
    ExpectedAccuracy,
    Method,
    MethodName,
    Quiet,
    Verbose,
    output,
)
from covcal_cli.cli.tables import aligned
from covcal_cli.errors import CovcalError, LimitExceededError, StoppedError, percent
from covcal_cli.files import as_word
from covcal_cli.progress import Progress, ProgressCallback

if TYPE_CHECKING:
    from covcal_cli.data.output_columns import OutputKind
    from covcal_cli.run.renewal import Comparison, Renewal
    from covcal_cli.run.run import RunReport, Step

_STEPS = 5
_FITTED = 300  # number of labels that `run --from` suggests for a fit
_NO_MODEL = (
    "No calibrated model was written, because the model would output wrong labels. "
    "covcal export --force writes the model anyway"
)


Earlier = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FOLDER",
        help="Start from the folder of an earlier run. With --from, give only the new target data "
        "as an argument.",
    ),
]


@extract_options.takes_extract_options("providers", "limit", "shard", "on_error")
def run(
    context: typer.Context,
    model: extract_options.Model = None,
    source: extract_options.Source = None,
    target: extract_options.Target = None,
    output: Annotated[Path, output("Folder for the results.")] = Path("covcal-run"),
    logits: extract_options.Logits = False,
    probabilities: extract_options.Probabilities = False,
    confidence: extract_options.Confidence = False,
    method: Method = MethodName.auto,
    adapt: Annotated[
        bool,
        typer.Option(
            "--adapt",
            help="Run covcal adapt even if the method does not need adapted features.",
        ),
    ] = False,
    device: Device = DeviceName.auto,
    earlier: Earlier = None,
    history: Annotated[
        Path | None,
        typer.Option(
            metavar="WATCH.JSONL",
            help="With --from: a history file of covcal watch. The new rows are added as a period.",
        ),
    ] = None,
    replace_unproved: Annotated[
        bool,
        typer.Option("--replace", help="With --from: use the new calibration even without labels."),
    ] = False,
    *,
    options: extract_options.ExtractOptions,
    expect_accuracy: ExpectedAccuracy = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            "-f",
            help="Make every result again, even if the folder holds the results of another "
            "project. With --from: use the new calibration even if the labels do not prove "
            "that it is better.",
        ),
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run all steps in one folder: extract, calibrate, evaluate, export and report.

    A step runs again only if its settings or inputs have changed. So the same command continues an
    interrupted run. Without target labels there is no metrics.json, and the report shows estimates.
    For tables of outputs, probs.csv holds the calibrated probabilities, since there is no model to
    export. With --multilabel, every result covers all labels.

    With --from, a new calibration is fitted to the new data and compared with the calibration in
    the folder. The new calibration is used if labels prove that it is better, and do not prove that
    its confidence is wrong. With --replace, the new calibration is used even without labels.

    \b
    Examples:
      covcal run model.onnx source/ target/
      covcal run model.onnx source/ target/ -o out/ --preprocess imagenet
      covcal run model.onnx source/ target/ --expect-accuracy 0.96
      covcal run nets:build source/ target/ --weights best.pth --method temp
      covcal run source.parquet target.parquet
      covcal run --from covcal-run new-target/ --history watch.jsonl
    """
    from covcal_cli.cli import multilabel
    from covcal_cli.run.renewal import renew
    from covcal_cli.run.run import RunSettings
    from covcal_cli.run.run import run as run_steps

    console = Console(quiet=quiet, verbose=verbose)
    if earlier is not None:
        _require_only(context, _RENEWING)
        if model is None or source is not None or target is not None:
            raise typer.BadParameter("give NEWTARGET alone with --from", param_hint="NEWTARGET")
        folder, request = earlier, _earlier(context, earlier, options)
    else:
        for name, has_value in (("history", history is not None), ("replace", replace_unproved)):
            if has_value:
                raise typer.BadParameter("needs --from", param_hint=f"--{name}")
        inputs = extract_options.Inputs.read(
            model, source, target, logits=logits, probabilities=probabilities, confidence=confidence
        )
        folder, request = output, _Request(inputs.model, method.value, options, inputs.outputs)
    with usage():
        settings = RunSettings(
            request.options.settings(request.outputs),
            method=request.method,
            adapt=adapt or request.adapt,
            device=device.value,
            expect_accuracy=expect_accuracy,
        )
    progress_lines = _ProgressLines(console, _STEPS + settings.adapts + (earlier is not None))
    renewal = None
    try:
        with console.progress() as show:
            progress = progress_lines.progress(show)
            if earlier is not None:
                renewal = renew(
                    request.model,
                    str(model),
                    folder,
                    settings,
                    tell=progress_lines.tell,
                    begin=progress_lines.begin,
                    history=history,
                    replace_unproved=replace_unproved,
                    force=force,
                    progress=progress,
                )
                report = renewal.report
            else:
                report = run_steps(
                    request.model,
                    inputs.source,
                    inputs.target,
                    folder,
                    settings,
                    tell=progress_lines.tell,
                    begin=progress_lines.begin,
                    force=force,
                    progress=progress,
                )
    except KeyboardInterrupt:
        has_results = folder.is_dir() and any(folder.iterdir())
        results_are_kept = (
            f"the results in {folder} are kept" if has_results else "nothing was written yet"
        )
        resumes = f"{results_are_kept}: run the same command to continue"
        raise StoppedError(resumes) from None
    except LimitExceededError:
        console.screen(aligned(progress_lines.facts))
        raise
    if verbose:
        console.screen(f"{aligned(progress_lines.facts)}\n")
    second_names: Sequence[Path] = ()
    if renewal is not None and renewal.comparison is not None:
        console.screen(_choice(renewal, renewal.comparison, folder))
        second_names = renewal.second_names
    else:
        summary = _summary if "" in report.calibrations else multilabel.run_summary
        console.screen(summary(report, verbose=verbose))
        if renewal is not None:
            console.note(f"{folder} already holds the results of these rows")
    written = [path for path in (report.model, report.page) if path in progress_lines.made]
    for path in (*second_names, *written):
        console.wrote(path)
    if renewal is None and not progress_lines.made:
        console.note(f"every result in {folder} is up to date")


@dataclass
class _ProgressLines:
    console: Console
    steps: int
    facts: dict[str, str] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)
    warnings: set[str] = field(default_factory=set)
    made: set[Path] = field(default_factory=set)  # paths of results that were made again
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def begin(self, step: str) -> None:
        self.begun.append(f"step {next(self.numbers)} of {self.steps}: {step}")
        # The line for extract is printed when the first row is read, so that invalid input prints
        # only the error.
        if step != "extract":
            self.print_begun()

    def print_begun(self) -> None:
        while self.begun:
            self.console.step(self.begun.pop())

    def tell(self, step: "Step") -> None:
        self.print_begun()
        if not step.reused:
            self.made.add(step.output)
        self.facts.update(step.messages.facts)
        self.console.note(*step.messages.notes)
        self.console.warn(text for text in step.messages.warnings if text not in self.warnings)
        self.warnings.update(step.messages.warnings)
        self.console.step(f"{step.output} {'is up to date' if step.reused else 'made'}")

    def progress(self, show: ProgressCallback) -> ProgressCallback:
        def progress(done: Progress) -> None:
            self.print_begun()
            show(done)

        return progress


@dataclass(frozen=True)
class _Request:
    model: str | None
    method: str
    options: extract_options.ExtractOptions
    outputs: "OutputKind | None"
    adapt: bool = False


# Options that a run does not record, because they do not change the rows.
_RENEWING = ("batch", "threads", "trust_model")


def _require_only(context: typer.Context, allowed: Sequence[str]) -> None:
    decided = {entry.name for entry in fields(extract_options.ExtractOptions)} - {*allowed}
    for name in sorted(decided | {"output", "logits", "probabilities", "confidence"}):
        if is_given(context, name):
            hint = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(
                "the earlier run set this option: leave it out", param_hint=hint
            )


def _earlier(context: typer.Context, folder: Path, new: extract_options.ExtractOptions) -> _Request:
    from covcal_cli.run.renewal import earlier_run

    earlier = earlier_run(folder)
    outputs: OutputKind | None = None
    words = list(earlier.options)
    for kind in ("logits", "probabilities", "confidence"):
        if f"--{kind}" in words:
            words.remove(f"--{kind}")
            outputs = kind
    try:
        options = extract_options.ExtractOptions.of(words)
    except ValueError as error:
        raise CovcalError(
            f"{earlier.features} was extracted with unknown options ({error}): run covcal run "
            f"MODEL SOURCE TARGET -o {as_word(earlier.features.parent)}"
        ) from error
    options = replace(options, **{name: getattr(new, name) for name in _RENEWING})
    method = context.params["method"] if is_given(context, "method") else earlier.method
    return _Request(earlier.model, str(method), options, outputs, earlier.is_adapted)


def _choice(renewal: "Renewal", comparison: "Comparison", folder: Path) -> str:
    labels = comparison.by_labels
    lines = [_decision(renewal, comparison)]
    if labels is None:
        accuracy = f"{percent(comparison.accuracy, 0)} estimated"
        accuracy += f" ({percent(comparison.low, 0)} to {percent(comparison.high, 0)})"
        lines.append(f"Accuracy    {accuracy} on the new rows")
    lines.append(
        f"Confidence  {percent(comparison.old, 0)} by the old calibration, "
        f"{percent(comparison.new, 0)} by the new"
    )
    lines.append(f"Old one     {comparison.answer}")
    lines.append(f"New rows    {comparison.change}")
    if renewal.report.model is None:
        lines.append(f"{_NO_MODEL}.")
    if renewal.is_reference_kept:
        lines.append(
            "covcal watch will compare later rows with the rows of the old calibration, because "
            "the new rows raised an alarm. If the new rows are normal, delete "
            f"{folder / 'cal.reference.json'}."
        )
    if not renewal.is_in_use:
        option = "--replace" if labels is None else "--force"
        use = "" if comparison.old == comparison.new else f"; add {option} to use these results"
        lines.append(
            f"{folder} did not change. The new results are in {renewal.report.page.parent}{use}."
        )
        if labels is not None and comparison.answer.startswith("off"):
            features = as_word(renewal.report.page.with_name("features.h5"))
            lines.append(
                "The labels show that the confidence is wrong. If the labels are right, fit a "
                f"calibration to some of these labels: covcal calibrate {features} --labels "
                f"{min(_FITTED, labels.labels // 2)} -o labelled.json"
            )
    return "\n".join(lines)


def _decision(renewal: "Renewal", comparison: "Comparison") -> str:
    labels = comparison.by_labels
    decision = "Put the new calibration in use" if renewal.is_in_use else "Kept the old calibration"
    if renewal.is_in_use and not (labels and labels.is_better and not labels.is_off):
        decision += ", as you asked"
    if labels is None:
        reason = "without labels of the new rows, only an estimate supports the new calibration"
        if comparison.old == comparison.new:
            reason = "the new calibration gives the same confidence as the old calibration"
        return f"{decision}: {reason}"
    new, old = f"{100 * labels.new:.1f}", f"{100 * labels.old:.1f} %"
    details = f"ECE {new} instead of {old} on {labels.labels} labels"
    reason = f"is better ({details})"
    if comparison.old == comparison.new:
        reason = f"gives the same confidence as the old one (ECE {old} on {labels.labels} labels)"
    elif labels.is_better and labels.is_off:
        reason += f", but on these labels the new confidence is {labels.gap.sentence}"
    elif labels.is_worse:
        reason = f"is worse ({details})"
    elif not labels.is_better:
        low, high = 100 * labels.low, 100 * labels.high
        details += f", difference between {low:+.1f} and {high:+.1f} points"
        reason = f"is not significantly better ({details})"
    return f"{decision}: the new calibration {reason}"


def _summary(report: "RunReport", *, verbose: bool) -> str:
    from covcal_cli.report.verdict import class_order_action, measured_action, unmeasured_action

    if report.evaluation is not None:
        metrics = report.evaluation.metrics
        before, after = metrics["none"], list(metrics.values())[-1]
        measured = (
            f"accuracy {percent(after.accuracy, 1)}, ECE {percent(before.ece, 1)} before and "
            f"{percent(after.ece, 1)} after, on {after.n} labelled target rows"
        )
        tone, verdict = class_order_action(report.calibration) or measured_action(
            report.evaluation, list(metrics)[-1]
        )
    else:
        measured = "no target test row has a label, so nothing was measured"
        tone, verdict = unmeasured_action(report.calibration)
    lines = [answer(report.calibration, verdict)]
    if verbose:
        lines += ["", details(report.calibration), ""]
    lines.append(f"Measured          {measured}")
    if report.model is None:
        following = f"read {report.page}. {_NO_MODEL}"
    elif tone == "good":
        following = f"use {report.model}; {report.page} shows the measurements"
    else:
        following = f"read {report.page} before you use {report.model}"
    lines.append(f"Next              {following}")
    return "\n".join(lines)
