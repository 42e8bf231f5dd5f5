"""``covcal inspect``: show what a covcal file holds."""

import re
from pathlib import Path
from typing import Annotated

import typer

from covcal_cli.cli.console import Console


def inspect(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Any file that covcal wrote.", show_default=False)
    ],
) -> None:
    """Show everything that a covcal file contains, the answer first.

    covcal inspect reads the files of every command, the CSV of covcal pick, the rows of covcal
    apply, and models that covcal exported.

    \b
    Examples:
      covcal inspect cal.json
      covcal inspect features.h5
      covcal inspect to-label.csv
    """
    from covcal_cli.cli.calibrate import answer, details
    from covcal_cli.cli.multilabel import calibrated
    from covcal_cli.formats.calibration import Calibration, read_calibration
    from covcal_cli.formats.lineage import labels_of
    from covcal_cli.inspect import describe
    from covcal_cli.multilabel import for_each_label
    from covcal_cli.report.verdict import unmeasured_action

    screen = describe(file)
    if Calibration.schema in screen.rpartition("\n")[2]:
        read = read_calibration(file)
        screen = f"{answer(read, unmeasured_action(read)[1])}\n\n{screen}\n\n{details(read)}"
    elif re.search(rf": schema +{re.escape(Calibration.schema)}$", screen, re.MULTILINE):
        of_label = for_each_label(labels_of(None, [file]), lambda: read_calibration(file))
        screen = f"{calibrated(of_label, with_verdict=True)}\n\n{screen}"
    Console().screen(screen)
