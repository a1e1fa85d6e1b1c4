"""A directory for temporary files that one process alone has, swept away once that process is gone."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from penstock.errors import Unreadable
from penstock.ipc.sandbox.removal import empty
from penstock.sealed.places import make_private_directory, state_directory

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
