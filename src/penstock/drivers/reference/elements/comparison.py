"""Comparisons, boolean logic, selection, and elementwise functions of two or more operands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from penstock.drivers.reference.elements.arithmetic import check_types, with_pair
from penstock.drivers.reference.kernel import (
    Inputs,
    Kernel,
    Outputs,
    Site,
    direct,
    kernel,
    require,
    tensor_quantization,
)
from penstock.drivers.reference.numerics import fixed_point, one_operand
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray, Operand

COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "EQUAL": np.equal,
    "NOT_EQUAL": np.not_equal,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
}
ORDERED: Final = frozenset(
    {DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT16, DType.INT32, DType.INT64}
)


@kernel(*COMPARISONS)
def compare(site: Site) -> Kernel:
    """Compares real values; quantised values are compared in fixed point.

    TFLite's kernels do not define scales of 1 and more. They are compared like other scales.
    """
    name, dtype = site.operation.type, site.input(0).dtype
    function = COMPARISONS[name]
    site.require_types(dtype is site.input(1).dtype)
    equality = name in {"EQUAL", "NOT_EQUAL"}
    scaled = dtype in one_operand.QUANTIZED_8 or (
        equality and dtype is DType.INT16 and site.input(0).quantization is not None
    )
    if scaled:
        first, second = (_scale(site.input(i), f"input {i}") for i in (0, 1))
        return with_pair(lambda a, b: function(first(a), second(b)))
    if dtype not in ORDERED and not (equality and dtype in {DType.BOOL, DType.STRING}):
        raise site.unsupported_types()
    return with_pair(lambda a, b: function(a, b).astype(bool))


def _scale(operand: Operand, role: str) -> Callable[[NDArray], NDArray]:
    """A function that scales stored values to integers in steps of 2**-8."""
    quantization = tensor_quantization(operand, role)
    multiplier = fixed_point.quantize_multiplier(quantization.scale)

    def scale(stored: NDArray) -> NDArray:
        wide = (stored.astype(np.int64) - quantization.zero_point) << 8
        return fixed_point.rescale(wide, *multiplier)

    if operand.dtype not in one_operand.QUANTIZED_8:
        return scale
    table = one_operand.by_bits(scale(one_operand.stored_values(operand.dtype)), operand.dtype)
    return lambda stored: one_operand.look_up(table, stored)


@kernel("LOGICAL_AND", "LOGICAL_OR")
def logical(site: Site) -> Kernel:
    return with_pair(np.logical_and if site.operation.type == "LOGICAL_AND" else np.logical_or)


@kernel("LOGICAL_NOT")
def logical_not(site: Site) -> Kernel:
    require(site.input(0).dtype is DType.BOOL, "LOGICAL_NOT of another type than bool")
    return _logical_not


def _logical_not(inputs: Inputs) -> Outputs:
    return (np.logical_not(np.asarray(inputs[0])),)


@direct(
    "SELECT",
    "SELECT_V2",
    check=lambda s: s.require_types(s.input(1).dtype is s.input(2).dtype is s.output().dtype),
)
def select(site: Site, inputs: Inputs) -> Outputs:
    """`a` if the condition is true, otherwise `b`.

    SELECT: the values have one shape. The condition has rank 0, or rank 1 and selects rows, or the
    shape of the values. SELECT_V2 broadcasts.
    """
    old = site.operation.type == "SELECT"
    condition, a, b = (np.asarray(x) for x in inputs)
    if old:
        if a.shape != b.shape:
            raise ShapeMismatch(f"SELECT from shapes {a.shape} and {b.shape}")
        if condition.ndim == 1 and a.ndim > 1:
            condition = condition.reshape(-1, *[1] * (a.ndim - 1))
    return (np.where(condition, a, b),)


COMPARED: Final = frozenset(
    {DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT8, DType.UINT8, DType.INT16}
    | {DType.INT32, DType.INT64}
)
FLOATS: Final = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64})
FLOAT_RANGE: Final = (np.finfo(np.float32).min, np.finfo(np.float32).max)
SIGNED: Final = frozenset({DType.INT8, DType.INT16, DType.INT32})


@kernel("MAXIMUM")
def maximum(site: Site) -> Kernel:
    """The larger stored value; the second operand if either is NaN."""
    if check_types(site, COMPARED).is_integer:
        return with_pair(np.maximum)
    return with_pair(partial(_chosen, np.maximum, np.greater))


@kernel("MINIMUM")
def minimum(site: Site) -> Kernel:
    """The smaller stored value; the second operand if either is NaN."""
    if check_types(site, COMPARED).is_integer:
        return with_pair(np.minimum)
    return with_pair(partial(_chosen, np.minimum, np.less))


def _chosen(extreme: np.ufunc, better: np.ufunc, a: NDArray, b: NDArray) -> NDArray:
    result: NDArray = np.asarray(extreme(a, b))
    # Elementwise selection is slow, and needed only if there are NaNs or infinities.
    return result if np.isfinite(result.sum()) else np.where(better(a, b), a, b)


@kernel("SQUARED_DIFFERENCE")
def squared_difference(site: Site) -> Kernel:
    if check_types(site, {DType.FLOAT32, DType.INT32, DType.INT8}) is DType.INT8:
        return _quantized_squared_difference(site)
    return with_pair(lambda a, b: np.square(a - b))


def _quantized_squared_difference(site: Site) -> Kernel:
    """Scales both operands to 2**-7 of twice the larger scale, subtracts, squares and rescales."""
    a, b = (site.quantization(i) for i in (0, 1))
    made = site.output_quantization()
    twice = 2.0 * max(a.scale, b.scale)
    scale_a, scale_b = (fixed_point.quantize_multiplier(q.scale / twice) for q in (a, b))
    real = twice * twice / float(np.float32(2**14) * np.float32(made.scale))
    multiplier = fixed_point.quantize_multiplier(real)

    def compute(x: NDArray, y: NDArray) -> NDArray:
        wide_x = (x.astype(np.int64) - a.zero_point) << 7
        wide_y = (y.astype(np.int64) - b.zero_point) << 7
        difference = fixed_point.rescale(wide_x, *scale_a)
        difference = difference - fixed_point.rescale(wide_y, *scale_b)
        scaled = fixed_point.rescale(difference * difference, *multiplier)
        return np.asarray(np.clip(scaled + made.zero_point, -128, 127).astype(np.int8))

    return with_pair(compute)


@kernel("POW")
def power(site: Site) -> Kernel:
    """`a` to the power of `b`; negative exponents of integers raise."""
    if check_types(site, {DType.FLOAT32, DType.INT32}).is_float:
        return with_pair(np.power)
    return with_pair(_integer_power, whole=True)


def _integer_power(a: NDArray, b: NDArray) -> NDArray:
    """As TFLite: with one broadcast exponent, a wrapping integer product. Otherwise a power of
    doubles, which is -2**31 if int32 cannot represent it.
    """
    if (b < 0).any():
        raise ValueError("POW of integers by a negative exponent")
    if b.size == 1 and a.shape != b.shape:
        return np.asarray(np.power(a, b))
    real = np.power(a.astype(np.float64), b.astype(np.float64))
    held = np.abs(real) < 2.0**31
    return np.where(held, real, -(2.0**31)).astype(np.int32)


@kernel("FLOOR_DIV")
def floor_div(site: Site) -> Kernel:
    """`floor(a / b)`; division by zero raises."""
    dtype = check_types(site, SIGNED | {DType.FLOAT32})

    def compute(a: NDArray, b: NDArray) -> NDArray:
        _check_divisor(b)
        return np.floor(a / b) if dtype.is_float else np.floor_divide(a, b)

    return with_pair(compute)


@kernel("FLOOR_MOD")
def floor_mod(site: Site) -> Kernel:
    """The remainder of `floor(a / b)`, with the sign of `b`; integer division by zero raises."""
    dtype = check_types(site, SIGNED | {DType.INT64, DType.FLOAT32})

    def compute(a: NDArray, b: NDArray) -> NDArray:
        if not dtype.is_float:
            _check_divisor(b)
        return np.mod(a, b)

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
    types = {DType.BOOL, DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT32}
    check_types(site, types | {DType.UINT32})
    return with_pair(np.bitwise_xor)


@kernel("RIGHT_SHIFT")
def right_shift(site: Site) -> Kernel:
    """`a` shifted right by `b` bits; `b` is clamped to 0 and the width minus one."""
    types = {DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT32, DType.UINT32}
    bits = check_types(site, types).bits or 0
    return with_pair(lambda a, b: np.right_shift(a, np.clip(b, 0, bits - 1)))


@direct("ADD_N", check=lambda s: s.require_types(s.output().dtype in {DType.FLOAT32, DType.INT32}))
def add_n(site: Site, inputs: Inputs) -> Outputs:
    """The sum of all inputs, which have one shape; floats stay finite at every step."""
    dtype = site.output().dtype
    first, *others = (np.asarray(x) for x in inputs)
    total: NDArray = first.copy()
    for other in others:
        total += other
        if dtype.is_float:
            np.clip(total, *FLOAT_RANGE, out=total)
    return (total,)
