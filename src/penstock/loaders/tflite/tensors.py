"""A TFLite file and its tensors: buffers by index, and operands with their constant values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from penstock import errors, knobs
from penstock.export.tflite.fields import TFLITE
from penstock.faults import Fault, FaultCode
from penstock.ir.operand import MAX_COPIED_VALUE, DataLocation, Lifetime, Operand, Origin
from penstock.ir.subgraph import ConstantPool
from penstock.ir.types import DType, NDArray, Quantization, Shape, byte_size, element_count
from penstock.loaders import MAX_NAME, MIB, room_for
from penstock.loaders.flatbuffer import (
    MEMORY_ALLOWANCE,
    MEMORY_PER_BYTE,
    Blob,
    Reader,
    Values,
)

SCHEMA_VERSION: Final = 3
BUFFER_MEMORY: Final = 160

END_OF_ARCHIVE: Final = b"PK\x05\x06"
ARCHIVE_END: Final = 22 + 0xFFFF
"""The signature of a zip archive's last record, and the record's greatest size in bytes, with its
comment.
"""


class File:
    """The root table of a file, verified, with access to buffers by index."""

    def __init__(self, pool: ConstantPool) -> None:
        self.pool, self.data = pool, pool.view
        size = self.data.nbytes
        room = room_for(size)
        if not knobs.loading_limit_mib():
            room = min(room, MEMORY_PER_BYTE * size + MEMORY_ALLOWANCE)
        exhausted = (
            f"what the file describes would take more than {room // MIB} MiB: "
            "the knob loading_limit_mib allows more"
        )
        self.reader = Reader(self.data, TFLITE, room, text=MAX_NAME, exhausted=exhausted)
        self.root: Values = self.reader.root()
        if self.root["version"] != SCHEMA_VERSION:
            raise errors.NotAModel(
                Fault(FaultCode.SCHEMA_VERSION, found=self.root["version"], known=SCHEMA_VERSION)
            )
        buffers = self.tables("buffers")
        self.charge(BUFFER_MEMORY * len(buffers), "buffers")
        self._places = [self._place(i, b) for i, b in enumerate(buffers)]
        self._copies_left = len(self.data)

    def tables(self, name: str) -> list[Values]:
        """A vector of tables of the root; empty when absent."""
        found: list[Values] = self.root[name] or []
        return found

    def buffer(self, index: int) -> DataLocation | None:
        """The place of buffer *index* in the file; None for an empty buffer."""
        if not 0 <= index < len(self._places):
            raise errors.IndexOutOfRange(f"refers to buffer {index} of {len(self._places)}")
        return self._places[index]

    def signatures(self, subgraphs: int) -> Iterator[tuple[str, str, Values]]:
        """(name, place, table) of each signature. Raises an error for a duplicate name, and for a
        signature of a subgraph that is not in *subgraphs*.
        """
        known: set[str] = set()
        for index, table in enumerate(self.tables("signature_defs")):
            name, subgraph = table["signature_key"] or "", table["subgraph_index"]
            where = f"signature {index} ({name})"
            if subgraph >= subgraphs:
                raise errors.IndexOutOfRange(
                    f"refers to subgraph {subgraph} of {subgraphs}", where=where
                )
            if name in known:
                raise errors.InvalidSignature("two signatures have this name", where=where)
            known.add(name)
            yield name, where, table

    def indexes(self, table: Values | None) -> NDArray | None:
        """The numbers of an index vector of a sparse tensor; None if it is absent."""
        values: NDArray | Blob | None = None if table is None else table["values"]
        if isinstance(values, Blob):
            return np.frombuffer(self.data, np.uint8, values.length, values.offset)
        return values

    def tail(self, size: int) -> bytes:
        """A copy of the last *size* bytes of the file, or of the whole file if it is smaller."""
        return bytes(self.data[-size:])

    def bytes_at(self, place: DataLocation) -> memoryview:
        return self.data[place.offset : place.offset + place.length]

    def copy(self, place: DataLocation | Blob | None) -> bytes:
        """A copy of some bytes of the file. The total size of all copies is limited to the file's
        size.
        """
        if place is None:
            return b""
        self.charge(place.length)
        self._copies_left -= place.length
        if self._copies_left < 0:
            raise errors.LimitExceeded("the file refers to the same bytes too often")
        return bytes(self.data[place.offset : place.offset + place.length])

    def charge(self, amount: int, user: errors.Place | str | None = None) -> None:
        """Charges *amount* bytes to the file's memory budget. Raises `LimitExceeded`."""
        self.reader.charge(amount, user)

    @property
    def memory_left(self) -> int:
        """The rest of the file's memory budget, in bytes."""
        return self.reader.memory_left

    def outside(
        self, offset: int, size: int, user: errors.Place | str | None = None
    ) -> DataLocation:
        """A span given by file offset and size. Data beyond 2 GiB is stored so."""
        if offset + size > len(self.data):
            raise errors.OffsetOutOfBounds(
                f"data at [{offset}, {offset + size}) of a file of {len(self.data)} bytes",
                where=user,
            )
        return DataLocation(0, offset, size)

    def _place(self, index: int, buffer: Values) -> DataLocation | None:
        data: Blob | None = buffer["data"]
        if data is not None and data.length:
            return DataLocation(0, data.offset, data.length)
        if buffer["offset"] > 1 and buffer["size"] > 1:
            return self.outside(buffer["offset"], buffer["size"], f"buffer {index}")
        return None


def tensor_place(subgraph: int, index: int, tensor: Values) -> errors.Place:
    """The place of a tensor in the file."""
    return errors.Place(subgraph, tensor=index, name=tensor["name"] or "")


def element_type(tensor: Values) -> DType:
    """The element type of a tensor. Raises `UnknownType`."""
    dtype = DTYPES.get(tensor["type"])
    if dtype is None:
        raise errors.UnknownType(f"tensor type {tensor['type']} is not in the format")
    return dtype


def integers(vector: Any) -> tuple[int, ...]:
    """A vector of integers as a tuple; empty when absent."""
    return () if vector is None else tuple(vector.tolist())


DTYPES: Final = {
    number: DType(name.lower()) for name, number in TFLITE.numbers("TensorType").items()
}

BLOCKWISE: Final = TFLITE.unions["QuantizationDetails"].index("BlockwiseQuantization")
"""The kind of quantisation details of a tensor with one scale for each block of a row."""

QUANTIZED: Final = frozenset(
    {DType.INT8, DType.UINT8, DType.INT16, DType.INT4, DType.UINT4, DType.INT2}
)
"""Types whose scale may not be zero. For other types a scale of zero means "not quantised"."""

MAX_TENSOR_BYTES: Final = 2**40 - 1

OPERAND_MEMORY: Final = 256
QUANTIZATION_MEMORY: Final = 192
VARIABLE_MEMORY: Final = 512
"""Memory of everything made from an operand, its quantisation parameters, and its being a variable,
without the numbers as they were read.
"""

INT32_RANGE: Final = range(-(2**31), 2**31)


def read_operand(file: File, subgraph: int, index: int, tensor: Values) -> Operand:
    """The operand for one tensor: a constant if its buffer has bytes, otherwise a temporary.

    Sparse constants become temporaries; `sparsity.densify` sets their value.
    """
    quantized = tensor["quantization"] is not None
    variable = tensor["is_variable"]
    try:
        file.charge(OPERAND_MEMORY + quantized * QUANTIZATION_MEMORY + variable * VARIABLE_MEMORY)
        dtype = element_type(tensor)
        if tensor["external_buffer"]:
            raise errors.InvalidOperand(
                "its value is in another file (external_buffer), which cannot be loaded"
            )
        full = _dimensions(tensor, dtype)
        place = file.buffer(tensor["buffer"])
        # The schema has this form for a tensor of unknown rank. If it follows later, the rank may
        # be any, also a scalar's.
        is_declared = bool(full) or tensor["has_rank"] or place is not None
        quantization = read_quantization(
            tensor["quantization"], dtype, full if is_declared else None
        )
        operand = Operand(
            dtype,
            full,
            Lifetime.CONSTANT_COPY,
            tensor["name"] or "",
            quantization,
            origin=Origin(subgraph, index),
        )
        if place is None or tensor["sparsity"] is not None:
            lifetime, shape = Lifetime.TEMPORARY_VARIABLE, _signature(tensor, full)
            return replace(operand, lifetime=lifetime, shape=shape, shape_declared=is_declared)
        file.charge(min(place.length, MAX_COPIED_VALUE))
        if tensor["is_variable"]:
            raise errors.InvalidOperand("a variable tensor cannot have a buffer")
        place = _trim(file, place, dtype, full)
    except errors.ModelError as error:
        raise error.at(tensor_place(subgraph, index, tensor)) from None
    if place.length <= MAX_COPIED_VALUE:
        return replace(operand, value=bytes(file.bytes_at(place)))
    return replace(operand, lifetime=Lifetime.CONSTANT_POOL, location=place)


def quantization_fault(
    scales: NDArray, zero_points: NDArray | None, dimension: int, shape: tuple[int, ...]
) -> Fault | None:
    """The defect in a tensor's number of scales and zero points, or in their dimension."""
    if zero_points is None:
        return Fault(FaultCode.NO_ZERO_POINTS, scales=len(scales))
    if len(zero_points) != len(scales):
        counts = {"scales": len(scales), "zero_points": len(zero_points)}
        return Fault(FaultCode.ZERO_POINT_COUNT, **counts)
    if dimension < 0 or (shape and dimension >= len(shape)):
        return Fault(FaultCode.QUANTIZED_DIMENSION, dimension=dimension, rank=len(shape))
    return None


def read_quantization(
    table: Values | None, dtype: DType, shape: tuple[int, ...] | None
) -> Quantization | None:
    """Quantisation parameters of a tensor of that shape (None: the file declares no shape).

    Returns None if the table has no scales, if they mean "not quantised", or if blocks have the
    scales (`blocks`).
    """
    if table is None or table["details_type"] == BLOCKWISE:
        return None
    if table["details_type"]:
        kind = TFLITE.unions["QuantizationDetails"]
        number = table["details_type"]
        name = kind[number] if number < len(kind) else f"of kind {number}"
        raise errors.InvalidQuantization(
            f"{name} is not affine quantisation per tensor or per channel"
        )
    scales, zero_points, axis = table["scale"], table["zero_point"], table["quantized_dimension"]
    if scales is None or not len(scales):
        return None
    if fault := quantization_fault(scales, zero_points, axis, shape or ()):
        raise errors.InvalidQuantization(fault)
    if len(scales) > 1 and shape and len(scales) != shape[axis]:
        raise errors.InvalidQuantization(
            f"{len(scales)} scales for dimension {axis} of size {shape[axis]}"
        )
    if len(scales) > 1 and shape == ():
        raise errors.InvalidQuantization(f"{len(scales)} scales for a scalar")
    values: list[float] = scales.tolist()
    if not any(values):
        if dtype in QUANTIZED:
            raise errors.InvalidQuantization(f"a scale of this {dtype.value} tensor is zero")
        return None
    if zero_points.min() < INT32_RANGE[0] or zero_points.max() > INT32_RANGE[-1]:
        raise errors.InvalidQuantization("a zero point exceeds 32 bits")
    points: list[int] = zero_points.tolist()
    return Quantization(tuple(values), tuple(points), axis if len(values) > 1 else None)


def _dimensions(tensor: Values, dtype: DType) -> tuple[int, ...]:
    """The shape. Raises `ShapeOverflow` if it is negative or larger than any machine's memory.

    Dimensions of zero count as one, as in NumPy: no array has the shape (0, 2**40, 2**40).
    """
    shape = integers(tensor["shape"])
    size = (dtype.bits or 64) // 8 or 1
    for dimension in shape:
        if dimension < 0:
            raise errors.ShapeOverflow(f"dimension {dimension} is negative")
        size *= dimension or 1
    if size > MAX_TENSOR_BYTES:
        raise errors.ShapeOverflow(
            f"{dtype.value} of shape {shape} takes {size} bytes, a TiB or more"
        )
    return shape


def _signature(tensor: Values, shape: tuple[int, ...]) -> Shape:
    """The shape, with unknown dimensions for -1 in `shape_signature`."""
    signature = tensor["shape_signature"]
    if signature is None or len(signature) != len(shape):
        return shape
    return tuple(None if s < 0 else d for s, d in zip(signature.tolist(), shape, strict=True))


def _trim(file: File, place: DataLocation, dtype: DType, shape: tuple[int, ...]) -> DataLocation:
    """The bytes of a constant: as many as its shape requires, or all of them for strings."""
    size = byte_size(dtype, shape)
    if size is None:
        if dtype is not DType.STRING:
            raise errors.InvalidOperand(f"a {dtype.value} tensor cannot have a value in the file")
        check_strings(file.bytes_at(place), element_count(shape))
        return place
    return filled_part(place, dtype, shape, size)


def filled_part(
    place: DataLocation, dtype: DType, shape: tuple[int, ...], size: int
) -> DataLocation:
    """The first *size* bytes of a buffer, which are those of a constant."""
    if size > place.length:
        raise errors.InvalidOperand(
            f"{dtype.value} of shape {shape} takes {size} bytes, its buffer has {place.length}"
        )
    return DataLocation(0, place.offset, size)


def check_strings(data: memoryview, count: int) -> None:
    """Raises `InvalidOperand` unless *data* holds *count* strings in TFLite's layout."""
    header = np.frombuffer(data[: len(data) // 4 * 4], "<i4")
    if not header.size or header[0] != count or header.size < count + 2:
        found = int(header[0]) if header.size else 0
        raise errors.InvalidOperand(f"a string tensor of {count} elements holds {found} strings")
    ends = header[1 : count + 2].astype(np.int64)
    if ends[0] < 0 or ends[-1] > len(data) or np.any(np.diff(ends) < 0):
        raise errors.InvalidOperand("string offsets lie outside the tensor's buffer")
