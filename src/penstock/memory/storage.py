"""Storage of a `DeviceBuffer`: on a device, or in a pool if no device can hold it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock import errors
from penstock.hal import HostMemory, Memory, PoolArgument, TokenArgument
from penstock.hal.buffer import loss_of, needs_copy
from penstock.hal.device import mappable_kinds
from penstock.ir import DataLocation, NDArray
from penstock.ir.types import static_shape
from penstock.logs import Log
from penstock.memory.bound import StepUse
from penstock.memory.mapping import ASHMEM, HARDWARE_BUFFER, MMAP_FD, MappedFd, map_memory, pool_of
from penstock.memory.pool import MemoryPool

if TYPE_CHECKING:
    from penstock.hal import Buffer, Device, PreparedModel, RequestArgument
    from penstock.hal.buffer import Allocation


log = Log("penstock.memory")


class Storage(Protocol):
    """Storage of one value. *device* is None for a pool, and *reason* is why it is a pool."""

    device: str | None
    reason: str

    @property
    def lost(self) -> str:
        """How the process that held it ended; empty while it runs."""
        ...

    def argument(self, use: StepUse, pools: list[Memory]) -> RequestArgument | None:
        """As `BoundMemory.argument`; `DeadObject` if the process of its device has ended."""
        ...

    def copy_to(self, memory: Memory) -> int:
        """Copies the value out; *memory* has exactly its size. Returns the number of copies."""
        ...

    def copy_from(self, memory: Memory, shape: tuple[int, ...]) -> int:
        """Copies a value of *shape* in; *memory* has its size. Returns the number of copies."""
        ...

    def close(self) -> None:
        """Frees it."""
        ...


class OnDevice:
    """A driver's *buffer* for *uses*."""

    reason = ""

    def __init__(self, owner: Device, token: int, buffer: Buffer, uses: Sequence[StepUse]) -> None:
        self.device: str | None = owner.name
        self._owner, self._token, self._buffer, self._uses = owner, token, buffer, uses

    @property
    def lost(self) -> str:
        return loss_of(self._buffer)

    def argument(self, use: StepUse, pools: list[Memory]) -> RequestArgument | None:
        # In another process of the driver, the token may belong to another buffer.
        if self.lost:
            raise errors.DeadObject(self.lost)
        for declared in self._uses:
            if (declared.kind, declared.position) == (use.kind, use.position) and is_or_holds(
                use.prepared, declared.prepared
            ):
                return TokenArgument(self._token)
        return None

    def copy_to(self, memory: Memory) -> int:
        if self._maps(memory):
            self._call("copy_to", memory)
            return 1 + needs_copy(self._buffer, memory)
        with map_memory(memory) as mapping, _flat_staging(memory) as (pool, array):
            self._call("copy_to", pool.memory)
            mapping.array[:] = array
        return 2

    def copy_from(self, memory: Memory, shape: tuple[int, ...]) -> int:
        if self._maps(memory):
            self._call("copy_from", memory, shape)
            return 1 + needs_copy(self._buffer, memory)
        with map_memory(memory) as mapping, _flat_staging(memory) as (pool, array):
            array[:] = mapping.array
            self._call("copy_from", pool.memory, shape)
        return 2

    def close(self) -> None:
        try:
            self._buffer.close()
        except errors.FOREIGN as error:  # a driver may raise anything
            log.warning("device %s failed in close of a buffer: %r", self.device, error)

    def _call(self, method: str, *arguments: Any) -> None:
        """Calls the driver's buffer.

        An error that is no `DriverError` becomes a `GeneralFailure`.
        """
        try:
            getattr(self._buffer, method)(*arguments)
        except (errors.DriverError, errors.Cancelled):
            raise
        except errors.FOREIGN as error:
            raise errors.GeneralFailure(
                f"device {self.device} failed in {method} of a buffer: {error!r}"
            ) from error

    def _maps(self, memory: Memory) -> bool:
        return memory.name in mappable_kinds(self._owner)


class InPool:
    """A pool of the runtime, as large as the value that it holds; *reason* is why it is a pool."""

    device: str | None = None
    lost = ""

    def __init__(self, allocation: Allocation, reason: str) -> None:
        self.reason = reason
        self._dtype = allocation.dtype.numpy
        self._known = static_shape(allocation.shape)
        self._lock = threading.Lock()
        self._held: tuple[MemoryPool, NDArray] | None = None
        if self._known is not None:
            self._held = self._made(self._known)

    def argument(self, use: StepUse, pools: list[Memory]) -> RequestArgument | None:
        if self._known is None and use.kind == "output":
            return None
        pool, array = self._content()
        claims = use.device.capabilities
        if claims.accepts_host_memory:
            if not claims.shares_host_memory:
                return None
            if use.kind == "input":
                array = array.view()
                array.flags.writeable = False
            return HostMemory(array)
        if ASHMEM not in claims.memory_kinds:
            return None
        pools.append(pool.memory)
        return PoolArgument(DataLocation(len(pools) - 1, 0, array.nbytes), array.shape)

    def copy_to(self, memory: Memory) -> int:
        _, array = self._content()
        with map_memory(memory) as mapping:
            if not mapping.array.flags.writeable:
                raise errors.InputError("memory to copy to must be writable")
            mapping.array[:] = array.reshape(-1).view(np.uint8)
        return 1

    def copy_from(self, memory: Memory, shape: tuple[int, ...]) -> int:
        with map_memory(memory) as mapping:
            if self._known is None:
                made = self._made(shape)
                made[1].reshape(-1).view(np.uint8)[:] = mapping.array
                with self._lock:
                    # The previous pool is released, and unmapped when its last view is freed.
                    self._held = made
            else:
                self._content()[1].reshape(-1).view(np.uint8)[:] = mapping.array
        return 1

    def close(self) -> None:
        with self._lock:
            held, self._held = self._held, None
        if held is not None:
            held[0].close()

    def _content(self) -> tuple[MemoryPool, NDArray]:
        held = self._held
        if held is None:
            raise errors.ClosedError("a device buffer used after close()")
        return held

    def _made(self, shape: tuple[int, ...]) -> tuple[MemoryPool, NDArray]:
        nbytes = int(np.prod(shape, dtype=object)) * self._dtype.itemsize
        pool = MemoryPool.anonymous(max(nbytes, 1))
        return pool, pool.view(self._dtype, shape)


def is_or_holds(prepared: object, one: PreparedModel) -> bool:
    """Whether *prepared* is *one* or wraps it, as a burst or a queue does."""
    while prepared is not None:
        if prepared is one:
            return True
        prepared = getattr(prepared, "prepared", None)
    return False


@contextmanager
def staging(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[tuple[MemoryPool, NDArray]]:
    """A pool of the size of an array, and that array in it, which stays valid after the block."""
    nbytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
    with MemoryPool.anonymous(nbytes) as pool:
        yield pool, pool.view(dtype, shape)


def _flat_staging(memory: Memory) -> AbstractContextManager[tuple[MemoryPool, NDArray]]:
    return staging((memory.size,), np.dtype(np.uint8))


def place_of(array: NDArray) -> Memory | None:
    """The bytes of *array* as a memory, if they lie in a pool that may be passed in part."""
    place = pool_of(array)
    if place is None:
        return None
    memory = place.memory
    if place.offset == 0 and array.nbytes == memory.size:
        return memory
    if memory.name == ASHMEM:
        return Memory(MMAP_FD, MappedFd(memory.handle, place.offset), array.nbytes)
    if memory.name == MMAP_FD:
        fd, offset, protection = memory.handle
        return Memory(MMAP_FD, MappedFd(fd, offset + place.offset, protection), array.nbytes)
    return None


def viewed(value: Any) -> Any:
    """Another library's array as NumPy's, by DLPack or the buffer protocol, or *value* itself."""
    if isinstance(value, np.ndarray | Memory) or hasattr(value, "memory"):
        return value
    try:
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        return np.asarray(memoryview(value))
    except (TypeError, ValueError, RuntimeError, BufferError):
        return value


def memory_of(value: Any, verb: str) -> Memory:
    """The memory of a pool, or of a hardware buffer that has bytes. Raises `InputError`."""
    memory = value if isinstance(value, Memory) else getattr(value, "memory", None)
    if not isinstance(memory, Memory):
        raise errors.InputError(
            f"{type(value).__name__} is no memory to {verb}; give a pool, an array or a device "
            "buffer"
        )
    if memory.name == HARDWARE_BUFFER:
        raise errors.InputError(f"an image has no bytes to {verb}; only a BLOB hardware buffer has")
    return memory
