"""Reductions and normalisations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from penstock.ir.types import DType
from penstock.loaders.onnx.calls import Call, Lower, operator
from penstock.loaders.onnx.emitter import Emitter
from penstock.loaders.onnx.folding import axes_of
from penstock.loaders.onnx.operators.common import (
    arithmetic,
    axis_in,
    common_layout,
    expand,
    number,
    pair,
    reshape,
    sizes,
)
from penstock.loaders.onnx.operators.convolution import per_channel
from penstock.loaders.onnx.values import Layout, Value, constant

Before = Callable[[Call, int], int]


def axes_input(call: Call) -> tuple[int, ...] | None:
    """The axes, None for all; () where nothing is reduced."""
    rank = call.tensor(0).rank or 0
    found = call.integers(1, "the axes") if call.has(1) else axes_of(call.node, [])
    if not found:
        if call.node.integer("noop_with_empty_axes", 0):
            return ()
        return tuple(range(rank))
    return call.axes(found, rank)


REGIONS: Final = {
    "SUM": ("STABLEHLO_ADD", 0.0),
    "REDUCE_PROD": ("STABLEHLO_MULTIPLY", 1.0),
    "REDUCE_MAX": ("STABLEHLO_MAXIMUM", -math.inf),
    "REDUCE_MIN": ("STABLEHLO_MINIMUM", math.inf),
}
BY_REGIONS: Final = frozenset({DType.FLOAT64, DType.BFLOAT16})
"""Types that TFLite's reductions lack, and StableHLO's have."""


def along(call: Call, kind: str, operand: int, places: Sequence[int], *, keep: bool) -> int:
    """A reduction of an operand along its dimensions *places*."""
    dtype = call.emitter.dtype(operand)
    if dtype not in BY_REGIONS:
        given = [operand, call.emitter.integers(places)]
        return call.emit(kind, given, dtype, {"keep_dims": keep})
    dims = call.shape(operand) or ()
    if kind == "MEAN":
        count = math.prod(dims[p] or 0 for p in places)
        if not count:
            raise call.refuse("the mean over a dimension of unknown size, of this type")
        total = along(call, "SUM", operand, places, keep=keep)
        return arithmetic(call, "MUL", total, call.scalar(1 / count, dtype))
    function, initial = REGIONS[kind]
    region = Emitter(call.emitter.shared)
    a, b = (region.get(region.input(dtype, ())) for _ in range(2))
    body = call.emitter.shared.add(region.finish([region.one(function, [a, b], dtype)]))
    given = [operand, call.scalar(initial, dtype)]
    attributes: dict[str, int | tuple[int, ...]] = {
        "dimensions": tuple(places),
        "body_subgraph_index": body,
    }
    made = call.emit("STABLEHLO_REDUCE", given, dtype, attributes)
    if keep:
        for place in places:
            made = expand(call, made, place)
    return made


def reduced(call: Call, kind: str, operand: int, layout: Layout, axes: tuple[int, ...]) -> Value:
    """A reduction of an operand that stands in *layout* along logical *axes*."""
    keep = bool(call.node.integer("keepdims", 1))
    places = sorted(axis_in(layout, a) for a in axes)
    made = along(call, kind, operand, places, keep=keep)
    if keep:
        return call.wrap(made, layout)
    kept = [a for a in layout if a not in axes]
    order = {axis: i for i, axis in enumerate(sorted(kept))}
    return call.wrap(made, tuple(order[a] for a in kept))


def _reduction(kind: str, before: Before | None = None, after: Before | None = None) -> Lower:
    def lower(call: Call) -> Value:
        x = call.tensor(0)
        axes = axes_input(call)
        layout = call.emitter.layout_of([x], x.rank or 0)
        operand = call.get(x, layout)
        if before is not None:
            operand = before(call, operand)
        if not axes:
            return call.wrap(operand if after is None else after(call, operand), layout)
        found = reduced(call, kind, operand, layout, axes)
        if after is None:
            return found
        order, made = next(iter(found.forms.items()))
        return call.wrap(after(call, made), order)

    return lower


def _function(kind: str) -> Before:
    return lambda call, x: call.emit(kind, [x], call.emitter.dtype(x))


def _square(call: Call, x: int) -> int:
    return arithmetic(call, "MUL", x, x)


operator("ReduceSum")(_reduction("SUM"))
operator("ReduceMean")(_reduction("MEAN"))
operator("ReduceMax")(_reduction("REDUCE_MAX"))
operator("ReduceMin")(_reduction("REDUCE_MIN"))
operator("ReduceProd")(_reduction("REDUCE_PROD"))
operator("ReduceL1")(_reduction("SUM", _function("ABS")))
operator("ReduceL2")(_reduction("SUM", _square, _function("SQRT")))
operator("ReduceSumSquare")(_reduction("SUM", _square))
operator("ReduceLogSum")(_reduction("SUM", None, _function("LOG")))


@operator("ReduceLogSumExp")
def log_sum_exp(call: Call) -> Value:
    """Of what is left after the maximum, which goes and comes back."""
    x = call.tensor(0)
    axes = axes_input(call)
    layout = call.emitter.layout_of([x], x.rank or 0)
    operand = call.get(x, layout)
    if not axes:
        return call.wrap(operand, layout)
    places = sorted(axis_in(layout, a) for a in axes)
    wide = x.dtype in BY_REGIONS
    most = along(call, "REDUCE_MAX", operand, places, keep=True)
    rest = arithmetic(call, "SUB", operand, most)
    powers = call.emit("STABLEHLO_EXPONENTIAL" if wide else "EXP", [rest], x.dtype)
    total = along(call, "SUM", powers, places, keep=True)
    logarithm = call.emit("STABLEHLO_LOG" if wide else "LOG", [total], x.dtype)
    whole = arithmetic(call, "ADD", logarithm, most)
    if call.node.integer("keepdims", 1):
        return call.wrap(whole, layout)
    return reduced(call, "REDUCE_MAX", whole, layout, axes)


def _search(kind: str) -> Lower:
    def lower(call: Call) -> Value:
        x = call.tensor(0)
        rank = x.rank or 0
        axis = call.axis(call.node.integer("axis", 0), rank)
        operand = call.get(x)
        last = call.node.integer("select_last_index", 0)
        at = call.emitter.constant(np.array(axis, np.int32))
        if last:
            size = (x.shape or ())[axis]
            if size is None:
                raise call.refuse("the last of equals along an unknown dimension")
            operand = call.emit("REVERSE_V2", [operand, call.emitter.integers([axis])], x.dtype)
            found = call.emit(kind, [operand, at], DType.INT64, {"output_type": "INT64"})
            found = arithmetic(call, "SUB", call.scalar(size - 1, DType.INT64), found)
        else:
            found = call.emit(kind, [operand, at], DType.INT64, {"output_type": "INT64"})
        if call.node.integer("keepdims", 1):
            found = expand(call, found, axis)
        return call.wrap(found)

    return lower


operator("ArgMax")(_search("ARG_MAX"))
operator("ArgMin")(_search("ARG_MIN"))


@operator("CumSum")
def running_sum(call: Call) -> Value:
    x = call.tensor(0)
    axis = int(call.integers(1, "the axis")[0])
    at = call.emitter.constant(np.array(call.axis(axis, x.rank or 0), np.int32))
    attributes = {
        "exclusive": bool(call.node.integer("exclusive", 0)),
        "reverse": bool(call.node.integer("reverse", 0)),
    }
    return call.wrap(call.emit("CUMSUM", [call.get(x), at], x.dtype, attributes))


@operator("BatchNormalization")
def batch_normalization(call: Call) -> Value:
    """(x - mean) / sqrt(variance + epsilon) * scale + offset, by channel: one product and one sum."""
    x = call.tensor(0)
    rank = x.rank or 0
    if call.node.integer("training_mode", 0) or (
        call.version < 7 and not call.node.integer("is_test", 1)
    ):
        raise call.refuse("BatchNormalization in training")
    if rank < 2:
        raise call.mismatch(f"an input of shape {x.shape}")
    epsilon = call.node.number("epsilon", 1e-5)
    parameters = [call.tensor(i) for i in range(1, 5)]
    arrays = [p.array for p in parameters]
    if all(a is not None for a in arrays):
        scale, offset, mean, variance = (np.asarray(a, np.float64) for a in arrays)
        factor = scale / np.sqrt(variance + epsilon)
        moved = offset - mean * factor
        kind = x.dtype.numpy
        pieces = [constant(v.astype(kind)) for v in (factor, moved)]
    else:
        scale_, offset_, mean_, variance_ = (call.get(p) for p in parameters)
        dtype = parameters[3].dtype
        wide = arithmetic(call, "ADD", variance_, number(call, epsilon, dtype))
        deviation = call.emit("SQRT", [wide], dtype)
        by = arithmetic(call, "DIV", scale_, deviation)
        less = arithmetic(call, "SUB", offset_, arithmetic(call, "MUL", mean_, by))
        pieces = [call.wrap(by), call.wrap(less)]
    factor_, moved_ = (per_channel(call, p, rank - 2) for p in pieces)
    return pair(call, "ADD", pair(call, "MUL", x, factor_), moved_)


def standardized(
    call: Call, operand: int, places: list[int], epsilon: float
) -> tuple[int, int, int]:
    """(result, mean, 1 / deviation) of an operand along *places*."""
    dtype = call.emitter.dtype(operand)
    axes = call.emitter.integers(places)
    mean = call.emit("MEAN", [operand, axes], dtype, {"keep_dims": True})
    centred = arithmetic(call, "SUB", operand, mean)
    square = arithmetic(call, "MUL", centred, centred)
    variance = call.emit("MEAN", [square, axes], dtype, {"keep_dims": True})
    inverse = call.emit(
        "RSQRT", [arithmetic(call, "ADD", variance, number(call, epsilon, dtype))], dtype
    )
    return arithmetic(call, "MUL", centred, inverse), mean, inverse


@operator("InstanceNormalization")
def instance_normalization(call: Call) -> Value:
    x = call.tensor(0)
    rank = x.rank or 0
    layout = call.emitter.layout_of([x], rank)
    places = sorted(axis_in(layout, axis) for axis in range(2, rank))
    made, _, _ = standardized(call, call.get(x, layout), places, call.node.number("epsilon", 1e-5))
    scale, offset = (per_channel(call, call.tensor(i), rank - 2) for i in (1, 2))
    return pair(call, "ADD", pair(call, "MUL", call.wrap(made, layout), scale), offset)


@operator("LayerNormalization")
def layer_normalization(call: Call) -> list[Value]:
    x = call.tensor(0)
    rank = x.rank or 0
    axis = call.axis(call.node.integer("axis", -1), rank)
    made, mean, inverse = standardized(
        call, call.get(x), list(range(axis, rank)), call.node.number("epsilon", 1e-5)
    )
    found = pair(call, "MUL", call.wrap(made), call.value(1))
    if call.has(2):
        found = pair(call, "ADD", found, call.value(2))
    return [found, call.wrap(mean), call.wrap(inverse)]


@operator("RMSNormalization")
def root_mean_square(call: Call) -> Value:
    x = call.tensor(0)
    rank = x.rank or 0
    axis = call.axis(call.node.integer("axis", -1), rank)
    operand = call.get(x)
    places = call.emitter.integers(range(axis, rank))
    square = arithmetic(call, "MUL", operand, operand)
    mean = call.emit("MEAN", [square, places], x.dtype, {"keep_dims": True})
    epsilon = number(call, call.node.number("epsilon", 1e-5), x.dtype)
    inverse = call.emit("RSQRT", [arithmetic(call, "ADD", mean, epsilon)], x.dtype)
    made = call.wrap(arithmetic(call, "MUL", operand, inverse))
    return pair(call, "MUL", made, call.value(1))


@operator("GroupNormalization")
def group_normalization(call: Call) -> Value:
    """Scale and offset are one a group before opset 21, one a channel since."""
    x = call.tensor(0)
    dims, groups = x.shape or (), call.node.integer("num_groups")
    channels = dims[1]
    if channels is None or groups < 1 or channels % groups:
        raise call.refuse(f"{channels} channels in {groups} groups")
    operand = call.get(x)
    batch = -1 if dims[0] is None else dims[0]
    flat = reshape(
        call, operand, [batch, groups, -1 if batch != -1 else _inner(call, dims, groups)]
    )
    made, _, _ = standardized(call, flat, [2], call.node.number("epsilon", 1e-5))
    if None in dims:
        back = call.emit("RESHAPE", [made, sizes(call, operand)], x.dtype)
    else:
        back = reshape(call, made, [d or 0 for d in dims])
    pieces = []
    for index in (1, 2):
        value = call.tensor(index)
        if call.version < 21:
            if value.array is None:
                raise call.refuse("scales of groups computed while running")
            call.body.lowering.budget.take(channels * 4, call.node.where)
            value = constant(np.repeat(value.array, channels // groups))
        pieces.append(per_channel(call, value, len(dims) - 2))
    return pair(call, "ADD", pair(call, "MUL", call.wrap(back), pieces[0]), pieces[1])


def _inner(call: Call, dims: tuple[int | None, ...], groups: int) -> int:
    if None in dims[1:]:
        raise call.refuse("group normalisation over several unknown dimensions")
    return int(np.prod([d or 0 for d in dims[1:]])) // groups


@operator("LRN")
def local_response(call: Call) -> Value:
    """ONNX divides alpha by the size of the window."""
    x = call.tensor(0)
    size = call.node.integer("size")
    if size % 2 == 0 or x.rank != 4:
        raise call.refuse(f"a window of {size} channels of an input of shape {x.shape}")
    attributes = {
        "radius": size // 2,
        "bias": call.node.number("bias", 1.0),
        "alpha": call.node.number("alpha", 1e-4) / size,
        "beta": call.node.number("beta", 0.75),
    }
    layout = (0, 2, 3, 1)
    made = call.emit("LOCAL_RESPONSE_NORMALIZATION", [call.get(x, layout)], x.dtype, attributes)
    return call.wrap(made, layout)


@operator("LpNormalization")
def lp_normalization(call: Call) -> Value:
    x = call.tensor(0)
    rank = x.rank or 0
    axis, p = call.axis(call.node.integer("axis", -1), rank), call.node.integer("p", 2)
    layout = common_layout(call, [x])
    operand = call.get(x, layout)
    place = call.emitter.integers([axis_in(layout, axis)])
    if p == 1:
        size = call.emit(
            "SUM", [call.emit("ABS", [operand], x.dtype), place], x.dtype, {"keep_dims": True}
        )
    elif p == 2:
        square = arithmetic(call, "MUL", operand, operand)
        total = call.emit("SUM", [square, place], x.dtype, {"keep_dims": True})
        size = call.emit("SQRT", [total], x.dtype)
    else:
        raise call.node.invalid(f"a norm of order {p}")
    zero = call.emit("EQUAL", [size, call.scalar(0, x.dtype)], DType.BOOL)
    safe = call.emit("SELECT_V2", [zero, call.scalar(1, x.dtype), size], x.dtype)
    return call.wrap(arithmetic(call, "DIV", operand, safe), layout)


@operator("MeanVarianceNormalization")
def mean_variance(call: Call) -> Value:
    x = call.tensor(0)
    rank = x.rank or 0
    axes = call.axes(call.node.integers("axes", (0, 2, 3)), rank)
    layout: Layout = call.emitter.layout_of([x], rank)
    operand = call.get(x, layout)
    places = call.emitter.integers(sorted(axis_in(layout, a) for a in axes))
    mean = call.emit("MEAN", [operand, places], x.dtype, {"keep_dims": True})
    centred = arithmetic(call, "SUB", operand, mean)
    square = arithmetic(call, "MUL", centred, centred)
    variance = call.emit("MEAN", [square, places], x.dtype, {"keep_dims": True})
    deviation = call.emit("SQRT", [variance], x.dtype)
    below = arithmetic(call, "ADD", deviation, number(call, 1e-9, x.dtype))
    return call.wrap(arithmetic(call, "DIV", centred, below), layout)
