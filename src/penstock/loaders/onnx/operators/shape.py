"""Operators that change shapes, order and number of elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.ir.types import DType, static_shape
from penstock.loaders.onnx import values
from penstock.loaders.onnx.calls import FAR, Call, Tensor
from penstock.loaders.onnx.engine import dtype_of
from penstock.loaders.onnx.folding import axes_of
from penstock.loaders.onnx.operators import operator
from penstock.loaders.onnx.values import Value, constant

MAX_TARGET: Final = 32
MAX_MIRRORED: Final = 1 << 20


@operator("Shape")
def shape_of(call: Call) -> Value:
    x = call.tensor(0)
    rank = x.rank or 0
    operand = call.get(x).sizes()
    start, end = call.node.integer("start", 0), call.node.integer("end", rank)
    start, end = (min(max(e + rank if e < 0 else e, 0), rank) for e in (start, end))
    if (start, end) != (0, rank):
        operand = operand.part([start], [max(end - start, 0)])
    return operand.value()


operator("Size")(lambda call: call.get(0).sizes().reduced("REDUCE_PROD", [0]).value())


def to_shape(call: Call, x: Value, target: Sequence[int]) -> Value:
    """*x* in a shape with at most one dimension of -1."""
    if x.array is not None and -1 not in target and math.prod(target) == x.array.size:
        return constant(values.reshaped(x.array, tuple(target)))
    if tuple(target) == x.shape:
        return x
    return call.get(x).reshape(target).value()


@operator("Reshape")
def reshape_node(call: Call) -> Value:
    """0 keeps a dimension (unless allowzero is set); -1 and unknown ones are the remainder."""
    x = call.tensor(0)
    if call.version < 5:
        target: list[int | None] = list(call.node.integers("shape"))
    else:
        shape = call.value(1)
        listed = shape.array if shape.array is not None else shape.known
        if listed is None:
            return _computed(call, x, shape)
        target = [None if d is None else int(d) for d in listed.reshape(-1).tolist()]
    dims = x.shape or ()
    if not call.node.integer("allowzero", 0):
        for at, size in enumerate(target):
            if size == 0:
                if at >= len(dims):
                    raise call.mismatch(f"dimension {at} is kept, and the input has {len(dims)}")
                target[at] = dims[at]
    if -1 in target and target.count(None) == dims.count(None):
        # Unknown dimensions are the same on both sides, so the remainder follows from the others.
        inner = math.prod(d for d in target if d is not None and d != -1)
        whole = math.prod(d for d in dims if d is not None)
        if inner and whole % inner == 0:
            target[target.index(-1)] = whole // inner
    if target.count(None) + target.count(-1) > 1:
        return _computed(call, x, call.value(1))
    return to_shape(call, x, [-1 if d is None else d for d in target])


def _computed(call: Call, x: Value, shape: Value) -> Value:
    """The target is computed at run time, and so its zeros are replaced at run time."""
    operand, target = call.get(x), call.get(shape).cast(DType.INT64)
    if not call.node.integer("allowzero", 0) and shape.known is None:
        # As many of the input's dimensions as the target has, padded with zeros.
        own = operand.sizes().pad([(0, MAX_TARGET)])
        own = call.emit("SLICE", [own, call.vector([0], np.int64), target.sizes()])
        target = call.select(target.equals(0), own, target)
    return call.emit("RESHAPE", [operand, target]).value()


@operator("Flatten")
def flatten(call: Call) -> Value:
    x = call.tensor(0)
    rank, dims = x.rank or 0, x.shape or ()
    axis = call.node.integer("axis", 1)
    # The axis lies between dimensions, and may lie behind the last one.
    axis = rank if axis == rank else call.axis(axis, rank)
    outer, inner = dims[:axis], dims[axis:]
    target = [-1 if None in part else math.prod(d or 0 for d in part) for part in (outer, inner)]
    if target.count(-1) > 1:
        operand = call.get(x)
        rows = operand.sizes().part([0], [axis]).reduced("REDUCE_PROD", [0], True)
        both = call.concatenate([rows, call.vector([-1], np.int64)], 0)
        return call.emit("RESHAPE", [operand, both]).value()
    return to_shape(call, x, target)


def _given_axes(call: Call) -> tuple[int, ...] | None:
    return call.integers(1, "the axes") if call.has(1) else axes_of(call.node, [])


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
    places = sorted(layout.index(a) for a in axes)
    if not axes:
        return x
    operand = call.get(x, layout)
    if call.body.supposes and any(dims[a] is None for a in axes):
        # The input's shape may contradict the shapes that a branch assumes. That branch is then not
        # taken.
        first = call.place(0)
        for place in reversed(places):
            operand = operand.gather(first, place)
    else:
        operand = operand.squeeze(*places)
    return operand.value(tuple(order[a] for a in kept))


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
        operand = operand.expand(axis)
    return operand.value()


@operator("Transpose")
def transpose_node(call: Call) -> Value:
    """Renames the dimensions. Elements are moved only if a consumer needs another order."""
    x = call.tensor(0)
    rank = x.rank or 0
    order = call.node.integers("perm") if call.node.has("perm") else values.identity(rank)[::-1]
    if sorted(order) != list(range(rank)):
        raise call.mismatch(f"{order} is no order of {rank} dimensions")
    if x.array is not None:
        return constant(x.array.transpose(order))
    local = call.emitter.local(x)
    back = values.inverse(order)
    have, operand = next(iter(local.forms.items()))
    found = call.emitter.value(operand, tuple(back[axis] for axis in have))
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
                return constant(values.uniform(x.array, tuple(d or 0 for d in found)))
            to = call.vector([d or 0 for d in found], np.int64)
            return call.get(x).repeated(to).value()
    operand = call.get(x)
    wanted = call.get(shape).cast(DType.INT64)
    return operand.repeated(call.emit("BROADCAST_ARGS", [operand.sizes(), wanted])).value()


@operator("Tile")
def tile(call: Call) -> Value:
    x = call.tensor(0)
    if len(call.inputs) == 3:
        times = [1] * (x.rank or 0)
        count, axis = call.integers(1, "the repeats"), call.integers(2, "the axis")
        times[axis[0]] = count[0]
        repeats = call.vector(times)
    else:
        repeats = call.get(1)
    return call.emit("TILE", [call.get(x), repeats]).value()


@operator("ConstantOfShape")
def filled(call: Call) -> Value:
    value = np.asarray(call.node.attributes.get("value", np.zeros(1, np.float32))).reshape(-1)
    if value.size != 1:
        raise call.node.invalid("the value of a filled tensor must have one element")
    scalar = call.literal(value.reshape(()))
    return call.emit("FILL", [call.get(0), scalar], scalar.dtype).value()


@operator("EyeLike")
def eye_like(call: Call) -> Value:
    x = call.tensor(0)
    shape = static_shape(x.shape)
    if shape is None or len(shape) != 2:
        raise call.refuse("the shape of an identity matrix must be known")
    dtype = x.dtype
    if call.node.has("dtype"):
        dtype = dtype_of(call.node.integer("dtype"), call.node.where)
    call.charge(shape[0] * shape[1] * 8)
    return constant(np.eye(*shape, k=call.node.integer("k", 0)).astype(dtype.numpy))


@operator("Concat")
def concat(call: Call) -> Value:
    inputs = [call.tensor(i) for i in range(len(call.inputs))]
    rank = inputs[0].rank or 0
    axis = call.axis(call.node.integer("axis", 1 if call.version < 4 else None), rank)
    if any(v.rank != rank for v in inputs):
        raise call.mismatch("inputs of different rank are joined")
    layout = call.emitter.layout_of(inputs, rank)
    operands = [call.get(v, layout) for v in inputs]
    return call.concatenate(operands, layout.index(axis)).value(layout)


@operator("Split")
def split(call: Call) -> list[Value]:
    x = call.tensor(0)
    axis, count = call.own_axis(x), len(call.node.outputs)
    size = (x.shape or ())[axis]
    parts: list[int] | None = None
    if call.has(1):
        parts = list(call.integers(1, "the sizes of parts"))
    elif call.node.has("split"):
        parts = list(call.node.integers("split"))
    elif size is not None:
        each = -(-size // call.node.integer("num_outputs", count))
        parts = [max(min(each, size - i * each), 0) for i in range(count)]
    operand, layout = call.stored(x)
    at, types = call.place(layout.index(axis)), [x.dtype] * count
    if parts is None:
        made = call.emit_all("SPLIT", [at, operand], types, num_splits=count)
        return [m.value(layout) for m in made]
    if len(parts) != count or (size is not None and sum(parts) != size):
        raise call.mismatch(f"parts {parts} of a dimension of {size} for {count} outputs")
    if count == 1:
        return [x]
    inputs = [operand, call.vector(parts), at]
    return [m.value(layout) for m in call.emit_all("SPLIT_V", inputs, types, num_splits=count)]


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
        flat, value = list(call.integers(1, "the pads")), call.optional(2)
        if call.has(3):
            axes = call.axes(call.integers(3, "the axes"), rank)
    if len(flat) != 2 * len(axes):
        raise call.mismatch(f"{len(flat)} pads for {len(axes)} dimensions")
    pads = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        pads[axis] = (flat[i], flat[i + len(axes)])
    operand, layout = call.stored(x)
    ordered = [pads[axis] for axis in layout]
    if mode in {"reflect", "edge", "wrap"}:
        return _mirrored(operand, ordered, mode).value(layout)
    if mode != "constant":
        raise call.node.invalid(f"padding of mode {mode!r}")
    if value is None or value.array is not None:
        filling = 0 if value is None or value.array is None else value.array.reshape(-1)[0]
        return operand.pad(ordered, filling).value(layout)
    if any(b < 0 or a < 0 for b, a in ordered):
        raise call.refuse("negative pads with a value computed while running")
    paddings = call.literal(np.array(ordered, np.int32).reshape(-1, 2))
    return call.emit("PADV2", [operand, paddings, call.get(value).reshape([])]).value(layout)


def _mirrored(x: Tensor, pads: list[tuple[int, int]], mode: str) -> Tensor:
    call = x.call
    x = x.pad([(min(b, 0), min(a, 0)) for b, a in pads])
    pads = [(max(b, 0), max(a, 0)) for b, a in pads]
    if not any(b or a for b, a in pads):
        return x
    dims = x.dims
    if mode == "reflect":
        grown = [(d, max(p)) for d, p in zip(dims, pads, strict=True) if max(p)]
        if all(d is None or most < d for d, most in grown):
            paddings = call.literal(np.array(pads, np.int32).reshape(-1, 2))
            return call.emit("MIRROR_PAD", [x, paddings], mode="REFLECT")
        if any(d is None for d, _ in grown):
            raise call.refuse("a reflection of unknown extent")
    for axis, (before, after) in enumerate(pads):
        if not before and not after:
            continue
        size = dims[axis]
        if mode == "edge":
            parts = [x]
            for count, start, end in ((before, 0, 1), (after, -1, FAR)):
                repeats = call.vector(count if i == axis else 1 for i in range(len(dims)))
                if count:
                    edge = call.emit("TILE", [x.slice(axis, start, end), repeats])
                    parts = [*parts, edge] if start else [edge, *parts]
            x = call.concatenate(parts, axis)
            continue
        if size is None:
            raise call.refuse("a dimension of unknown size is repeated around its ends")
        whole = size + before + after
        if whole > MAX_MIRRORED:
            raise call.refuse(f"a dimension of {size} padded to {whole}")
        period = size if mode == "wrap" else max(2 * (size - 1), 1)
        places = [(i - before) % period for i in range(whole)]
        x = x.gather(call.vector(p if p < size else period - p for p in places), axis)
    return x


@operator("DepthToSpace")
def depth_to_space(call: Call) -> Value:
    """Channels laid out as blocks, which come first (DCR) or last (CRD) in the channels."""
    x = call.tensor(0)
    if x.rank != 4:
        raise call.mismatch(f"an image of shape {x.shape}")
    block = call.node.integer("blocksize")
    if call.node.text("mode", "DCR") == "DCR":
        made = call.get(x, (0, 2, 3, 1)).fn("DEPTH_TO_SPACE", block_size=block)
        return made.value((0, 2, 3, 1))
    _, c, h, w = x.shape or (None,) * 4
    if c is None or h is None or w is None:
        raise call.refuse("an image of unknown size")
    depth = c // (block * block)
    parts = call.get(x).reshape([-1, depth, block, block, h, w]).transposed([0, 1, 4, 2, 5, 3])
    return parts.reshape([-1, depth, h * block, w * block]).value()


@operator("SpaceToDepth")
def space_to_depth(call: Call) -> Value:
    x = call.tensor(0)
    if x.rank != 4:
        raise call.mismatch(f"an image of shape {x.shape}")
    if call.node.text("mode", "DCR") != "DCR":
        raise call.refuse(f"the mode {call.node.text('mode')!r}")
    block = call.node.integer("blocksize")
    return call.get(x, (0, 2, 3, 1)).fn("SPACE_TO_DEPTH", block_size=block).value((0, 2, 3, 1))


@operator("Dropout")
def dropout(call: Call) -> list[Value]:
    """The input in inference mode; the mask is all true."""
    x = call.value(0)
    if call.has(2) and (call.array(2) is None or bool(np.asarray(call.array(2)).reshape(-1)[0])):
        raise call.refuse("Dropout in training")
    if len(call.node.outputs) < 2 or not call.node.outputs[1]:
        return [x]
    dtype = DType.BOOL if call.version >= 10 else x.dtype
    return [x, call.emit("FILL", [call.get(x).sizes(), call.scalar(1, dtype)], dtype).value()]
