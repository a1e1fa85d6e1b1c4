"""Private files that are only replaced whole, and the locks of their writers."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from penstock.errors import Unreadable
from penstock.sealed.files import FileSystem, is_private, write_all
from penstock.sealed.locks import FORK_GATE, LONGEST_PAUSE_SECONDS, unlock

MOST_NAMES: Final = 4096
"""Most names of a directory that are checked for leftovers of processes that died."""
_NONBLOCK: Final[int] = getattr(os, "O_NONBLOCK", 0)
_SHORTEST_PAUSE_SECONDS: Final = 0.0005
_WINDOWS_TRIES: Final = 50
_WINDOWS_PAUSE_SECONDS: Final = 0.02


def replace_file(path: str, content: bytes, files: FileSystem) -> None:
    """Durably replaces whatever is at *path* by a 0600 file of *content*. Raises `OSError`.

    The caller holds the lock of *path* (`exclusively`). Readers find the old file or the new one.
    After an error the old one stays, unless syncing the directory failed.
    """
    directory = os.path.dirname(path)
    _sweep(path, files)
    write_beside(path, content, files, lambda temporary: put_in_place(temporary, path, files))
    files.sync_directory(directory)


def write_beside(
    path: str, content: bytes, files: FileSystem, place: Callable[[str], None]
) -> None:
    """Writes *content* durably to a new 0600 file beside *path*, which *place* renames or links.

    Nothing else is left of the new file, also after an error. Raises `OSError`.
    """
    temporary = f"{path}.{os.urandom(8).hex()}.tmp"
    fd = files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        try:
            make_private(fd)
            write_all(files, fd, content, 0)
            files.sync(fd)
        finally:
            with suppress(OSError):
                files.close(fd)
        place(temporary)
    finally:
        with suppress(OSError):
            files.unlink(temporary)


def put_in_place(source: str, path: str, files: FileSystem) -> None:
    """Renames *source* to *path*, and moves a directory there away. Raises `OSError`."""
    tries = _WINDOWS_TRIES if sys.platform == "win32" else 1
    while True:
        try:
            files.replace(source, path)
        except OSError as error:
            tries -= 1
            if move_directory_away(path):
                tries += 1
            elif not tries or not isinstance(error, PermissionError):
                raise
            else:  # Windows replaces no file while another process reads it.
                time.sleep(_WINDOWS_PAUSE_SECONDS)
        else:
            return


def move_directory_away(path: str) -> bool:
    """Removes a directory, or renames it to `<path>.<digits>.aside`; False if there is none."""
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            return False
    except FileNotFoundError:
        return False
    try:
        os.rmdir(path)
    except OSError:
        os.rename(path, f"{path}.{os.urandom(8).hex()}.aside")
    return True


@contextmanager
def exclusively(path: str, seconds: float, files: FileSystem) -> Iterator[None]:
    """Holds the lock of the file at *path* during the block.

    The lock excludes all processes and threads. Raises `Unreadable` after *seconds*. This process
    does not fork meanwhile, since a child would hold the lock after its parent's death.
    """
    until = time.monotonic() + seconds
    pause = _SHORTEST_PAUSE_SECONDS
    name = f"{path}.lock"
    while True:
        with FORK_GATE.passed():
            try:
                fd = _locked(name, files)
            except OSError as error:
                raise Unreadable(f"{name} cannot be locked: {error.strerror or error}") from None
            if fd is not None:
                try:
                    yield
                finally:
                    _release(fd, files)
                return
        if time.monotonic() >= until:
            why = f"is being changed by another process for more than {seconds:g} s"
            raise Unreadable(f"{path} {why}")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def _locked(name: str, files: FileSystem) -> int | None:
    """A descriptor of the lock file *name*, locked; None while the lock is taken."""
    fd = _open_lock(name, files)
    try:
        # A lock on a file that was removed meanwhile excludes no other process.
        if files.try_lock(fd, exclusive=True) and (
            files.status_of(name).identity == files.status(fd).identity
        ):
            return fd
    except FileNotFoundError:
        pass
    except BaseException:
        _release(fd, files)
        raise
    _release(fd, files)
    return None


def _release(fd: int, files: FileSystem) -> None:
    """Unlocks and closes: a duplicate of the descriptor, in a forked process, has no lock then."""
    try:
        unlock(fd, locks=files)
    finally:
        with suppress(OSError):
            files.close(fd)


def _open_lock(name: str, files: FileSystem) -> int:
    """A descriptor of the lock file *name*; anything but a private file there is removed."""
    with suppress(OSError):
        status = files.status_of(name)
        usable = is_private(status) and (sys.platform == "win32" or status.mode == 0o600)
        if not usable and not move_directory_away(name):
            files.unlink(name)
    fd = files.open(name, os.O_RDWR | os.O_CREAT | _NONBLOCK)
    try:
        make_private(fd)
    except BaseException:
        files.close(fd)
        raise
    return fd


def make_private(fd: int) -> None:
    """Gives a new file the bits of 0600 that the process's umask has removed."""
    if sys.platform != "win32" and stat.S_IMODE(os.fstat(fd).st_mode) != 0o600:
        os.fchmod(fd, 0o600)


def _sweep(path: str, files: FileSystem) -> None:
    """Removes files of processes that died while they held the lock of *path*."""
    directory, name = os.path.split(path)
    with suppress(OSError):
        for left in files.names(directory, MOST_NAMES):
            if left.startswith(f"{name}.") and left.endswith(".tmp"):
                with suppress(OSError):
                    files.unlink(os.path.join(directory, left))
