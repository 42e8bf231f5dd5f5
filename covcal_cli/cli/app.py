"""The command line's frame: the commands, the one error boundary, the one place that exits."""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from covcal_cli import __version__
from covcal_cli.cli.adapt import adapt
from covcal_cli.cli.apply import apply
from covcal_cli.cli.calibrate import calibrate
from covcal_cli.cli.calibrate_labelled import calibrate_labelled
from covcal_cli.cli.compare import compare
from covcal_cli.cli.demo import demo
from covcal_cli.cli.estimate import estimate
from covcal_cli.cli.evaluate import evaluate
from covcal_cli.cli.export import export
from covcal_cli.cli.extract import extract
from covcal_cli.cli.inspect import inspect
from covcal_cli.cli.merge import merge
from covcal_cli.cli.report import report
from covcal_cli.cli.run import run as run_command
from covcal_cli.errors import CovcalError, LimitExceededError, UnusedOptionError

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
OK, ERROR, LIMIT_EXCEEDED, INTERRUPTED = 0, 1, 3, 130


class _Command(TyperCommand):
    """A command to which an option that nothing has a use for is an error in its usage."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UnusedOptionError as error:
            raise typer.BadParameter(error.reason, ctx, param_hint=error.option) from error


app = typer.Typer(
    name="covcal",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_command = partial(app.command, cls=_Command)
_command("run", short_help="Take every step in one folder.")(run_command)
_command(short_help="Run a classifier; keep features and logits.")(extract)
_command(short_help="Join the features files of parts of the data.")(merge)
_command(short_help="Learn features on which the domains look alike.")(adapt)
_command(short_help="Estimate target accuracy; reads no target label.")(estimate)
_command(short_help="Fit a temperature; reads no target label.")(calibrate)
_command(short_help="Fit a temperature to a few target labels.")(calibrate_labelled)
_command(short_help="Measure calibrations where labels are known.")(evaluate)
_command(short_help="Rank methods on several labelled shifts.")(compare)
_command(short_help="Write calibrated probabilities of every row.")(apply)
_command(short_help="Write the model with calibrated probabilities.")(export)
_command(short_help="Write a page to show a colleague.")(report)
_command(short_help="Show what a covcal file holds.")(inspect)
_command(short_help="Run the four steps on an embedded example.")(demo)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"covcal {__version__}")
        raise typer.Exit


@app.callback()
def covcal(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Make the confidence of a trained classifier true again on shifted data.

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
    try:
        result = app(args=list(arguments), prog_name="covcal", standalone_mode=False)
        sys.stdout.flush()
        if result == INTERRUPTED:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
        return result if isinstance(result, int) else OK
    except CovcalError as error:
        return _failed(str(error))
    except LimitExceededError:
        return LIMIT_EXCEEDED
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted: no partial output was left", file=sys.stderr)
        return INTERRUPTED
    except ModuleNotFoundError as error:
        # Installed with --no-deps, as README shows for jobs that only evaluate.
        name = str(error.name).partition(".")[0]
        needed = "onnx onnxruntime pillow" if name in _OF_EXTRACT else name
        return _failed(f"this needs {name}: pip install {needed}")
    except BrokenPipeError:
        # The reader (head, less) went away: keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR
    except OSError as error:
        return _failed(_explained(error))
    except Exception as error:
        if isinstance(error, CLICK_ERROR):
            error.show()
            return int(error.exit_code)
        traceback.print_exc()
        return _failed(
            f"this is a bug in covcal {__version__} (Python {sys.version.split()[0]}): please "
            "report the lines above and the command"
        )


def _failed(text: str) -> int:
    print(f"error: {text}", file=sys.stderr)
    return ERROR


def _explained(error: OSError) -> str:
    """Say what the system refused in covcal's own form: file, thing, remedy."""
    reason = (error.strerror or str(error)).lower()
    remedy = _REMEDIES.get(error.errno or 0, "check it and try again")
    return f"{error.filename or 'the output'}: {reason}: {remedy}"


def main() -> None:
    """Run the command line of this process and exit."""
    # Before NumPy is loaded: its products are short here, and BLAS threads that wait for each other
    # on a busy machine cost up to ten times what they gain.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(run(sys.argv[1:]))
