"""Memory that another process owns and cannot make shorter: no other is mapped, for touching what
was taken away under a mapping ends the process that does.
"""

from __future__ import annotations

import os
from typing import Final

from penstock.errors import WireError
from penstock.hal import Memory
from penstock.ipc.linux import SHRINK, filesystem_of, is_sealed

DMA_BUF_MAGIC: Final = 0x444D4142
"""The file system that dma-bufs are of: `linux/magic.h`."""


def is_steady(fd: int) -> bool:
    """Whether no process can make the memory behind *fd* shorter: a memfd sealed against shrinking,
    or a dma-buf.
    """
    return is_sealed(fd, SHRINK) or filesystem_of(fd) == DMA_BUF_MAGIC


def descriptor_in(memory: Memory) -> int | None:
    """The descriptor by which *memory* is lent; None where it has none that is open."""
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
    """Whether somebody could make *memory* shorter while it is mapped. One without an open
    descriptor cannot be mapped.
    """
    fd = descriptor_in(memory)
    return fd is not None and not is_steady(fd)


def check_steady(memory: Memory) -> None:
    """Raises `WireError` for a memory that may shrink."""
    if may_shrink(memory):
        raise WireError(
            f"a {memory.name} memory that may shrink is not mapped for another process: "
            "seal it against shrinking, or send a copy that is"
        )
