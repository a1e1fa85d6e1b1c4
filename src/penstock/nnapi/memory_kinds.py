"""Kinds of memory: permitted uses, values and bytes (NNAPI sections 6.3 to 6.6)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from penstock.errors import InputError
from penstock.execution.results import copy_over
from penstock.ir import NDArray
from penstock.ir.types import Shape
from penstock.memory import HardwareBuffer, MemoryPool, dmabuf
from penstock.memory.copies import CopyReceipt
from penstock.memory.mapping import HARDWARE_BUFFER_BLOB
from penstock.nnapi.codes import NnapiError, ResultCode, bad_data, translated
from penstock.nnapi.ports import Kind, Port, Ported, merged, size_of

if TYPE_CHECKING:
    from penstock.memory import DeviceBuffer
    from penstock.nnapi.description import NnapiOperand


@dataclass(frozen=True, slots=True)
class Metadata:
    """The value of a memory: its *operand*, its *shape*, and its size in bytes, 0 if unknown."""

    size: int = 0
    operand: NnapiOperand | None = None
    shape: Shape = None


Part: TypeAlias = tuple[int, int]
"""Offset and length in bytes. Both are 0 for the whole memory."""


class Rules:
    """The permitted uses of one memory, and the known facts about its value.

    Those of a hardware buffer that is not a BLOB: a whole input or output.
    """

    initialized = True
    what = "a hardware buffer that is no BLOB"

    @property
    def metadata(self) -> Metadata:
        return Metadata()

    def check_constant(self, part: Part) -> None:
        """Raises BAD_DATA unless the memory may hold a constant."""
        raise bad_data(f"a constant cannot lie in {self.what}")

    def check_argument(self, compilation: Ported, port: Port, shape: Shape, part: Part) -> None:
        """Raises BAD_DATA unless a value of *shape* at *port* may use these bytes."""
        if any(part):
            raise bad_data(f"{self.what} is used as a whole: offset and length must be 0")

    def check_read(self, shape: Shape) -> None:
        """Raises OP_FAILED unless a value of *shape* can be read now."""

    def take(self, metadata: Metadata) -> None:
        """Records the value that will be written. Raises BAD_DATA if this memory cannot hold it."""


class SizedRules(Rules):
    """Bytes of known size. Any part of them may have any use."""

    def __init__(self, size: int) -> None:
        self._size = size

    @property
    def metadata(self) -> Metadata:
        return Metadata(self._size)

    def check_constant(self, part: Part) -> None:
        offset, end = part[0], sum(part)
        if end > self._size:
            raise bad_data(f"bytes {offset} to {end} of a memory of {self._size} bytes")
        if end == 0:
            raise bad_data("offset and length are both 0: the size of a value cannot be guessed")

    def check_argument(self, compilation: Ported, port: Port, shape: Shape, part: Part) -> None:
        self.check_constant(part)

    def take(self, metadata: Metadata) -> None:
        if metadata.size not in {0, self._size}:
            raise bad_data(f"{metadata.size} bytes for a memory of {self._size}")


@dataclass(frozen=True, slots=True)
class Role:
    """One use of a memory: input or output *index* of executions of *compilation*."""

    compilation: Ported
    kind: Kind
    index: int
    frequency: float


class DeviceRules(Rules):
    """Memory made for *roles*: values of *operand*, of shapes that refine *initial*.

    It holds nothing at first. A value that a copy or an execution wrote can be read, in its own
    shape, until the next write fails.
    """

    what = "memory that was made from a descriptor"

    def __init__(self, roles: Collection[Role], operand: NnapiOperand, initial: Shape) -> None:
        self._roles = frozenset((id(r.compilation), r.kind, r.index) for r in roles)
        self._kept = tuple(r.compilation for r in roles)
        self._operand, self._initial = operand, initial
        self.shape = initial
        self.initialized = False

    @property
    def metadata(self) -> Metadata:
        return Metadata(size_of(self._operand, self.shape) or 0, self._operand, self.shape)

    def check_argument(self, compilation: Ported, port: Port, shape: Shape, part: Part) -> None:
        if (id(compilation), port.kind, port.index) not in self._roles:
            raise bad_data(f"the memory was not made for {port} of this compilation")
        super().check_argument(compilation, port, shape, part)
        merged(self._initial, shape, f"{port} and its memory")

    def check_read(self, shape: Shape) -> None:
        if not self.initialized:
            raise NnapiError(ResultCode.OP_FAILED, NO_VALUE)
        if shape != self.shape:
            text = f"an input of shape {shape} is memory that holds a value of shape {self.shape}"
            raise NnapiError(ResultCode.OP_FAILED, text)

    def take(self, metadata: Metadata) -> None:
        if (other := metadata.operand) is not None and not alike(self._operand, other):
            raise bad_data("the two memories hold values of different types")
        shape = merged(self._initial, metadata.shape, "the memory and its new value")
        with translated():
            size = size_of(self._operand, shape)
        if size is not None and metadata.size not in {0, size}:
            raise bad_data(f"{metadata.size} bytes for a value of {size}")
        self.shape = shape


def alike(one: NnapiOperand, other: NnapiOperand) -> bool:
    """Whether values of both have one type and quantisation, whatever their shapes."""
    kinds = [
        (o.type, o.scale, o.zero_point, o.channel_quantization, o.extension_data)
        for o in (one, other)
    ]
    return kinds[0] == kinds[1]


ASKED: Final = "the caller copies one memory to another"
NO_VALUE: Final = "an input is memory that holds no value"


class Storage:
    """The bytes of a memory, which the host never maps: those of *what*."""

    what = "memory of a device"

    def content(self) -> NDArray:
        """All bytes as flat uint8; UNMAPPABLE if the host has no view of them."""
        raise NnapiError(ResultCode.UNMAPPABLE, f"{self.what} is never mapped")

    def place(self, kind: str) -> Any:
        """What a run gets instead of an array over `content`; None if it gets the array."""
        return None

    def close(self) -> None:
        """Frees them. A second call has no effect."""


class PoolStore(Storage):
    """Bytes in a pool that the host maps on demand."""

    def __init__(self, pool: MemoryPool) -> None:
        self.pool = pool

    def content(self) -> NDArray:
        try:
            return self.pool.view(np.uint8, self.pool.nbytes)
        except InputError as error:
            raise NnapiError(ResultCode.UNMAPPABLE, str(error)) from error

    def writable(self) -> NDArray:
        """All bytes as flat uint8 for writing; UNMAPPABLE if they are read-only."""
        found = self.content()
        if not found.flags.writeable:
            raise NnapiError(ResultCode.UNMAPPABLE, "the memory was made without PROT_WRITE")
        return found

    @contextmanager
    def used(self, *, write: bool) -> Iterator[None]:
        """A block in which the CPU reads, or also writes, the bytes; bracketed for a dma-buf."""
        memory = self.pool.memory
        fd = memory.handle.fd if memory.name == HARDWARE_BUFFER_BLOB else -1
        if fd < 0 or not dmabuf.begin(fd, write=write):
            yield
            return
        try:
            yield
        finally:
            dmabuf.end(fd, write=write)

    def close(self) -> None:
        self.pool.close()


class ImageStore(Storage):
    """A hardware buffer that is not a BLOB; the caller closes it."""

    def __init__(self, buffer: HardwareBuffer) -> None:
        self.buffer = buffer
        self.what = f"a hardware buffer of format {buffer.description.format:#x}"

    def place(self, kind: str) -> Any:
        return self.buffer


class DeviceStore(Storage):
    """A buffer in a device's own memory."""

    def __init__(self, buffer: DeviceBuffer) -> None:
        self.buffer = buffer

    def place(self, kind: str) -> Any:
        """The buffer. Raises OP_FAILED for an input without a value, DEAD_OBJECT if it is lost."""
        if (lost := self.buffer.stored.gone()) is not None:
            with translated():
                raise lost
        if kind == "input" and not self.buffer.is_initialized:
            raise NnapiError(ResultCode.OP_FAILED, NO_VALUE)
        return self.buffer

    def close(self) -> None:
        self.buffer.close()


Store: TypeAlias = PoolStore | ImageStore | DeviceStore


def copy_bytes(
    source: Store, destination: Store, shape: tuple[int, ...] | None
) -> tuple[CopyReceipt, ...]:
    """Copies the value of *source* to *destination*, which then has *shape* (NNAPI section 6.6).

    Raises BAD_DATA for different sizes, UNMAPPABLE if the host has no suitable view, OP_FAILED for
    images, or the device's error.
    """
    if isinstance(source, ImageStore) or isinstance(destination, ImageStore):
        raise NnapiError(ResultCode.OP_FAILED, "a hardware buffer that is no BLOB cannot be copied")
    with translated():
        if isinstance(source, DeviceStore):
            if isinstance(destination, DeviceStore):
                destination.buffer.copy_from(source.buffer)
                return destination.buffer.copies
            destination.writable()
            source.buffer.copy_to(destination.pool)
            return source.buffer.copies
        if isinstance(destination, DeviceStore):
            source.content()
            destination.buffer.copy_from(source.pool, shape)
            return destination.buffer.copies
        given, room = source.content(), destination.writable()
        if given.nbytes != room.nbytes:
            raise bad_data(f"{given.nbytes} bytes for a memory of {room.nbytes}")
        copies: list[CopyReceipt] = []
        with source.used(write=False), destination.used(write=True):
            copy_over(room, given, copies, ("host", "host"), ASKED)
        return tuple(copies)
