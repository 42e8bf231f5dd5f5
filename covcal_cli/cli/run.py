"""``covcal run``: every step in one go, each result kept and reused while nothing changed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covcal_cli.cli.console import Console, usage
from covcal_cli.cli.extract_options import (
    ExtractOptions,
    Inputs,
    Logits,
    Model,
    Probabilities,
    Source,
    Target,
    takes_extract_options,
)
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
from covcal_cli.errors import LimitExceededError, StoppedError
from covcal_cli.progress import Progress, ProgressCallback

if TYPE_CHECKING:
    from covcal_cli.data.outputs import OutputKind
    from covcal_cli.run.renewal import Renewal
    from covcal_cli.run.run import RunReport
    from covcal_cli.run.steps import Step

_STEPS = 6


Earlier = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FOLDER",
        help="Go on from an earlier run's folder with new target data, the only argument then.",
    ),
]


@takes_extract_options("providers", "limit", "shard", "on_error")
def run(
    context: typer.Context,
    model: Model = None,
    source: Source = None,
    target: Target = None,
    output: Annotated[Path, output("Folder for the results.")] = Path("covcal-run"),
    logits: Logits = False,
    probabilities: Probabilities = False,
    method: Method = MethodName.auto,
    device: Device = DeviceName.auto,
    earlier: Earlier = None,
    history: Annotated[
        Path | None,
        typer.Option(
            metavar="WATCH.JSONL",
            help="With --from: the history of covcal watch, to which this period is added.",
        ),
    ] = None,
    *,
    options: ExtractOptions,
    expect_accuracy: ExpectedAccuracy = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            "-f",
            help="Make every result anew, another project's too; with --from, use the new "
            "calibration whatever the comparison says.",
        ),
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Extract, adapt, calibrate, evaluate, export and report in one folder.

    A result is made again only when its settings or its inputs changed, so the
    same command goes on where it was cut off. Without target labels there is no
    metrics.json, and the report says what is expected. Of tables of outputs, which
    have no model to export, probs.csv has the calibrated probabilities.

    \b
    Examples:
      covcal run model.onnx source/ target/
      covcal run model.onnx source/ target/ -o out/ --preprocess imagenet
      covcal run model.onnx source/ target/ --expect-accuracy 0.96
      covcal run nets:build source/ target/ --weights best.pth --method temp
      covcal run --probabilities source.parquet target.parquet
      covcal run --from covcal-run new-target/ --history watch.jsonl
    """
    from covcal_cli.run.renewal import renew
    from covcal_cli.run.run import run as run_steps
    from covcal_cli.run.steps import RunSettings

    console = Console(quiet=quiet, verbose=verbose)
    telling = _Telling(console, _STEPS + (earlier is not None))
    if earlier is not None:
        _require_only(context, _RENEWING)
        if model is None or source is not None or target is not None:
            raise typer.BadParameter("give NEWTARGET alone with --from", param_hint="NEWTARGET")
        folder, found = earlier, _earlier(context, earlier, options)
    else:
        if history is not None:
            raise typer.BadParameter("needs --from", param_hint="--history")
        given = Inputs.read(model, source, target, logits=logits, probabilities=probabilities)
        folder, found = output, _Asked(given.model, method.value, options, given.outputs)
    with usage():
        settings = RunSettings(
            found.options.settings(found.outputs),
            method=found.method,
            device=device.value,
            expect_accuracy=expect_accuracy,
        )
    renewal = None
    try:
        with console.progress() as show:
            progress = telling.progress(show)
            if earlier is not None:
                renewal = renew(
                    found.model,
                    str(model),
                    folder,
                    settings,
                    tell=telling.tell,
                    begin=telling.begin,
                    history=history,
                    force=force,
                    progress=progress,
                )
                report = renewal.report
            else:
                report = run_steps(
                    found.model,
                    given.source,
                    given.target,
                    folder,
                    settings,
                    tell=telling.tell,
                    begin=telling.begin,
                    force=force,
                    progress=progress,
                )
    except KeyboardInterrupt:
        stays = f"what was made in {folder} stays; the same command goes on there"
        raise StoppedError(stays) from None
    except LimitExceededError:
        console.screen(aligned(telling.facts))
        raise
    parts = [aligned(telling.facts), _summary(report)]
    if renewal is not None:
        parts.append(_in_words(renewal, folder))
    console.screen("\n\n".join(parts))
    for path in (*(() if renewal is None else renewal.kept), report.model, report.page):
        console.wrote(path)


@dataclass
class _Telling:
    """What is said of steps while they are taken."""

    console: Console
    steps: int  # in all
    facts: dict[str, str] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def begin(self, step: str) -> None:
        self.begun.append(f"step {next(self.numbers)} of {self.steps}: {step}")
        if step != "extract":  # which tells with its first row: what cannot begin is an error alone
            self.say_begun()

    def say_begun(self) -> None:
        while self.begun:
            self.console.note(self.begun.pop())

    def tell(self, step: "Step") -> None:
        self.say_begun()
        self.facts.update(step.said.facts)
        for note in step.said.notes:
            self.console.note(note)
        self.console.warn(step.said.warnings)
        self.console.note(f"{step.output} {'stands as it was' if step.reused else 'made'}")

    def progress(self, show: ProgressCallback) -> ProgressCallback:
        def progress(done: Progress) -> None:
            self.say_begun()
            show(done)

        return progress


@dataclass(frozen=True)
class _Asked:
    """What to run, and how."""

    model: str | None
    method: str
    options: ExtractOptions
    outputs: "OutputKind | None"


# What changes no row, and is not kept by an earlier run.
_RENEWING = ("batch", "threads", "trust_model")


def _require_only(context: typer.Context, allowed: Sequence[str]) -> None:
    """Refuse options of the extraction, which an earlier run has decided."""
    decided = {entry.name for entry in fields(ExtractOptions)} - {*allowed}
    for name in sorted(decided | {"output", "logits", "probabilities"}):
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            hint = f"--{name.replace('_', '-')}"
            raise typer.BadParameter("with --from it is as in the earlier run", param_hint=hint)


def _earlier(context: typer.Context, folder: Path, given: ExtractOptions) -> _Asked:
    """Return what an earlier run was asked, with what may be given anew."""
    from covcal_cli.errors import CovcalError
    from covcal_cli.run.renewal import earlier_run

    found = earlier_run(folder)
    outputs: OutputKind | None = None
    words = list(found.options)
    for kind in ("logits", "probabilities"):
        if f"--{kind}" in words:
            words.remove(f"--{kind}")
            outputs = kind
    try:
        options = ExtractOptions.of(words)
    except ValueError as error:
        raise CovcalError(
            f"{found.features} was extracted with options that are none ({error}): run covcal run "
            "MODEL SOURCE TARGET with its -o"
        ) from error
    options = replace(options, **{name: getattr(given, name) for name in _RENEWING})
    asked = context.get_parameter_source("method")
    is_asked = asked is not None and asked.name != "DEFAULT"
    method = context.params["method"] if is_asked else found.method
    return _Asked(found.model, str(method), options, outputs)


def _in_words(renewal: "Renewal", folder: Path) -> str:
    """Return how the two calibrations compare, and what became of them."""
    from covcal_cli.cli import tables
    from covcal_cli.report.tables import Table

    seen = renewal.comparison
    if seen is None:
        return f"{folder} is of these rows already"
    rows = [
        [name, f"{confidence:.1%}", f"{100 * (confidence - seen.accuracy):+.1f}"]
        for name, confidence in (("in use", seen.in_use), ("new", seen.new))
    ]
    table = tables.text(Table(("calibration", "mean confidence", "gap"), rows))
    nearer = "new one" if seen.is_nearer else "one in use"
    lines = [
        table,
        "",
        f"The accuracy on the new rows is estimated as {seen.accuracy:.1%} ({seen.low:.1%} to "
        f"{seen.high:.1%}), and the {nearer} is nearer.",
        f"Of the one in use covcal watch says: {seen.verdict}; {seen.why}.",
    ]
    if renewal.is_in_use:
        forced = "" if seen.replaces else ", as --force asks"
        lines.append(f"The new one is in use{forced}; what it replaced is kept.")
    else:
        lines.append(
            f"{folder} stays as it was. The new one lies in {renewal.report.page.parent}; the same "
            "command with --force puts it in place."
        )
    return "\n".join(lines)


def _summary(report: "RunReport") -> str:
    """Return what was fitted, and what was measured where there are labels."""
    from covcal_cli.cli.calibrate import calibration_summary

    fitted = calibration_summary(report.calibration, verbose=False)
    if report.evaluation is None:
        return fitted
    from covcal_cli.cli.evaluate import rendered_evaluation
    from covcal_cli.evaluate.gates import Assessment

    return f"{fitted}\n\n{rendered_evaluation(Assessment(report.evaluation), 'table')}"
