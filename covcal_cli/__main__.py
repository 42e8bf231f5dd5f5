"""Start the program ``covcal`` (or ``python -m covcal_cli``), and handle Ctrl-C.

Ctrl-C needs care in three cases:

- Ctrl-C can crash the import of a compiled module, so the handler waits for the import.
- Compiled code may turn Ctrl-C into another error, so the command line asks `was_interrupted`.
- Python ignores Ctrl-C in a destructor, so the handler sends Ctrl-C again a moment later.
"""

import _thread
import gc
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

_PAUSE = 0.3  # seconds until Ctrl-C is sent again
_IMPORTING = "<frozen importlib"
_INTERRUPTED = 130
_was_pressed = threading.Event()


def main() -> None:
    """Run the command line of this process and exit."""
    try:
        heed_interrupts()  # Ctrl-C must also end the imports that follow.
        # Several BLAS threads can make short matrix products ten times slower on a busy machine.
        # NumPy reads OPENBLAS_NUM_THREADS when NumPy is imported.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        # Collecting garbage less often makes imports faster.
        gc.set_threshold(50_000)
        from covcal_cli.cli.app import run

        code = run(sys.argv[1:], was_interrupted)
        ignore_interrupts()
    except KeyboardInterrupt:
        print("interrupted: no partial output was left", file=sys.stderr)
        code = _INTERRUPTED
    sys.exit(code)


def heed_interrupts() -> None:
    """Handle Ctrl-C, except in a background job that ignores Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _handle_unraisable


def ignore_interrupts() -> None:
    """Ignore Ctrl-C, because the result is complete."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def was_interrupted() -> bool:
    """Return whether the user has pressed Ctrl-C."""
    return _was_pressed.is_set()


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number
    _was_pressed.set()
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORTING):
            _send_later()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _handle_unraisable(error: Any) -> None:
    if error.exc_type is KeyboardInterrupt:
        _send_later()
    else:
        sys.__unraisablehook__(error)


def _send() -> None:
    if sys.platform == "win32":
        _thread.interrupt_main()
    else:  # A simulated signal would not end a waiting system call, so send a real signal.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _send_later() -> None:
    timer = threading.Timer(_PAUSE, _send)
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    main()
