"""A directory for temporary files that one process alone has, swept away once that process is gone."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.errors import Unreadable
from penstock.sealed.places import make_private_directory, state_directory

NAME: Final = "scratch"

_held: list[int] = []
"""Descriptors whose locks say that a directory is in use; they end with the process."""


def scratch_directory() -> str | None:
    """A new directory, 0700, that is this process's temporary directory from now on; None where none can be made.

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
    """Removes *directory* unless its process lives."""
    if sys.platform != "linux":
        return
    import fcntl

    with suppress(OSError):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(fd)
