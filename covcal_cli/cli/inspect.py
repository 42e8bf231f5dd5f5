"""``covcal inspect``: show what a covcal file holds."""

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
    from covcal_cli.cli.calibration_screen import details
    from covcal_cli.formats.calibration import Calibration, read_calibration
    from covcal_cli.inspect import describe

    screen = describe(file)
    if Calibration.schema in screen.partition("\n")[0]:
        screen += f"\n\n{details(read_calibration(file))}"
    Console().screen(screen)
