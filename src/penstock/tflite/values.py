"""LiteRT's details dictionaries, conversions of values, and counted views."""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from penstock.ir import DType, NDArray
from penstock.ir.types import PACKED, dtype_of
from penstock.loaders.tflite.catalog import SparsityEntry, TensorEntry
from penstock.memory.limits import check_bytes

SHOWN_AS: Final[Mapping[DType, type[np.generic]]] = {
    DType.STRING: np.bytes_,
    DType.RESOURCE: np.object_,
    DType.VARIANT: np.object_,
    DType.INT4: np.int8,
    DType.INT2: np.int8,
    DType.UINT4: np.uint8,
    DType.FLOAT8_E4M3FN: np.int8,
    DType.FLOAT8_E5M2: np.int8,
}
"""Element types that LiteRT shows as another NumPy type: packed and float8 as bytes."""


def shown_type(dtype: DType) -> type[np.generic]:
    """The class in `details["dtype"]`."""
    return SHOWN_AS.get(dtype) or dtype.numpy.type


def tensor_details(
    tensor: TensorEntry, index: int, shape: Sequence[int], *, compress_zero_points: bool
) -> dict[str, Any]:
    """The dictionary of one tensor, which now has *shape*. The caller owns all arrays."""
    quantization = tensor.quantization
    zero_points = quantization.zero_points.astype(np.int32)
    signature = shape if tensor.signature is None else tensor.signature
    legacy = 0.0, 0
    if len(zero_points) == 1:
        legacy = float(quantization.scales[0]), int(zero_points[0])
    if compress_zero_points and len(zero_points) > 1 and (zero_points == zero_points[0]).all():
        zero_points = zero_points[:1].copy()
    return {
        "name": tensor.name,
        "index": index,
        "shape": np.array(shape, np.int32),
        "shape_signature": np.array(signature, np.int32),
        "dtype": shown_type(tensor.dtype),
        "quantization": legacy,
        "quantization_parameters": {
            "scales": quantization.scales.astype(np.float32),
            "zero_points": zero_points,
            "quantized_dimension": quantization.dimension,
            "block_size": quantization.block_size,
        },
        "sparsity_parameters": _sparsity(tensor.sparsity),
    }


def _sparsity(sparsity: SparsityEntry | None) -> dict[str, Any]:
    if sparsity is None:
        return {}
    shown: dict[str, Any] = {"traversal_order": np.array(sparsity.traversal_order, np.int32)}
    if sparsity.block_map is not None:
        shown["block_map"] = np.array(sparsity.block_map, np.int32)
    shown["dim_metadata"] = [
        {"format": 0, "dense_size": level.dense_size}
        if level.segments is None or level.indices is None
        else {
            "format": 1,
            "array_segments": level.segments.copy(),
            "array_indices": level.indices.copy(),
        }
        for level in sparsity.levels
    ]
    return shown


class Loan:
    """The base object of a view. It lives as long as the view and everything derived from it."""

    __slots__ = ("__array_interface__", "__weakref__", "_memory")

    def __init__(self, memory: NDArray) -> None:
        self._memory = memory
        self.__array_interface__: dict[str, Any] = memory.__array_interface__


class Guests:
    """The users of an interpreter's memory: views of `tensor()`, and signature runners."""

    def __init__(self) -> None:
        self.present: set[weakref.ref[Any]] = set()
        """References to the users. Every run looks whether there are any."""

    def __bool__(self) -> bool:
        return len(self.present) > 0

    def add(self, guest: object) -> None:
        """Counts *guest* until it is garbage-collected."""
        self.present.add(weakref.ref(guest, self.present.discard))

    def lend(self, memory: NDArray, dtype: type[np.generic]) -> Any:
        """A counted view of *memory* as *dtype*; scalars and objects are copied, uncounted."""
        if memory.dtype.hasobject:
            return memory.copy()
        loan = Loan(memory)
        view = np.asarray(loan).view(dtype)
        if not view.ndim:
            return view[()]
        self.add(loan)
        return view


INT32_LIMIT: Final = 2**31

TAKEN_AS: Final[Mapping[DType, DType]] = {
    DType.INT4: DType.INT8,
    DType.INT2: DType.INT8,
    DType.UINT4: DType.UINT8,
}
"""Callers get and set packed types as whole bytes."""


def as_index(value: object, method: str) -> int:
    """An int32 index, as in LiteRT's binding; else raises `TypeError` naming *method*."""
    try:
        index = operator.index(value)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        index = INT32_LIMIT
    if not -INT32_LIMIT <= index < INT32_LIMIT:
        raise TypeError(
            f"{method}(): incompatible function arguments. An index is a whole number of 32 bits, "
            f"not {value!r}"
        )
    return index


def readable(value: Any, tensor: TensorEntry, shape: Sequence[int], index: int) -> NDArray:
    """*value* as an array of the tensor's type and *shape*. Raises `ValueError` as LiteRT does."""
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
    if tensor.dtype in PACKED:
        bits = tensor.dtype.bits or 8
        low = 0 if tensor.dtype is DType.UINT4 else -(1 << (bits - 1))
        high = low + (1 << bits) - 1
        if array.size and (array.min() < low or array.max() > high):
            raise ValueError(
                f"Cannot set tensor: Values for {_name(tensor.dtype)} input must be between {low} "
                f"and {high}."
            )
    elif tensor.dtype in SHOWN_AS and array.dtype != tensor.dtype.numpy:
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
                f"Cannot set tensor: Expected a numpy array of {taken.value} for {_name(wanted)} "
                f"input {index}, name: {tensor.name}, but got {_name(got)}"
            )
        return
    if wanted in SHOWN_AS and got is DType.INT8:
        return
    raise ValueError(
        f"Cannot set tensor: Got value of type {_name(got)} but expected type {_name(wanted)} "
        f"for input {index}, name: {tensor.name} "
    )


def _name(dtype: DType | None) -> str:
    return "NOTYPE" if dtype is None else dtype.name


def _strings(value: Any) -> NDArray:
    if not isinstance(value, np.ndarray):
        kind = type(value)
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
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
    """A copy of *array* as `get_tensor` returns it: packed types as bytes, scalars as numbers."""
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
    """New memory of a tensor. Raises `LimitExceeded` beyond the size of an array."""
    stored = stored_type(dtype)
    check_bytes(math.prod(shape) * stored.itemsize, f"a tensor of shape {tuple(shape)}")
    if stored.hasobject:
        return np.full(tuple(shape), b"" if dtype is DType.STRING else None, object)
    try:
        return np.zeros(tuple(shape), stored)
    except ValueError as error:
        raise MemoryError(f"no memory for {dtype.value} of shape {tuple(shape)}") from error
