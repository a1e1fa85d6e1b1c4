"""Kinds of memory: permitted uses, values and bytes (NNAPI sections 6.3 to 6.6)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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


class Rules:
    """The permitted uses of one memory, and the known facts about its value."""

    initialized = True

    @property
    def metadata(self) -> Metadata:
        return Metadata()

    def check_constant(self, offset: int, length: int) -> None:
        """Raises BAD_DATA unless the memory may hold a constant."""
        raise NotImplementedError

    def check_argument(
        self, compilation: Ported, port: Port, shape: Shape, offset: int, length: int
    ) -> None:
        """Raises BAD_DATA unless a value of *shape* at *port* may use these bytes."""
        raise NotImplementedError

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

    def check_constant(self, offset: int, length: int) -> None:
        if offset + length > self._size:
            raise bad_data(f"bytes {offset} to {offset + length} of a memory of {self._size} bytes")
        if offset == length == 0:
            raise bad_data("offset and length are both 0: the size of a value cannot be guessed")

    def check_argument(
        self, compilation: Ported, port: Port, shape: Shape, offset: int, length: int
    ) -> None:
        self.check_constant(offset, length)

    def take(self, metadata: Metadata) -> None:
        if metadata.size not in {0, self._size}:
            raise bad_data(f"{metadata.size} bytes for a memory of {self._size}")


class ImageRules(Rules):
    """A hardware buffer that is not a BLOB: a whole input or output."""

    def check_constant(self, offset: int, length: int) -> None:
        raise bad_data("a constant cannot lie in a hardware buffer that is no BLOB")

    def check_argument(
        self, compilation: Ported, port: Port, shape: Shape, offset: int, length: int
    ) -> None:
        _check_whole(offset, length, "a hardware buffer that is no BLOB")


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

    def __init__(self, roles: Collection[Role], operand: NnapiOperand, initial: Shape) -> None:
        self._roles = frozenset((id(r.compilation), r.kind, r.index) for r in roles)
        self._kept = tuple(r.compilation for r in roles)
        self._operand, self._initial = operand, initial
        self.shape = initial
        self.initialized = False

    @property
    def metadata(self) -> Metadata:
        return Metadata(size_of(self._operand, self.shape) or 0, self._operand, self.shape)

    def check_constant(self, offset: int, length: int) -> None:
        raise bad_data("a constant cannot lie in memory that was made from a descriptor")

    def check_argument(
        self, compilation: Ported, port: Port, shape: Shape, offset: int, length: int
    ) -> None:
        if (id(compilation), port.kind, port.index) not in self._roles:
            raise bad_data(f"the memory was not made for {port} of this compilation")
        _check_whole(offset, length, "memory that was made from a descriptor")
        merged(self._initial, shape, f"{port} and its memory")

    def check_read(self, shape: Shape) -> None:
        if not self.initialized:
            raise NnapiError(ResultCode.OP_FAILED, "an input is memory that holds no value")
        if shape != self.shape:
            raise NnapiError(
                ResultCode.OP_FAILED,
                f"an input of shape {shape} is memory that holds a value of shape {self.shape}",
            )

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
    return _quantization(one) == _quantization(other)


def _quantization(operand: NnapiOperand) -> NnapiOperand:
    return replace(
        operand,
        dimensions=(),
        lifetime=operand.lifetime.TEMPORARY_VARIABLE,
        value=None,
        location=None,
        subgraph=None,
        name="",
    )


def _check_whole(offset: int, length: int, what: str) -> None:
    if offset or length:
        raise bad_data(f"{what} is used as a whole: offset and length must be 0")


ASKED: Final = "the caller copies one memory to another"


class PoolStore:
    """Bytes in a pool that the host maps on demand."""

    def __init__(self, pool: MemoryPool) -> None:
        self.pool = pool

    def content(self) -> NDArray:
        """All bytes as flat uint8; UNMAPPABLE if the host has no view of them."""
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

    def place(self, kind: str) -> Any:
        """What a run gets instead of an array over `content`; None if it gets the array."""
        return None

    def close(self) -> None:
        """Closes the pool. A second call has no effect."""
        self.pool.close()


class ImageStore:
    """A hardware buffer that is not a BLOB; the caller closes it."""

    def __init__(self, buffer: HardwareBuffer) -> None:
        self.buffer = buffer

    def content(self) -> NDArray:
        """Always raises UNMAPPABLE."""
        what = f"a hardware buffer of format {self.buffer.description.format:#x}"
        raise NnapiError(ResultCode.UNMAPPABLE, f"{what} is never mapped")

    def place(self, kind: str) -> Any:
        """The buffer."""
        return self.buffer

    def close(self) -> None:
        """Does nothing."""


class DeviceStore:
    """A buffer in a device's own memory."""

    def __init__(self, buffer: DeviceBuffer) -> None:
        self.buffer = buffer

    def content(self) -> NDArray:
        """Always raises UNMAPPABLE."""
        raise NnapiError(ResultCode.UNMAPPABLE, "memory of a device is never mapped")

    def place(self, kind: str) -> Any:
        """The buffer. Raises OP_FAILED for an input without a value, DEAD_OBJECT if it is lost."""
        if (gone := self.buffer.gone()) is not None:
            with translated():
                raise gone
        if kind == "input" and not self.buffer.is_initialized:
            raise NnapiError(ResultCode.OP_FAILED, "an input is memory that holds no value")
        return self.buffer

    def close(self) -> None:
        """Frees it. A second call has no effect."""
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
