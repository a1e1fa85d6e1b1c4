"""Reductions along axes, searches, running sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from penstock.ir.types import DType
from penstock.loaders.onnx.calls import Call, Lower, operator
from penstock.loaders.onnx.emitter import Emitter
from penstock.loaders.onnx.folding import axes_of
from penstock.loaders.onnx.operators.common import arithmetic, axis_in, expand
from penstock.loaders.onnx.values import Layout, Value

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
