"""Pools over windows of images, and MediaPipe's pools that record where the greatest values are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.compiler.expression import Scope, Value, identity
from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.elementwise import F32, I32
from penstock.compiler.legalise.quantised import (
    STORED,
    bounds_of,
    finite_bounds_of,
    integer_range,
    limits_of,
)
from penstock.compiler.program import Access, Position, along
from penstock.driverkit.checks import pool_windows
from penstock.driverkit.site import require
from penstock.ir import NDArray
from penstock.ir.operations.custom_options import windowed_pool

MOST: Final = 2**31 - 1


@legal("MAX_POOL_2D", "AVERAGE_POOL_2D", "L2_POOL_2D")
def pool(operation: Operation) -> None:
    """Padding elements take no part: the mean's divisor counts those of the image alone. L2 is the
    root of the mean of squares.
    """
    site = operation.site
    dtype = site.output().dtype
    squares = site.operation.type == "L2_POOL_2D"
    require(not squares or dtype is F32, "types of this pool")
    require(len(site.shape()) == 4, "an image of another rank")
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
        value = scope.argument(0).cast(sums)
        body, fill = scope.finish(value * value if squares else value), 0.0 if dtype is F32 else 0
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
        value = value.apply("sqrt") if squares else value
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
        return value.clamp(*finite_bounds_of(site.activation))
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


def _padded(size: int, extent: int, stride: int, *, same: bool) -> tuple[int, int]:
    """(padding before, positions) of a window along an axis."""
    if not same:
        return 0, (size - extent) // stride + 1
    count = -(-size // stride)
    return max(0, (count - 1) * stride + extent - size) // 2, count


@legal("CUSTOM:MaxPoolingWithArgmax2D")
def max_pool_with_argmax(operation: Operation) -> None:
    """The greatest value of each window, and its position, the first of equal ones: counted column
    by column, as the bits of a float. NaN counts as the first element of a window alone, and is
    then the greatest.
    """
    site = operation.site
    floats = all(o is None or o.dtype is F32 for o in (*site.inputs, *site.outputs))
    require(floats, "only float32 values are computed here")
    options = windowed_pool(site.attributes)
    low, high = bounds_of(options.fused_activation_function)
    extents = options.filter_height, options.filter_width
    strides = options.stride_h, options.stride_w
    image, made = site.shape(), site.output_shape()
    sides = [
        _padded(size, extent, stride, same=options.padding == "SAME")
        for size, extent, stride in zip(image[1:3], extents, strides, strict=True)
    ]
    require(tuple(count for _, count in sides) == made[1:3], "a result of another shape")
    starts = [
        Position(-before, ((loop, stride),))
        for (before, _), loop, stride in zip(sides, (1, 2), strides, strict=True)
    ]
    inside = [
        Position(p.offset, (*p.steps, (inner, 1))) for p, inner in zip(starts, (4, 5), strict=True)
    ]
    build, source = operation.build, operation.tensor()
    read = Access(source, (*along(0), *inside, *along(3)), -math.inf)
    first = Access(source, (*along(0), *starts, *along(3)), -math.inf)
    greatest = build.tensor(F32, made)
    build.emit(
        "greatest", made, [read], identity(F32), operation.whole(greatest), reduced=extents,
        combine="maximum",
    )  # fmt: skip
    scope = Scope(F32, F32)
    best, start = scope.argument(0), scope.argument(1)
    known = scope.compare("equal", start, start)
    value = scope.select(known, best, start).clamp(low, high)
    build.emit(
        "pool", made, [operation.whole(greatest), first], scope.finish(value),
        operation.whole(operation.target()),
    )  # fmt: skip
    scope = Scope(F32, F32, I32)
    same = scope.compare("equal", scope.argument(0), scope.argument(1))
    body = scope.finish(scope.select(same, scope.argument(2), MOST))
    finish = Scope(I32, F32)
    known = finish.compare("equal", finish.argument(1), finish.argument(1))
    place = finish.select(known, finish.argument(0), finish.constant(0, I32)).bitcast(F32)
    tall, wide = extents
    order = np.arange(tall)[:, None] + np.arange(wide) * tall
    numbers = Access(build.constant(I32, order.shape, lambda: order), along(4, 5))
    build.emit(
        "argmax", made, [read, operation.whole(greatest), numbers], body,
        operation.whole(operation.target(1)), reduced=extents, combine="minimum", sums=I32,
        finish=finish.finish(place), extras=[first],
    )  # fmt: skip


@legal("CUSTOM:MaxUnpooling2D")
def max_unpool(operation: Operation) -> None:
    """Each value at its position in its window of the output, and zeros elsewhere. A position
    outside its window fails the run.
    """
    site = operation.site
    floats = all(o is None or o.dtype is F32 for o in (*site.inputs, *site.outputs))
    require(floats, "only float32 values are computed here")
    options = windowed_pool(site.attributes)
    tall, wide = options.filter_height, options.filter_width
    batch, height, width, depth = site.shape()
    require(site.shape(1) == site.shape(), "positions of another shape")
    require(
        site.output_shape() == (batch, height * tall, width * wide, depth),
        "a result of another shape",
    )

    def outside(bits: Value) -> Value:
        place = bits.bitcast(I32)
        return (place < 0).apply("or", (place < tall * wide).apply("not"))

    operation.fail_if(1, "unpooling indexes do not lie within their windows", outside)
    build = operation.build
    loops = batch, height, tall, width, wide, depth
    written = build.tensor(F32, loops)
    build.aliases[operation.target()] = written
    order = np.arange(tall)[:, None] + np.arange(wide) * tall
    numbers = Access(build.constant(I32, order.shape, lambda: order), along(2, 4))
    scope = Scope(F32, F32, I32)
    here = scope.compare("equal", scope.argument(1).bitcast(I32), scope.argument(2))
    body = scope.finish(scope.select(here, scope.argument(0), 0.0))
    values = [Access(operation.tensor(i), along(0, 1, 3, 5)) for i in (0, 1)]
    build.emit("unpool", loops, [*values, numbers], body, operation.whole(written))
