"""The constants of a model on their way into one pool.

Arrays are kept as they are until the pool is made: views of the file's bytes, transposed views of
these, and arrays of one value repeated, which take the memory of their longest together.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec.structs import replace

from penstock.ir.builder import pack
from penstock.ir.operand import MAX_COPIED_VALUE, DataLocation, Lifetime, Operand
from penstock.ir.subgraph import ConstantPool, Subgraph
from penstock.ir.types import PACKED, DType, NDArray, Quantization, byte_size, dtype_of
from penstock.loaders.onnx.tensors import Budget

ALIGNMENT: Final = 64


def is_uniform(array: NDArray) -> bool:
    """Whether *array* is one element repeated, and takes no more memory than that."""
    return array.ndim > 0 and not any(array.strides) and array.size > 1


def uniform(value: NDArray, shape: tuple[int, ...]) -> NDArray:
    """The single element of *value* in every place of *shape*, in the memory of one."""
    scalar = np.asarray(value).reshape(())
    if 0 in shape:
        return np.zeros(shape, scalar.dtype)
    return np.broadcast_to(scalar, shape)


def reshaped(array: NDArray, shape: tuple[int, ...]) -> NDArray:
    """*array* in another shape, one value repeated staying such."""
    if is_uniform(array) and array.size:
        return uniform(array[(0,) * array.ndim], shape)
    return array.reshape(shape)


class Constants:
    """Places of constants; `pool` lays them out."""

    def __init__(self) -> None:
        self._arrays: list[NDArray] = []
        self._known: dict[tuple[int, DType], int] = {}
        self._uniform: dict[tuple[DType, bytes], int] = {}
        self._keep: list[NDArray] = []

    def operand(
        self, array: NDArray, name: str = "", quantization: Quantization | None = None
    ) -> Operand:
        """A constant operand of *array*, which must not change afterwards."""
        dtype = dtype_of(array.dtype) or DType.FLOAT32
        size = byte_size(dtype, array.shape)
        if size is None or size <= MAX_COPIED_VALUE or dtype in PACKED:
            data, dtype = pack(array, dtype)
            if len(data) <= MAX_COPIED_VALUE:
                return Operand(dtype, array.shape, Lifetime.CONSTANT_COPY, name, quantization, data)
            stored, size = np.frombuffer(data, np.uint8), len(data)
        else:
            stored = array
        place = DataLocation(self._slot(stored, dtype, array), 0, size)
        return Operand(
            dtype, array.shape, Lifetime.CONSTANT_POOL, name, quantization, location=place
        )

    def _slot(self, stored: NDArray, dtype: DType, array: NDArray) -> int:
        if is_uniform(stored):
            key = dtype, stored[(0,) * stored.ndim].tobytes()
            slot = self._uniform.get(key)
            if slot is None:
                self._uniform[key] = slot = self._append(stored)
            elif self._arrays[slot].size < stored.size:
                self._arrays[slot] = stored
            return slot
        known = self._known.get((id(array), dtype))
        if known is None:
            known = self._known[id(array), dtype] = self._append(stored)
            self._keep.append(array)
        return known

    def _append(self, array: NDArray) -> int:
        self._arrays.append(array)
        return len(self._arrays) - 1

    def pool(
        self, subgraphs: list[Subgraph], budget: Budget
    ) -> tuple[list[Subgraph], tuple[ConstantPool, ...]]:
        """*subgraphs* with the places of their constants in the pool, and the pool: only what they
        use is in it. Its size counts against *budget* before it is made.
        """
        used = sorted(
            {o.location.pool for s in subgraphs for o in s.operands if o.location is not None}
        )
        offsets, end = {}, 0
        for slot in used:
            end += -end % ALIGNMENT
            offsets[slot] = end
            end += self._arrays[slot].size * self._arrays[slot].dtype.itemsize
        if not used:
            return subgraphs, ()
        budget.take(end, "the constants")
        content = np.empty(end, np.uint8)
        filled = 0
        for slot in used:
            array, start = self._arrays[slot], offsets[slot]
            content[filled:start] = 0
            filled = start + array.size * array.dtype.itemsize
            target = content[start:filled].view(array.dtype).reshape(array.shape)
            np.copyto(target, array)
        content.flags.writeable = False
        placed = [
            replace(s, operands=tuple(_placed(o, offsets) for o in s.operands)) for s in subgraphs
        ]
        return placed, (ConstantPool(content.data, content),)


def _placed(operand: Operand, offsets: dict[int, int]) -> Operand:
    place = operand.location
    if place is None:
        return operand
    return replace(operand, location=DataLocation(0, offsets[place.pool], place.length))
