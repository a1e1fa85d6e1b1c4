"""Elementwise functions of two or more operands beyond the four basic ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np

from penstock.drivers.reference.ops.elements.pairs import check_types, with_pair
from penstock.drivers.reference.ops.kernel import (
    Kernel,
    Site,
    kernel,
    require,
    tensor_quantization,
)
from penstock.drivers.reference.ops.numerics.fixed_point import (
    multiply_by_quantized_multiplier,
    quantize_multiplier,
)
from penstock.ir import DType, NDArray

COMPARED: Final = frozenset(
    {DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT8, DType.UINT8, DType.INT16}
    | {DType.INT32, DType.INT64}
)
FLOATS: Final = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64})
FLOAT_RANGE: Final = (np.finfo(np.float32).min, np.finfo(np.float32).max)
SIGNED: Final = frozenset({DType.INT8, DType.INT16, DType.INT32})


@kernel("MAXIMUM")
def maximum(site: Site) -> Kernel:
    """The larger stored value; the second where either is not a number."""
    if check_types(site, COMPARED).is_integer:
        return with_pair(np.maximum)
    return with_pair(partial(_chosen, np.maximum, np.greater))


@kernel("MINIMUM")
def minimum(site: Site) -> Kernel:
    """The smaller stored value; the second where either is not a number."""
    if check_types(site, COMPARED).is_integer:
        return with_pair(np.minimum)
    return with_pair(partial(_chosen, np.minimum, np.less))


def _chosen(extreme: np.ufunc, better: np.ufunc, a: NDArray, b: NDArray) -> NDArray:
    result: NDArray = np.asarray(extreme(a, b))
    # Choosing element by element is slow, and needed where there are numbers that are none.
    return result if np.isfinite(result.sum()) else np.where(better(a, b), a, b)


@kernel("SQUARED_DIFFERENCE")
def squared_difference(site: Site) -> Kernel:
    """`(a - b) * (a - b)`."""
    if check_types(site, {DType.FLOAT32, DType.INT32, DType.INT8}) is DType.INT8:
        return _quantized_squared_difference(site)
    return with_pair(lambda a, b: np.square(a - b))


def _quantized_squared_difference(site: Site) -> Kernel:
    """Both operands at 2**-7 of twice the larger scale, subtracted, squared and rescaled."""
    a, b = (tensor_quantization(site.input(i), f"input {i}") for i in (0, 1))
    made = tensor_quantization(site.output(), "the output")
    twice = 2.0 * max(a.scale, b.scale)
    scale_a, scale_b = (quantize_multiplier(q.scale / twice) for q in (a, b))
    real = twice * twice / float(np.float32(2**14) * np.float32(made.scale))
    multiplier = quantize_multiplier(real)

    def compute(x: NDArray, y: NDArray) -> NDArray:
        wide_x = (x.astype(np.int64) - a.zero_point) << 7
        wide_y = (y.astype(np.int64) - b.zero_point) << 7
        difference = multiply_by_quantized_multiplier(wide_x, *scale_a)
        difference = difference - multiply_by_quantized_multiplier(wide_y, *scale_b)
        scaled = multiply_by_quantized_multiplier(difference * difference, *multiplier)
        result: NDArray = np.clip(scaled + made.zero_point, -128, 127).astype(np.int8)
        return result

    return with_pair(compute)


@kernel("POW")
def power(site: Site) -> Kernel:
    """`a` to the power of `b`; integers have no negative exponents."""
    if check_types(site, {DType.FLOAT32, DType.INT32}).is_float:
        return with_pair(np.power)
    return with_pair(_integer_power, whole=True)


def _integer_power(a: NDArray, b: NDArray) -> NDArray:
    """TFLite multiplies integers, which wrap, where one exponent is broadcast; else it takes the
    power of doubles, of which -2**31 is left where no int32 holds it.
    """
    if (b < 0).any():
        raise ValueError("POW of integers by a negative exponent")
    if b.size == 1 and a.shape != b.shape:
        return np.asarray(np.power(a, b))
    real = np.power(a.astype(np.float64), b.astype(np.float64))
    held = np.abs(real) < 2.0**31
    result: NDArray = np.where(held, real, -(2.0**31)).astype(np.int32)
    return result


@kernel("FLOOR_DIV")
def floor_div(site: Site) -> Kernel:
    """`floor(a / b)`; nothing is divided by zero."""
    dtype = check_types(site, SIGNED | {DType.FLOAT32})

    def compute(a: NDArray, b: NDArray) -> NDArray:
        _check_divisor(b)
        quotient: NDArray = np.floor(a / b) if dtype.is_float else np.floor_divide(a, b)
        return quotient

    return with_pair(compute)


@kernel("FLOOR_MOD")
def floor_mod(site: Site) -> Kernel:
    """The remainder of `floor(a / b)`, which has the sign of `b`; integers are not divided by zero."""
    dtype = check_types(site, SIGNED | {DType.INT64, DType.FLOAT32})

    def compute(a: NDArray, b: NDArray) -> NDArray:
        if not dtype.is_float:
            _check_divisor(b)
        remainder: NDArray = np.mod(a, b)
        return remainder

    return with_pair(compute)


def _check_divisor(b: NDArray) -> None:
    if not b.all():
        raise ZeroDivisionError("division by zero")


@kernel("ATAN2")
def atan2(site: Site) -> Kernel:
    """The angle of the point (b, a) in radians."""
    check_types(site, FLOATS)
    return with_pair(np.arctan2)


@kernel("BITWISE_XOR")
def bitwise_xor(site: Site) -> Kernel:
    """`a` xor `b`, bit by bit."""
    types = {DType.BOOL, DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT32}
    check_types(site, types | {DType.UINT32})
    return with_pair(np.bitwise_xor)


@kernel("RIGHT_SHIFT")
def right_shift(site: Site) -> Kernel:
    """`a` shifted right by `b` bits, of which 0 to all but one count."""
    types = {DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT32, DType.UINT32}
    bits = check_types(site, types).bits or 0
    return with_pair(lambda a, b: np.right_shift(a, np.clip(b, 0, bits - 1)))


@kernel("ADD_N")
def add_n(site: Site) -> Kernel:
    """The sum of all inputs, which have one shape; floats stay finite at every step."""
    dtype = site.output().dtype
    require(dtype in {DType.FLOAT32, DType.INT32}, f"ADD_N of {dtype.value}")

    def run(inputs: Sequence[NDArray | None]) -> Sequence[NDArray]:
        first, *others = (np.asarray(x) for x in inputs)
        total: NDArray = first.copy()
        for other in others:
            total += other
            if dtype.is_float:
                np.clip(total, *FLOAT_RANGE, out=total)
        return (total,)

    return run
