"""Operators that pick elements by place, or put them there."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from penstock.ir.types import DType, static_shape
from penstock.loaders.onnx.calls import Call, operator
from penstock.loaders.onnx.folding import clamped, slice_bounds
from penstock.loaders.onnx.operators.common import (
    aligned,
    arithmetic,
    axis_in,
    cast,
    concatenate,
    expand,
    reshape,
    sizes,
    squeeze,
    transposed,
)
from penstock.loaders.onnx.values import Value, constant, identity

FAR = 2**31 - 1


@operator("Slice")
def slice_node(call: Call) -> Value:
    x = call.tensor(0)
    rank, dims = x.rank or 0, x.shape or ()
    bounds = slice_bounds(call.node, [v and v.array for v in call.inputs])
    if bounds is None:
        return _computed(call, x)
    axes = call.axes(bounds[0], rank)
    layout = call.emitter.layout_of([x], rank)
    begin, end, strides = [0] * rank, [0] * rank, [1] * rank
    begin_mask = end_mask = (1 << rank) - 1
    for axis, start, stop, step in zip(axes, *bounds[1:], strict=True):
        at, size = axis_in(layout, axis), dims[axis]
        if step == 0:
            raise call.node.invalid("a step of 0")
        strides[at] = step
        if size is not None:
            place = clamped(start, stop, step, size)
            begin[at], begin_mask = place.start, begin_mask & ~(1 << at)
            if place.stop is not None:
                end[at], end_mask = place.stop, end_mask & ~(1 << at)
            continue
        if abs(start) < FAR or (step > 0) == (start > 0):
            begin[at], begin_mask = max(min(start, FAR), -FAR), begin_mask & ~(1 << at)
        if abs(stop) < FAR:
            end[at], end_mask = stop, end_mask & ~(1 << at)
    attributes = {"begin_mask": begin_mask, "end_mask": end_mask}
    vectors = [call.emitter.integers(v) for v in (begin, end, strides)]
    return call.wrap(
        call.emit("STRIDED_SLICE", [call.get(x, layout), *vectors], x.dtype, attributes), layout
    )


def _computed(call: Call, x: Value) -> Value:
    """Bounds computed while running; axes and steps must be known."""
    rank = x.rank or 0
    count = (call.tensor(1).shape or (None,))[0]
    if count is None:
        raise call.refuse("the number of bounds is unknown")
    axes = call.axes(call.integers(3, "the axes"), rank) if call.has(3) else tuple(range(count))
    steps = list(call.integers(4, "the steps")) if call.has(4) else [1] * count
    if any(s < 1 for s in steps):
        raise call.refuse("bounds computed while running with a negative step")
    starts, ends = (cast(call, call.get(i), DType.INT64) for i in (1, 2))
    limit = call.scalar(FAR, DType.INT64)
    low = call.scalar(-FAR, DType.INT64)
    pieces: list[list[int]] = [[], []]
    zero = call.emitter.integers([0], np.int64)
    for axis in range(rank):
        for at, bound in enumerate((starts, ends)):
            if axis in axes:
                place = call.emitter.integers([axes.index(axis)])
                one = call.emit("GATHER", [bound, place], DType.INT64)
                one = arithmetic(call, "MINIMUM", one, limit)
                pieces[at].append(arithmetic(call, "MAXIMUM", one, low))
            else:
                pieces[at].append(zero)
    mask = sum(1 << a for a in range(rank) if a not in axes)
    strides = [steps[axes.index(a)] if a in axes else 1 for a in range(rank)]
    vectors = [cast(call, concatenate(call, p, 0), DType.INT32) for p in pieces]
    made = call.emit(
        "STRIDED_SLICE",
        [call.get(x), *vectors, call.emitter.integers(strides)],
        x.dtype,
        {"begin_mask": mask, "end_mask": mask},
    )
    return call.wrap(made)


def wrapped(call: Call, indices: Value, size: int | None, of: int, axis: int) -> int:
    """Indices into a dimension of *size*, negative ones counted from its end."""
    if indices.array is not None:
        array = indices.array
        if size is None:
            if (array >= 0).all():
                return call.get(indices)
        else:
            if ((array < -size) | (array >= size)).any():
                raise call.mismatch(f"an index lies outside a dimension of {size}")
            return call.emitter.constant(
                np.where(array < 0, array + size, array).astype(array.dtype)
            )
    operand = call.get(indices)
    dtype = indices.dtype
    if size is None:
        every = sizes(call, of)
        length = call.emit(
            "GATHER", [every, call.emitter.constant(np.array(axis, np.int32))], DType.INT64
        )
        length = cast(call, length, dtype)
    else:
        length = call.scalar(size, dtype)
    below = call.emit("LESS", [operand, call.scalar(0, dtype)], DType.BOOL)
    return call.emit("SELECT_V2", [below, arithmetic(call, "ADD", operand, length), operand], dtype)


@operator("Gather")
def gather(call: Call) -> Value:
    x, indices = call.tensor(0), call.tensor(1)
    axis = call.axis(call.node.integer("axis", 0), x.rank or 0)
    params = call.get(x)
    places = wrapped(call, indices, (x.shape or ())[axis], params, axis)
    return call.wrap(call.emit("GATHER", [params, places], x.dtype, {"axis": axis}))


def element_places(call: Call, indices: int, axis: int, shape: tuple[int, ...]) -> int:
    """Full index vectors [..., rank] for indices along *axis*, whose other coordinates are their
    own places.
    """
    dtype = call.emitter.dtype(indices)
    columns = []
    for at in range(len(shape)):
        if at == axis:
            columns.append(expand(call, indices, len(shape)))
            continue
        view = np.arange(shape[at]).reshape([-1 if i == at else 1 for i in range(len(shape))])
        call.body.lowering.budget.take(math.prod(shape) * 8, call.node.where)
        grid = np.ascontiguousarray(np.broadcast_to(view, shape))[..., None].astype(dtype.numpy)
        columns.append(call.emitter.constant(grid))
    return concatenate(call, columns, len(shape))


@operator("GatherElements")
def gather_elements(call: Call) -> Value:
    x, indices = call.tensor(0), call.tensor(1)
    rank = x.rank or 0
    axis = call.axis(call.node.integer("axis", 0), rank)
    shape = static_shape(indices.shape)
    if shape is None:
        raise call.refuse("indices of unknown shape")
    params = call.get(x)
    places = wrapped(call, indices, (x.shape or ())[axis], params, axis)
    vectors = element_places(call, places, axis, shape)
    return call.wrap(call.emit("GATHER_ND", [params, vectors], x.dtype))


@operator("GatherND")
def gather_nd(call: Call) -> Value:
    x, indices = call.tensor(0), call.tensor(1)
    batch = call.node.integer("batch_dims", 0)
    params = call.get(x)
    depth = (indices.shape or (None,))[-1]
    if depth is None:
        raise call.refuse("index vectors of unknown length")
    dims = x.shape or ()
    least = min(len(dims), indices.rank or 0)
    if not 0 <= batch < least:
        raise call.mismatch(f"batch_dims={batch}, where the inputs have {least} dimensions or more")
    if batch + depth > len(dims):
        raise call.mismatch(f"index vectors of {depth} for {len(dims) - batch} dimensions")
    whole = dims[batch : batch + depth]
    if indices.array is not None and None not in whole:
        extents = np.array(whole, np.int64)
        positive = np.where(indices.array < 0, indices.array + extents, indices.array)
        places = call.emitter.constant(positive.astype(indices.array.dtype))
    elif None not in whole:
        places = _counted(call, indices, whole)
    else:
        places = call.get(indices)
    if batch:
        shape = static_shape(indices.shape)
        if shape is None:
            raise call.refuse("batched index vectors of unknown shape")
        call.body.lowering.budget.take(8 * batch * math.prod(shape[:-1]), call.node.where)
        columns = []
        for at in range(batch):
            view = np.arange(shape[at]).reshape([-1 if i == at else 1 for i in range(len(shape))])
            grid = np.broadcast_to(view, (*shape[:-1], 1)).astype(indices.dtype.numpy)
            columns.append(call.emitter.constant(np.ascontiguousarray(grid)))
        places = concatenate(call, [*columns, places], len(shape) - 1)
    return call.wrap(call.emit("GATHER_ND", [params, places], x.dtype))


def scattered(call: Call, x: Value, vectors: int, updates: int, reduction: str) -> Value:
    """*x* with *updates* at index vectors: set, or combined with what is there by a small subgraph."""
    from penstock.loaders.onnx.emitter import Emitter

    kinds = {"none": "", "add": "STABLEHLO_ADD", "mul": "STABLEHLO_MULTIPLY", "max": "STABLEHLO_MAXIMUM", "min": "STABLEHLO_MINIMUM"}  # fmt: skip
    if reduction not in kinds:
        raise call.node.invalid(f"the reduction {reduction!r}")
    region = Emitter(call.emitter.shared)
    a, b = (region.get(region.input(x.dtype, ())) for _ in range(2))
    made = b if not kinds[reduction] else region.one(kinds[reduction], [a, b], x.dtype)
    target = call.emitter.shared.add(region.finish([made]))
    operand = call.get(x)
    rank = x.rank or 0
    shape = call.shape(vectors) or ()
    depth = shape[-1]
    if depth is None:
        raise call.refuse("index vectors of unknown length")
    attributes: dict[str, int | bool | tuple[int, ...]] = {
        "update_window_dims": tuple(range(len(shape) - 1, len(shape) - 1 + rank - depth)),
        "inserted_window_dims": tuple(range(depth)),
        "scatter_dims_to_operand_dims": tuple(range(depth)),
        "index_vector_dim": len(shape) - 1,
        "unique_indices": False,
        "indices_are_sorted": False,
        "update_computation_subgraph_index": target,
    }
    made = call.emit("STABLEHLO_SCATTER", [operand, vectors, updates], x.dtype, attributes)
    return call.wrap(made)


@operator("ScatterND")
def scatter_nd(call: Call) -> Value:
    x, indices, updates = call.tensor(0), call.tensor(1), call.tensor(2)
    places = _positive(call, indices, x)
    return scattered(call, x, places, call.get(updates), call.node.text("reduction", "none"))


def _counted(call: Call, indices: Value, whole: Sequence[int | None]) -> int:
    """Index vectors, negative coordinates counted from the end of dimensions *whole*."""
    extents = np.array(whole, np.int64).astype(indices.dtype.numpy)
    operand = call.get(indices)
    below = call.emit("LESS", [operand, call.scalar(0, indices.dtype)], DType.BOOL)
    moved = arithmetic(call, "ADD", operand, call.emitter.constant(extents))
    return call.emit("SELECT_V2", [below, moved, operand], indices.dtype)


def _positive(call: Call, indices: Value, x: Value) -> int:
    depth = (indices.shape or (None,))[-1]
    whole = (x.shape or ())[: depth or 0]
    if depth is None or None in whole:
        return call.get(indices)
    if indices.array is not None:
        extents = np.array(whole, np.int64).astype(indices.dtype.numpy)
        found = np.where(indices.array < 0, indices.array + extents, indices.array)
        return call.emitter.constant(found)
    return _counted(call, indices, whole)


@operator("ScatterElements", "Scatter")
def scatter_elements(call: Call) -> Value:
    x, indices, updates = call.tensor(0), call.tensor(1), call.tensor(2)
    axis = call.axis(call.node.integer("axis", 0), x.rank or 0)
    shape = static_shape(indices.shape)
    if shape is None:
        raise call.refuse("indices of unknown shape")
    operand = call.get(x)
    places = wrapped(call, indices, (x.shape or ())[axis], operand, axis)
    vectors = element_places(call, places, axis, shape)
    return scattered(call, x, vectors, call.get(updates), call.node.text("reduction", "none"))


@operator("OneHot")
def one_hot(call: Call) -> Value:
    """Negative indices count from the end; those outside have the off value everywhere."""
    indices, depth, values = call.tensor(0), call.value(1), call.value(2)
    rank = (indices.rank or 0) + 1
    axis = call.node.integer("axis", -1)
    axis = call.axis(axis, rank)
    if depth.array is not None:
        size = int(depth.array.reshape(-1)[0])
        if size < 0 or size > FAR:
            raise call.mismatch(f"a depth of {size}")
        count = call.emitter.constant(np.array(size, np.int32))
        length = call.scalar(size, DType.INT64)
    else:
        length = reshape(call, cast(call, call.get(depth), DType.INT64), [])
        count = cast(call, length, DType.INT32)
    operand = cast(call, call.get(indices), DType.INT64)
    below = call.emit("LESS", [operand, call.scalar(0, DType.INT64)], DType.BOOL)
    moved = arithmetic(call, "ADD", operand, length)
    places = call.emit("SELECT_V2", [below, moved, operand], DType.INT64)
    if values.array is not None:
        off, on = (call.emitter.constant(values.array.reshape(-1)[i].reshape(())) for i in (0, 1))
    else:
        whole = call.get(values)
        off, on = (
            call.emit("GATHER", [whole, call.emitter.constant(np.array(i, np.int32))], values.dtype)
            for i in (0, 1)
        )
    attributes = {"axis": -1 if axis == rank - 1 else axis}
    return call.wrap(call.emit("ONE_HOT", [places, count, on, off], values.dtype, attributes))


@operator("NonZero")
def non_zero(call: Call) -> Value:
    x = call.tensor(0)
    made = call.emit("WHERE", [call.get(x)], DType.INT64)
    return call.wrap(transposed(call, made, [1, 0]))


@operator("TopK")
def top_k(call: Call) -> list[Value]:
    x = call.tensor(0)
    rank = x.rank or 0
    axis = call.axis(call.node.integer("axis", -1), rank)
    order = (*(i for i in identity(rank) if i != axis), axis)
    if call.version < 10:
        k = call.emitter.constant(np.array(call.node.integer("k"), np.int32))
    elif call.array(1) is not None:
        k = call.emitter.constant(np.array(int(call.integers(1, "k")[0]), np.int32))
    else:
        k = reshape(call, cast(call, call.get(1), DType.INT32), [])
    operand = call.get(x, order)
    smallest = not call.node.integer("largest", 1)
    if smallest:
        operand = call.emit("NEG", [operand], x.dtype)
    values, places = call.emitter.emit("TOPK_V2", [operand, k], [x.dtype, DType.INT32])
    if smallest:
        values = call.emit("NEG", [values], x.dtype)
    return [call.wrap(values, order), call.wrap(cast(call, places, DType.INT64), order)]


@operator("Compress")
def compress(call: Call) -> Value:
    """The slices along an axis at which the condition holds; of the flat input without an axis."""
    x, condition = call.tensor(0), call.value(1)
    operand = call.get(x)
    axis = 0
    if call.node.has("axis"):
        axis = call.axis(call.node.integer("axis"), x.rank or 0)
    else:
        operand = reshape(call, operand, [-1])
    places = squeeze(call, call.emit("WHERE", [call.get(condition)], DType.INT64), [1])
    return call.wrap(call.emit("GATHER", [operand, places], x.dtype, {"axis": axis}))


@operator("Range")
def range_node(call: Call) -> Value:
    dtype = call.value(0).dtype
    if dtype not in {DType.FLOAT32, DType.INT32, DType.INT64}:
        raise call.refuse(f"a range of {dtype.value}")
    ends = [reshape(call, call.get(i), []) for i in range(3)]
    return call.wrap(call.emit("RANGE", ends, dtype))


@operator("ReverseSequence")
def reverse_sequence(call: Call) -> Value:
    x = call.tensor(0)
    attributes = {
        "seq_dim": call.node.integer("time_axis", 0),
        "batch_dim": call.node.integer("batch_axis", 1),
    }
    return call.wrap(call.emit("REVERSE_SEQUENCE", [call.get(x), call.get(1)], x.dtype, attributes))


@operator("Trilu")
def triangle(call: Call) -> Value:
    """The part of matrices above or below a diagonal, zeros in the rest."""
    x = call.tensor(0)
    rows, columns = (x.shape or (None, None))[-2:]
    k = int(call.integers(1, "the diagonal")[0]) if call.has(1) else 0
    if rows is None or columns is None:
        raise call.refuse("matrices of unknown size")
    call.body.lowering.budget.take(rows * columns, call.node.where)
    upper = call.node.integer("upper", 1)
    every = np.ones((rows, columns), bool)
    mask = constant(np.triu(every, k) if upper else np.tril(every, k))
    zero = constant(np.zeros((), x.dtype.numpy))
    operands, layout = aligned(call, [mask, x, zero])
    return call.wrap(call.emit("SELECT_V2", operands, x.dtype), layout)


@operator("Unique")
def unique(call: Call) -> list[Value]:
    """Distinct elements of the flat input in order of first occurrence."""
    x = call.value(0)
    if call.node.has("axis") or call.node.integer("sorted", 1):
        raise call.refuse("distinct elements sorted, or along an axis")
    if any(call.node.outputs[i] for i in (1, 3) if i < len(call.node.outputs)):
        raise call.refuse("first places or counts of distinct elements")
    flat = reshape(call, call.get(x), [-1])
    values, places = call.emitter.emit(
        "UNIQUE", [flat], [x.dtype, DType.INT64], {"idx_out_type": "INT64"}
    )
    return [call.wrap(values), call.wrap(places), call.wrap(places)]
