"""The few file operations that the cache needs, so that a test can make each of them fail."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Final, Protocol

if sys.platform == "win32":
    import msvcrt
    import time
else:
    import fcntl

_OWNER_ONLY: Final = 0o600


class Files(Protocol):
    """Operations on files; each raises `OSError` where the system does. Descriptors are never
    inherited.
    """

    def open_read(self, path: Path) -> int:
        """A descriptor for reading an existing regular file; a symbolic link is not followed."""

    def open_new(self, path: Path) -> int:
        """A descriptor for writing a file that did not exist, with mode 0600."""

    def open_lock(self, path: Path) -> int:
        """A descriptor to lock; the file is made, with mode 0600, where there is none."""

    def size(self, fd: int) -> int:
        """Bytes in a regular file."""

    def read(self, fd: int, size: int) -> bytes:
        """At most *size* bytes from where the last read ended; empty at the end."""

    def write(self, fd: int, data: memoryview) -> int:
        """Writes a first part of *data*; its size."""

    def sync(self, fd: int) -> None:
        """Returns when what was written survives a loss of power."""

    def close(self, fd: int) -> None:
        """Closes a descriptor. It is closed too when this raises."""

    def replace(self, source: Path, target: Path) -> None:
        """Renames *source* to *target*, in place of what was there, as one step."""

    def unlink(self, path: Path) -> None:
        """Removes a file's name."""

    def sync_directory(self, path: Path) -> None:
        """Returns when the names in a directory survive a loss of power."""

    def try_lock(self, fd: int) -> bool:
        """Locks what `open_lock` opened against every other opening of it; False when one has it."""

    def is_current(self, fd: int, path: Path) -> bool:
        """Whether *path* still names what *fd* has open."""

    def unlock(self, fd: int) -> None:
        """Gives a lock back. The system does it for a process that dies."""


class OsFiles:
    """`Files` of the operating system."""

    def open_read(self, path: Path) -> int:
        return _open(path, os.O_RDONLY)

    def open_new(self, path: Path) -> int:
        return _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def open_lock(self, path: Path) -> int:
        return _open(path, os.O_RDWR | os.O_CREAT)

    def size(self, fd: int) -> int:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("not a regular file")
        return found.st_size

    def read(self, fd: int, size: int) -> bytes:
        return os.read(fd, size)

    def write(self, fd: int, data: memoryview) -> int:
        return os.write(fd, data)

    def sync(self, fd: int) -> None:
        os.fsync(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def is_current(self, fd: int, path: Path) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), path.stat(follow_symlinks=False))
        except FileNotFoundError:
            return False

    if sys.platform == "win32":

        def replace(self, source: Path, target: Path) -> None:
            """As the contract; tried for a second, since no file is replaced while somebody reads
            it.
            """
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
