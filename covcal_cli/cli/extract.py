"""``covcal extract``: run a classifier on source and target, and write features and logits."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covcal_cli.cli import extract_options
from covcal_cli.cli.console import Console, to_calibrate
from covcal_cli.cli.options import ExpectedAccuracy, Force, Quiet, Verbose, output
from covcal_cli.cli.tables import aligned
from covcal_cli.errors import LimitExceededError, StoppedError
from covcal_cli.files import as_word

if TYPE_CHECKING:
    from covcal_cli.extract.domain import DomainReport
    from covcal_cli.extract.extract import DryRun, ExtractReport

_SHOWN_FILES = 3
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


@extract_options.takes_extract_options()
def extract(
    model: extract_options.Model = None,
    source: extract_options.Source = None,
    target: extract_options.Target = None,
    target_only: Annotated[
        Path | None, typer.Option("--target", help="The new data. Use --target without SOURCE.")
    ] = None,
    output: Annotated[Path, output("Features file to write.")] = Path("features.h5"),
    logits: extract_options.Logits = False,
    probabilities: extract_options.Probabilities = False,
    confidence: extract_options.Confidence = False,
    *,
    options: extract_options.ExtractOptions,
    expect_accuracy: ExpectedAccuracy = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a run that was killed or interrupted.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Run only a few batches, show what extract would do, write no file."
        ),
    ] = False,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run a classifier on source and target, and write its features and logits, and the labels.

    \b
    Examples:
      covcal extract model.onnx source/ target/
      covcal extract model.onnx source.npz target.npz -o features.h5
      covcal extract model.onnx --target new/ -o new.h5
      covcal extract model.onnx source/ target/ --preprocess imagenet
      covcal extract model.onnx source/ target/ --size 224 --mean 0.5 --std 0.5
      covcal extract nets:build source/ target/ --weights best.pth
      covcal extract source.parquet target.parquet
      covcal extract old.jsonl new.jsonl --choices A B C D
      covcal extract model.onnx source/ target/ --sample 50000 --dry-run
      covcal extract model.onnx source/ target/ --shard 1/10 -o shard-1.h5
    """
    typed = extract_options.Inputs.read(
        model,
        source,
        target,
        target_only,
        logits=logits,
        probabilities=probabilities,
        confidence=confidence,
    )
    settings = options.settings(typed.outputs)
    console = Console(quiet=quiet, verbose=verbose)
    tables_alone = typed.model is None and typed.source is None and target_only is None
    if expect_accuracy is not None and (dry_run or (typed.source is None and not tables_alone)):
        why = (
            "--dry-run does not measure the accuracy: leave out --dry-run or --expect-accuracy"
            if dry_run
            else "the accuracy is measured on the source: give SOURCE too"
        )
        raise typer.BadParameter(why, param_hint="--expect-accuracy")
    alone = typed.target if tables_alone else None
    inputs = (typed.model, typed.source, typed.target)
    if dry_run:
        from covcal_cli.extract.extract import dry_run as run_some_batches

        planned = run_some_batches(*inputs, output, settings, force=force)
        console.screen(_dry_run_summary(planned))
        console.detail(f"last layer: {planned.head}")
        for domain in planned.domains:
            console.detail(f"{domain.name} splits: {domain.splits}")
        console.detail(f"batch: {planned.batch} rows; threads: {planned.threads}")
        console.warn(planned.warnings)
        console.note(*planned.notes)
        _note_on_one_table(alone, [domain.name for domain in planned.domains], console)
        return

    from covcal_cli.extract.extract import extract
    from covcal_cli.extract.parts import was_stopped
    from covcal_cli.forecast import require_accuracy

    try:
        with console.progress() as progress:
            report = extract(
                *inputs, output, settings, force=force, resume=resume, progress=progress
            )
    except KeyboardInterrupt:
        if was_stopped(output):
            raise StoppedError(
                f"the finished rows are kept beside {output}: pass --resume to continue"
            ) from None
        raise
    _show(report, console)
    _note_on_one_table(alone, [domain.name for domain in report.domains], console)
    if expect_accuracy is not None:
        try:
            require_accuracy(report.source_accuracy, expect_accuracy, output)
        except LimitExceededError:
            console.wrote(output)
            raise
    console.wrote(output, _following(report, options.shard))


def _show(report: "ExtractReport", console: Console) -> None:
    console.screen(aligned(report.facts))
    for name, text in report.details.items():
        console.detail(f"{name}: {text}")
    console.warn(filter(None, map(_skipped, report.domains)))
    console.warn(report.warnings)
    console.note(*report.notes)


def _skipped(domain: "DomainReport") -> str | None:
    if not domain.skipped:
        return None
    named = "; ".join(f"{name} ({reason})" for name, reason in domain.skipped[:_SHOWN_FILES])
    more = len(domain.skipped) - _SHOWN_FILES
    rest = f"; and {more} more, listed in the group {domain.name}/skipped" if more > 0 else ""
    files = "1 file was" if len(domain.skipped) == 1 else f"{len(domain.skipped)} files were"
    return f"{files} skipped in {domain.path}: {named}{rest}"


def _following(report: "ExtractReport", shard: str | None) -> str | None:
    accuracy = report.source_accuracy
    if accuracy is not None and accuracy.class_order is not None:
        return None  # The warning already says that the data must be extracted again.
    quoted = as_word(report.output)
    if shard is not None:
        return f"covcal merge {quoted} ... (all {shard.partition('/')[2]} shards)"
    if len(report.domains) == 1 and report.domains[0].labelled:
        return f"covcal evaluate {quoted} -c cal.json"
    if not any(report.domains[-1].rows.values()):
        return f"covcal watch {quoted} -c cal.json"
    if len(report.domains) == 1:
        return f"covcal apply {quoted} -c cal.json"
    return to_calibrate(report.output)


def _note_on_one_table(table: Path | None, domains: list[str], console: Console) -> None:
    if table is not None and domains == ["target"]:
        console.note(
            f'{table} is used as the target, because the table has no column "domain". To '
            "calibrate, give SOURCE and TARGET. To leave out this note, pass --target"
        )


def _dry_run_summary(plan: "DryRun") -> str:
    from covcal_cli.extract.plan import class_list

    seconds = "unknown" if plan.seconds is None else _duration(plan.seconds)
    images = {"images": plan.preprocessing} if plan.holds_images else {}
    return aligned(
        {
            **{domain.name: str(domain) for domain in plan.domains},
            "model": plan.reading,
            **images,
            "classes": class_list(plan.classes),
            "needs": f"{seconds} and {_size(plan.size)} of disk space (twice as much "
            "space during the run)",
        }
    )


def _size(count: float) -> str:
    for unit in _UNITS:
        if count < 1000 or unit == _UNITS[-1]:
            break
        count /= 1000
    return f"{count:.3g} {unit}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"about {seconds:.2g} s"
    minutes = seconds / 60
    return f"about {minutes:.0f} min" if minutes < 90 else f"about {minutes / 60:.1f} h"
