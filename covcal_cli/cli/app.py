"""Define the commands, catch every error, and exit."""

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from enum import StrEnum
from importlib import import_module
from inspect import signature
from itertools import pairwise, takewhile
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from covcal_cli import __version__
from covcal_cli.cli.adapt import adapt
from covcal_cli.cli.apply import apply
from covcal_cli.cli.calibrate import calibrate
from covcal_cli.cli.compare import compare
from covcal_cli.cli.console import prepare_streams, say
from covcal_cli.cli.decide import decide
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
    explained,
    message,
)

# The base class of click's errors; typer may bundle its own copy of click.
CLICK_ERROR: Any = next(kind for kind in typer.BadParameter.__mro__ if "Click" in kind.__name__)
_OF_EXTRACT = ("onnx", "onnxruntime", "PIL")

_COMPLETE = "_COVCAL_COMPLETE"  # The environment variable that asks for completions.
_LARGEST_INTEGER = 2**31 - 1  # The largest integer that an option accepts.
_HELP_GAPS = 6  # Width of borders and gaps in --help, in characters.
_LESS_MEMORY = "use a smaller --batch or --size, or a larger machine"
OK, ERROR, LIMIT_EXCEEDED, INTERRUPTED = 0, 1, 3, 130


class _Command(TyperCommand):
    """A command that checks its options, and groups them in --help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = [option for option in self.get_params(ctx) if hasattr(option, "is_flag")]
        flags, valued = (
            {
                name
                for option in options
                if option.is_flag is is_flag
                for name in (*option.opts, *option.secondary_opts)
            }
            for is_flag in (True, False)
        )
        for word, following in takewhile(lambda pair: pair[0] != "--", pairwise(args)):
            if word in valued and following in flags | valued:
                reason = f"{word} needs a value, but the next word is the option {following}"
                raise typer.BadParameter(reason, ctx, param_hint=f"'{word}'")
        words: list[str] = []
        is_choice = False
        for place, word in enumerate(args):
            follows = args[place + 1 : place + 2]
            is_choice = word == "--choices" or (is_choice and not word.startswith("-"))
            if word != "--choices" or not follows or follows[0].startswith("-"):
                words += ["--choices", word] if is_choice and word != "--choices" else [word]
        return list(super().parse_args(ctx, words))

    def invoke(self, ctx: Any) -> Any:
        for parameter in self.get_params(ctx):
            value = ctx.params.get(parameter.name)
            if isinstance(value, int) and abs(value) > _LARGEST_INTEGER:
                reason = f"{value} is too large: use at most {_LARGEST_INTEGER}"
                raise typer.BadParameter(reason, ctx, param_hint=f"'{parameter.opts[0]}'")
        try:
            return super().invoke(ctx)
        except UnusedOptionError as error:
            raise typer.BadParameter(error.reason, ctx, param_hint=error.option) from error

    def format_options(self, ctx: Any, formatter: Any) -> None:
        lines = []
        for parameter in self.get_params(ctx):
            kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
            record = parameter.get_help_record(ctx)
            if record is not None:
                lines.append((getattr(parameter, "rich_help_panel", None) or kind, record))
        _write_under_headings(lines, formatter)


class _Group(TyperGroup):
    """The program, which groups its commands in --help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands: dict[str, Any] = {
            name: self.get_command(ctx, name) for name in self.list_commands(ctx)
        }
        width = formatter.width - max(map(len, commands)) - _HELP_GAPS
        lines = [
            (command.rich_help_panel, (name, command.get_short_help_str(width)))
            for name, command in commands.items()
        ]
        _write_under_headings(lines, formatter)


def _write_under_headings(lines: Iterable[tuple[str, tuple[str, str]]], formatter: Any) -> None:
    groups: dict[str, list[tuple[str, str]]] = {}
    for heading, line in lines:
        groups.setdefault(heading, []).append(line)
    for heading, of_heading in groups.items():
        with formatter.section(heading):
            formatter.write_dl(of_heading)


app = typer.Typer(
    name="covcal",
    cls=_Group,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _command(
    group: str, short_help: str, name: str | None = None
) -> Callable[[Callable[..., None]], None]:
    """Return a decorator that registers a function as a command under the heading `group`."""

    def register(function: Callable[..., None]) -> None:
        for parameter in signature(function).parameters.values():
            for information in get_args(parameter.annotation)[1:]:
                # Otherwise, typer exits with code 2 for an unreadable file.
                information.readable = False
        app.command(name, cls=_Command, rich_help_panel=group, short_help=short_help)(function)

    return register


_STEPS, _LABELS, _TIME, _RESEARCH = "Main steps", "Labels", "Over time", "Research"

_command(_STEPS, "Run every step in one folder.", name="run")(run_command)
_command(_STEPS, "Run the classifier; write features and logits.")(extract)
_command(_STEPS, "Fit a temperature, by default without target labels.")(calibrate)
_command(_STEPS, "Estimate the accuracy on the target.")(estimate)
_command(_STEPS, "Choose the rows to accept at a given error.")(decide)
_command(_STEPS, "Measure accuracy and calibration on labelled rows.")(evaluate)
_command(_STEPS, "Write calibrated probabilities of every row.")(apply)
_command(_STEPS, "Write the model with calibrated probabilities.")(export)
_command(_STEPS, "Write a page that says whether to trust the confidence.")(report)
_command(_STEPS, "Show everything that a covcal file holds.")(inspect)
_command(_STEPS, "Join the features files of several parts of the data.")(merge)
_command(_STEPS, "Run the steps on an example that comes with covcal.")(demo)
_command(_LABELS, "Choose the target rows to label first.")(pick)
_command(_LABELS, "Add the labels of picked rows to the features file.")(label)
_command(_TIME, "Check whether a calibration still fits new data.")(watch)
_command(_RESEARCH, "Learn features that look the same on source and target.")(adapt)
_command(_RESEARCH, "Rank methods on several labelled shifts.")(compare)


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
    completion: Any = import_module("typer.completion")
    completion.completion_init()
    return completion


def _show_completion(shell: Shell | None) -> None:
    if shell is not None:
        script_of = _completion().get_completion_script
        print(script_of(prog_name="covcal", complete_var=_COMPLETE, shell=shell.value))
        raise typer.Exit


def _install_completion(shell: Shell | None) -> None:
    if shell is not None:
        _, path = _completion().install(
            shell=shell.value, prog_name="covcal", complete_var=_COMPLETE
        )
        print(f"installed completion in {path}: open a new {shell.value} to use it")
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
            callback=_install_completion,
            is_eager=True,
            help="Install completion of commands for this shell.",
        ),
    ] = None,
    show_completion: Annotated[
        Shell | None,
        typer.Option(
            callback=_show_completion,
            is_eager=True,
            help="Print the script that --install-completion installs.",
        ),
    ] = None,
) -> None:
    """Recalibrate the confidence of a trained classifier on shifted data.

    No labels of the new data are needed. Each step reads and writes files:

    \b
      covcal extract model.onnx source/ target/    writes features.h5
      covcal calibrate                             writes cal.json
      covcal evaluate                              if some target labels are known

    Then covcal apply, covcal export and covcal report use cal.json. One command runs all steps:

    \b
      covcal run model.onnx source/ target/

    \b
    Try an example on embedded data:
      covcal demo
    """


def run(arguments: Sequence[str], was_interrupted: Callable[[], bool] = lambda: False) -> int:
    """Run a command line, and return its exit code.

    `was_interrupted` returns whether Ctrl-C was pressed.
    """
    prepare_streams()
    if _COMPLETE in os.environ:
        _completion()
    try:
        result = app(args=list(arguments), prog_name="covcal", standalone_mode=False)
        sys.stdout.flush()
        if result == INTERRUPTED:  # typer returns this code after Ctrl-C
            raise KeyboardInterrupt
        return result if isinstance(result, int) else OK
    except (Exception, KeyboardInterrupt) as error:
        # compiled code may turn Ctrl-C into another error
        told = isinstance(error, StoppedError) or not was_interrupted()
        return _ended(error if told else KeyboardInterrupt())


def _ended(error: BaseException) -> int:
    try:
        sys.stdout.flush()
    except OSError:
        # Without this line, Python reports the error again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, StoppedError):
        print(f"interrupted: {message(str(error))}", file=sys.stderr)
        return INTERRUPTED
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        print("interrupted: no partial output was left", file=sys.stderr)
        return INTERRUPTED
    if isinstance(error, LimitExceededError):
        if str(error):
            say("FAILED", str(error))
        return LIMIT_EXCEEDED
    # The program that reads covcal's output has ended.
    if isinstance(error, BrokenPipeError):
        return ERROR
    if isinstance(error, CLICK_ERROR):
        error.message = _suggesting(error.message)
        error.show()
        return int(error.exit_code)
    if isinstance(error, CovcalError):
        text = str(error)
    elif isinstance(error, ModuleNotFoundError):
        name = str(error.name).partition(".")[0]
        needed = "onnx onnxruntime pillow" if name in _OF_EXTRACT else name
        text = f"this needs {name}: pip install {needed}"
    elif isinstance(error, OSError):
        text = explained(error)
    elif isinstance(error, MemoryError):
        text = f"out of memory ({message(str(error) or 'no figures')}): {_LESS_MEMORY}"
    else:
        traceback.print_exception(error)
        text = (
            f"this is a bug in covcal {__version__} (Python {sys.version.split()[0]}): please "
            "report the command and the lines above"
        )
    say("error", text)
    return ERROR


def _suggesting(text: str) -> str:
    text = text.removeprefix("Value error, ")
    if text.startswith("Input should be a valid number"):
        return "give a number; write a share as a fraction such as 0.05"
    if text.startswith("Input should be a valid integer"):
        return "give a whole number"
    match = re.fullmatch("'(.*)' is not one of (.*)", text)
    if match is None:
        return text
    choices = {choice.lower(): choice for choice in re.findall("'([^']*)'", match[2])}
    like = get_close_matches(match[1].lower(), choices, n=1)
    return f"{text.rstrip('.')}: did you mean {choices[like[0]]}?" if like else text
