"""Values of a graph while it is lowered, and constants before they are laid out in a pool.

A *layout* is an order of dimensions: dimension i of an operand in layout p is dimension p[i] of the
value. Convolutions of the IR have channels last, those of ONNX have them second. A value may exist
in either layout or in both. A TRANSPOSE is emitted only if a consumer needs a layout that does not
exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from penstock.ir.builder import pack
from penstock.ir.operand import MAX_COPIED_VALUE, DataLocation, Lifetime, Operand
from penstock.ir.subgraph import ConstantPool, Subgraph
from penstock.ir.types import PACKED, DType, NDArray, Quantization, Shape, byte_size, dtype_of
from penstock.loaders.onnx.engine import Budget
from penstock.memory.sealed_file import seal_chunks

Layout: TypeAlias = "tuple[int, ...]"


class Value(Struct, eq=False):
    """One value. *array* is the value of a constant. *forms* are its operands by layout in *home*,
    the `Emitter` of its subgraph.

    *known* are the elements of a small integer array with unknown elements: objects, None if
    unknown. *source* is what the value was dequantised from, and *recipe* computes it from such
    integers. *items* are the values of a sequence, which has no operand.
    """

    dtype: DType
    shape: Shape
    name: str = ""
    array: NDArray | None = None
    home: object | None = None
    forms: dict[Layout, int] = {}
    known: NDArray | None = None
    source: Any = None
    recipe: Any = None
    items: list[Value] | None = None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def is_constant(self) -> bool:
        return self.array is not None

    def __repr__(self) -> str:
        return f"Value({self.name!r}, {self.dtype.value}, {self.shape})"


def constant(array: NDArray, name: str = "") -> Value:
    return Value(dtype_of(array.dtype) or DType.FLOAT32, array.shape, name=name, array=array)


def sequence(items: list[Value]) -> Value:
    """A sequence whose length is known."""
    return Value(items[0].dtype if items else DType.FLOAT32, None, items=items)


def identity(rank: int) -> Layout:
    return tuple(range(rank))


def channels_last(rank: int) -> Layout:
    """The layout that moves dimension 1 to the end; the identity below three dimensions."""
    return (0, *range(2, rank), 1) if rank > 2 else identity(rank)


def inverse(layout: Layout) -> Layout:
    found = [0] * len(layout)
    for position, axis in enumerate(layout):
        found[axis] = position
    return tuple(found)


def logical(shape: Shape, layout: Layout) -> Shape:
    """The shape of the value of an operand with *shape* in *layout*."""
    if shape is None:
        return None
    found: list[int | None] = [None] * len(shape)
    for position, axis in enumerate(layout):
        found[axis] = shape[position]
    return tuple(found)


ALIGNMENT: Final = 64
CHUNK: Final = 1 << 22
"""Bytes of an array that are copied at a time."""


def is_uniform(array: NDArray) -> bool:
    """Whether *array* is one element repeated that takes the memory of one element."""
    return array.ndim > 0 and not any(array.strides) and array.size > 1


def uniform(value: NDArray, shape: tuple[int, ...]) -> NDArray:
    """An array of *shape* that repeats the element of *value*, in the memory of one."""
    scalar = np.asarray(value).reshape(())
    if 0 in shape:
        return np.zeros(shape, scalar.dtype)
    return np.broadcast_to(scalar, shape)


def reshaped(array: NDArray, shape: tuple[int, ...]) -> NDArray:
    """*array* in another shape. A repeated element stays in the memory of one element."""
    if is_uniform(array) and array.size:
        return uniform(array[(0,) * array.ndim], shape)
    return array.reshape(shape)


class Constants:
    """Collects the constants of a model; `pool` lays them out."""

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
        """*subgraphs* with their constants' locations, and the pool of those that they use."""
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
        content = seal_chunks(self._chunks(offsets), end)
        placed = [
            replace(s, operands=tuple(_placed(o, offsets) for o in s.operands)) for s in subgraphs
        ]
        return placed, (ConstantPool(content.view, content, content.kind),)

    def _chunks(self, offsets: Mapping[int, int]) -> Iterator[memoryview]:
        """The bytes of the arrays in the order of their *offsets*, zeros between them."""
        end = 0
        for slot, start in offsets.items():
            yield memoryview(bytes(start - end))
            array = self._arrays[slot]
            end = start + array.size * array.dtype.itemsize
            if not array.size:
                continue
            rows = array.reshape(1) if not array.ndim else array
            each = max(1, CHUNK * len(rows) // (end - start))
            for first in range(0, len(rows), each):
                part = np.ascontiguousarray(rows[first : first + each])
                yield part.reshape(-1).view(np.uint8).data


def _placed(operand: Operand, offsets: dict[int, int]) -> Operand:
    place = operand.location
    if place is None:
        return operand
    return replace(operand, location=DataLocation(0, offsets[place.pool], place.length))
