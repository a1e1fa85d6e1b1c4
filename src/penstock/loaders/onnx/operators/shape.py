"""Operators that change shapes, order and number of elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from penstock.ir.types import DType, static_shape
from penstock.loaders.onnx.calls import Call, operator
from penstock.loaders.onnx.folding import axes_of
from penstock.loaders.onnx.operators.common import (
    axis_in,
    cast,
    concatenate,
    expand,
    pad,
    reshape,
    sizes,
    squeeze,
    transposed,
)
from penstock.loaders.onnx.values import Value, constant, identity, inverse, reshaped, uniform

MAX_TARGET = 32
MAX_MIRRORED = 1 << 20


@operator("Shape")
def shape_of(call: Call) -> Value:
    x = call.tensor(0)
    rank = x.rank or 0
    operand = sizes(call, call.get(x))
    start, end = call.node.integer("start", 0), call.node.integer("end", rank)
    start, end = (min(max(e + rank if e < 0 else e, 0), rank) for e in (start, end))
    if (start, end) != (0, rank):
        begin = call.emitter.integers([start])
        size = call.emitter.integers([max(end - start, 0)])
        operand = call.emit("SLICE", [operand, begin, size], DType.INT64)
    return call.wrap(operand)


@operator("Size")
def size_of(call: Call) -> Value:
    operand = sizes(call, call.get(call.value(0)))
    return call.wrap(call.emit("REDUCE_PROD", [operand, call.emitter.integers([0])], DType.INT64))


def to_shape(call: Call, x: Value, target: Sequence[int]) -> Value:
    """*x* in a shape of which one dimension may be -1."""
    if x.array is not None and -1 not in target and math.prod(target) == x.array.size:
        return constant(reshaped(x.array, tuple(target)))
    if tuple(target) == x.shape:
        return x
    return call.wrap(reshape(call, call.get(x), target))


@operator("Reshape")
def reshape_node(call: Call) -> Value:
    """0 keeps a dimension (unless allowzero), -1 is what remains; dimensions known only in part do
    as -1 too.
    """
    x = call.tensor(0)
    if call.version < 5:
        target: list[int | None] = list(call.node.integers("shape"))
    else:
        shape = call.value(1)
        listed = shape.array if shape.array is not None else shape.known
        if listed is None:
            return _computed(call, x, shape)
        target = [None if d is None else int(d) for d in listed.reshape(-1).tolist()]
    return _resolved(call, x, target)


def _resolved(call: Call, x: Value, target: list[int | None]) -> Value:
    dims = x.shape or ()
    if not call.node.integer("allowzero", 0):
        for at, size in enumerate(target):
            if size == 0:
                if at >= len(dims):
                    raise call.mismatch(f"dimension {at} is kept, and the input has {len(dims)}")
                target[at] = dims[at]
    if -1 in target:
        total = static_shape(dims)
        rest = [d for d in target if d != -1]
        if total is not None and None not in rest:
            inner = math.prod(d for d in rest if d is not None)
            if inner and math.prod(total) % inner == 0:
                target[target.index(-1)] = math.prod(total) // inner
        elif None in target and None in dims:
            # The unknown dimension is the same on both sides: what remains follows from the others.
            kept = [d for d in target if d is not None and d != -1]
            known = [d for d in dims if d is not None]
            if target.count(None) == dims.count(None) and 0 not in kept:
                inner = math.prod(kept)
                if inner and math.prod(known) % inner == 0:
                    target[target.index(-1)] = math.prod(known) // inner
    unknown = target.count(None)
    if unknown + target.count(-1) > 1:
        return _computed(call, x, call.value(1))
    return to_shape(call, x, [-1 if d is None else d for d in target])


def _computed(call: Call, x: Value, shape: Value) -> Value:
    """The target is computed while running: its zeros are filled in then."""
    operand, target = call.get(x), cast(call, call.get(shape), DType.INT64)
    if not call.node.integer("allowzero", 0) and shape.known is None:
        # As many of the input's dimensions as the target has, zeros behind them.
        own = pad(call, sizes(call, operand), [(0, MAX_TARGET)])
        own = call.emit(
            "SLICE", [own, call.emitter.integers([0], np.int64), sizes(call, target)], DType.INT64
        )
        zero = call.emit("EQUAL", [target, call.scalar(0, DType.INT64)], DType.BOOL)
        target = call.emit("SELECT_V2", [zero, own, target], DType.INT64)
    return call.wrap(call.emit("RESHAPE", [operand, target], x.dtype))


@operator("Flatten")
def flatten(call: Call) -> Value:
    x = call.tensor(0)
    rank, dims = x.rank or 0, x.shape or ()
    axis = call.node.integer("axis", 1)
    # It stands between dimensions, so that behind the last is a place, too.
    axis = rank if axis == rank else call.axis(axis, rank)
    outer, inner = dims[:axis], dims[axis:]
    target = [-1 if None in part else math.prod(d or 0 for d in part) for part in (outer, inner)]
    if target.count(-1) > 1:
        operand = call.get(x)
        own = sizes(call, operand)
        begin, size = call.emitter.integers([0]), call.emitter.integers([axis])
        head = call.emit("SLICE", [own, begin, size], DType.INT64)
        rows = call.emit(
            "REDUCE_PROD", [head, call.emitter.integers([0])], DType.INT64, {"keep_dims": True}
        )
        both = concatenate(call, [rows, call.emitter.integers([-1], np.int64)], 0)
        return call.wrap(call.emit("RESHAPE", [operand, both], x.dtype))
    return to_shape(call, x, target)


def _given_axes(call: Call, index: int = 1) -> tuple[int, ...] | None:
    if call.has(index):
        return call.integers(index, "the axes")
    return axes_of(call.node, [])


@operator("Squeeze")
def squeeze_node(call: Call) -> Value:
    x = call.tensor(0)
    rank, dims = x.rank or 0, x.shape or ()
    axes = _given_axes(call)
    if axes is None:
        if None in dims:
            raise call.refuse("all dimensions of 1 go, and it is unknown which are")
        axes = tuple(i for i, d in enumerate(dims) if d == 1)
    axes = tuple(sorted(call.axes(axes, rank)))
    if any(dims[a] not in (1, None) for a in axes):
        raise call.mismatch(f"dimensions {axes} of {dims} are not all 1")
    layout = call.emitter.layout_of([x], rank)
    kept = [a for a in layout if a not in axes]
    order = {axis: i for i, axis in enumerate(sorted(kept))}
    places = sorted(axis_in(layout, a) for a in axes)
    if not axes:
        return x
    operand = call.get(x, layout)
    if call.body.lowering.supposing and any(dims[a] is None for a in axes):
        # Shapes that contradict what a branch supposes may be given: that branch is then not the
        # one taken.
        first = call.emitter.constant(np.array(0, np.int32))
        for place in reversed(places):
            operand = call.emit("GATHER", [operand, first], x.dtype, {"axis": place})
    else:
        operand = squeeze(call, operand, places)
    return call.wrap(operand, tuple(order[a] for a in kept))


@operator("Unsqueeze")
def unsqueeze_node(call: Call) -> Value:
    x = call.tensor(0)
    axes = _given_axes(call)
    if axes is None:
        raise call.node.invalid("the axes are missing")
    rank = (x.rank or 0) + len(axes)
    axes = tuple(sorted(call.axes(axes, rank)))
    operand, dims = call.get(x), x.shape or ()
    if None not in dims:
        rest = iter(dims)
        return to_shape(call, x, [1 if i in axes else next(rest) or 0 for i in range(rank)])
    for axis in axes:
        operand = expand(call, operand, axis)
    return call.wrap(operand)


@operator("Transpose")
def transpose_node(call: Call) -> Value:
    """Another name for the dimensions of what is there; elements move where somebody needs them in
    order.
    """
    x = call.tensor(0)
    rank = x.rank or 0
    order = call.node.integers("perm") if call.node.has("perm") else identity(rank)[::-1]
    if sorted(order) != list(range(rank)):
        raise call.mismatch(f"{order} is no order of {rank} dimensions")
    if x.array is not None:
        return constant(x.array.transpose(order))
    local = call.emitter.local(x)
    back = inverse(order)
    have, operand = next(iter(local.forms.items()))
    found = call.wrap(operand, tuple(back[axis] for axis in have))
    for layout, other in local.forms.items():
        found.forms[tuple(back[axis] for axis in layout)] = other
    return found


@operator("Expand")
def expand_node(call: Call) -> Value:
    x, shape = call.tensor(0), call.value(1)
    if shape.array is not None:
        target = [int(d) for d in shape.array.reshape(-1).tolist()]
        own = x.shape or ()
        rank = max(len(own), len(target))
        target = [1] * (rank - len(target)) + target
        padded = (1,) * (rank - len(own)) + own
        found = [p if t == 1 else t for p, t in zip(padded, target, strict=True)]
        if tuple(found) == own:
            return x
        if None not in found:
            if x.array is not None and x.array.size == 1:
                return constant(uniform(x.array, tuple(d or 0 for d in found)))
            to = call.emitter.integers([d or 0 for d in found], np.int64)
            return call.wrap(call.emit("BROADCAST_TO", [call.get(x), to], x.dtype))
    operand = call.get(x)
    wanted = cast(call, call.get(shape), DType.INT64)
    both = call.emit("BROADCAST_ARGS", [sizes(call, operand), wanted], DType.INT64)
    return call.wrap(call.emit("BROADCAST_TO", [operand, both], x.dtype))


@operator("Tile")
def tile(call: Call) -> Value:
    x = call.tensor(0)
    if len(call.inputs) == 3:
        times = [1] * (x.rank or 0)
        count, axis = call.integers(1, "the repeats"), call.integers(2, "the axis")
        times[axis[0]] = count[0]
        repeats = call.emitter.integers(times)
    else:
        repeats = call.get(1)
    return call.wrap(call.emit("TILE", [call.get(x), repeats], x.dtype))


@operator("ConstantOfShape")
def filled(call: Call) -> Value:
    value = np.asarray(call.node.attributes.get("value", np.zeros(1, np.float32))).reshape(-1)
    if value.size != 1:
        raise call.node.invalid("the value of a filled tensor is one element")
    scalar = call.emitter.constant(value.reshape(()))
    dtype = call.emitter.dtype(scalar)
    return call.wrap(call.emit("FILL", [call.get(0), scalar], dtype))


@operator("EyeLike")
def eye_like(call: Call) -> Value:
    from penstock.loaders.onnx.tensors import dtype_of

    x = call.tensor(0)
    shape = static_shape(x.shape)
    if shape is None or len(shape) != 2:
        raise call.refuse("the shape of an identity matrix must be known")
    dtype = (
        x.dtype
        if not call.node.has("dtype")
        else dtype_of(call.node.integer("dtype"), call.node.where)
    )
    call.body.lowering.budget.take(shape[0] * shape[1] * 8, call.node.where)
    return constant(np.eye(*shape, k=call.node.integer("k", 0)).astype(dtype.numpy))


@operator("Concat")
def concat(call: Call) -> Value:
    values = [call.tensor(i) for i in range(len(call.inputs))]
    rank = values[0].rank or 0
    axis = call.axis(call.node.integer("axis", 1 if call.version < 4 else None), rank)
    if any(v.rank != rank for v in values):
        raise call.mismatch("inputs of different rank are joined")
    layout = call.emitter.layout_of(values, rank)
    operands = [call.get(v, layout) for v in values]
    return call.wrap(concatenate(call, operands, axis_in(layout, axis)), layout)


@operator("Split")
def split(call: Call) -> list[Value]:
    x = call.tensor(0)
    rank = x.rank or 0
    axis = call.axis(call.node.integer("axis", 0), rank)
    size, count = (x.shape or ())[axis], len(call.node.outputs)
    parts: list[int] | None = None
    if call.has(1):
        parts = list(call.integers(1, "the sizes of parts"))
    elif call.node.has("split"):
        parts = list(call.node.integers("split"))
    elif size is not None:
        each = -(-size // call.node.integer("num_outputs", count))
        parts = [max(min(each, size - i * each), 0) for i in range(count)]
    layout = call.emitter.layout_of([x], rank)
    operand = call.get(x, layout)
    at = call.emitter.constant(np.array(axis_in(layout, axis), np.int32))
    dtypes = [x.dtype] * count
    if parts is None:
        made = call.emitter.emit("SPLIT", [at, operand], dtypes, {"num_splits": count})
    else:
        if len(parts) != count or (size is not None and sum(parts) != size):
            raise call.mismatch(f"parts {parts} of a dimension of {size} for {count} outputs")
        if count == 1:
            return [x]
        lengths = call.emitter.integers(parts)
        made = call.emitter.emit("SPLIT_V", [operand, lengths, at], dtypes, {"num_splits": count})
    return [call.wrap(m, layout) for m in made]


@operator("Pad")
def pad_node(call: Call) -> Value:
    x = call.tensor(0)
    rank = x.rank or 0
    mode = call.node.text("mode", "constant")
    axes = tuple(range(rank))
    if call.version < 11:
        flat = list(call.node.integers("pads"))
        value: Value | None = constant(np.array(call.node.number("value", 0.0), np.float32))
    else:
        flat = list(call.integers(1, "the pads"))
        value = call.value(2) if call.has(2) else None
        if call.has(3):
            axes = call.axes(call.integers(3, "the axes"), rank)
    if len(flat) != 2 * len(axes):
        raise call.mismatch(f"{len(flat)} pads for {len(axes)} dimensions")
    pads = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        pads[axis] = (flat[i], flat[i + len(axes)])
    layout = call.emitter.layout_of([x], rank)
    operand, ordered = call.get(x, layout), [pads[axis] for axis in layout]
    if mode in {"reflect", "edge", "wrap"}:
        return call.wrap(_mirrored(call, operand, ordered, mode), layout)
    if mode != "constant":
        raise call.node.invalid(f"padding of mode {mode!r}")
    if value is None or value.array is not None:
        filling = 0 if value is None or value.array is None else value.array.reshape(-1)[0]
        return call.wrap(pad(call, operand, ordered, filling), layout)
    if any(b < 0 or a < 0 for b, a in ordered):
        raise call.refuse("negative pads with a value computed while running")
    paddings = call.emitter.constant(np.array(ordered, np.int32).reshape(-1, 2))
    single = reshape(call, call.get(value), [])
    return call.wrap(call.emit("PADV2", [operand, paddings, single], x.dtype), layout)


def _mirrored(call: Call, operand: int, pads: list[tuple[int, int]], mode: str) -> int:
    from penstock.loaders.onnx.operators.common import slice_axis

    for axis, (before, after) in enumerate(pads):
        operand = pad(
            call,
            operand,
            [(min(before, 0), min(after, 0)) if i == axis else (0, 0) for i in range(len(pads))],
        )
    pads = [(max(b, 0), max(a, 0)) for b, a in pads]
    if not any(b or a for b, a in pads):
        return operand
    dtype = call.emitter.dtype(operand)
    dims = call.shape(operand) or ()
    if mode == "reflect":
        inside = all(d is None or max(p) < d for d, p in zip(dims, pads, strict=True) if max(p))
        if inside:
            paddings = call.emitter.constant(np.array(pads, np.int32).reshape(-1, 2))
            return call.emit("MIRROR_PAD", [operand, paddings], dtype, {"mode": "REFLECT"})
        if any(d is None for d, p in zip(dims, pads, strict=True) if max(p)):
            raise call.refuse("a reflection of unknown extent")
    for axis, (before, after) in enumerate(pads):
        if not before and not after:
            continue
        size = dims[axis]
        if mode == "edge":
            parts = []
            for count, start, end in ((before, 0, 1), (after, -1, 2**31 - 1)):
                edge = slice_axis(call, operand, axis, start, end)
                repeats = [count if i == axis else 1 for i in range(len(dims))]
                parts.append(
                    call.emit("TILE", [edge, call.emitter.integers(repeats)], dtype)
                    if count
                    else -1
                )
            pieces = [p for p in (parts[0], operand, parts[1]) if p >= 0]
            operand = concatenate(call, pieces, axis)
            continue
        if size is None:
            raise call.refuse("a dimension of unknown size is repeated around its ends")
        if size + before + after > MAX_MIRRORED:
            raise call.refuse(f"a dimension of {size} padded to {size + before + after}")
        if mode == "wrap":
            places = [(i - before) % size for i in range(size + before + after)]
        else:
            period = max(2 * (size - 1), 1)
            places = [(i - before) % period for i in range(size + before + after)]
            places = [p if p < size else period - p for p in places]
        operand = call.emit(
            "GATHER", [operand, call.emitter.integers(places)], dtype, {"axis": axis}
        )
    return operand


@operator("DepthToSpace")
def depth_to_space(call: Call) -> Value:
    """Channels of [n, c, h, w] laid out as blocks: DCR has the block first in the channels, CRD
    last.
    """
    x = call.tensor(0)
    if x.rank != 4:
        raise call.mismatch(f"an image of shape {x.shape}")
    block = call.node.integer("blocksize")
    if call.node.text("mode", "DCR") == "DCR":
        made = call.emit(
            "DEPTH_TO_SPACE", [call.get(x, (0, 2, 3, 1))], x.dtype, {"block_size": block}
        )
        return call.wrap(made, (0, 2, 3, 1))
    _, c, h, w = x.shape or (None,) * 4
    if None in (c, h, w):
        raise call.refuse("an image of unknown size")
    depth = (c or 0) // (block * block)
    parts = reshape(call, call.get(x), [-1, depth, block, block, h or 0, w or 0])
    moved = transposed(call, parts, [0, 1, 4, 2, 5, 3])
    return call.wrap(reshape(call, moved, [-1, depth, (h or 0) * block, (w or 0) * block]))


@operator("SpaceToDepth")
def space_to_depth(call: Call) -> Value:
    x = call.tensor(0)
    if x.rank != 4:
        raise call.mismatch(f"an image of shape {x.shape}")
    if call.node.text("mode", "DCR") != "DCR":
        raise call.refuse(f"the mode {call.node.text('mode')!r}")
    attributes = {"block_size": call.node.integer("blocksize")}
    made = call.emit("SPACE_TO_DEPTH", [call.get(x, (0, 2, 3, 1))], x.dtype, attributes)
    return call.wrap(made, (0, 2, 3, 1))


@operator("Dropout")
def dropout(call: Call) -> list[Value]:
    """Nothing, when not training; its mask holds everything."""
    x = call.value(0)
    if call.has(2) and (call.array(2) is None or bool(np.asarray(call.array(2)).reshape(-1)[0])):
        raise call.refuse("Dropout in training")
    if len(call.node.outputs) < 2 or not call.node.outputs[1]:
        return [x]
    dtype = DType.BOOL if call.version >= 10 else x.dtype
    shape = sizes(call, call.get(x))
    return [x, call.wrap(call.emit("FILL", [shape, call.scalar(1, dtype)], dtype))]
