"""Checks of descriptors that come from another process."""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from penstock.errors import WireError
from penstock.hal import Memory
from penstock.ipc.system import SHRINK, begin, filesystem_of, is_memory, is_sealed

DMA_BUF_MAGIC: Final = 0x444D4142
"""The magic number of the file system of dma-bufs (`linux/magic.h`)."""


def cannot_shrink(fd: int) -> bool:
    """Whether no process can truncate the memory of *fd*: a memfd sealed against shrinking, or a
    dma-buf.
    """
    return is_sealed(fd, SHRINK) or filesystem_of(fd) == DMA_BUF_MAGIC


def descriptor_in(memory: Memory) -> int | None:
    """The open descriptor of *memory*; None if it has none."""
    match memory.handle:
        case bool():
            return None
        case int(fd) | (int(fd), *_):
            try:
                os.fstat(fd)
            except (OSError, OverflowError):
                return None
            return fd
    return None


def may_shrink(memory: Memory) -> bool:
    """Whether another process could truncate *memory* while it is mapped. False without an open
    descriptor, since such a memory cannot be mapped.
    """
    fd = descriptor_in(memory)
    return fd is not None and not cannot_shrink(fd)


def check_cannot_shrink(memory: Memory) -> None:
    """Raises `WireError` if `may_shrink(memory)`."""
    if may_shrink(memory):
        raise WireError(
            f"a {memory.name} memory that may shrink is not mapped for another process: "
            "seal it against shrinking, or send a copy that is"
        )


logger: Final = logging.getLogger(__name__)

FUSE_DESCRIPTOR: Final = (
    "rejected a descriptor of a FUSE file system, or of one that does not answer: any call on it may "
    "block for ever"
)

FUSE_MAGIC: Final = 0x65735546
"""The magic number that the kernel reports for every FUSE file system (`linux/magic.h`)."""

ANSWER_SECONDS: Final = 1.0
"""The timeout for a file system in another namespace."""

MAX_PENDING: Final = 16
"""The most threads that may wait for such answers at a time."""

_asking: Final = threading.BoundedSemaphore(MAX_PENDING)

_to_close: Final[SimpleQueue[int]] = SimpleQueue()
_closers: list[int] = []


def accepted(fd: int) -> int:
    """*fd*, or -1 if calls on it may block for ever. A background thread closes it then."""
    if not may_block(fd):
        return fd
    _to_close.put(fd)
    if not _closers:
        # Only the first one: a client may send as many as it likes.
        logger.warning(FUSE_DESCRIPTOR)
        _closers.append(fd)
        # If no thread can be started now, the next descriptor starts it.
        try:
            begin(_close_in_background)
        except (RuntimeError, MemoryError):
            _closers.clear()
    return -1


def may_block(fd: int) -> bool:
    """Whether calls on *fd* may block on another program's file system. False if that cannot be
    found out.
    """
    if sys.platform != "linux" or is_memory(fd):
        return False
    try:
        if not os.readlink(f"/proc/self/fd/{fd}").startswith("/"):
            # Pipes, sockets and events belong to the kernel.
            return False
        lines = Path(f"/proc/self/fdinfo/{fd}").read_text("ascii", "replace").splitlines()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        # Only dma-bufs have this field, and they are on no visible mount.
        if "exp_name" in fields:
            return False
        kind = _kind_of_mount(fields["mnt_id"].strip())
    except (OSError, KeyError):
        return False
    if kind is None:
        return _is_fuse_or_silent(fd)
    return kind.partition(".")[0] in {"fuse", "fuseblk"}


def _kind_of_mount(number: str) -> str | None:
    """The kind of file system of the mount *number*; None if this process does not see the mount."""
    with Path("/proc/self/mountinfo").open("r", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            if line.split(" ", 1)[0] == number:
                return line.partition(" - ")[2].split(" ", 1)[0]
    return None


def _is_fuse_or_silent(fd: int) -> bool:
    slots = _asking
    if not slots.acquire(blocking=False):
        return True
    kinds: list[int] = []
    answered = threading.Event()

    def ask() -> None:
        try:
            kinds.append(filesystem_of(fd))
        finally:
            slots.release()
            answered.set()

    try:
        begin(ask)
    except (RuntimeError, MemoryError):
        slots.release()
        return True
    return not answered.wait(ANSWER_SECONDS) or kinds == [FUSE_MAGIC]


def _close_in_background() -> None:
    while True:
        fd = _to_close.get()
        with suppress(OSError):
            os.close(fd)
