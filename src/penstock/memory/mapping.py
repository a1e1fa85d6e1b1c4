"""Mapping `hal.Memory` by its name: how a driver reaches the bytes of a request's pools.

| name | handle | size |
|---|---|---|
| `ashmem` | the descriptor of an anonymous shared region (a memfd, or the platform's nearest) | its bytes |
| `mmap_fd` | a `MappedFd`: descriptor, byte offset and protection | bytes from the offset on |
| `hardware_buffer_blob` | a `HardwareBufferHandle` whose description has the format BLOB | its width |
| `hardware_buffer` | a `HardwareBufferHandle` of any other format: an image, never mapped by the runtime | bytes of the buffer |

A descriptor is borrowed: a mapping holds its own reference to the region, so that the caller may
close the descriptor as soon as `map_memory` has returned.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Container
from typing import Final, NamedTuple

import numpy as np

from penstock.arguments import check_kind
from penstock.closing import Closing
from penstock.errors import ClosedError, GeneralFailure, InputError, ResourceExhaustedTransient
from penstock.hal import Memory
from penstock.ir import NDArray
from penstock.memory.regions import OUT_OF_ROOM, map_region

ASHMEM: Final = "ashmem"
MMAP_FD: Final = "mmap_fd"
HARDWARE_BUFFER_BLOB: Final = "hardware_buffer_blob"
HARDWARE_BUFFER: Final = "hardware_buffer"

MEMORY_KINDS: Final = (ASHMEM, MMAP_FD, HARDWARE_BUFFER_BLOB, HARDWARE_BUFFER)
"""The names that a `hal.Memory` may have."""

PROT_READ: Final = 1
PROT_WRITE: Final = 2
"""Protection bits of a `MappedFd`, with POSIX's values on every platform."""


class MappedFd(NamedTuple):
    """Handle of an `mmap_fd` memory: its bytes start at *offset* (any, aligned or not) of *fd*.

    *protection* is `PROT_READ`, perhaps with `PROT_WRITE`.
    """

    fd: int
    offset: int = 0
    protection: int = PROT_READ | PROT_WRITE


class Mapping(Closing):
    """One mapped region; `array` views all of it until `close`.

    Views made of `array` stay good after `close`: the region is unmapped when the last one dies.
    """

    __slots__ = ("__weakref__", "_array", "ended")

    def __init__(self, array: NDArray) -> None:
        self._array: NDArray | None = array
        self.ended: Callable[[], object] | None = None

    @property
    def array(self) -> NDArray:
        """The region as flat uint8, read-only where its handle does not let it be written."""
        if self._array is None:
            raise ClosedError("mapping used after close()")
        return self._array

    def close(self) -> None:
        """Lets go of the region; twice is harmless."""
        self._array = None
        if self.ended is not None:
            self.ended()


def map_memory(memory: Memory, kinds: Container[str] = MEMORY_KINDS) -> Mapping:
    """Maps *memory* by its name, if that is of the *kinds* that a device maps.

    The CPU's use of a dma-buf is announced until the mapping is closed. Raises `GeneralFailure` for
    a name that is of no mappable kind, for a handle that is not what the name says, that cannot be
    mapped, or that has fewer bytes than *memory* claims; `ResourceExhaustedTransient` where this
    process has no descriptor or no address space left for it; `InputError` for what is no `Memory`.
    """
    check_kind(memory, Memory, "a hal.Memory is mapped")
    if memory.name not in kinds and memory.name in MEMORY_KINDS:
        raise GeneralFailure(f"this device maps no {memory.name} memory")
    if memory.size < 0:
        raise GeneralFailure(f"a memory of {memory.size} bytes cannot be mapped")
    match memory.name, memory.handle:
        case "ashmem", int(fd):
            return Mapping(region_of(memory, fd))
        case "mmap_fd", (int(fd), int(offset), int(protection)):
            return Mapping(_region(memory, fd, offset, protection, fall_back=False))
        case "hardware_buffer_blob", (int(fd), _):
            _check_blob(memory)
            mapping = Mapping(region_of(memory, fd))
            mapping.ended = announce(mapping, fd)
            return mapping
    if memory.name in {ASHMEM, MMAP_FD, HARDWARE_BUFFER_BLOB}:
        raise GeneralFailure(f"a {memory.name} memory cannot have the handle {memory.handle!r}")
    known = "never mapped" if memory.name in MEMORY_KINDS else "of no kind that can be mapped here"
    raise GeneralFailure(f"memory {memory.name!r} is {known}")


def mapped_once(fd: int, nbytes: int, *, write: bool) -> Mapping:
    """The first *nbytes* > 0 of *fd*, for its owner. Raises `InputError` where it cannot be mapped
    so, `ResourceExhaustedTransient`.
    """
    access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
    try:
        return Mapping(map_region(fd, nbytes, access).array)
    except PermissionError as error:
        raise InputError(f"this memory cannot be mapped as it is protected: {error}") from None
    except (OSError, ValueError, OverflowError) as error:
        raise ResourceExhaustedTransient(f"{nbytes} bytes cannot be mapped: {error}") from error


def announce(owner: object, fd: int, *, write: bool = True) -> Callable[[], object] | None:
    """Says that the CPU uses the dma-buf *fd*, until what is returned is called, or *owner* dies.
    None where *fd* is none, of which nothing need be said. Raises `ResourceExhaustedTransient`
    where no descriptor is left.
    """
    from penstock.memory import dmabuf

    if not dmabuf.begin(fd, write=write):
        return None
    try:
        kept = os.dup(fd)
    except OSError as error:
        dmabuf.end(fd, write=write)
        raise ResourceExhaustedTransient(
            f"no descriptor for the use of a dma-buf: {error}"
        ) from None
    return weakref.finalize(owner, _end, kept, write)


def _end(fd: int, write: bool) -> None:
    from penstock.memory import dmabuf

    dmabuf.end(fd, write=write)
    os.close(fd)


def size_of(fd: int) -> int:
    """How many bytes *fd* has: a file's, a memfd's, or a dma-buf's. Raises `OSError` and
    `OverflowError`.
    """
    if size := os.fstat(fd).st_size:
        return size
    try:
        # The size of a dma-buf is where its end is.
        end = os.lseek(fd, 0, os.SEEK_END)
        os.lseek(fd, 0, os.SEEK_SET)
    except OSError:
        return 0
    return end


def _check_blob(memory: Memory) -> None:
    from penstock.memory.handles import HardwareBufferDescription

    description = memory.handle[1]
    if (
        not isinstance(description, HardwareBufferDescription)
        or not description.is_blob
        or description.width < memory.size
    ):
        raise GeneralFailure(
            f"a hardware_buffer_blob of {memory.size} bytes cannot have the description {description}"
        )


def region_of(memory: Memory, fd: int) -> NDArray:
    """All bytes of *memory*, which begin where *fd* does, writable where that can be; raises as
    `map_memory`.
    """
    return _region(memory, fd, 0, PROT_READ | PROT_WRITE, fall_back=True)


def _region(memory: Memory, fd: int, offset: int, protection: int, *, fall_back: bool) -> NDArray:
    if not protection & PROT_READ or protection & ~(PROT_READ | PROT_WRITE):
        raise GeneralFailure(f"a mapping with protection {protection} cannot be read")
    try:
        available = size_of(fd)
    except (OSError, OverflowError) as error:
        raise GeneralFailure(f"descriptor {fd} of a {memory.name} memory: {error}") from None
    if offset < 0 or offset + memory.size > available:
        raise GeneralFailure(
            f"a {memory.name} memory claims the bytes [{offset}, {offset + memory.size}) "
            f"of a region that has {available}"
        )
    if memory.size == 0:
        return np.empty(0, np.uint8)
    kinds = [mmap.ACCESS_WRITE] if protection & PROT_WRITE else []
    if fall_back or not kinds:
        kinds += [mmap.ACCESS_READ, mmap.ACCESS_COPY]
    # Its words alone: an error that is kept keeps its frames, and what is in them, until the next
    # garbage collection.
    told = ""
    for kind in kinds:
        try:
            return map_region(fd, memory.size, kind, offset).array
        except PermissionError as error:
            # Before Linux 6.7 a region sealed against writing can be mapped privately only.
            told = str(error)
        except (OSError, ValueError, OverflowError) as error:
            told = f"descriptor {fd} of a {memory.name} memory: {error}"
            if getattr(error, "errno", None) in OUT_OF_ROOM:
                raise ResourceExhaustedTransient(told) from None
            raise GeneralFailure(told) from None
    raise GeneralFailure(f"descriptor {fd} of a {memory.name} memory: {told}")
