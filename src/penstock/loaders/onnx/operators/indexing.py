"""Operators that select elements by position, or write them at a position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.ir.types import DType, NDArray, static_shape
from penstock.loaders.onnx.calls import FAR, Call, Tensor
from penstock.loaders.onnx.folding import clamped, slice_bounds
from penstock.loaders.onnx.operators import operator
from penstock.loaders.onnx.operators.activation import last_axis
from penstock.loaders.onnx.values import Value, constant


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
        at, size = layout.index(axis), dims[axis]
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
    inputs = [call.get(x, layout), *map(call.vector, (begin, end, strides))]
    made = call.emit("STRIDED_SLICE", inputs, begin_mask=begin_mask, end_mask=end_mask)
    return made.value(layout)


def _computed(call: Call, x: Value) -> Value:
    """Bounds are computed at run time; axes and steps must be known."""
    rank = x.rank or 0
    count = (call.tensor(1).shape or (None,))[0]
    if count is None:
        raise call.refuse("the number of bounds is unknown")
    axes = call.axes(call.integers(3, "the axes"), rank) if call.has(3) else tuple(range(count))
    steps = list(call.integers(4, "the steps")) if call.has(4) else [1] * count
    if any(s < 1 for s in steps):
        raise call.refuse("bounds computed while running with a negative step")
    bounds = [call.get(i).cast(DType.INT64) for i in (1, 2)]
    limit, low = call.scalar(FAR, DType.INT64), call.scalar(-FAR, DType.INT64)
    pieces: list[list[Tensor]] = [[], []]
    zero = call.vector([0], np.int64)
    at = {axis: axes.index(axis) for axis in range(rank) if axis in axes}
    for axis in range(rank):
        for bound, piece in zip(bounds, pieces, strict=True):
            one = bound.gather(call.vector([at[axis]])) if axis in at else zero
            piece.append(one.minimum(limit).maximum(low) if axis in at else zero)
    mask = sum(1 << a for a in range(rank) if a not in at)
    strides = call.vector(steps[at[a]] if a in at else 1 for a in range(rank))
    vectors = [call.concatenate(p, 0).cast(DType.INT32) for p in pieces]
    inputs = [call.get(x), *vectors, strides]
    return call.emit("STRIDED_SLICE", inputs, begin_mask=mask, end_mask=mask).value()


def _from_end(indices: Tensor, size: Tensor) -> Tensor:
    """*indices*, with negative ones counted from the end of dimensions of *size*."""
    below = indices.call.emit("LESS", [indices, indices.like(0)], DType.BOOL)
    return indices.call.select(below, indices + size, indices)


def wrapped(call: Call, indices: Value, x: Tensor, axis: int) -> Tensor:
    """Indices into a dimension of *x*, with negative ones counted from its end."""
    array, size = indices.array, x.dims[axis]
    if array is not None and size is None and (array >= 0).all():
        return call.get(indices)
    if array is not None and size is not None:
        if ((array < -size) | (array >= size)).any():
            raise call.mismatch(f"an index is outside a dimension of {size}")
        return call.literal(np.where(array < 0, array + size, array).astype(array.dtype))
    operand = call.get(indices)
    if size is None:
        return _from_end(operand, x.sizes().gather(call.place(axis)).cast(indices.dtype))
    return _from_end(operand, operand.like(size))


@operator("Gather")
def gather(call: Call) -> Value:
    x, indices = call.tensor(0), call.tensor(1)
    axis, params = call.own_axis(x), call.get(x)
    return params.gather(wrapped(call, indices, params, axis), axis).value()


def _grid(shape: tuple[int, ...], axis: int, whole: tuple[int, ...], dtype: DType) -> NDArray:
    """The position along *axis* of each element of *shape*, in an array of shape *whole*."""
    view = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    if len(whole) > len(shape):
        view = view[..., None]
    return np.ascontiguousarray(np.broadcast_to(view, whole).astype(dtype.numpy))


def element_places(call: Call, indices: Value, x: Tensor, axis: int) -> Tensor:
    """Index vectors [..., rank] for indices along *axis*; elsewhere the element's position."""
    shape = static_shape(indices.shape)
    if shape is None:
        raise call.refuse("indices of unknown shape")
    places, columns = wrapped(call, indices, x, axis), []
    for at in range(len(shape)):
        if at == axis:
            columns.append(places.expand(len(shape)))
            continue
        call.charge(math.prod(shape) * 8)
        columns.append(call.literal(_grid(shape, at, (*shape, 1), places.dtype)))
    return call.concatenate(columns, len(shape))


@operator("GatherElements")
def gather_elements(call: Call) -> Value:
    x = call.tensor(0)
    axis, params = call.own_axis(x), call.get(x)
    places = element_places(call, call.tensor(1), params, axis)
    return call.emit("GATHER_ND", [params, places]).value()


def _positive(call: Call, indices: Value, whole: Sequence[int | None]) -> Tensor:
    """Index vectors, with negative coordinates counted from the end of dimensions *whole*."""
    if None in whole:
        return call.get(indices)
    extents = np.array(whole, np.int64).astype(indices.dtype.numpy)
    if indices.array is not None:
        found = np.where(indices.array < 0, indices.array + extents, indices.array)
        return call.literal(found.astype(indices.array.dtype))
    return _from_end(call.get(indices), call.literal(extents))


@operator("GatherND")
def gather_nd(call: Call) -> Value:
    x, indices = call.tensor(0), call.tensor(1)
    batch, dims = call.node.integer("batch_dims", 0), x.shape or ()
    params = call.get(x)
    depth = (indices.shape or (None,))[-1]
    if depth is None:
        raise call.refuse("index vectors of unknown length")
    least = min(len(dims), indices.rank or 0)
    if not 0 <= batch < least:
        raise call.mismatch(f"batch_dims={batch}, where the inputs have {least} dimensions or more")
    if batch + depth > len(dims):
        raise call.mismatch(f"index vectors of {depth} for {len(dims) - batch} dimensions")
    places = _positive(call, indices, dims[batch : batch + depth])
    if batch:
        shape = static_shape(indices.shape)
        if shape is None:
            raise call.refuse("batched index vectors of unknown shape")
        call.charge(8 * batch * math.prod(shape[:-1]))
        whole = (*shape[:-1], 1)
        columns = [call.literal(_grid(shape, at, whole, indices.dtype)) for at in range(batch)]
        places = call.concatenate([*columns, places], len(shape) - 1)
    return call.emit("GATHER_ND", [params, places]).value()


REDUCTIONS: Final = {
    "none": "",
    "add": "STABLEHLO_ADD",
    "mul": "STABLEHLO_MULTIPLY",
    "max": "STABLEHLO_MAXIMUM",
    "min": "STABLEHLO_MINIMUM",
}


def _scattered(call: Call, x: Tensor, vectors: Tensor, updates: Tensor) -> Value:
    """*x* with *updates* at index vectors, replaced or combined by a subgraph."""
    reduction = call.node.text("reduction", "none")
    if reduction not in REDUCTIONS:
        raise call.node.invalid(f"the reduction {reduction!r}")
    region = call.region(REDUCTIONS[reduction], x.dtype)
    outer, depth = len(vectors.dims) - 1, vectors.dims[-1]
    if depth is None:
        raise call.refuse("index vectors of unknown length")
    return call.emit(
        "STABLEHLO_SCATTER",
        [x, vectors, updates],
        update_window_dims=tuple(range(outer, outer + len(x.dims) - depth)),
        inserted_window_dims=tuple(range(depth)),
        scatter_dims_to_operand_dims=tuple(range(depth)),
        index_vector_dim=outer,
        unique_indices=False,
        indices_are_sorted=False,
        update_computation_subgraph_index=region,
    ).value()


@operator("ScatterND")
def scatter_nd(call: Call) -> Value:
    x, indices, updates = call.tensor(0), call.tensor(1), call.tensor(2)
    depth = (indices.shape or (None,))[-1]
    places = _positive(call, indices, (None,) if depth is None else (x.shape or ())[:depth])
    given = call.get(updates)
    return _scattered(call, call.get(x), places, given)


@operator("ScatterElements", "Scatter")
def scatter_elements(call: Call) -> Value:
    x, indices, updates = call.tensor(0), call.tensor(1), call.tensor(2)
    axis, operand = call.own_axis(x), call.get(x)
    vectors = element_places(call, indices, operand, axis)
    return _scattered(call, operand, vectors, call.get(updates))


@operator("OneHot")
def one_hot(call: Call) -> Value:
    """Negative indices count from the end. Indices outside have the off value everywhere."""
    indices, depth, values = call.tensor(0), call.value(1), call.value(2)
    rank = (indices.rank or 0) + 1
    axis = call.axis(call.node.integer("axis", -1), rank)
    if depth.array is not None:
        size = int(depth.array.reshape(-1)[0])
        if size < 0 or size > FAR:
            raise call.mismatch(f"a depth of {size}")
        count, length = call.place(size), call.scalar(size, DType.INT64)
    else:
        length = call.get(depth).cast(DType.INT64).reshape([])
        count = length.cast(DType.INT32)
    places = _from_end(call.get(indices).cast(DType.INT64), length)
    if values.array is not None:
        off, on = (call.literal(values.array.reshape(-1)[i].reshape(())) for i in (0, 1))
    else:
        whole = call.get(values)
        off, on = (whole.gather(call.place(i)) for i in (0, 1))
    inputs = [places, count, on, off]
    return call.emit("ONE_HOT", inputs, values.dtype, axis=-1 if axis == rank - 1 else axis).value()


operator("NonZero")(
    lambda call: call.get(call.tensor(0)).fn("WHERE", DType.INT64).transposed([1, 0]).value()
)


@operator("TopK")
def top_k(call: Call) -> list[Value]:
    x = call.tensor(0)
    order = last_axis(call.own_axis(x, -1), x.rank or 0)
    if call.version < 10:
        k = call.place(call.node.integer("k"))
    elif call.array(1) is not None:
        k = call.place(call.integers(1, "k")[0])
    else:
        k = call.get(1).cast(DType.INT32).reshape([])
    operand = call.get(x, order)
    smallest = not call.node.integer("largest", 1)
    if smallest:
        operand = -operand
    values, places = call.emit_all("TOPK_V2", [operand, k], [x.dtype, DType.INT32])
    if smallest:
        values = -values
    return [values.value(order), places.cast(DType.INT64).value(order)]


@operator("Compress")
def compress(call: Call) -> Value:
    """The slices along an axis, or elements of the flat input, where the condition is true."""
    x, condition = call.tensor(0), call.value(1)
    operand = call.get(x)
    axis = call.own_axis(x) if call.node.has("axis") else 0
    if not call.node.has("axis"):
        operand = operand.reshape([-1])
    places = call.get(condition).fn("WHERE", DType.INT64).squeeze(1)
    return operand.gather(places, axis).value()


@operator("Range")
def range_node(call: Call) -> Value:
    dtype = call.value(0).dtype
    if dtype not in {DType.FLOAT32, DType.INT32, DType.INT64}:
        raise call.refuse(f"a range of {dtype.value}")
    return call.emit("RANGE", [call.get(i).reshape([]) for i in range(3)], dtype).value()


@operator("ReverseSequence")
def reverse_sequence(call: Call) -> Value:
    time, batch = call.node.integer("time_axis", 0), call.node.integer("batch_axis", 1)
    inputs = [call.get(call.tensor(0)), call.get(1)]
    return call.emit("REVERSE_SEQUENCE", inputs, seq_dim=time, batch_dim=batch).value()


@operator("Trilu")
def triangle(call: Call) -> Value:
    """The part of matrices above or below a diagonal, zeros in the rest."""
    x = call.tensor(0)
    rows, columns = (x.shape or (None, None))[-2:]
    k = call.integers(1, "the diagonal")[0] if call.has(1) else 0
    if rows is None or columns is None:
        raise call.refuse("matrices of unknown size")
    call.charge(rows * columns)
    every = np.ones((rows, columns), bool)
    mask = np.triu(every, k) if call.node.integer("upper", 1) else np.tril(every, k)
    zero = np.zeros((), x.dtype.numpy)
    operands, layout = call.aligned([constant(mask), x, constant(zero)])
    return call.emit("SELECT_V2", operands, x.dtype).value(layout)


@operator("Unique")
def unique(call: Call) -> list[Value]:
    """Distinct elements of the flat input in order of first occurrence."""
    x = call.value(0)
    if call.node.has("axis") or call.node.integer("sorted", 1):
        raise call.refuse("distinct elements sorted, or along an axis")
    if any(call.node.outputs[i] for i in (1, 3) if i < len(call.node.outputs)):
        raise call.refuse("first places or counts of distinct elements")
    flat = call.get(x).reshape([-1])
    types = [x.dtype, DType.INT64]
    values, places = call.emit_all("UNIQUE", [flat], types, idx_out_type="INT64")
    return [values.value(), places.value(), places.value()]
