"""Removing a directory that a stranger has filled: in few steps, whatever it holds and however
deep.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from itertools import count
from typing import Final

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
