"""Checks of descriptors before they are mapped. A process that touches a mapping whose file another
process has truncated dies of SIGBUS, so only memory that nobody can truncate is mapped.
"""

from __future__ import annotations

import os
from typing import Final

from penstock.errors import WireError
from penstock.hal import Memory
from penstock.ipc.linux import SHRINK, filesystem_of, is_sealed

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
