"""Mapped regions of this process: how many there are, and which pool a given array lies in."""

from __future__ import annotations

import errno
import itertools
import mmap
import weakref
from bisect import bisect_right
from typing import Final, NamedTuple

import numpy as np

from penstock.arguments import check_kind
from penstock.hal import Memory
from penstock.ir import NDArray

OUT_OF_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors of the system that say that a descriptor, or address space, is not to be had now."""


class PoolPlace(NamedTuple):
    """Where an array lies: in *memory*, from byte *offset* of it on."""

    memory: Memory
    offset: int


class _Placed(NamedTuple):
    end: int
    memory: Memory
    region: weakref.ref[Region]


class _Table:
    """What lies where. A finalizer may change it in the middle of anything: each operation is one
    step of the interpreter's, and none waits for a lock.
    """

    def __init__(self) -> None:
        self.placed: dict[int, _Placed] = {}
        self._change = itertools.count(1)
        self._changed = 0
        self._sorted: tuple[int, list[int]] = (0, [])

    def add(self, start: int, placed: _Placed) -> None:
        self.placed[start] = placed
        self._changed = next(self._change)

    def forget(self, start: int) -> None:
        self.placed.pop(start, None)
        self._changed = next(self._change)

    def starts(self) -> list[int]:
        """The addresses in order, sorted once after each change."""
        changed = self._changed
        known, starts = self._sorted
        if known != changed:
            starts = sorted(list(self.placed))  # noqa: C414  # a copy first: another thread may add meanwhile
            self._sorted = changed, starts
        return starts


_live: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
_table: Final = _Table()


def pool_of(array: NDArray) -> PoolPlace | None:
    """The place of *array* in a pool of this process: of a `MemoryPool`, or a hardware buffer, that
    has been viewed.

    None where its bytes are not all in one, where it has none, and where it is not C-contiguous.
    The descriptor in the place's memory is good for as long as *array* lives, whether or not its
    pool is closed meanwhile. Raises `InputError` for what is no array.
    """
    check_kind(array, np.ndarray, "the place of a NumPy array is looked for")
    found = _placed(array)
    return None if found is None else PoolPlace(found[0].memory, found[1])


def region_of(array: NDArray) -> Region | None:
    """The mapping that *array* lies in, where `pool_of` knows its place: the same for all views,
    however they were made.
    """
    found = _placed(array)
    return None if found is None else found[0].region()


def _placed(array: NDArray) -> tuple[_Placed, int] | None:
    placed = _table.placed
    if not placed or not array.nbytes or not array.flags.c_contiguous:
        return None
    address = array.__array_interface__["data"][0]
    starts = _table.starts()
    at = bisect_right(starts, address) - 1
    if at < 0:
        return None
    found = placed.get(starts[at])
    if found is None or address + array.nbytes > found.end:
        return None
    return found, address - starts[at]


def live_mappings() -> int:
    """How many regions this process has mapped by `map_memory` or a `MemoryPool` and still uses."""
    return len(_live)


class Region(mmap.mmap):
    """A mapping of a descriptor's bytes from any offset on; it keeps *owner*."""

    owner: object = None
    skipped: int = 0
    writable: bool = True

    @property
    def array(self) -> NDArray:
        """The bytes that were asked for, flat uint8. The region lives for as long as any view of
        it.
        """
        array: NDArray = np.frombuffer(self, np.uint8)[self.skipped :]
        if not self.writable:
            array.flags.writeable = False
        return array


def map_region(fd: int, nbytes: int, access: int, offset: int = 0, owner: object = None) -> Region:
    """*nbytes* > 0 of *fd* from byte *offset* (any) on, mapped and counted. Raises `OSError`,
    `ValueError` and `OverflowError` as `mmap` does.
    """
    skipped = offset % mmap.ALLOCATIONGRANULARITY
    region = Region(fd, nbytes + skipped, access=access, offset=offset - skipped)
    region.owner, region.skipped = owner, skipped
    region.writable = access == mmap.ACCESS_WRITE
    _live.add(region)
    return region


def place(region: Region, memory: Memory) -> None:
    """Lets `pool_of` find what lies in *region*, which is all of *memory*."""
    array = region.array
    start: int = array.__array_interface__["data"][0]
    _table.add(start, _Placed(start + array.nbytes, memory, weakref.ref(region)))
    weakref.finalize(region, _table.forget, start)
