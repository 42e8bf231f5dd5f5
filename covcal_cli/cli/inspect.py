"""``covcal inspect``: what any covcal file holds."""

from pathlib import Path
from typing import Annotated

import typer

from covcal_cli.cli.console import Console


def inspect(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Any file that covcal wrote.", show_default=False)
    ],
) -> None:
    """Show what a covcal file holds, in a few lines.

    \b
    Examples:
      covcal inspect features.h5
      covcal inspect cal.json
    """
    from covcal_cli.inspect import describe

    Console().screen(describe(file))
