"""Fences (NNAPI section 7.2): signalled once, with success or an error.

A fence is an object in this process, or a file descriptor that can be polled and sent to another
process.

A descriptor that is readable has signalled. An error condition or a hang-up is a failure, as for
the kernel's `sync_file`. A fence made here is one end of a socket pair. Its message stays in the
socket, so every duplicate in every process reads it. If the other end is closed without a message,
the fence has failed.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from numbers import Real
from types import NoneType
from typing import TYPE_CHECKING, Final, Protocol

from penstock import errors
from penstock.arguments import check_kind

if TYPE_CHECKING:
    from penstock.hal.config import ExecutionConfig
    from penstock.hal.request import ArgumentCopy


CANCEL_POLL_NS: Final = 10_000_000
"""Nanoseconds between two checks of the cancel token while a run waits for a fence."""


class FenceStatus(enum.Enum):
    """The state of a fence (NNAPI section 7.2); UNKNOWN if its descriptor is invalid or closed."""

    ACTIVE = "active"
    SIGNALLED = "signalled"
    ERROR = "error"
    UNKNOWN = "unknown"


class Fence(Protocol):
    """Signalled once, with success or with an error; never reset."""

    def wait(self, timeout_ns: int | None = None) -> bool:
        """Blocks until signalled (True) or for *timeout_ns* (False). Does not raise the error."""

    def error(self) -> errors.DriverError | None:
        """The error it was signalled with; None while active or after success."""


class EventFence:
    """A fence in this process. Safe from any thread."""

    copies: tuple[ArgumentCopy, ...] = ()
    """Of a driver's execution: the copies that the driver made for its arguments."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._error: errors.DriverError | None = None
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], None]] = []

    def signal(self, error: errors.DriverError | None = None) -> None:
        """Signals once. Raises `InputError` for an error that is no `DriverError`."""
        _check_failure(error)
        with self._lock:
            if self._event.is_set():
                return
            self._error = error
            self._event.set()
            waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()

    def when_signalled(self, callback: Callable[[], None]) -> None:
        """Calls *callback*, which must not raise, once: on the signal, or now if it came before."""
        if not callable(callback):
            raise errors.InputError(f"a fence calls a function, not {type(callback).__name__}")
        with self._lock:
            if not self._event.is_set():
                self._waiting.append(callback)
                return
        callback()

    def wait(self, timeout_ns: int | None = None) -> bool:
        """As `Fence.wait`. Raises `InputError` if the timeout is no number of nanoseconds."""
        check_wait(timeout_ns)
        seconds = None if timeout_ns is None else min(threading.TIMEOUT_MAX, timeout_ns / 1e9)
        return self._event.wait(seconds)

    def error(self) -> errors.DriverError | None:
        return self._error


class MergedFence:
    """A fence that signals when all its fences have; it has the error of the first that failed.

    "First" means in the given order. Raises `InputError` for an argument that is no fence.
    """

    def __init__(self, *fences: Fence) -> None:
        for fence in fences:
            check_fence(fence)
        self._fences = fences

    def wait(self, timeout_ns: int | None = None) -> bool:
        """As `Fence.wait`. Raises `InputError` if the timeout is no number of nanoseconds."""
        check_wait(timeout_ns)
        end = None if timeout_ns is None else time.monotonic_ns() + timeout_ns
        return all(fence.wait(remaining_ns(end)) for fence in self._fences)

    def error(self) -> errors.DriverError | None:
        if not self.wait(0):
            return None
        return next((e for fence in self._fences if (e := fence.error()) is not None), None)


def _check_failure(error: object) -> None:
    wanted = "a fence fails with a DriverError, or None for success"
    check_kind(error, (errors.DriverError, NoneType), wanted)


def is_fence(value: object) -> bool:
    """Whether *value* can be waited for."""
    return callable(getattr(value, "wait", None)) and callable(getattr(value, "error", None))


def check_fence(value: object) -> None:
    """Raises `InputError` for an argument that is no fence."""
    if not is_fence(value):
        kind = type(value).__name__
        raise errors.InputError(f"a fence is needed, with wait() and error(), not {kind}")


def check_wait(timeout_ns: object) -> None:
    """Raises `InputError` unless it is a number of nanoseconds, or None: wait without a limit."""
    if timeout_ns is None or type(timeout_ns) is int:
        return
    # Only NaN differs from itself.
    if isinstance(timeout_ns, bool) or not isinstance(timeout_ns, Real) or timeout_ns != timeout_ns:  # noqa: PLR0124  # as said
        raise errors.InputError(f"a wait is a number of nanoseconds, or None, not {timeout_ns!r}")


def signals_in_time(fence: Fence, config: ExecutionConfig) -> bool:
    """Whether *fence* signalled before the deadline; raises `Cancelled` if the token is set."""
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
    """As `remaining_ns`, in seconds, as Python's locks and threads need."""
    left = remaining_ns(deadline_ns)
    return None if left is None else min(threading.TIMEOUT_MAX, left / 1e9)


MARK: Final = b"penstock.fence\0"
"""The start of a `FenceSignal` message; a status (2 bytes, little-endian) and text follow."""
MAX_MESSAGE: Final = 1024

MOST_MS: Final = (1 << 31) - 1
"""Milliseconds that `poll` waits at a time."""

GONE: Final = "the end that signals this fence was closed without a signal"


class DescriptorFence:
    """A fence that can be sent to another process: a descriptor that is readable once signalled.

    Keeps a duplicate of *fd* until `close`, or until it is garbage-collected. Raises
    `InvalidArgument` for an invalid descriptor, `ResourceExhaustedTransient` if this process has no
    descriptor left. Safe from any thread.
    """

    copies: tuple[ArgumentCopy, ...] = ()
    """As `EventFence.copies`; they are not sent with the descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = -1
        if type(fd) is not int:
            kind = type(fd).__name__
            raise errors.InvalidArgument(f"a fence is made of a file descriptor, not {kind}")
        try:
            self._fd = os.dup(fd)
        except OSError as error:
            text = f"descriptor {fd} cannot be a fence: {error}"
            if error.errno in {errno.EMFILE, errno.ENFILE}:
                raise errors.ResourceExhaustedTransient(text) from error
            raise errors.InvalidArgument(text) from error

    def fileno(self) -> int:
        """The descriptor, still owned by this fence; -1 once closed."""
        return self._fd

    def status(self, timeout_ns: int | None = 0) -> FenceStatus:
        """The status; waits up to *timeout_ns* (None: without a limit) while the fence is active.

        Raises `InputError` if the timeout is no number of nanoseconds.
        """
        check_wait(timeout_ns)
        if self._fd < 0:
            return FenceStatus.UNKNOWN
        events = _poll(self._fd, timeout_ns)
        if events is None:
            return FenceStatus.UNKNOWN
        if not any(events):
            return FenceStatus.ACTIVE
        readable, failed = events
        if not readable:
            return FenceStatus.ERROR
        message = _message(self._fd)
        # A foreign descriptor only shows that it is readable.
        failure = failed if message is None else message[0] is not errors.ErrorStatus.NONE
        return FenceStatus.ERROR if failure else FenceStatus.SIGNALLED

    def wait(self, timeout_ns: int | None = None) -> bool:
        return self.status(timeout_ns) is not FenceStatus.ACTIVE

    def error(self) -> errors.DriverError | None:
        match self.status():
            case FenceStatus.ACTIVE | FenceStatus.SIGNALLED:
                return None
            case FenceStatus.UNKNOWN:
                return errors.GeneralFailure("the fence's descriptor is closed, or none")
        message = _message(self._fd)
        if message is None:
            return errors.GeneralFailure("the fence's descriptor reports an error")
        status, text = message
        if status is errors.ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
            return errors.OutputInsufficientSize(text)
        # The writer may have added data since the status was read.
        return errors.driver_error_classes().get(status, errors.GeneralFailure)(text)

    def close(self) -> None:
        """Closes the descriptor. No other thread may be waiting. A second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class FenceSignal:
    """The end that signals a `DescriptorFence`. `close` fails it if unsignalled: `DeadObject`."""

    def __init__(self, end: socket.socket) -> None:
        self._fd = -1
        check_kind(end, socket.socket, "a fence is signalled by one end of a socket pair")
        # Not the socket object: it warns if the garbage collector finds it in a cycle before it is
        # closed.
        self._fd = end.detach()
        self._lock = threading.Lock()

    def signal(self, error: errors.DriverError | None = None) -> None:
        """Signals once; later calls change nothing. Waiters are not needed.

        Raises `InputError` for an error that is no `DriverError`.
        """
        _check_failure(error)
        status = errors.ErrorStatus.NONE if error is None else error.status
        text = b"" if error is None else str(error).encode("utf-8", "replace")
        head = MARK + int(status).to_bytes(2, "little")
        with self._lock:
            if self._fd >= 0:
                with contextlib.suppress(OSError):
                    os.write(self._fd, head + text[: MAX_MESSAGE - len(head)])
                self._shut()

    def close(self) -> None:
        """Fails the fence unless it was signalled. A second call does nothing."""
        with self._lock:
            self._shut()

    def _shut(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self._shut()


def fence_pair() -> tuple[FenceSignal, DescriptorFence]:
    """A new fence, and the object that signals it. Raises `OSError` if no descriptor is left."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            return FenceSignal(ours), DescriptorFence(theirs.fileno())
        except BaseException:
            ours.close()
            raise


def as_descriptor(fence: Fence) -> DescriptorFence:
    """*fence* as one that can be sent to another process; the same object if it already can.

    A fence that stands for a descriptor alone has it as its `descriptor`. A fence of another kind
    than `EventFence` is waited for in a separate thread. Raises `InputError` for an argument that
    is no fence.
    """
    if isinstance(fence, DescriptorFence):
        return fence
    check_fence(fence)
    if isinstance(own := getattr(fence, "descriptor", None), DescriptorFence):
        return own
    signal, descriptor = fence_pair()

    def pass_on() -> None:
        fence.wait()
        signal.signal(fence.error())

    if isinstance(fence, EventFence):
        fence.when_signalled(pass_on)
    else:
        threading.Thread(target=pass_on, name="penstock-fence", daemon=True).start()
    return descriptor


def identity_of(fence: object) -> tuple[int, int] | None:
    """What all duplicates of the fence's descriptor have in common, in every process, while one of
    them is open; None for a fence without a descriptor.
    """
    number = getattr(fence, "fileno", None)
    if number is None or sys.platform == "win32":
        return None
    try:
        status = os.fstat(number())
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _message(fd: int) -> tuple[errors.ErrorStatus, str] | None:
    """The message of `FenceSignal`, left in the socket; None for a foreign descriptor."""
    try:
        end = socket.socket(fileno=fd)
    except OSError:
        return None
    try:
        data = end.recv(MAX_MESSAGE, socket.MSG_PEEK | getattr(socket, "MSG_DONTWAIT", 0))
    except OSError:
        return None
    finally:
        end.detach()
    if not data:
        return errors.DeadObject.status, GONE
    if not data.startswith(MARK) or len(data) < len(MARK) + 2:
        return None
    number = int.from_bytes(data[len(MARK) : len(MARK) + 2], "little")
    text = data[len(MARK) + 2 :].decode("utf-8", "replace")
    try:
        return errors.ErrorStatus(number), text
    except ValueError:
        return errors.ErrorStatus.GENERAL_FAILURE, f"an unknown status {number}: {text}"


def _poll(fd: int, timeout_ns: int | None) -> tuple[bool, bool] | None:
    """Whether it is readable, and whether it reports an error; None if it is no descriptor."""
    end = None if timeout_ns is None else time.monotonic_ns() + timeout_ns
    if sys.platform == "win32":
        left = None if timeout_ns is None else timeout_ns / 1e9
        try:
            readable, _, failed = select.select([fd], [], [fd], left)
        except (OSError, ValueError):
            return None
        return bool(readable), bool(failed)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while True:
        left_ns = None if end is None else max(0, end - time.monotonic_ns())
        found = poll.poll(None if left_ns is None else min(MOST_MS, -(-left_ns // 1_000_000)))
        if found:
            events = found[0][1]
            if events & select.POLLNVAL:
                return None
            signalled = bool(events & select.POLLIN)
            return signalled, not signalled or bool(events & select.POLLERR)
        if left_ns is not None and left_ns == 0:
            return False, False


def status_of(fence: Fence) -> FenceStatus:
    """The status of any fence, without waiting. Raises `InputError` for anything else."""
    check_fence(fence)
    if isinstance(fence, DescriptorFence):
        return fence.status()
    if not fence.wait(0):
        return FenceStatus.ACTIVE
    return FenceStatus.SIGNALLED if fence.error() is None else FenceStatus.ERROR
