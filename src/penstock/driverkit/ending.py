"""The end of a process in which an engine still compiles in a thread that nobody waits for.

The normal end of a process destroys the static objects of its C++ libraries. An engine at work
uses them, and would end the process by a signal in place of its own exit status.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from penstock.errors import GeneralFailure

WAIT_SECONDS: Final = 1.0
"""Seconds that the end of a process waits for engines at work."""

_PAUSE_SECONDS: Final = 0.01

_working: Final[list[object]] = []
"""An element for each thread that is in an engine. `append` and `remove` are atomic."""

_ending: Final = threading.Event()


@contextmanager
def engine_at_work() -> Iterator[None]:
    """A block in which an engine compiles.

    If the process ends meanwhile, its end waits `WAIT_SECONDS` for the block. If the block lasts
    longer, the process ends without the destructors and exit handlers of C and C++ libraries. It
    ends with its own exit status, after Python's exit handlers, and with its output written. Only
    glibc can do that; with other C libraries the end of the process waits for the block.

    Raises `GeneralFailure` in a daemon thread once the process is ending.
    """
    mine = object()
    _working.append(mine)
    try:
        if _ending.is_set() and threading.current_thread().daemon:
            raise GeneralFailure("the process is ending")
        yield
    finally:
        # A child that was forked in the block has cleared it.
        with suppress(ValueError):
            _working.remove(mine)


def before_exit() -> None:
    """Runs at exit: waits for engines at work, or sees to it that their objects are left alone."""
    _ending.set()
    # A second interrupt ends the wait.
    with suppress(KeyboardInterrupt):
        _wait(WAIT_SECONDS)
    if _working and not _leave_c_libraries():
        _wait()


def _wait(seconds: float = float("inf")) -> None:
    end = time.monotonic() + seconds
    while _working and time.monotonic() < end:
        time.sleep(_PAUSE_SECONDS)


def _leave_c_libraries() -> bool:
    """Lets `exit` of the C library write its buffers and end the process, before it calls what
    libraries registered. Returns whether the C library can do that.
    """
    # A process that compiles nothing at its end needs none of these.
    import ctypes

    try:
        libc = ctypes.CDLL(None)
        # glibc alone has `on_exit`, whose functions get the status of the process.
        on_exit, at_exit = libc.on_exit, libc["__cxa_atexit"]
        leave, flush = (ctypes.cast(f, ctypes.c_void_p) for f in (libc["_exit"], libc["fflush"]))
    except (AttributeError, OSError, TypeError):
        return False
    # The last that is registered is called first.
    return not (on_exit(leave, None) or at_exit(flush, None, None))


atexit.register(before_exit)

if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork.
    os.register_at_fork(after_in_child=_working.clear)
