"""Ctrl-C: told apart from errors, and kept out of half-loaded modules.

An interruption that falls into the loading of a compiled module comes out of it as another error,
or ends the process; so it waits until the module is there. In compiled code it may come out as
another error anywhere: hence `asked`, which the error boundary looks at before it believes one.
"""

import _thread
import signal
import threading
from types import FrameType

_AGAIN = 0.05  # seconds until it is tried again
_IMPORTING = "<frozen importlib"
_asked = threading.Event()


def watch() -> None:
    """Take Ctrl-C from here on, unless it is ignored, as in a shell's background job."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def ignore() -> None:
    """Let Ctrl-C come too late: the result is there."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def asked() -> bool:
    """Return whether Ctrl-C was pressed since `watch`."""
    return _asked.is_set()


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number
    _asked.set()
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORTING):
            later = threading.Timer(_AGAIN, _thread.interrupt_main)
            later.daemon = True
            later.start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt
