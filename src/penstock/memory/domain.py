"""A driver's own memory: the buffers of `Device.allocate`, their tokens, state and use.

A driver makes one `MemoryDomain`, forwards `Device.allocate` to it, and claims the buffers of a
request for the time of an execution. It implements NNAPI sections 6.4 to 6.7.

Values are immutable: a write replaces the value. So any number of executions and copies may use a
buffer at the same time, and each reads one value whole. Which one it reads during a write is
undefined.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import numpy as np
from msgspec import Struct

from penstock import errors
from penstock.hal import BufferDesc, BufferRole, Memory, Request, TokenArgument
from penstock.hal.buffer import (
    AFTER,
    Allocation,
    BufferEvent,
    BufferState,
    InterfaceOf,
    bytes_of,
    validate_allocate,
)
from penstock.ir import DType, NDArray, Shape
from penstock.ir.types import agrees, is_static
from penstock.memory.limits import check_bytes
from penstock.memory.mapping import map_memory

Role: TypeAlias = "tuple[weakref.ref[Any], str, int]"

ALIGNMENT: Final = 64


class Stored(Struct, eq=False):
    """A value of a buffer: *content* in the driver's form, *shape*, and its number of users."""

    content: Any
    shape: tuple[int, ...]
    users: int = 0


class MemoryDomain:
    """The buffers of one device. Thread-safe.

    *interface_of* looks up the device's prepared models. Without *dynamic*, buffers of unknown size
    are rejected. *capacity* bounds the bytes of all buffers. Drivers with another layout override
    `encode` and `decode`, and those with other memory `make` too.
    """

    def __init__(
        self, interface_of: InterfaceOf, *, dynamic: bool = True, capacity: int | None = None
    ) -> None:
        self._interface_of, self._dynamic, self._capacity = interface_of, dynamic, capacity
        self.lock = threading.RLock()
        self._buffers: dict[int, ManagedBuffer] = {}
        self._free: list[int] = []
        self._used = 0

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> tuple[int, ManagedBuffer]:
        """As `Device.allocate`. Tokens count from 1; the last freed token is reused first."""
        allocation = validate_allocate(desc, roles, self._interface_of)
        nbytes = allocation.nbytes
        if nbytes is None and not self._dynamic:
            raise errors.GeneralFailure(
                f"a buffer of the unknown size {allocation.shape} is not possible"
            )
        with self.lock:
            self.reserve(nbytes or 0)
            token = self._free.pop() if self._free else len(self._buffers) + 1
            buffer = self._buffers[token] = ManagedBuffer(self, token, allocation)
        return token, buffer

    def claim(self, prepared: object, request: Request) -> Claim:
        """A context manager that claims the buffers of *request* to *prepared* for an execution.

        Raises `InvalidArgument` for a bad token, role, dimensions, or a buffer that is both written
        and used; `GeneralFailure` for an input without a value. No buffer changes then.
        """
        return Claim(self, prepared, request)

    @property
    def live(self) -> int:
        """Number of live buffers."""
        return len(self._buffers)

    @property
    def used(self) -> int:
        """Total bytes of the buffers."""
        return self._used

    def make(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """New memory for a value. Raises `ResourceExhausted*`."""
        return aligned(shape, dtype)

    def encode(self, array: NDArray, room: Callable[[], Any]) -> Any:
        """*array* in the driver's form, copied to separate memory. *room* returns memory of `make`
        that nobody uses: new, or that of a replaced value.
        """
        kept = aligned(array.shape, array.dtype)
        kept[...] = array
        return kept

    def decode(self, content: Any, target: NDArray) -> None:
        """Writes the array that `encode` was given to *target*, flat bytes of its size."""
        target[:] = content.reshape(-1).view(np.uint8)

    def reserve(self, nbytes: int, instead_of: int = 0) -> None:
        """Replaces a counted size by *nbytes*. Raises `ResourceExhaustedTransient`."""
        try:
            check_bytes(nbytes, "a device buffer")
        except errors.LimitExceeded as error:
            raise errors.ResourceExhaustedTransient(str(error)) from error
        with self.lock:
            wanted = self._used - instead_of + nbytes
            if self._capacity is not None and wanted > self._capacity and nbytes > instead_of:
                raise errors.ResourceExhaustedTransient(
                    f"{nbytes} bytes more than the {self._used - instead_of} in use exceed the "
                    f"{self._capacity} of the device's memory"
                )
            self._used = wanted

    def find(self, token: int) -> ManagedBuffer:
        """The live buffer of that token. Raises `InvalidArgument` if there is none."""
        buffer = self._buffers.get(token)
        if buffer is None:
            raise errors.InvalidArgument(f"no live buffer has the token {token}")
        return buffer

    def forget(self, token: int) -> None:
        """Removes a closed buffer from the table."""
        del self._buffers[token]
        self._free.append(token)


class ManagedBuffer:
    """One buffer: a `penstock.hal.Buffer`."""

    def __init__(self, domain: MemoryDomain, token: int, allocation: Allocation) -> None:
        self._domain, self.token = domain, token
        self.dtype: DType = allocation.dtype
        self.shape: Shape = allocation.shape
        self.roles: frozenset[Role] = frozenset(
            (weakref.ref(r.prepared), r.kind, r.index) for r in allocation.roles
        )
        self._nbytes = allocation.nbytes or 0
        self._state: BufferState = "uninitialized"
        self._value: Stored | None = None
        self._spare: Stored | None = None
        self._closed = False

    @property
    def is_initialized(self) -> bool:
        """Whether it has a value."""
        return self._state == "initialized"

    def copy_to(self, destination: Memory) -> None:
        """As `penstock.hal.Buffer.copy_to`."""
        known = bytes_of(self.dtype, self.shape)
        if known is not None and destination.size != known:
            raise errors.InvalidArgument(f"{destination.size} bytes for a buffer of {known}")
        value = self.begin("copy_to")
        try:
            held = bytes_of(self.dtype, value.shape)
            if destination.size != held:
                raise errors.InvalidArgument(f"{destination.size} bytes for a value of {held}")
            with map_memory(destination) as mapping:
                if not mapping.array.flags.writeable:
                    raise errors.GeneralFailure("the memory to copy to cannot be written")
                self._domain.decode(value.content, mapping.array)
        finally:
            self.end(value)

    def copy_from(self, source: Memory, dimensions: tuple[int, ...]) -> None:
        """As `penstock.hal.Buffer.copy_from`."""
        if self._closed:
            raise errors.GeneralFailure("the buffer is closed")
        try:
            shape = self._shape_from(dimensions)
            needed = bytes_of(self.dtype, shape)
            if source.size != needed:
                raise errors.InvalidArgument(f"{source.size} bytes for a value of {needed}")
            with map_memory(source) as mapping:
                array = mapping.array.view(self.dtype.numpy).reshape(shape)
                content = self._domain.encode(array, lambda: self.room(shape))
                self.publish(content, shape, "copy_from ok")
        except errors.DriverError:
            self.lose("copy_from failed")
            raise
        except MemoryError as error:
            self.lose("copy_from failed")
            raise errors.ResourceExhaustedTransient("no memory for a device buffer") from error

    def close(self) -> None:
        """As `penstock.hal.Buffer.close`. Executions that use it continue."""
        domain = self._domain
        with domain.lock:
            if self._closed:
                return
            self._closed = True
            self._value, self._spare, self._state = None, None, "uninitialized"
            domain.forget(self.token)
            domain.reserve(0, self._nbytes)

    def begin(self, event: BufferEvent) -> Stored:
        """The value, kept until `end`. Raises `GeneralFailure` if there is none."""
        with self._domain.lock:
            if self._closed:
                raise errors.GeneralFailure("the buffer is closed")
            value = self._value
            if (self._state, event) not in AFTER or value is None:
                raise errors.GeneralFailure(
                    f"the buffer {self.token} was never written, or not with success"
                )
            value.users += 1
            return value

    def end(self, value: Stored) -> None:
        """Releases what `begin` returned."""
        with self._domain.lock:
            value.users -= 1

    def publish(self, content: Any, shape: tuple[int, ...], event: BufferEvent) -> None:
        """Replaces the value, unless the buffer was closed meanwhile."""
        nbytes = bytes_of(self.dtype, shape) or 0
        with self._domain.lock:
            if self._closed:
                return
            if not is_static(self.shape):
                self._domain.reserve(nbytes, self._nbytes)
                self._nbytes = nbytes
            old, self._value = self._value, Stored(content, shape)
            self._state = AFTER[self._state, event]
            if old is not None and not old.users:
                self._spare = old

    def lose(self, event: BufferEvent) -> None:
        """Removes the value after a failed write."""
        with self._domain.lock:
            if not self._closed:
                self._state = AFTER[self._state, event]
                self._value = None

    def room(self, shape: tuple[int, ...]) -> Any:
        """Memory of the domain for the next value, which nobody uses."""
        with self._domain.lock:
            spare, self._spare = self._spare, None
        if spare is not None and spare.shape == shape:
            return spare.content
        return self._domain.make(shape, self.dtype.numpy)

    def take_room(self, shape: tuple[int, ...]) -> None:
        """Makes the memory of the first value ahead. Raises `ResourceExhausted*`."""
        self._spare = Stored(self._domain.make(shape, self.dtype.numpy), shape)

    def check_fits(self, shape: tuple[int, ...]) -> None:
        """`GeneralFailure` for an output of another shape than the buffer's (NNAPI section 6.5)."""
        if not agrees(self.shape, shape):
            raise errors.GeneralFailure(
                f"an output of shape {shape} does not fit a buffer of {self.shape}"
            )

    def _shape_from(self, dimensions: tuple[int, ...]) -> tuple[int, ...]:
        if not dimensions and is_static(self.shape):
            return tuple(d or 0 for d in self.shape or ())
        if not agrees(self.shape, dimensions) or not is_static(dimensions):
            raise errors.InvalidArgument(f"dimensions {dimensions} for a buffer of {self.shape}")
        if any(type(d) is not int or d < 0 for d in dimensions) or (
            not dimensions and self.shape is None
        ):
            raise errors.InvalidArgument(f"dimensions {dimensions} for a buffer of unknown size")
        return tuple(dimensions)


class Claim:
    """The buffers of one execution: `inputs` are the values by position, and results go to `put`.

    When the block ends without an error, the results become the buffers' values. After an error,
    every buffer that was to be written has no value.
    """

    def __init__(self, domain: MemoryDomain, prepared: object, request: Request) -> None:
        self._domain = domain
        self._written: dict[int, ManagedBuffer] = {}
        self._results: dict[int, tuple[Any, tuple[int, ...]]] = {}
        self._read: dict[int, ManagedBuffer] = {}
        self.inputs: dict[int, Stored] = {}
        me = weakref.ref(prepared)
        for kind, arguments, found in (
            ("input", request.inputs, self._read),
            ("output", request.outputs, self._written),
        ):
            for position, argument in enumerate(arguments):
                if type(argument) is not TokenArgument:
                    continue
                buffer = domain.find(argument.token)
                if (me, kind, position) not in buffer.roles:
                    raise errors.InvalidArgument(
                        f"the buffer {argument.token} was not allocated for {kind} {position}"
                    )
                if argument.dimensions and not agrees(buffer.shape, argument.dimensions):
                    raise errors.InvalidArgument(
                        f"{kind} {position}: {argument.dimensions} for a buffer of {buffer.shape}"
                    )
                found[position] = buffer
        written = list(self._written.values())
        for place, buffer in enumerate(written):
            if any(buffer is b for b in (*written[:place], *self._read.values())):
                raise errors.InvalidArgument(
                    f"the buffer {buffer.token} is written, and serves two arguments of one request"
                )
        self._hold(request)

    def put(self, position: int, content: Any, shape: tuple[int, ...]) -> None:
        """Makes *content*, in the driver's form and unchanged from now on, output *position*."""
        self._written[position].check_fits(shape)
        self._results[position] = content, shape

    @property
    def outputs(self) -> Mapping[int, ManagedBuffer]:
        """The buffers to be written, by position of the output."""
        return self._written

    def room(self, position: int, shape: tuple[int, ...]) -> Any:
        """Memory for output *position*, to be written and then `put`."""
        self._written[position].check_fits(shape)
        return self._written[position].room(shape)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end_reads()
        is_published = False
        try:
            for position, buffer in self._written.items() if kind is None else ():
                if position not in self._results:
                    raise errors.GeneralFailure(f"output {position} was not computed")
                buffer.publish(*self._results[position], "output ok")
            is_published = kind is None
        finally:
            if not is_published:
                for buffer in self._written.values():
                    buffer.lose("output failed")

    def _hold(self, request: Request) -> None:
        try:
            for position, buffer in self._read.items():
                value = self.inputs[position] = buffer.begin("input")
                argument = request.inputs[position]
                given = argument.dimensions if isinstance(argument, TokenArgument) else ()
                if given and given != value.shape:
                    raise errors.InvalidArgument(
                        f"input {position}: {given} for a value of shape {value.shape}"
                    )
        except BaseException:
            self._end_reads()
            raise

    def _end_reads(self) -> None:
        for position, value in self.inputs.items():
            self._read[position].end(value)


def has_tokens(request: Request) -> bool:
    """Whether an argument of *request* is a driver-managed buffer."""
    return any(type(a) is TokenArgument for a in (*request.inputs, *request.outputs))


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray:
    """New memory at a multiple of `ALIGNMENT`; raises `ResourceExhaustedTransient`."""
    nbytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
    try:
        raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:
        raise errors.ResourceExhaustedTransient(
            f"no memory for {nbytes} bytes on the device"
        ) from error
    start = -raw.ctypes.data % ALIGNMENT
    array: NDArray = raw[start : start + nbytes].view(dtype).reshape(shape)
    return array
