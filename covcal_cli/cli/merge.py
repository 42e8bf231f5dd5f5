"""``covcal merge``: one features file of the shards of a run, or of source and target apart."""

from pathlib import Path
from typing import Annotated

import typer

from covcal_cli.cli.console import Console
from covcal_cli.cli.options import Force, Quiet, Verbose, output


def merge(
    parts: Annotated[
        list[Path],
        typer.Argument(
            metavar="PART...",
            help="Features files: every shard of a run, or source and target apart.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, output("Features file to write.")] = Path("features.h5"),
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Merge the features files of parts of the data; the result is that of one run over all of it.

    Parts of different models, classes, preprocessing, fractions or seeds are refused.

    \b
    Examples:
      covcal merge shard-1.h5 shard-2.h5 shard-3.h5 -o features.h5
      covcal merge source.h5 target.h5
    """
    from shlex import quote

    from covcal_cli.extract.merge import merge

    console = Console(quiet=quiet, verbose=verbose)
    report = merge(parts, output, force=force)
    lines = [f"merged    {len(parts)} files"]
    for name, counts in report.rows.items():
        rows = ", ".join(f"{split} {count}" for split, count in counts.items())
        skipped = f"; {report.skipped[name]} files skipped" if report.skipped[name] else ""
        lines.append(f"{name:<8}  {sum(counts.values())} rows ({rows}){skipped}")
    console.screen("\n".join(lines))
    both = {"source", "target"} <= report.rows.keys()
    console.wrote(output, f"covcal {'adapt' if both else 'inspect'} {quote(str(output))}")
