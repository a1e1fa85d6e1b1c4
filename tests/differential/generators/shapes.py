"""Operations that arrange elements: reshaping, joining, cutting, padding, filling."""

from __future__ import annotations

import math

import numpy as np

from penstock.ir import DType
from penstock.ir.types import PACKED
from tests.differential.draw import Draw
from tests.differential.registry import SWEPT, cases

INDEX_TYPES = (DType.INT32, DType.INT64)
SMALL = (DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64)


@cases("RESHAPE", slots=1)
def reshape(draw: Draw, kind: str) -> None:
    shape = draw.shape()
    x = draw.quantized_value(draw.type(0), shape)
    target = list(draw.rng.permutation(shape).astype(int)) if shape else [1]
    if len(target) > 1 and draw.chance(0.5):
        target[:2] = [target[0] * target[1]]
    if 0 not in shape and draw.chance(0.4):
        target[draw.integer(0, len(target) - 1)] = -1
    numbers = tuple(int(d) for d in target)
    made = [draw.output(x.dtype, x.quantization)]
    if draw.chance(0.3):
        draw.operation(kind, [x], made, new_shape=numbers)
    else:
        draw.operation(
            kind, [x, draw.parameter(np.array(numbers, np.int32))], made, new_shape=numbers
        )


@cases("SQUEEZE", slots=1)
def squeeze(draw: Draw, kind: str) -> None:
    shape = tuple(1 if draw.chance(0.5) else d for d in draw.shape(0, 5))
    ones = [i for i, d in enumerate(shape) if d == 1]
    chosen = [i if draw.chance(0.5) else i - len(shape) for i in ones if draw.chance(0.7)]
    x = draw.quantized_value(draw.type(0), shape)
    draw.operation(kind, [x], [draw.output(x.dtype, x.quantization)], squeeze_dims=tuple(chosen))


@cases("EXPAND_DIMS", choices=(SWEPT, INDEX_TYPES))
def expand_dims(draw: Draw, kind: str) -> None:
    shape = draw.shape(0, 4)
    x = draw.quantized_value(draw.type(0), shape)
    axis = np.array(draw.integer(-len(shape) - 1, len(shape)), draw.type(1).numpy)
    position = draw.parameter(axis if draw.chance(0.5) else axis.reshape(1))
    draw.operation(kind, [x, position], [draw.output(x.dtype, x.quantization)])


@cases("SHAPE", choices=(SWEPT, INDEX_TYPES))
def shape_of(draw: Draw, kind: str) -> None:
    x = draw.quantized_value(draw.type(0), draw.shape(0, 5))
    draw.operation(kind, [x], [draw.output(draw.type(1))], out_type=draw.type(1).name)


@cases("RANK", slots=1)
def rank_of(draw: Draw, kind: str) -> None:
    draw.operation(
        kind, [draw.quantized_value(draw.type(0), draw.shape(0, 5))], [draw.output(DType.INT32)]
    )


@cases("TRANSPOSE", choices=(SWEPT, (DType.INT32,)))
def transpose(draw: Draw, kind: str) -> None:
    shape = draw.shape(1, 6)
    x = draw.quantized_value(draw.type(0), shape)
    order = draw.rng.permutation(len(shape)).astype(draw.type(1).numpy)
    if draw.chance(0.2):
        order = order - np.where(draw.rng.random(order.shape) < 0.5, len(shape), 0)
    order = order.astype(draw.type(1).numpy)
    draw.operation(kind, [x, draw.parameter(order)], [draw.output(x.dtype, x.quantization)])


@cases("PACK", slots=1)
def pack(draw: Draw, kind: str) -> None:
    shape, count = draw.shape(0, 4), draw.integer(1, 4)
    quantization = draw.quantization(draw.type(0))
    parts = [draw.value(draw.type(0), shape, quantization) for _ in range(count)]
    draw.operation(
        kind,
        parts,
        [draw.output(draw.type(0), quantization)],
        values_count=count,
        axis=draw.axis(len(shape) + 1),
    )


@cases("UNPACK", slots=1)
def unpack(draw: Draw, kind: str) -> None:
    shape = draw.shape(1, 4)
    axis = draw.axis(len(shape))
    x = draw.quantized_value(draw.type(0), shape)
    count = shape[axis]
    made = [draw.output(x.dtype, x.quantization) for _ in range(count)]
    draw.operation(kind, [x], made, num=count, axis=axis)


@cases("CONCATENATION", slots=1)
def concatenation(draw: Draw, kind: str) -> None:
    shape = draw.shape(1, 4)
    axis, dtype = draw.axis(len(shape)), draw.type(0)
    same = draw.quantization(dtype)
    different = same is not None and draw.chance(0.4)
    parts = []
    for _ in range(draw.integer(1, 4)):
        sizes = list(shape)
        sizes[axis] = draw.integer(1, 4)
        own = draw.quantization(dtype, scaled=True) if different else same
        parts.append(draw.value(dtype, sizes, own))
    draw.operation(
        kind,
        parts,
        [draw.output(dtype, same)],
        axis=axis,
        fused_activation_function=draw.activation() if draw.chance(0.1) else "NONE",
    )


@cases("SPLIT", slots=1)
def split(draw: Draw, kind: str) -> None:
    shape, count = list(draw.shape(1, 4)), draw.integer(1, 4)
    axis = draw.axis(len(shape))
    shape[axis] = count * draw.integer(1, 3)
    x = draw.quantized_value(draw.type(0), shape)
    made = [draw.output(x.dtype, x.quantization) for _ in range(count)]
    where = draw.parameter(np.array(axis, np.int32))
    draw.operation(kind, [where, x], made, num_splits=count)


@cases("SPLIT_V", choices=(SWEPT, INDEX_TYPES))
def split_by_sizes(draw: Draw, kind: str) -> None:
    shape, sizes = list(draw.shape(1, 4)), [draw.integer(1, 3) for _ in range(draw.integer(1, 4))]
    axis = draw.axis(len(shape))
    shape[axis] = sum(sizes)
    if draw.chance(0.3):
        sizes[draw.integer(0, len(sizes) - 1)] = -1
    x = draw.quantized_value(draw.type(0), shape)
    made = [draw.output(x.dtype, x.quantization) for _ in sizes]
    lengths = draw.parameter(np.array(sizes, draw.type(1).numpy))
    where = draw.parameter(np.array(axis, np.int32))
    draw.operation(kind, [x, lengths, where], made, num_splits=len(sizes))


@cases("SLICE", choices=(SWEPT, INDEX_TYPES))
def block(draw: Draw, kind: str) -> None:
    shape = draw.shape(1, 5)
    x = draw.quantized_value(draw.type(0), shape)
    begin = [draw.integer(0, max(d - 1, 0)) for d in shape]
    size = [
        -1 if draw.chance(0.3) else draw.integer(0 if draw.chance(0.05) else min(1, d - b), d - b)
        for d, b in zip(shape, begin, strict=True)
    ]
    places = [draw.parameter(np.array(v, draw.type(1).numpy)) for v in (begin, size)]
    draw.operation(kind, [x, *places], [draw.output(x.dtype, x.quantization)])


@cases("STRIDED_SLICE", choices=(SWEPT, (DType.INT16, DType.INT32, DType.INT64)))
def strided_block(draw: Draw, kind: str) -> None:
    shape = draw.shape(1, 5)
    x = draw.quantized_value(draw.type(0), shape)
    count = draw.integer(1, len(shape))
    strides = [draw.pick((1, 1, 1, 2, 3, -1, -2)) for _ in range(count)]
    ends = [draw.integer(-d - 1, d + 1) for d in shape[:count]]
    begins = [draw.integer(-d, d) for d in shape[:count]]
    masks = [draw.integer(0, 2**count - 1) if draw.chance(0.5) else 0 for _ in range(3)]
    shrink = draw.integer(0, 2**count - 1) if draw.chance(0.3) else 0
    offset = draw.chance(0.1)
    for i, size in enumerate(shape[:count]):
        if shrink >> i & 1 or offset:
            strides[i] = 1
            begins[i] = draw.integer(0, size - 1)
        if offset:
            ends[i] = draw.integer(1, size - begins[i])
    if offset:
        shrink, masks = 0, [0, 0, 0]
    places = [draw.parameter(np.array(v, draw.type(1).numpy)) for v in (begins, ends, strides)]
    ellipsis = (
        1 << draw.integer(0, count - 1) if draw.chance(0.15) and not (offset or shrink) else 0
    )
    draw.operation(
        kind,
        [x, *places],
        [draw.output(x.dtype, x.quantization)],
        begin_mask=masks[0],
        end_mask=masks[1],
        ellipsis_mask=ellipsis,
        new_axis_mask=masks[2] if draw.chance(0.2) else 0,
        shrink_axis_mask=shrink,
        offset=offset,
    )


@cases("TILE", choices=(SWEPT, INDEX_TYPES))
def tile(draw: Draw, kind: str) -> None:
    shape = draw.shape(1, 4)
    x = draw.quantized_value(draw.type(0), shape)
    times = draw.parameter(np.array([draw.integer(1, 3) for _ in shape], draw.type(1).numpy))
    draw.operation(kind, [x, times], [draw.output(x.dtype, x.quantization)])


@cases("BROADCAST_TO", choices=(SWEPT, INDEX_TYPES))
def broadcast_to(draw: Draw, kind: str) -> None:
    if draw.type(0) in PACKED:
        raise ValueError("LiteRT takes packed elements for bytes")
    shape = draw.shape(0, 6)
    given = tuple(1 if draw.chance(0.4) else d for d in shape)[draw.integer(0, len(shape)) :]
    x = draw.quantized_value(draw.type(0), given)
    target = draw.parameter(np.array(shape, draw.type(1).numpy))
    draw.operation(kind, [x, target], [draw.output(x.dtype, x.quantization)])


@cases("BROADCAST_ARGS", slots=1)
def broadcast_args(draw: Draw, kind: str) -> None:
    dtype = draw.type(0)
    shapes = draw.broadcast(draw.shape(1, 4))
    a, b = (draw.parameter(np.array(s, dtype.numpy), 0.3) for s in shapes)
    draw.operation(kind, [a, b], [draw.output(dtype)])


@cases("PAD", "PADV2", choices=(SWEPT, (DType.INT32, DType.INT64, DType.INT8, DType.INT16)))
def pad(draw: Draw, kind: str) -> None:
    shape = draw.shape(1, 5)
    x = draw.quantized_value(draw.type(0), shape)
    sizes = draw.rng.integers(0, 3, (len(shape), 2)).astype(draw.type(1).numpy)
    inputs = [x, draw.parameter(sizes)]
    if kind == "PADV2":
        inputs.append(draw.value(x.dtype, () if draw.chance(0.5) else (1,), x.quantization))
    draw.operation(kind, inputs, [draw.output(x.dtype, x.quantization)])


@cases("MIRROR_PAD", choices=(SWEPT, INDEX_TYPES))
def mirror_pad(draw: Draw, kind: str) -> None:
    mode = draw.pick(("REFLECT", "SYMMETRIC"))
    shape = tuple(d + 1 for d in draw.shape(1, 4))
    x = draw.quantized_value(draw.type(0), shape)
    most = [d - (mode == "REFLECT") for d in shape]
    sizes = np.array([[draw.integer(0, min(m, 3)) for _ in range(2)] for m in most])
    paddings = draw.parameter(sizes.astype(draw.type(1).numpy))
    draw.operation(kind, [x, paddings], [draw.output(x.dtype, x.quantization)], mode=mode)


@cases("FILL", choices=(SWEPT, INDEX_TYPES))
def fill(draw: Draw, kind: str) -> None:
    x = draw.quantized_value(draw.type(0), ())
    shape = draw.parameter(np.array(draw.shape(0, 4), draw.type(1).numpy))
    draw.operation(kind, [shape, x], [draw.output(x.dtype, x.quantization)])


@cases("RANGE", slots=1)
def range_of(draw: Draw, kind: str) -> None:
    dtype = draw.type(0)
    if dtype.is_float:
        delta = draw.real(0.3, 2)
        ends = [draw.real(-5, 5), draw.real(-5, 5)]
    else:
        delta = draw.integer(1, 3)
        ends = [float(draw.integer(-9, 9)), float(draw.integer(-9, 9))]
    if draw.chance(0.9):
        ends.sort()
    if draw.chance(0.3):
        delta, ends = -delta, ends[::-1]
    given = [draw.parameter(np.array(v, dtype.numpy), 0.4) for v in (*ends, delta)]
    draw.operation(kind, given, [draw.output(dtype)])


@cases("REVERSE_V2", slots=1)
def reverse(draw: Draw, kind: str) -> None:
    shape = draw.shape(1, 4)
    x = draw.quantized_value(draw.type(0), shape)
    first = draw.integer(0, len(shape) - 1)
    axes = np.arange(first, draw.integer(first + 1, len(shape)), dtype=np.int32)
    if draw.chance(0.3):
        axes = axes - np.int32(len(shape))
    draw.operation(
        kind, [x, draw.parameter(axes.astype(np.int32))], [draw.output(x.dtype, x.quantization)]
    )


@cases("REVERSE_SEQUENCE", choices=(SWEPT, INDEX_TYPES))
def reverse_sequence(draw: Draw, kind: str) -> None:
    shape = draw.shape(2, 4)
    x = draw.quantized_value(draw.type(0), shape)
    batch, sequence = (int(i) for i in draw.rng.permutation(len(shape))[:2])
    lengths = draw.rng.integers(0, shape[sequence] + 1, shape[batch]).astype(draw.type(1).numpy)
    draw.operation(
        kind,
        [x, draw.parameter(lengths, 0.3)],
        [draw.output(x.dtype, x.quantization)],
        seq_dim=sequence,
        batch_dim=batch,
    )


@cases("SPACE_TO_DEPTH", "DEPTH_TO_SPACE", slots=1)
def space_and_depth(draw: Draw, kind: str) -> None:
    size = draw.integer(1, 3)
    batch, height, width, depth = (draw.integer(1, 3) for _ in range(4))
    if kind == "SPACE_TO_DEPTH":
        height, width = height * size, width * size
    else:
        depth *= size * size
    x = draw.quantized_value(draw.type(0), (batch, height, width, depth))
    draw.operation(kind, [x], [draw.output(x.dtype, x.quantization)], block_size=size)


@cases("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND", slots=1)
def space_and_batch(draw: Draw, kind: str) -> None:
    spatial = draw.integer(1, 2)
    blocks = [draw.integer(1, 3) for _ in range(spatial)]
    edges = draw.rng.integers(0, 2, (spatial, 2))
    sizes = []
    for i, b in enumerate(blocks):
        if kind == "SPACE_TO_BATCH_ND":
            whole = b * draw.integer(1, 3)
            edges[i] = np.minimum(edges[i], (whole - 1) // 2)
            sizes.append(whole - int(edges[i].sum()))
        else:
            sizes.append(draw.integer(1, 3))
            edges[i] = np.minimum(edges[i], (sizes[-1] * b - 1) // 2)
    batch = draw.integer(1, 2) * (1 if kind == "SPACE_TO_BATCH_ND" else math.prod(blocks))
    x = draw.quantized_value(draw.type(0), (batch, *sizes, draw.integer(1, 3)))
    places = [draw.parameter(np.array(v, np.int32)) for v in (blocks, edges)]
    draw.operation(kind, [x, *places], [draw.output(x.dtype, x.quantization)])
