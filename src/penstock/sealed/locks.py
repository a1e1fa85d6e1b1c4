"""Locks of whole files between processes: many readers, or one writer.

A lock belongs to the open file description, not to the process. It excludes another open file
description of the same file, even in one process. Duplicates of a descriptor share it. It ends when
the last duplicate is closed, or the process dies. Locks are advisory. Windows only has exclusive
locks, so readers exclude each other there. A child that is forked while a file is locked has the
lock too: `FORK_GATE` delays forks meanwhile.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from penstock.errors import Unreadable

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LONGEST_PAUSE_SECONDS: Final = 0.02
_SHORTEST_PAUSE_SECONDS: Final = 0.0005
_SLICE_SECONDS: Final = 0.05
_TAKEN: Final = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK}
# The highest offset that the C library of Windows can lock; no data is stored there.
_WINDOWS_BYTE: Final = (1 << 31) - 2


class FileLocks:
    """The system's operations on locks: `flock`, or `LockFile` on Windows. Raise `OSError`."""

    def try_lock(self, fd: int, *, exclusive: bool) -> bool:
        """Takes the lock at once; False if a conflicting lock is held.

        If the open file description already has a lock, it is changed to the requested kind.
        """
        try:
            if sys.platform == "win32":
                os.lseek(fd, _WINDOWS_BYTE, os.SEEK_SET)
                msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
            else:
                fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            return False
        return True

    def unlock(self, fd: int) -> None:
        if sys.platform == "win32":
            os.lseek(fd, _WINDOWS_BYTE, os.SEEK_SET)
            msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)
        else:
            fcntl.flock(fd, fcntl.LOCK_UN)


SYSTEM_LOCKS: Final = FileLocks()


def sleep(seconds: float, should_stop: Callable[[], bool] | None = None) -> bool:
    """Waits for *seconds*; False as soon as *should_stop*(), called every 50 ms, returns true.

    Raises what *should_stop* raises.
    """
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if should_stop is not None and should_stop():
            return False
        time.sleep(min(_SLICE_SECONDS, left))
    return True


def lock(
    fd: int,
    *,
    exclusive: bool,
    timeout: float | None = None,
    should_stop: Callable[[], bool] | None = None,
    locks: FileLocks = SYSTEM_LOCKS,
) -> bool:
    """Locks the file behind *fd*; False if that failed within *timeout* seconds.

    0 tries once, None waits forever. Also False once *should_stop*(), called every 50 ms, returns
    true. There is no queue: a continuous sequence of readers can keep a writer out. Raises
    `Unreadable` if the file cannot be locked.
    """
    until = None if timeout is None else time.monotonic() + timeout
    pause = _SHORTEST_PAUSE_SECONDS
    while True:
        try:
            if locks.try_lock(fd, exclusive=exclusive):
                return True
        except OSError as error:
            raise Unreadable(f"the file cannot be locked: {error.strerror or error}") from None
        left = pause if until is None else until - time.monotonic()
        if left <= 0 or not sleep(min(pause, left), should_stop):
            return False
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def unlock(fd: int, *, locks: FileLocks = SYSTEM_LOCKS) -> None:
    """Releases the lock, if there is one. Closing *fd* releases it in any case."""
    with suppress(OSError):
        locks.unlock(fd)


@contextmanager
def locked(
    fd: int,
    *,
    exclusive: bool,
    timeout: float | None = None,
    should_stop: Callable[[], bool] | None = None,
    locks: FileLocks = SYSTEM_LOCKS,
) -> Iterator[bool]:
    """As `lock`, for a `with` block, which receives the result of `lock`."""
    held = lock(fd, exclusive=exclusive, timeout=timeout, should_stop=should_stop, locks=locks)
    try:
        yield held
    finally:
        if held:
            unlock(fd, locks=locks)


_MOST_FORK_SECONDS: Final = 10.0
"""Most seconds that a fork waits for changes of registries; a later child ignores their locks."""


class ForkGate:
    """A reentrant lock: changes of a registry hold it, and a fork waits for it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._held = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._close, after_in_parent=self._open, after_in_child=self._renew
            )

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Prevents forks of this process during the block."""
        lock = self._lock
        with lock:
            yield

    def _close(self) -> None:
        self._held = self._lock.acquire(timeout=_MOST_FORK_SECONDS)

    def _open(self) -> None:
        if self._held:
            self._lock.release()

    def _renew(self) -> None:
        self._lock = threading.RLock()


FORK_GATE: Final = ForkGate()
