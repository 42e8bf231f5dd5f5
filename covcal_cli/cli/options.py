"""Options that several commands share: one spelling each, read by typer from the annotations."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from covcal_cli.calibrate.methods import AUTO, METHODS


class MethodName(StrEnum):
    """The values of ``--method``."""

    _ignore_ = "name"
    auto = AUTO
    for name in METHODS:
        vars()[name] = name


class LossName(StrEnum):
    """The values of ``--loss``."""

    brier = "brier"
    nll = "nll"


class SplitName(StrEnum):
    """The values of ``--split``."""

    train = "train"
    validation = "validation"
    test = "test"


class PredictionsName(StrEnum):
    """The values of ``--predictions``."""

    original = "original"
    own = "own"


class PresetName(StrEnum):
    """The values of ``--preset``."""

    default = "default"
    paper = "paper"


class DeviceName(StrEnum):
    """The values of ``--device``."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class FormatName(StrEnum):
    """The values of ``--format``."""

    table = "table"
    json = "json"
    markdown = "markdown"
    github = "github"


class EstimateFormatName(StrEnum):
    """The values of ``--format`` where nothing can be exceeded, and so nothing annotated."""

    table = "table"
    json = "json"
    markdown = "markdown"


TargetPrior = Annotated[
    str,
    typer.Option(
        "--target-prior",
        metavar="source|uniform|FILE|bbse",
        help="How frequent the classes are on the target: as on the source, alike, as a JSON file "
        "of shares says, or estimated.",
    ),
]
MaxWeight = Annotated[
    float, typer.Option("--max-weight", min=1.0, help="Limit U of the importance weights.")
]
InputFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="A features or adapted file; adapted.h5, else features.h5, when left out.",
        show_default=False,
    ),
]
JudgedFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="A features or adapted file; what the calibration was fitted on, when left out.",
        show_default=False,
    ),
]
Networks = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="The adapted file with an fl method's networks, if it has moved."
    ),
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace the output if it exists.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only the result, warnings and errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="More detail on stderr.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed wherever chance enters.")]


def output(text: str) -> typer.models.OptionInfo:
    """Return the option ``-o/--output`` with a command's own help text."""
    option: typer.models.OptionInfo = typer.Option("--output", "-o", help=text)
    return option
