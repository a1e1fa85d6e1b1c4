"""Threads that are begun without waiting for them, or not for long.

`threading.Thread.start` waits until the new thread runs. One that finds no memory for its first
step dies before that, and whoever starts it waits for ever.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any, Final

PATIENCE_SECONDS: Final = 5.0
"""How long a thread may take until it runs."""

_unborn: set[object] = set()


def begin(work: Callable[..., object], *arguments: Any) -> None:
    """Has *work* done in a thread of its own, which keeps no process from ending. It may never run:
    see `unborn`.

    Raises `RuntimeError` or `MemoryError` where there is no room for a thread.
    """
    birth = object()
    _unborn.add(birth)
    try:
        _thread.start_new_thread(_run, (birth, work, arguments))
    except BaseException:
        _unborn.discard(birth)
        raise


def begin_or_do(work: Callable[..., object], *arguments: Any) -> None:
    """As `begin`; where there is no room for a thread, *work* is done at once."""
    try:
        begin(work, *arguments)
    except (RuntimeError, MemoryError):
        work(*arguments)


class PatientThread(threading.Thread):
    """A daemon thread whose `start` waits until it runs, but no longer than *seconds*; raises
    `RuntimeError` then, also where there is no room for a thread. It may run later all the same.
    """

    def __init__(self, work: Callable[..., object], *arguments: Any, name: str) -> None:
        super().__init__(target=work, args=arguments, name=name, daemon=True)
        # What `threading.Thread.start` waits for.
        self._started = _Patient()

    def start_within(self, seconds: float | None = None) -> None:
        """As `start`, with that patience instead of `PATIENCE_SECONDS`, where it is less."""
        if seconds is not None:
            self._started.seconds = min(seconds, PATIENCE_SECONDS)
        try:
            self.start()
        except MemoryError as error:
            raise RuntimeError("there is no memory for a thread") from error


class _Patient(threading.Event):
    seconds = PATIENCE_SECONDS

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None and not super().wait(self.seconds):
            raise RuntimeError("a thread that was started does not run: no memory is left")
        return super().wait(timeout)


def unborn() -> set[object]:
    """One object for each thread of this process that was begun, or started, and has not run yet."""
    return set(_unborn) | {each for each in threading.enumerate() if not _is_alive(each)}


def _is_alive(thread: threading.Thread) -> bool:
    try:
        return thread.is_alive()
    except (AssertionError, RuntimeError):
        # One that nobody started here, and that is over.
        return True


def _run(birth: object, work: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    _unborn.discard(birth)
    work(*arguments)
