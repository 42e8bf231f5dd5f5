"""Define the options that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from covcal_cli.calibrate.methods import AUTO, METHODS


def output(text: str, *, printed: bool = False) -> Any:
    """Return the option ``-o/--output`` with the help text of a command.

    `printed`: whether ``-o -`` prints the result. Otherwise, ``-o -`` is an error.
    """
    return typer.Option("--output", "-o", help=text, callback=None if printed else _named)


def _named(output: Path | None) -> Path | None:
    if str(output) == "-":
        raise typer.BadParameter("this result cannot be printed: give a file name")
    return output


def calibration(text: str) -> Any:
    """Return the option ``-c/--calibration`` for one calibration, with a help text."""
    return typer.Option("--calibration", "-c", metavar="CAL.JSON", help=text)


def calibrations(text: str) -> Any:
    """Return the option ``-c/--calibration`` for several calibrations."""
    return typer.Option("--calibration", "-c", metavar="[NAME=]CAL.JSON", help=text)


def share(text: str, *names: str) -> Any:
    """Return an option whose value is a share from 0 to 1."""
    return typer.Option(*names, metavar="SHARE", help=text)


def groups(text: str) -> Any:
    """Return an option whose value is the name of a column, for groups of rows."""
    return typer.Option(metavar="COLUMN|predicted", help=text)


def decision(text: str) -> Any:
    """Return the option ``--decide`` with the help text of a command."""
    return typer.Option("--decide", metavar="DECIDE.JSON", help=text)


# Options that name input files.

InputFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="A features or adapted file. Default: adapted.h5, else features.h5.",
        show_default=False,
    ),
]
JudgedFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="A features or adapted file. Default: the file that the calibration was fitted on.",
        show_default=False,
    ),
]
Networks = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="New path of the file from covcal adapt, if that file has moved."
    ),
]
NetworksOfFeatures = Annotated[
    Path | None,
    typer.Option(
        "--networks",
        metavar="ADAPTED.H5",
        help="New path of the file from covcal adapt, if that file has moved. Needed only if FILE "
        "is a features file.",
    ),
]
AllowOtherPreprocessing = Annotated[
    bool,
    typer.Option(
        "--allow-other-preprocessing",
        help="Accept a file whose images were not preprocessed like the calibration's images.",
    ),
]
ModelOutput = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Model output to use, if the model has several outputs."),
]
TrustModel = Annotated[
    bool,
    typer.Option(
        "--trust-model", help="Allow a .pt or .pt2 file, although such a file can run any code."
    ),
]


# Options of the fit.


class MethodName(StrEnum):
    """The values of ``--method``."""

    _ignore_ = "name"
    auto = AUTO
    for name in METHODS:
        vars()[name] = name


LossName = StrEnum("LossName", {"brier": "brier", "nll": "nll"})
DeviceName = StrEnum("DeviceName", ["auto", "cpu", "cuda"])
PresetName = StrEnum("PresetName", ["default", "paper"])
SplitName = StrEnum("SplitName", ["train", "validation", "test", "all"])

Method = Annotated[
    MethodName,
    typer.Option(metavar="METHOD", help=f"Method of calibration: {', '.join(MethodName)}."),
]
Loss = Annotated[LossName, typer.Option(help="Loss that T minimises.")]
Device = Annotated[DeviceName, typer.Option(help="Where to train.")]
JudgedSplit = Annotated[
    SplitName | None,
    typer.Option(
        help="Split of the target rows to measure on, or all. Default: test, or all if the file "
        "has only target rows and no calibration was fitted on it. If a calibration "
        "used the label of a row, this row is always left out.",
        show_default=False,
    ),
]
MaxWeight = Annotated[
    float, typer.Option("--max-weight", min=1.0, help="Maximum importance weight (U).")
]
TargetPrior = Annotated[
    str,
    typer.Option(
        "--target-prior",
        metavar="source|uniform|FILE|bbse",
        help="Class frequencies on the target: source, uniform, a JSON file, or bbse (estimated).",
    ),
]
LabelsName = StrEnum("LabelsName", ["auto", "marked", "none"])
Labels = Annotated[
    LabelsName,
    typer.Option(
        "--labels",
        help="Labels to use. marked: labels from covcal label; none: no labels; auto: the same "
        "as marked if the file has labels from covcal label, else none. With auto, covcal "
        "estimate does not use labels that were picked for a decision.",
    ),
]
ExpectedAccuracy = Annotated[
    float | None,
    typer.Option(
        "--expect-accuracy",
        min=0.0,
        max=1.0,
        metavar="SHARE",
        help="The accuracy that you expect on labelled source rows, such as 0.96. Exit with 3 if "
        "the measured accuracy is significantly below the expected accuracy.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all random numbers.")]


# Options for results.

FormatName = StrEnum("FormatName", ["table", "json", "markdown", "github"])
TexFormatName = StrEnum("TexFormatName", ["table", "json", "markdown", "github", "latex"])
TexFormat = Annotated[TexFormatName, typer.Option("--format", help="Format of the result.")]
EstimatedMetrics = Annotated[
    str | None,
    typer.Option(
        metavar="METRIC[:CLASS],...",
        help="More metrics, for every class or for the named class, such as f1,recall:fraud. "
        "Metrics: precision, recall, f1, specificity, auroc, balanced_accuracy, accuracy, or all. "
        "accuracy and balanced_accuracy are about all classes, so they take no class. For the mean "
        'over all classes, write "macro" instead of a class.',
    ),
]


def costs(text: str, example: str) -> Any:
    """Return the option ``--cost`` with the help text of a command and an example of the file."""
    return typer.Option(
        "--cost", metavar="COSTS.JSON", help=f"{text} Example of the file: {example}."
    )


_PAIR = '"pairs": [{"true": "a", "predicted": "b", "cost": 100}]'
RowCosts = Annotated[
    Path | None,
    costs("Estimate the mean cost per row, if all rows are accepted.", f'{{"wrong": 5, {_PAIR}}}'),
]
DecisionCosts = Annotated[
    Path | None,
    costs(
        "Accept a row if its expected cost is below the cost of a review.",
        f'{{"review": 1, "wrong": 10, {_PAIR}}}',
    ),
]
CostGate = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-above",
        metavar="cost=MOST",
        help="Exit with 3 if the estimated cost is above this limit. Needs --cost.",
    ),
]
LeastGate = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-below",
        metavar="METRIC[:CLASS]=LEAST",
        help="Exit with 3 if a metric is below a limit, such as accuracy=0.8 or "
        "recall:fraud=0.7. accuracy and balanced_accuracy take no class. May be repeated.",
    ),
]
EndName = StrEnum("EndName", ["low", "middle", "high"])
End = Annotated[
    EndName | None,
    typer.Option(
        "--end",
        help="Compare the limit with the low end, the middle or the high end of the interval. "
        "Default: the low end with --fail-below, the high end with --fail-above.",
    ),
]
Junit = Annotated[
    Path | None, typer.Option(help="Also write the results of the gates as a JUnit report (XML).")
]
ResultFormat = Annotated[FormatName, typer.Option("--format", help="Format of the result.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace the output if it exists.")]
ForceLimit = Annotated[
    bool,
    typer.Option(
        "--force",
        "-f",
        help="Replace the output if it exists, and accept a T at the limit of its range.",
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only the result, warnings and errors.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print more details.")]
