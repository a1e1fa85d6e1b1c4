"""Descriptors that no process may touch: any call on a file of a FUSE file system, `fstat` and
`close` among them, lasts for as long as the program behind it likes, and cannot be interrupted.

What a descriptor is of is told by what the kernel knows without asking that program: seals, the
link in `/proc/self/fd`, and the mount, whose number stands in `/proc/self/fdinfo`. Where this
process does not see the mount, in another namespace, a thread asks for the kind of the file system,
and nobody waits for it for long.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from penstock.ipc.linux import filesystem_of, is_memory
from penstock.ipc.threads import begin

logger: Final = logging.getLogger(__name__)

UNTOUCHABLE: Final = "a descriptor of a FUSE file system, or of one that does not answer, is not taken: any call on it may last for ever"

FUSE_MAGIC: Final = 0x65735546
"""Of `linux/magic.h`: what the kernel says of every FUSE file system, whatever its program
answers.
"""

PATIENCE_SECONDS: Final = 1.0
"""How long a file system that this process does not see may take to answer."""

MOST_ASKED: Final = 16
"""Threads that may wait for such answers at a time."""

_asking: Final = threading.BoundedSemaphore(MOST_ASKED)

_aside: Final[SimpleQueue[int]] = SimpleQueue()
_closers: list[int] = []


def accepted(fd: int) -> int:
    """*fd*, or -1 where calls on it may last for ever: it is closed aside then."""
    if not may_last(fd):
        return fd
    _aside.put(fd)
    if not _closers:
        # Once: a client may send as many as it likes.
        logger.warning(UNTOUCHABLE)
        _closers.append(fd)
        # Without room for a thread the next one begins it.
        try:
            begin(_close_aside)
        except (RuntimeError, MemoryError):
            _closers.clear()
    return -1


def may_last(fd: int) -> bool:
    """Whether calls on *fd* may wait for another program's file system. What cannot be told counts
    as no.
    """
    if sys.platform != "linux" or is_memory(fd):
        return False
    try:
        if not os.readlink(f"/proc/self/fd/{fd}").startswith("/"):
            # Pipes, sockets, events: the kernel's own.
            return False
        told = Path(f"/proc/self/fdinfo/{fd}").read_text("ascii", "replace").splitlines()
        fields = dict(line.split(":", 1) for line in told if ":" in line)
        # Of dma-bufs, which lie on no mount that anybody sees.
        if "exp_name" in fields:
            return False
        kind = _kind_of_mount(fields["mnt_id"].strip())
    except (OSError, KeyError):
        return False
    if kind is None:
        return _is_fuse_or_silent(fd)
    return kind.partition(".")[0] in {"fuse", "fuseblk"}


def _kind_of_mount(number: str) -> str | None:
    """The kind of the file system of that mount; None where this process does not see it."""
    with Path("/proc/self/mountinfo").open("r", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            if line.split(" ", 1)[0] == number:
                return line.partition(" - ")[2].split(" ", 1)[0]
    return None


def _is_fuse_or_silent(fd: int) -> bool:
    places = _asking
    if not places.acquire(blocking=False):
        return True
    told: list[int] = []
    answered = threading.Event()

    def ask() -> None:
        try:
            told.append(filesystem_of(fd))
        finally:
            places.release()
            answered.set()

    try:
        begin(ask)
    except (RuntimeError, MemoryError):
        places.release()
        return True
    return not answered.wait(PATIENCE_SECONDS) or told == [FUSE_MAGIC]


def _close_aside() -> None:
    while True:
        fd = _aside.get()
        with suppress(OSError):
            os.close(fd)
