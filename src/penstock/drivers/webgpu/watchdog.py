"""The watchdog: finds work on a device that does not end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

LOOK_SECONDS: Final = 0.1
"""Interval between two looks at the work under way."""


class Work(Struct, eq=False):
    """Work that a device has: it may take until the time *end*, *seconds* in all.

    *ended* is set when it is done; None if only the block that watches it knows. *buffer* stays in
    memory until then: a buffer that is freed counts as done.
    """

    end: float
    seconds: float
    ended: threading.Event | None = None
    buffer: object = None

    @property
    def is_over(self) -> bool:
        return self.ended is not None and self.ended.is_set()


class Watchdog:
    """Calls *expired* once with the seconds of work that takes longer than it may.

    It has a thread of its own: while a device hangs, a thread that submits to it may be blocked in
    native code. The thread sleeps while there is no work. Time in which the whole process was
    stopped does not count.
    """

    def __init__(self, expired: Callable[[float], None]) -> None:
        self._expired = expired
        self._work = list[Work]()
        self._has_work = threading.Condition()
        self._thread: threading.Thread | None = None

    @contextmanager
    def watching(self, seconds: float) -> Iterator[Work]:
        """A block whose work may take so many *seconds*. Where its `ended` is set to an event, the
        work is watched until that event, also behind the block.
        """
        work = Work(time.monotonic() + seconds, seconds)
        with self._has_work:
            self._work.append(work)
            self._has_work.notify()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._look, name="penstock-webgpu-watchdog", daemon=True
                )
                self._thread.start()
        try:
            yield work
        finally:
            if work.ended is None or work.is_over:
                with self._has_work:
                    self._work = [other for other in self._work if other is not work]

    def _look(self) -> None:
        while True:
            with self._has_work:
                self._has_work.wait_for(lambda: self._work)
            looked = time.monotonic()
            time.sleep(LOOK_SECONDS)
            stopped = time.monotonic() - looked - LOOK_SECONDS
            with self._has_work:
                if stopped > LOOK_SECONDS:
                    for work in self._work:
                        work.end += stopped
                self._work = [work for work in self._work if not work.is_over]
                now = time.monotonic()
                late = [work.seconds for work in self._work if now > work.end]
            if late:
                self._expired(late[0])
                return
