"""The temporary directory of one host process, and its removal after that process has ended."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from penstock.errors import Unreadable
from penstock.sealed.places import make_private_directory, state_directory

MOST_ENTRIES: Final = 20_000
"""Files and directories that one call removes."""


def empty(directory: int, most: int = MOST_ENTRIES) -> bool:
    """Removes what is below the descriptor *directory*, whose user must be this process's; whether
    nothing is left.

    No link is followed, and no file opened. Directories within are moved up and taken in turn:
    neither their depth nor the length of their paths counts. Nobody else may change anything there
    meanwhile.
    """
    if sys.platform == "win32":
        raise OSError("descriptors of directories are Unix's")
    left, numbers = most, count()
    while left > 0:
        before = left
        with os.scandir(directory) as entries:
            for entry in entries:
                left -= _remove(directory, entry, numbers, left)
                if left <= 0:
                    break
        if left == before:
            # Nothing is there, or nothing of it can be removed.
            break
    with os.scandir(directory) as entries:
        return next(entries, None) is None


def _remove(directory: int, entry: os.DirEntry[str], numbers: count[int], most: int) -> int:
    """Removes *entry* of *directory*; how many entries are gone or moved."""
    if sys.platform == "win32":
        raise OSError("descriptors of directories are Unix's")
    if not entry.is_dir(follow_symlinks=False):
        return _unlink(directory, entry.name)
    with suppress(OSError):
        os.rmdir(entry.name, dir_fd=directory)
        return 1
    # One without rights is nothing that can be opened.
    with suppress(OSError):
        os.chmod(entry.name, 0o700, dir_fd=directory)
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        inner = os.open(entry.name, flags, dir_fd=directory)
    except OSError:
        return 0
    done = 0
    try:
        with os.scandir(inner) as below:
            for each in below:
                if done >= most:
                    break
                if each.is_dir(follow_symlinks=False):
                    done += _lift(inner, each.name, directory, numbers)
                else:
                    done += _unlink(inner, each.name)
    finally:
        os.close(inner)
    with suppress(OSError):
        os.rmdir(entry.name, dir_fd=directory)
        done += 1
    return done


def _unlink(directory: int, name: str) -> int:
    try:
        os.unlink(name, dir_fd=directory)
    except OSError:
        return 0
    return 1


def _lift(inner: int, name: str, directory: int, numbers: count[int]) -> int:
    """Moves the directory *name* of *inner* to *directory*, by a name that is free there; 1 where
    that can be.
    """
    with suppress(OSError):
        os.rmdir(name, dir_fd=inner)
        return 1
    with suppress(OSError):
        # Its entry for the directory above changes, for which it must be writable.
        os.chmod(name, 0o700, dir_fd=inner)
    while True:
        free = f".{next(numbers)}"
        try:
            os.stat(free, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            break
    try:
        os.rename(name, free, src_dir_fd=inner, dst_dir_fd=directory)
    except OSError:
        return 0
    return 1


log = logging.getLogger("penstock.ipc")

NAME: Final = "scratch"

_held: list[int] = []
"""Descriptors whose locks say that a directory is in use; they end with the process."""


def scratch_directory() -> str | None:
    """A new directory, 0700, that is this process's temporary directory from now on; None where
    none can be made.

    Directories of processes that have ended are removed first.
    """
    if sys.platform != "linux":
        return None
    import fcntl

    try:
        root = Path(state_directory(), NAME)
        make_private_directory(root)
        whole = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, Unreadable):
        return None
    try:
        fcntl.flock(whole, fcntl.LOCK_EX)
        for other in root.iterdir():
            _sweep(other)
        own = tempfile.mkdtemp(dir=root)
        fd = os.open(own, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _held.append(fd)
    except OSError:
        return None
    finally:
        os.close(whole)
    os.environ["TMPDIR"] = tempfile.tempdir = own
    return own


def _sweep(directory: Path) -> None:
    """Removes *directory* unless its process lives, as much as a start may take time for; the rest
    is left, and named.
    """
    if sys.platform != "linux":
        return
    import fcntl

    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if empty(fd):
            directory.rmdir()
        else:
            log.warning("%s holds more than a start removes: the next one goes on", directory)
    except BlockingIOError:
        pass
    except OSError as error:
        log.warning("%s cannot be removed: %s", directory, error.strerror)
    finally:
        os.close(fd)
