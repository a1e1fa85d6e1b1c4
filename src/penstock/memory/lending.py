"""Pools and hardware buffers as the inputs and outputs of one run, given to devices that map their kind."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from penstock.errors import InputError
from penstock.hal import HostMemory, Memory
from penstock.ir import DType, NDArray
from penstock.ir.types import static_shape
from penstock.memory.bound import BoundPool, Kind
from penstock.memory.mapping import ASHMEM
from penstock.memory.pool import MemoryPool

if TYPE_CHECKING:
    from penstock.hal import Device, PreparedModel, RequestArgument
    from penstock.ir import Operand
    from penstock.memory.hardware import HardwareBuffer


class LentPool(BoundPool):
    """A pool whose bytes the host may see, too: a device that takes memory of the host gets them without mapping the
    pool anew. It must map the pool's kind all the same.
    """

    __slots__ = ("_pool",)

    def __init__(
        self,
        owner: object,
        pool: MemoryPool,
        memory: Memory,
        operand: Operand,
        shape: tuple[int, ...] | None,
        nbytes: int,
    ) -> None:
        super().__init__(owner, memory, operand.dtype, shape, nbytes=nbytes)
        self._pool = pool

    @property
    def array(self) -> NDArray | None:
        """The value where it lies."""
        shape = self.shape
        return None if shape is None else self._pool.view(self._dtype.numpy, shape)

    @property
    def result(self) -> Any:
        """What the caller gets for an output: an array over the pool."""
        return self.array

    def argument(
        self,
        device: Device,
        prepared: PreparedModel,
        kind: Kind,
        position: int,
        pools: list[Memory],
    ) -> RequestArgument | None:
        self.check(device)
        capabilities = device.capabilities
        # Memory that may shrink is lent to another process by what it is, not by where it is mapped here.
        elsewhere = self._memory.name != ASHMEM and getattr(device, "isolated", False)
        if elsewhere or not (capabilities.accepts_host_memory and capabilities.shares_host_memory):
            return super().argument(device, prepared, kind, position, pools)
        if self.shape is None:
            return HostMemory(self._pool.view("u1", self._nbytes))
        array = self._pool.view(self._dtype.numpy, self.shape)
        if kind == "input":
            array.flags.writeable = False
        return HostMemory(array)

    def written(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


def lend_pool(pool: MemoryPool, kind: Kind, operand: Operand) -> BoundPool:
    """*pool* as an input or output that *operand* describes. Raises `InputError` where it does not fit."""
    memory = pool.memory
    if kind == "output" and pool.readonly:
        raise InputError(f"{_place(kind, operand)}: the pool is read-only")
    shape, nbytes = _extent(memory, kind, operand)
    if not pool.readable:
        return BoundPool(pool, memory, operand.dtype, shape, nbytes=nbytes)
    return LentPool(pool, pool, memory, operand, shape, nbytes)


def lend_buffer(buffer: HardwareBuffer, kind: Kind, operand: Operand) -> BoundPool:
    """*buffer* likewise. An image has no bytes of its own in the request: its offset and length are 0 (NNAPI 6.3)."""
    memory = buffer.memory
    if buffer.description.is_blob:
        shape, nbytes = _extent(memory, kind, operand)
        if buffer.is_dma_buf:
            # Whoever maps it tells the kernel when the CPU uses it; a view that is kept does not.
            return BoundPool(buffer, memory, operand.dtype, shape, nbytes=nbytes)
        return LentPool(
            buffer, MemoryPool.from_hardware_buffer(buffer), memory, operand, shape, nbytes
        )
    shape = static_shape(operand.shape)
    if shape is None:
        raise InputError(
            f"{_place(kind, operand)} has an unknown shape, which an image cannot have"
        )
    return BoundPool(buffer, memory, operand.dtype, shape, nbytes=0)


def _extent(memory: Memory, kind: Kind, operand: Operand) -> tuple[tuple[int, ...] | None, int]:
    """The shape of the value, if it is known, and how many bytes of *memory* are for it."""
    if operand.dtype is DType.STRING:
        raise InputError(f"{_place(kind, operand)} holds strings, which cannot lie in a pool")
    shape = static_shape(operand.shape)
    if shape is None:
        if kind == "input":
            raise InputError(
                f"{_place(kind, operand)} has an unknown shape: give a view of the pool, "
                "pool.view(dtype, shape), which has one"
            )
        return None, memory.size
    needed = math.prod(shape) * operand.dtype.numpy.itemsize
    if needed > memory.size:
        raise InputError(
            f"{_place(kind, operand)} takes {needed} bytes ({operand.dtype.value} of shape {shape}), "
            f"{memory.size} bytes of {memory.name} memory were given"
        )
    return shape, needed


def _place(kind: Kind, operand: Operand) -> str:
    return f"{kind} {operand.name!r}"
