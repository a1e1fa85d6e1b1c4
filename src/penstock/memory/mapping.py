"""Mapping `hal.Memory` by its name: how a driver reaches the bytes of a request's pools.

| name | handle |
|---|---|
| `ashmem` | the descriptor of an anonymous shared region (a memfd, or the platform's nearest) |
| `mmap_fd` | a `MappedFd`: descriptor, byte offset and protection |

A descriptor is borrowed: a mapping holds its own reference to the region, so that the caller may
close the descriptor as soon as `map_memory` has returned.
"""

from __future__ import annotations

import mmap
import os
import weakref
from types import TracebackType
from typing import Final, NamedTuple, Self

import numpy as np

from penstock.errors import ClosedError, GeneralFailure
from penstock.hal import Memory
from penstock.ir import NDArray

PROT_READ: Final = 1
PROT_WRITE: Final = 2
"""Protection bits of a `MappedFd`, with POSIX's values on every platform."""

_live: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


class MappedFd(NamedTuple):
    """Handle of an `mmap_fd` memory: its bytes start at *offset* (any, aligned or not) of *fd*.

    *protection* is `PROT_READ`, perhaps with `PROT_WRITE`.
    """

    fd: int
    offset: int = 0
    protection: int = PROT_READ | PROT_WRITE


class Mapping:
    """One mapped region; `array` views all of it until `close`.

    Views made of `array` stay good after `close`: the region is unmapped when the last one dies.
    """

    __slots__ = ("_array",)

    def __init__(self, array: NDArray) -> None:
        self._array: NDArray | None = array

    @property
    def array(self) -> NDArray:
        """The region as flat uint8, read-only where its handle does not let it be written."""
        if self._array is None:
            raise ClosedError("mapping used after close()")
        return self._array

    def close(self) -> None:
        """Lets go of the region; twice is harmless."""
        self._array = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def map_memory(memory: Memory) -> Mapping:
    """Maps *memory* by its name.

    Raises `GeneralFailure` for a name that is not in the table of this module, for a handle that is not
    what the name says, that cannot be mapped, or that has fewer bytes than *memory* claims.
    """
    if memory.size < 0:
        raise GeneralFailure(f"a memory of {memory.size} bytes cannot be mapped")
    match memory.name, memory.handle:
        case "ashmem", int(fd):
            return Mapping(_region(memory, fd, 0, PROT_READ | PROT_WRITE, fall_back=True))
        case "mmap_fd", (int(fd), int(offset), int(protection)):
            return Mapping(_region(memory, fd, offset, protection, fall_back=False))
        case "ashmem" | "mmap_fd", _:
            raise GeneralFailure(f"a {memory.name} memory cannot have the handle {memory.handle!r}")
    raise GeneralFailure(f"memory {memory.name!r} is of no kind that can be mapped here")


def live_mappings() -> int:
    """How many regions this process has mapped by `map_memory` or a `MemoryPool` and still uses."""
    return len(_live)


def map_shared(fd: int, nbytes: int) -> NDArray:
    """The first *nbytes* > 0 of *fd* as writable flat uint8, counted; raises `OSError`."""
    region = mmap.mmap(fd, nbytes, access=mmap.ACCESS_WRITE)
    _live.add(region)
    return np.frombuffer(region, np.uint8)


def _region(memory: Memory, fd: int, offset: int, protection: int, *, fall_back: bool) -> NDArray:
    if not protection & PROT_READ or protection & ~(PROT_READ | PROT_WRITE):
        raise GeneralFailure(f"a mapping with protection {protection} cannot be read")
    try:
        available = os.fstat(fd).st_size
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
    skipped = offset % mmap.ALLOCATIONGRANULARITY
    region, kind = _map(memory, fd, memory.size + skipped, offset - skipped, kinds)
    _live.add(region)
    array: NDArray = np.frombuffer(region, np.uint8)[skipped:]
    if kind != mmap.ACCESS_WRITE:
        array.flags.writeable = False
    return array


def _map(
    memory: Memory, fd: int, length: int, start: int, kinds: list[int]
) -> tuple[mmap.mmap, int]:
    failure: Exception | None = None
    for kind in kinds:
        try:
            return mmap.mmap(fd, length, access=kind, offset=start), kind
        except PermissionError as error:
            # Before Linux 6.7 a region sealed against writing can be mapped privately only.
            failure = error
        except (OSError, ValueError) as error:
            failure = error
            break
    raise GeneralFailure(f"descriptor {fd} of a {memory.name} memory: {failure}")
