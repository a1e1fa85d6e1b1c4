"""Values of operands: the bytes of what a caller passes, and memory that constants lie in."""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np

from penstock.errors import GeneralFailure
from penstock.hal import Memory
from penstock.ir import ConstantPool, NDArray
from penstock.ir.types import is_masked
from penstock.memory import MemoryPool, map_memory
from penstock.memory.shared import kept_memory
from penstock.nnapi.codes import ResultCode
from penstock.nnapi.description import AnyType, OperandType
from penstock.nnapi.failures import NnapiError, bad_data, translated, unexpected_null
from penstock.nnapi.memory import Memory as NnapiMemory
from penstock.nnapi.stores import PoolStore

IN_DEVICE: Final = "a constant cannot lie in memory of a device"

SCALARS: Final = {
    OperandType.FLOAT32: "<f",
    OperandType.FLOAT16: "<e",
    OperandType.INT32: "<i",
    OperandType.UINT32: "<I",
    OperandType.BOOL: "<?",
}


def value_bytes(value: object, kind: AnyType) -> memoryview:
    """The bytes of a constant, read-only and of the caller's own memory where that is contiguous.

    *value* is a NumPy array of the operand's dtype, any other buffer, which is taken for raw bytes
    (so is an array of uint8, and any array for an extension's type), or for a scalar operand one
    number.
    """
    if isinstance(value, bool | int | float) and isinstance(kind, OperandType) and kind in SCALARS:
        return memoryview(_packed(value, kind))
    if is_masked(value):
        raise bad_data("a constant is a masked array, and no device heeds masks; give its filled()")
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if isinstance(kind, OperandType) and array.dtype not in {
            kind.dtype.numpy,
            np.dtype(np.uint8),
        }:
            raise bad_data(
                f"an array of {array.dtype} for a {kind.name}, which takes {kind.dtype.value}"
            )
        return _readonly(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return _readonly(_raw(value, "the value of an operand"))


def constant_pool(memory: object) -> ConstantPool:
    """Constants in *memory*, not copied: a `Memory`, a `MemoryPool`, a `hal.Memory`, or any
    contiguous buffer (an mmap).

    Raises UNEXPECTED_NULL for None, BAD_DATA for memory of a device, hardware buffers that are no
    BLOBs and what is no memory, UNMAPPABLE for what cannot be mapped.
    """
    if memory is None:
        raise unexpected_null("the memory")
    if isinstance(memory, NnapiMemory):
        memory.rules.check_constant(0, memory.size)
        memory.store.content()
        if isinstance(memory.store, PoolStore):
            return memory.store.pool.constants()
        raise bad_data(IN_DEVICE)
    if isinstance(memory, MemoryPool):
        with translated():
            return memory.constants()
    if isinstance(memory, Memory):
        try:
            content = _readonly(map_memory(memory).array)
            return ConstantPool(content, kept_memory(memory), memory.name)
        except GeneralFailure as error:
            raise NnapiError(ResultCode.UNMAPPABLE, str(error)) from error
    if callable(getattr(memory, "copy_to", None)):
        raise bad_data(IN_DEVICE)
    return ConstantPool(_readonly(_raw(memory, "the memory of a constant")), memory)


def _packed(value: float, kind: OperandType) -> bytes:
    fits = {
        OperandType.BOOL: value in {0, 1},
        OperandType.INT32: isinstance(value, int) and not isinstance(value, bool),
        OperandType.UINT32: isinstance(value, int) and not isinstance(value, bool),
    }
    if fits.get(kind, True):
        try:
            return struct.pack(SCALARS[kind], value)
        except (struct.error, OverflowError):
            pass
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
