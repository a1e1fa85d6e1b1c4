"""The watchdog: finds work on a device that does not end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

LOOK_SECONDS: Final = 0.1
"""Interval between two looks at the work under way."""


class Watchdog:
    """Calls *expired* once with the seconds of work that takes longer than it may.

    It has a thread of its own: while a device hangs, a thread that submits to it may be blocked in
    native code. The thread sleeps while there is no work.
    """

    def __init__(self, expired: Callable[[float], None]) -> None:
        self._expired = expired
        self._work: dict[object, tuple[float, float]] = {}
        self._busy = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @contextmanager
    def watching(self, seconds: float) -> Iterator[None]:
        """A block that may take so many *seconds*."""
        key = object()
        self._work[key] = time.monotonic() + seconds, seconds
        if not self._busy.is_set():
            self._begin()
        try:
            yield
        finally:
            del self._work[key]

    def _begin(self) -> None:
        with self._lock:
            self._busy.set()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._look, name="penstock-webgpu-watchdog", daemon=True
                )
                self._thread.start()

    def _look(self) -> None:
        while True:
            self._busy.wait()
            time.sleep(LOOK_SECONDS)
            now = time.monotonic()
            late = [seconds for end, seconds in tuple(self._work.values()) if now > end]
            if late:
                self._expired(late[0])
                return
            with self._lock:
                if not self._work:
                    self._busy.clear()
