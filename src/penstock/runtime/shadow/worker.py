"""A thread behind the caller's: there while it has work, and gone soon after."""

from __future__ import annotations

import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from penstock.compilation.calls import describe
from penstock.errors import Cancelled
from penstock.hal import CancelToken
from penstock.logs import Log

log = Log(__name__)

T = TypeVar("T")

MOST_WAITING: Final = 2
"""Jobs that wait for the one at work; what comes on top is dropped."""
IDLE_SECONDS: Final = 0.2
CLOSE_SECONDS: Final = 10.0
"""Longest that closing lets the jobs go on; they are then stopped at the next part of a model."""


class Stop(CancelToken):
    """Set when the worker is to stop; the end of the program sets it, too."""

    def is_set(self) -> bool:
        return super().is_set() or not threading.main_thread().is_alive()

    def check(self) -> None:
        if self.is_set():
            raise Cancelled("shadow verification was stopped")


class Worker(Generic[T]):
    """Does jobs by *work*, one after another. *lost* is told of each that was not done, or not to
    its end.

    A program that ends does not wait for jobs: the one at work stops where it next looks at *stop*.
    """

    def __init__(
        self, work: Callable[[T], None], lost: Callable[[T], None], name: str, stop: Stop
    ) -> None:
        self._work, self._lost, self._name, self._stop = work, lost, name, stop
        self._changed = threading.Condition()
        self._jobs: deque[T] = deque()
        self._thread: threading.Thread | None = None
        self._running = self._closing = self._told = False
        self._context = contextvars.copy_context()

    def has_room(self) -> bool:
        """Whether a job that is offered now is taken."""
        return len(self._jobs) < MOST_WAITING and not self._closing

    def offer(self, job: T) -> bool:
        """Whether *job* is taken; not when too many wait already."""
        with self._changed:
            if not self.has_room():
                return False
            self._jobs.append(job)
            if not self._running and not self._start():
                self._jobs.pop()
                return False
            self._changed.notify_all()
            return True

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Lets the jobs go on for *timeout* seconds at most, stops them, and waits for the thread
        to end.
        """
        end = time.monotonic() + timeout
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(max(0.0, end - time.monotonic()))
        self._stop.set()
        thread.join()

    def _start(self) -> bool:
        self._thread = threading.Thread(
            target=self._context.run, args=(self._loop,), name=self._name
        )
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter is shutting down, or has no thread left
            self._thread = None
        self._running = self._thread is not None
        return self._running

    def _next(self) -> T | None:
        with self._changed:
            if not self._jobs and not self._closing:
                self._changed.wait(IDLE_SECONDS)
            if self._jobs:
                return self._jobs.popleft()
            self._running = False
            return None

    def _loop(self) -> None:
        while (job := self._next()) is not None:
            try:
                self._stop.check()
                self._work(job)
            except Cancelled:
                self._lost(job)
            except Exception as error:  # noqa: BLE001  # the caller has his answer already
                self._lost(job)
                self._tell(error)

    def _tell(self, error: Exception) -> None:
        """Logs the first; the counts have the others."""
        if not self._told:
            self._told = True
            log.warning("a run could not be compared with the reference: %s", describe(error))
