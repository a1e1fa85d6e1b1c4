"""From what a caller hands over to arrays a request can lend: checked, never cast, copied only if need be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from penstock.compilation.receipt import CopyReceipt
from penstock.errors import InputError
from penstock.execution.outputs import find_name
from penstock.ir import DType, NDArray, Operand, Quantization
from penstock.ir.types import dtype_of

_NOT_GIVEN: Final = object()


def arrange(
    given: Mapping[str, Any] | Sequence[Any], names: Sequence[str], kind: str = "input"
) -> list[Any]:
    """The caller's values in the order of the model's inputs (or outputs, for `out=`).

    Raises `InputError` for a wrong count, a name nobody has, or one that two inputs share.
    """
    if isinstance(given, Mapping):
        values: list[Any] = [_NOT_GIVEN] * len(names)
        for name, value in given.items():
            values[find_name(name, names, kind)] = value
        missing = [n for n, v in zip(names, values, strict=True) if v is _NOT_GIVEN]
        if missing:
            raise InputError(f"{kind} {', '.join(map(repr, missing))} is missing")
        return values
    if len(given) != len(names):
        raise InputError(
            f"{len(given)} {kind}s given, {len(names)} needed: {', '.join(map(repr, names)) or 'none'}"
        )
    return list(given)


def as_array(value: Any, operand: Operand, position: int, copies: list[CopyReceipt]) -> NDArray:
    """*value* as a C-contiguous array of the operand's dtype whose shape fits the operand's.

    Takes NumPy arrays and anything with `__dlpack__`, `__array__` or the buffer protocol. Memory that
    is not contiguous is copied, and the copy recorded. Raises `InputError` naming the input, what
    was expected and what was given.
    """
    array = value if type(value) is np.ndarray else _import(value, operand, position)
    if array.dtype != operand.dtype.numpy:
        array = _same_elements(array, operand, position)
    if array.shape != operand.shape and not fits(array.shape, operand.shape):
        raise InputError(
            f"{_label(operand, position)} has shape {_shape(operand)}, an array of shape {array.shape} was given"
        )
    if not array.flags.c_contiguous:
        copies.append(
            CopyReceipt(
                array.nbytes, "caller", "host", f"{_label(operand, position)} is not contiguous"
            )
        )
        array = np.ascontiguousarray(array)
    return array


def fits(given: tuple[int, ...], declared: Sequence[int | None] | None) -> bool:
    """Whether a full shape has the declared rank and known dimensions."""
    if declared is None:
        return True
    return len(given) == len(declared) and all(
        d is None or d == g for d, g in zip(declared, given, strict=True)
    )


def quantize(value: NDArray, quantization: Quantization, dtype: DType) -> NDArray:
    """Real values to stored ones: round half away from zero, clip to the type (TFLite QUANTIZE)."""
    scales, zero_points = _parameters(quantization, value.ndim)
    limits = np.iinfo(dtype.numpy)
    scaled = value.astype(np.float64) / scales
    rounded = np.copysign(np.floor(np.abs(scaled) + 0.5), scaled) + zero_points
    array: NDArray = np.clip(rounded, limits.min, limits.max).astype(dtype.numpy)
    return array


def dequantize(value: NDArray, quantization: Quantization) -> NDArray:
    """Stored values to real ones, float32."""
    scales, zero_points = _parameters(quantization, value.ndim)
    array: NDArray = ((value.astype(np.float64) - zero_points) * scales).astype(np.float32)
    return array


def _parameters(quantization: Quantization, rank: int) -> tuple[NDArray, NDArray]:
    shape = [1] * rank
    if quantization.dimension is not None:
        shape[quantization.dimension] = len(quantization.scales)
    scales = np.array(quantization.scales).reshape(shape if quantization.per_channel else ())
    return scales, np.array(quantization.zero_points).reshape(scales.shape)


def _import(value: Any, operand: Operand, position: int) -> NDArray:
    try:
        if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__"):
            return np.asarray(value)
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        return np.asarray(memoryview(value))
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise InputError(
            f"{_label(operand, position)} needs an array ({operand.dtype.value} of shape {_shape(operand)}), "
            f"not {type(value).__name__}: {error}"
        ) from None


def _same_elements(array: NDArray, operand: Operand, position: int) -> NDArray:
    if operand.dtype is DType.STRING and dtype_of(array.dtype) is DType.STRING:
        return array.astype(object)
    raise InputError(
        f"{_label(operand, position)} is {operand.dtype.value}, an array of {array.dtype} was given; "
        "nothing is cast silently"
    )


def _label(operand: Operand, position: int) -> str:
    return f"input {position} ({operand.name})" if operand.name else f"input {position}"


def _shape(operand: Operand) -> str:
    return (
        "unknown"
        if operand.shape is None
        else str(tuple("?" if d is None else d for d in operand.shape)).replace("'", "")
    )
