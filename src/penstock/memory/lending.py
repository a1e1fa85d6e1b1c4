"""Pools and hardware buffers as the inputs and outputs of one run, given to devices that map their
kind.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import InputError
from penstock.hal import HostMemory, Memory
from penstock.hal.device import is_isolated
from penstock.ir import DType, NDArray
from penstock.ir.types import static_shape
from penstock.memory.bound import BoundPool, Kind
from penstock.memory.mapping import ASHMEM

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.hal import Device, PreparedModel, RequestArgument
    from penstock.ir import Operand


class Viewed(Protocol):
    """Memory that the host sees: a `MemoryPool`."""

    def view(self, dtype: npt.DTypeLike, shape: int | Sequence[int], offset: int = 0) -> NDArray:
        """An array over its bytes from *offset* on."""
        ...


class LentPool(BoundPool):
    """A pool whose bytes the host may see, too: a device that takes memory of the host gets them
    without mapping the pool anew. It must map the pool's kind all the same.
    """

    __slots__ = ("_pool",)

    def __init__(
        self,
        owner: object,
        pool: Viewed,
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
        # Memory that may shrink is lent to another process by what it is, not by where it is mapped
        # here.
        elsewhere = self._memory.name != ASHMEM and is_isolated(device)
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


def extent_of(memory: Memory, kind: Kind, operand: Operand) -> tuple[tuple[int, ...] | None, int]:
    """The shape of the value, if it is known, and how many bytes of *memory* are for it."""
    if operand.dtype is DType.STRING:
        raise InputError(f"{place_of(kind, operand)} holds strings, which cannot lie in a pool")
    shape = static_shape(operand.shape)
    if shape is None:
        if kind == "input":
            raise InputError(
                f"{place_of(kind, operand)} has an unknown shape: give a view of the pool, "
                "pool.view(dtype, shape), which has one"
            )
        return None, memory.size
    needed = math.prod(shape) * operand.dtype.numpy.itemsize
    if needed > memory.size:
        raise InputError(
            f"{place_of(kind, operand)} takes {needed} bytes ({operand.dtype.value} of shape {shape}), "
            f"{memory.size} bytes of {memory.name} memory were given"
        )
    return shape, needed


def place_of(kind: Kind, operand: Operand) -> str:
    """The input or output as errors name it."""
    return f"{kind} {operand.name!r}"
