"""Who may use a compiled model: runs in flight, closing, and forks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from weakref import WeakSet

from penstock.errors import ClosedError, StateError

_gates: WeakSet[Gate] = WeakSet()


def _forked() -> None:
    for gate in list(_gates):
        gate.forked = gate.shut = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Gate:
    """A context manager around each run.

    `close` lets no new run in and waits for those inside, for a while; the last of them does then
    what is left to do. In a child process after `fork`, entering raises `StateError` without
    touching the lock, which another thread may have held.
    """

    __slots__ = (
        "__weakref__",
        "_closed",
        "_idle",
        "_last",
        "_lock",
        "_subject",
        "forked",
        "inside",
        "shut",
    )

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self.inside: list[None] = []
        """One for each run, put in and taken out without the lock: either is a single step of the
        interpreter.
        """
        self.shut = self.forked = False
        """Whether no new run is let in; and whether that is because this process is a child, forked
        since.
        """
        self._closed = False
        self._last: Callable[[], None] | None = None
        _gates.add(self)

    @property
    def closed(self) -> bool:
        """Whether it was closed, in this process or, before a fork, in its parent."""
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
        self.inside.append(None)
        # Looked at behind that: `close` either finds who enters, or was before.
        if self.shut:
            self.__exit__()
            self.check()

    def __exit__(self, *_: object) -> None:
        self.inside.pop()
        if self.shut:
            self.leave_shut()

    def leave_shut(self) -> None:
        """What leaving does once it is shut: the last run inside does what is left to do."""
        if self.forked:
            return
        last = None
        with self._lock:
            if not self.inside:
                self._idle.notify_all()
                last, self._last = self._last, None
        if last is not None:
            last()

    def close(self, last: Callable[[], None], end: float) -> int:
        """Closes and waits until *end*, of `time.monotonic`; how many are still inside. *last* is
        called once none is: here, or by the last of those. A gate that is closed already, or
        forked, is left as it is.
        """
        if self.forked:
            return 0
        with self._idle:
            if self._closed:
                return len(self.inside)
            self._closed = self.shut = True
            while self.inside and (left := end - time.monotonic()) > 0:
                self._idle.wait(left)
            if self.inside:
                self._last = last
                return len(self.inside)
        last()
        return 0
