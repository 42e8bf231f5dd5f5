"""``covcal`` as a process that starts at once: forked from a process that has imported it all.

A new Python takes half a second to import covcal, longer than most commands of the tests take. Like
a new process, a forked process has its own streams, folder, environment and signals.
"""

import ast
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO, TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Any

# What these commands import is imported before the first fork.
_WARM = ("calibrate", "estimate", "evaluate", "report", "watch", "apply", "inspect", "extract")
# A script of dozens of commands needs no good intervals: these are given few resamples.
_RESAMPLING = {"report", "evaluate"}
_FEW = ["--bootstrap", "100"]
_RUNNING: list[tuple[subprocess.Popen[bytes], tempfile.TemporaryDirectory[str]]] = []
_REPOSITORY = Path(__file__).parents[1]
_CLIENT = """#!{python} -IS
# The modules json and socket would take longer to load than the rest.
import array, os, sys
from _socket import AF_UNIX, SCM_RIGHTS, SOL_SOCKET, socket
asked = dict(arguments=sys.argv[1:], folder=os.getcwd(), env=dict(os.environ), few=True)
connection = socket(AF_UNIX)
connection.connect("{address}")
text = repr(asked).encode()
streams = array.array("i", [0, 1, 2])
connection.sendmsg([b"%16d" % len(text)], [(SOL_SOCKET, SCM_RIGHTS, streams)])
connection.sendall(text)
answer = b""
while part := connection.recv(99):
    answer += part
sys.exit(int(answer.split()[1]))
"""


class Forked:
    """A forked ``covcal``; the streams are file descriptors, of which stdin is empty."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        stdout: int,
        stderr: int,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        before: str = "",
        modules: Sequence[str] = (),
    ) -> None:
        """Start it after the statements `before`; `modules` are imported before the fork."""
        asked = {
            "arguments": list(arguments),
            "folder": str(cwd or Path.cwd()),
            "env": {**os.environ, **(env or {})},
            "before": before,
            "modules": list(modules),
        }
        text = repr(asked).encode()
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(_server())
        with Path(os.devnull).open("rb") as nothing:
            streams = [nothing.fileno(), stdout, stderr]
            socket.send_fds(self._connection, [b"%16d" % len(text)], streams)
        self._connection.sendall(text)
        self._answer = self._connection.makefile()
        self.pid = int(self._answer.readline())
        self._code: int | None = None

    def wait(self, timeout: float = 120) -> int:
        """Return the exit code when it has ended."""
        if self._code is None:
            self._connection.settimeout(timeout)
            self._code = int(self._answer.readline())
        return self._code

    def __enter__(self) -> "Forked":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and self._code is None:
            os.kill(self.pid, signal.SIGKILL)
        with self._connection, self._answer:
            self.wait()


@contextmanager
def forked(folder: Path) -> Iterator[Path]:
    """Yield a command that does as ``covcal`` does, with few resamples for intervals."""
    command = folder / "covcal"
    command.write_text(_CLIENT.format(python=sys.executable, address=_server()))
    command.chmod(0o755)
    yield command


def stop_server() -> None:
    """End the process that forks, if it was started."""
    while _RUNNING:
        process, folder = _RUNNING.pop()
        process.communicate()  # closes its stdin, which ends it
        folder.cleanup()
    _server.cache_clear()


@cache
def _server() -> str:
    """Start the process that forks, and return the address of its socket."""
    folder = tempfile.TemporaryDirectory(prefix="covcal-")
    address = f"{folder.name}/socket"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.forked", address],
        cwd=_REPOSITORY,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    _RUNNING.append((process, folder))
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return address


def serve(address: str) -> None:
    """Fork a process that does as ``covcal`` does whenever somebody asks."""
    import importlib

    import numpy.fft
    import numpy.ma  # noqa: F401
    import typer

    from covcal_cli import api
    from covcal_cli.cli import app

    # typer makes the commands anew for every call, in more time than many of them take.
    app.app = typer.main.get_command(app.app)  # type: ignore[assignment]
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        for name in _WARM:
            app.run([name, "nothing.h5"])
    for name in api.__all__:
        getattr(api, name)  # which loads its module
    os.fsync = lambda _: None  # type: ignore[assignment]  # as in tests/conftest.py
    _keep_modules()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        print("ready", flush=True)
        # Standard input ends with the process of the tests, however that ends.
        while listening in select.select([listening, sys.stdin], [], [])[0]:
            connection, _ = listening.accept()
            with connection:
                length, streams, *_ = socket.recv_fds(connection, 16, 3)
                asked = ast.literal_eval(connection.recv(int(length), socket.MSG_WAITALL).decode())
                missing = [name for name in asked.get("modules", ()) if name not in sys.modules]
                for name in missing:
                    importlib.import_module(name)
                if missing:
                    _keep_modules()
                child = os.fork()
                if child == 0:
                    listening.close()
                    connection.close()
                    _become_covcal(asked, streams)
                for stream in streams:
                    os.close(stream)
                connection.sendall(b"%d\n" % child)
                _, status = os.waitpid(child, 0)
                connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _keep_modules() -> None:
    """Hide all objects from the garbage collector, or a child would copy them to search them."""
    gc.collect()
    gc.freeze()


def _become_covcal(asked: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Run the command that was asked for, and end as a process of its own does."""
    from covcal_cli.__main__ import main

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, max(streams) + 1)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["folder"])
    arguments = asked["arguments"]
    if asked.get("few") and arguments[:1] and arguments[0] in _RESAMPLING:
        arguments += _FEW  # the last one counts
    sys.path[0] = asked["folder"]
    sys.argv = ["covcal", *arguments]
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = _text_stream(1), _text_stream(2)
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]
    code: Any = 1
    try:
        exec(asked.get("before", ""), {"__name__": "__main__"})
        main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    for written in (sys.stdout, sys.stderr):
        try:
            if written is not None:
                written.flush()
        except OSError:
            code = 120  # as Python does
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _text_stream(number: int) -> TextIOWrapper:
    """Open a stream as Python does at its start."""
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    if number == 2:
        errors = "backslashreplace"
    raw = open(number, "wb", closefd=False)  # noqa: SIM115
    return TextIOWrapper(
        raw, encoding or "utf-8", errors or "strict", line_buffering=number == 2 or raw.isatty()
    )


if __name__ == "__main__":
    serve(sys.argv[1])
