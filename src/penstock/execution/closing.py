"""The end of a compiled model: who is waited for, for how long, and who releases what is left."""

# ruff: noqa: SLF001  # the friend of CompiledModel

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.errors import counted
from penstock.logs import Log

if TYPE_CHECKING:
    from penstock.execution.compiled import CompiledModel

log = Log(__name__)

CLOSE_SECONDS: Final = 10.0
"""How long `close` waits for runs in flight, and for compiles in the background."""


def close(compiled: CompiledModel) -> None:
    """`CompiledModel.close`."""
    if compiled._gate.forked:
        return
    # Who closes already may wait for this thread, where it is one of the model's own.
    inside = threading.current_thread().name.startswith(compiled._threads)
    if not compiled._closing.acquire(blocking=not inside):
        return
    try:
        end = time.monotonic() + CLOSE_SECONDS
        with compiled._lock:
            submitter = compiled._submitter
        if submitter is not None:
            submitter.close(end)
        if late := compiled._gate.close(partial(_end_bursts, compiled, end), end):
            runs = f"{counted(late, 'run')} that {'has' if late == 1 else 'have'}"
            log.warning("a compiled model was closed with %s not ended", runs)
    finally:
        compiled._closing.release()


def _end_bursts(compiled: CompiledModel, end: float) -> None:
    """Once no other run is in flight: the last burst that has let go, and may be in a run still, releases the rest."""
    with compiled._lock:
        bursts = list(compiled._bursts)
    left = Countdown(len(bursts) + 1, partial(_release, compiled, end))
    for burst in bursts:
        burst.end(left, end)
    left()


def _release(compiled: CompiledModel, end: float) -> None:
    compiled._base.compilation.stop_compiling(end)
    compiled._variants.stop_compiling(end)
    if compiled._feedback is not None:
        compiled._feedback.close()
    compiled._variants.close()
    compiled._base.close()


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
