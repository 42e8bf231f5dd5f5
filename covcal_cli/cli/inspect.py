"""``covcal inspect``: show what a covcal file holds."""

import re
from pathlib import Path
from typing import Annotated

import typer

from covcal_cli.cli import decide
from covcal_cli.cli.calibrate import answer, details
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
    from covcal_cli.cli import multilabel
    from covcal_cli.formats.calibration import Calibration, read_calibration
    from covcal_cli.formats.decision import Decision
    from covcal_cli.formats.lineage import labels_of
    from covcal_cli.inspect import describe
    from covcal_cli.multilabel import for_each_label
    from covcal_cli.records import read_document

    screen = describe(file)
    schemas = re.findall(r"(?:^|: )schema +(\S+)$", screen, re.MULTILINE)
    last = schemas[-1] if schemas else None
    if last == Calibration.schema:
        read = read_calibration(file)
        screen = f"{answer(read)}\n\n{screen}\n\n{details(read)}"
    elif last == Decision.schema:
        decision = read_document(Decision, file, remedy="")
        screen = f"{decide.answer(decision, str(file))}\n\n{screen}"
    elif Calibration.schema in schemas:
        of_label = for_each_label(labels_of(None, [file]), lambda: read_calibration(file))
        screen = f"{multilabel.calibrated(of_label)}\n\n{screen}"
    elif Decision.schema in schemas:
        names = labels_of(None, [file])
        decisions = for_each_label(names, lambda: read_document(Decision, file, remedy=""))
        screen = f"{multilabel.decided(decisions, str(file))}\n\n{screen}"
    Console().screen(screen)
