"""Reductions and normalisations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.ir.types import DType
from penstock.loaders.onnx.calls import Call, Tensor
from penstock.loaders.onnx.folding import axes_of
from penstock.loaders.onnx.operators import Lower, operator
from penstock.loaders.onnx.operators.convolution import per_channel
from penstock.loaders.onnx.operators.elementwise import Formula, sqrt
from penstock.loaders.onnx.values import Layout, Value, constant

REGIONS: Final = {
    "SUM": ("STABLEHLO_ADD", 0.0),
    "REDUCE_PROD": ("STABLEHLO_MULTIPLY", 1.0),
    "REDUCE_MAX": ("STABLEHLO_MAXIMUM", -math.inf),
    "REDUCE_MIN": ("STABLEHLO_MINIMUM", math.inf),
}
BY_REGIONS: Final = frozenset({DType.FLOAT64, DType.BFLOAT16})
"""Types that StableHLO operations reduce and TFLite's do not."""


def axes_input(call: Call) -> tuple[int, ...]:
    """The axes to reduce; () if no axis is reduced."""
    rank = call.tensor(0).rank or 0
    found = call.integers(1, "the axes") if call.has(1) else axes_of(call.node, [])
    if found:
        return call.axes(found, rank)
    return () if call.node.integer("noop_with_empty_axes", 0) else tuple(range(rank))


def along(kind: str, x: Tensor, places: Sequence[int], *, keep: bool) -> Tensor:
    """A reduction of an operand along its dimensions *places*."""
    call, dtype = x.call, x.dtype
    if dtype not in BY_REGIONS:
        return x.reduced(kind, places, keep)
    if kind == "MEAN":
        count = math.prod(x.dims[p] or 0 for p in places)
        if not count:
            raise call.refuse("the mean over a dimension of unknown size, of this type")
        return along("SUM", x, places, keep=keep) * (1 / count)
    function, initial = REGIONS[kind]
    body = call.region(function, dtype)
    given = [x, call.scalar(initial, dtype)]
    made = call.emit("STABLEHLO_REDUCE", given, dimensions=tuple(places), body_subgraph_index=body)
    if keep:
        for place in places:
            made = made.expand(place)
    return made


def reduced(kind: str, x: Tensor, layout: Layout, axes: Sequence[int]) -> tuple[Tensor, Layout]:
    """A reduction of an operand in *layout* along logical *axes*, and the layout of the result."""
    keep = bool(x.call.node.integer("keepdims", 1))
    made = along(kind, x, sorted(layout.index(a) for a in axes), keep=keep)
    if keep:
        return made, layout
    kept = [a for a in layout if a not in axes]
    order = {axis: i for i, axis in enumerate(sorted(kept))}
    return made, tuple(order[a] for a in kept)


def _reduction(kind: str, before: Formula | None = None, after: Formula | None = None) -> Lower:
    def lower(call: Call) -> Value:
        axes = axes_input(call)
        x, layout = call.stored(call.tensor(0))
        made = x if before is None else before(x)
        if axes:
            made, layout = reduced(kind, made, layout, axes)
        return (made if after is None else after(made)).value(layout)

    return lower


operator("ReduceSum")(_reduction("SUM"))
operator("ReduceMean")(_reduction("MEAN"))
operator("ReduceMax")(_reduction("REDUCE_MAX"))
operator("ReduceMin")(_reduction("REDUCE_MIN"))
operator("ReduceProd")(_reduction("REDUCE_PROD"))
operator("ReduceL1")(_reduction("SUM", abs))
operator("ReduceL2")(_reduction("SUM", lambda x: x * x, sqrt))
operator("ReduceSumSquare")(_reduction("SUM", lambda x: x * x))
operator("ReduceLogSum")(_reduction("SUM", after=lambda x: x.fn("LOG")))


@operator("ReduceLogSumExp")
def log_sum_exp(call: Call) -> Value:
    """The maximum is subtracted before the exponential and added back, against overflow."""
    axes = axes_input(call)
    x, layout = call.stored(call.tensor(0))
    if not axes:
        return x.value(layout)
    places = sorted(layout.index(a) for a in axes)
    wide = x.dtype in BY_REGIONS
    most = along("REDUCE_MAX", x, places, keep=True)
    powers = (x - most).fn("STABLEHLO_EXPONENTIAL" if wide else "EXP")
    total = along("SUM", powers, places, keep=True)
    whole = total.fn("STABLEHLO_LOG" if wide else "LOG") + most
    if not call.node.integer("keepdims", 1):
        whole, layout = reduced("REDUCE_MAX", whole, layout, axes)
    return whole.value(layout)


@operator("ArgMax", "ArgMin")
def search(call: Call) -> Value:
    kind = "ARG_MAX" if call.node.op == "ArgMax" else "ARG_MIN"
    x = call.tensor(0)
    axis, operand = call.own_axis(x), call.get(x)
    if last := call.node.integer("select_last_index", 0):
        operand = call.emit("REVERSE_V2", [operand, call.vector([axis])])
    found = operand.best(kind, axis)
    if last:
        size = operand.dims[axis]
        if size is None:
            raise call.refuse("the last of equals along an unknown dimension")
        found = size - 1 - found
    return (found.expand(axis) if call.node.integer("keepdims", 1) else found).value()


@operator("CumSum")
def running_sum(call: Call) -> Value:
    x = call.tensor(0)
    axis = call.axis(call.integers(1, "the axis")[0], x.rank or 0)
    flags = {name: bool(call.node.integer(name, 0)) for name in ("exclusive", "reverse")}
    return call.emit("CUMSUM", [call.get(x), call.place(axis)], **flags).value()


@operator("BatchNormalization")
def batch_normalization(call: Call) -> Value:
    """(x - mean) / sqrt(variance + epsilon) * scale + offset, as one product and one sum."""
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
        pieces = [constant(v.astype(x.dtype.numpy)) for v in (factor, moved)]
    else:
        scale_, offset_, mean_, variance_ = (call.get(p) for p in parameters)
        by = scale_ / sqrt(variance_ + epsilon)
        pieces = [by.value(), (offset_ - mean_ * by).value()]
    factor_, moved_ = (per_channel(call, p, rank - 2) for p in pieces)
    return call.pair("ADD", call.pair("MUL", x, factor_), moved_)


def standardized(x: Tensor, places: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """(result, mean, 1 / deviation) of an operand along *places*, with the node's epsilon."""
    mean = x.reduced("MEAN", places, True)
    centred = x - mean
    variance = (centred * centred).reduced("MEAN", places, True)
    inverse = (variance + x.call.node.number("epsilon", 1e-5)).fn("RSQRT")
    return centred * inverse, mean, inverse


@operator("InstanceNormalization")
def instance_normalization(call: Call) -> Value:
    x = call.tensor(0)
    rank = x.rank or 0
    operand, layout = call.stored(x)
    made, _, _ = standardized(operand, sorted(layout.index(axis) for axis in range(2, rank)))
    scale, offset = (per_channel(call, call.tensor(i), rank - 2) for i in (1, 2))
    return call.pair("ADD", call.pair("MUL", made.value(layout), scale), offset)


@operator("LayerNormalization")
def layer_normalization(call: Call) -> list[Value]:
    x = call.tensor(0)
    axes = range(call.own_axis(x, -1), x.rank or 0)
    made, mean, inverse = standardized(call.get(x), axes)
    found = call.pair("MUL", made.value(), call.value(1))
    if call.has(2):
        found = call.pair("ADD", found, call.value(2))
    return [found, mean.value(), inverse.value()]


@operator("RMSNormalization")
def root_mean_square(call: Call) -> Value:
    x = call.tensor(0)
    operand = call.get(x)
    mean = (operand * operand).reduced("MEAN", range(call.own_axis(x, -1), x.rank or 0), True)
    inverse = (mean + call.node.number("epsilon", 1e-5)).fn("RSQRT")
    return call.pair("MUL", (operand * inverse).value(), call.value(1))


@operator("GroupNormalization")
def group_normalization(call: Call) -> Value:
    """Scale and offset are by group before opset 21, and by channel since."""
    x = call.tensor(0)
    dims, groups = x.shape or (), call.node.integer("num_groups")
    channels = dims[1]
    if channels is None or groups < 1 or channels % groups:
        raise call.refuse(f"{channels} channels in {groups} groups")
    operand = call.get(x)
    rest = -1
    if dims[0] is None:
        if None in dims[1:]:
            raise call.refuse("group normalisation over several unknown dimensions")
        rest = math.prod(d or 0 for d in dims[1:]) // groups
    flat = operand.reshape([-1 if dims[0] is None else dims[0], groups, rest])
    made, _, _ = standardized(flat, [2])
    if None in dims:
        back = call.emit("RESHAPE", [made, operand.sizes()])
    else:
        back = made.reshape([d or 0 for d in dims])
    pieces = []
    for index in (1, 2):
        value = call.tensor(index)
        if call.version < 21:
            if value.array is None:
                raise call.refuse("scales of groups computed while running")
            call.charge(channels * 4)
            value = constant(np.repeat(value.array, channels // groups))
        pieces.append(per_channel(call, value, len(dims) - 2))
    return call.pair("ADD", call.pair("MUL", back.value(), pieces[0]), pieces[1])


@operator("LRN")
def local_response(call: Call) -> Value:
    """ONNX divides alpha by the size of the window."""
    x, node = call.tensor(0), call.node
    size = node.integer("size")
    if size % 2 == 0 or x.rank != 4:
        raise call.refuse(f"a window of {size} channels of an input of shape {x.shape}")
    layout = (0, 2, 3, 1)
    made = call.get(x, layout).fn(
        "LOCAL_RESPONSE_NORMALIZATION",
        radius=size // 2,
        bias=node.number("bias", 1.0),
        alpha=node.number("alpha", 1e-4) / size,
        beta=node.number("beta", 0.75),
    )
    return made.value(layout)


def scaled(x: Tensor, how: str, place: Tensor) -> Tensor:
    """*x* divided by a norm along *place*: L1, L2 or MAX. If the norm is 0, *x* is divided by 1."""
    call = x.call
    if how == "L1":
        size = call.emit("SUM", [abs(x), place], keep_dims=True)
    elif how == "L2":
        size = sqrt(call.emit("SUM", [x * x, place], keep_dims=True))
    elif how == "MAX":
        size = call.emit("REDUCE_MAX", [x, place], keep_dims=True)
    else:
        raise call.node.invalid(f"the norm {how!r}")
    return x / call.select(call.emit("EQUAL", [size, x.like(0)], DType.BOOL), 1, size)


@operator("LpNormalization")
def lp_normalization(call: Call) -> Value:
    x = call.tensor(0)
    axis, p = call.own_axis(x, -1), call.node.integer("p", 2)
    operand, layout = call.stored(x)
    return scaled(operand, f"L{p}", call.vector([layout.index(axis)])).value(layout)


@operator("MeanVarianceNormalization")
def mean_variance(call: Call) -> Value:
    x = call.tensor(0)
    axes = call.axes(call.node.integers("axes", (0, 2, 3)), x.rank or 0)
    operand, layout = call.stored(x)
    places = sorted(layout.index(a) for a in axes)
    centred = operand - operand.reduced("MEAN", places, True)
    deviation = sqrt((centred * centred).reduced("MEAN", places, True))
    return (centred / (deviation + 1e-9)).value(layout)
