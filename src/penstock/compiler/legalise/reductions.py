"""Reductions: over axes, over windows, and along the last axis to normalise it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.compiler.expression import Expression, Scope, Value, identity
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.elementwise import PLAIN
from penstock.compiler.legalise.quantised import (
    NARROW,
    STORED,
    bounds_of,
    integer_range,
    limits_of,
    scale_of,
)
from penstock.compiler.program import Access, Combine, Position, along
from penstock.driverkit import fixed_point
from penstock.driverkit.checks import pool_windows, reduced_axes
from penstock.driverkit.site import require
from penstock.ir import DType, NDArray

F32, I32 = DType.FLOAT32, DType.INT32


def reduce_axes(
    operation: Operation, combine: Combine, body: Expression, finish: Expression, sums: DType
) -> None:
    """Adds the reduction of input 0 over its constant axes."""
    shape, axes = operation.site.shape(), reduced_axes(operation.site)
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    numbers = {axis: loop for loop, axis in enumerate([*kept, *axes])}
    read = Access(operation.tensor(), along(*(numbers[axis] for axis in range(len(shape)))))
    target = operation.target()
    loops = tuple(shape[axis] for axis in kept)
    flat = operation.build.tensor(operation.site.output().dtype, loops)
    operation.build.aliases[target] = flat
    operation.build.emit(
        operation.site.operation.type.lower(),
        loops,
        [read],
        body,
        Access(flat, along(*range(len(loops)))),
        reduced=tuple(shape[axis] for axis in axes),
        combine=combine,
        sums=sums,
        finish=finish,
    )


@legal("MEAN", "SUM")
def mean_or_sum(operation: Operation) -> None:
    """Quantised ones are sums minus zero points, rescaled; a mean's divisor is in the
    multiplier.
    """
    site = operation.site
    dtype, mean = site.input().dtype, site.operation.type == "MEAN"
    require(dtype is site.output().dtype, "a result of another type")
    shape = site.shape()
    count = math.prod(shape[axis] for axis in reduced_axes(site))
    if dtype in STORED and (dtype in NARROW or site.input().quantization):
        _quantised_sum(operation, count, mean=mean)
        return
    require(dtype is F32 or (dtype in PLAIN and not mean), "types of this reduction")
    scope = Scope(dtype)
    total = scope.argument(0)
    result = total / float(np.float32(count)) if mean else total
    reduce_axes(operation, "sum", identity(dtype), scope.finish(result), dtype)


def _quantised_sum(operation: Operation, count: int, *, mean: bool) -> None:
    site = operation.site
    given, made = scale_of(site.input(), "the input"), scale_of(site.output(), "a result")
    mantissa, shift = fixed_point.quantize_multiplier(given.scale / made.scale)
    if mean:
        more = min(count.bit_length() - 1, 32, 31 + shift)
        mantissa, shift = (mantissa << more) // count, shift - more
    scope = Scope(I32)
    total = scope.argument(0) - given.zero_point * count
    factors = [scope.constant(v, I32) for v in (mantissa, shift)]
    scaled = scope.add("rescale", total, *factors, dtype=I32) + made.zero_point
    dtype = site.output().dtype
    result = scope.finish(scaled.clamp(*integer_range(dtype)).cast(dtype))
    body = Scope(dtype)
    reduce_axes(operation, "sum", body.finish(body.argument(0).cast(I32)), result, I32)


@legal("REDUCE_MAX", "REDUCE_MIN", "REDUCE_ANY", "REDUCE_ALL")
def extreme(operation: Operation) -> None:
    site = operation.site
    dtype = site.input().dtype
    kinds: dict[str, Combine] = {
        "REDUCE_MAX": "maximum",
        "REDUCE_MIN": "minimum",
        "REDUCE_ANY": "any",
        "REDUCE_ALL": "all",
    }
    combine = kinds[site.operation.type]
    require(dtype is site.output().dtype, "a result of another type")
    logical = combine in {"any", "all"}
    require(dtype is DType.BOOL if logical else dtype in PLAIN | STORED, "types of this reduction")
    same = site.input().quantization == site.output().quantization
    require(same or dtype not in STORED, "a result in another scale")
    reduce_axes(operation, combine, identity(dtype), identity(dtype), dtype)


@legal("MAX_POOL_2D", "AVERAGE_POOL_2D")
def pool(operation: Operation) -> None:
    """Padding elements take no part: the mean's divisor counts the image's elements alone."""
    site = operation.site
    dtype = site.output().dtype
    require(site.input().dtype is dtype and dtype in STORED | {F32}, "types of this pool")
    image, output = site.shape(), site.output_shape()
    w = pool_windows(site)
    extents = w.extents
    largest = site.operation.type == "MAX_POOL_2D"
    places = [
        Position(-before, ((loop, stride), (inner, 1)))
        for before, stride, loop, inner in zip(w.before, w.strides, (1, 2), (4, 5), strict=True)
    ]
    if largest:
        sums, body = dtype, identity(dtype)
        fill = -math.inf if dtype is F32 else integer_range(dtype)[0]
    else:
        sums = F32 if dtype is F32 else I32
        scope = Scope(dtype)
        body, fill = scope.finish(scope.argument(0).cast(sums)), 0.0 if dtype is F32 else 0
    padded = any(w.before) or any(w.after)
    read = Access(operation.tensor(), (*along(0), *places, *along(3)), fill if padded else None)
    extras, dtypes = [], [sums]
    if not largest and padded:
        counts = _counts(image[1:3], output[1:3], extents, w.before, w.strides)
        kind = F32 if dtype is F32 else I32
        table = operation.build.constant(kind, counts.shape, lambda: counts)
        extras, dtypes = [Access(table, along(1, 2))], [sums, kind]
    scope = Scope(*dtypes)
    value = scope.argument(0)
    if not largest:
        kind = F32 if dtype is F32 else I32
        count = scope.argument(1) if padded else scope.constant(math.prod(extents), kind)
        value = value / count if dtype is F32 else _rounded_quotient(value, count)
    operation.build.emit(
        "pool",
        output,
        [read],
        body,
        operation.whole(operation.target()),
        reduced=extents,
        combine="maximum" if largest else "sum",
        sums=sums,
        finish=scope.finish(_activated(operation, value)),
        extras=extras,
    )


def _rounded_quotient(total: Value, count: Value) -> Value:
    """The quotient to the nearest, halves away from zero."""
    half = count.apply("shift_right", 1)
    signed = total.scope.select(total < 0, total - half, total + half)
    return signed / count


def _activated(operation: Operation, value: Value) -> Value:
    site = operation.site
    output = site.output()
    if output.dtype is F32:
        return value.clamp(*bounds_of(site.activation))
    if site.activation != "NONE":
        value = value.clamp(*limits_of(site.activation, output))
    return value.cast(output.dtype)


def _counts(
    image: Sequence[int],
    output: Sequence[int],
    extents: Sequence[int],
    before: Sequence[int],
    strides: Sequence[int],
) -> NDArray:
    """The number of image elements in each window, [height, width]."""
    rows, across = (
        [min(i * stride - pad + extent, size) - max(i * stride - pad, 0) for i in range(count)]
        for size, count, extent, pad, stride in zip(
            image, output, extents, before, strides, strict=True
        )
    )
    return np.outer(rows, across)


DISTANCES: Final = np.arange(256)


@legal("SOFTMAX")
def softmax(operation: Operation) -> None:
    """exp(beta * (x - greatest)) over its sum, along the last axis."""
    site = operation.site
    dtype, beta = site.input().dtype, np.float32(site.attributes.number("beta"))
    require(dtype is site.output().dtype, "a result of another type")
    shape = site.shape()
    require(len(shape) > 0, "a scalar has no axis")
    rows, last = shape[:-1], len(shape) - 1
    read = operation.whole(operation.tensor())
    row = along(*range(last))
    greatest = operation.build.tensor(dtype, rows)
    operation.build.emit(
        "greatest", rows, [read], identity(dtype), Access(greatest, row), reduced=shape[-1:],
        combine="maximum",
    )  # fmt: skip
    if dtype is F32:
        _float_softmax(operation, read, Access(greatest, row), float(beta))
        return
    require(dtype in NARROW, "types of this softmax")
    if dtype is DType.INT8:
        made = scale_of(site.output(), "a result")
        require(made.zero_point == -128, "shares that are not in the scale TFLite has for them")
        require(abs(made.scale * 256 - 1) <= 1e-3, "shares that are not in 1/256")
    _quantised_softmax(operation, read, Access(greatest, row), float(beta))


def _float_softmax(operation: Operation, read: Access, greatest: Access, beta: float) -> None:
    shape = operation.site.shape()
    rows, last = shape[:-1], len(shape) - 1
    powers, sums = operation.build.tensor(F32, shape), operation.build.tensor(F32, rows)
    scope = Scope(F32, F32)
    power = ((scope.argument(0) - scope.argument(1)) * beta).apply("exp")
    whole = along(*range(last + 1))
    operation.build.emit(
        "powers", shape, [read, greatest], scope.finish(power), Access(powers, whole)
    )
    operation.build.emit(
        "sums", rows, [Access(powers, whole)], identity(F32), Access(sums, along(*range(last))),
        reduced=shape[-1:], combine="sum",
    )  # fmt: skip
    scope = Scope(F32, F32)
    share = scope.finish(scope.argument(0) / scope.argument(1))
    reads = [Access(powers, whole), Access(sums, along(*range(last)))]
    operation.build.emit("shares", shape, reads, share, Access(operation.target(), whole))


def _quantised_softmax(operation: Operation, read: Access, greatest: Access, beta: float) -> None:
    """By tables of the exponentials of all distances from the row's greatest value, in Q0."""
    site = operation.site
    dtype, shape = site.output().dtype, site.shape()
    rows, last = shape[:-1], len(shape) - 1
    powers = _powers(scale_of(site.input(), "the input").scale, beta)
    build = operation.build
    table = build.constant(I32, powers.shape, lambda: powers)
    summands = fixed_point.rounding_divide_by_pot(powers, 12)
    summed = build.constant(I32, summands.shape, lambda: summands)

    def distance(scope: Scope) -> Value:
        return scope.argument(1).cast(I32) - scope.argument(0).cast(I32)

    row = along(*range(last))
    sums = build.tensor(I32, rows)
    scope = Scope(dtype, dtype)
    body = scope.finish(scope.lookup(summed, distance(scope), I32))
    build.emit(
        "sums", rows, [read, greatest], body, Access(sums, row), reduced=shape[-1:], combine="sum",
    )  # fmt: skip
    scope = Scope(I32)
    inverses = build.tensor(I32, rows)
    inverse = scope.finish(reciprocal(scope.argument(0)).cast(I32))
    build.emit("inverse", rows, [Access(sums, row)], inverse, Access(inverses, row))
    scope = Scope(dtype, dtype, I32, I32)
    zeros = scope.argument(2).apply("leading_zeros")
    product = scope.lookup(table, distance(scope), I32).apply("high_product", scope.argument(3))
    low, high = integer_range(dtype)
    shift = scope.constant(12 + 31 - (dtype.bits or 8), I32) - zeros
    share = product.apply("divide_by_power", shift) + low
    result = scope.finish(share.clamp(low, high).cast(dtype))
    whole = along(*range(last + 1))
    reads = [read, greatest, Access(sums, row), Access(inverses, row)]
    build.emit("shares", shape, reads, result, Access(operation.target(), whole))


def reciprocal(x: Value) -> Value:
    """The mantissa of 1 / x in Q0, for x > 0: three Newton-Raphson steps, as gemmlowp."""
    i64 = DType.INT64
    wide = x.cast(i64)
    moved = wide.apply("shift_left", x.apply("leading_zeros").cast(i64)) - (1 << 31)
    half = (moved + (1 << 31)).apply("shift_right", 1)
    result = half.apply("high_product", -1010580540) + 1515870810
    for _ in range(3):
        error = -half.apply("high_product", result) + (1 << 29)
        step = result.apply("high_product", error).apply("shift_left", 2)
        result = result + step.clamp(-(2**31), 2**31 - 1)
    return result.apply("shift_left", 1).clamp(-(2**31), 2**31 - 1)


def _powers(scale: float, beta: float) -> NDArray:
    """exp(-distance) in Q0 for every distance of 8-bit values, 0 beyond the radius of Q5."""
    real = min(beta * scale * 2.0**26, 2.0**31 - 1)
    require(real > 1.0, "a softmax whose input scale times beta is not over 2**-26")
    mantissa, shift = fixed_point.quantize_multiplier(real)
    radius = math.floor(31 * 2.0**26 / 2.0**shift)
    counted = np.where(radius >= DISTANCES, -DISTANCES, 0)
    scaled = fixed_point.rescale(counted, mantissa, shift)
    return np.where(radius >= DISTANCES, fixed_point.exp_on_negative_values(scaled), 0)
