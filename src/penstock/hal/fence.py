"""Fences: something signalled once, or failed (NNAPI section 7.2)."""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from penstock.errors import DriverError

if TYPE_CHECKING:
    from penstock.hal.config import ExecutionConfig

CANCEL_POLL_NS: Final = 10_000_000
"""How often a wait for a fence looks at its cancel token."""


class FenceStatus(enum.Enum):
    """What a look at a fence says (NNAPI section 7.2). UNKNOWN is that of a descriptor that is none, or closed."""

    ACTIVE = "active"
    SIGNALLED = "signalled"
    ERROR = "error"
    UNKNOWN = "unknown"


class Fence(Protocol):
    """Signalled once, with success or with an error; never reset."""

    def wait(self, timeout_ns: int | None = None) -> bool:
        """Blocks until signalled (True) or for *timeout_ns* (False). Does not raise the error."""
        ...

    def error(self) -> DriverError | None:
        """The error it was signalled with; None while active or after success."""
        ...


class EventFence:
    """A fence in this process. Safe from any thread."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._error: DriverError | None = None
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], None]] = []

    def signal(self, error: DriverError | None = None) -> None:
        """Signals once; later calls change nothing."""
        with self._lock:
            if self._event.is_set():
                return
            self._error = error
            self._event.set()
            waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def when_signalled(self, callback: Callable[[], None]) -> None:
        """Calls *callback* once: in the thread that signals, or now where that has happened. It must not raise."""
        with self._lock:
            if not self._event.is_set():
                self._waiting.append(callback)
                return
        callback()

    def wait(self, timeout_ns: int | None = None) -> bool:
        seconds = None if timeout_ns is None else min(threading.TIMEOUT_MAX, timeout_ns / 1e9)
        return self._event.wait(seconds)

    def error(self) -> DriverError | None:
        return self._error


class MergedFence:
    """Signalled when all of several are; with the error of the first, in order, that has one."""

    def __init__(self, *fences: Fence) -> None:
        self._fences = fences

    def wait(self, timeout_ns: int | None = None) -> bool:
        end = None if timeout_ns is None else time.monotonic_ns() + timeout_ns
        return all(fence.wait(remaining_ns(end)) for fence in self._fences)

    def error(self) -> DriverError | None:
        if not self.wait(0):
            return None
        return next((e for fence in self._fences if (e := fence.error()) is not None), None)


def status_of(fence: Fence) -> FenceStatus:
    """The status of any fence, without waiting."""
    from penstock.hal.descriptors import DescriptorFence

    if isinstance(fence, DescriptorFence):
        return fence.status()
    if not fence.wait(0):
        return FenceStatus.ACTIVE
    return FenceStatus.SIGNALLED if fence.error() is None else FenceStatus.ERROR


def signals_in_time(fence: Fence, config: ExecutionConfig) -> bool:
    """Whether *fence* signalled before the deadline; raises `Cancelled` when the token is set first."""
    if config.cancel is None:
        return fence.wait(remaining_ns(config.deadline_ns))
    while True:
        config.cancel.check()
        left = remaining_ns(config.deadline_ns)
        if fence.wait(CANCEL_POLL_NS if left is None else min(left, CANCEL_POLL_NS)):
            return True
        if left == 0:
            return False


def remaining_ns(deadline_ns: int | None) -> int | None:
    """Nanoseconds left until a monotonic deadline, at least 0; None without one."""
    return None if deadline_ns is None else max(0, deadline_ns - time.monotonic_ns())


def remaining_seconds(deadline_ns: int | None) -> float | None:
    """As `remaining_ns`, in seconds: what locks and threads of Python wait by."""
    left = remaining_ns(deadline_ns)
    return None if left is None else min(threading.TIMEOUT_MAX, left / 1e9)
