"""``covcal`` as a command that starts at once: a process that has imported it all forks for each.

A script of dozens of commands takes seconds with it, which it would spend on importing, and on
resampling: intervals are of few resamples where a command leaves their number to covcal.
"""

import gc
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

_PASSED_ON = "GITHUB_STEP_SUMMARY"
_FEW = {"report", "evaluate"}
_WARM = ("calibrate", "estimate", "evaluate", "report", "watch", "apply", "inspect", "extract")
_CLIENT = """#!{python} -IS
import json, os, socket, sys
asked = dict(arguments=sys.argv[1:], folder=os.getcwd(), summary=os.environ.get("{passed_on}"))
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect("{address}")
    socket.send_fds(connection, [json.dumps(asked).encode()], [0, 1, 2])
    sys.exit(int(connection.recv(9)))
"""


@contextmanager
def forked(folder: Path) -> Iterator[Path]:
    """Yield a command that does as ``covcal`` does, for as long as the block lasts."""
    address, command = folder / "socket", folder / "covcal"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.examples.forked", str(address)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        values = {"python": sys.executable, "passed_on": _PASSED_ON, "address": address}
        command.write_text(_CLIENT.format(**values))
        command.chmod(0o755)
        try:
            yield command
        finally:
            process.terminate()


def serve(address: str) -> None:
    """Do as ``covcal`` does whenever somebody asks, until the process is ended."""
    import numpy.fft
    import numpy.ma  # noqa: F401

    from covcal_cli.cli.app import run

    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        for name in _WARM:
            run([name, "nothing.h5"])  # which imports what that command needs
    gc.freeze()  # a child that collected what it has from us would copy all of it
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        print("ready", flush=True)
        while True:
            connection, _ = listening.accept()
            with connection:
                text, descriptors, *_ = socket.recv_fds(connection, 1 << 16, 3)
                child = os.fork()
                if child == 0:
                    asked = json.loads(text)
                    for number, descriptor in enumerate(descriptors):
                        os.dup2(descriptor, number)
                    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
                    os.chdir(asked["folder"])
                    if asked["summary"] is not None:
                        os.environ[_PASSED_ON] = asked["summary"]
                    arguments = asked["arguments"]
                    if arguments[0] in _FEW:
                        arguments += ["--bootstrap", "100"]  # the last one counts
                    code = run(arguments)
                    sys.stdout.flush()
                    os._exit(code)
                for descriptor in descriptors:
                    os.close(descriptor)
                _, status = os.waitpid(child, 0)
                connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    serve(sys.argv[1])
