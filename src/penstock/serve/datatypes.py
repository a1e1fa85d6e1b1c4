"""The protocol's datatypes: names, binary form and JSON form of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from penstock.ir import DType, NDArray
from penstock.ir.types import dtype_of
from penstock.serve.errors import InvalidRequest, RequestTooLarge
from penstock.serve.settings import Limits

DATATYPES: Final[dict[str, DType]] = {
    "BOOL": DType.BOOL,
    "UINT8": DType.UINT8,
    "UINT16": DType.UINT16,
    "UINT32": DType.UINT32,
    "UINT64": DType.UINT64,
    "INT8": DType.INT8,
    "INT16": DType.INT16,
    "INT32": DType.INT32,
    "INT64": DType.INT64,
    "FP16": DType.FLOAT16,
    "FP32": DType.FLOAT32,
    "FP64": DType.FLOAT64,
    "BF16": DType.BFLOAT16,
    "BYTES": DType.STRING,
}
NAMES: Final[dict[DType, str]] = {dtype: name for name, dtype in DATATYPES.items()}

LENGTH_BYTES: Final = 4
"""Bytes of the length before each string of a BYTES tensor, little-endian."""


def dtype_named(datatype: object, where: str) -> DType:
    """The element type of a datatype of the protocol. Raises `InvalidRequest`."""
    found = DATATYPES.get(datatype) if isinstance(datatype, str) else None
    if found is None:
        raise InvalidRequest(f"{where}: datatype {datatype!r} is not one of {', '.join(DATATYPES)}")
    return found


def shape_of(given: object, limits: Limits, where: str) -> tuple[int, ...]:
    """A checked shape of a request. Raises `InvalidRequest`."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise InvalidRequest(f"{where}: shape must be a list of whole numbers")
    if len(given) > limits.rank:
        raise InvalidRequest(f"{where}: shape has {len(given)} dimensions, at most {limits.rank}")
    shape = tuple(given)
    if any(type(size) is not int or not 0 <= size < 1 << 31 for size in shape):
        raise InvalidRequest(f"{where}: shape {list(shape)} has no valid sizes")
    return shape


def from_bytes(data: Any, dtype: DType, shape: tuple[int, ...], where: str) -> NDArray:
    """The array in the binary form *data*, a bytes-like object; a view of it where it is aligned.

    Raises `InvalidRequest` if the size is not that of the shape.
    """
    view = memoryview(data).cast("B")
    if dtype is DType.STRING:
        return _strings(view, shape, where)
    kind, count = dtype.numpy, math.prod(shape)
    if len(view) != count * kind.itemsize:
        raise InvalidRequest(
            f"{where}: {len(view)} bytes were given, shape {list(shape)} needs "
            f"{count * kind.itemsize}"
        )
    if dtype is DType.BOOL and any(byte > 1 for byte in set(bytes(view))):
        raise InvalidRequest(f"{where}: BOOL holds bytes other than 0 and 1")
    array: NDArray = np.frombuffer(view, kind).reshape(shape)
    return array if array.flags.aligned else array.copy()


def to_bytes(array: NDArray) -> bytes:
    """The binary form of *array*: little-endian elements, or each string after its length."""
    if array.dtype.kind != "O":
        return array.tobytes()
    parts = []
    for item in array.reshape(-1):
        text = item if isinstance(item, bytes) else str(item).encode()
        parts += [len(text).to_bytes(LENGTH_BYTES, "little"), text]
    return b"".join(parts)


def from_list(data: object, dtype: DType, shape: tuple[int, ...], where: str) -> NDArray:
    """The array of JSON numbers, booleans or texts, flat or nested.

    Floats are rounded to their type. Raises `InvalidRequest` for an integer that does not fit.
    """
    if not isinstance(data, list):
        raise InvalidRequest(f"{where}: data must be a list")
    if dtype is DType.STRING:
        return _texts(data, shape, where)
    try:
        given: NDArray = np.array(data)
    except (ValueError, TypeError, OverflowError):
        raise InvalidRequest(f"{where}: data is no regular list of numbers") from None
    if given.size != math.prod(shape):
        raise InvalidRequest(
            f"{where}: data has {given.size} elements, shape {list(shape)} has {math.prod(shape)}"
        )
    if given.size and not _fits(given, dtype):
        raise InvalidRequest(f"{where}: data holds values that are no {NAMES[dtype]}")
    with np.errstate(over="ignore"):
        return given.astype(dtype.numpy).reshape(shape)


def to_list(array: NDArray) -> list[Any]:
    """The elements of *array* in a flat list for JSON. Strings that are no UTF-8 raise
    `InvalidRequest`.
    """
    if array.dtype.kind == "O":
        try:
            return [i.decode() if isinstance(i, bytes) else str(i) for i in array.reshape(-1)]
        except UnicodeDecodeError:
            raise InvalidRequest(
                "an output holds bytes that are no UTF-8; ask for it in binary form"
            ) from None
    plain = array if array.dtype.kind in "biu" or array.itemsize > 2 else array.astype(np.float32)
    values: list[Any] = plain.reshape(-1).tolist()
    return values


def _fits(given: NDArray, dtype: DType) -> bool:
    kind = given.dtype.kind
    if dtype is DType.BOOL:
        return kind == "b"
    if dtype.is_integer:
        # Integers beyond 64 bits make an array of objects or of floats.
        if kind not in "iu":
            return False
        bounds = np.iinfo(dtype.numpy)
        return int(given.min()) >= bounds.min and int(given.max()) <= bounds.max
    return kind in "iuf"


def _strings(view: memoryview, shape: tuple[int, ...], where: str) -> NDArray:
    count = math.prod(shape)
    if count * LENGTH_BYTES > len(view):
        raise InvalidRequest(
            f"{where}: {len(view)} bytes hold no {count} strings of shape {list(shape)}"
        )
    array: NDArray = np.empty(count, object)
    at = 0
    for place in range(count):
        begin = at + LENGTH_BYTES
        length = int.from_bytes(view[at:begin], "little")
        at = begin + length
        if begin > len(view) or at > len(view):
            raise InvalidRequest(f"{where}: string {place} ends beyond the {len(view)} bytes")
        array[place] = bytes(view[begin:at])
    if at != len(view):
        raise InvalidRequest(f"{where}: {len(view) - at} bytes follow the last string")
    return array.reshape(shape)


def _texts(data: list[Any], shape: tuple[int, ...], where: str) -> NDArray:
    flat: list[Any] = []
    left: list[Any] = [iter(data)]
    while left:
        for item in left[-1]:
            if isinstance(item, list):
                left.append(iter(item))
                break
            flat.append(item)
        else:
            left.pop()
    if not all(isinstance(item, str) for item in flat):
        raise InvalidRequest(f"{where}: data of BYTES must be texts")
    if len(flat) != math.prod(shape):
        raise InvalidRequest(
            f"{where}: data has {len(flat)} elements, shape {list(shape)} has {math.prod(shape)}"
        )
    array: NDArray = np.empty(len(flat), object)
    for place, item in enumerate(flat):
        try:
            array[place] = item.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"{where}: text {place} has no UTF-8 form") from None
    return array.reshape(shape)


def check_size(nbytes: int, limit: int, what: str) -> None:
    """Raises `RequestTooLarge` if *what* has more bytes than *limit*."""
    if nbytes > limit:
        raise RequestTooLarge(f"{what} has {nbytes} bytes; this server takes {limit}")


def dtype_of_array(array: NDArray) -> DType:
    """The element type of an output."""
    found = dtype_of(array.dtype)
    assert found is not None
    return found
