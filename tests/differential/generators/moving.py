"""Operations that pick, place, count and order elements."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.ir import DType
from penstock.ir.types import PACKED
from tests.differential.draw import Draw
from tests.differential.registry import SWEPT, cases

INDEX_TYPES: Final = (DType.INT32, DType.INT64)
DIAGONALS: Final = (DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64)
"""Types whose diagonals LiteRT knows; it takes the elements of any other for 32 bits wide."""

INDICES: Final = (DType.INT16, DType.INT32, DType.INT64)


@cases("GATHER", choices=(SWEPT, INDICES))
def gather(draw: Draw, kind: str) -> None:
    shape = draw.shape(1, 4)
    outer = draw.integer(0, len(shape) - 1) if draw.chance(0.4) else 0
    axis = draw.integer(outer, len(shape) - 1)
    if draw.type(0) in PACKED:
        # LiteRT gathers whole bytes of packed elements.
        shape, outer, axis = (*shape, 2 * draw.integer(1, 3)), 0, 0
    inner = draw.shape(0, 2, 3) if not draw.reusable else ()
    x = draw.quantized_value(draw.type(0), shape)
    picked = draw.rng.integers(0, shape[axis], (*shape[:outer], *inner))
    indices = draw.parameter(np.asarray(picked).astype(draw.type(1).numpy), 0.3)
    draw.operation(
        kind,
        [x, indices],
        [draw.output(x.dtype, x.quantization)],
        axis=axis - len(shape) if draw.chance(0.2) else axis,
        batch_dims=outer,
    )


@cases("GATHER_ND", choices=(SWEPT, INDICES))
def gather_blocks(draw: Draw, kind: str) -> None:
    shape = draw.shape(1, 4)
    depth = draw.integer(1, len(shape))
    x = draw.quantized_value(draw.type(0), shape)
    outer = tuple(draw.integer(1, 3) for _ in range(draw.integer(1, 3)))
    picked = np.stack([draw.rng.integers(0, d, outer) for d in shape[:depth]], -1)
    indices = draw.parameter(picked.astype(draw.type(1).numpy), 0.3)
    draw.operation(kind, [x, indices], [draw.output(x.dtype, x.quantization)])


@cases("SCATTER_ND", choices=(INDEX_TYPES, SWEPT))
def scatter_blocks(draw: Draw, kind: str) -> None:
    shape = draw.shape(1, 4)
    depth = draw.integer(1, len(shape))
    outer = tuple(draw.integer(1, 3) for _ in range(draw.integer(1, 2)))
    picked = np.stack([draw.rng.integers(0, d, outer) for d in shape[:depth]], -1)
    indices = draw.parameter(picked.astype(draw.type(0).numpy), 0.3)
    updates = draw.quantized_value(draw.type(1), (*outer, *shape[depth:]))
    target = draw.parameter(np.array(shape, draw.type(0).numpy))
    draw.operation(
        kind, [indices, updates, target], [draw.output(updates.dtype, updates.quantization)]
    )


@cases("DYNAMIC_UPDATE_SLICE", choices=(SWEPT, INDEX_TYPES))
def update_block(draw: Draw, kind: str) -> None:
    shape = draw.shape(1, 4)
    quantization = draw.quantization(draw.type(0))
    x = draw.value(draw.type(0), shape, quantization)
    size = [draw.integer(min(1, d), d) for d in shape]
    update = draw.value(draw.type(0), size, quantization)
    start = np.array([draw.integer(-1, d) for d in shape], draw.type(1).numpy)
    draw.operation(
        kind, [x, update, draw.parameter(start, 0.3)], [draw.output(x.dtype, quantization)]
    )


@cases("TOPK_V2", choices=(SWEPT, (DType.INT32, DType.INT16), (DType.INT32, DType.INT16)))
def greatest(draw: Draw, kind: str) -> None:
    shape = draw.shape(1, 3, 8)
    x = draw.quantized_value(draw.type(0), shape)
    count = draw.parameter(np.array(draw.integer(0, shape[-1]), draw.type(1).numpy))
    draw.operation(
        kind, [x, count], [draw.output(x.dtype, x.quantization), draw.output(draw.type(2))]
    )


@cases("WHERE", slots=1)
def places(draw: Draw, kind: str) -> None:
    shape = draw.shape(0, 4)
    array = draw.array(draw.type(0), shape)
    if draw.type(0) is not DType.STRING:
        array = np.where(draw.rng.random(shape) < 0.4, np.zeros_like(array), array)
    x = draw.value(draw.type(0), shape, draw.quantization(draw.type(0)), array=array)
    draw.operation(kind, [x], [draw.output(DType.INT64)])


@cases("UNIQUE", choices=(SWEPT, INDEX_TYPES))
def unique(draw: Draw, kind: str) -> None:
    array = draw.array(draw.type(0), (draw.integer(1, 9),))
    array = array[draw.rng.integers(0, len(array), draw.integer(1, 12))]
    x = draw.value(draw.type(0), array.shape, draw.quantization(draw.type(0)), array=array)
    draw.operation(
        kind,
        [x],
        [draw.output(x.dtype, x.quantization), draw.output(draw.type(1))],
        idx_out_type=draw.type(1).name,
    )


@cases("ONE_HOT", choices=(INDEX_TYPES, SWEPT))
def one_hot(draw: Draw, kind: str) -> None:
    shape, depth = draw.shape(0, 3), draw.integer(1, 5)
    picked = draw.rng.integers(-1, depth + 1, shape).astype(draw.type(0).numpy)
    indices = draw.value(draw.type(0), shape, array=np.asarray(picked))
    count = draw.parameter(np.array(depth, np.int32))
    quantization = draw.quantization(draw.type(1))
    on, off = (draw.value(draw.type(1), (), quantization) for _ in range(2))
    draw.operation(
        kind,
        [indices, count, on, off],
        [draw.output(draw.type(1), quantization)],
        axis=draw.integer(-1, len(shape)),
    )


@cases("SPARSE_TO_DENSE", choices=(INDEX_TYPES, SWEPT))
def sparse_to_dense(draw: Draw, kind: str) -> None:
    shape = draw.shape(1, 4)
    count = draw.integer(1, 4)
    flat = np.sort(draw.rng.permutation(int(np.prod(shape)))[:count])
    picked = np.stack(np.unravel_index(flat, shape), -1).astype(draw.type(0).numpy)
    if len(shape) == 1 and draw.chance(0.5):
        picked = picked[:, 0]
    indices = draw.parameter(picked, 0.3)
    target = draw.parameter(np.array(shape, draw.type(0).numpy))
    same = draw.quantization(draw.type(1))
    values = draw.value(draw.type(1), () if draw.chance(0.3) else (len(flat),), same)
    default = draw.value(draw.type(1), (), same)
    draw.operation(
        kind,
        [indices, target, values, default],
        [draw.output(draw.type(1), same)],
        validate_indices=draw.chance(0.5),
    )


@cases("SEGMENT_SUM", slots=1)
def sums_of_segments(draw: Draw, kind: str) -> None:
    shape = draw.shape(1, 3)
    steps = draw.rng.integers(0, 2, shape[0])
    x = draw.quantized_value(draw.type(0), shape)
    ids = draw.parameter(np.cumsum(steps).astype(np.int32) - np.int32(steps[:1].sum()), 0.4)
    draw.operation(kind, [x, ids], [draw.output(x.dtype, x.quantization)])


@cases(
    "UNSORTED_SEGMENT_SUM",
    "UNSORTED_SEGMENT_MAX",
    "UNSORTED_SEGMENT_MIN",
    "UNSORTED_SEGMENT_PROD",
    choices=(SWEPT, INDEX_TYPES),
)
def segments(draw: Draw, kind: str) -> None:
    shape, count = draw.shape(1, 3), draw.integer(1, 4)
    outer = shape[: draw.integer(1, len(shape))]
    ids = draw.rng.integers(-1, count, outer).astype(draw.type(1).numpy)
    x = draw.quantized_value(draw.type(0), shape)
    total = draw.parameter(np.array(count, draw.type(1).numpy))
    draw.operation(
        kind, [x, draw.parameter(ids, 0.4), total], [draw.output(x.dtype, x.quantization)]
    )


@cases("BUCKETIZE", slots=1)
def buckets(draw: Draw, kind: str) -> None:
    x = draw.quantized_value(draw.type(0), draw.shape(0, 4))
    edges = np.sort(draw.rng.uniform(-5, 5, draw.integer(1, 5))).astype(np.float32)
    draw.operation(kind, [x], [draw.output(DType.INT32)], boundaries=tuple(float(v) for v in edges))


@cases("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5", slots=1)
def suppression(draw: Draw, kind: str) -> None:
    dtype, count = draw.type(0), draw.integer(1, 8)
    corners = draw.rng.uniform(0, 1, (count, 4)).astype(dtype.numpy)
    boxes = draw.value(dtype, (count, 4), array=corners)
    scores = draw.value(dtype, (count,), array=draw.rng.permutation(count).astype(dtype.numpy) / 9)
    most = draw.parameter(np.array(draw.integer(0, count + 1), np.int32))
    overlap = draw.parameter(np.array(draw.real(0.1, 0.9), np.float32))
    least = draw.parameter(np.array(draw.real(0, 0.4), np.float32))
    inputs = [boxes, scores, most, overlap, least]
    made = [draw.output(DType.INT32)]
    if kind == "NON_MAX_SUPPRESSION_V5":
        sigma = draw.pick((0.0, 0.3, 0.5))
        inputs.append(draw.parameter(np.array(sigma, np.float32)))
        made.append(draw.output(dtype))
    draw.operation(kind, inputs, [*made, draw.output(DType.INT32)])


@cases("RFFT2D", slots=1)
def transform(draw: Draw, kind: str) -> None:
    shape = (*draw.shape(0, 2, 2), draw.integer(1, 5), draw.integer(1, 9))
    x = draw.value(draw.type(0), shape)
    length = draw.parameter(np.array([2 ** draw.integer(0, 3), 2 ** draw.integer(0, 4)], np.int32))
    draw.operation(kind, [x, length], [draw.output(DType.COMPLEX64)])


@cases("DILATE", choices=(SWEPT, INDEX_TYPES))
def dilate(draw: Draw, kind: str) -> None:
    if draw.type(0) in PACKED:
        raise ValueError("LiteRT takes packed elements for bytes")
    shape = draw.shape(1, 4)
    x = draw.quantized_value(draw.type(0), shape)
    factors = draw.parameter(np.array([draw.integer(1, 3) for _ in shape], draw.type(1).numpy))
    filler = draw.value(x.dtype, (), x.quantization)
    draw.operation(kind, [x, factors, filler], [draw.output(x.dtype, x.quantization)])


@cases("MATRIX_DIAG", "MATRIX_SET_DIAG", choices=(DIAGONALS,))
def diagonals(draw: Draw, kind: str) -> None:
    shape = draw.shape(1 if kind == "MATRIX_DIAG" else 2, 4)
    x = draw.quantized_value(draw.type(0), shape)
    inputs = [x]
    if kind == "MATRIX_SET_DIAG":
        inputs.append(draw.value(x.dtype, (*shape[:-2], min(shape[-2:])), x.quantization))
    draw.operation(kind, inputs, [draw.output(x.dtype, x.quantization)])
