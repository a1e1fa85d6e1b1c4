"""What `set_tensor` takes and `get_tensor` gives: LiteRT's conversions, checks and messages."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from penstock.ir import DType, NDArray
from penstock.ir.types import PACKED, dtype_of
from penstock.loaders.tflite.catalog import TensorEntry
from penstock.memory.limits import check_bytes
from penstock.tflite.details import SHOWN_AS, shown_type

INT32_LIMIT: Final = 2**31

TAKEN_AS: Final[Mapping[DType, DType]] = {
    DType.INT4: DType.INT8,
    DType.INT2: DType.INT8,
    DType.UINT4: DType.UINT8,
}
"""Packed types come and go as whole bytes."""


def as_index(value: object, method: str) -> int:
    """An int32 index as LiteRT's binding takes it; `TypeError` naming *method* for anything else."""
    try:
        index = operator.index(value)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        index = INT32_LIMIT
    if not -INT32_LIMIT <= index < INT32_LIMIT:
        raise TypeError(
            f"{method}(): incompatible function arguments. An index is a whole number of 32 bits, not {value!r}"
        )
    return index


def readable(value: Any, tensor: TensorEntry, shape: Sequence[int], index: int) -> NDArray:
    """*value* as an array of the tensor's stored type and of *shape*.

    Raises `ValueError` with LiteRT's words for another type, rank, dimension, or for what is no
    array.
    """
    if (
        type(value) is np.ndarray
        and value.shape == shape
        and tensor.dtype not in SHOWN_AS
        and value.dtype == tensor.dtype.numpy
    ):
        return value
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Failed to convert value into readable tensor.\n{error}") from error
    _check_type(array, tensor, index)
    if array.ndim != len(shape):
        raise ValueError(
            f"Cannot set tensor: Dimension mismatch. Got {array.ndim} but expected {len(shape)} "
            f"for input {index}."
        )
    for place, (got, expected) in enumerate(zip(array.shape, shape, strict=True)):
        if got != expected:
            raise ValueError(
                f"Cannot set tensor: Dimension mismatch. Got {got} but expected {expected} "
                f"for dimension {place} of input {index}."
            )
    if tensor.dtype is DType.STRING:
        return _strings(value)
    if tensor.dtype in PACKED and array.size:
        _check_range(array, tensor.dtype)
    if (
        array.dtype != tensor.dtype.numpy
        and tensor.dtype in SHOWN_AS
        and tensor.dtype not in PACKED
    ):
        return array.view(tensor.dtype.numpy)
    return array


def _check_type(array: NDArray, tensor: TensorEntry, index: int) -> None:
    wanted, got = tensor.dtype, dtype_of(array.dtype)
    if got is wanted and wanted not in (DType.RESOURCE, DType.VARIANT):
        return
    taken = TAKEN_AS.get(wanted)
    if taken is not None:
        if got is not taken:
            raise ValueError(
                f"Cannot set tensor: Expected a numpy array of {taken.value} for {_name(wanted)} input {index}, "
                f"name: {tensor.name}, but got {_name(got)}"
            )
        return
    if wanted in SHOWN_AS and got is DType.INT8:
        return
    raise ValueError(
        f"Cannot set tensor: Got value of type {_name(got)} but expected type {_name(wanted)} "
        f"for input {index}, name: {tensor.name} "
    )


def _check_range(array: NDArray, dtype: DType) -> None:
    bits = dtype.bits or 8
    low = 0 if dtype is DType.UINT4 else -(1 << (bits - 1))
    high = low + (1 << bits) - 1
    if array.min() < low or array.max() > high:
        raise ValueError(
            f"Cannot set tensor: Values for {_name(dtype)} input must be between {low} and {high}."
        )


def _name(dtype: DType | None) -> str:
    return "NOTYPE" if dtype is None else dtype.name


def _strings(value: Any) -> NDArray:
    if not isinstance(value, np.ndarray):
        kind = type(value)
        name = (
            kind.__qualname__
            if kind.__module__ == "builtins"
            else f"{kind.__module__}.{kind.__qualname__}"
        )
        raise ValueError(  # noqa: TRY004  # LiteRT's class
            f"Passed in value type is not a numpy array, got type {name}."
        )
    result: NDArray = np.empty(value.shape, object)
    flat = result.reshape(-1)
    for place, item in enumerate(value.reshape(-1).tolist()):
        if isinstance(item, str):
            flat[place] = item.encode()
        elif isinstance(item, bytes):
            flat[place] = bytes(item)
        else:
            found = type(item).__name__
            raise ValueError(  # noqa: TRY004  # LiteRT's class
                f"PyBytes_AsStringAndSize() failed.\nStrings are bytes or str, not {found}"
            )
    return result


def handed_out(array: NDArray, dtype: DType) -> Any:
    """A copy of *array* as `get_tensor` gives it: packed types as bytes, a number for a scalar."""
    if array.dtype.hasobject:
        return array.copy()
    shown = shown_type(dtype)
    if dtype in PACKED:
        copied = array.astype(shown)
    else:
        copied = (array.view(shown) if dtype in SHOWN_AS else array).copy()
    return copied if copied.ndim else copied[()]


def stored_type(dtype: DType) -> np.dtype[Any]:
    """The NumPy type of a tensor's memory."""
    objects = (DType.STRING, DType.RESOURCE, DType.VARIANT)
    return np.dtype(object) if dtype in objects else dtype.numpy


def blank(dtype: DType, shape: Sequence[int]) -> NDArray:
    """Memory for a tensor: zeros, or empty strings. `LimitExceeded` where it is more than one array
    may take.
    """
    stored = stored_type(dtype)
    check_bytes(math.prod(shape) * stored.itemsize, f"a tensor of shape {tuple(shape)}")
    if stored.hasobject:
        return np.full(tuple(shape), b"" if dtype is DType.STRING else None, object)
    try:
        return np.zeros(tuple(shape), stored)
    except ValueError as error:
        raise MemoryError(f"no memory for {dtype.value} of shape {tuple(shape)}") from error
