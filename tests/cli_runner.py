"""Runs covcal's command line: in this process (fast), or as a process of its own."""

import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from unittest import mock

import typer

from covcal_cli.cli import app, console
from covcal_cli.evaluate import gates, result
from tests.forked import Forked

# typer makes the commands anew for every call, in more time than many of them take.
COMMANDS: Any = typer.main.get_command(app.app)
# The intervals of a page take most of its time; a tenth of the resamples show the same.
for _option in COMMANDS.commands["report"].params:
    if _option.name == "bootstrap":
        _option.default = 100
Argument = str | Path | int | float


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    def require_success(self) -> "Outcome":
        """Fail with everything that was printed unless the exit code is 0."""
        assert self.code == 0, f"exit code {self.code}\n{self.out}\n{self.err}"
        return self

    def error_line(self) -> str:
        """Require exit code 1, no result, and one line on stderr; return it without "error: "."""
        assert self.code == 1, f"exit code {self.code}\n{self.out}\n{self.err}"
        assert self.out == ""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error: "), self.err
        assert "this is a bug" not in self.err
        return lines[0].removeprefix("error: ")

    def usage_error(self) -> str:
        """Require exit code 2 and no result; return the last line of stderr."""
        assert self.code == 2, f"exit code {self.code}\n{self.out}\n{self.err}"
        assert self.out == ""
        assert "Traceback" not in self.err
        return self.err.splitlines()[-1]


def covcal(*arguments: Argument, cwd: Path | None = None) -> Outcome:
    """Run one command in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        chdir(cwd) if cwd else nullcontext(),
        mock.patch.object(app, "app", COMMANDS),
        # On a busy machine a line of progress would stand before the lines that a test expects.
        mock.patch.object(console, "_SECONDS", math.inf),
        # A gate and a verdict draw a thousand resamples, most of the time of many commands.
        mock.patch.object(gates, "RESAMPLES", 200),
        mock.patch.object(result, "RESAMPLES", 100),
    ):
        code = app.run([str(argument) for argument in arguments])
    return Outcome(code, _text(out), _text(err))


def printed_json(*arguments: Argument, cwd: Path | None = None) -> dict[str, Any]:
    """Run a command with ``-o -`` and return what it prints, read as strict JSON."""

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    done = covcal(*arguments, "-o", "-", cwd=cwd).require_success()
    content: dict[str, Any] = json.loads(done.out, parse_constant=refuse)
    return content


def covcal_process(
    *arguments: Argument,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    before: str = "",
    modules: Sequence[str] = (),
    fresh: bool = False,
) -> Outcome:
    """Run one command as a process of its own, after the Python statements `before`.

    The process is forked from a process that has imported covcal and `modules`. If `fresh`, it is a
    new Python instead, which imports them itself.
    """
    if not fresh:
        # Pipes, since a limit on the size of files would hold for files.
        (out, stdout), (err, stderr) = os.pipe(), os.pipe()
        texts = [str(argument) for argument in arguments]
        with (
            ThreadPoolExecutor() as readers,
            Forked(
                texts,
                stdout=stdout,
                stderr=stderr,
                cwd=cwd,
                env=env,
                before=before,
                modules=modules,
            ) as process,
        ):
            os.close(stdout)
            os.close(stderr)
            written = readers.map(_all_of, (out, err))
            return Outcome(process.wait(), *written)
    done = subprocess.run(
        command_line(*arguments, before=before),
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        env={**os.environ, **(env or {})},
        check=False,
        timeout=120,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def command_line(*arguments: Argument, before: str = "") -> list[str]:
    """Return the command that runs covcal in a new Python, after the statements `before`."""
    texts = [str(argument) for argument in arguments]
    if not before:
        return [sys.executable, "-m", "covcal_cli", *texts]
    return [sys.executable, "-c", f"{before}\nfrom covcal_cli.__main__ import main; main()", *texts]


def interrupted(
    hook: str, *arguments: Argument, cwd: Path, modules: Sequence[str] = ()
) -> tuple[int, str]:
    """Send Ctrl-C once `hook` has printed "ready"; return exit code and the rest of stderr.

    A shell starts what it puts in the background with Ctrl-C ignored, and children inherit that.
    """
    obeying = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    texts = [str(argument) for argument in arguments]
    with TemporaryFile() as out:
        read, write = os.pipe()
        with (
            os.fdopen(read, encoding="utf-8") as err,
            Forked(
                texts,
                stdout=out.fileno(),
                stderr=write,
                cwd=cwd,
                before=obeying + hook,
                modules=modules,
            ) as process,
        ):
            os.close(write)
            assert err.readline() == "ready\n"
            time.sleep(0.2)  # into the middle of what follows the word
            os.kill(process.pid, signal.SIGINT)
            return process.wait(), err.read()


def _all_of(descriptor: int) -> str:
    with os.fdopen(descriptor, encoding="utf-8", newline="") as stream:
        return stream.read()


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    stream.seek(0)
    return stream.read()
