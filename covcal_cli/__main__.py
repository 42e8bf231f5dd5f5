"""The program ``covcal``, also as ``python -m covcal_cli``: its start, and Ctrl-C.

Ctrl-C always ends the command: it is neither lost nor reported as another error. If Ctrl-C
interrupts the loading of a compiled module, the module raises another error or ends the process. So
the handler waits until the module is loaded. Compiled code may also turn Ctrl-C into another error
at other times. So `was_interrupted` is asked before an error is reported. Python prints an
exception in a destructor, or in the callback of a weak reference, and continues. If Ctrl-C arrives
there, the handler raises it again shortly afterwards.
"""

import _thread
import gc
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

_AGAIN = 0.3  # seconds until Ctrl-C is raised again; a destructor has ended by then
_IMPORTING = "<frozen importlib"
_INTERRUPTED = 130
_asked = threading.Event()


def main() -> None:
    """Run the command line of this process and exit.

    Ctrl-C must end the program in one line, also while its modules are still being loaded. So the
    handler of Ctrl-C is installed before anything else is imported.
    """
    try:
        heed_interrupts()
        # NumPy must not be loaded yet. The matrix products of covcal are short. On a busy machine,
        # BLAS threads that wait for each other make such products up to ten times slower.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        # Loading modules makes many objects and no garbage. Looking for garbage less often saves a
        # tenth of the start.
        gc.set_threshold(50_000)
        from covcal_cli.cli.app import run

        code = run(sys.argv[1:], was_interrupted)
        ignore_interrupts()
    except KeyboardInterrupt:
        print("interrupted: no partial output was left", file=sys.stderr)
        code = _INTERRUPTED
    sys.exit(code)


def heed_interrupts() -> None:
    """Handle Ctrl-C from here on, unless this process ignores it, as background jobs do."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _forgotten


def ignore_interrupts() -> None:
    """Ignore Ctrl-C, because the result is complete."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def was_interrupted() -> bool:
    """Return whether Ctrl-C was pressed since `heed_interrupts`."""
    return _asked.is_set()


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number
    _asked.set()
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORTING):
            _try_again()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _forgotten(error: Any) -> None:
    if error.exc_type is KeyboardInterrupt:
        _try_again()
    else:
        sys.__unraisablehook__(error)


def _send() -> None:
    if sys.platform == "win32":
        _thread.interrupt_main()
    else:  # A real signal also ends a system call that waits; a simulated signal does not.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _try_again() -> None:
    later = threading.Timer(_AGAIN, _send)
    later.daemon = True
    later.start()


if __name__ == "__main__":
    main()
