"""The command line's frame: the commands, the one error boundary, the one place that exits."""

import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from enum import StrEnum
from importlib import import_module
from inspect import signature
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from covcal_cli import __version__
from covcal_cli.cli import interrupt
from covcal_cli.cli.adapt import adapt
from covcal_cli.cli.apply import apply
from covcal_cli.cli.calibrate import calibrate
from covcal_cli.cli.compare import compare
from covcal_cli.cli.console import prepare_streams, say
from covcal_cli.cli.demo import demo
from covcal_cli.cli.estimate import estimate
from covcal_cli.cli.evaluate import evaluate
from covcal_cli.cli.export import export
from covcal_cli.cli.extract import extract
from covcal_cli.cli.inspect import inspect
from covcal_cli.cli.label import label
from covcal_cli.cli.merge import merge
from covcal_cli.cli.pick import pick
from covcal_cli.cli.report import report
from covcal_cli.cli.run import run as run_command
from covcal_cli.cli.watch import watch
from covcal_cli.errors import (
    CovcalError,
    LimitExceededError,
    StoppedError,
    UnusedOptionError,
    message,
)

# The base of click's own errors, wherever typer takes click from.
CLICK_ERROR: Any = next(kind for kind in typer.BadParameter.__mro__ if "Click" in kind.__name__)
_OF_EXTRACT = ("onnx", "onnxruntime", "PIL")
_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.ENOENT: "check the path",
    errno.ENAMETOOLONG: "pass a shorter one",
}
_RENAMED = {"calibrate-labelled": "calibrate --labels N"}
_COMPLETE = "_COVCAL_COMPLETE"  # by which a shell asks for what to complete
_LESS_MEMORY = "give less data at once, a smaller --batch or --size, or a larger machine"
OK, ERROR, LIMIT_EXCEEDED, INTERRUPTED = 0, 1, 3, 130


class _Command(TyperCommand):
    """A command to which an option that nothing has a use for is an error in its usage."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UnusedOptionError as error:
            raise typer.BadParameter(error.reason, ctx, param_hint=error.option) from error

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options under their headings (``rich_help_panel``), in the order of each."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            heading = "Arguments" if parameter.param_type_name == "argument" else "Options"
            heading = getattr(parameter, "rich_help_panel", None) or heading
            if record is not None:
                groups.setdefault(heading, []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)


class _Group(TyperGroup):
    """The commands, with a word on those that have another name now."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in _RENAMED:
            ctx.fail(f"{args[0]} is now covcal {_RENAMED[args[0]]}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="covcal",
    cls=_Group,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _command(**named: Any) -> Callable[[Callable[..., None]], None]:
    """Return what registers a function as a command."""

    def register(function: Callable[..., None]) -> None:
        for parameter in signature(function).parameters.values():
            for information in get_args(parameter.annotation)[1:]:
                # A file that cannot be read is a bad input, named where it is read, no bad usage.
                information.readable = False
        app.command(cls=_Command, **named)(function)

    return register


_command(name="run", short_help="Take every step in one folder.")(run_command)
_command(short_help="Run a classifier; keep features and logits.")(extract)
_command(short_help="Join the features files of parts of the data.")(merge)
_command(short_help="Learn features on which the domains look alike.")(adapt)
_command(short_help="Estimate target accuracy; without labels, or by a few.")(estimate)
_command(short_help="Fit a temperature; without target labels, or to a few.")(calibrate)
_command(short_help="Pick the target rows whose labels tell most.")(pick)
_command(short_help="Put labels of picked rows into their file.")(label)
_command(short_help="Measure calibrations where labels are known.")(evaluate)
_command(short_help="Rank methods on several labelled shifts.")(compare)
_command(short_help="Write calibrated probabilities of every row.")(apply)
_command(short_help="Write the model with calibrated probabilities.")(export)
_command(short_help="Say whether a calibration still holds.")(watch)
_command(short_help="Write a page to show a colleague.")(report)
_command(short_help="Show what a covcal file holds.")(inspect)
_command(short_help="Run the four steps on an embedded example.")(demo)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"covcal {__version__}")
        raise typer.Exit


class Shell(StrEnum):
    """The shells that can complete covcal's commands and options."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def _completion() -> Any:
    """Return typer's completion, made ready for the shells that it knows."""
    completion: Any = import_module("typer.completion")
    completion.completion_init()
    return completion


def _show_completion(shell: Shell | None) -> None:
    if shell is not None:
        made = _completion().get_completion_script
        print(made(prog_name="covcal", complete_var=_COMPLETE, shell=shell.value))
        raise typer.Exit


def _install_completion(shell: Shell | None) -> None:
    if shell is not None:
        _, path = _completion().install(
            shell=shell.value, prog_name="covcal", complete_var=_COMPLETE
        )
        print(f"installed in {path}: it works in a new {shell.value}")
        raise typer.Exit


@app.callback()
def covcal(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
    install_completion: Annotated[
        Shell | None,
        typer.Option(
            callback=_install_completion, is_eager=True, help="Complete commands in this shell."
        ),
    ] = None,
    show_completion: Annotated[
        Shell | None,
        typer.Option(
            callback=_show_completion, is_eager=True, help="Print what that would install."
        ),
    ] = None,
) -> None:
    """Recalibrate the confidence of a trained classifier on shifted data.

    No labels of the new data are needed. File to file, in four steps:

    \b
      covcal extract model.onnx source/ target/    writes features.h5
      covcal adapt                                 writes adapted.h5
      covcal calibrate -o cal.json
      covcal evaluate                              where some labels are known

    \b
    Then for rows, as a model, as a page; or all of it at once:
      covcal apply, covcal export, covcal report
      covcal run model.onnx source/ target/

    \b
    Try it on embedded data:
      covcal demo
    """


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; never raises."""
    prepare_streams()
    if _COMPLETE in os.environ:
        _completion()
    try:
        result = app(args=list(arguments), prog_name="covcal", standalone_mode=False)
        sys.stdout.flush()
        if result == INTERRUPTED:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
        return result if isinstance(result, int) else OK
    except (Exception, KeyboardInterrupt) as error:
        # Ctrl-C may come out of compiled code as any other error.
        told = isinstance(error, StoppedError) or not interrupt.asked()
        return _ended(error if told else KeyboardInterrupt())


def _ended(error: BaseException) -> int:
    """Print in which way a command failed, and return its exit code."""
    if isinstance(error, StoppedError):
        print(f"interrupted: {message(str(error))}", file=sys.stderr)
        return INTERRUPTED
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        print("interrupted: no partial output was left", file=sys.stderr)
        return INTERRUPTED
    if isinstance(error, LimitExceededError):
        if str(error):  # else the result has said it
            say("FAILED", str(error))
        return LIMIT_EXCEEDED
    if isinstance(error, OSError) and error.errno in (errno.EPIPE, errno.EBADF):
        # Nothing takes what is left of the result: keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):  # the reader (head, less) went away
        return ERROR
    if isinstance(error, CLICK_ERROR):
        error.message = _suggesting(error.message)
        error.show()
        return int(error.exit_code)
    if isinstance(error, CovcalError):
        text = str(error)
    elif isinstance(error, ModuleNotFoundError):
        # Installed with --no-deps, as README shows for jobs that only evaluate.
        name = str(error.name).partition(".")[0]
        needed = "onnx onnxruntime pillow" if name in _OF_EXTRACT else name
        text = f"this needs {name}: pip install {needed}"
    elif isinstance(error, OSError):
        text = _explained(error)
    elif isinstance(error, MemoryError):
        text = f"out of memory ({message(str(error) or 'no figures')}): {_LESS_MEMORY}"
    else:
        traceback.print_exception(error)
        text = (
            f"this is a bug in covcal {__version__} (Python {sys.version.split()[0]}): please "
            "report the lines above and the command"
        )
    say("error", text)
    return ERROR


def _suggesting(text: str) -> str:
    """Return a message on an option without pydantic's prefix, and with the choice it is like."""
    text = text.removeprefix("Value error, ")
    found = re.fullmatch("'(.*)' is not one of (.*)", text)
    if found is None:
        return text
    choices = {choice.lower(): choice for choice in re.findall("'([^']*)'", found[2])}
    like = get_close_matches(found[1].lower(), choices, n=1)
    return f"{text.rstrip('.')}: did you mean {choices[like[0]]}?" if like else text


def _explained(error: OSError) -> str:
    """Say what the system refused in covcal's own form: file, thing, remedy."""
    reason = (error.strerror or str(error)).lower()
    remedy = _REMEDIES.get(error.errno or 0, "check it and try again")
    return message(f"{error.filename or 'the output'}: {reason}: {remedy}")


def main() -> None:
    """Run the command line of this process and exit."""
    # Before NumPy is loaded: its products are short here, and BLAS threads that wait for each other
    # on a busy machine cost up to ten times what they gain.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    interrupt.watch()
    code = run(sys.argv[1:])
    interrupt.ignore()
    sys.exit(code)
