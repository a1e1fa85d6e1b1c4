"""Who may use a compiled model: runs in flight, closing, and forks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from penstock.errors import ClosedError, StateError

_generation = 0


def _forked() -> None:
    global _generation  # noqa: PLW0603  # the one fact a child process must learn
    _generation += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Gate:
    """A context manager around each run.

    `close` lets no new run in and waits for those inside, for a while; the last of them does then what is left to do. In a child process after `fork`, entering
    raises `StateError` without touching the lock, which another thread may have held.
    """

    __slots__ = ("_closed", "_generation", "_idle", "_inside", "_last", "_lock", "_subject")

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._generation = _generation
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        # One for each run, put in and taken out without the lock: either is a single step of the interpreter.
        self._inside: list[None] = []
        self._closed = False
        self._last: Callable[[], None] | None = None

    @property
    def forked(self) -> bool:
        """Whether this process is a child forked after the gate was made."""
        return self._generation != _generation

    @property
    def closed(self) -> bool:
        """Whether no new run is let in."""
        return self._closed

    def check_open(self) -> None:
        """As `check`, where nothing is wrong at once."""
        if self._closed or self._generation != _generation:
            self.check()

    def check(self) -> None:
        """Raises what entering would raise."""
        if self.forked:
            raise StateError(
                f"this {self._subject} was made before a fork; compile again in the child process"
            )
        if self._closed:
            raise ClosedError(f"{self._subject} used after close()")

    def __enter__(self) -> None:
        if self._generation != _generation:
            self.check()
        self._inside.append(None)
        # Looked at behind that: `close` either finds who enters, or was before.
        if self._closed:
            self.__exit__()
            self.check()

    def __exit__(self, *_: object) -> None:
        self._inside.pop()
        if self._closed:
            self._leave_closed()

    def _leave_closed(self) -> None:
        last = None
        with self._lock:
            if not self._inside:
                self._idle.notify_all()
                last, self._last = self._last, None
        if last is not None:
            last()

    def close(self, last: Callable[[], None], end: float) -> int:
        """Closes and waits until *end*, of `time.monotonic`; how many are still inside. *last* is called once none is: here,
        or by the last of those. A gate that is closed already, or forked, is left as it is.
        """
        if self.forked:
            return 0
        with self._idle:
            if self._closed:
                return len(self._inside)
            self._closed = True
            while self._inside and (left := end - time.monotonic()) > 0:
                self._idle.wait(left)
            if self._inside:
                self._last = last
                return len(self._inside)
        last()
        return 0
