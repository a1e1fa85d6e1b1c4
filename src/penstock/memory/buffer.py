"""`DeviceBuffer`: memory of a device, for applications (NNAPI sections 6.4 to 6.6)."""

# ruff: noqa: SLF001  # functions and classes here are parts of one

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
from penstock.memory.copies import STAGED, CopyReceipt
from penstock.memory.pool import MemoryPool
from penstock.memory.storage import Storage, memory_of, place_of, staging, viewed

if TYPE_CHECKING:
    from penstock.hal import RequestArgument

T = TypeVar("T")

ASKED: Final = "the caller copies the value of a device buffer"

OFTEN: Final = 3
"""Consecutive runs with a copy by the host before or after, until a receipt mentions it."""


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
        self._allocation, self._storage, self._name = allocation, storage, name
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._shape: tuple[int, ...] | None = None
        self._closed = False
        self._runs = self._reads = self._writes = 0
        self._fresh = self._filled = False
        self.copies: tuple[CopyReceipt, ...] = ()
        self.remedy = "allocate another"
        """What the caller can do when its device has lost it; the end of the error's sentence."""

        self._release = weakref.finalize(self, _release, storage, self._process)
        self._release.atexit = False

    @property
    def device(self) -> str | None:
        """The name of its device; None for a pool."""
        return self._storage.device

    @property
    def fallback_reason(self) -> str:
        """Why it lies in a pool; empty if it is on a device."""
        return self._storage.reason

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its elements."""
        return self._allocation.dtype.numpy

    @property
    def shape(self) -> tuple[int | None, ...] | None:
        """Shape of its value; without a value, as far as the roles and dimensions define it."""
        return self._allocation.shape if self._shape is None else self._shape

    @property
    def is_initialized(self) -> bool:
        """Whether it has a value."""
        return self._shape is not None and not self._storage.lost

    def copy_to(self, destination: MemoryPool | DeviceBuffer | NDArray | Any) -> None:
        """Copies the value out to *destination*.

        *destination* is a pool, or hardware buffer with bytes, of exactly its size; an array of its
        dtype and shape, also one of another library that supports DLPack or the buffer protocol; or
        another device buffer.

        Raises `StateError` without a value, `InputError` for a destination that does not fit,
        `ClosedError`, `DriverError`. After an error *destination* may hold some, all or none of the
        bytes.
        """
        self._check_usable()
        if isinstance(destination, DeviceBuffer):
            destination.copy_from(self)
            return
        shape = self._initialized()
        self._touched(read=True)
        began = time.perf_counter_ns()
        destination = viewed(destination)
        if isinstance(destination, np.ndarray):
            count = self._copy_to_array(destination, shape)
            self._tell(destination.nbytes, count, began, out=True)
            return
        memory = memory_of(destination, "copy to")
        self._check_size(memory.size, shape)
        count = self._asked(lambda: self._storage.copy_to(memory))
        self._tell(memory.size, count, began, out=True)

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
        self._check_usable()
        if source is self:
            return
        began = time.perf_counter_ns()
        if isinstance(source, DeviceBuffer):
            self._copy_from_buffer(source)
            return
        if is_masked(source):
            raise InputError(
                f"{self._name} gets a masked array, and no device heeds masks; "
                "give its filled(), with a value for what is masked"
            )
        source = viewed(source)
        if isinstance(source, np.ndarray):
            count = self._copy_from_array(source, dimensions)
            self._tell(source.nbytes, count, began)
            return
        shape = self._full(dimensions)
        memory = memory_of(source, "copy from")
        self._check_size(memory.size, shape)
        self._touched(written=True)
        count = self._take(memory, shape)
        self._tell(memory.size, count, began)

    def numpy(self) -> NDArray:
        """The value, copied to the host."""
        began = time.perf_counter_ns()
        value, count = fetch_value(self)
        self._tell(value.nbytes, count, began, out=True)
        return value

    def value_shape(self) -> tuple[int, ...]:
        """The value's shape. Raises `StateError` without one, `DeadObject` if its device ended."""
        if (gone := self.gone()) is not None:
            raise gone
        return self._initialized()

    def bind_argument(self, user: object, kind: Kind, index: int, operand: Operand) -> BoundMemory:
        """As `Bindable`: `InputError` for an undeclared use, `StateError` without a value."""
        self._check_usable()
        roles = self._allocation.roles
        if not any(r.prepared is user and r.kind == kind and r.index == index for r in roles):
            raise InputError(
                f"{self._name} was not allocated for {kind} {index} ({operand.name}); "
                "name every use in allocate(roles=...)"
            )
        return BoundBuffer(self, self._name, self._initialized() if kind == "input" else None)

    def close(self) -> None:
        """Frees the buffer. Runs that use it continue. A second call does nothing."""
        self._closed = True
        self._release()

    def __reduce__(self) -> Any:
        raise TypeError("a device buffer cannot be pickled; copy its value out")

    def __repr__(self) -> str:
        where = f"on {self.device}" if self.device is not None else "in a pool"
        shape = " of unknown rank" if self.shape is None else list(self.shape)
        return f"<DeviceBuffer {self._allocation.dtype.value}{shape} {where}>"

    def notes(self) -> list[str]:
        """Notes for the receipt of a run."""
        found = []
        if self.fallback_reason:
            found.append(f"{self._name} lies in a pool: {self.fallback_reason}")
        elif self._runs >= OFTEN and self._reads >= self._runs - 1:
            found.append(
                f"the host reads {self._name} after every run: memory that it touches so often is "
                "better a pool"
            )
        elif self._runs >= OFTEN and self._writes >= self._runs:
            found.append(
                f"the host writes {self._name} before every run: memory that it touches so often "
                "is better a pool"
            )
        return found

    def _touched(self, *, read: bool = False, written: bool = False) -> None:
        with self._lock:
            if read and self._fresh:
                self._reads += 1
                self._fresh = False
            if written:
                self._filled = True

    def _used(self, kind: Kind) -> None:
        """Records that a run uses the buffer as this kind of argument."""
        with self._lock:
            self._runs += 1
            if kind == "output":
                self._fresh = True
            elif self._filled:
                self._writes += 1
                self._filled = False

    def _tell(self, nbytes: int, count: int, began: int, *, out: bool = False) -> None:
        """Stores receipts of *count* copies, the first of which has the time of all."""
        here = self.device or "pool"
        route = (here, "host") if out else ("host", here)
        spent = time.perf_counter_ns() - began
        self.copies = (
            CopyReceipt(nbytes, *route, ASKED, None, None, began, spent),
            *(CopyReceipt(nbytes, "host", "host", STAGED) for _ in range(count - 1)),
        )

    def _copy_to_array(self, destination: NDArray, shape: tuple[int, ...]) -> int:
        if destination.dtype != self.dtype or destination.shape != shape:
            raise InputError(
                f"{self._name} holds {self.dtype} of shape {shape}; an array of "
                f"{destination.dtype} "
                f"of shape {destination.shape} was given"
            )
        if not destination.flags.writeable:
            raise InputError("an array to copy to must be writable")
        if is_masked(destination):
            raise InputError(
                f"{self._name} is copied to a masked array, and no device heeds masks; "
                "give its data, which is the array without its mask"
            )
        if (memory := place_of(destination)) is not None:
            return self._asked(lambda: self._storage.copy_to(memory))
        value, count = self._fetched(shape)
        destination[...] = value
        return count + 1

    def _copy_from_array(self, source: NDArray, dimensions: Sequence[int] | None) -> int:
        shape = tuple(source.shape) if dimensions is None else tuple(dimensions)
        if source.dtype != self.dtype or source.shape != shape:
            raise InputError(
                f"{self._name} holds {self.dtype} of shape {self._allocation.shape}; an array of "
                f"{source.dtype} "
                f"of shape {source.shape} was given"
            )
        self._full(shape)
        self._touched(written=True)
        return self._put(source)

    def _copy_from_buffer(self, source: DeviceBuffer) -> None:
        source._check_usable()
        shape = source._initialized()
        mine, other = self._allocation, source._allocation
        if mine.dtype is not other.dtype or mine.quantization != other.quantization:
            raise InputError(
                f"{self._name} holds {mine.dtype.value} quantised by {mine.quantization}, the "
                "source "
                f"{other.dtype.value} by {other.quantization}"
            )
        self._full(shape)
        # Through host memory, since devices cannot access each other's.
        with staging(shape, mine.dtype.numpy) as (pool, _):
            began = time.perf_counter_ns()
            count = source._asked(lambda: source._storage.copy_to(pool.memory))
            source._tell(pool.nbytes, count, began, out=True)
            began = time.perf_counter_ns()
            self._tell(pool.nbytes, self._take(pool.memory, shape), began)
            self.copies = source.copies + self.copies

    def _fetched(self, shape: tuple[int, ...]) -> tuple[NDArray, int]:
        """The value, copied to separate memory, and the number of copies."""
        with staging(shape, self.dtype) as (pool, array):
            count = self._asked(lambda: self._storage.copy_to(pool.memory))
            return array, count

    def _put(self, value: NDArray) -> int:
        shape = tuple(value.shape)
        memory = place_of(value)
        if memory is not None:
            return self._take(memory, shape)
        with staging(shape, self.dtype) as (pool, array):
            array[...] = value
            return self._take(pool.memory, shape) + 1

    def _take(self, memory: Memory, shape: tuple[int, ...]) -> int:
        try:
            count = self._asked(lambda: self._storage.copy_from(memory, shape))
        except BaseException:
            self._shape = None
            raise
        self._shape = shape
        return count

    def _asked(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except InvalidArgument as error:
            raise InputError(f"{self._name}: {error}") from error
        except DeadObject as error:
            raise self._dead(str(error)) from error

    def _dead(self, how: str) -> DeadObject:
        self._shape = None
        return DeadObject(f"{self._name} is lost with its device ({how}); {self.remedy}")

    def gone(self) -> DeadObject | None:
        """The error of every use once its device is unavailable; None before."""
        lost = self._storage.lost
        return self._dead(lost) if lost else None

    def _initialized(self) -> tuple[int, ...]:
        shape = self._shape
        if shape is None:
            raise StateError(
                f"{self._name} has no value: copy one in, or let a run that succeeds write it"
            )
        return shape

    def _full(self, dimensions: Sequence[int] | None) -> tuple[int, ...]:
        """The complete shape of a value to copy in."""
        declared = self._allocation.shape
        if dimensions is None:
            known = static_shape(declared)
            if known is None:
                raise InputError(f"{self._name} has the shape {declared}: give dimensions")
            return known
        given = tuple(dimensions)
        try:
            merged(declared, given, self._name)
        except InvalidArgument as error:
            raise InputError(str(error)) from None
        if not is_static(given) or any(type(d) is not int or d < 0 for d in given):
            raise InputError(f"dimensions {given} are not complete")
        return given

    def _check_size(self, nbytes: int, shape: tuple[int, ...]) -> None:
        needed = int(np.prod(shape, dtype=object)) * self.dtype.itemsize
        if nbytes != needed:
            raise InputError(
                f"{self._name} holds {needed} bytes ({self.dtype} of shape {shape}); memory of "
                f"{nbytes} was given"
            )

    def _check_usable(self) -> None:
        if self._closed:
            raise ClosedError(f"{self._name} used after close()")
        if self._process != os.getpid():
            raise StateError(f"{self._name} belongs to the process before a fork; allocate it here")
        if (gone := self.gone()) is not None:
            raise gone


def fetch_value(buffer: DeviceBuffer) -> tuple[NDArray, int]:
    """As `DeviceBuffer.numpy`, and the number of copies."""
    buffer._check_usable()
    shape = buffer._initialized()
    buffer._touched(read=True)
    array, count = buffer._fetched(shape)
    return array.copy(), count + 1


def put_value(buffer: DeviceBuffer, value: NDArray) -> int:
    """As `DeviceBuffer.copy_from`. Returns the number of copies."""
    buffer._check_usable()
    return buffer._copy_from_array(value, None)


def _release(storage: Storage, process: int) -> None:
    if process == os.getpid():
        storage.close()


class BoundBuffer(BoundMemory):
    """A device buffer in one run."""

    __slots__ = ()
    owner: DeviceBuffer

    def argument(self, use: StepUse, pools: list[Memory]) -> RequestArgument | None:
        storage = self.owner._storage
        found = self.owner._asked(lambda: storage.argument(use, pools))
        if found is not None:
            self.owner._used(use.kind)
        return found

    def read(self) -> NDArray:
        owner = self.owner
        owner._touched(read=True)
        array, count = owner._fetched(owner._initialized())
        self.staged = count - 1
        return array

    def stage(self, shape: tuple[int, ...], operand: Operand) -> NDArray | None:
        with staging(shape, operand.dtype.numpy) as (_, array):
            return array

    def write(self, value: NDArray) -> None:
        self.staged = self.owner._put(value) - 1

    def written(self, shape: tuple[int, ...]) -> None:
        self.owner._shape = shape

    def lost(self) -> None:
        self.owner._shape = None

    def gone(self) -> DeadObject | None:
        return self.owner.gone()

    def notes(self) -> list[str]:
        return self.owner.notes()
