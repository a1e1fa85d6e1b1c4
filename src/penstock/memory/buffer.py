"""`DeviceBuffer`: memory of a device, for applications (NNAPI sections 6.4 to 6.6)."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from penstock.closing import Closing
from penstock.errors import ClosedError, DeadObject, InputError, InvalidArgument, StateError
from penstock.hal import Memory
from penstock.hal.buffer import Allocation, merged
from penstock.ir import NDArray, Operand
from penstock.ir.types import is_masked, is_static, static_shape
from penstock.memory.bound import BoundMemory, Kind, StepUse
from penstock.memory.copies import CopyReceipt, receipts_of
from penstock.memory.pool import MemoryPool
from penstock.memory.storage import Storage, memory_of, place_of, staging, viewed

if TYPE_CHECKING:
    from penstock.hal import RequestArgument

T = TypeVar("T")

ASKED: Final = "the caller copies the value of a device buffer"

OFTEN: Final = 3
"""Consecutive runs with a copy by the host before or after, until a receipt mentions it."""


class StoredValue:
    """The value of a `DeviceBuffer` in its storage: how runs and copies reach it."""

    def __init__(self, allocation: Allocation, storage: Storage, name: str) -> None:
        self.allocation, self.storage, self.name = allocation, storage, name
        self.dtype = allocation.dtype.numpy
        self.shape: tuple[int, ...] | None = None
        self.remedy = "allocate another"
        """What the caller can do when the device has lost it; the end of the error's sentence."""

        self._lock = threading.Lock()
        self._process = os.getpid()
        self._closed = False
        self._runs = self._reads = self._writes = 0
        self._fresh = self._filled = False
        self._release = weakref.finalize(self, _release, storage, self._process)
        self._release.atexit = False

    def close(self) -> None:
        """Frees the storage."""
        self._closed = True
        self._release()

    def check_usable(self) -> None:
        """Raises `ClosedError`, `StateError` after a fork, or `DeadObject`."""
        if self._closed:
            raise ClosedError(f"{self.name} used after close()")
        if self._process != os.getpid():
            raise StateError(f"{self.name} belongs to the process before a fork; allocate it here")
        if (gone := self.gone()) is not None:
            raise gone

    def gone(self) -> DeadObject | None:
        """The error of every use once its device is unavailable; None before."""
        lost = self.storage.lost
        return self._dead(lost) if lost else None

    def initialized(self) -> tuple[int, ...]:
        """The value's shape. Raises `StateError` without a value."""
        shape = self.shape
        if shape is None:
            raise StateError(
                f"{self.name} has no value: copy one in, or let a run that succeeds write it"
            )
        return shape

    def full_shape(self, dimensions: Sequence[int] | None) -> tuple[int, ...]:
        """The complete shape of a value to copy in."""
        declared = self.allocation.shape
        if dimensions is None:
            known = static_shape(declared)
            if known is None:
                raise InputError(f"{self.name} has the shape {declared}: give dimensions")
            return known
        given = tuple(dimensions)
        try:
            merged(declared, given, self.name)
        except InvalidArgument as error:
            raise InputError(str(error)) from None
        if not is_static(given) or any(type(d) is not int or d < 0 for d in given):
            raise InputError(f"dimensions {given} are not complete")
        return given

    def argument(self, use: StepUse, pools: list[Memory]) -> RequestArgument | None:
        """As `BoundMemory.argument`."""
        found = self._call(lambda: self.storage.argument(use, pools))
        if found is not None:
            with self._lock:
                self._runs += 1
                if use.kind == "output":
                    self._fresh = True
                elif self._filled:
                    self._writes += 1
                    self._filled = False
        return found

    def fetch(self) -> tuple[NDArray, int]:
        """The value, copied to separate memory, and the number of copies."""
        shape = self.initialized()
        self.count_read()
        return self._staged(shape)

    def copy_to(self, memory: Memory) -> int:
        """Copies the value out to memory of its size. Returns the number of copies."""
        self._check_size(memory.size, self.initialized())
        return self._call(lambda: self.storage.copy_to(memory))

    def copy_to_array(self, destination: NDArray) -> int:
        """Copies the value out. Returns the number of copies."""
        shape = self.initialized()
        self._check_array(destination, shape, shape)
        if not destination.flags.writeable:
            raise InputError("an array to copy to must be writable")
        if is_masked(destination):
            raise InputError(
                f"{self.name} is copied to a masked array, and no device heeds masks; "
                "give its data, which is the array without its mask"
            )
        if (memory := place_of(destination)) is not None:
            return self._call(lambda: self.storage.copy_to(memory))
        value, count = self._staged(shape)
        destination[...] = value
        return count + 1

    def copy_from(self, memory: Memory, dimensions: Sequence[int] | None) -> int:
        """Copies a value in from memory of its size. Returns the number of copies."""
        shape = self.full_shape(dimensions)
        self._check_size(memory.size, shape)
        self.count_write()
        return self.take(memory, shape)

    def copy_from_array(self, source: NDArray, dimensions: Sequence[int] | None = None) -> int:
        """Copies a value in. Returns the number of copies."""
        shape = tuple(source.shape) if dimensions is None else tuple(dimensions)
        self._check_array(source, shape, self.allocation.shape)
        self.full_shape(shape)
        self.count_write()
        return self.put(source)

    def put(self, value: NDArray) -> int:
        """Copies *value*, which fits, in. Returns the number of copies."""
        shape = tuple(value.shape)
        memory = place_of(value)
        if memory is not None:
            return self.take(memory, shape)
        with staging(shape, self.dtype) as (pool, array):
            array[...] = value
            return self.take(pool.memory, shape) + 1

    def take(self, memory: Memory, shape: tuple[int, ...]) -> int:
        """Copies a value of *shape* in from memory of its size. Returns the number of copies."""
        try:
            count = self._call(lambda: self.storage.copy_from(memory, shape))
        except BaseException:
            self.shape = None
            raise
        self.shape = shape
        return count

    def count_read(self) -> None:
        """Counts that the host reads what a run has written."""
        with self._lock:
            if self._fresh:
                self._reads += 1
                self._fresh = False

    def count_write(self) -> None:
        """Counts that the host writes what a run may read."""
        with self._lock:
            self._filled = True

    def notes(self) -> list[str]:
        """Notes for the receipt of a run."""
        if self.storage.reason:
            return [f"{self.name} lies in a pool: {self.storage.reason}"]
        habit = ""
        if self._runs >= OFTEN and self._reads >= self._runs - 1:
            habit = f"reads {self.name} after"
        elif self._runs >= OFTEN and self._writes >= self._runs:
            habit = f"writes {self.name} before"
        better = "every run: memory that it touches so often is better a pool"
        return [f"the host {habit} {better}"] if habit else []

    def _staged(self, shape: tuple[int, ...]) -> tuple[NDArray, int]:
        with staging(shape, self.dtype) as (pool, array):
            return array, self._call(lambda: self.storage.copy_to(pool.memory))

    def _call(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except InvalidArgument as error:
            raise InputError(f"{self.name}: {error}") from error
        except DeadObject as error:
            raise self._dead(str(error)) from error

    def _dead(self, how: str) -> DeadObject:
        self.shape = None
        return DeadObject(f"{self.name} is lost with its device ({how}); {self.remedy}")

    def _check_array(
        self, array: NDArray, shape: tuple[int, ...], declared: tuple[int | None, ...] | None
    ) -> None:
        if array.dtype != self.dtype or array.shape != shape:
            raise InputError(
                f"{self.name} holds {self.dtype} of shape {declared}; an array of {array.dtype} "
                f"of shape {array.shape} was given"
            )

    def _check_size(self, nbytes: int, shape: tuple[int, ...]) -> None:
        needed = int(np.prod(shape, dtype=object)) * self.dtype.itemsize
        if nbytes != needed:
            raise InputError(
                f"{self.name} holds {needed} bytes ({self.dtype} of shape {shape}); memory of "
                f"{nbytes} was given"
            )


class DeviceBuffer(Closing):
    """One value in a device's memory, or in a pool if no device accepted it.

    `penstock.memory.allocate` makes it. A run accepts it instead of an array, for the inputs and
    outputs that it was allocated for, and the value stays on the device between runs. If that
    device's process ends, every use raises `DeadObject`.

    The buffer has no value at first: copy one in, or let a run write it. A run that fails leaves it
    without a value. A buffer of unknown shape takes the shape of what is written. Any number of
    runs may read it at the same time. While one run writes, other runs on a device read the old
    value or the new one, whole; from a pool they may read parts of both.

    *device* is the name of its device, None for a pool; *fallback_reason* is why it is a pool.
    `copies` are those of the last `copy_to`, `copy_from` or `numpy` of it, in any thread.
    """

    def __init__(self, allocation: Allocation, storage: Storage, name: str) -> None:
        self.stored = StoredValue(allocation, storage, name)
        self.copies: tuple[CopyReceipt, ...] = ()

    @property
    def device(self) -> str | None:
        """The name of its device; None for a pool."""
        return self.stored.storage.device

    @property
    def fallback_reason(self) -> str:
        """Why it lies in a pool; empty if it is on a device."""
        return self.stored.storage.reason

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its elements."""
        return self.stored.dtype

    @property
    def shape(self) -> tuple[int | None, ...] | None:
        """Shape of its value; without a value, as far as the roles and dimensions define it."""
        shape = self.stored.shape
        return self.stored.allocation.shape if shape is None else shape

    @property
    def is_initialized(self) -> bool:
        """Whether it has a value."""
        return self.stored.shape is not None and not self.stored.storage.lost

    def copy_to(self, destination: MemoryPool | DeviceBuffer | NDArray | Any) -> None:
        """Copies the value out to *destination*.

        *destination* is a pool, or hardware buffer with bytes, of exactly its size; an array of its
        dtype and shape, also one of another library that supports DLPack or the buffer protocol; or
        another device buffer.

        Raises `StateError` without a value, `InputError` for a destination that does not fit,
        `ClosedError`, `DriverError`. After an error *destination* may hold some, all or none of the
        bytes.
        """
        stored = self.stored
        stored.check_usable()
        if isinstance(destination, DeviceBuffer):
            destination.copy_from(self)
            return
        stored.initialized()
        stored.count_read()
        began = time.perf_counter_ns()
        destination = viewed(destination)
        if isinstance(destination, np.ndarray):
            nbytes, count = destination.nbytes, stored.copy_to_array(destination)
        else:
            memory = memory_of(destination, "copy to")
            nbytes, count = memory.size, stored.copy_to(memory)
        self.copies = _receipts(self, nbytes, count, began, out=True)

    def copy_from(
        self,
        source: MemoryPool | DeviceBuffer | NDArray | Any,
        dimensions: Sequence[int] | None = None,
    ) -> None:
        """Copies a value in, from the kinds that `copy_to` accepts.

        *dimensions* are its shape, needed for a pool if the buffer's shape is unknown.

        Raises `InputError` for a source that does not fit, `StateError` for a device buffer without
        a value, `ClosedError`, `DriverError`. The buffer then has no value, unless the source was
        rejected before the copy began.
        """
        stored = self.stored
        stored.check_usable()
        if source is self:
            return
        began = time.perf_counter_ns()
        if isinstance(source, DeviceBuffer):
            self._copy_from_buffer(source)
            return
        if is_masked(source):
            raise InputError(
                f"{stored.name} gets a masked array, and no device heeds masks; "
                "give its filled(), with a value for what is masked"
            )
        source = viewed(source)
        if isinstance(source, np.ndarray):
            nbytes, count = source.nbytes, stored.copy_from_array(source, dimensions)
        else:
            stored.full_shape(dimensions)
            memory = memory_of(source, "copy from")
            nbytes, count = memory.size, stored.copy_from(memory, dimensions)
        self.copies = _receipts(self, nbytes, count, began)

    def numpy(self) -> NDArray:
        """The value, copied to the host."""
        began = time.perf_counter_ns()
        value, count = fetch_value(self)
        self.copies = _receipts(self, value.nbytes, count, began, out=True)
        return value

    def value_shape(self) -> tuple[int, ...]:
        """The value's shape. Raises `StateError` without one, `DeadObject` if its device ended."""
        if (gone := self.stored.gone()) is not None:
            raise gone
        return self.stored.initialized()

    def bind_argument(self, user: object, kind: Kind, index: int, operand: Operand) -> BoundMemory:
        """As `Bindable`: `InputError` for an undeclared use, `StateError` without a value."""
        stored = self.stored
        stored.check_usable()
        roles = stored.allocation.roles
        if not any(r.prepared is user and r.kind == kind and r.index == index for r in roles):
            raise InputError(
                f"{stored.name} was not allocated for {kind} {index} ({operand.name}); "
                "name every use in allocate(roles=...)"
            )
        return BoundBuffer(self, stored.name, stored.initialized() if kind == "input" else None)

    def close(self) -> None:
        """Frees the buffer. Runs that use it continue. A second call does nothing."""
        self.stored.close()

    def __reduce__(self) -> Any:
        raise TypeError("a device buffer cannot be pickled; copy its value out")

    def __repr__(self) -> str:
        where = f"on {self.device}" if self.device is not None else "in a pool"
        shape = " of unknown rank" if self.shape is None else list(self.shape)
        return f"<DeviceBuffer {self.stored.allocation.dtype.value}{shape} {where}>"

    def _copy_from_buffer(self, source: DeviceBuffer) -> None:
        mine, other = self.stored, source.stored
        other.check_usable()
        shape, here, there = other.initialized(), mine.allocation, other.allocation
        if here.dtype is not there.dtype or here.quantization != there.quantization:
            raise InputError(
                f"{mine.name} holds {here.dtype.value} quantised by {here.quantization}, the "
                f"source {there.dtype.value} by {there.quantization}"
            )
        mine.full_shape(shape)
        # Through host memory, since devices cannot access each other's.
        with staging(shape, mine.dtype) as (pool, _):
            began = time.perf_counter_ns()
            count = other.copy_to(pool.memory)
            source.copies = _receipts(source, pool.nbytes, count, began, out=True)
            began = time.perf_counter_ns()
            count = mine.take(pool.memory, shape)
            self.copies = source.copies + _receipts(self, pool.nbytes, count, began)


def _receipts(
    buffer: DeviceBuffer, nbytes: int, count: int, began: int, *, out: bool = False
) -> tuple[CopyReceipt, ...]:
    here = buffer.device or "pool"
    return receipts_of(count, nbytes, (here, "host") if out else ("host", here), ASKED, began)


def fetch_value(buffer: DeviceBuffer) -> tuple[NDArray, int]:
    """As `DeviceBuffer.numpy`, and the number of copies."""
    buffer.stored.check_usable()
    array, count = buffer.stored.fetch()
    return array.copy(), count + 1


def put_value(buffer: DeviceBuffer, value: NDArray) -> int:
    """As `DeviceBuffer.copy_from`. Returns the number of copies."""
    buffer.stored.check_usable()
    return buffer.stored.copy_from_array(value)


def _release(storage: Storage, process: int) -> None:
    if process == os.getpid():
        storage.close()


class BoundBuffer(BoundMemory):
    """A device buffer in one run."""

    __slots__ = ()
    owner: DeviceBuffer

    def argument(self, use: StepUse, pools: list[Memory]) -> RequestArgument | None:
        return self.owner.stored.argument(use, pools)

    def read(self) -> NDArray:
        array, count = self.owner.stored.fetch()
        self.staged = count - 1
        return array

    def stage(self, shape: tuple[int, ...], operand: Operand) -> NDArray | None:
        with staging(shape, operand.dtype.numpy) as (_, array):
            return array

    def write(self, value: NDArray) -> None:
        self.staged = self.owner.stored.put(value) - 1

    def written(self, shape: tuple[int, ...]) -> None:
        self.owner.stored.shape = shape

    def lost(self) -> None:
        self.owner.stored.shape = None

    def gone(self) -> DeadObject | None:
        return self.owner.stored.gone()

    def notes(self) -> list[str]:
        return self.owner.stored.notes()
