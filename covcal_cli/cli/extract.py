"""``covcal extract``: run a classifier over both domains and keep features and logits."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covcal_cli.classifiers.kinds import MODEL_HELP
from covcal_cli.cli.console import Console
from covcal_cli.cli.extract_options import ExtractOptions, takes_extract_options
from covcal_cli.cli.options import Force, Quiet, Verbose, output
from covcal_cli.data.stores.open import SUFFIXES

if TYPE_CHECKING:  # they need NumPy and Pillow, and --help does not
    from covcal_cli.extract.domain import DomainReport
    from covcal_cli.extract.dry_run import DryRun
    from covcal_cli.extract.extract import ExtractReport

_UNITS = ("bytes", "kB", "MB", "GB", "TB")
_SHOWN_CLASSES = 8


@takes_extract_options()
def extract(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help=f"{MODEL_HELP} Left out with --logits.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="SOURCE",
            help="Data like the classifier's own, labelled: an image folder, "
            f"{', '.join(SUFFIXES)} or .tar.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Argument(
            metavar="TARGET", help="The new data; labels are optional.", show_default=False
        ),
    ] = None,
    target_only: Annotated[
        Path | None, typer.Option("--target", help="The new data, where there is no source.")
    ] = None,
    output: Annotated[Path, output("Features file to write.")] = Path("features.h5"),
    logits: Annotated[
        bool,
        typer.Option(
            "--logits",
            help="The data are tables of logits, and there is no MODEL; one table with a column "
            "domain serves for both.",
        ),
    ] = False,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Likewise, tables of probabilities.")
    ] = False,
    *,
    options: ExtractOptions,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that was killed or interrupted.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Run a few batches, say what would be done, and write nothing."
        ),
    ] = False,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run a classifier over source and target; keep its features, logits and labels.

    \b
    Examples:
      covcal extract model.onnx source/ target/
      covcal extract model.onnx source.npz target.npz -o features.h5
      covcal extract model.onnx --target new/ -o new.h5
      covcal extract model.onnx source/ target/ --preprocess imagenet
      covcal extract model.onnx source/ target/ --size 224 --mean 0.485,0.456,0.406
      covcal extract nets:build source/ target/ --weights best.pth
      covcal extract --logits source.parquet target.parquet
      covcal extract model.onnx source/ target/ --sample 50000 --dry-run
      covcal extract model.onnx source/ target/ --shard 1/10 -o shard-1.h5
    """
    if logits and probabilities:
        raise typer.BadParameter("give one of them", param_hint="--logits / --probabilities")
    tables = logits or probabilities
    if tables:
        model, source, target = _tables(model, source, target, target_only)
    else:
        if model is None:
            raise typer.BadParameter("give MODEL, SOURCE and TARGET", param_hint="MODEL")
        if target_only is not None and (source is not None or target is not None):
            raise typer.BadParameter("give either SOURCE TARGET or --target", param_hint="--target")
        if target_only is None and target is None:
            raise typer.BadParameter(
                "give SOURCE and TARGET, or --target TARGET", param_hint="TARGET"
            )
        target = target if target is not None else target_only
    settings = options.settings("logits" if logits else "probabilities" if tables else None)
    console = Console(quiet=quiet, verbose=verbose)
    alone = target if tables and source is None and target_only is None else None
    if dry_run:
        from covcal_cli.extract.dry_run import dry_run as run_some_batches

        planned = run_some_batches(model, source, target, output, settings, force=force)
        for note in planned.notes:
            console.note(note)
        _note_on_one_table(alone, [domain.name for domain in planned.domains], console)
        console.warn(planned.warnings)
        console.result(_dry_run_summary(planned))
        return

    from covcal_cli.extract.extract import extract
    from covcal_cli.extract.parts import was_stopped

    try:
        with console.progress() as progress:
            report = extract(
                model,
                source,
                target,
                output,
                settings,
                force=force,
                resume=resume,
                progress=progress,
            )
    except KeyboardInterrupt:
        if was_stopped(output):
            console.warn([f"what was done for {output} is kept beside it; --resume goes on"])
        raise
    _note_on_one_table(alone, [domain.name for domain in report.domains], console)
    _show(report, console, options.shard)


def _show(report: "ExtractReport", console: Console, shard: str | None) -> None:
    from shlex import quote

    for note in report.notes:
        console.note(note)
    console.warn(report.warnings)
    for domain in report.domains:
        console.warn(f"skipped {name}: {reason}" for name, reason in domain.skipped)
    console.result(_summary(report))
    quoted = quote(str(report.output))
    if shard is not None:
        hint = f"merge {quoted} ... (all {shard.partition('/')[2]} shards)"
    elif len(report.domains) == 1 and report.domains[0].labelled:
        hint = f"evaluate {quoted} -c cal.json"
    elif len(report.domains) == 1:
        hint = f"apply {quoted} -c cal.json"
    elif report.has_features:
        hint = f"adapt {quoted}"
    else:
        hint = f"calibrate {quoted}"
    console.wrote(report.output, f"covcal {hint}")


def _tables(
    first: str | None, second: Path | None, third: Path | None, target_only: Path | None
) -> tuple[None, Path | None, Path]:
    """Return no model, source and target where the arguments are tables alone."""
    given = [Path(path) for path in (first, second, third) if path is not None]
    if target_only is not None:
        if given:
            raise typer.BadParameter(
                "give either [SOURCE] TARGET or --target", param_hint="--target"
            )
        return None, None, target_only
    if len(given) not in (1, 2):
        raise typer.BadParameter("give [SOURCE] TARGET and no MODEL", param_hint="TARGET")
    return None, given[0] if len(given) == 2 else None, given[-1]


def _note_on_one_table(table: Path | None, domains: list[str], console: Console) -> None:
    if table is not None and domains == ["target"]:
        console.note(
            f"{table} is read as the target: it has no column domain with rows of both; --target "
            "says so without this note, and SOURCE TARGET gives both"
        )


def _summary(report: "ExtractReport") -> str:
    """Return what ``covcal extract`` ran and read."""
    lines = [("model", report.head), ("input", report.preprocessing), *_domains(report.domains)]
    if report.source_accuracy is not None:
        lines.append(("accuracy", str(report.source_accuracy)))
    return _aligned(lines)


def _dry_run_summary(plan: "DryRun") -> str:
    """Return what ``covcal extract`` would do."""
    shown = ", ".join(plan.classes[:_SHOWN_CLASSES])
    more = len(plan.classes) - _SHOWN_CLASSES
    seconds = "unknown" if plan.seconds is None else _duration(plan.seconds)
    lines = [
        ("model", plan.head),
        ("input", plan.preprocessing),
        ("classes", f"{shown}, and {more} more" if more > 0 else shown),
        *_domains(plan.domains),
        ("batch", f"{plan.batch} rows, threads {plan.threads}"),
        ("size", f"{_size(plan.size)} on disk, twice that while running"),
        ("time", f"{seconds}, from a few batches"),
    ]
    return _aligned(lines)


def _domains(domains: Sequence["DomainReport"]) -> Iterator[tuple[str, str]]:
    for domain in domains:
        rows = ", ".join(f"{name} {count}" for name, count in domain.rows.items())
        total = sum(domain.rows.values())
        skipped = f"; {len(domain.skipped)} files skipped" if domain.skipped else ""
        yield domain.name, f"{total} rows ({rows}), {domain.labelled} labelled{skipped}"


def _aligned(lines: Sequence[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


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
