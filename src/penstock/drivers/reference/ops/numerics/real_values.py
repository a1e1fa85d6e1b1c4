"""Operands as float32 and back: operations that compute in real values whatever they are stored in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from penstock.drivers.reference.ops.kernel import Unsupported, tensor_quantization
from penstock.drivers.reference.ops.numerics.activation_range import integer_range
from penstock.drivers.reference.ops.numerics.fixed_point import round_half_away_from_zero
from penstock.drivers.reference.ops.numerics.weights import given
from penstock.ir import DType, NDArray, Operand

FLOATING: Final = frozenset({DType.FLOAT32, DType.FLOAT16})
STORED: Final = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.UINT16})

Read: TypeAlias = "Callable[[NDArray | None], NDArray]"
"""The values of an input, as stored, to fresh or shared float32 values that nobody may write."""

Write: TypeAlias = Callable[[NDArray], NDArray]
"""float32 values to those of an output, as stored."""


def reader(operand: Operand, role: str) -> Read:
    """Real values of *operand*, float32; `Unsupported` for types without any."""
    if operand.dtype in FLOATING:
        return lambda value: given(value).astype(np.float32, copy=False)
    _require_stored(operand, role)
    quantization = tensor_quantization(operand, role)
    scale, zero_point = np.float32(quantization.scale), quantization.zero_point

    def read(value: NDArray | None) -> NDArray:
        real: NDArray = (given(value).astype(np.int32) - zero_point).astype(np.float32)
        return np.multiply(real, scale, out=real)

    return read


def writer(operand: Operand, role: str) -> Write:
    """Real values to those *operand* holds, rounded once: halves away from zero, saturating, and
    what is not a number to the zero point.
    """
    dtype = operand.dtype.numpy
    if operand.dtype in FLOATING:
        return lambda real: real.astype(dtype, copy=False)
    _require_stored(operand, role)
    quantization = tensor_quantization(operand, role)
    scale, zero_point = np.float32(quantization.scale), np.float32(quantization.zero_point)
    limits = integer_range(operand.dtype)

    def write(real: NDArray) -> NDArray:
        stored = round_half_away_from_zero(real / scale + zero_point)
        np.copyto(stored, zero_point, where=np.isnan(stored))
        np.clip(stored, *limits, out=stored)
        return stored.astype(dtype)

    return write


def _require_stored(operand: Operand, role: str) -> None:
    if operand.dtype not in STORED:
        raise Unsupported(f"{role} of type {operand.dtype.value}")
