"""Real functions of one operand, and what TFLite makes of them for quantised values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from penstock.compiler.expression import Value
from penstock.compiler.legalise.activations import precise, require_symmetric
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.elementwise import (
    F32,
    I32,
    I64,
    arguments,
    centred,
    dequantised,
    emit,
    interpolated,
    quantised,
    stored,
)
from penstock.compiler.legalise.quantised import integer_range, rescale, scale_of, table
from penstock.driverkit import fixed_point
from penstock.driverkit.site import require
from penstock.ir import DType

SIGNED: Final = frozenset({DType.INT8, DType.INT16})

REAL: Final = {
    "SQUARE": lambda x: x * x,
    "SIN": lambda x: x.apply("sin"),
    "COS": lambda x: x.apply("cos"),
    "FLOOR": lambda x: x.apply("floor"),
    "CEIL": lambda x: x.apply("ceil"),
    "ROUND": lambda x: x.apply("round_even"),
}
"""Functions of float32 alone."""


@legal(*REAL)
def real_function(operation: Operation) -> None:
    """A function of floats."""
    require(operation.site.input().dtype is F32, "only float32 values are computed here")
    _, (x,) = arguments(operation, 1)
    emit(operation, REAL[operation.site.operation.type](x), 1)


PLAIN_SIGNS: Final = {
    "NEG": frozenset({F32, DType.INT8, DType.INT16, I32, I64}),
    "SIGN": frozenset({F32, DType.FLOAT64, I32}),
}


@legal("NEG", "SIGN")
def sign(operation: Operation) -> None:
    """The negative of stored values, or their sign."""
    site = operation.site
    dtype, kind = site.input().dtype, site.operation.type
    require(dtype in PLAIN_SIGNS[kind] and site.output().dtype is dtype, "types of this function")
    _, (x,) = arguments(operation, 1)
    emit(operation, x.apply(kind.lower()), 1)


@legal("ABS")
def absolute(operation: Operation) -> None:
    """The size of a number; a quantised one is rescaled."""
    site = operation.site
    dtype = site.input().dtype
    require(site.output().dtype is dtype, "types of this function")
    _, (x,) = arguments(operation, 1)
    if dtype is not DType.INT8 and not (dtype is DType.INT16 and site.input().quantization):
        require(dtype in {F32, DType.INT16, I32}, "types of this function")
        emit(operation, x.apply("abs"), 1)
        return
    require_symmetric(operation)
    given, made = (scale_of(o, "an operand") for o in (site.input(), site.output()))
    size = centred(x, operation, 0).apply("abs")
    ratio = float(np.float32(given.scale) / np.float32(made.scale))
    scaled = size if given.scale == made.scale else rescale(size, ratio)
    emit(operation, stored(scaled, operation), 1)


def by_type(
    operation: Operation, function: Callable[[Value], Value], rounded: Callable[[Value], Value]
) -> None:
    """*function* of floats; *rounded*, which rounds once, of the real values of int8 and int16."""
    site = operation.site
    dtype = site.input().dtype
    _, (x,) = arguments(operation, 1)
    if dtype is F32:
        emit(operation, function(x), 1)
        return
    require(dtype in SIGNED and site.output().dtype is dtype, "types of this function")
    if dtype is DType.INT16:
        interpolated(operation, rounded)
        return
    emit(operation, quantised(operation, rounded(dequantised(operation, x))), 1)


@legal("EXP")
def exp(operation: Operation) -> None:
    """The exponential."""
    by_type(operation, lambda x: x.apply("exp"), lambda x: precise("exp", x))


@legal("LOG")
def log(operation: Operation) -> None:
    """The natural logarithm. A quantised logarithm of zero or less is the least value."""
    output = operation.site.output()
    floor = 0.0
    if output.dtype is not F32:
        made = scale_of(output, "a result")
        floor = float(
            np.float32(integer_range(output.dtype)[0] - made.zero_point) * np.float32(made.scale)
        )

    def rounded(x: Value) -> Value:
        return x.scope.select(x <= 0.0, x.scope.constant(floor, F32), precise("log", x))

    by_type(operation, lambda x: x.apply("log"), rounded)


def _refuse_negative(operation: Operation) -> None:
    """A run of a quantised root fails if a value is below the zero point."""
    zero = scale_of(operation.site.input(), "the input").zero_point
    operation.fail_if(0, "the root of a negative value", lambda x: x < zero)


@legal("SQRT")
def sqrt(operation: Operation) -> None:
    """The square root; quantised results are rounded down."""
    site = operation.site
    dtype = site.input().dtype
    _, (x,) = arguments(operation, 1)
    if dtype is F32:
        emit(operation, x.apply("sqrt"), 1)
        return
    require(dtype in SIGNED and site.output().dtype is dtype, "types of this function")
    require_symmetric(operation)
    _refuse_negative(operation)
    made = scale_of(site.output(), "a result")
    real = dequantised(operation, x).apply("maximum", 0.0)
    steps = (real.apply("sqrt") / float(np.float32(made.scale))).apply("floor")
    emit(operation, stored(steps.cast(I32), operation), 1)


@legal("RSQRT")
def rsqrt(operation: Operation) -> None:
    """1 / sqrt(x); quantised, the greatest value for zero."""
    site = operation.site
    dtype = site.input().dtype
    _, (x,) = arguments(operation, 1)
    if dtype is F32:
        emit(operation, x.apply("rsqrt"), 1)
        return
    require(dtype in SIGNED and site.output().dtype is dtype, "types of this function")
    require_symmetric(operation)
    given, made = (scale_of(o, "an operand") for o in (site.input(), site.output()))
    _refuse_negative(operation)
    if dtype is DType.INT16:
        greatest = float(np.float32(2**15 - 1) * np.float32(made.scale))

        def rounded(value: Value) -> Value:
            infinite = value.scope.constant(greatest, F32)
            return value.scope.select(value <= 0.0, infinite, value.apply("rsqrt"))

        interpolated(operation, rounded)
        return
    # The results of all values of int8, in the order of their distance from the least one.
    distances = np.maximum(np.arange(-128, 128) - given.zero_point, 0)
    real = 1.0 / float(np.sqrt(np.float32(given.scale)) * np.float32(made.scale))
    mantissa, shift = fixed_point.quantize_multiplier(real)
    roots, shifts = fixed_point.inverse_square_root(distances)
    fine = fixed_point.rescale(np.ones_like(distances), roots, shifts + 20)
    scaled = fixed_point.rescale(fine, mantissa, shift - 20) + made.zero_point
    results = np.clip(np.where(distances == 0, 2**7 - 1, scaled), -128, 127)
    number = table(operation, results, DType.INT8)
    index = x.cast(I32) + 128
    emit(operation, x.scope.lookup(number, index, DType.INT8), 1)
