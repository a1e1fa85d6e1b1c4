"""Fences: something signalled once, or failed (NNAPI section 7.2)."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from penstock.errors import DriverError


class Fence(Protocol):
    """Signalled once, with success or with an error; never reset."""

    def wait(self, timeout_ns: int | None = None) -> bool:
        """Blocks until signalled (True) or for *timeout_ns* (False). Does not raise the error."""
        ...

    def error(self) -> DriverError | None:
        """The error it was signalled with; None while active or after success."""
        ...


class EventFence:
    """A fence in this process."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._error: DriverError | None = None

    def signal(self, error: DriverError | None = None) -> None:
        """Signals once; later calls change nothing."""
        if not self._event.is_set():
            self._error = error
            self._event.set()

    def wait(self, timeout_ns: int | None = None) -> bool:
        return self._event.wait(None if timeout_ns is None else timeout_ns / 1e9)

    def error(self) -> DriverError | None:
        return self._error


def remaining_ns(deadline_ns: int | None) -> int | None:
    """Nanoseconds left until a monotonic deadline, at least 0; None without one."""
    return None if deadline_ns is None else max(0, deadline_ns - time.monotonic_ns())
