"""Pools of each kind of memory that a driver can be given."""

from __future__ import annotations

import os
import tempfile
from typing import Final

from penstock.hal import Device
from penstock.memory import MemoryPool
from penstock.testing.contract.promise import NotCovered

OFFSET: Final = 8192
"""Where an `mmap_fd` pool begins in its file."""


def memory_kinds(device: Device) -> tuple[str, ...]:
    """The kinds of mappable memory that *device* claims to take, those of NNAPI's tests first."""
    known = ("ashmem", "mmap_fd", "hardware_buffer_blob")
    return tuple(kind for kind in known if kind in device.capabilities.memory_kinds)


def pool_of(kind: str, nbytes: int) -> MemoryPool:
    """A writable pool of *nbytes* of that *kind* of memory; `NotCovered` for one that nobody here
    can make.
    """
    if kind == "ashmem":
        return MemoryPool.anonymous(nbytes)
    if kind == "mmap_fd":
        with tempfile.TemporaryFile() as file:
            os.truncate(file.fileno(), OFFSET + nbytes)
            return MemoryPool.from_file(file.fileno(), OFFSET, nbytes)
    if kind == "hardware_buffer_blob":
        from penstock.memory.hardware import HardwareBuffer

        with HardwareBuffer.allocate(nbytes) as buffer:
            return MemoryPool.from_hardware_buffer(buffer)
    raise NotCovered(f"there is no way here to make memory of kind {kind}")
