"""``covcal merge``: join the shards of a run, or source and target, into one features file."""

from pathlib import Path
from typing import Annotated

import typer

from covcal_cli.cli.console import Console, to_calibrate
from covcal_cli.cli.options import Force, Quiet, Verbose, output
from covcal_cli.cli.tables import aligned
from covcal_cli.files import as_word


def merge(
    parts: Annotated[
        list[Path],
        typer.Argument(
            metavar="PART...",
            help="Features files: all shards of a run, or the file of the source and the file of "
            "the target.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, output("Features file to write.")] = Path("features.h5"),
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Join features files of parts of the data into one file.

    The result is the same as if one run had read all data. All parts must come from the same model,
    with the same classes, preprocessing, fractions and seed.

    \b
    Examples:
      covcal merge shard-1.h5 shard-2.h5 shard-3.h5 -o features.h5
      covcal merge source.h5 target.h5
    """
    from covcal_cli.extract.domain import skipped_words
    from covcal_cli.extract.merge import merge

    console = Console(quiet=quiet, verbose=verbose)
    report = merge(parts, output, force=force)
    facts = {
        name: f"{sum(counts.values())} rows from {report.files[name]} "
        f"{'file' if report.files[name] == 1 else 'files'}{skipped_words(report.skipped[name])}"
        for name, counts in report.rows.items()
    }
    console.screen(aligned(facts))
    for name, counts in report.rows.items():
        splits = ", ".join(f"{split} {count}" for split, count in counts.items())
        console.detail(f"{name} splits: {splits}")
    both = {"source", "target"} <= report.rows.keys()
    console.wrote(output, to_calibrate(output) if both else f"covcal inspect {as_word(output)}")
