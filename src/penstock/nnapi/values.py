"""Values from callers: constants and arguments (NNAPI sections 1.4 and 6.2)."""

from __future__ import annotations

import struct
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from penstock.errors import GeneralFailure
from penstock.execution.results import copied
from penstock.hal import Memory as HalMemory
from penstock.ir import ConstantPool, NDArray
from penstock.ir.types import Shape, is_masked, is_static, static_shape
from penstock.memory import MemoryPool, map_memory
from penstock.memory.copies import CopyReceipt
from penstock.memory.shared import kept_memory
from penstock.nnapi import parameters
from penstock.nnapi.codes import NnapiError, ResultCode, bad_data, translated, unexpected_null
from penstock.nnapi.description import AnyType, OperandType, ir_shape
from penstock.nnapi.memory import Memory, usable_memory
from penstock.nnapi.memory_kinds import PoolStore
from penstock.nnapi.ports import MAX_LENGTH, OperandDesc, Port, Ported, refined, size_of

IN_DEVICE: Final = "a constant cannot lie in memory of a device"

SCALARS: Final = {
    OperandType.FLOAT32: "<f",
    OperandType.FLOAT16: "<e",
    OperandType.INT32: "<i",
    OperandType.UINT32: "<I",
    OperandType.BOOL: "<?",
}


def value_bytes(value: object, kind: AnyType) -> memoryview:
    """The bytes of a constant, read-only; zero-copy if the caller's memory is contiguous.

    *value* is a NumPy array of the operand's dtype, a buffer of raw bytes (also an array of uint8,
    and any array for an extension type), or one number for a scalar operand.
    """
    if isinstance(value, bool | int | float) and isinstance(kind, OperandType) and kind in SCALARS:
        return memoryview(_packed(value, kind))
    _check_array(value, kind, "a constant")
    if isinstance(value, np.ndarray | np.generic):
        array = np.ascontiguousarray(value)
        return _readonly(array.reshape(-1).view(np.uint8))
    return _readonly(_raw(value, "the value of an operand"))


def _check_array(value: object, kind: AnyType, what: str, plain: str = "filled()") -> None:
    """Raises BAD_DATA for a masked array, and for one of another dtype than *kind* or uint8."""
    if is_masked(value):
        fault = "is given a masked array, and no device heeds masks"
        raise bad_data(f"{what} {fault}; give its {plain}")
    if isinstance(value, np.ndarray | np.generic) and isinstance(kind, OperandType):
        wanted = kind.dtype.numpy
        if value.dtype not in {wanted, np.dtype(np.uint8)}:
            raise bad_data(f"{what} is an array of {value.dtype}; a {kind.name} takes {wanted}")


def constant_pool(memory: object) -> ConstantPool:
    """Constants in *memory*, zero-copy: a `Memory`, a `MemoryPool`, a `hal.Memory`, or any
    contiguous buffer (an mmap).

    Raises UNEXPECTED_NULL for None, BAD_DATA for device memory, hardware buffers that are not BLOBs
    and other objects, UNMAPPABLE if it cannot be mapped.
    """
    parameters.given(memory, "the memory")
    if isinstance(memory, Memory):
        memory.rules.check_constant((0, memory.size))
        memory.store.content()
        if isinstance(memory.store, PoolStore):
            return memory.store.pool.constants()
        raise bad_data(IN_DEVICE)
    if isinstance(memory, MemoryPool):
        with translated():
            return memory.constants()
    if isinstance(memory, HalMemory):
        try:
            content = _readonly(map_memory(memory).array)
            return ConstantPool(content, kept_memory(memory), memory.name)
        except GeneralFailure as error:
            raise NnapiError(ResultCode.UNMAPPABLE, str(error)) from error
    if callable(getattr(memory, "copy_to", None)):
        raise bad_data(IN_DEVICE)
    return ConstantPool(_readonly(_raw(memory, "the memory of a constant")), memory)


def _packed(value: float, kind: OperandType) -> bytes:
    integral = kind in {OperandType.INT32, OperandType.UINT32}
    whole = isinstance(value, int) and not isinstance(value, bool)
    if (whole or not integral) and (value in {0, 1} or kind is not OperandType.BOOL):
        with suppress(struct.error, OverflowError):
            return struct.pack(SCALARS[kind], value)
    raise bad_data(f"{value!r} is no value of a {kind.name}")


def _raw(value: Any, what: str) -> NDArray:
    try:
        view = memoryview(value)
        if not view.c_contiguous:
            raise bad_data(f"{what} must be contiguous")
        return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)
    except (TypeError, ValueError, BufferError):
        raise bad_data(
            f"{what} must be an array or another buffer, not {type(value).__name__}"
        ) from None


def _readonly(array: NDArray) -> memoryview:
    return memoryview(array.data).toreadonly()


@dataclass(frozen=True, slots=True)
class Binding:
    """One argument of an execution.

    It is a caller's *content* (flat uint8), or *length* bytes from byte *offset* of a *memory*, or
    neither if it is omitted. *shape* is the execution's; unknown dimensions of an output are None.
    """

    port: Port
    shape: Shape
    content: NDArray | None = None
    memory: Memory | None = None
    offset: int = 0
    length: int = 0
    _arrays: dict[tuple[int, ...], NDArray] = field(default_factory=dict, compare=False)

    @property
    def is_omitted(self) -> bool:
        """Whether the input has no value, or the output is not wanted."""
        return self.content is None and self.memory is None

    def place(self) -> Any:
        """The device buffer or image of the argument; None for host memory."""
        return None if self.memory is None else self.memory.store.place(self.port.kind)

    def used(self) -> AbstractContextManager[None]:
        """A block in which the CPU reads or writes the memory, bracketed for a dma-buf."""
        if self.memory is None or not isinstance(store := self.memory.store, PoolStore):
            return nullcontext()
        return store.used(write=self.port.kind == "output")

    def bytes(self) -> NDArray:
        """The bytes of the value with padding. UNMAPPABLE if the host cannot map them."""
        if self.content is not None:
            return self.content
        if self.memory is None:
            return np.empty(0, np.uint8)
        whole = self.memory.store.content()
        found = whole[self.offset : self.offset + self.length] if self.length else whole
        if self.port.kind == "output" and not found.flags.writeable:
            raise NnapiError(
                ResultCode.UNMAPPABLE, f"{self.port}: its memory was made without PROT_WRITE"
            )
        return found

    def array(self) -> NDArray | None:
        """The argument's memory as an array; None if its shape is unknown or it is misaligned."""
        shape = static_shape(self.shape)
        return None if shape is None else self.array_of(shape)

    def array_of(self, shape: tuple[int, ...]) -> NDArray | None:
        """The memory as an array, created once; None if it is too small or misaligned."""
        if shape in self._arrays:
            # Raises BAD_STATE if the memory was closed meanwhile.
            _ = self.memory and self.memory.store
            return self._arrays[shape]
        needed = size_of(self.port.operand, shape) or 0
        room = self.bytes()
        if room.nbytes < needed:
            return None
        value = _viewed(room[:needed], self.port, shape)
        if not value.flags.aligned:
            return None
        self._arrays[shape] = value
        return value

    def value(self, copies: list[CopyReceipt]) -> NDArray:
        """A copy of an input whose memory is misaligned, recorded in *copies*."""
        shape = static_shape(self.shape) or ()
        needed = size_of(self.port.operand, shape) or 0
        reason = f"{self.port} does not begin at a multiple of its elements' size"
        content = copied(self.bytes()[:needed], copies, ("caller", "host"), reason)
        return _viewed(content, self.port, shape)


def _viewed(content: NDArray, port: Port, dimensions: tuple[int, ...]) -> NDArray:
    """Bytes as the array that a run uses for a value of these dimensions."""
    kind = port.operand.type
    value: NDArray = content.view(kind.dtype.numpy).reshape(ir_shape(kind, dimensions))
    return value


def bind_buffer(
    given: OperandDesc | None, buffer: object, length: object, port: Port, *, padded: bool
) -> Binding:
    """The argument of *port* in *buffer*: *length* bytes, None for all; omitted for None."""
    size = None if length is None else parameters.whole(length, "the length", 0, MAX_LENGTH)
    if buffer is None:
        if size:
            raise unexpected_null(f"the buffer of {size} bytes for {port}")
        return Binding(port, refined(port, given))
    shape = _request_shape(port, given)
    plain = "data" if port.kind == "output" else "filled()"
    _check_array(buffer, port.operand.type, str(port), plain)
    content = _raw(buffer, str(port))
    if port.kind == "output" and not content.flags.writeable:
        raise bad_data(f"{port}: its buffer cannot be written")
    size = content.nbytes if size is None else size
    if size > MAX_LENGTH:
        raise bad_data(f"{port}: {size} bytes; {MAX_LENGTH} are possible")
    if size > content.nbytes:
        raise bad_data(f"{port}: {size} bytes of a buffer that has {content.nbytes}")
    if size == 0:
        raise bad_data(f"{port}: a buffer of 0 bytes; None leaves an argument out")
    _check_length(port, shape, size, padded=padded)
    return Binding(port, shape, content[:size], length=size)


def bind_memory(
    compilation: Ported,
    given: OperandDesc | None,
    memory: object,
    offset: object,
    length: object,
    port: Port,
    *,
    padded: bool,
) -> Binding:
    """The argument of *port* in *length* bytes of *memory* from *offset*; 0 and 0 for all of it."""
    found = usable_memory(memory)
    start = parameters.whole(offset, "the offset", 0, MAX_LENGTH)
    size = parameters.whole(length, "the length", 0, MAX_LENGTH)
    shape = _request_shape(port, given)
    found.rules.check_argument(compilation, port, shape, (start, size))
    if size or not found.is_whole:
        _check_length(port, shape, size, padded=padded)
    return Binding(port, shape, memory=found, offset=start, length=size)


def _request_shape(port: Port, given: OperandDesc | None) -> Shape:
    shape = refined(port, given)
    if port.kind == "input" and not is_static(shape):
        raise bad_data(f"{port} has the dimensions {shape}: an execution must say what they are")
    return shape


def _check_length(port: Port, shape: Shape, length: int, *, padded: bool) -> None:
    with translated():
        needed = size_of(port.operand, shape)
    if needed is None:
        if length == 0:
            raise bad_data(f"{port}: at least 1 byte is needed for a value of unknown size")
    elif length < needed or (length > needed and not padded):
        raise bad_data(
            f"{port}: {length} bytes, where {needed} {'or more ' if padded else ''}are needed"
        )
