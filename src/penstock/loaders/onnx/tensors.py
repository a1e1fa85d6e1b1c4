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
from penstock.loaders.onnx.engine import to_array

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

COMPLEX: Final = frozenset({DType.COMPLEX64, DType.COMPLEX128})
LISTS: Final = {
    "string_data": {DType.STRING},
    "float_data": {DType.FLOAT32, DType.COMPLEX64},
    "double_data": {DType.FLOAT64, DType.COMPLEX128},
    "int64_data": {DType.INT64},
    "uint64_data": {DType.UINT32, DType.UINT64},
}
"""Typed lists of a tensor and what stands in them; all other types stand in `int32_data`."""


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
    stored = (count * (dtype.bits or 8) + 7) // 8
    if dtype is not DType.STRING and proto.HasField("raw_data"):
        if len(proto.raw_data) != stored:
            raise InvalidOperand(
                f"{dtype.value} of shape {shape} takes {stored} bytes, its value has "
                f"{len(proto.raw_data)}",
                where=where,
            )
        return to_array(proto)
    field = next((name for name, types in LISTS.items() if dtype in types), "int32_data")
    listed = getattr(proto, field)
    if dtype is DType.STRING:
        _check_count(len(listed), count, count, shape, where)
        texts: NDArray = np.empty(count, object)
        texts[:] = [bytes(s) for s in listed]
        return texts.reshape(shape)
    entries = stored if dtype in PACKED else 2 * count if dtype in COMPLEX else count
    _check_count(len(listed), entries, count, shape, where)
    budget.take(count * dtype.numpy.itemsize, where)
    return to_array(proto)


def _check_count(given: int, entries: int, count: int, shape: tuple[int, ...], where: str) -> None:
    if given != entries:
        raise InvalidOperand(
            f"a tensor of shape {shape} has {count} elements, its value {given}", where=where
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
