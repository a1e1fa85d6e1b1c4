"""Comparisons, boolean logic, selection, and elementwise functions of two or more operands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from penstock.driverkit import fixed_point
from penstock.drivers.reference.elements.arithmetic import check_types, scaled, with_pair
from penstock.drivers.reference.kernel import (
    Inputs,
    Kernel,
    Outputs,
    Site,
    direct,
    kernel,
    types,
)
from penstock.drivers.reference.numerics import one_operand
from penstock.drivers.reference.numerics.requantize import saturated
from penstock.errors import ShapeMismatch
from penstock.ir import DType, NDArray

COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "EQUAL": np.equal,
    "NOT_EQUAL": np.not_equal,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
}
ORDERED: Final = types("float32 float16 bfloat16 int16 int32 int64")


@kernel(*COMPARISONS)
def compare(site: Site) -> Kernel:
    """Compares real values; quantised values are compared in fixed point.

    TFLite's kernels do not define scales of 1 and more. They are compared like other scales.
    """
    name, dtype = site.operation.type, site.input(0).dtype
    function = COMPARISONS[name]
    site.require_types(dtype is site.input(1).dtype)
    equality = name in {"EQUAL", "NOT_EQUAL"}
    wide = equality and dtype is DType.INT16 and site.input(0).quantization is not None
    if wide or dtype in one_operand.QUANTIZED_8:
        # In steps of 2**-8.
        pair = [(site.quantization(i), site.input(i).dtype) for i in (0, 1)]
        first, second = (scaled(kind, q.zero_point, 8, q.scale) for q, kind in pair)
        return with_pair(lambda a, b: function(first(a), second(b)))
    site.require_types(dtype in ORDERED or (equality and dtype in types("bool string")))
    return with_pair(lambda a, b: function(a, b).astype(bool))


@kernel("LOGICAL_AND", "LOGICAL_OR")
def logical(site: Site) -> Kernel:
    return with_pair(np.logical_and if site.operation.type == "LOGICAL_AND" else np.logical_or)


@direct("LOGICAL_NOT", accepts=lambda s: s.input(0).dtype is DType.BOOL)
def logical_not(_: Site, inputs: Inputs) -> Outputs:
    return (np.logical_not(np.asarray(inputs[0])),)


@direct(
    "SELECT",
    "SELECT_V2",
    accepts=lambda s: s.input(1).dtype is s.input(2).dtype is s.output().dtype,
)
def select(site: Site, inputs: Inputs) -> Outputs:
    """`a` if the condition is true, otherwise `b`.

    SELECT: the values have one shape. The condition has rank 0, or rank 1 and selects rows, or the
    shape of the values. SELECT_V2 broadcasts.
    """
    condition, a, b = (np.asarray(x) for x in inputs)
    if site.operation.type == "SELECT":
        if a.shape != b.shape:
            raise ShapeMismatch(f"SELECT from shapes {a.shape} and {b.shape}")
        if condition.ndim == 1 and a.ndim > 1:
            condition = condition.reshape(-1, *[1] * (a.ndim - 1))
    return (np.where(condition, a, b),)


COMPARED: Final = ORDERED | types("int8 uint8")
FLOAT_RANGE: Final = (np.finfo(np.float32).min, np.finfo(np.float32).max)


@kernel("MAXIMUM", "MINIMUM")
def extreme(site: Site) -> Kernel:
    """The larger or smaller stored value; the second operand if either is NaN."""
    largest = site.operation.type == "MAXIMUM"
    function, better = (np.maximum, np.greater) if largest else (np.minimum, np.less)
    if check_types(site, COMPARED).is_integer:
        return with_pair(function)
    return with_pair(partial(_chosen, function, better))


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
    first, second = (scaled(DType.INT8, q.zero_point, 7, q.scale / twice) for q in (a, b))
    real = twice * twice / float(np.float32(2**14) * np.float32(made.scale))
    multiplier = fixed_point.quantize_multiplier(real)

    def compute(x: NDArray, y: NDArray) -> NDArray:
        rescaled = fixed_point.rescale(np.square(first(x) - second(y)), *multiplier)
        return saturated(rescaled + made.zero_point, DType.INT8)

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


@kernel("FLOOR_DIV", "FLOOR_MOD")
def floor_div(site: Site) -> Kernel:
    """`floor(a / b)`, or its remainder. Division by zero raises, except `mod` of floats."""
    remainder = site.operation.type == "FLOOR_MOD"
    dtype = check_types(site, types("int8 int16 int32 float32" + " int64" * remainder))
    divide = np.mod if remainder else np.floor_divide

    def compute(a: NDArray, b: NDArray) -> NDArray:
        if not ((remainder and dtype.is_float) or b.all()):
            raise ZeroDivisionError("division by zero")
        return np.floor(a / b) if dtype.is_float and not remainder else divide(a, b)

    return with_pair(compute)


@kernel("ATAN2")
def atan2(site: Site) -> Kernel:
    """The angle of the point (b, a) in radians."""
    check_types(site, types("float32 float16 bfloat16 float64"))
    return with_pair(np.arctan2)


@kernel("BITWISE_XOR")
def bitwise_xor(site: Site) -> Kernel:
    check_types(site, types("bool int8 uint8 int16 uint16 int32 uint32"))
    return with_pair(np.bitwise_xor)


@kernel("RIGHT_SHIFT")
def right_shift(site: Site) -> Kernel:
    """`a` shifted right by `b` bits; `b` is clamped to 0 and the width minus one."""
    bits = check_types(site, types("int8 uint8 int16 uint16 int32 uint32")).bits or 0
    return with_pair(lambda a, b: np.right_shift(a, np.clip(b, 0, bits - 1)))


@direct("ADD_N", accepts=lambda s: s.output().dtype in {DType.FLOAT32, DType.INT32})
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
