"""``covcal demo``: the four steps on the embedded example, each command as one would type it."""

from contextlib import chdir
from pathlib import Path
from typing import Annotated

import typer

from covcal_cli.cli.console import Console
from covcal_cli.cli.options import output

STEPS = (
    ("extract", "digits.onnx", "source", "target"),
    ("adapt",),
    ("calibrate",),
    ("calibrate", "adapted.h5", "--method", "temp", "-o", "temp.json"),
    ("evaluate", "adapted.h5", "-c", "temp.json", "-c", "cal.json", "--diagram", "reliability.png"),
)


def demo(
    context: typer.Context,
    output: Annotated[Path, output("Folder to create.")] = Path("covcal-demo"),
) -> None:
    """Run the four steps on a small embedded example of real handwriting.

    \b
    Example:
      covcal demo -o my-demo
    """
    from covcal_cli.demo import write_demo

    console = Console()
    covcal = context.find_root().command
    write_demo(output)
    console.screen(
        "A digit classifier meets handwriting that is turned by some 10 degrees and bolder.\n"
        "Of its own test digits it reads 96 %. How sure may it be of the others?\n"
    )
    console.screen(f"$ cd {output}")
    with chdir(output):
        for step in STEPS:
            console.screen(f"\n$ covcal {' '.join(step)}")
            # What goes wrong here reaches the error boundary as from any other command.
            code = covcal.main(args=list(step), prog_name="covcal", standalone_mode=False)
            if code:
                raise typer.Exit(code)
    console.screen(
        f"\nThe reliability diagrams: {output / 'reliability.png'}\n"
        "To run the commands yourself, go there and add --force where a file exists."
    )
