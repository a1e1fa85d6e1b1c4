"""Mapping of `hal.Memory` by its name, as drivers do to reach the bytes of a request's pools.

It also finds the pool that an array of this process lies in.

| name | handle | size |
|---|---|---|
| `ashmem` | the descriptor of an anonymous shared region (a memfd or similar) | its bytes |
| `mmap_fd` | a `MappedFd`: descriptor, byte offset and protection | bytes from the offset on |
| `hardware_buffer_blob` | a `HardwareBufferHandle` of the format BLOB | its width |
| `hardware_buffer` | a `HardwareBufferHandle` of any other format: an image | bytes of the buffer |

A descriptor is borrowed: a mapping holds a separate reference to the region, so the caller may
close the descriptor as soon as `map_memory` has returned. The runtime never maps an image.
"""

from __future__ import annotations

import enum
import errno
import itertools
import mmap
import os
import weakref
from bisect import bisect_right
from collections.abc import Callable, Container
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from penstock.arguments import check_kind
from penstock.closing import Closing
from penstock.errors import ClosedError, GeneralFailure, InputError, ResourceExhaustedTransient
from penstock.hal import Memory
from penstock.ir import NDArray


class HardwareBufferFormat(enum.IntEnum):
    """Some layouts of hardware buffers, with Android's numbers (`AHardwareBuffer_Format`)."""

    R8G8B8A8_UNORM = 0x1
    R8G8B8X8_UNORM = 0x2
    R8G8B8_UNORM = 0x3
    R5G6B5_UNORM = 0x4
    R16G16B16A16_FLOAT = 0x16
    BLOB = 0x21
    Y8CB8CR8_420 = 0x23
    R10G10B10A2_UNORM = 0x2B
    D16_UNORM = 0x30
    D24_UNORM = 0x31
    D24_UNORM_S8_UINT = 0x32
    D32_FLOAT = 0x33
    D32_FLOAT_S8_UINT = 0x34
    S8_UINT = 0x35
    YCBCR_P010 = 0x36
    R8_UNORM = 0x38
    R16_UINT = 0x39
    R16G16_UINT = 0x3A
    R10G10B10A10_UNORM = 0x3B


class HardwareBufferUsage(enum.IntFlag):
    """Purposes of a hardware buffer, with Android's numbers (`AHardwareBuffer_UsageFlags`)."""

    CPU_READ_RARELY = 2
    CPU_READ_OFTEN = 3
    CPU_READ_MASK = 0xF
    CPU_WRITE_RARELY = 2 << 4
    CPU_WRITE_OFTEN = 3 << 4
    CPU_WRITE_MASK = 0xF << 4
    GPU_SAMPLED_IMAGE = 1 << 8
    GPU_FRAMEBUFFER = 1 << 9
    PROTECTED_CONTENT = 1 << 14
    VIDEO_ENCODE = 1 << 16
    SENSOR_DIRECT_DATA = 1 << 23
    GPU_DATA_BUFFER = 1 << 24


class HardwareBufferDescription(Struct, frozen=True):
    """The shape of a hardware buffer (`AHardwareBuffer_Desc`).

    *width*, *height* and *stride* count pixels; *stride* is the distance between the starts of two
    rows. For a BLOB, *width* counts bytes and *height* and *layers* are 1. *format* is a
    `HardwareBufferFormat` or a vendor's number, *usage* `HardwareBufferUsage` bits.
    """

    format: int
    width: int
    height: int = 1
    layers: int = 1
    stride: int = 0
    usage: int = 0

    @property
    def is_blob(self) -> bool:
        """Whether the buffer is plain bytes."""
        return self.format == HardwareBufferFormat.BLOB


class HardwareBufferHandle(NamedTuple):
    """The handle of a hardware buffer's memory: a dma-buf or memfd, and its description."""

    fd: int
    description: HardwareBufferDescription


OUT_OF_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Error numbers of the system for exhausted descriptors or address space."""


class PoolPlace(NamedTuple):
    """Place of an array: in *memory*, from byte *offset* on."""

    memory: Memory
    offset: int


class _Placed(NamedTuple):
    end: int
    memory: Memory
    region: weakref.ref[Region]


class _Table:
    """Table of the mapped regions.

    Each operation is atomic and lock-free: finalizers can call it.
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
            # A copy first: another thread may add meanwhile.
            starts = sorted(list(self.placed))  # noqa: C414
            self._sorted = changed, starts
        return starts


_live: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
_table: Final = _Table()


def pool_of(array: NDArray) -> PoolPlace | None:
    """The place of *array* in a `MemoryPool` of this process, or in a viewed hardware buffer.

    None if its bytes are not all in one region, or in none, or if it is not C-contiguous. The
    descriptor in the place's memory is valid as long as *array* lives, even if its pool is closed
    meanwhile. Raises `InputError` if *array* is no array.
    """
    check_kind(array, np.ndarray, "the place of a NumPy array is looked for")
    found = _placed(array)
    return None if found is None else PoolPlace(found[0].memory, found[1])


def region_behind(array: NDArray) -> Region | None:
    """The mapping of *array*, the same for all views; None if `pool_of` finds no place."""
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
    """Number of regions in use that this process mapped by `map_memory` or a `MemoryPool`."""
    return len(_live)


class Region(mmap.mmap):
    """A mapping of a descriptor's bytes from any offset on; it keeps *owner*."""

    owner: object = None
    skipped: int = 0
    writable: bool = True

    @property
    def array(self) -> NDArray:
        """The requested bytes, flat uint8. The region lives while any view of it does."""
        array: NDArray = np.frombuffer(self, np.uint8)[self.skipped :]
        if not self.writable:
            array.flags.writeable = False
        return array


def map_region(fd: int, nbytes: int, access: int, offset: int = 0, owner: object = None) -> Region:
    """*nbytes* > 0 of *fd* from any *offset* on, mapped and counted. Raises as `mmap` does."""
    skipped = offset % mmap.ALLOCATIONGRANULARITY
    region = Region(fd, nbytes + skipped, access=access, offset=offset - skipped)
    region.owner, region.skipped = owner, skipped
    region.writable = access == mmap.ACCESS_WRITE
    _live.add(region)
    return region


def place(region: Region, memory: Memory) -> None:
    """Registers *region*, which maps all of *memory*, for `pool_of`."""
    array = region.array
    start: int = array.__array_interface__["data"][0]
    _table.add(start, _Placed(start + array.nbytes, memory, weakref.ref(region)))
    weakref.finalize(region, _table.forget, start)


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

    Views made of `array` stay valid after `close`: the region is unmapped when the last one is
    freed.
    """

    __slots__ = ("__weakref__", "_array", "ended")

    def __init__(self, array: NDArray) -> None:
        self._array: NDArray | None = array
        self.ended: Callable[[], object] | None = None

    @property
    def array(self) -> NDArray:
        """The region as flat uint8, read-only unless its handle allows writing."""
        if self._array is None:
            raise ClosedError("mapping used after close()")
        return self._array

    def close(self) -> None:
        """Releases the region. A second call does nothing."""
        self._array = None
        if self.ended is not None:
            self.ended()


def map_memory(memory: Memory, kinds: Container[str] = MEMORY_KINDS) -> Mapping:
    """Maps *memory* by its name, if that is among the *kinds* that a device maps.

    The CPU's use of a dma-buf is announced to the kernel until the mapping is closed. Raises
    `GeneralFailure` for a name that cannot be mapped, for a handle that does not match the name,
    that cannot be mapped, or that has fewer bytes than *memory* claims. Raises
    `ResourceExhaustedTransient` if this process has no descriptor or no address space left, and
    `InputError` if *memory* is no `Memory`.
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
    """The first *nbytes* > 0 of *fd*. Raises `InputError` or `ResourceExhaustedTransient`."""
    access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
    try:
        return Mapping(map_region(fd, nbytes, access).array)
    except PermissionError as error:
        raise InputError(f"this memory cannot be mapped as it is protected: {error}") from None
    except (OSError, ValueError, OverflowError) as error:
        raise ResourceExhaustedTransient(f"{nbytes} bytes cannot be mapped: {error}") from error


def announce(owner: object, fd: int, *, write: bool = True) -> Callable[[], object] | None:
    """Announces to the kernel that the CPU uses the dma-buf *fd*.

    The use ends when the returned function is called, or *owner* dies. Returns None if *fd* is no
    dma-buf. Raises `ResourceExhaustedTransient` if no descriptor is left.
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
    """The size of a file, memfd or dma-buf. Raises `OSError` and `OverflowError`."""
    if size := os.fstat(fd).st_size:
        return size
    try:
        # The size of a dma-buf is the position of its end.
        end = os.lseek(fd, 0, os.SEEK_END)
        os.lseek(fd, 0, os.SEEK_SET)
    except OSError:
        return 0
    return end


def _check_blob(memory: Memory) -> None:
    claimed = memory.handle[1]
    is_blob = isinstance(claimed, HardwareBufferDescription) and claimed.is_blob
    if not is_blob or claimed.width < memory.size:
        raise GeneralFailure(
            f"a hardware_buffer_blob of {memory.size} bytes cannot have the description {claimed}"
        )


def region_of(memory: Memory, fd: int) -> NDArray:
    """All bytes of *memory* from the start of *fd*, writable if possible; as `map_memory`."""
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
    what, reason = f"descriptor {fd} of a {memory.name} memory", ""
    for kind in kinds:
        try:
            return map_region(fd, memory.size, kind, offset).array
        except PermissionError as error:
            # Before Linux 6.7 a region sealed against writing can only be mapped privately. A
            # stored error would keep its frames and their objects until the next collection.
            reason = str(error)
        except (OSError, ValueError, OverflowError) as error:
            if getattr(error, "errno", None) in OUT_OF_ROOM:
                raise ResourceExhaustedTransient(f"{what}: {error}") from None
            raise GeneralFailure(f"{what}: {error}") from None
    raise GeneralFailure(f"{what}: {reason}")
