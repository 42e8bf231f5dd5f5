"""The two streams of a command: its result on stdout; progress, notes and warnings on stderr."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from covcal_cli.errors import CovcalError
from covcal_cli.progress import Progress, ProgressCallback, silent


class Console:
    """The two streams of one command."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet = quiet  # print no progress, notes or hints; warnings stay
        self.verbose = verbose  # print details too

    def result(self, text: str) -> None:
        """Print the command's result to stdout."""
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Print a note to stderr."""
        if not self.quiet:
            _to_stderr(f"note: {text}")

    def detail(self, text: str) -> None:
        """Print a detail to stderr when asked to be verbose."""
        if self.verbose:
            _to_stderr(text)

    def warn(self, texts: Iterable[str]) -> None:
        """Print warnings to stderr, quiet or not."""
        for text in texts:
            _to_stderr(f"warning: {text}")

    def wrote(self, path: Path, hint: str | None = None) -> None:
        """Say what was written, and the command to run next."""
        if not self.quiet:
            _to_stderr(f"wrote {path}")
            if hint:
                _to_stderr(f"next: {hint}")

    @contextmanager
    def progress(self) -> Iterator[ProgressCallback]:
        """Yield a callback that shows progress: a live bar on a terminal, else nothing."""
        if self.quiet or not sys.stderr.isatty():
            yield silent
            return
        from rich.console import Console as RichConsole
        from rich.progress import Progress as Bars
        from rich.progress import TaskID

        bars: dict[str, TaskID] = {}
        with Bars(console=RichConsole(stderr=True), transient=True) as display:

            def show(step: Progress) -> None:
                if step.stage not in bars:
                    bars[step.stage] = display.add_task(step.stage, total=step.total)
                numbers = "".join(f"  {name} {value:.3f}" for name, value in step.losses.items())
                display.update(
                    bars[step.stage],
                    completed=step.step,
                    total=step.total,
                    description=step.stage + numbers,
                )

            yield show


def file_to_read(file: Path | None, console: Console) -> Path:
    """Return the file of a step: the one that was named, else the one here, and say which.

    Raises
    ------
    CovcalError
        As `file_here` does.
    """
    if file is None:
        from covcal_cli.formats.lineage import file_here

        file = file_here()
        console.note(f"reading {file}")
    return file


@contextmanager
def usage() -> Iterator[None]:
    """Make what settings refuse, while they are made of options, an error in the usage."""
    try:
        yield
    except CovcalError as error:
        raise typer.BadParameter(str(error)) from error


def _to_stderr(text: str) -> None:
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)
