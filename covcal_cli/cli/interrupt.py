"""Ctrl-C: told apart from errors, kept out of half-loaded modules, and not lost in destructors.

An interruption that falls into the loading of a compiled module comes out of it as another error,
or ends the process; so it waits until the module is there. In compiled code it may come out as
another error anywhere: hence `asked`, which the error boundary looks at before it believes one.
Python prints and forgets what a destructor or the callback of a weak reference raises: an
interruption that falls into one is tried again.
"""

import _thread
import signal
import sys
import threading
from types import FrameType
from typing import Any

_AGAIN = 0.3  # seconds until it is tried again, when the destructor is done
_IMPORTING = "<frozen importlib"
_asked = threading.Event()


def watch() -> None:
    """Take Ctrl-C from here on, unless it is ignored, as in a shell's background job."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _forgotten


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
    else:  # a signal of the system ends a wait as well, as one that Python makes up does not
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _try_again() -> None:
    later = threading.Timer(_AGAIN, _send)
    later.daemon = True
    later.start()
