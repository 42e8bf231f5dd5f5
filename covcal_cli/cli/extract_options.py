"""The options of ``covcal extract``: their spelling, and what their texts mean."""

import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covcal_cli.models.kinds import MODEL_HELP

if TYPE_CHECKING:  # it needs NumPy and Pillow, and --help does not
    from covcal_cli.inputs.preprocessing import Preprocessing


class ColorName(StrEnum):
    """What ``--color`` takes."""

    L = "L"
    RGB = "RGB"
    BGR = "BGR"


class LayoutName(StrEnum):
    """What ``--layout`` takes."""

    NCHW = "NCHW"
    NHWC = "NHWC"
    NHW = "NHW"


class ResampleName(StrEnum):
    """What ``--resample`` takes."""

    nearest = "nearest"
    bilinear = "bilinear"
    bicubic = "bicubic"
    lanczos = "lanczos"
    box = "box"
    hamming = "hamming"


class OnErrorName(StrEnum):
    """What ``--on-error`` takes."""

    skip = "skip"
    fail = "fail"


ModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help=f"{MODEL_HELP} Left out with --logits.",
        show_default=False,
    ),
]
SourceArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="SOURCE",
        help="Data like the classifier's own, labelled: an image folder, .npz, .npy, .h5, .csv, "
        ".parquet or .tar.",
        show_default=False,
    ),
]
TargetArgument = Annotated[
    Path | None,
    typer.Argument(metavar="TARGET", help="The new data; labels are optional.", show_default=False),
]
TargetOnly = Annotated[
    Path | None, typer.Option("--target", help="The new data, where there is no source.")
]
Logits = Annotated[
    bool,
    typer.Option(
        "--logits",
        help="The data are tables of logits, and there is no MODEL; one table with a column domain "
        "serves for both.",
    ),
]
Probabilities = Annotated[
    bool, typer.Option("--probabilities", help="Likewise, tables of probabilities.")
]
Weights = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Weights for the module that module:function returns."),
]
ModelOutput = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The model's output to read, where it has several."),
]
Phi = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|input|none",
        help="The features to keep, instead of the input of the last linear layer.",
    ),
]
Providers = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,...",
        help="Where to compute, in order of preference: cpu, cuda; tensorrt for ONNX models.",
    ),
]
Classes = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Class names in the order of the logits, one a line or JSON; else the model's own, "
        "else the source's folders.",
    ),
]
Preprocess = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|NAME",
        help="Settings for images: a preprocessor_config.json, a timm config.json, a torchvision "
        "preset, ultralytics, module:function or none; the options below override.",
    ),
]
Size = Annotated[str | None, typer.Option(metavar="N|HxW", help="Image size in pixels.")]
ResizeRule = Annotated[
    str | None,
    typer.Option(
        "--resize",
        metavar="RULE",
        help="squash[:N|HxW], short[:N], letterbox[:FILL] or none; squash when left out.",
    ),
]
Crop = Annotated[str | None, typer.Option(metavar="N|HxW", help="Keep the centre after resizing.")]
Resample = Annotated[
    ResampleName | None, typer.Option(help="Pillow's filter for resizing; bilinear when left out.")
]
Exif = Annotated[
    bool | None,
    typer.Option("--exif/--no-exif", help="Turn images upright; off when left out."),
]
Color = Annotated[ColorName | None, typer.Option(help="Colour channels.")]
Layout = Annotated[LayoutName | None, typer.Option(help="Order of the axes.")]
Scale = Annotated[
    float | None, typer.Option(help="Factor on pixels from 0 to 255; 1/255 for float inputs.")
]
Mean = Annotated[str | None, typer.Option(metavar="A[,B,C]", help="Subtracted, in scaled units.")]
Std = Annotated[str | None, typer.Option(metavar="A[,B,C]", help="Divided by, in scaled units.")]
FractionsText = Annotated[
    str,
    typer.Option(
        "--fractions",
        metavar="TRAIN,VAL,TEST",
        help="Shares of the rows where the data has no train, val and test folders.",
    ),
]
Sample = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Draw N rows of each domain by the seed."),
]
Limit = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Take the first N rows of each domain.")
]
ShardText = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Do the I-th of N parts; covcal merge joins them.",
    ),
]
BatchRows = Annotated[
    int | None,
    typer.Option("--batch", min=1, help="Rows per run of the model; by size when left out."),
]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; every core when left out.")]
OnError = Annotated[
    OnErrorName,
    typer.Option(help="Skip files that cannot be read, up to 1 %, or fail at the first."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with a run that was killed or interrupted.")
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Run a few batches, say what would be done, and write nothing."),
]


def size_of(text: str | None, option: str) -> tuple[int, int] | None:
    """Read ``N`` or ``HxW``."""
    if text is None:
        return None
    height, _, width = text.lower().partition("x")
    try:
        size = int(height), int(width or height)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not N or HxW", param_hint=option) from None
    if min(size) < 1:
        raise typer.BadParameter(f"{text!r} has a side below 1 pixel", param_hint=option)
    return size


def numbers_of(text: str | None, option: str) -> tuple[float, ...]:
    """Read finite numbers between commas."""
    try:
        found = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of numbers", param_hint=option) from None
    if not all(map(math.isfinite, found)):
        raise typer.BadParameter(f"{text!r} holds no finite numbers", param_hint=option)
    return found


def above_zero(values: tuple[float, ...], option: str) -> tuple[float, ...]:
    """Return the values, refusing those that are not finite and above 0."""
    if not all(0 < value < math.inf for value in values):
        raise typer.BadParameter("give numbers above 0", param_hint=option)
    return values


def fractions_of(text: str) -> tuple[float, float, float]:
    """Read three shares that sum to 1."""
    shares = numbers_of(text, "--fractions")
    if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise typer.BadParameter("give three shares that sum to 1", param_hint="--fractions")
    return shares[0], shares[1], shares[2]


def preprocessing_of(
    *,
    size: str | None,
    resize: str | None,
    crop: str | None,
    resample: ResampleName | None,
    exif: bool | None,
    color: ColorName | None,
    layout: LayoutName | None,
    scale: float | None,
    mean: str | None,
    std: str | None,
) -> "Preprocessing":
    """Read the options that say what is done to images."""
    from covcal_cli.inputs.preprocessing import Preprocessing
    from covcal_cli.inputs.resizing import Resize

    try:
        rule = None if resize is None else Resize.parse(resize)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--resize") from None
    return Preprocessing(
        size=size_of(size, "--size"),
        resize=rule,
        crop=size_of(crop, "--crop"),
        resample=None if resample is None else resample.value,
        exif=exif,
        color=None if color is None else color.value,
        layout=None if layout is None else layout.value,
        scale=None if scale is None else above_zero((scale,), "--scale")[0],
        mean=numbers_of(mean, "--mean"),
        std=above_zero(numbers_of(std, "--std"), "--std"),
    )
