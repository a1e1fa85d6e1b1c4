"""The file of a blob cache, and the clock. Tests replace the operating system's part of both.

Several processes read and replace the file as a whole. Replacing is atomic: a writer writes a
temporary file, syncs it and renames it. A process that dies at any point leaves the old file or the
new one. A lock on `<name>.lock`, a file that stays, excludes other writers. So the temporary file
can have one name, `<name>.tmp`, and the next writer removes that of a dead process. Readers take no
lock.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final


class Clock:
    """The system's clock. Threads that wait do not keep the process alive. Tests override it."""

    def now(self) -> float:
        """Seconds on a monotonic clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Returns after that long."""
        time.sleep(seconds)

    def after(self, seconds: float, action: Callable[[], object]) -> Callable[[], None]:
        """Calls *action* after that many seconds in another thread, unless it is cancelled.

        Calling the result cancels it. Raises `RuntimeError` if no thread can be started.
        """
        timer = threading.Timer(seconds, action)
        timer.name, timer.daemon = "penstock-blobcache", True
        timer.start()
        return timer.cancel


if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_OWNER_ONLY: Final = 0o600


class Files:
    """The system's operations on files, which raise `OSError`. Tests override them.

    Child processes do not inherit descriptors.
    """

    def open_read(self, path: Path) -> int:
        """A descriptor for reading an existing regular file; a symbolic link is not followed."""
        return _open(path, os.O_RDONLY)

    def open_new(self, path: Path) -> int:
        """A descriptor for writing a file that did not exist, with mode 0600."""
        return _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def open_lock(self, path: Path) -> int:
        """A descriptor to lock; a missing file is created with mode 0600."""
        return _open(path, os.O_RDWR | os.O_CREAT)

    def size(self, fd: int) -> int:
        """Bytes in a regular file."""
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("not a regular file")
        return found.st_size

    def read(self, fd: int, size: int) -> bytes:
        """Reads at most *size* bytes from the end of the last read on; empty at the end."""
        return os.read(fd, size)

    def write(self, fd: int, data: memoryview) -> int:
        """Writes a first part of *data*. Returns its size."""
        return os.write(fd, data)

    def sync(self, fd: int) -> None:
        """Returns once the written data survives a loss of power."""
        os.fsync(fd)

    def close(self, fd: int) -> None:
        """Closes a descriptor. It is closed even if this raises."""
        os.close(fd)

    def unlink(self, path: Path) -> None:
        """Removes a file's name."""
        path.unlink()

    def is_current(self, fd: int, path: Path) -> bool:
        """Whether *path* still names the file that *fd* has open."""
        try:
            return os.path.samestat(os.fstat(fd), path.stat(follow_symlinks=False))
        except FileNotFoundError:
            return False

    if sys.platform == "win32":

        def replace(self, source: Path, target: Path) -> None:
            """As the contract; retried for a second, since open files are not replaced."""
            for _ in range(50):
                try:
                    source.replace(target)
                except PermissionError:
                    time.sleep(0.02)
                else:
                    return
            source.replace(target)

        def sync_directory(self, path: Path) -> None:
            """Windows has no such thing, and does not need it."""

        def try_lock(self, fd: int) -> bool:
            os.lseek(fd, 0, os.SEEK_SET)
            try:
                msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
            except PermissionError:
                return False
            return True

        def unlock(self, fd: int) -> None:
            os.lseek(fd, 0, os.SEEK_SET)
            msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

    else:

        def replace(self, source: Path, target: Path) -> None:
            source.replace(target)

        def sync_directory(self, path: Path) -> None:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

        def try_lock(self, fd: int) -> bool:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        def unlock(self, fd: int) -> None:
            fcntl.flock(fd, fcntl.LOCK_UN)


if sys.platform == "win32":
    _FLAGS: Final = os.O_BINARY | os.O_NOINHERIT
else:
    # O_NONBLOCK: a pipe in place of the file must not make the opener wait.
    _FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def _open(path: Path, flags: int) -> int:
    return os.open(path, flags | _FLAGS, _OWNER_ONLY)


_FIRST_WAIT_S: Final = 0.001
_LONGEST_WAIT_S: Final = 0.05


class Store:
    """The file at *path*. *lock_timeout* is how many seconds `update` waits for the lock."""

    def __init__(self, path: Path, files: Files, clock: Clock, lock_timeout: float) -> None:
        self.path, self._files, self._clock = path, files, clock
        self._lock_timeout = lock_timeout

    def read(self, most: int) -> bytes | None:
        """The file's bytes, *most* + 1 at most: callers detect longer ones. None without a file."""
        try:
            fd = self._files.open_read(self.path)
        except FileNotFoundError:
            return None
        try:
            wanted = min(self._files.size(fd), most + 1)
            parts = []
            while wanted and (part := self._files.read(fd, wanted)):
                parts.append(part)
                wanted -= len(part)
        finally:
            self._files.close(fd)
        return b"".join(parts)

    def update(self, most: int, change: Callable[[bytes | None], bytes]) -> None:
        """Replaces the file by the bytes that *change* returns for its bytes, as `read` gives them.

        No other `update` runs meanwhile. Nothing is written if the bytes stay the same. Raises
        `OSError` (`TimeoutError` if the lock stays taken). The old file is then unchanged, or the
        new one is in place if only making the new name durable failed.
        """
        with self._locked():
            old = self.read(most)
            new = change(old)
            if new != old:
                self._publish(new)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        name = self.path.with_name(self.path.name + ".lock")
        end, current = self._clock.now() + self._lock_timeout, False
        while not current:
            fd = self._files.open_lock(name)
            try:
                self._wait_for_lock(fd, end)
                try:
                    # A clean-up may have removed the locked file; other processes would lock a new
                    # one.
                    current = self._files.is_current(fd, name)
                    if current:
                        yield
                finally:
                    self._files.unlock(fd)
            finally:
                self._files.close(fd)

    def _wait_for_lock(self, fd: int, end: float) -> None:
        wait = _FIRST_WAIT_S
        while not self._files.try_lock(fd):
            if self._clock.now() >= end:
                raise TimeoutError(
                    f"another process has held the lock of {self.path} for {self._lock_timeout} s"
                )
            self._clock.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)

    def _publish(self, data: bytes) -> None:
        temporary = self.path.with_name(self.path.name + ".tmp")
        try:
            fd = self._files.open_new(temporary)
        except FileExistsError:
            self._files.unlink(temporary)
            fd = self._files.open_new(temporary)
        try:
            try:
                self._write(fd, data)
                self._files.sync(fd)
            finally:
                self._files.close(fd)
            self._files.replace(temporary, self.path)
        except BaseException:
            with suppress(OSError):
                self._files.unlink(temporary)
            raise
        self._files.sync_directory(self.path.parent)

    def _write(self, fd: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            written = self._files.write(fd, rest)
            if not written:
                raise OSError(f"{self.path}: the system accepts no more bytes")
            rest = rest[written:]
