"""Time as the cache sees it, so that a test can own it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Seconds, waiting, and doing something later."""

    def now(self) -> float:
        """Seconds on a clock that never goes back."""

    def sleep(self, seconds: float) -> None:
        """Returns after that long."""

    def after(self, seconds: float, action: Callable[[], object]) -> Callable[[], None]:
        """Has *action* called in that long, in another thread, unless what this returns is called
        before.

        Raises `RuntimeError` when no thread can be started.
        """


class SystemClock:
    """`Clock` of the operating system. Threads that wait do not keep the process alive."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def after(self, seconds: float, action: Callable[[], object]) -> Callable[[], None]:
        timer = threading.Timer(seconds, action)
        timer.name, timer.daemon = "penstock-blobcache", True
        timer.start()
        return timer.cancel
