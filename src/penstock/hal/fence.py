"""Fences: something signalled once, or failed (NNAPI section 7.2)."""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable
from numbers import Real
from types import NoneType
from typing import TYPE_CHECKING, Final, Protocol

from penstock.arguments import check_kind
from penstock.errors import DriverError, InputError

if TYPE_CHECKING:
    from penstock.hal.config import ExecutionConfig

CANCEL_POLL_NS: Final = 10_000_000
"""How often a wait for a fence looks at its cancel token."""


class FenceStatus(enum.Enum):
    """What a look at a fence says (NNAPI section 7.2). UNKNOWN is that of a descriptor that is
    none, or closed.
    """

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
        """Signals once; later calls change nothing. Raises `InputError` for an error that is no
        `DriverError`.
        """
        check_kind(
            error, (DriverError, NoneType), "a fence fails with a DriverError, or None for success"
        )
        with self._lock:
            if self._event.is_set():
                return
            self._error = error
            self._event.set()
            waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def when_signalled(self, callback: Callable[[], None]) -> None:
        """Calls *callback* once: in the thread that signals, or now where that has happened. It
        must not raise. Raises `InputError` for what cannot be called.
        """
        if not callable(callback):
            raise InputError(f"a fence calls a function, not {type(callback).__name__}")
        with self._lock:
            if not self._event.is_set():
                self._waiting.append(callback)
                return
        callback()

    def wait(self, timeout_ns: int | None = None) -> bool:
        """As `Fence.wait`. Raises `InputError` for what is no number of nanoseconds."""
        check_wait(timeout_ns)
        seconds = None if timeout_ns is None else min(threading.TIMEOUT_MAX, timeout_ns / 1e9)
        return self._event.wait(seconds)

    def error(self) -> DriverError | None:
        return self._error


class MergedFence:
    """Signalled when all of several are; with the error of the first, in order, that has one.

    Raises `InputError` for what is no fence.
    """

    def __init__(self, *fences: Fence) -> None:
        for fence in fences:
            check_fence(fence)
        self._fences = fences

    def wait(self, timeout_ns: int | None = None) -> bool:
        """As `Fence.wait`. Raises `InputError` for what is no number of nanoseconds."""
        check_wait(timeout_ns)
        end = None if timeout_ns is None else time.monotonic_ns() + timeout_ns
        return all(fence.wait(remaining_ns(end)) for fence in self._fences)

    def error(self) -> DriverError | None:
        if not self.wait(0):
            return None
        return next((e for fence in self._fences if (e := fence.error()) is not None), None)


def is_fence(value: object) -> bool:
    """Whether *value* can be waited for."""
    return callable(getattr(value, "wait", None)) and callable(getattr(value, "error", None))


def check_fence(value: object) -> None:
    """Raises `InputError` for what is no fence."""
    if not is_fence(value):
        raise InputError(f"a fence is needed, with wait() and error(), not {type(value).__name__}")


def check_wait(timeout_ns: object) -> None:
    """Raises `InputError` for what is no number of nanoseconds to wait for; None waits for good."""
    if timeout_ns is None or type(timeout_ns) is int:
        return
    # Not a number is not itself.
    if isinstance(timeout_ns, bool) or not isinstance(timeout_ns, Real) or timeout_ns != timeout_ns:  # noqa: PLR0124  # as said
        raise InputError(f"a wait is a number of nanoseconds, or None, not {timeout_ns!r}")


def signals_in_time(fence: Fence, config: ExecutionConfig) -> bool:
    """Whether *fence* signalled before the deadline; raises `Cancelled` when the token is set
    first.
    """
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
