"""``covcal extract``: run a classifier over both domains and keep features and logits."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from covcal_cli.cli.console import Console
from covcal_cli.cli.options import Force, Quiet, Seed, Verbose, output


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


def extract(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A classifier in ONNX.", show_default=False)
    ],
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="SOURCE",
            help="Data like the classifier's own, labelled: image folder or .npz.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Argument(
            metavar="TARGET", help="The new data; labels are optional.", show_default=False
        ),
    ] = None,
    target_only: Annotated[
        Path | None, typer.Option("--target", help="The new data, where there is no source.")
    ] = None,
    output: Annotated[Path, output("Features file to write.")] = Path("features.h5"),
    size: Annotated[str | None, typer.Option(metavar="N|HxW", help="Image size in pixels.")] = None,
    scale: Annotated[
        float | None, typer.Option(help="Factor on pixels from 0 to 255; 1/255 for float inputs.")
    ] = None,
    mean: Annotated[
        str | None, typer.Option(metavar="A[,B,C]", help="Subtracted, in scaled units.")
    ] = None,
    std: Annotated[
        str | None, typer.Option(metavar="A[,B,C]", help="Divided by, in scaled units.")
    ] = None,
    color: Annotated[ColorName | None, typer.Option(help="Colour channels.")] = None,
    layout: Annotated[LayoutName | None, typer.Option(help="Order of the axes.")] = None,
    resample: Annotated[
        ResampleName, typer.Option(help="Pillow's filter for resizing.")
    ] = ResampleName.bilinear,
    fractions: Annotated[
        str,
        typer.Option(
            metavar="TRAIN,VAL,TEST",
            help="Shares of the rows where the data has no train, val and test folders.",
        ),
    ] = "0.6,0.2,0.2",
    seed: Seed = 0,
    model_output: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The model's output to read, where it has several."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Rows per run of the model; by size when left out.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads; every core when left out.")
    ] = None,
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
      covcal extract model.onnx source/ target/ --size 224 --mean 0.485,0.456,0.406
    """
    if target_only is not None and (source is not None or target is not None):
        raise typer.BadParameter("give either SOURCE TARGET or --target", param_hint="--target")
    if target_only is None and target is None:
        raise typer.BadParameter("give SOURCE and TARGET, or --target TARGET", param_hint="TARGET")

    from shlex import quote

    from covcal_cli.cli.render import extract_summary
    from covcal_cli.extraction import extract
    from covcal_cli.inputs.preprocessing import Preprocessing

    console = Console(quiet=quiet, verbose=verbose)
    preprocessing = Preprocessing(
        size=_size(size),
        scale=scale,
        mean=_numbers(mean, "--mean"),
        std=_numbers(std, "--std"),
        color=None if color is None else color.value,
        layout=None if layout is None else layout.value,
        resample=resample.value,
    )
    shares = _numbers(fractions, "--fractions")
    if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise typer.BadParameter("give three shares that sum to 1", param_hint="--fractions")
    with console.progress() as progress:
        report = extract(
            model,
            source,
            target if target is not None else target_only,
            output,
            preprocessing=preprocessing,
            fractions=(shares[0], shares[1], shares[2]),
            seed=seed,
            batch=batch,
            threads=threads,
            model_output=model_output,
            force=force,
            progress=progress,
        )
    console.warn(report.warnings)
    for domain in report.domains:
        console.warn(f"skipped {name}: {reason}" for name, reason in domain.skipped)
    console.result(extract_summary(report))
    quoted = quote(str(output))
    hint = f"adapt {quoted}" if source is not None else f"evaluate {quoted} -c cal.json"
    console.wrote(output, f"covcal {hint}")


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    height, _, width = text.lower().partition("x")
    try:
        return int(height), int(width or height)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not N or HxW", param_hint="--size") from None


def _numbers(text: str | None, option: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of numbers", param_hint=option) from None
