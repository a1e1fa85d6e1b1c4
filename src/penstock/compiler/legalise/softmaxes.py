"""SOFTMAX and LOG_SOFTMAX along the last axis."""

from __future__ import annotations

import math
from functools import cache
from typing import Final

import numpy as np
from msgspec import Struct

from penstock.compiler.expression import Scope, Value, identity
from penstock.compiler.legalise import fixed
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.elementwise import F32, I32, I64
from penstock.compiler.legalise.quantised import NARROW, integer_range, scale_of
from penstock.compiler.legalise.rows import Rows, distance
from penstock.compiler.legalise.softmax_wide import softmax_to_16
from penstock.driverkit import fixed_point
from penstock.driverkit.site import require
from penstock.driverkit.tables_16 import interpolation_table
from penstock.ir import DType, NDArray, Quantization

DISTANCES: Final = np.arange(256)
"""The differences between 8-bit values and the greatest value of their row."""

WIDE: Final = Quantization((2.0**-16,), (-(2**15),))
"""The scale and zero point of int16 results of 8-bit values in fixed-point arithmetic."""


@legal("SOFTMAX")
def softmax(operation: Operation) -> None:
    """exp(beta * (x - greatest)) over its sum. Quantised results are in 1/256, those of int16 in
    1/32768; those of int16 of 8-bit values may have any scale.
    """
    site = operation.site
    given, made = site.input().dtype, site.output().dtype
    beta = float(site.attributes.number("beta"))
    if given is made is F32:
        _float_softmax(operation, float(np.float32(beta)))
    elif given is made is DType.INT16:
        _softmax_16(operation, beta)
    else:
        require(given in NARROW and made in {given, DType.INT16}, "types of this softmax")
        _softmax_8(operation, beta)


@legal("LOG_SOFTMAX")
def log_softmax(operation: Operation) -> None:
    """The logarithm of softmax; quantised in 1/16 from the greatest value down."""
    site = operation.site
    dtype = site.input().dtype
    require(dtype is site.output().dtype, "a result of another type")
    if dtype is not F32:
        require(dtype in NARROW, "types of this softmax")
        _log_softmax_8(operation)
        return
    rows = Rows(operation)
    greatest, whole = rows.greatest(), rows.every(rows.source)
    scope = Scope(F32, F32)
    power = scope.finish((scope.argument(0) - scope.argument(1)).apply("exp"))
    sums = rows.reduced("sums", [whole, rows.one(greatest)], power, "sum", F32)
    logs = rows.of_row("logarithms", sums, lambda x: x.apply("log"))
    scope = Scope(F32, F32, F32)
    result = scope.finish(scope.argument(0) - scope.argument(1) - scope.argument(2))
    reads = [whole, rows.one(greatest), rows.one(logs)]
    rows.made("log_softmax", reads, result, operation.target())


def _float_softmax(operation: Operation, beta: float) -> None:
    rows = Rows(operation)
    greatest = rows.greatest()
    powers = rows.build.tensor(F32, rows.shape)
    scope = Scope(F32, F32)
    power = ((scope.argument(0) - scope.argument(1)) * beta).apply("exp")
    reads = [rows.every(rows.source), rows.one(greatest)]
    rows.made("powers", reads, scope.finish(power), powers)
    sums = rows.reduced("sums", [rows.every(powers)], identity(F32), "sum", F32)
    scope = Scope(F32, F32)
    share = scope.finish(scope.argument(0) / scope.argument(1))
    rows.made("shares", [rows.every(powers), rows.one(sums)], share, operation.target())


class Scaling(Struct, frozen=True):
    """Converts the differences between 8-bit values and their row's greatest value to Q5 numbers.

    *radius* is the greatest difference whose exponential is not 0. *scaled* are the negative Q5
    numbers of `DISTANCES`, 0 beyond the radius, and *powers* their exponentials in Q0.
    """

    mantissa: int
    shift: int
    radius: int
    scaled: NDArray
    powers: NDArray


def _scaling(scale: float, beta: float) -> Scaling:
    real = min(beta * scale * 2.0**26, 2.0**31 - 1)
    require(real > 1.0, "a softmax whose input scale times beta is not over 2**-26")
    mantissa, shift = fixed_point.quantize_multiplier(real)
    radius = math.floor(31 * 2.0**26 / 2.0**shift)
    counted = np.where(radius >= DISTANCES, -DISTANCES, 0)
    scaled = fixed_point.rescale(counted, mantissa, shift)
    powers = np.where(radius >= DISTANCES, fixed_point.exp_on_negative_values(scaled), 0)
    return Scaling(mantissa, shift, radius, scaled, powers)


def _summed(rows: Rows, scaling: Scaling, greatest: int) -> int:
    """The sum of the exponentials of each row, in Q12."""
    summands = fixed_point.rounding_divide_by_pot(scaling.powers, 12)
    table = rows.build.constant(I32, summands.shape, lambda: summands)
    scope = Scope(rows.dtype, rows.dtype)
    body = scope.finish(scope.lookup(table, distance(scope), I32))
    reads = [rows.every(rows.source), rows.one(greatest)]
    return rows.reduced("sums", reads, body, "sum", I32)


def _softmax_8(operation: Operation, beta: float) -> None:
    """By tables of the exponentials of all distances from the row's greatest value, in Q0."""
    site = operation.site
    made = site.output().dtype
    if made is DType.INT8 is site.input().dtype:
        target = scale_of(site.output(), "a result")
        require(target.zero_point == -128, "shares that are not in the scale TFLite has for them")
        require(abs(target.scale * 256 - 1) <= 1e-3, "shares that are not in 1/256")
    rows = Rows(operation)
    if made is DType.INT16 and site.output().quantization != WIDE:
        softmax_to_16(rows, beta)
        return
    scaling = _scaling(scale_of(site.input(), "the input").scale, beta)
    greatest = rows.greatest()
    sums = _summed(rows, scaling, greatest)
    inverses = rows.of_row("inverse", sums, lambda x: fixed.reciprocal(x).cast(I32))
    table = rows.build.constant(I32, scaling.powers.shape, lambda: scaling.powers)
    scope = Scope(rows.dtype, rows.dtype, I32, I32)
    zeros = fixed.leading_zeros(scope.argument(2))
    # No byte is above the greatest; drivers that compute results for all bytes may ask for one.
    place = distance(scope).apply("maximum", 0)
    product = scope.lookup(table, place, I32).apply("high_product", scope.argument(3))
    low, high = integer_range(made)
    shift = scope.constant(12 + 31 - (made.bits or 8), I32) - zeros
    share = product.apply("divide_by_power", shift) + low
    result = scope.finish(share.clamp(low, high).cast(made))
    reads = [rows.every(rows.source), *(rows.one(t) for t in (greatest, sums, inverses))]
    rows.made("shares", reads, result, operation.target())


@cache
def _tables_16() -> tuple[NDArray, NDArray]:
    """Exponentials over -10..0 and 1 / (1 + x) over 0..1, as int16 tables of values in Q0.15."""
    whole, (low, high) = 65535, integer_range(DType.INT16)
    powers = interpolation_table((10.0 / whole, high), (2.0 / whole, 0), np.exp, np.float64)
    inverses = interpolation_table(
        (1.0 / whole, low), (2.0 / whole, 0), lambda x: 1.0 / (1.0 + x), np.float64
    )
    return powers, inverses


MOST_TERMS: Final = 1 << 15


def _softmax_16(operation: Operation, beta: float) -> None:
    site = operation.site
    given, made = (scale_of(o, "int16") for o in (site.input(), site.output()))
    require(given.zero_point == made.zero_point == 0, "int16 with a zero point other than 0")
    require(abs(made.scale * 2**15 - 1) <= 1e-3, "shares of int16 that are not in 1/32768")
    real = float(np.float64(np.float32(given.scale) * np.float32(beta)) / (10.0 / 65535.0))
    multiplier = fixed_point.quantize_multiplier(real)
    rows = Rows(operation)
    require(rows.shape[-1] <= MOST_TERMS, "a softmax of rows of this length")
    low, high = integer_range(DType.INT16)
    powers, inverses = (
        rows.build.constant(I32, t.shape, lambda t=t: t)  # type: ignore[misc]
        for t in _tables_16()
    )
    greatest = rows.greatest()
    scope = Scope(DType.INT16, DType.INT16)
    difference = -distance(scope)
    factors = [scope.constant(v, I32) for v in multiplier]
    scaled = scope.add("rescale", difference, *factors, dtype=I32)
    place = (scaled.apply("maximum", 2 * low) + high).clamp(low, high)
    terms = rows.build.tensor(I32, rows.shape)
    reads = [rows.every(rows.source), rows.one(greatest)]
    rows.made("powers", reads, scope.finish(interpolate(powers, place)), terms)
    sums = rows.reduced("sums", [rows.every(terms)], identity(I32), "sum", I32)

    def inverse(total: Value) -> Value:
        wide = total.cast(I64)
        normal = wide.apply("shift_left", fixed.leading_zeros(wide) - 1) + (1 << 13)
        index = normal.apply("shift_right", 14) - ((1 << 15) + (1 << 16))
        return interpolate(inverses, index.clamp(low, high).cast(I32))

    found = rows.of_row("inverse", sums, inverse)
    scope = Scope(I32, I32, I32)
    shift = (-fixed.leading_zeros(scope.argument(1)) + 31).cast(I64)
    half = scope.constant(1, I64).apply("shift_left", shift - 1)
    product = scope.argument(0).cast(I64) * scope.argument(2).cast(I64) + half
    share = product.apply("shift_right", shift).clamp(0, high).cast(DType.INT16)
    reads = [rows.every(terms), rows.one(sums), rows.one(found)]
    rows.made("shares", reads, scope.finish(share), operation.target())


def interpolate(table: int, stored: Value) -> Value:
    """The value of an interpolation table at an int32 of 16 bits: 9 bits select the step, 7 the
    position within it. Slopes and results wrap at 16 bits.
    """
    scope = stored.scope
    index = stored.apply("shift_right", 7) + 256
    low, high = scope.lookup(table, index, I32), scope.lookup(table, index + 1, I32)
    slope = (high - low).cast(DType.INT16).cast(I32)
    moved = (slope * stored.apply("and", 0x7F) + 64).apply("shift_right", 7)
    return (low + moved).cast(DType.INT16).cast(I32)


def _log_softmax_8(operation: Operation) -> None:
    site = operation.site
    dtype = site.input().dtype
    given, made = (scale_of(o, "an operand") for o in (site.input(), site.output()))
    least, greatest_value = integer_range(dtype)
    require(made.scale == 1 / 16, "logarithms that are not in 1/16")
    require(made.zero_point == greatest_value, "logarithms with this zero point")
    rows = Rows(operation)
    scaling = _scaling(given.scale, 1.0)
    back = fixed_point.quantize_multiplier(2.0 ** (31 - scaling.shift) / scaling.mantissa)
    greatest = rows.greatest()
    sums = _summed(rows, scaling, greatest)
    logs = rows.of_row("logarithms", sums, lambda x: fixed.logarithm(x.cast(I64)).cast(I32))
    table = rows.build.constant(I32, scaling.scaled.shape, lambda: scaling.scaled)
    scope = Scope(dtype, dtype, I32)
    far, log = distance(scope), scope.argument(2).cast(I64)
    factors = [scope.constant(v, I64) for v in back]
    lowest = scope.add("rescale", log - 2**31, *factors, dtype=I64)
    limit = lowest.apply("maximum", -scaling.radius - 1)
    counted = limit < -far.cast(I64)
    steps = (scope.lookup(table, far, I32).cast(I64) - log).apply("divide_by_power", 22)
    bounded = (steps + greatest_value).clamp(least, greatest_value).cast(dtype)
    result = scope.finish(scope.select(counted, bounded, least))
    reads = [rows.every(rows.source), rows.one(greatest), rows.one(logs)]
    rows.made("log_softmax", reads, result, operation.target())
