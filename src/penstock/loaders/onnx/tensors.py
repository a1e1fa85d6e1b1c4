"""Tensors of a file to arrays, every size checked against the bytes that are there."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from penstock.errors import (
    InvalidOperand,
    LimitExceeded,
    NotLowerable,
    ShapeOverflow,
    UnknownType,
)
from penstock.ir.types import PACKED, DType, NDArray, element_count

TYPES: Final = {
    1: DType.FLOAT32, 2: DType.UINT8, 3: DType.INT8, 4: DType.UINT16, 5: DType.INT16,
    6: DType.INT32, 7: DType.INT64, 8: DType.STRING, 9: DType.BOOL, 10: DType.FLOAT16,
    11: DType.FLOAT64, 12: DType.UINT32, 13: DType.UINT64, 14: DType.COMPLEX64,
    15: DType.COMPLEX128, 16: DType.BFLOAT16, 17: DType.FLOAT8_E4M3FN, 19: DType.FLOAT8_E5M2,
    21: DType.UINT4, 22: DType.INT4, 26: DType.INT2,
}  # fmt: skip
"""`TensorProto.DataType` to element types."""

UNKNOWN_TYPES: Final = {
    18: "FLOAT8E4M3FNUZ", 20: "FLOAT8E5M2FNUZ", 23: "FLOAT4E2M1", 24: "FLOAT8E8M0", 25: "UINT2",
}  # fmt: skip

EXTERNAL: Final = 1
MAX_RANK: Final = 32

_BITS: Final = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2})


class Budget:
    """Bytes that the values a loader computes may take: *limit* all together, and a quarter of that
    for values that it need not compute.
    """

    def __init__(self, limit: int) -> None:
        self.left, self._optional = limit, limit // 4

    def offers(self, size: int) -> bool:
        """Charges *size* bytes of a value that need not be computed; False where none are left."""
        if size > self._optional:
            return False
        self._optional -= size
        return True

    def take(self, size: int, where: str | None = None) -> None:
        """Charges *size* bytes; `LimitExceeded` when the limit is reached."""
        self.left -= size
        if self.left < 0:
            raise LimitExceeded(
                f"constants computed of the file take more memory than allowed ({size} bytes here); "
                "the knob densify_limit_mib sets the limit",
                where=where,
            )


def dtype_of(number: int, where: str) -> DType:
    """The element type of a `TensorProto.DataType`."""
    dtype = TYPES.get(number)
    if dtype is None:
        name = UNKNOWN_TYPES.get(number, f"type {number}")
        raise UnknownType(f"elements of ONNX's {name} have no counterpart here", where=where)
    return dtype


def shape_of(dims: Any, where: str) -> tuple[int, ...]:
    """Dimensions as a tuple, none negative, whose product fits 64 bits."""
    if len(dims) > MAX_RANK:
        raise ShapeOverflow(f"{len(dims)} dimensions; the limit is {MAX_RANK}", where=where)
    shape = tuple(int(d) for d in dims)
    if any(d < 0 for d in shape):
        raise ShapeOverflow(f"a dimension of {shape} is negative", where=where)
    try:
        element_count(shape)
    except ShapeOverflow as error:
        raise error.at(where) from None
    return shape


def read_tensor(proto: Any, where: str, budget: Budget) -> NDArray:
    """The value of a `TensorProto`: a read-only array. Raw data is viewed where its layout allows.

    Raises `NotLowerable` for data that stands in another file, `InvalidOperand` where there are not
    as many elements as the dimensions say.
    """
    if proto.data_location == EXTERNAL or len(proto.external_data):
        path = next((e.value for e in proto.external_data if e.key == "location"), "")
        raise NotLowerable(
            f"its data stands in another file ({path[:100]!r}), and nothing beside the model is read: "
            "save the model with its data inside",
            where=where,
        )
    dtype, shape = dtype_of(proto.data_type, where), shape_of(proto.dims, where)
    count = element_count(shape)
    if dtype is DType.STRING:
        return _strings(proto, shape, count, where)
    if proto.HasField("raw_data"):
        return _raw(proto.raw_data, dtype, shape, count, where)
    array = _listed(proto, dtype, count, where)
    budget.take(array.nbytes, where)
    return array.reshape(shape)


def _strings(proto: Any, shape: tuple[int, ...], count: int, where: str) -> NDArray:
    _check_count(len(proto.string_data), count, shape, where)
    flat = np.empty(count, object)
    flat[:] = [bytes(s) for s in proto.string_data]
    array: NDArray = flat.reshape(shape)
    return array


def _raw(data: bytes, dtype: DType, shape: tuple[int, ...], count: int, where: str) -> NDArray:
    bits = dtype.bits or 8
    if len(data) != (count * bits + 7) // 8:
        raise InvalidOperand(
            f"{dtype.value} of shape {shape} takes {(count * bits + 7) // 8} bytes, its value has {len(data)}",
            where=where,
        )
    if dtype in PACKED:
        return _unpacked(np.frombuffer(data, np.uint8), dtype, count).reshape(shape)
    array: NDArray = np.frombuffer(data, dtype.numpy.newbyteorder("<")).reshape(shape)
    return array if array.dtype == dtype.numpy else array.astype(dtype.numpy)


def _unpacked(packed: NDArray, dtype: DType, count: int) -> NDArray:
    bits = dtype.bits or 8
    fields = [(packed >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    flat = np.stack(fields, axis=-1).reshape(-1)[:count]
    if dtype is not DType.UINT4:
        sign = 1 << (bits - 1)
        flat = (flat ^ sign).astype(np.int8) - np.int8(sign)
    array: NDArray = flat.astype(dtype.numpy)
    return array


def _listed(proto: Any, dtype: DType, count: int, where: str) -> NDArray:
    """Elements of the typed lists; halves and small integers stand among the 32-bit integers."""
    if dtype is DType.FLOAT32:
        values = np.asarray(proto.float_data, np.float32)
    elif dtype is DType.FLOAT64:
        values = np.asarray(proto.double_data, np.float64)
    elif dtype in {DType.COMPLEX64, DType.COMPLEX128}:
        whole = proto.float_data if dtype is DType.COMPLEX64 else proto.double_data
        half = np.asarray(whole, np.float32 if dtype is DType.COMPLEX64 else np.float64)
        values = half[: len(half) // 2 * 2].view(dtype.numpy)
    elif dtype is DType.INT64:
        values = np.asarray(proto.int64_data, np.int64)
    elif dtype in {DType.UINT32, DType.UINT64}:
        values = np.asarray(proto.uint64_data, np.uint64).astype(dtype.numpy)
    else:
        words = np.asarray(proto.int32_data, np.int32)
        if dtype in _BITS:
            width = np.uint16 if dtype.bits == 16 else np.uint8
            values = words.astype(width).view(dtype.numpy)
        elif dtype in PACKED:
            values = _unpacked(words.astype(np.uint8), dtype, count)
        else:
            values = words.astype(dtype.numpy)
    _check_count(len(values), count, tuple(proto.dims), where)
    return values


def _check_count(given: int, count: int, shape: tuple[int, ...], where: str) -> None:
    if given != count:
        raise InvalidOperand(
            f"a tensor of shape {tuple(shape)} has {count} elements, its value {given}", where=where
        )


def read_sparse(proto: Any, where: str, budget: Budget) -> NDArray:
    """A `SparseTensorProto` made dense; its indices are flat, or one row a place."""
    values = read_tensor(proto.values, where, budget)
    indices = read_tensor(proto.indices, where, budget)
    shape = shape_of(proto.dims, where)
    count = element_count(shape)
    if indices.dtype.kind not in "iu" or values.ndim != 1 or values.dtype == object:
        raise InvalidOperand("the indices or values of a sparse tensor are malformed", where=where)
    budget.take(count * values.dtype.itemsize, where)
    if indices.ndim == 2:
        if indices.shape != (len(values), len(shape)):
            raise InvalidOperand(f"indices of shape {indices.shape}", where=where)
        inside = bool(((indices >= 0) & (indices < np.array(shape, np.int64))).all())
        flat = indices @ np.cumprod([1, *shape[:0:-1]], dtype=np.int64)[::-1]
    else:
        flat, inside = indices, bool(((indices >= 0) & (indices < count)).all())
    if not inside or flat.shape != values.shape:
        raise InvalidOperand("an index of a sparse tensor lies outside it", where=where)
    dense = np.zeros(count, values.dtype)
    dense[flat] = values
    return dense.reshape(shape)
