"""The caller's memory as input or output of a run, zero-copy for devices that can map it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from penstock.errors import GeneralFailure, InputError
from penstock.hal import HostMemory, PoolArgument
from penstock.hal.device import is_isolated, mappable_kinds
from penstock.ir import DataLocation, DType
from penstock.ir.types import static_shape
from penstock.memory.mapping import ASHMEM, map_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.errors import DeadObject
    from penstock.hal import Device, Memory, PreparedModel, RequestArgument
    from penstock.ir import NDArray, Operand


Kind: TypeAlias = Literal["input", "output"]


class StepUse(Struct, frozen=True, eq=False):
    """Input or output *position* of *prepared* on *device*, a step that uses the value."""

    device: Device
    prepared: PreparedModel
    kind: Kind
    position: int


@runtime_checkable
class Bindable(Protocol):
    """Memory of the caller that is accepted instead of an array: as an input, or in `out=`."""

    def bind_argument(
        self, user: object, kind: Kind, index: int, operand: Operand
    ) -> BoundMemory | NDArray:
        """Binds the memory for one run of *user*, a compiled model, as input or output *index*.

        *operand* describes that input or output. Returns an array if the host can view the memory,
        else a `BoundMemory`. Raises `InputError`, `StateError` for an input without a value,
        `ClosedError`.
        """
        ...


class BoundMemory:
    """One use of memory by one run. The defaults are for memory that no device accepts.

    *owner* is the caller's object, returned as the output. *name* is for receipts. *shape* is None
    for an output of unknown shape. *staged* counts extra copies of the last `read` or `write`.
    """

    __slots__ = ("name", "owner", "shape", "staged")

    def __init__(self, owner: Any, name: str, shape: tuple[int, ...] | None) -> None:
        self.owner, self.name, self.shape = owner, name, shape
        self.staged = 0

    @property
    def array(self) -> NDArray | None:
        """The value in its memory; None if the host cannot map it, or its shape is unknown."""
        return None

    @property
    def result(self) -> Any:
        """The value that the caller gets for an output."""
        return self.owner

    def argument(self, use: StepUse, pools: list[Memory]) -> RequestArgument | None:
        """The argument for *use*; None if the value has to be copied.

        Adds the pools that it needs to *pools*, those of the request. Raises `DriverError` if the
        device cannot accept the memory and the host cannot copy it.
        """
        return None

    def read(self) -> NDArray:
        """The value, in memory of the host. Raises `DriverError`."""
        raise GeneralFailure(f"{self.name} cannot be read by the host")

    def stage(self, shape: tuple[int, ...], operand: Operand) -> NDArray | None:
        """Host memory from which `write` copies fastest; None if any is equally fast."""
        return None

    def write(self, value: NDArray) -> None:
        """Copies *value* in. Raises `DriverError`."""
        raise GeneralFailure(f"{self.name} cannot be written by the host")

    def written(self, shape: tuple[int, ...]) -> None:
        """Records that a run has written a value of *shape* by its argument."""

    def lost(self) -> None:
        """Records that a run that was to write it by its argument has failed."""

    def gone(self) -> DeadObject | None:
        """The error that names the memory, if it was lost with its device."""
        return None

    def notes(self) -> list[str]:
        """Notes for the receipt of the run."""
        return []


class BoundPool(BoundMemory):
    """*nbytes* bytes from *offset* of a pool, for devices that map its kind."""

    __slots__ = ("_dtype", "_memory", "_nbytes", "_offset")

    def __init__(
        self,
        owner: Any,
        memory: Memory,
        dtype: DType,
        shape: tuple[int, ...] | None,
        *,
        offset: int = 0,
        nbytes: int | None = None,
    ) -> None:
        super().__init__(owner, f"{memory.name} pool", shape)
        self._memory, self._dtype, self._offset = memory, dtype, offset
        self._nbytes = memory.size - offset if nbytes is None else nbytes

    def argument(self, use: StepUse, pools: list[Memory]) -> RequestArgument | None:
        """As `BoundMemory.argument`; `GeneralFailure` if the device does not map this memory."""
        self.check(use.device)
        if self._memory not in pools:
            pools.append(self._memory)
        place = DataLocation(pools.index(self._memory), self._offset, self._nbytes)
        return PoolArgument(place, self.shape or ())

    def check(self, device: Device) -> None:
        """Raises `GeneralFailure` if *device* does not map this kind of memory."""
        if self._memory.name not in mappable_kinds(device):
            raise GeneralFailure(f"device {device.name} maps no {self._memory.name} memory")

    def read(self) -> NDArray:
        """As `BoundMemory.read`; `GeneralFailure` for a kind that the host does not map either."""
        return self._view().copy()

    def write(self, value: NDArray) -> None:
        """As `BoundMemory.write`."""
        array = self._view()
        if not array.flags.writeable:
            raise GeneralFailure(f"{self.name} cannot be written")
        array[...] = value

    def _view(self) -> NDArray:
        with map_memory(self._memory) as mapping:
            content = mapping.array[self._offset : self._offset + self._nbytes]
        return content.view(self._dtype.numpy).reshape(self.shape or ())


class Viewed(Protocol):
    """Memory that the host can view: a `MemoryPool`."""

    def view(self, dtype: npt.DTypeLike, shape: int | Sequence[int], offset: int = 0) -> NDArray:
        """An array over its bytes from *offset* on."""
        ...


class LentPool(BoundPool):
    """A pool that the host can view: passed as host memory to devices that accept that."""

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
        """The value in its pool, not copied."""
        shape = self.shape
        return None if shape is None else self._pool.view(self._dtype.numpy, shape)

    @property
    def result(self) -> Any:
        """The value that the caller gets for an output: an array over the pool."""
        return self.array

    def argument(self, use: StepUse, pools: list[Memory]) -> RequestArgument | None:
        self.check(use.device)
        capabilities = use.device.capabilities
        # Memory that may shrink is passed to another process by its descriptor, not by its address
        # here.
        elsewhere = self._memory.name != ASHMEM and is_isolated(use.device)
        if elsewhere or not (capabilities.accepts_host_memory and capabilities.shares_host_memory):
            return super().argument(use, pools)
        if self.shape is None:
            return HostMemory(self._pool.view("u1", self._nbytes))
        array = self._pool.view(self._dtype.numpy, self.shape)
        if use.kind == "input":
            array.flags.writeable = False
        return HostMemory(array)

    def written(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


def extent_of(memory: Memory, kind: Kind, operand: Operand) -> tuple[tuple[int, ...] | None, int]:
    """The shape of the value, if it is known, and its number of bytes in *memory*."""
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
            f"{place_of(kind, operand)} takes {needed} bytes ({operand.dtype.value} of shape "
            f"{shape}), {memory.size} bytes of {memory.name} memory were given"
        )
    return shape, needed


def place_of(kind: Kind, operand: Operand) -> str:
    """Name of the input or output in errors."""
    return f"{kind} {operand.name!r}"
