"""``covcal demo``: run the main steps on the embedded example."""

from contextlib import chdir
from pathlib import Path
from typing import Annotated

import typer

from covcal_cli.cli.console import Console
from covcal_cli.cli.options import output
from covcal_cli.errors import in_percent

STEPS = (
    "extract digits.onnx source target",
    "calibrate features.h5",
    "calibrate features.h5 --method temp -o temp.json",
    "evaluate features.h5 -c temp.json -c cal.json --diagram reliability.png",
)


def demo(
    context: typer.Context,
    output: Annotated[Path, output("Folder to create.")] = Path("covcal-demo"),
) -> None:
    """Run the main steps on a small embedded example of real handwriting.

    \b
    Example:
      covcal demo -o my-demo
    """
    from covcal_cli.demo import end_demo, write_demo
    from covcal_cli.formats.calibration import read_calibration

    console = Console()
    covcal = context.find_root().command
    continues = write_demo(output)
    console.screen(
        "A digit classifier gets handwriting that is bolder and turned by about 10 degrees.\n"
        "The classifier gets 96 % of its own test digits right. What share of the new digits does "
        "the classifier get right, and is the confidence equal to this share?\n"
    )
    console.screen(f"$ cd {output}")
    with chdir(output):
        for step in STEPS:
            words = f"{step} --force" if continues else step
            console.screen(f"\n$ covcal {words}")
            code = covcal.main(args=words.split(), prog_name="covcal", standalone_mode=False)
            if code:
                raise typer.Exit(code)
    end_demo(output)
    calibration = read_calibration(output / "cal.json")
    before, after = (in_percent(share or 0.0) for share in calibration.target_confidence)
    console.screen(
        "\nThe answer, without any label of the new handwriting: about "
        f"{in_percent(calibration.estimates['accuracy'])} % are right. The mean confidence is "
        f"{before} % before calibration, and {after} % after calibration.\n"
        f"The reliability diagrams: {output / 'reliability.png'}\n"
        "To run the commands yourself, open this folder and add --force to replace files."
    )
