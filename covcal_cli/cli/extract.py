"""``covcal extract``: run a classifier over both domains and keep features and logits."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covcal_cli.cli import extract_options as options
from covcal_cli.cli.console import Console
from covcal_cli.cli.options import Force, Quiet, Seed, Verbose, output

if TYPE_CHECKING:  # they need NumPy and Pillow, and --help does not
    from covcal_cli.extract.extraction import ExtractReport
    from covcal_cli.extract.sampling import Selection


def extract(
    model: options.ModelArgument = None,
    source: options.SourceArgument = None,
    target: options.TargetArgument = None,
    target_only: options.TargetOnly = None,
    output: Annotated[Path, output("Features file to write.")] = Path("features.h5"),
    logits: options.Logits = False,
    probabilities: options.Probabilities = False,
    weights: options.Weights = None,
    model_output: options.ModelOutput = None,
    phi: options.Phi = None,
    providers: options.Providers = None,
    classes: options.Classes = None,
    preprocess: options.Preprocess = None,
    size: options.Size = None,
    resize: options.ResizeRule = None,
    crop: options.Crop = None,
    resample: options.Resample = None,
    exif: options.Exif = None,
    color: options.Color = None,
    layout: options.Layout = None,
    scale: options.Scale = None,
    mean: options.Mean = None,
    std: options.Std = None,
    fractions: options.FractionsText = "0.6,0.2,0.2",
    sample: options.Sample = None,
    limit: options.Limit = None,
    shard: options.ShardText = None,
    seed: Seed = 0,
    batch: options.BatchRows = None,
    threads: options.Threads = None,
    on_error: options.OnError = options.OnErrorName.skip,
    resume: options.Resume = False,
    dry_run: options.DryRun = False,
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

    from covcal_cli.extract.settings import SettingsGiven

    settings: SettingsGiven = {
        "preprocessing": options.preprocessing_of(
            size=size,
            resize=resize,
            crop=crop,
            resample=resample,
            exif=exif,
            color=color,
            layout=layout,
            scale=scale,
            mean=mean,
            std=std,
        ),
        "preprocess": preprocess,
        "classes": classes,
        "fractions": options.fractions_of(fractions),
        "seed": seed,
        "selection": _selection(sample, limit, shard),
        "batch": batch,
        "threads": threads,
        "weights": weights,
        "model_output": model_output,
        "phi": phi,
        "providers": tuple(providers.split(",")) if providers else (),
        "outputs": ("logits" if logits else "probabilities") if tables else None,
        "skip_unreadable": on_error is options.OnErrorName.skip,
    }
    console = Console(quiet=quiet, verbose=verbose)
    alone = target if tables and source is None and target_only is None else None
    if dry_run:
        from covcal_cli.cli.render_extract import dry_run_summary
        from covcal_cli.extract.dryrun import dry_run as run_one_batch

        planned = run_one_batch(model, source, target, output, force=force, **settings)
        for note in planned.notes:
            console.note(note)
        _note_on_one_table(alone, [domain.name for domain in planned.domains], console)
        console.warn(planned.warnings)
        console.result(dry_run_summary(planned))
        return

    from covcal_cli.extract.extraction import extract
    from covcal_cli.extract.spool import was_stopped

    try:
        with console.progress() as progress:
            report = extract(
                model,
                source,
                target,
                output,
                force=force,
                resume=resume,
                progress=progress,
                **settings,
            )
    except KeyboardInterrupt:
        if was_stopped(output):
            console.warn([f"what was done for {output} is kept beside it; --resume goes on"])
        raise
    _note_on_one_table(alone, [domain.name for domain in report.domains], console)
    _show(report, console, shard)


def _show(report: "ExtractReport", console: Console, shard: str | None) -> None:
    from shlex import quote

    from covcal_cli.cli.render_extract import extract_summary

    for note in report.notes:
        console.note(note)
    console.warn(report.warnings)
    for domain in report.domains:
        console.warn(f"skipped {name}: {reason}" for name, reason in domain.skipped)
    console.result(extract_summary(report))
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


def _selection(sample: int | None, limit: int | None, shard: str | None) -> "Selection":
    from covcal_cli.extract.sampling import Selection, Shard

    if sample is not None and limit is not None:
        raise typer.BadParameter("give one of them", param_hint="--sample / --limit")
    try:
        return Selection(sample, limit, None if shard is None else Shard.parse(shard))
    except ValueError:
        raise typer.BadParameter(
            f"{shard!r} is not I/N with I from 1 to N", param_hint="--shard"
        ) from None
