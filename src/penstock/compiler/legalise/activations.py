"""Activations: clamps, leaky clamps, and sigmoids."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from penstock.compiler.expression import Value
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.elementwise import (
    F32,
    I32,
    arguments,
    centred,
    emit,
    interpolated,
    stored,
    unary,
)
from penstock.compiler.legalise.quantised import (
    NARROW,
    STORED,
    bounds_of,
    integer_range,
    rescale,
    scale_of,
    table,
)
from penstock.driverkit.fixed_point import power_of_two, quantize_multiplier, round_half_away
from penstock.driverkit.site import require
from penstock.ir import DType, NDArray

F16, F64 = DType.FLOAT16, DType.FLOAT64


def precise(name: str, x: Value) -> Value:
    """A function of a float32 value as C's mathematical library rounds it: once."""
    return x.cast(F64).apply(name).cast(F32)


def one(x: Value) -> Value:
    return x.scope.constant(1.0, x.dtype)


def require_symmetric(operation: Operation) -> None:
    """Refuses int16 operands with a zero point."""
    site = operation.site
    if site.input().dtype is DType.INT16:
        points = [scale_of(o, "int16").zero_point for o in (site.input(), site.output())]
        require(not any(points), "int16 with a zero point other than 0")


@legal("LOGISTIC")
def logistic(operation: Operation) -> None:
    """1 / (1 + exp(-x)); below -9 TFLite's kernel for floats computes exp(x). Quantised results
    are in 1/256, those of int16 in 1/32768.
    """
    site = operation.site
    if site.input().dtype is DType.INT16:
        _fixed_sigmoid(operation, 0)
        return
    if site.input().dtype in NARROW:
        require(scale_of(site.output(), "a result").scale == 2.0**-8, "a result not in 1/256")
        unary(operation, lambda x: one(x) / (one(x) + precise("exp", -x)))
        return
    unary(operation, lambda x: x.scope.select(x < -9.0, x.apply("exp"), x.apply("logistic")))


@legal("TANH")
def tanh(operation: Operation) -> None:
    """The hyperbolic tangent. Results of int16 are in 1/32768."""
    dtype = operation.site.input().dtype
    if dtype is DType.INT16:
        _fixed_sigmoid(operation, 1)
        return
    unary(operation, lambda x: precise("tanh", x) if dtype in NARROW else x.apply("tanh"))


@cache
def _logistic_points() -> NDArray:
    """logistic(i / 24) in Q0.16 for i = 0 .. 255, each corrected by half the error of linear
    interpolation in the middle; the last one is the greatest value.
    """
    exact = 65536.0 / (1.0 + np.exp(np.arange(0.0, 256.5, 0.5) / -24.0))
    starts, middles, ends = exact[:-1:2], exact[1::2], exact[2::2]
    points = np.rint(starts - ((starts + ends) / 2 - middles) / 2)
    points[-1] = 65535.0
    return points.astype(np.int64)


def _fixed_multiplier(scale: float, most_shift: int) -> tuple[int, int]:
    """(multiplier, right shift) that scale int16 values to 3 * 4096 steps a unit."""
    power = power_of_two(scale)
    if power is not None and 0 <= 12 + power <= most_shift:
        return 3 << (12 + power), 0
    multiplier, right = scale * 4096.0 * 3.0, 0
    while multiplier <= 32767.0 / 2.0 and right <= 30:
        multiplier, right = multiplier * 2.0, right + 1
    return int(multiplier), right


def _fixed_sigmoid(operation: Operation, most_shift: int) -> None:
    """LOGISTIC (*most_shift* 0) and TANH (1) of int16, from a table of 256 points."""
    site = operation.site
    require(site.output().dtype is DType.INT16, "types of this function")
    require_symmetric(operation)
    made = scale_of(site.output(), "a result")
    require(made.scale == 2.0**-15, "a result of int16 that is not in 1/32768")
    multiplier, right = _fixed_multiplier(scale_of(site.input(), "the input").scale, most_shift)
    is_tanh = most_shift == 1
    bits = 8 if is_tanh else 9
    scope, (value,) = arguments(operation, 1)
    points = table(operation, _logistic_points(), I32)
    # Beyond 32 bits only values that are far outside the table.
    wide = value.cast(DType.INT64) * multiplier
    wide = (wide + (1 << right >> 1)).apply("shift_right", right).clamp(-(1 << 30), 1 << 30)
    x = wide.cast(I32)
    size = x.apply("abs")
    index = size.apply("shift_right", bits).apply("minimum", 254)
    low, high = scope.lookup(points, index, I32), scope.lookup(points, index + 1, I32)
    inside = low.apply("shift_left", bits) + size.apply("and", (1 << bits) - 1) * (high - low)
    far = scope.constant(254, I32) < size.apply("shift_right", bits)
    greatest = scope.constant(0xFFFF << 8 if is_tanh else 0x7FFF << 10, I32)
    reached = scope.select(far, greatest, inside)
    if is_tanh:
        above, below = reached - (1 << 23) + (1 << 7), -reached + ((1 << 23) + (1 << 7) - 1)
    else:
        above, below = reached + (1 << 9), -reached + ((1 << 25) + (1 << 9) - 1)
    result = scope.select(x < 0, below, above).apply("shift_right", 8 if is_tanh else 10)
    emit(operation, result.clamp(*integer_range(DType.INT16)).cast(DType.INT16), 1)


@legal("ELU")
def elu(operation: Operation) -> None:
    """X if it is not negative, otherwise exp(x) - 1."""
    require(operation.site.input().dtype is not DType.UINT8, "ELU of uint8")
    unary(operation, lambda x: x.scope.select(x < 0.0, precise("expm1", x.clamp(None, 0.0)), x))


@legal("GELU")
def gelu(operation: Operation) -> None:
    """X times the normal distribution function of x, or its approximation by tanh."""
    site = operation.site
    function = _gelu_by_tanh if site.attributes.flag("approximate") else _gelu
    if site.input().dtype is site.output().dtype is DType.INT16:
        interpolated(operation, lambda x: function(x, _same))
        return
    if site.input().dtype is site.output().dtype is F16:
        _, (x,) = arguments(operation, 1)
        emit(operation, function(x.cast(F32), _to_half).cast(F16), 1)
        return
    unary(operation, lambda x: function(x, _same))


def _same(x: Value) -> Value:
    return x


def _to_half(x: Value) -> Value:
    """X rounded to float16."""
    return x.cast(F16).cast(F32)


Round = Callable[[Value], Value]
"""How the steps of a function are rounded: to float32, or to float16."""


def _gelu(x: Value, rounded: Round) -> Value:
    root = rounded(x.scope.constant(-math.sqrt(0.5), F32))
    error = rounded(x * root).cast(F64).apply("erf")
    rest = rounded((x.scope.constant(1.0, F64) - error).cast(F32))
    return rounded(rounded(x * 0.5) * rest)


def _gelu_by_tanh(x: Value, rounded: Round) -> Value:
    scope = x.scope
    factors = [
        rounded(scope.constant(c, F32)) for c in (math.sqrt(2 / math.pi), 0.044715, 0.5, 1.0)
    ]
    cube = rounded(rounded(x * x) * x)
    inner = rounded(factors[0] * rounded(x + rounded(factors[1] * cube)))
    bent = rounded(precise("tanh", inner))
    return rounded(rounded(factors[2] * x) * rounded(factors[3] + bent))


@legal("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1")
def relu(operation: Operation) -> None:
    """X clamped; a quantised input is rescaled to the output's scale first."""
    site = operation.site
    kind = site.operation.type
    low, high = (0.0, 1.0) if kind == "RELU_0_TO_1" else bounds_of(kind)
    _, (x,) = arguments(operation, 1)
    if x.dtype is F32:
        emit(operation, x.clamp(low, high), 1)
        return
    require(x.dtype in STORED and site.output().dtype is x.dtype, "types of this function")
    require_symmetric(operation)
    given, made = scale_of(site.input(), "the input"), scale_of(site.output(), "a result")
    ratio = float(np.float32(given.scale) / np.float32(made.scale))
    least, greatest = integer_range(x.dtype)
    if low is not None:
        least = max(least, made.zero_point + _steps(low, made.scale))
    if high is not None:
        greatest = min(greatest, made.zero_point + _steps(high, made.scale))
    scaled = rescale(centred(x, operation, 0), ratio) + made.zero_point
    # The least bound first, as TFLite's kernel: an empty range gives the greatest value.
    bounded = scaled.apply("maximum", least).apply("minimum", greatest)
    emit(operation, bounded.clamp(*integer_range(x.dtype)).cast(x.dtype), 1)


def _steps(real: float, scale: float) -> int:
    return int(round_half_away(float(np.float32(real) / np.float32(scale))))


@legal("LEAKY_RELU")
def leaky_relu(operation: Operation) -> None:
    """X if it is not negative, otherwise alpha * x."""
    site = operation.site
    alpha = np.float32(site.attributes.number("alpha"))
    scope, (x,) = arguments(operation, 1)
    if x.dtype is F32:
        below = x * float(alpha)
        # The larger one of the two, NaN if x is.
        result = below.apply("maximum", x) if 0 < alpha <= 1 else scope.select(x < 0.0, below, x)
        emit(operation, result, 1)
        return
    require(x.dtype in STORED and site.output().dtype is x.dtype, "types of this function")
    require_symmetric(operation)
    scale, made = (
        np.float32(scale_of(o, "an operand").scale) for o in (site.input(), site.output())
    )
    slope = float(scale * alpha / made)
    value = centred(x, operation, 0)
    below = rescale(value, abs(slope))
    below = -below if slope < 0 else below
    result = scope.select(value < 0, below, rescale(value, float(scale / made)))
    emit(operation, stored(result, operation), 1)


@legal("PRELU")
def prelu(operation: Operation) -> None:
    """X if it is not negative, otherwise alpha * x; alpha broadcasts."""
    site = operation.site
    scope, (x, alpha) = arguments(operation, 2)
    if x.dtype is alpha.dtype is F32:
        emit(operation, scope.select(x < 0.0, x * alpha, x), 2)
        return
    expected = DType.INT8 if x.dtype is DType.INT16 else x.dtype
    require(x.dtype in STORED and alpha.dtype is expected, "types of this function")
    require_symmetric(operation)
    scale, slopes, made = (
        np.float32(scale_of(o, "an operand").scale)
        for o in (site.input(), site.input(1), site.output())
    )
    value = centred(x, operation, 0)
    below = rescale(value * centred(alpha, operation, 1), float(scale * slopes / made))
    result = scope.select(value < 0, below, rescale(value, float(scale / made)))
    emit(operation, stored(result, operation), 2)


@legal("HARD_SWISH")
def hard_swish(operation: Operation) -> None:
    """X * clamp(x + 3, 0, 6) / 6."""
    site = operation.site
    _, (x,) = arguments(operation, 1)
    if x.dtype is F32:
        emit(operation, x * (x + 3.0).clamp(0.0, 6.0) / 6.0, 1)
        return
    require(x.dtype in NARROW and site.output().dtype is x.dtype, "types of this function")
    emit(operation, _fixed_hard_swish(operation, x), 1)


def _fixed_hard_swish(operation: Operation, stored_value: Value) -> Value:
    """In 16 bits, as TFLite's kernel: the gate in 3/32768, the product rounded twice."""
    given, made = (
        scale_of(o, "an operand") for o in (operation.site.input(), operation.site.output())
    )
    fine = np.float32(1 / 128) * np.float32(given.scale)
    mantissa, exponent = quantize_multiplier(fine / np.float32(made.scale))
    require(exponent <= 0, "a scale that is under 1/128 of the input's")
    gate_mantissa, gate_exponent = quantize_multiplier(float(fine / np.float32(3 / 32768)))
    x = centred(stored_value, operation, 0) * 128
    gate = x
    if gate_exponent > 0:
        gate = _clip16(gate.cast(DType.INT64).apply("shift_left", min(gate_exponent - 1, 31)))
    gate = _multiplied16(gate.cast(I32), _to16(gate_mantissa))
    if gate_exponent > 0:
        gate = _clip16(gate + gate)
    elif gate_exponent < 0:
        gate = _divided16(gate, -gate_exponent)
    gate = (gate + (1 << 15)).apply("shift_right", 1)
    product = gate * _multiplied16(x, _to16(mantissa))
    # Toward zero.
    size = product.apply("abs").apply("shift_right", 15)
    whole = _divided16(product.scope.select(product < 0, -size, size), -exponent)
    return stored(whole, operation)


def _to16(mantissa: int) -> int:
    return 2**15 - 1 if mantissa >= 2**31 - 1 - 2**15 else (mantissa + 2**15) >> 16


def _clip16(x: Value) -> Value:
    return x.clamp(-(2**15), 2**15 - 1)


def _multiplied16(a: Value, b: int) -> Value:
    """A * b / 2**15 to the nearest, halves up, of int16 values."""
    return (a * b + (1 << 14)).apply("shift_right", 15).apply("minimum", 2**15 - 1)


def _divided16(x: Value, exponent: int) -> Value:
    """X / 2**exponent to the nearest, in 16 bits: beyond 15 places the result is 1 or -1."""
    if exponent > 15:
        ones = x.scope.constant(1, I32), x.scope.constant(-1, I32)
        return x.scope.select(x < 0, ones[1], ones[0])
    return x.apply("divide_by_power", exponent) if exponent else x
