"""The end of a compiled model: who is waited for, for how long, and who releases what is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.errors import counted
from penstock.logs import Log

if TYPE_CHECKING:
    from penstock.execution.executable import Executable

log = Log(__name__)

CLOSE_SECONDS: Final = 10.0
"""How long `close` waits for runs in flight, and for compiles in the background."""


def close(executable: Executable) -> None:
    """`CompiledModel.close`."""
    if executable.gate.forked:
        return
    # Who closes already may wait for this thread, where it is one of the model's own.
    inside = threading.current_thread().name.startswith(executable.thread_name)
    if not executable.closing.acquire(blocking=not inside):
        return
    try:
        end = time.monotonic() + CLOSE_SECONDS
        with executable.lock:
            submitter = executable.submitter
        if submitter is not None:
            submitter.close(end)
        if late := executable.gate.close(partial(_end_bursts, executable, end), end):
            runs = f"{counted(late, 'run')} that {'has' if late == 1 else 'have'}"
            log.warning("a compiled model was closed with %s not ended", runs)
    finally:
        executable.closing.release()


def _end_bursts(executable: Executable, end: float) -> None:
    """Once no other run is in flight: the last burst that has let go, and may be in a run still,
    releases the rest.
    """
    with executable.lock:
        bursts = list(executable.bursts)
    left = Countdown(len(bursts) + 1, partial(_release, executable, end))
    for burst in bursts:
        burst.end(left, end)
    left()


def _release(executable: Executable, end: float) -> None:
    executable.base.compilation.stop_compiling(end)
    executable.variants.stop_compiling(end)
    if executable.feedback is not None:
        executable.feedback.close()
    executable.variants.close()
    executable.base.close()


class Countdown:
    """Calls *done* when it has been called *count* times. From any thread."""

    def __init__(self, count: int, done: Callable[[], None]) -> None:
        self._left, self._done = count, done
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self._left -= 1
            last = not self._left
        if last:
            self._done()
