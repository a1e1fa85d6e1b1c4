"""Who may use a compiled model: runs in flight, closing, and forks."""

from __future__ import annotations

import os
import threading

from penstock.errors import ClosedError, StateError

_generation = 0


def _forked() -> None:
    global _generation  # noqa: PLW0603  # the one fact a child process must learn
    _generation += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Gate:
    """A context manager around each run.

    `close` lets no new run in and waits for those inside. In a child process after `fork`, entering
    raises `StateError` without touching the lock, which another thread may have held.
    """

    __slots__ = ("_closed", "_generation", "_idle", "_inside", "_lock", "_subject")

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._generation = _generation
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._inside = 0
        self._closed = False

    @property
    def forked(self) -> bool:
        """Whether this process is a child forked after the gate was made."""
        return self._generation != _generation

    @property
    def closed(self) -> bool:
        """Whether no new run is let in."""
        return self._closed

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
        with self._lock:
            if self._closed:
                self.check()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._closed and not self._inside:
                self._idle.notify_all()

    def close(self) -> bool:
        """Closes and waits; True for the call that closed it, False when it was closed or forked."""
        if self.forked:
            return False
        with self._idle:
            if self._closed:
                return False
            self._closed = True
            while self._inside:
                self._idle.wait()
            return True
